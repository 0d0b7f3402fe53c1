//! Heads of requests of HTTP/1, and what follows them. Pure.
//!
//! What comes here has passed [`strict`](crate::http::strict); where the body ends is decided by the same function as there, so that
//! the two cannot disagree.

use super::super::{
    framing,
    line::reply::{self, Follows},
    raw,
    sends::Asked,
    strict::{REFUSED, WHY},
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri, Version,
    header::{EXPECT, TE},
    request,
};
use hyper::body::Bytes;
use std::mem::MaybeUninit;

/// The head of a request.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: request::Parts,
    pub(super) asked: Asked,
    pub(super) follows: Follows,
    /// Whether the program waits to be told that it may go on.
    pub(super) waits: bool,
}

/// Reads a head that is whole; none if it is no head that could be answered.
pub(super) fn read(bytes: &Bytes) -> Option<Head> {
    let mut fields = [const { MaybeUninit::uninit() }; raw::MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        _ => return None,
    }
    let method = parsed.method?;
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::from_bytes(method.as_bytes()).ok()?;
    parts.uri = Uri::from_maybe_shared(bytes.slice_ref(parsed.path?.as_bytes())).ok()?;
    parts.version = if parsed.version? == 1 { Version::HTTP_11 } else { Version::HTTP_10 };
    parts.headers.reserve(parsed.headers.len());
    for field in parsed.headers.iter() {
        parts.headers.append(reply::name(field.name).ok()?, reply::value(bytes.slice_ref(field.value)).ok()?);
    }
    // The request that stands for a refused one is none that a program could have sent.
    let follows = if method == REFUSED { raw::Follows::Head } else { raw::head(bytes).ok()? };
    let follows = match follows {
        raw::Follows::Head | raw::Follows::Answer => Follows::Length(0),
        raw::Follows::Length(length) => Follows::Length(length),
        raw::Follows::Chunks => Follows::Chunks,
    };
    let asked = Asked {
        version: parts.version,
        is_head: parts.method == Method::HEAD,
        takes_trailers: has(&parts.headers, TE, "trailers"),
        keeps: keeps(parts.version, &parts.headers),
    };
    let expects = has(&parts.headers, EXPECT, "100-continue");
    let waits = expects && parts.version == Version::HTTP_11 && follows != Follows::Length(0);
    Some(Head { parts, asked, follows, waits })
}

/// Stands for one that cannot be answered: it is refused as [`strict`](crate::http::strict) refuses others, and nothing follows it.
pub(super) fn refused() -> Head {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::from_bytes(REFUSED.as_bytes()).unwrap_or(Method::TRACE);
    parts.headers.insert(WHY, HeaderValue::from_static("400 the target of the request is no URL"));
    let asked = Asked { version: Version::HTTP_11, is_head: false, takes_trailers: false, keeps: false };
    Head { parts, asked, follows: Follows::Length(0), waits: false }
}

fn keeps(version: Version, headers: &HeaderMap) -> bool {
    let says = |word: &str| framing::listed(headers).any(|listed| listed.eq_ignore_ascii_case(word));
    !says("close") && (version == Version::HTTP_11 || says("keep-alive"))
}

fn has(headers: &HeaderMap, name: http::HeaderName, word: &str) -> bool {
    headers.get(name).is_some_and(|value| framing::has_word(value, word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(head: &str) -> Option<(Asked, Follows, bool)> {
        read(&Bytes::from(format!("{head}\r\n\r\n"))).map(|head| (head.asked, head.follows, head.waits))
    }

    #[test]
    fn what_follows_a_head_and_what_its_answer_is_to_be() {
        let one = Asked { version: Version::HTTP_11, is_head: false, takes_trailers: false, keeps: true };
        let old = Asked { version: Version::HTTP_10, keeps: false, ..one };
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nHost: a.test", (one, Follows::Length(0), false)),
            ("HEAD / HTTP/1.1\r\nHost: a.test", (Asked { is_head: true, ..one }, Follows::Length(0), false)),
            ("POST / HTTP/1.1\r\nContent-Length: 7\r\nExpect: 100-Continue", (one, Follows::Length(7), true)),
            ("POST / HTTP/1.1\r\nContent_Length: 7", (one, Follows::Length(7), false)),
            ("GET / HTTP/1.1\r\nExpect: 100-continue", (one, Follows::Length(0), false)),
            (
                "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTE: trailers",
                (Asked { takes_trailers: true, ..one }, Follows::Chunks, false),
            ),
            (
                "GET / HTTP/1.1\r\nConnection: x, Close",
                (Asked { keeps: false, ..one }, Follows::Length(0), false),
            ),
            ("GET / HTTP/1.0", (old, Follows::Length(0), false)),
            (
                "GET / HTTP/1.0\r\nConnection: Keep-Alive",
                (Asked { keeps: true, ..old }, Follows::Length(0), false),
            ),
        ] {
            assert_eq!(told(head), Some(expected), "{head}");
        }
        for head in [
            "GET / HTTP/1.1\r\nA",
            "GET http://[ HTTP/1.1",
            "GET / HTTP/2.0",
            "",
            "POST / HTTP/1.1\r\nContent-Length: 7, 7",
        ] {
            assert_eq!(told(head), None, "{head}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_strict_reads(text in "[A-Z]{1,4} /[a-z]{0,3} HTTP/1.[01](\r\n[A-Za-z_-]{1,17}: ?[a-z0-9]{0,7}){0,4}") {
            let bytes = Bytes::from(format!("{text}\r\n\r\n"));
            if let Some(head) = read(&bytes) {
                let expected = match raw::head(&bytes).unwrap() {
                    raw::Follows::Head | raw::Follows::Answer => Follows::Length(0),
                    raw::Follows::Length(length) => Follows::Length(length),
                    raw::Follows::Chunks => Follows::Chunks,
                };
                prop_assert_eq!(head.follows, expected);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&Bytes::from(bytes));
        }
    }
}
