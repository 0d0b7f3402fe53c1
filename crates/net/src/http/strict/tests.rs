//! The parser behind the strict stream: what reaches a service, what the program is told, and what the parser would have
//! taken without it.

use super::*;
use crate::http::{answer, framing};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Bytes, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use std::{cell::RefCell, convert::Infallible, rc::Rc};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What a service saw (`METHOD TARGET BODY`), and what the program was told.
#[derive(Debug, PartialEq, Eq)]
struct Served {
    seen: Vec<String>,
    told: String,
}

/// Serves a connection over which `pieces` come, one after the other.
async fn serve(pieces: &[&[u8]], is_strict: bool) -> Served {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let stream = Strict::new(far);
    let switch = stream.switch();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let (seen, switch) = (seen.clone(), switch.clone());
        async move {
            let (head, body) = request.into_parts();
            if let Err(bad) = framing::check(&head).map_err(|bad| answer::bad(&bad)) {
                // As long as it takes to write it down.
                tokio::task::yield_now().await;
                return Ok::<_, Infallible>(bad);
            }
            let body =
                body.collect().await.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
            let body = body.unwrap_or_else(|_| "broken".to_owned());
            seen.borrow_mut().push(format!("{} {} {body}", head.method, head.uri).trim_end().to_owned());
            if framing::may_switch(&head) {
                switch.answered(false);
            }
            Ok(Response::new(Full::new(Bytes::from_static(b"ok"))))
        }
    });
    let client = async {
        for piece in pieces {
            near.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        // A program that waits for answers does not end its side; so much is read until there is nothing more to do.
        let mut told = Vec::new();
        while let Ok(Ok(1..)) =
            tokio::time::timeout(std::time::Duration::from_secs(1), near.read_buf(&mut told)).await
        {}
        drop(near);
        String::from_utf8_lossy(&told).into_owned()
    };
    let builder = http1::Builder::new();
    let (_, told) = if is_strict {
        tokio::join!(builder.serve_connection(TokioIo::new(stream), service), client)
    } else {
        tokio::join!(builder.serve_connection(TokioIo::new(stream.into_inner().0), service), client)
    };
    let seen = seen.borrow().clone();
    Served { seen, told }
}

/// Time passes at once where nothing else happens.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn served(text: &str, is_strict: bool) -> Served {
    let runtime = runtime();
    runtime.block_on(serve(&[text.as_bytes()], is_strict))
}

#[test]
fn requests_on_one_connection_arrive_one_after_the_other() {
    let text = "GET /1 HTTP/1.1\r\nhost: a\r\n\r\nPOST /2 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
        3\r\nabc\r\n0\r\n\r\nPUT /3 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nxyGET /4 HTTP/1.1\r\nhost: a\r\n\r\n";
    let runtime = runtime();
    for cut in [1, 3, 17, 1000] {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
        let served = runtime.block_on(serve(&pieces, true));
        assert_eq!(served.seen, ["GET /1", "POST /2 abc", "PUT /3 xy", "GET /4"], "by {cut}");
        assert_eq!(served.told.matches("200 OK").count(), 4);
    }
}

/// What the parser alone takes without a word, so that [`raw`](crate::http::raw) has to look first.
#[test]
fn what_the_parser_forgives_is_refused_with_400() {
    for text in [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        "GET / HTTP/1.1\nhost: a\n\n",
        "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ] {
        let lenient = served(text, false);
        assert!(
            lenient.told.starts_with("HTTP/1.1 200") || lenient.told.contains("400"),
            "{text:?}: {lenient:?}"
        );
        let strict = served(text, true);
        assert!(strict.seen.is_empty(), "{text:?}: {strict:?}");
        assert!(
            strict.told.starts_with("HTTP/1.1 400") && strict.told.contains("\"error\":\"refused\""),
            "{strict:?}"
        );
    }
    // The first four of these are silence without it.
    let lenient =
        served("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc", false);
    assert_eq!(lenient.seen, ["POST / abc"]);
}

#[test]
fn chunks_that_the_parser_forgives_break_the_body() {
    for chunks in ["3;x=y\r\nabc\r\n0\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n"] {
        let text = format!(
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunks}GET /2 HTTP/1.1\r\n\r\n"
        );
        assert_eq!(served(&text, false).seen.first().map(String::as_str), Some("POST / abc"));
        assert_eq!(served(&text, true).seen, ["POST / broken"]);
    }
}

#[test]
fn a_bad_request_behind_a_good_one_is_answered_in_its_turn() {
    let served =
        served("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\nhost: a\n\nGET /3 HTTP/1.1\r\n\r\n", true);
    assert_eq!(served.seen, ["GET /1"]);
    let (ok, bad) = (served.told.find("200 OK"), served.told.find("400 Bad"));
    assert!(ok.is_some() && ok < bad, "{}", served.told);
}

#[test]
fn what_follows_a_refused_upgrade_is_a_request() {
    let asks = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let good = served(&format!("{asks}GET /2 HTTP/1.1\r\nhost: a\r\n\r\n"), true);
    assert_eq!(good.seen, ["GET /chat", "GET /2"]);
    let bad = served(&format!("{asks}GET /2 HTTP/1.1\nhost: a\n\n"), true);
    assert_eq!(bad.seen, ["GET /chat"]);
}

#[tokio::test(flavor = "current_thread")]
async fn after_a_switch_every_byte_passes() {
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let mut stream = Strict::new(far);
    let switch = stream.switch();
    let asks = b"GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n";
    near.write_all(asks).await.unwrap();
    near.write_all(b"\x00early").await.unwrap();
    let mut read = vec![0; asks.len()];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(read, asks);

    // Not a byte more before the answer.
    let mut more = [0; 6];
    let early = tokio::time::timeout(std::time::Duration::ZERO, stream.read_exact(&mut more)).await;
    assert!(early.is_err());
    switch.answered(true);
    stream.read_exact(&mut more).await.unwrap();
    assert_eq!(&more, b"\x00early");
    near.write_all(b"\n\n\xff").await.unwrap();
    let mut more = [0; 3];
    stream.read_exact(&mut more).await.unwrap();
    assert_eq!(&more, b"\n\n\xff");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever passes means the same to the parser as it did to us: it never refuses what we let through, but for limits.
    #[test]
    fn the_parser_and_the_follower_agree(
        pieces in proptest::collection::vec(proptest::sample::select(vec![
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n", "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nabcde",
            "POST /y HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
            "POST /z HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nx: y\r\n\r\n",
            "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n", "GET /w HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        ]), 1..6),
        cut in 1_usize..100,
    ) {
        let text = pieces.concat();
        let runtime = runtime();
        let parts: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
        let served = runtime.block_on(serve(&parts, true));
        prop_assert_eq!(served.seen.len(), pieces.len(), "{:?}", served);
        prop_assert!(!served.seen.iter().any(|request| request.contains("broken")));
    }

    #[test]
    fn any_bytes_end_in_an_answer_or_a_close(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let runtime = runtime();
        let served = runtime.block_on(serve(&[&bytes], true));
        prop_assert!(served.seen.is_empty());
    }
}
