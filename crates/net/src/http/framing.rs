//! Whether a request's head says in one way only where the request ends, and what of it is about one connection only.

use super::{Bad, raw, strict};
use airlock_gate::Reason;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING, UPGRADE},
    request,
};

/// Headers about one connection, whatever `Connection` says (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// Headers that `Connection` may not make part of one connection: servers and rules rely on them.
const KEPT: [&str; 9] = [
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "range",
    "transfer-encoding",
];

/// Checks the head of a request; 400 if two readers could disagree about it.
pub(crate) fn check(head: &request::Parts) -> Result<(), Bad> {
    refused(head)?;
    sizes(&head.headers)?;
    names(&head.headers)?;
    lengths(head)?;
    connection(&head.headers)?;
    upgrade(head)?;
    match head.headers.get_all(EXPECT).iter().all(|value| is(value, "100-continue")) {
        true => Ok(()),
        false => Err(Bad { status: 417, ..bad("it expects what nobody knows") }),
    }
}

/// Whether a body may follow, of which only HTTP/2 tells whether there is one. A server behind one that turns HTTP/2 into
/// HTTP/1 may take the body of a `GET` for the next request, and cannot be told to close (see [`is_last`]).
pub(crate) fn check_body(head: &request::Parts, is_empty: bool) -> Result<(), Bad> {
    let is_bare = matches!(head.method, Method::GET | Method::HEAD) && head.version == Version::HTTP_2;
    match is_bare && !is_empty {
        true => Err(bad("a GET or HEAD with a body inside HTTP/2")),
        false => Ok(()),
    }
}

/// Removes what is about the connection that a message came over. A WebSocket's `Upgrade` is about it too: who passes one
/// on writes it anew.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let is_usual = |word: &str| HOP_BY_HOP.iter().any(|name| name.eq_ignore_ascii_case(word));
    let unusual = listed(headers).filter(|word| !is_usual(word));
    let unusual: Vec<HeaderName> = unusual.filter_map(|name| name.parse().ok()).collect();
    let accepts_trailers = headers.get_all(TE).iter().any(|value| has_word(value, "trailers"));
    for name in unusual {
        headers.remove(name);
    }
    // Most heads have one of them or none, and looking for each by its name takes longer than looking at every name there is.
    while let Some(name) = headers.keys().find(|name| HOP_BY_HOP.contains(&name.as_str())).cloned() {
        headers.remove(name);
    }
    headers.remove(TE);
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a request is a WebSocket's first (HTTP/1.1; RFC 6455, 4.1).
pub(crate) fn is_websocket(head: &request::Parts) -> bool {
    head.version == Version::HTTP_11 && head.headers.get(UPGRADE).is_some_and(|value| is(value, "websocket"))
}

/// Whether HTTP may be over on this connection with the answer. Whoever answers such a request tells
/// [`strict::Switch::answered`].
pub(crate) fn may_switch(head: &request::Parts) -> bool {
    let asks = head.headers.get_all(UPGRADE).iter().any(|value| is(value, "websocket"));
    head.method == Method::CONNECT || (head.version == Version::HTTP_11 && asks)
}

/// Whether a server could take the body for the next request, because requests like this one usually have none. Nothing
/// may follow such a request on its connection: it says `Connection: close`. In HTTP/2 a head does not tell whether a body
/// follows, so it is assumed.
pub(crate) fn is_last(head: &request::Parts) -> bool {
    let is_bare = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE);
    // What is sent on for a GET or HEAD without a length has no body.
    let may_have_chunks =
        matches!(head.method, Method::OPTIONS | Method::DELETE) && head.version == Version::HTTP_2;
    let has_body = match head.headers.get(CONTENT_LENGTH) {
        Some(length) => length != "0",
        None => head.headers.contains_key(TRANSFER_ENCODING) || may_have_chunks,
    };
    is_bare && has_body
}

/// Whether a header (name in lower case) says where a message ends or where it goes. No trailer may be one.
pub(super) fn is_about_framing(name: &str) -> bool {
    HOP_BY_HOP.contains(&name) || KEPT.contains(&name) || matches!(name, "te" | "trailer")
}

/// Trailers without what no trailer may be.
pub(crate) fn check_trailers(trailers: &HeaderMap) -> Result<(), Bad> {
    match trailers.keys().any(|name| is_about_framing(name.as_str())) {
        true => Err(bad("a trailer says where a body ends")),
        false => Ok(()),
    }
}

/// A request that stands for one that was refused before it was parsed.
fn refused(head: &request::Parts) -> Result<(), Bad> {
    if head.method.as_str() != strict::REFUSED {
        return Ok(());
    }
    let told = head.headers.get(strict::WHY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (status, why) = told.split_once(' ').unwrap_or(("400", "the request cannot be read"));
    Err(Bad { status: status.parse().unwrap_or(400), ..bad(why) })
}

fn sizes(headers: &HeaderMap) -> Result<(), Bad> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    match bytes > raw::LONGEST_HEAD || headers.len() > raw::MOST_HEADERS {
        true => Err(Bad { status: 431, ..bad("the head of the request is too long") }),
        false => Ok(()),
    }
}

/// `Content_Length` is `Content-Length` to servers that hand requests to programs.
fn names(headers: &HeaderMap) -> Result<(), Bad> {
    let is_disguised = |name: &HeaderName| {
        let name = name.as_str();
        name.contains('_') && is_about_framing(&name.replace('_', "-"))
    };
    match headers.keys().any(is_disguised) {
        true => Err(bad("a header is one about framing in disguise")),
        false => Ok(()),
    }
}

fn lengths(head: &request::Parts) -> Result<(), Bad> {
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if let Some(length) = length {
        raw::content_length(length.as_bytes())?;
    }
    if lengths.next().is_some() {
        return Err(bad("two content-length"));
    }
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if head.version != Version::HTTP_11 {
        return Err(bad("transfer-encoding in another version than HTTP/1.1"));
    }
    match (length, is(coding, "chunked"), codings.next()) {
        (Some(_), _, _) => Err(bad("both content-length and transfer-encoding")),
        (None, true, None) => Ok(()),
        (None, _, _) => Err(bad("a transfer-encoding other than chunked")),
    }
}

fn connection(headers: &HeaderMap) -> Result<(), Bad> {
    if headers.get_all(CONNECTION).iter().any(|value| value.to_str().is_err()) {
        return Err(bad("connection is no text"));
    }
    match listed(headers).any(|name| KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name))) {
        true => Err(bad("connection names a header that is not about connections")),
        false => Ok(()),
    }
}

/// What `Connection` lists, as it is written there.
pub(super) fn listed(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// WebSockets are passed on. `h2c` is not, and who asks for it goes on without (RFC 9110, 7.8). Nothing else is known.
fn upgrade(head: &request::Parts) -> Result<(), Bad> {
    let mut asked = head.headers.get_all(UPGRADE).iter();
    let Some(protocol) = asked.next() else { return Ok(()) };
    if asked.next().is_some() || !(is(protocol, "websocket") || is(protocol, "h2c")) {
        return Err(bad("an upgrade to another protocol than websocket"));
    }
    if !listed(&head.headers).any(|name| name.eq_ignore_ascii_case(UPGRADE.as_str())) {
        return Err(bad("an upgrade that connection does not name"));
    }
    if is(protocol, "websocket") && head.method != Method::GET {
        return Err(bad("a websocket that does not begin with GET"));
    }
    match is(protocol, "websocket") && head.version != Version::HTTP_11 {
        true => Err(bad("a websocket in another version than HTTP/1.1")),
        false => Ok(()),
    }
}

fn is(value: &HeaderValue, word: &str) -> bool {
    value.as_bytes().eq_ignore_ascii_case(word.as_bytes())
}

pub(super) fn has_word(value: &HeaderValue, word: &str) -> bool {
    let text = value.to_str().unwrap_or_default();
    text.split(',').any(|part| part.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(word))
}

fn bad(why: &str) -> Bad {
    Bad { status: 400, reason: Reason::Ambiguous, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use proptest::prelude::*;

    fn head(method: &str, version: Version, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::builder().method(method).version(version).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn status(method: &str, version: Version, headers: &[(&str, &str)]) -> u16 {
        check(&head(method, version, headers)).map_or_else(|bad| bad.status, |()| 200)
    }

    #[test]
    fn ordinary_heads_pass() {
        for headers in [
            &[][..],
            &[("content-length", "7"), ("connection", "keep-alive")],
            &[("transfer-encoding", "chunked"), ("te", "trailers"), ("connection", "TE, close")],
            &[("upgrade", "h2c"), ("http2-settings", "x"), ("connection", "Upgrade, HTTP2-Settings")],
            &[("expect", "100-Continue"), ("content-length", "1")],
        ] {
            assert_eq!(status("POST", Version::HTTP_11, headers), 200, "{headers:?}");
        }
        let websocket = [("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade")];
        assert_eq!(status("GET", Version::HTTP_11, &websocket), 200);
        assert!(is_websocket(&head("GET", Version::HTTP_11, &websocket)));
        assert!(may_switch(&head("CONNECT", Version::HTTP_11, &[])));
    }

    #[test]
    fn heads_that_two_readers_read_differently_are_refused() {
        let one = Version::HTTP_11;
        for (method, version, headers) in [
            ("POST", one, &[("content-length", "7"), ("transfer-encoding", "chunked")][..]),
            ("POST", one, &[("content-length", "7"), ("content-length", "7")]),
            ("POST", one, &[("content-length", "7,7")]),
            ("POST", one, &[("content-length", "")]),
            ("POST", Version::HTTP_2, &[("content-length", "7"), ("content-length", "8")]),
            ("POST", one, &[("transfer-encoding", "gzip, chunked")]),
            ("POST", one, &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")]),
            ("POST", Version::HTTP_10, &[("transfer-encoding", "chunked")]),
            ("POST", Version::HTTP_2, &[("transfer-encoding", "chunked")]),
            ("POST", one, &[("transfer_encoding", "chunked")]),
            ("POST", one, &[("content_length", "7")]),
            ("GET", one, &[("connection", "close, content-length"), ("content-length", "7")]),
            ("GET", one, &[("connection", "Host")]),
            ("GET", one, &[("connection", "authorization")]),
            ("GET", one, &[("connection", "upgrade"), ("upgrade", "tls/1.2")]),
            ("GET", one, &[("connection", "upgrade"), ("upgrade", "websocket, h2c")]),
            ("GET", one, &[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")]),
            ("GET", one, &[("upgrade", "websocket")]),
            ("POST", one, &[("connection", "upgrade"), ("upgrade", "websocket")]),
            ("GET", Version::HTTP_10, &[("connection", "upgrade"), ("upgrade", "websocket")]),
        ] {
            assert_eq!(status(method, version, headers), 400, "{method} {version:?} {headers:?}");
        }
        assert_eq!(status("POST", one, &[("expect", "200-ok")]), 417);
        assert_eq!(status("GET", one, &[("x", &"y".repeat(70_000))]), 431);
        assert_eq!(status("GET", one, &vec![("x", "y"); 201]), 431);
    }

    #[test]
    fn a_request_that_was_refused_before_says_why() {
        let head = head(strict::REFUSED, Version::HTTP_11, &[(strict::WHY, "431 too long")]);
        assert_eq!(
            check(&head),
            Err(Bad { status: 431, reason: Reason::Ambiguous, why: "too long".to_owned() })
        );
    }

    #[test]
    fn what_is_about_one_connection_does_not_go_on() {
        let mut headers = head(
            "GET",
            Version::HTTP_11,
            &[
                ("connection", "close, X-Own"),
                ("x-own", "1"),
                ("keep-alive", "timeout=5"),
                ("proxy-authorization", "Basic x"),
                ("proxy-connection", "keep-alive"),
                ("te", "gzip, trailers;q=0.5"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("http2-settings", "x"),
                ("accept", "*/*"),
            ],
        )
        .headers;
        strip(&mut headers);
        let left: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("accept", "*/*"), ("te", "trailers")]);
    }

    #[test]
    fn nothing_follows_a_body_that_a_server_may_not_expect() {
        assert!(is_last(&head("GET", Version::HTTP_11, &[("content-length", "7")])));
        assert!(is_last(&head("HEAD", Version::HTTP_11, &[("transfer-encoding", "chunked")])));
        assert!(!is_last(&head("GET", Version::HTTP_11, &[("content-length", "0")])));
        assert!(!is_last(&head("POST", Version::HTTP_11, &[("content-length", "7")])));
        assert!(is_last(&head("DELETE", Version::HTTP_2, &[])));
        assert!(!is_last(&head("GET", Version::HTTP_2, &[])));
    }

    #[test]
    fn a_get_inside_http2_has_no_body() {
        assert!(check_body(&head("GET", Version::HTTP_2, &[]), false).is_err());
        assert!(check_body(&head("HEAD", Version::HTTP_2, &[("content-length", "7")]), false).is_err());
        assert!(check_body(&head("GET", Version::HTTP_2, &[]), true).is_ok());
        assert!(check_body(&head("POST", Version::HTTP_2, &[]), false).is_ok());
        assert!(check_body(&head("GET", Version::HTTP_11, &[]), false).is_ok());
    }

    #[test]
    fn trailers_say_nothing_about_framing() {
        let map = |name: &str| HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static("x"))]);
        assert!(check_trailers(&map("grpc-status")).is_ok());
        for name in ["content-length", "transfer-encoding", "host", "authorization", "connection", "te"] {
            assert!(check_trailers(&map(name)).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_has_at_most_one_length(
            headers in proptest::collection::vec(proptest::sample::select(vec![
                ("content-length", "5"), ("content-length", "05"), ("content-length", "5 "), ("transfer-encoding", "chunked"),
                ("transfer-encoding", "identity"), ("connection", "content-length"), ("x", "y"), ("content_length", "5"),
            ]), 0..5)
        ) {
            if check(&head("POST", Version::HTTP_11, &headers)).is_ok() {
                let lengths = headers.iter().filter(|(name, _)| name.replace('_', "-") == "content-length").count();
                let codings = headers.iter().filter(|(name, _)| *name == "transfer-encoding").count();
                prop_assert!(lengths + codings <= 1);
            }
        }
    }
}
