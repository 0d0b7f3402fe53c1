//! Requests of HTTP/1 one after the other, byte for byte.

use super::world::{Server, World, run};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// What a program gets that says this, and then nothing more, until its connection ends.
async fn told(world: &World, said: &str) -> String {
    let mut socket = world.connect().await;
    socket.write_all(said.replace("HOST", &format!("a.test:{}", world.port)).as_bytes()).await.unwrap();
    rest(&mut socket).await
}

async fn rest(socket: &mut TcpStream) -> String {
    let mut all = String::new();
    timeout(Duration::from_secs(20), socket.read_to_string(&mut all)).await.expect("it never ends").unwrap();
    all
}

async fn until(socket: &mut TcpStream, end: &str) -> String {
    let mut came = String::new();
    while !came.ends_with(end) {
        came.push(char::from(socket.read_u8().await.unwrap()));
    }
    came
}

fn requests(world: &World) -> Vec<String> {
    world.seen().into_iter().filter(|line| line.contains("HTTP/1.1")).collect()
}

#[test]
fn requests_that_come_together_are_answered_in_their_order() {
    run(async {
        let world = World::new(Server::Plain).await;

        let answers = told(
            &world,
            "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\none\
             POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n\
             HEAD /one HTTP/1.1\r\nHost: HOST\r\n\r\n\
             POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthree",
        )
        .await;

        let places =
            ["one", "two", "HTTP/1.1 200 OK", "connection: close", "three"].map(|part| answers.rfind(part));
        assert!(places.iter().all(Option::is_some), "{answers}");
        assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 4, "{answers}");
        assert!(answers.find("one") < answers.find("two") && answers.ends_with("three"), "{answers}");
        assert_eq!(requests(&world).len(), 4);
    });
}

#[test]
fn a_program_that_waits_is_told_to_go_on_once_its_request_is_permitted() {
    run(async {
        let world = World::new(Server::Plain).await;
        let mut socket = world.connect().await;
        let head = format!(
            "POST /echo HTTP/1.1\r\nHost: a.test:{}\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
            world.port
        );

        socket.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(until(&mut socket, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        socket.write_all(b"hello").await.unwrap();

        let answer = rest(&mut socket).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
    });
}

#[test]
fn a_program_that_waits_and_is_refused_is_not_told_to_go_on_and_nothing_follows() {
    run(async {
        let world = World::new(Server::Plain).await;

        let answer = told(
            &world,
            "POST /echo HTTP/1.1\r\nHost: other.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        )
        .await;

        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n") && !answer.contains("100 Continue"), "{answer}");
        assert_eq!(requests(&world), [""; 0]);
    });
}

#[test]
fn a_body_that_nobody_wants_is_not_taken_for_the_next_request() {
    run(async {
        let world = World::new(Server::Plain).await;
        let smuggled = "GET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n";
        let length = smuggled.replace("HOST", &format!("a.test:{}", world.port)).len();

        let answers = told(
            &world,
            &format!(
                "POST /echo HTTP/1.1\r\nHost: other.test\r\nContent-Length: {length}\r\n\r\n{smuggled}\
                 GET /after HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"
            ),
        )
        .await;

        assert!(answers.starts_with("HTTP/1.1 421 "), "{answers}");
        assert_eq!(requests(&world), ["GET /after HTTP/1.1"]);
    });
}

#[test]
fn a_target_that_is_no_url_is_refused_and_told() {
    run(async {
        let world = World::new(Server::Plain).await;

        let answer = told(
            &world,
            "GET http://[/ HTTP/1.1\r\nHost: HOST\r\n\r\nGET /after HTTP/1.1\r\nHost: HOST\r\n\r\n",
        )
        .await;

        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("connection: close"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
        assert_eq!((requests(&world).len(), world.recorded(&["\"deny\"", "ambiguous"])), (0, 1));
    });
}

#[test]
fn programs_of_http10_are_answered_in_it() {
    run(async {
        let world = World::new(Server::Plain).await;

        let closed = told(&world, "GET /one HTTP/1.0\r\nHost: HOST\r\n\r\n").await;
        let kept = told(
            &world,
            "GET /one HTTP/1.0\r\nHost: HOST\r\nConnection: keep-alive\r\n\r\nGET /two HTTP/1.0\r\nHost: HOST\r\n\r\n",
        )
        .await;

        assert!(
            closed.starts_with("HTTP/1.0 200 OK\r\n") && closed.contains("connection: close"),
            "{closed}"
        );
        assert_eq!(kept.matches("HTTP/1.0 200 OK\r\n").count(), 2, "{kept}");
        assert!(kept.contains("connection: keep-alive"), "{kept}");
    });
}

#[test]
fn a_request_ends_when_its_program_goes() {
    run(async {
        let world = World::new(Server::Hinting).await;
        let mut tls = world.tls(&[b"http/1.1"]).await;
        let asked = format!("GET /slow HTTP/1.1\r\nhost: a.test:{}\r\n\r\n", world.port);
        tls.write_all(asked.as_bytes()).await.unwrap();
        world.until(|world| world.recorded(&["\"method\":\"GET\"", "/slow"]) == 1).await;

        drop(tls);

        world.until(|world| world.recorded(&["\"kind\":\"flow\"", "\"status\":\"reset\""]) > 0).await;
    });
}
