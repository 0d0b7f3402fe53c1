//! What arrives, and how.

use super::world::{Server, World, read, run, text, with_trailer};
use http::{Request, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn get(path: &str) -> Request<super::world::Sent> {
    Request::get(path).header("host", "a.test").body(text("")).unwrap()
}

fn get2(world: &World, path: &str) -> Request<super::world::Sent> {
    Request::get(format!("https://a.test:{}{path}", world.port)).body(text("")).unwrap()
}

#[test]
fn a_request_and_its_answer_are_carried_whatever_each_side_speaks() {
    for server in [Server::Http1, Server::Http2] {
        run(async {
            let world = World::new(server).await;
            let version = if server == Server::Http1 { Version::HTTP_11 } else { Version::HTTP_2 };

            let mut sender = world.http2().await;
            let url = format!("https://a.test:{}/echo", world.port);
            let request = Request::post(&url).body(text("hello")).unwrap();
            let answered = read(sender.send_request(request).await.unwrap()).await;

            assert_eq!((answered.0, &*answered.1), (200, "hello"));
            assert_eq!(
                world.seen()[1..],
                [format!("POST /echo {version:?}"), "body 5 trailers false".to_owned()]
            );
        });
    }
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http1().await;
        let request =
            Request::post("/echo").header("host", format!("a.test:{}", world.port)).body(text("hello"));
        let answered = read(sender.send_request(request.unwrap()).await.unwrap()).await;
        assert_eq!((answered.0, &*answered.1), (200, "hello"));
    });
}

#[test]
fn trailers_are_carried_both_ways() {
    for server in [Server::Http1, Server::Http2] {
        run(async {
            let world = World::new(server).await;
            let mut sender = world.http2().await;
            let url = format!("https://a.test:{}/trailer", world.port);
            let request = Request::get(&url).header("te", "trailers").body(text("")).unwrap();
            let answered = read(sender.send_request(request).await.unwrap()).await;
            assert_eq!(answered.2.unwrap()["x-end"], "yes");

            let url = format!("https://a.test:{}/echo", world.port);
            let request = Request::post(&url).header("trailer", "x-end").body(with_trailer("abc")).unwrap();
            let answered = read(sender.send_request(request).await.unwrap()).await;
            assert_eq!(answered.1, "abc");
            assert_eq!(world.seen().last().unwrap(), "body 3 trailers true");
        });
    }
}

#[test]
fn a_kept_connection_is_judged_request_by_request() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http1().await;
        for path in ["/one", "/two"] {
            sender.ready().await.unwrap();
            let mut request = get(path);
            request.headers_mut().insert("host", format!("a.test:{}", world.port).parse().unwrap());
            assert_eq!(read(sender.send_request(request).await.unwrap()).await.0, 200);
        }

        assert_eq!(world.recorded(&["\"method\":", "/one"]), 1);
        assert_eq!(world.recorded(&["\"method\":", "/two"]), 1);
        assert_eq!(world.seen().iter().filter(|line| *line == "connected").count(), 1);
    });
}

#[test]
fn a_connection_that_the_server_closed_is_dialled_anew() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http1().await;
        for path in ["/close", "/two"] {
            sender.ready().await.unwrap();
            let mut request = get(path);
            request.headers_mut().insert("host", format!("a.test:{}", world.port).parse().unwrap());
            assert_eq!(read(sender.send_request(request).await.unwrap()).await.0, 200);
        }
        assert_eq!(world.seen().iter().filter(|line| *line == "connected").count(), 2);
    });
}

#[test]
fn what_concerns_one_connection_only_is_not_passed_on() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http1().await;
        let mut request = get("/heads");
        let headers = request.headers_mut();
        headers.insert("host", format!("a.test:{}", world.port).parse().unwrap());
        headers.insert("connection", "x-mine, keep-alive".parse().unwrap());
        headers.insert("x-mine", "1".parse().unwrap());
        headers.insert("keep-alive", "timeout=5".parse().unwrap());
        headers.insert("x-yours", "2".parse().unwrap());
        let answered = read(sender.send_request(request).await.unwrap()).await;
        assert_eq!(answered.1, format!("host=a.test:{}\nx-yours=2", world.port));
    });
}

#[test]
fn cookies_of_http2_are_joined_for_http1() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http2().await;
        let mut request = get2(&world, "/heads");
        request.headers_mut().append("cookie", "a=1".parse().unwrap());
        request.headers_mut().append("cookie", "b=2".parse().unwrap());
        let answered = read(sender.send_request(request).await.unwrap()).await;
        assert_eq!(answered.1, format!("cookie=a=1; b=2\nhost=a.test:{}", world.port));
    });
}

#[test]
fn requests_without_tls_are_carried_too() {
    run(async {
        let world = World::new(Server::Plain).await;
        let mut socket = world.connect().await;
        let request =
            format!("GET /one HTTP/1.1\r\nhost: a.test:{}\r\nconnection: close\r\n\r\n", world.port);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(world.seen(), ["connected", "GET /one HTTP/1.1", "body 0 trailers false"]);
    });
}

#[test]
fn both_sides_can_go_on_with_a_websocket() {
    for server in [Server::Http1, Server::Plain] {
        run(async {
            let world = World::new(server).await;
            let request = format!(
                "GET /socket HTTP/1.1\r\nhost: a.test:{}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
                world.port
            );
            let mut answer = Vec::new();
            match server {
                Server::Plain => {
                    let mut socket = world.connect().await;
                    socket.write_all(request.as_bytes()).await.unwrap();
                    socket.write_all(b"hello").await.unwrap();
                    socket.read_to_end(&mut answer).await.unwrap();
                }
                _ => {
                    let mut socket = world.tls(&[b"http/1.1"]).await;
                    socket.write_all(request.as_bytes()).await.unwrap();
                    socket.write_all(b"hello").await.unwrap();
                    socket.read_to_end(&mut answer).await.unwrap();
                }
            }
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        });
    }
}

#[test]
fn the_length_of_a_head_only_answer_stays() {
    run(async {
        let world = World::new(Server::Http1).await;
        let mut sender = world.http1().await;
        let mut request = get("/heads");
        *request.method_mut() = http::Method::HEAD;
        request.headers_mut().insert("host", format!("a.test:{}", world.port).parse().unwrap());
        let response = sender.send_request(request).await.unwrap();
        let length: usize = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
        assert_eq!(length, format!("host=a.test:{}", world.port).len());
        assert_eq!(read(response).await.1, "");
    });
}

#[test]
fn a_body_is_asked_for_only_after_the_decision() {
    run(async {
        let world = World::new(Server::Plain).await;
        let mut socket = world.connect().await;
        let head = format!(
            "POST /echo HTTP/1.1\r\nhost: a.test:{}\r\ncontent-length: 5\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
            world.port
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut go = [0; 25];
        socket.read_exact(&mut go).await.unwrap();
        assert_eq!(&go, b"HTTP/1.1 100 Continue\r\n\r\n");
        socket.write_all(b"hello").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        assert_eq!(world.recorded(&["\"method\":", "/echo"]), 1);
    });
}

#[test]
fn a_big_body_does_not_gather_here() {
    run(async {
        let world = World::new(Server::Http1).await;
        let tls = world.tls(&[b"http/1.1"]).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, super::world::Sent>(TokioIo::new(tls)).await.unwrap();
        let mut connection = Box::pin(connection);
        let mut request = get("/endless");
        request.headers_mut().insert("host", format!("a.test:{}", world.port).parse().unwrap());
        let answered = sender.send_request(request);
        let response = tokio::select! {
            response = answered => response.unwrap(),
            _ = &mut connection => panic!("closed"),
        };
        // Nobody reads: what the server may send is bounded by buffers.
        let mut before = u64::MAX;
        loop {
            let now = world.received();
            if now == before {
                break;
            }
            before = now;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        assert!(before < 24 << 20, "{before} bytes were taken for a program that does not read");
        drop(response);
    });
}

#[test]
fn an_encoded_slash_passes_where_a_rule_takes_it_and_goes_on_as_it_came() {
    run(async {
        let world = World::new(Server::Http1).await;
        let ask = async |path: &str| {
            let mut sender = world.http1().await;
            let request = Request::get(path).header("host", format!("a.test:{}", world.port)).body(text(""));
            read(sender.send_request(request.unwrap()).await.unwrap()).await.0
        };
        assert_eq!(ask("/projects/acme%2Fweb").await, 400);

        let keys = "encoded_slashes = true\npaths = [\"/projects/*\"]";
        world.other_rules(&format!("[[rule]]\nallow = \"a.test\"\nports = [{}]\n{keys}\n", world.port));
        assert_eq!(ask("/projects/acme%2fweb").await, 200);
        assert_eq!(ask("/projects/acme/web").await, 403);
        assert_eq!(ask("/projects/acme%2F..%2fweb").await, 400);
        assert!(
            world.seen().iter().any(|seen| seen.starts_with("GET /projects/acme%2fweb ")),
            "{:?}",
            world.seen()
        );
    });
}
