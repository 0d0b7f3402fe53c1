//! Connections to servers that wait for the next near connection.

use super::world::{Server, World, allowing, read, run, text};
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn request(world: &World, method: &str, path: &str) -> Request<super::world::Sent> {
    let host = format!("a.test:{}", world.port);
    Request::builder().method(method).uri(path).header("host", host).body(text("")).unwrap()
}

async fn asks(world: &World, method: &str, path: &str) -> u16 {
    let mut sender = world.http1().await;
    read(sender.send_request(request(world, method, path)).await.unwrap()).await.0
}

fn connected(world: &World) -> usize {
    world.seen().iter().filter(|line| *line == "connected").count()
}

async fn waiting(world: &World, count: usize) {
    world.until(|world| world.carrier.spares.count() == count).await;
}

#[test]
fn the_next_connection_goes_over_one_that_waits_and_has_records_of_its_own() {
    for server in [Server::Http1, Server::Plain] {
        run(async {
            let world = World::new(server).await;
            for path in ["/one", "/two", "/three"] {
                let head = format!(
                    "GET {path} HTTP/1.1\r\nhost: a.test:{}\r\nconnection: close\r\n\r\n",
                    world.port
                );
                let mut answer = String::new();
                match server {
                    Server::Plain => {
                        let mut socket = world.connect().await;
                        socket.write_all(head.as_bytes()).await.unwrap();
                        socket.read_to_string(&mut answer).await.unwrap();
                    }
                    _ => {
                        let mut socket = world.tls(&[b"http/1.1"]).await;
                        socket.write_all(head.as_bytes()).await.unwrap();
                        socket.read_to_string(&mut answer).await.unwrap();
                    }
                }
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                waiting(&world, 1).await;
            }

            assert_eq!(connected(&world), 1, "{:?}", world.seen());
            assert_eq!(world.recorded(&["\"crossing\":\"connect\"", "\"verdict\":\"allow\""]), 3);
            // Three connections and three requests have ended.
            assert_eq!(world.recorded(&["\"status\":\"closed\""]), 6);
        });
    }
}

#[test]
fn one_of_http2_waits_too() {
    run(async {
        let world = World::new(Server::Http2).await;
        for path in ["/one", "/two"] {
            let mut sender = world.http2().await;
            let url = format!("https://a.test:{}{path}", world.port);
            let request = Request::get(url).body(text("")).unwrap();
            assert_eq!(read(sender.send_request(request).await.unwrap()).await.0, 200);
            drop(sender);
            waiting(&world, 1).await;
        }
        assert_eq!(connected(&world), 1);
    });
}

#[test]
fn it_serves_one_at_a_time_and_both_sides_are_greeted_at_once_then() {
    run(async {
        let world = World::new(Server::Http1).await;
        asks(&world, "GET", "/one").await;
        waiting(&world, 1).await;

        let (mut first, mut second) = tokio::join!(world.http1(), world.http1());
        for sender in [&mut first, &mut second] {
            assert_eq!(read(sender.send_request(request(&world, "GET", "/two")).await.unwrap()).await.0, 200);
        }

        assert_eq!(connected(&world), 2);
    });
}

#[test]
fn rules_that_change_close_what_waits() {
    run(async {
        let world = World::new(Server::Http1).await;
        asks(&world, "GET", "/one").await;
        waiting(&world, 1).await;

        world.other_rules(&format!("{}\nmethods = [\"GET\"]", allowing(world.port)));
        assert_eq!(world.carrier.spares.count(), 0);

        assert_eq!(asks(&world, "GET", "/two").await, 200);
        assert_eq!(connected(&world), 2);
    });
}

#[test]
fn what_waited_under_other_rules_is_not_taken_also_before_it_is_closed() {
    run(async {
        let world = World::new(Server::Http1).await;
        asks(&world, "GET", "/one").await;
        waiting(&world, 1).await;

        let policy = airlock_gate::policy::parse_toml("airlock.toml", &allowing(world.port)).unwrap().policy;
        world.carrier.gate.set_policy(policy, "set").unwrap();

        assert_eq!(asks(&world, "GET", "/two").await, 200);
        assert_eq!(connected(&world), 2);
    });
}

#[test]
fn a_connection_that_a_person_is_tied_to_is_nobody_elses() {
    for scheme in ["Negotiate abc", "NTLM abc", "negotiate abc"] {
        run(async {
            let world = World::new(Server::Http1).await;
            let mut sender = world.http1().await;
            let mut tied = request(&world, "GET", "/one");
            tied.headers_mut().insert("authorization", scheme.parse().unwrap());
            assert_eq!(read(sender.send_request(tied).await.unwrap()).await.0, 200);
            drop(sender);
            world.until(|world| world.recorded(&["\"kind\":\"flow\""]) == 2).await;

            assert_eq!(asks(&world, "GET", "/two").await, 200);
            assert_eq!(connected(&world), 2, "{scheme}");
        });
    }
}

#[test]
fn a_connection_that_went_on_with_a_websocket_does_not_wait() {
    run(async {
        let world = World::new(Server::Http1).await;
        let head = format!(
            "GET /socket HTTP/1.1\r\nhost: a.test:{}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello",
            world.port
        );
        let mut socket = world.tls(&[b"http/1.1"]).await;
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        drop(socket);
        world.until(|world| world.recorded(&["\"kind\":\"flow\""]) == 2).await;

        assert_eq!(world.carrier.spares.count(), 0);
    });
}

#[test]
fn one_that_the_server_closed_while_it_waited_is_not_used() {
    run(async {
        let world = World::new(Server::Http1).await;
        assert_eq!(asks(&world, "GET", "/close").await, 200);
        assert_eq!(asks(&world, "POST", "/two").await, 200);
        assert_eq!(connected(&world), 2);
    });
}

#[test]
fn a_request_is_sent_again_where_the_server_closes_what_waited_as_it_is_taken() {
    run(async {
        let world = World::new(Server::Http1).await;
        asks(&world, "GET", "/one").await;
        waiting(&world, 1).await;

        // The server breaks off the connection instead of an answer, once.
        assert_eq!(asks(&world, "GET", "/break-once").await, 200);
        assert_eq!(connected(&world), 2, "{:?}", world.seen());

        // What may change something is not sent twice.
        world.log.lock().unwrap().retain(|line| !line.contains("/break-once"));
        waiting(&world, 1).await;
        assert_eq!(asks(&world, "POST", "/break-once").await, 502);
        assert_eq!(world.seen().iter().filter(|line| line.starts_with("POST /break-once")).count(), 1);
    });
}

#[test]
fn few_wait_for_one_place() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut held = Vec::new();
        for _ in 0..12 {
            let mut sender = world.http1().await;
            assert_eq!(read(sender.send_request(request(&world, "GET", "/one")).await.unwrap()).await.0, 200);
            held.push(sender);
        }
        held.clear();
        world.until(|world| world.recorded(&["\"status\":\"closed\""]) == 24).await;
        waiting(&world, 8).await;
    });
}

#[test]
fn a_program_speaks_the_version_of_tls_that_the_server_speaks_if_it_can() {
    use tokio_rustls::rustls::{DEFAULT_VERSIONS, ProtocolVersion, version::TLS13};
    let (old, new) = (ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3);
    for (server, program, expected) in [
        (Server::Tls12, DEFAULT_VERSIONS, old),
        (Server::Tls12, &[&TLS13][..], new),
        (Server::Http1, DEFAULT_VERSIONS, new),
    ] {
        run(async {
            let world = World::new(server).await;
            // The first does not know what the server speaks, the second does.
            for _ in 0..2 {
                let tls = world.tls_of(program, &[b"http/1.1"]).await;
                assert_eq!(tls.get_ref().1.protocol_version(), Some(expected));
            }
        });
    }
}
