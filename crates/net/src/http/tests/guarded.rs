//! Secrets on opened connections: what the server gets, and what comes back.

use super::world::{Server, World, read, run, text};
use airlock_gate::secrets::Secrets;
use airlock_protocol::secret::{From, Place, Secret, Use, Values};
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PLACEHOLDER: &str = "sk-0123456789abcdefPlaceholder";
const VALUE: &str = "sk-RealRealRealRealRealRealValu";

fn secrets(places: &[Place]) -> Secrets {
    let secret = Secret {
        name: "KEY".into(),
        from: From::Env("KEY".into()),
        placeholder: PLACEHOLDER.into(),
        hosts: vec!["a.test".into()],
        methods: Vec::new(),
        paths: Vec::new(),
        places: places.to_vec(),
        use_as: Use::Plain,
    };
    Secrets::new(&[secret], &Values([("KEY".to_owned(), VALUE.to_owned())].into())).unwrap()
}

fn url(world: &World, path: &str) -> String {
    format!("https://a.test:{}{path}", world.port)
}

#[test]
fn the_server_gets_the_value_and_its_echo_comes_back_as_the_placeholder() {
    for server in [Server::Http1, Server::Http2] {
        run(async {
            let world = World::guarding(server, Vec::new(), secrets(&[Place::Header])).await;
            let mut sender = world.http2().await;

            let request =
                Request::get(url(&world, "/heads")).header("x-key", PLACEHOLDER).body(text("")).unwrap();
            let answered = read(sender.send_request(request).await.unwrap()).await;

            assert_eq!(answered.0, 200);
            assert!(world.seen().contains(&format!("key {VALUE}")), "{:?}", world.seen());
            assert!(answered.1.contains(&format!("x-key={PLACEHOLDER}")), "{}", answered.1);
            assert!(!answered.1.contains(VALUE), "{}", answered.1);
            assert_eq!((world.recorded(&["reveal", "KEY", "allow"]), world.recorded(&[VALUE])), (1, 0));
        });
    }
}

#[test]
fn a_body_whose_length_changes_arrives_whole() {
    for server in [Server::Http1, Server::Http2] {
        run(async {
            let world = World::guarding(server, Vec::new(), secrets(&[Place::Body])).await;
            let mut sender = world.http2().await;
            let body = format!("key={PLACEHOLDER}&end");

            let request = Request::post(url(&world, "/echo")).body(text(&body)).unwrap();
            let answered = read(sender.send_request(request).await.unwrap()).await;

            assert_eq!((answered.0, answered.1), (200, body.clone()));
            let arrived = body.len() - PLACEHOLDER.len() + VALUE.len();
            assert!(world.seen().contains(&format!("body {arrived} trailers false")), "{:?}", world.seen());
        });
    }
}

#[test]
fn a_placeholder_over_plain_http_is_refused_and_told() {
    run(async {
        let world = World::guarding(Server::Plain, Vec::new(), secrets(&[Place::Header])).await;
        let mut socket = world.connect().await;
        let head = format!(
            "GET /heads HTTP/1.1\r\nhost: a.test:{}\r\nx-key: {PLACEHOLDER}\r\nconnection: close\r\n\r\n",
            world.port
        );

        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();

        assert!(answer.starts_with(b"HTTP/1.1 403 "), "{}", String::from_utf8_lossy(&answer));
        assert!(!world.seen().iter().any(|line| line.starts_with("GET")), "{:?}", world.seen());
        assert_eq!(world.recorded(&["reveal", "KEY", "deny", "\"reason\":\"secret\""]), 1);
    });
}

#[test]
fn a_placeholder_in_a_body_where_none_may_stand_ends_the_request() {
    run(async {
        let world = World::guarding(Server::Http1, Vec::new(), secrets(&[Place::Header])).await;
        let mut sender = world.http2().await;

        let request = Request::post(url(&world, "/echo")).body(text(&format!("key={PLACEHOLDER}"))).unwrap();
        let answered = sender.send_request(request).await;

        assert!(!answered.is_ok_and(|answer| answer.status() == 200));
        assert_eq!(world.recorded(&["reveal", "KEY", "deny", "\"reason\":\"secret\""]), 1);
        assert_eq!(world.recorded(&["reveal", "allow"]), 0);
    });
}
