//! Heads as they are written anew: what concerns one connection only is left out, and what the two versions of HTTP say
//! differently is said as the next reader expects it. Pure.

use super::framing;
use airlock_gate::host::Target;
use http::{
    HeaderMap, HeaderValue, Uri, Version,
    header::{CONNECTION, COOKIE, EXPECT, GetAll, HOST, TE, UPGRADE},
    request, response,
    uri::{Authority, Scheme},
};
use std::net::IpAddr;

/// Whether a connection goes on behind a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    /// With others.
    Requests,
    /// It ends.
    Nothing,
}

/// The server that a request goes to, as its head names it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    authority: Authority,
    host: HeaderValue,
    scheme: Scheme,
}

impl Place {
    /// The usual port is left out.
    pub(super) fn new(target: &Target, port: u16, is_tls: bool) -> Place {
        let name = match target {
            Target::Address(IpAddr::V6(address)) => format!("[{address}]"),
            other => other.to_string(),
        };
        let usual = if is_tls { 443 } else { 80 };
        let text = if port == usual { name } else { format!("{name}:{port}") };
        // Names and addresses are checked long before, and can be written; an empty host reaches nobody.
        Place {
            host: HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")),
            authority: text.parse().unwrap_or(Authority::from_static("invalid")),
            scheme: if is_tls { Scheme::HTTPS } else { Scheme::HTTP },
        }
    }
}

/// Makes a head ready for the server, which speaks `version`. What was made ready once can be made ready again.
/// `follows`: whether another request may follow it on its connection; what the program says of its own connection is
/// not about the server's.
pub(super) fn outgoing(head: &mut request::Parts, place: &Place, version: Version, follows: Follows) {
    let is_websocket = framing::is_websocket(head);
    framing::strip(&mut head.headers);
    // We ask for the body ourselves once the request is permitted.
    head.headers.remove(EXPECT);
    head.headers.remove(HOST);
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = head.uri.path_and_query().cloned();
    if version == Version::HTTP_2 {
        uri.scheme = Some(place.scheme.clone());
        uri.authority = Some(place.authority.clone());
    } else {
        head.headers.insert(HOST, place.host.clone());
        join_cookies(&mut head.headers);
        if is_websocket {
            head.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        } else if follows == Follows::Nothing {
            head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        } else if head.headers.contains_key(TE) {
            head.headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
    }
    head.uri = Uri::from_parts(uri).unwrap_or_default();
    head.version = version;
}

/// Makes the head of an answer ready for the program, which speaks `version`.
pub(super) fn incoming(head: &mut response::Parts, version: Version) {
    framing::strip(&mut head.headers);
    head.headers.remove(TE);
    head.version = version;
}

/// Whether a scheme is used that is about a connection and not about a request (RFC 4559, section 6).
pub(super) fn is_tied(schemes: GetAll<'_, HeaderValue>) -> bool {
    let is_one = |word: &str| word.eq_ignore_ascii_case("ntlm") || word.eq_ignore_ascii_case("negotiate");
    let words = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.split([' ', ',']).any(is_one)
    };
    schemes.iter().any(words)
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
