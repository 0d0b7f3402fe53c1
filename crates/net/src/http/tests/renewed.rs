//! Requests that a server refused for an old token, sent again with a new one.

use super::world::{Sent, Server, World, read, run, text, with_trailer};
use airlock_gate::secrets::Secrets;
use airlock_protocol::secret::{From, Grant, Place, Secret, Use, Values};
use http::{Request, request::Builder};

const PLACEHOLDER: &str = "ya29.placeholder0123456789";

fn secrets(port: u16) -> Secrets {
    let secret = Secret {
        name: "TOKEN".into(),
        from: From::Env("TOKEN".into()),
        placeholder: PLACEHOLDER.into(),
        hosts: vec!["a.test".into()],
        methods: Vec::new(),
        paths: Vec::new(),
        places: vec![Place::Header],
        use_as: Use::OAuth {
            token_url: format!("https://a.test:{port}/token"),
            client_id: "me".into(),
            client_secret: None,
            grant: Grant::RefreshToken,
            scope: None,
        },
    };
    Secrets::new(&[secret], &Values([("TOKEN".to_owned(), "1//refresh-token".to_owned())].into())).unwrap()
}

/// The server gives tokens as well, which are fetched by HTTP/1.1.
async fn world() -> World {
    World::guarding_at(Server::Http1, Vec::new(), secrets).await
}

fn bearing(world: &World, method: &str) -> Builder {
    let url = format!("https://a.test:{}/second", world.port);
    Request::builder().method(method).uri(url).header("authorization", format!("Bearer {PLACEHOLDER}"))
}

/// What came of a request, and what the server saw of it.
async fn asked(world: &World, request: Request<Sent>) -> (u16, String, Vec<String>) {
    let mut sender = world.http2().await;
    let (status, body, _) = read(sender.send_request(request).await.unwrap()).await;
    let seen = world.seen().into_iter().filter(|line| line.starts_with("second")).collect();
    (status, body, seen)
}

#[test]
fn a_request_is_sent_once_more_with_a_new_token_after_a_401() {
    run(async {
        for (method, body) in [("GET", ""), ("POST", "what was sent"), ("PUT", &"x".repeat(60_000))] {
            let world = world().await;

            let request = bearing(&world, method).body(text(body)).unwrap();
            let (status, echo, seen) = asked(&world, request).await;

            assert_eq!((status, echo.as_str()), (200, body));
            let length = body.len();
            assert_eq!(seen, [format!("second false body {length}"), format!("second true body {length}")]);
            assert_eq!(world.recorded(&["reveal", "TOKEN", "allow"]), 4);
            assert_eq!(world.recorded(&["access-token"]), 0);
        }
    });
}

#[test]
fn a_body_that_is_too_long_or_has_trailers_is_not_sent_again() {
    run(async {
        for body in [text(&"x".repeat(70_000)), with_trailer("short")] {
            let world = world().await;

            let request = bearing(&world, "POST").body(body).unwrap();
            let (status, _, seen) = asked(&world, request).await;

            assert_eq!((status, seen.len()), (401, 1), "{seen:?}");
        }
    });
}

#[test]
fn a_token_that_was_just_fetched_for_a_refused_one_is_not_fetched_again() {
    run(async {
        let world = world().await;
        let url = format!("https://a.test:{}/never", world.port);
        let refused = || {
            let request = Request::get(&url).header("authorization", format!("Bearer {PLACEHOLDER}"));
            request.body(text("")).unwrap()
        };

        let first = asked(&world, refused()).await;
        let second = asked(&world, refused()).await;

        assert_eq!((first.0, second.0), (401, 401));
        let count = |words: &str| world.seen().iter().filter(|line| line.contains(words)).count();
        assert_eq!((count("/token"), count("/never")), (2, 3));
    });
}

#[test]
fn a_request_without_a_token_is_sent_once() {
    run(async {
        let world = world().await;

        let request = Request::get(format!("https://a.test:{}/never", world.port)).body(text("")).unwrap();
        let (status, _, _) = asked(&world, request).await;

        let count = |words: &str| world.seen().iter().filter(|line| line.contains(words)).count();
        assert_eq!((status, count("/token"), count("/never")), (401, 0, 1));
    });
}
