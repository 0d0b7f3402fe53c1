//! Tokens against a server of our own on loopback.

use super::{super::tests::*, *};
use crate::{
    egress::Egress,
    http::filter::{Filter as _, Passing, Way, Whole},
};
use airlock_protocol::secret::{Grant, Place, Secret, Values};
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{RootCertStore, ServerConfig, pki_types::PrivateKeyDer},
};

const HOST: &str = "auth.example.org";

/// A server of tokens: answers each request with the next of its answers, and tells what it was asked.
struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    roots: RootCertStore,
}

impl Server {
    async fn new() -> Server {
        let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.clone()], key);
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        Server {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor: TlsAcceptor::from(Arc::new(config.unwrap())),
            roots,
        }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    fn tokens(&self) -> Tokens {
        let mut egress = Egress::to_loopback(&[HOST]);
        egress.trust = crate::tls::Upstream::trusting(self.roots.clone());
        Tokens::new(Fetcher::new(Rc::new(egress)))
    }

    /// One request; gives its body.
    async fn answer(&self, status: u16, answer: &str) -> String {
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut stream = self.acceptor.accept(stream).await.unwrap();
        let mut request = Vec::new();
        let length = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n")?;
            let told = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
            })?;
            (body.len() >= told.parse().unwrap()).then(|| body.to_owned())
        };
        loop {
            stream.read_buf(&mut request).await.unwrap();
            if let Some(body) = length(&String::from_utf8_lossy(&request)) {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    answer.len()
                );
                stream.write_all(format!("{head}{answer}").as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
                return body;
            }
        }
    }
}

fn secrets(port: u16) -> Vec<Secret> {
    let mut token = secret("TOKEN", "ya29.placeholder0123456789", &[Place::Header]);
    token.use_as = Use::OAuth {
        token_url: format!("https://{HOST}:{port}/token"),
        client_id: "me".into(),
        client_secret: Some("CLIENT".into()),
        grant: Grant::RefreshToken,
        scope: None,
    };
    vec![token, secret("CLIENT", "clientplaceholder01", &[Place::Header])]
}

const VALUES: [(&str, &str); 2] = [("TOKEN", "1//refresh-token-xyz"), ("CLIENT", "client-secret-abc")];

async fn send(world: &World, passing: &Passing) -> Result<String, Stop> {
    let request = http::Request::get("/").header("authorization", "Bearer ya29.placeholder0123456789");
    let mut head = request.body(()).unwrap().into_parts().0;
    world.guard.request(passing, &mut head).await?;
    Ok(head.headers["authorization"].to_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_token_is_fetched_once_put_in_and_taken_out_of_answers() {
    let server = Server::new().await;
    let world = World::fetching(&secrets(server.port()), &VALUES, server.tokens());
    let passing = passing("api.example.com", "GET", "/");

    let answer = r#"{"access_token": "ya29.access-one", "expires_in": 3600, "token_type": "Bearer"}"#;
    let (asked, sent) = tokio::join!(server.answer(200, answer), send(&world, &passing));

    assert_eq!(sent.unwrap(), "Bearer ya29.access-one");
    assert_eq!(
        asked,
        "grant_type=refresh_token&refresh_token=1%2F%2Frefresh-token-xyz&client_id=me&client_secret=client-secret-abc"
    );
    assert_eq!(send(&world, &passing).await.unwrap(), "Bearer ya29.access-one");
    let echo = http::Response::builder().header("x-echo", "ya29.access-one 1//refresh-token-xyz");
    let mut echo = echo.body(()).unwrap().into_parts().0;
    world.guard.response(&passing, &mut echo).await.unwrap();
    assert_eq!(echo.headers["x-echo"], "ya29.placeholder0123456789 ya29.placeholder0123456789");
    let at = |host: &str| (format!("TOKEN@{host}"), None);
    assert_eq!(world.ledger(), [at("api.example.com"), at(HOST), at("api.example.com")]);
}

#[tokio::test]
async fn a_refused_or_rotated_token_is_fetched_anew_with_what_the_server_gave() {
    let server = Server::new().await;
    let world = World::fetching(&secrets(server.port()), &VALUES, server.tokens());
    let passing = passing("api.example.com", "GET", "/");
    let first = r#"{"access_token": "ya29.access-one", "refresh_token": "1//another-refresh"}"#;
    let (_, sent) = tokio::join!(server.answer(200, first), send(&world, &passing));
    sent.unwrap();

    tokio::time::pause();
    tokio::time::advance(PAUSE * 2).await;
    tokio::time::resume();
    let mut refused = http::Response::builder().status(401).body(()).unwrap().into_parts().0;
    world.guard.response(&passing, &mut refused).await.unwrap();
    let second = r#"{"access_token": "ya29.access-two"}"#;
    let (asked, sent) = tokio::join!(server.answer(200, second), send(&world, &passing));
    assert_eq!(sent.unwrap(), "Bearer ya29.access-two");
    assert!(asked.contains("refresh_token=1%2F%2Fanother-refresh&"), "{asked}");

    tokio::time::pause();
    tokio::time::advance(PAUSE * 2).await;
    tokio::time::resume();
    world.gate.secrets().set(&Values([("TOKEN".to_owned(), "1//rotated-token".to_owned())].into())).unwrap();
    let third = r#"{"access_token": "ya29.access-three"}"#;
    let (asked, sent) = tokio::join!(server.answer(200, third), send(&world, &passing));
    assert_eq!(sent.unwrap(), "Bearer ya29.access-three");
    assert!(asked.contains("refresh_token=1%2F%2Frotated-token&"), "{asked}");
}

#[tokio::test]
async fn a_fetch_that_fails_tells_no_value_and_is_not_repeated_at_once() {
    let server = Server::new().await;
    let world = World::fetching(&secrets(server.port()), &VALUES, server.tokens());
    let passing = passing("api.example.com", "GET", "/");

    let (_, sent) =
        tokio::join!(server.answer(400, r#"{"error": "1//refresh-token-xyz"}"#), send(&world, &passing));
    let (Err(Stop::Failed(first)), Err(Stop::Failed(second))) = (sent, send(&world, &passing).await) else {
        panic!()
    };

    assert_eq!(first, "no token can be fetched for TOKEN: auth.example.org answered 400");
    assert_eq!(second, "no token can be fetched for TOKEN: the last attempt has just failed");
}

#[tokio::test]
async fn a_token_server_whose_certificate_is_not_trusted_gets_nothing() {
    let (server, other) = (Server::new().await, Server::new().await);
    let world = World::fetching(&secrets(server.port()), &VALUES, other.tokens());
    let accept = async {
        let (stream, _) = server.listener.accept().await.unwrap();
        assert!(server.acceptor.accept(stream).await.is_err());
    };

    let passing = passing("api.example.com", "GET", "/");
    let ((), sent) = tokio::join!(accept, send(&world, &passing));

    assert!(matches!(sent, Err(Stop::Failed(why)) if why.contains("in private")));
}

#[tokio::test]
async fn the_placeholder_of_a_token_goes_nowhere_else() {
    let server = Server::new().await;
    let world = World::fetching(&secrets(server.port()), &VALUES, server.tokens());

    assert!(matches!(send(&world, &passing(HOST, "POST", "/token")).await, Err(Stop::Denied(_))));
}

/// What becomes of a form that a program sends to where tokens are fetched.
async fn ask(world: &World, passing: &Passing, form: &str) -> Result<String, String> {
    let mut head = http::Request::post(&passing.path).body(()).unwrap().into_parts().0;
    assert!(world.guard.gathers(passing, Way::Out, &head.headers).is_some());
    let body = Whole::Body(hyper::body::Bytes::copy_from_slice(form.as_bytes()));
    match world.guard.whole_request(passing, &mut head, body).await {
        Err(Stop::Answered(document)) => Ok(String::from_utf8(document.to_vec()).unwrap()),
        Err(Stop::Denied(denial)) => Err(denial.detail.unwrap()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_asks_for_a_token_gets_its_placeholder_back_and_nothing_leaves() {
    let server = Server::new().await;
    let mut principal = secret("PRINCIPAL", "placeholder-of-principal", &[Place::Header]);
    principal.use_as = Use::OAuth {
        token_url: format!("https://{HOST}:{}/token?x=1", server.port()),
        client_id: "me".into(),
        client_secret: None,
        grant: Grant::ClientCredentials,
        scope: None,
    };
    let all = [secrets(server.port()), vec![principal]].concat();
    let values = [VALUES[0], VALUES[1], ("PRINCIPAL", "principal-real-secret")];
    let world = World::fetching(&all, &values, server.tokens());
    let place = Passing { port: server.port(), ..passing(HOST, "POST", "/token") };

    let refresh =
        "grant_type=refresh_token&refresh_token=ya29.placeholder0123456789&client_id=x&client_secret=y";
    let expected =
        "{\"access_token\":\"ya29.placeholder0123456789\",\"expires_in\":3600,\"token_type\":\"Bearer\"}\n";
    assert_eq!(ask(&world, &place, refresh).await.unwrap(), expected);
    let client =
        "client_id=me&client_secret=placeholder%2Dof-principal&grant_type=client_credentials&scope=s";
    assert!(ask(&world, &place, client).await.unwrap().contains("\"placeholder-of-principal\""));

    for other in [
        "",
        "grant_type=refresh_token&refresh_token=another-one",
        "grant_type=password&refresh_token=ya29.placeholder0123456789",
        "grant_type=client_credentials&client_secret=ya29.placeholder0123456789",
        "grant_type=refresh_token&refresh_token=ya29.placeholder0123456789&refresh_token=another-one",
    ] {
        let denied = ask(&world, &place, other).await.unwrap_err();
        assert!(denied.contains("tokens are fetched outside"), "{other}: {denied}");
    }
    let refused =
        |passing: Passing| world.guard.gathers(&passing, Way::Out, &http::HeaderMap::new()).is_none();
    assert!(refused(Passing { is_verified: false, ..place.clone() }));
    assert!(refused(Passing { path: "/token/".into(), ..place.clone() }));
    assert!(refused(Passing { method: "GET".into(), ..place.clone() }));
    assert!(
        world.gate.secrets().wants(&place.target, place.port)
            && !world.gate.secrets().wants(&place.target, 1)
    );
}
