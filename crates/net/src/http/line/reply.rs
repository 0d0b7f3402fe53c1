//! Heads of answers of HTTP/1, and what follows them (RFC 9112, 6.3). Pure.
//!
//! A server that says in two ways where its answer ends is not believed: the answer is refused, or nothing follows it on its
//! connection.

use super::super::framing;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
    response,
};
use hyper::{body::Bytes, ext::ReasonPhrase};

/// Longest head of an answer.
pub(super) const LONGEST: usize = 64 * 1024;
/// Most headers of an answer.
const MOST_HEADERS: usize = 100;
/// Longest body that is believed.
const LONGEST_BODY: u64 = 1 << 62;

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) head: response::Parts,
    pub(super) follows: Follows,
    /// Whether another answer may follow it on its connection.
    pub(super) keeps: bool,
}

/// What follows the head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Follows {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunks,
    /// All that comes until the connection ends.
    Rest,
}

/// Where the head ends that `bytes` begin with, if its end is there. The first `seen` have none.
pub(in crate::http) fn end(bytes: &[u8], seen: usize) -> Option<usize> {
    let from = seen.saturating_sub(3);
    let mut at = from;
    for line in bytes.get(from..)?.split_inclusive(|byte| *byte == b'\n') {
        let is_empty = matches!(line, b"\r\n" | b"\n");
        at += line.len();
        // What is looked at may begin in the middle of a line.
        let is_whole = at == line.len() || bytes.get(at - line.len() - 1) == Some(&b'\n');
        if is_empty && is_whole {
            return Some(at);
        }
    }
    None
}

/// Reads a head that is whole: of the answer to a request with this method.
pub(super) fn read(bytes: &Bytes, method: &Method) -> Result<Reply, &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err("its head has too many headers"),
        _ => return Err("its head cannot be read"),
    }
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or("its status is none")?;
    let version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let (mut head, ()) = Response::new(()).into_parts();
    (head.status, head.version) = (status, version);
    let reason = parsed.reason.unwrap_or_default();
    if !reason.is_empty() && status.canonical_reason() != Some(reason) {
        head.extensions
            .insert(ReasonPhrase::try_from(reason.to_owned()).map_err(|_| "its reason is no text")?);
    }
    head.headers.reserve(parsed.headers.len());
    for field in parsed.headers.iter() {
        head.headers.append(name(field.name)?, value(bytes.slice_ref(field.value))?);
    }
    let said = keeps(version, &head.headers);
    let has_both = head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH);
    let follows = follows(status, version, method, &mut head.headers)?;
    Ok(Reply { head, follows, keeps: said && !has_both && follows != Follows::Rest })
}

/// The lines behind the last chunk, with the empty one at their end.
pub(in crate::http) fn trailers(bytes: &Bytes) -> Result<HeaderMap, &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(bytes, &mut fields) else {
        return Err("its trailers cannot be read");
    };
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        headers.append(name(field.name)?, value(bytes.slice_ref(field.value))?);
    }
    Ok(headers)
}

/// The name of a header.
pub(in crate::http) fn name(text: &str) -> Result<HeaderName, &'static str> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| "the name of a header is no word")
}

/// The value of a header.
pub(in crate::http) fn value(bytes: Bytes) -> Result<HeaderValue, &'static str> {
    HeaderValue::from_maybe_shared(bytes).map_err(|_| "a header has a control character")
}

fn keeps(version: Version, headers: &HeaderMap) -> bool {
    let says = |word: &str| framing::listed(headers).any(|listed| listed.eq_ignore_ascii_case(word));
    !says("close") && (version == Version::HTTP_11 || says("keep-alive"))
}

/// What is said twice of the length is said once behind this.
fn follows(
    status: StatusCode,
    version: Version,
    method: &Method,
    headers: &mut HeaderMap,
) -> Result<Follows, &'static str> {
    let is_bodiless = matches!(status.as_u16(), 100..=199 | 204 | 304) || method == Method::HEAD;
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let (Some(coding), false) = (codings.next(), is_bodiless) {
        let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if version != Version::HTTP_11 {
            return Err("it has a transfer-encoding in HTTP/1.0");
        }
        if !is_chunked || codings.next().is_some() {
            return Err("it has a transfer-encoding other than chunked");
        }
        headers.remove(CONTENT_LENGTH);
        return Ok(Follows::Chunks);
    }
    let length = length(headers)?;
    if is_bodiless {
        return Ok(Follows::Length(0));
    }
    Ok(length.map_or(Follows::Rest, Follows::Length))
}

/// What all of `Content-Length` say alike.
fn length(headers: &mut HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut length = None;
    let mut times = 0u32;
    for value in headers.get_all(CONTENT_LENGTH) {
        for text in value.as_bytes().split(|byte| *byte == b',') {
            let one = number(text.trim_ascii()).ok_or("its content-length is no number")?;
            if length.is_some_and(|length| length != one) {
                return Err("it has two content-length");
            }
            length = Some(one);
            times = times.saturating_add(1);
        }
    }
    if let Some(length) = length.filter(|_| times > 1) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(length)
}

/// Digits and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    let text =
        std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|length| *length <= LONGEST_BODY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(head: &str, method: &Method) -> Result<(u16, Follows, bool), &'static str> {
        let head = Bytes::from(format!("{head}\r\n\r\n"));
        read(&head, method).map(|reply| (reply.head.status.as_u16(), reply.follows, reply.keeps))
    }

    #[test]
    fn what_follows_a_head_is_what_it_says() {
        use Follows::{Chunks, Length, Rest};
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 7", (200, Length(7), true)),
            ("HTTP/1.1 200\r\ncontent-length: 7, 7", (200, Length(7), true)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-length: 7", (200, Length(7), true)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: x, Close", (200, Length(7), false)),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked", (200, Chunks, true)),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3", (200, Chunks, false)),
            ("HTTP/1.1 200 Fine", (200, Rest, false)),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 7", (204, Length(0), true)),
            ("HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked", (304, Length(0), true)),
            ("HTTP/1.0 200 OK\r\ncontent-length: 7", (200, Length(7), false)),
            ("HTTP/1.0 200 OK\r\ncontent-length: 7\r\nconnection: keep-alive", (200, Length(7), true)),
            (
                "HTTP/1.0 200 OK\r\ncontent-length: 7\r\nconnection: keep-alive, close",
                (200, Length(7), false),
            ),
        ] {
            assert_eq!(told(head, &Method::GET), Ok(expected), "{head}");
        }
        let long = "HTTP/1.1 200 OK\r\ncontent-length: 7";
        assert_eq!(told(long, &Method::HEAD), Ok((200, Length(0), true)));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for head in [
            "HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-length: 8",
            "HTTP/1.1 200 OK\r\ncontent-length: 7, 8",
            "HTTP/1.1 200 OK\r\ncontent-length: +7",
            "HTTP/1.1 200 OK\r\ncontent-length: ",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: identity",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked",
            "HTTP/1.1 200 OK\r\nname : value",
            "HTTP/1.1 200 OK\r\n folded: value",
            "HTTP/1.1 200 OK\r\nname: va\0lue",
            "HTTP/2 200 OK",
            "ICY 200 OK",
            "HTTP/1.1 99 Low",
            "",
        ] {
            assert!(told(head, &Method::GET).is_err(), "{head}");
        }
        let many = format!("HTTP/1.1 200 OK{}", "\r\na: b".repeat(101));
        assert_eq!(told(&many, &Method::GET), Err("its head has too many headers"));
    }

    #[test]
    fn the_end_of_a_head_is_found_wherever_reading_stopped_before() {
        let text = b"HTTP/1.1 200 OK\r\na: b\r\n\r\nbody\r\n\r\n";
        for seen in 0..24 {
            assert_eq!(end(text, seen), Some(25), "{seen}");
        }
        assert_eq!(end(b"HTTP/1.1 200 OK\r\na: b\r\n\r", 0), None);
        assert_eq!(end(b"HTTP/1.1 200 OK\na: b\n\nbody", 3), Some(22));
        assert_eq!(end(b"\r\nHTTP/1.1 200 OK", 0), Some(2));
    }

    proptest! {
        #[test]
        fn no_head_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), seen in 0usize..310) {
            let _ = end(&bytes, seen);
            let _ = trailers(&Bytes::from(bytes.clone()));
            let _ = read(&Bytes::from(bytes), &Method::GET);
        }

        #[test]
        fn an_end_is_where_a_blank_line_is(text in "[a\r\n]{0,12}", cut in 0usize..12) {
            let bytes = text.as_bytes();
            let whole = end(bytes, 0);
            // Where nothing was found before, nothing is missed later.
            if end(bytes.get(..cut).unwrap_or(bytes), 0).is_none() {
                prop_assert_eq!(end(bytes, cut.min(bytes.len())), whole);
            }
        }
    }
}
