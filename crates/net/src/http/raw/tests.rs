//! What is refused, what follows what, and that neither depends on how the bytes are cut.

use super::*;
use proptest::prelude::*;

/// What becomes of a connection's bytes, read in pieces: what went on, and why it ended if it did.
fn followed(bytes: &[u8], cut: usize) -> (Vec<u8>, Option<String>) {
    let (mut follower, mut passed) = (Follower::default(), Vec::new());
    for piece in bytes.chunks(cut.max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            let taken = match follower.look(rest) {
                Look::Pass(taken) => {
                    passed.extend_from_slice(&rest[..taken]);
                    taken
                }
                Look::Hold => rest.len(),
                Look::Head(taken, head) => {
                    passed.extend(head);
                    taken
                }
                Look::Wait => return (passed, Some("waits".to_owned())),
                Look::Bad(bad) => return (passed, Some(bad.why)),
                Look::BadBody(why) => return (passed, Some(why.to_owned())),
            };
            rest = &rest[taken..];
        }
    }
    (passed, None)
}

/// Heads that two readers read in two ways.
const AMBIGUOUS: &[&str] = &[
    "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: 3 \x0b\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length:\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    "POST / HTTP/1.1\r\nContent_Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked;q=1\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer_Encoding: gzip\r\n\r\n",
    "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
    "POST / HTTP/1.1\r\n Transfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
    "POST / HTTP/1.1\r\nX: a\r\n\tTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nX: a\0b\r\n\r\n",
    "POST / HTTP/1.1\r\nX\0: a\r\n\r\n",
    "POST / HTTP/1.1\r\nX: a\x7f\r\n\r\n",
    "POST / HTTP/1.1\r\n: a\r\n\r\n",
    "POST / HTTP/1.1\r\nno colon\r\n\r\n",
    "POST / HTTP/1.1\r\nX(y): a\r\n\r\n",
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\r\nHost: a\n\r\n",
    "GET / HTTP/1.1\r\r\n\r\n",
    "\r\nGET / HTTP/1.1\r\n\r\n",
    "\nGET / HTTP/1.1\r\n\r\n",
    "GET /\r\n",
    "GET /\r\n\r\n",
    "GET  / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1 \r\n\r\n",
    "GET /a b HTTP/1.1\r\n\r\n",
    "GET\t/ HTTP/1.1\r\n\r\n",
    " GET / HTTP/1.1\r\n\r\n",
    "GET /a#b HTTP/1.1\r\n\r\n",
    "GET /caf\u{e9} HTTP/1.1\r\n\r\n",
    "GET /\0 HTTP/1.1\r\n\r\n",
    "G(T / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.2\r\n\r\n",
    "GET / HTTP/2.0\r\n\r\n",
    "GET / http/1.1\r\n\r\n",
    "GET / HTTP/1.10\r\n\r\n",
    "GET / HTTP/01.1\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "AIRLOCK-REFUSED / HTTP/1.1\r\n\r\n",
    "CONNECT a:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n",
];

fn refused(bytes: &str) -> Option<String> {
    followed(bytes.as_bytes(), usize::MAX).1
}

#[test]
fn ordinary_requests_go_on_as_they_are() {
    for text in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /x?y=z HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding:chunked\r\n\r\n0\r\nchecksum: 7\r\ngrpc-status: 0\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 0\r\nx:\r\ny: \t z \u{e9}\r\n\r\nPUT / HTTP/1.1\r\n\r\n",
    ] {
        for cut in [1, 2, 3, 7, 1000] {
            assert_eq!(followed(text.as_bytes(), cut), (text.as_bytes().to_vec(), None), "{text:?} by {cut}");
        }
    }
}

#[test]
fn a_head_that_can_be_read_in_two_ways_is_refused_before_any_of_it_goes_on() {
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(LONGEST_HEAD));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEADERS + 1));
    for text in AMBIGUOUS.iter().copied().chain([long.as_str(), many.as_str()]) {
        for cut in [1, 5, usize::MAX] {
            let (passed, why) = followed(text.as_bytes(), cut);
            assert!(why.as_deref().is_some_and(|why| why != "waits"), "{text:?} by {cut} was taken");
            assert_eq!(passed, b"", "{text:?} by {cut}");
        }
    }
}

#[test]
fn a_first_line_that_is_no_request_is_refused_before_the_rest_comes() {
    assert!(refused("GET /\r\n").is_some());
    assert!(refused("SSH-2.0-x\r\n").is_some());
    assert_eq!(refused("GET / HTTP/1.1\r\nX: "), None);
}

#[test]
fn a_second_head_is_refused_like_the_first() {
    let good = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nxx";
    let (passed, why) = followed(format!("{good}GET / HTTP/1.1\nX: y\r\n\r\n").as_bytes(), 9);
    assert_eq!((passed.as_slice(), why.is_some()), (good.as_bytes(), true));
}

#[test]
fn chunks_are_as_long_as_they_say_in_one_way_only() {
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "3;x=y\r\nabc\r\n",
        "3 \r\nabc\r\n",
        " 3\r\nabc\r\n",
        "0x3\r\nabc\r\n",
        "+3\r\nabc\r\n",
        "-1\r\n",
        "\r\n",
        "3\nabc\r\n",
        "3\rabc\r\n",
        "3\r\nabc\n",
        "3\r\nabcd\r\n",
        "3\r\nabcXX0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "FFFFFFFFFFFFFFFF\r\nabc\r\n",
        "10000000000000003\r\nabc\r\n",
        "0000000000000003\r\nabc\r\n",
        "0\n\n",
        "0\r\n\n",
        "0\r\nContent-Length: 7\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nHost: evil.test\r\n\r\n",
        "0\r\nAuthorization: x\r\n\r\n",
        "0\r\n x: y\r\n\r\n",
        "0\r\nGET / HTTP/1.1\r\n\r\n",
        "0\r\nx: y\n\r\n",
    ] {
        for cut in [1, 4, usize::MAX] {
            let (passed, why) = followed(format!("{head}{chunks}").as_bytes(), cut);
            assert!(why.is_some(), "{chunks:?} by {cut} was taken");
            assert!(passed.starts_with(head.as_bytes()) && passed.len() < head.len() + chunks.len());
        }
    }
    let endless = format!("{head}0\r\n{}", "a: b\r\n".repeat(LONGEST_HEAD));
    assert_eq!(refused(&endless).as_deref(), Some("the trailers are too long"));
}

#[test]
fn nothing_passes_behind_an_upgrade_until_it_is_answered() {
    let asks = "GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    for asks in [asks, "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"] {
        let next = "POST /admin HTTP/1.1\n\n";
        let (passed, why) = followed(format!("{asks}{next}").as_bytes(), 1000);
        assert_eq!((passed.as_slice(), why.as_deref()), (asks.as_bytes(), Some("waits")));

        let mut follower = Follower::default();
        assert_eq!(follower.look(asks.as_bytes()), Look::Pass(asks.len()));
        follower.answered(false);
        assert!(matches!(follower.look(next.as_bytes()), Look::Bad(_)));

        let mut follower = Follower::default();
        assert_eq!(follower.look(asks.as_bytes()), Look::Pass(asks.len()));
        follower.answered(true);
        assert_eq!(follower.look(b"\x81\x05hello\n"), Look::Pass(8));
    }
    // It is asked for in HTTP/1.1 only, and another protocol is not passed on.
    assert_eq!(refused("GET / HTTP/1.0\r\nUpgrade: websocket\r\n\r\nGET / HTTP/1.1\r\n\r\n"), None);
    assert_eq!(refused("GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1.1\r\n\r\n"), None);
}

/// Requests of which the parser thinks as we do, and others.
fn connection() -> impl Strategy<Value = Vec<u8>> {
    let piece = proptest::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /x HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "X: y\r\n",
        "\r\n",
        "\n",
        "\r",
        "5\r\nabcde\r\n",
        "0\r\n\r\n",
        "0\r\nx: y\r\n\r\n",
        "abcde",
        "5;x\r\n",
        " ",
        "\t",
        "\0",
        ":",
        "Upgrade: websocket\r\n",
    ]);
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn how_the_bytes_are_cut_does_not_matter(bytes in connection(), cut in 1_usize..40) {
        let whole = followed(&bytes, usize::MAX);
        let (passed, why) = followed(&bytes, cut);
        let end = |why: &Option<String>| why.as_deref().map(|why| why == "waits");
        prop_assert_eq!(end(&whole.1), end(&why));
        prop_assert!(whole.0.starts_with(&passed) || passed.starts_with(&whole.0));
    }

    #[test]
    fn any_bytes_are_taken_and_little_is_kept(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = followed(&bytes, 7);
        let _ = head(&bytes);
    }

    #[test]
    fn what_passes_is_what_came(bytes in connection(), cut in 1_usize..40) {
        let (passed, _) = followed(&bytes, cut);
        prop_assert!(bytes.starts_with(&passed));
    }
}
