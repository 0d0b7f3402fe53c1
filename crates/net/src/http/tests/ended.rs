//! What does not arrive, and what the program is told.

use super::world::{Server, World, allowing, read, run, text};
use http::Request;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn get(world: &World, path: &str) -> Request<super::world::Sent> {
    Request::get(path).header("host", format!("a.test:{}", world.port)).body(text("")).unwrap()
}

#[test]
fn a_server_whose_certificate_is_not_trusted_gets_no_request() {
    for offers in [&[&b"http/1.1"[..]][..], &[]] {
        run(async {
            let world = World::new(Server::Untrusted).await;
            let mut socket = world.tls(offers).await;
            let request =
                format!("GET / HTTP/1.1\r\nhost: a.test:{}\r\nconnection: close\r\n\r\n", world.port);
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let _ = socket.read_to_string(&mut answer).await;

            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
            assert!(answer.contains("certificate"), "{answer}");
            assert_eq!(world.seen(), ["connected"]);
            assert_eq!(world.recorded(&["\"reason\":\"certificate\""]), 1);
        });
    }
}

#[test]
fn a_request_whose_rule_is_gone_ends_at_once_and_so_does_the_next() {
    for is_http2 in [false, true] {
        run(async {
            let world = World::new(if is_http2 { Server::Http2 } else { Server::Http1 }).await;
            let mut body = match is_http2 {
                false => world.http1().await.send_request(get(&world, "/endless")).await.unwrap().into_body(),
                true => {
                    let request =
                        Request::get(format!("https://a.test:{}/endless", world.port)).body(text(""));
                    world.http2().await.send_request(request.unwrap()).await.unwrap().into_body()
                }
            };
            assert!(body.frame().await.unwrap().is_ok());

            world.other_rules("");

            let cut = async {
                while let Some(frame) = body.frame().await {
                    if frame.is_err() {
                        return true;
                    }
                }
                false
            };
            assert!(tokio::time::timeout(std::time::Duration::from_secs(1), cut).await.unwrap());
            world.until(|world| world.recorded(&["\"status\":\"revoked\""]) >= 1).await;
        });
    }
}

#[test]
fn what_is_not_http_reaches_nobody() {
    run(async {
        let world = World::new(Server::Plain).await;
        let mut socket = world.connect().await;
        socket.write_all(b"SSH-2.0-client\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert_eq!(world.seen(), Vec::<String>::new());
    });
}

#[test]
fn http2_without_tls_and_tracing_are_refused() {
    run(async {
        let world = World::new(Server::Plain).await;
        let mut socket = world.connect().await;
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");

        let mut socket = world.connect().await;
        let request = format!("TRACE / HTTP/1.1\r\nhost: a.test:{}\r\nconnection: close\r\n\r\n", world.port);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert_eq!(world.seen(), Vec::<String>::new());
    });
}

#[test]
fn a_request_that_hides_in_a_body_is_no_request() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut socket = world.tls(&[b"http/1.1"]).await;
        let hidden = "GET /hidden HTTP/1.1\r\nhost: a.test\r\n\r\n";
        let request = format!(
            "POST /echo HTTP/1.1\r\nhost: a.test:{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{hidden}",
            world.port,
            hidden.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer).await;
        assert_eq!(
            world.seen()[1..],
            ["POST /echo HTTP/1.1".to_owned(), format!("body {} trailers false", hidden.len())]
        );
    });
}

#[test]
fn a_name_that_is_not_the_connections_is_refused() {
    run(async {
        let world = World::new(Server::Http1).await;
        let socket = world.connect().await;
        let config = tokio_rustls::rustls::ClientConfig::builder()
            .with_root_certificates(tokio_rustls::rustls::RootCertStore::empty())
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let name = tokio_rustls::rustls::pki_types::ServerName::try_from("b.test").unwrap();
        assert!(connector.connect(name, socket).await.is_err());
        assert_eq!(world.seen(), Vec::<String>::new());
        assert_eq!(world.recorded(&["\"reason\":\"sni\""]), 1);
    });
}

#[test]
fn the_next_request_is_judged_by_the_rules_of_now() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http1().await;
        assert_eq!(read(sender.send_request(get(&world, "/one")).await.unwrap()).await.0, 200);
        let denied = format!(
            "[[rule]]\ndeny = 'a.test'\nports = [{}]\npaths = ['/two']\n{}",
            world.port,
            allowing(world.port)
        );
        world.other_rules(&denied);
        sender.ready().await.unwrap();
        assert_eq!(read(sender.send_request(get(&world, "/two")).await.unwrap()).await.0, 403);
        sender.ready().await.unwrap();
        assert_eq!(read(sender.send_request(get(&world, "/three")).await.unwrap()).await.0, 200);
        assert!(!world.seen().iter().any(|line| line.contains("/two")));
    });
}

#[test]
fn the_pins_of_a_rule_hold_for_its_requests_also_where_other_rules_have_none() {
    run(async {
        let world = World::new(Server::Http1).await;
        let pin = format!("sha256/{}=", "A".repeat(43));
        world.other_rules(&format!(
            "[[rule]]\nallow = \"a.test\"\nports = [{port}]\npaths = [\"/pinned\"]\npins = [\"{pin}\"]\n{others}",
            port = world.port,
            others = allowing(world.port),
        ));
        let mut client = world.http1().await;

        let (free, ..) = read(client.send_request(get(&world, "/free")).await.unwrap()).await;
        let (pinned, told, _) = read(client.send_request(get(&world, "/pinned")).await.unwrap()).await;

        assert_eq!((free, pinned), (200, 403), "{told}");
        assert!(told.contains("\"reason\":\"certificate\""), "{told}");
        assert!(!world.seen().iter().any(|seen| seen.contains("/pinned")), "{:?}", world.seen());
    });
}
