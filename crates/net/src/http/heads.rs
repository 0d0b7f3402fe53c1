//! Heads as they are written anew: what concerns one connection only is left out, and what the two versions of HTTP say
//! differently is said as the next reader expects it. Pure.

use airlock_gate::host::Target;
use http::{
    HeaderMap, HeaderName, HeaderValue, Uri, Version,
    header::{self, CONNECTION, COOKIE, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE},
    request, response,
    uri::{Authority, PathAndQuery, Scheme},
};
use std::net::IpAddr;

/// Of one connection only, besides what `Connection` names (RFC 9110, section 7.6.1).
const OF_ONE_CONNECTION: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// The server that a request goes to, as its head names it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    authority: Authority,
    host: HeaderValue,
    scheme: Scheme,
}

impl Place {
    /// The usual port is left out.
    pub(super) fn new(target: &Target, port: u16, is_tls: bool) -> Option<Place> {
        let name = match target {
            Target::Address(IpAddr::V6(address)) => format!("[{address}]"),
            other => other.to_string(),
        };
        let usual = if is_tls { 443 } else { 80 };
        let text = if port == usual { name } else { format!("{name}:{port}") };
        Some(Place {
            host: HeaderValue::from_str(&text).ok()?,
            authority: text.parse().ok()?,
            scheme: if is_tls { Scheme::HTTPS } else { Scheme::HTTP },
        })
    }
}

/// Whether a request asks for a WebSocket.
pub(super) fn is_websocket(head: &request::Parts) -> bool {
    head.version == Version::HTTP_11
        && head.headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && names(&head.headers, &CONNECTION).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

/// Makes a head ready for the server, which speaks `version`. `sent` is the path and query that were judged.
pub(super) fn outgoing(head: &mut request::Parts, place: &Place, sent: PathAndQuery, version: Version) {
    let wants_upgrade = is_websocket(head);
    let wants_trailers = names(&head.headers, &TE).any(|name| name.eq_ignore_ascii_case("trailers"));
    strip(&mut head.headers);
    // We ask for the body ourselves once the request is permitted.
    head.headers.remove(EXPECT);
    if wants_trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
        if version != Version::HTTP_2 {
            head.headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
    }
    if wants_upgrade && version != Version::HTTP_2 {
        head.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    head.headers.remove(HOST);
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(sent);
    if version == Version::HTTP_2 {
        uri.scheme = Some(place.scheme.clone());
        uri.authority = Some(place.authority.clone());
    } else {
        head.headers.insert(HOST, place.host.clone());
        join_cookies(&mut head.headers);
    }
    head.uri = Uri::from_parts(uri).unwrap_or_default();
    head.version = version;
}

/// Makes the head of an answer ready for the program, which speaks `version`.
pub(super) fn incoming(head: &mut response::Parts, version: Version) {
    strip(&mut head.headers);
    head.version = version;
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = match headers.contains_key(CONNECTION) {
        true => names(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect(),
        false => Vec::new(),
    };
    for name in OF_ONE_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
}

/// The words of a header that is a list.
fn names<'a>(headers: &'a HeaderMap, of: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(of).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty())
}

/// HTTP/2 may give cookies one by one (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}
