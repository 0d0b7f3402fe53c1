//! Servers that answer in strange ways: what the program gets, and whether the connection is used again.

use super::world::{Server, World, run};
use std::cell::RefCell;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Nothing takes as long.
const LONG: std::time::Duration = std::time::Duration::from_secs(20);

/// A path, what the server says to a request for it, and whether it closes then.
const ANSWERS: [(&str, &str, bool); 16] = [
    ("/length", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", false),
    (
        "/chunks",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        false,
    ),
    ("/none", "HTTP/1.1 204 No Content\r\n\r\n", false),
    ("/rest", "HTTP/1.1 200 OK\r\n\r\nok", true),
    ("/old", "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", true),
    ("/close", "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", false),
    (
        "/both",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        false,
    ),
    (
        "/behind",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        false,
    ),
    ("/two", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", false),
    ("/coded", "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", false),
    ("/garbage", "SSH-2.0-server\r\n\r\n", false),
    ("/silent", "", true),
    ("/short", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", true),
    ("/unended", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", true),
    ("/torn", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n", false),
    ("/switch", "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", false),
];

thread_local! {
    /// A program that leaves in the middle of a request, just when the server answers it.
    static LEAVES: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
}

/// Answers requests without a body until one of them is the last.
pub(super) async fn answer_raw(mut socket: TcpStream) {
    let (mut came, mut piece) = (String::new(), [0; 4096]);
    while let Ok(read @ 1..) = socket.read(&mut piece).await {
        came.push_str(&String::from_utf8_lossy(&piece[..read]));
        if came.ends_with("\r\n\r\n1\r\nx\r\n") {
            socket.writable().await.unwrap();
            // Both have happened before anybody is told of either.
            drop(LEAVES.take());
            socket.try_write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            came.clear();
            continue;
        }
        if !came.ends_with("\r\n\r\n") {
            continue;
        }
        let path = came.split(' ').nth(1).unwrap().to_owned();
        came.clear();
        let (_, said, is_last) = ANSWERS.into_iter().find(|(known, ..)| *known == path).unwrap();
        // It may be read in any pieces.
        for byte in said.as_bytes() {
            socket.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        if is_last {
            return;
        }
    }
}

/// What a program gets for two requests, the second of which is harmless, and how many connections the server saw.
async fn ask(path: &str) -> (String, usize) {
    let world = World::new(Server::Raw).await;
    let mut socket = world.connect().await;
    let mut got = String::new();
    for (path, ends) in [(path, ""), ("/length", "connection: close\r\n")] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a.test:{}\r\n{ends}\r\n", world.port);
        if socket.write_all(head.as_bytes()).await.is_err() {
            break;
        }
        let mut piece = [0; 4096];
        while let Ok(Ok(read @ 1..)) = timeout(LONG, socket.read(&mut piece)).await {
            got.push_str(&String::from_utf8_lossy(&piece[..read]));
            let ends_well = ["\r\n\r\nok", "0\r\n\r\n", "}", " 204 No Content\r\n\r\n"];
            let is_whole =
                ends_well.iter().any(|end| got.trim_end_matches('\n').ends_with(end.trim_end_matches('\n')));
            if ends.is_empty() && is_whole {
                break;
            }
        }
    }
    let connected = world.seen().iter().filter(|line| *line == "connected").count();
    (got, connected)
}

#[test]
fn what_is_whole_is_passed_on_and_its_connection_used_again() {
    for path in ["/length", "/chunks", "/none"] {
        let (got, connected) = run(ask(path));
        assert_eq!(got.matches("HTTP/1.1 20").count(), 2, "{path}: {got}");
        assert_eq!(connected, 1, "{path}: {got}");
    }
}

#[test]
fn nothing_follows_a_request_that_was_never_ended() {
    let connected = run(async {
        let world = World::new(Server::Raw).await;
        let mut program = world.connect().await;
        let head =
            format!("PUT /length HTTP/1.1\r\nhost: a.test:{}\r\ntransfer-encoding: chunked", world.port);
        program.write_all(format!("{head}\r\n\r\n1\r\nx\r\n").as_bytes()).await.unwrap();
        LEAVES.set(Some(program));
        while LEAVES.with_borrow(Option::is_some) {
            tokio::task::yield_now().await;
        }
        let mut next = world.connect().await;
        let head =
            format!("GET /length HTTP/1.1\r\nhost: a.test:{}\r\nconnection: close\r\n\r\n", world.port);
        next.write_all(head.as_bytes()).await.unwrap();
        let mut got = String::new();
        timeout(LONG, next.read_to_string(&mut got)).await.unwrap().unwrap();
        assert!(got.ends_with("\r\n\r\nok"), "{got}");
        world.seen().iter().filter(|line| *line == "connected").count()
    });

    assert_eq!(connected, 2);
}

#[test]
fn nothing_follows_what_ends_its_connection_or_says_its_length_twice() {
    for path in ["/rest", "/old", "/close", "/both", "/behind"] {
        let (got, connected) = run(ask(path));
        assert_eq!(got.matches("HTTP/1.1 200 ").count(), 2, "{path}: {got}");
        assert!(!got.contains("evil") && connected == 2, "{path}: {connected}, {got}");
    }
}

#[test]
fn an_answer_that_cannot_be_read_is_told_and_the_next_request_goes_elsewhere() {
    for path in ["/two", "/coded", "/garbage", "/silent", "/switch"] {
        let (got, connected) = run(ask(path));
        assert!(got.starts_with("HTTP/1.1 502 "), "{path}: {got}");
        assert!(got.contains("HTTP/1.1 200 ") && connected == 2, "{path}: {connected}, {got}");
    }
}

#[test]
fn an_answer_that_is_not_whole_is_not_passed_off_as_one() {
    for path in ["/short", "/unended", "/torn"] {
        let (got, connected) = run(ask(path));
        assert!(got.starts_with("HTTP/1.1 200 ") && connected == 1, "{path}: {connected}, {got}");
        assert!(!got.contains("0\r\n\r\n") && got.matches("HTTP/1.1").count() == 1, "{path}: {got}");
    }
}
