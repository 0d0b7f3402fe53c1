//! The bytes of an HTTP/1 connection from the sandbox, followed before the parser sees them.
//!
//! The parser is lenient where two readers could disagree, and forgets that it was: of `Transfer-Encoding` together with
//! `Content-Length` it drops the latter, of two equal `Content-Length` one; it takes lines that end without a carriage
//! return, empty lines before a request, spaces and extensions in chunk sizes. What it hands out shows none of this. So
//! each head is looked at whole, and each chunk's size, by rules without exceptions (RFC 9112):
//!
//! - `METHOD SP TARGET SP HTTP/1.x`, visible ASCII only, no fragment;
//! - a header is a token, a colon at once, and text; every line ends in CR LF; none continues another;
//! - at most one of `Content-Length` (digits) and `Transfer-Encoding` (`chunked`, HTTP/1.1 only), once;
//! - a chunk's size is hexadecimal digits and nothing else; trailers are headers that say nothing about framing.
//!
//! [`Follower`] is pure; [`super::strict`] runs it over a stream.

use super::Bad;
use airlock_gate::Reason;

/// Longest head, also of trailers.
pub(crate) const LONGEST_HEAD: usize = 64 * 1024;
/// Most headers.
pub(crate) const MOST_HEADERS: usize = 200;
/// Longest method; there is none as long.
const LONGEST_METHOD: usize = 32;
/// Longest body that is believed.
const LONGEST_BODY: u64 = 1 << 62;
/// Most digits of a chunk's size.
const MOST_DIGITS: u32 = 15;

/// Follows one connection.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    state: State,
    /// The head that is not whole yet; of trailers, the line.
    held: Vec<u8>,
    scan: Scan,
}

/// How far the end of a head was looked for.
#[derive(Debug)]
struct Scan {
    /// The last two bytes.
    last: [u8; 2],
    /// Whether the first line was looked at.
    has_line: bool,
}

/// What the next bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// So many may go on as they are.
    Pass(usize),
    /// All are part of a head that is not whole yet, and are kept.
    Hold,
    /// So many make a head whole that was kept; it may go on.
    Head(usize, Vec<u8>),
    /// None may go on before the request before them is answered ([`Follower::answered`]).
    Wait,
    /// The head is refused, and the connection is over.
    Bad(Bad),
    /// The body is refused, and the connection is over.
    BadBody(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// In a head.
    #[default]
    Head,
    /// In a body of which so much is left.
    Body(u64),
    /// In a chunk's size; how many digits, and what they say.
    Size(u32, u64),
    /// Behind the carriage return of a chunk's size.
    SizeEnd(u64),
    /// In a chunk of which so much is left.
    Chunk(u64),
    /// Behind a chunk, before the carriage return.
    ChunkEnd,
    /// Behind a chunk, before the line feed.
    ChunkFeed,
    /// In the lines behind the last chunk; how many bytes and lines.
    Trailers(usize, usize),
    /// Behind a request that may end HTTP on this connection.
    Waiting,
    /// It is no HTTP any more.
    Switched,
}

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follows {
    /// The next head.
    Head,
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunks,
    /// Whatever the answer says: `CONNECT`, or an upgrade.
    Answer,
}

impl Follower {
    /// Looks at the next bytes; there is at least one. Called again for what it did not take.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Look {
        match self.state {
            State::Head => self.head(bytes),
            State::Body(left) => self.counted(bytes, left, State::Body, State::Head),
            State::Chunk(left) => self.counted(bytes, left, State::Chunk, State::ChunkEnd),
            State::Trailers(size, lines) => self.trailers(bytes, size, lines),
            State::Waiting => Look::Wait,
            State::Switched => Look::Pass(bytes.len()),
            State::Size(..) | State::SizeEnd(_) | State::ChunkEnd | State::ChunkFeed => self.between(bytes),
        }
    }

    /// Whether nothing goes on before an answer.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }

    /// The request that it waits for was answered. `is_switched`: HTTP is over on this connection.
    pub(crate) fn answered(&mut self, is_switched: bool) {
        if self.state == State::Waiting {
            self.state = if is_switched { State::Switched } else { State::Head };
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Look {
        let kept = self.held.len();
        let end = match self.end_of_head(bytes) {
            Ok(end) => end,
            Err(bad) => return Look::Bad(bad),
        };
        let now = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
        if end.is_none() {
            self.held.extend_from_slice(now);
            let checked = if now.contains(&b'\n') { self.first_line() } else { Ok(()) };
            return checked.map_or_else(Look::Bad, |()| Look::Hold);
        }
        if kept > 0 {
            self.held.extend_from_slice(now);
        }
        self.scan = Scan::default();
        match head(if kept > 0 { &self.held } else { now }) {
            Ok(follows) => self.state = follows.into(),
            Err(bad) => return Look::Bad(bad),
        }
        match kept {
            0 => Look::Pass(now.len()),
            _ => Look::Head(now.len(), std::mem::take(&mut self.held)),
        }
    }

    /// Where in `bytes` the head ends that was begun in what is kept.
    fn end_of_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Bad> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.held.len() + at >= LONGEST_HEAD {
                return Err(too_large("the head of the request is too long"));
            }
            let [feed, end] = self.scan.last;
            self.scan.last = [end, *byte];
            if *byte != b'\n' {
                continue;
            }
            if end != b'\r' {
                return Err(unended());
            }
            // Also an empty line before everything is an end: of a head that is empty.
            if feed == b'\n' {
                return Ok(Some(at + 1));
            }
        }
        Ok(None)
    }

    /// A first line that is no request's is refused before the rest is there: of some requests there is no rest.
    fn first_line(&mut self) -> Result<(), Bad> {
        if self.scan.has_line {
            return Ok(());
        }
        let Some(end) = self.held.iter().position(|byte| *byte == b'\n') else { return Ok(()) };
        self.scan.has_line = true;
        let line = self.held.get(..end).unwrap_or_default();
        request_line(line.strip_suffix(b"\r").unwrap_or(line)).map(|_| ())
    }

    fn counted(&mut self, bytes: &[u8], left: u64, more: fn(u64) -> State, then: State) -> Look {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left.saturating_sub(here as u64);
        self.state = if left == 0 { then } else { more(left) };
        Look::Pass(here)
    }

    /// One byte of what stands around chunks.
    fn between(&mut self, bytes: &[u8]) -> Look {
        let Some(byte) = bytes.first() else { return Look::Pass(0) };
        self.state = match (self.state, byte) {
            (State::Size(digits, size), byte) if byte.is_ascii_hexdigit() => {
                let digit = char::from(*byte).to_digit(16).unwrap_or_default();
                if digits >= MOST_DIGITS {
                    return Look::BadBody("a chunk is too large");
                }
                State::Size(digits + 1, size * 16 + u64::from(digit))
            }
            (State::Size(1.., size), b'\r') => State::SizeEnd(size),
            (State::Size(..), _) => return Look::BadBody("a chunk's size is more than hexadecimal digits"),
            (State::SizeEnd(0), b'\n') => State::Trailers(0, 0),
            (State::SizeEnd(size), b'\n') => State::Chunk(size),
            (State::ChunkEnd, b'\r') => State::ChunkFeed,
            (State::ChunkFeed, b'\n') => State::Size(0, 0),
            _ => return Look::BadBody("a chunk does not end where its size says"),
        };
        Look::Pass(1)
    }

    /// The lines behind the last chunk, each looked at before its end goes on.
    fn trailers(&mut self, bytes: &[u8], size: usize, lines: usize) -> Look {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let now = bytes.get(..end).unwrap_or(bytes);
        let size = size + now.len();
        if size > LONGEST_HEAD || lines > MOST_HEADERS {
            return Look::BadBody("the trailers are too long");
        }
        self.held.extend_from_slice(now);
        self.state = State::Trailers(size, lines);
        if self.held.last() != Some(&b'\n') {
            return Look::Pass(now.len());
        }
        let line = std::mem::take(&mut self.held);
        match line.strip_suffix(b"\r\n") {
            None => Look::BadBody("a line of the trailers does not end in a carriage return and a line feed"),
            Some(b"") => {
                self.state = State::Head;
                Look::Pass(now.len())
            }
            Some(line) => match header(line) {
                Ok((name, _)) if is_about_framing(name) => Look::BadBody("a trailer says where a body ends"),
                Ok(_) => {
                    self.state = State::Trailers(size, lines + 1);
                    Look::Pass(now.len())
                }
                Err(_) => Look::BadBody("a trailer is no header"),
            },
        }
    }
}

impl Default for Scan {
    fn default() -> Scan {
        // A head begins behind a line.
        Scan { last: [0, b'\n'], has_line: false }
    }
}

impl From<Follows> for State {
    fn from(follows: Follows) -> State {
        match follows {
            Follows::Head | Follows::Length(0) => State::Head,
            Follows::Length(length) => State::Body(length),
            Follows::Chunks => State::Size(0, 0),
            Follows::Answer => State::Waiting,
        }
    }
}

/// Checks a whole head, with the empty line at its end: what follows it.
pub(crate) fn head(bytes: &[u8]) -> Result<Follows, Bad> {
    let lines = bytes.strip_suffix(b"\r\n").ok_or_else(|| bad("the head has no end"))?;
    let mut lines = lines.split_inclusive(|byte| *byte == b'\n').map(line);
    let (method, is_one_one) = request_line(lines.next().unwrap_or(Ok(b""))?)?;
    let (mut length, mut is_chunked, mut switches) = (None, false, method == b"CONNECT");
    for (count, line) in lines.enumerate() {
        if count >= MOST_HEADERS {
            return Err(too_large("the request has too many headers"));
        }
        let (name, value) = header(line?)?;
        if is_named(name, b"content-length") {
            if length.is_some() {
                return Err(bad("two content-length"));
            }
            length = Some(content_length(value)?);
        } else if is_named(name, b"transfer-encoding") {
            match value.eq_ignore_ascii_case(b"chunked") {
                _ if is_chunked => return Err(bad("two transfer-encoding")),
                _ if !is_one_one => return Err(bad("transfer-encoding in HTTP/1.0")),
                false => return Err(bad("a transfer-encoding other than chunked")),
                true => is_chunked = true,
            }
        } else if is_named(name, b"upgrade") {
            switches |= value.eq_ignore_ascii_case(b"websocket") && is_one_one;
        }
    }
    match (length, is_chunked, switches) {
        (Some(_), true, _) => Err(bad("both content-length and transfer-encoding")),
        (None | Some(0), false, true) => Ok(Follows::Answer),
        (_, _, true) => Err(bad("a request with a body that asks for another protocol")),
        (None, false, false) => Ok(Follows::Head),
        (None, true, false) => Ok(Follows::Chunks),
        (Some(length), false, false) => Ok(Follows::Length(length)),
    }
}

/// A line without its end.
fn line(line: &[u8]) -> Result<&[u8], Bad> {
    line.strip_suffix(b"\r\n").ok_or_else(unended)
}

/// The method, and whether it is HTTP/1.1.
fn request_line(line: &[u8]) -> Result<(&[u8], bool), Bad> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(bad("the first line is not METHOD TARGET HTTP/1.1"));
    };
    if method.is_empty() || method.len() > LONGEST_METHOD || !method.iter().all(is_token) {
        return Err(bad("the method is no word"));
    }
    if method == super::strict::REFUSED.as_bytes() {
        return Err(bad("this method is not for clients"));
    }
    if target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(bad("the target has characters that no URL has"));
    }
    if target.contains(&b'#') {
        return Err(bad("the target has a fragment"));
    }
    match version {
        b"HTTP/1.1" => Ok((method, true)),
        b"HTTP/1.0" => Ok((method, false)),
        _ => Err(bad("the version is neither HTTP/1.1 nor HTTP/1.0")),
    }
}

/// Name and value of a header, without the white space around the value.
fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(bad("a header continues on the next line"));
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or_else(|| bad("a header has no colon"))?;
    let (name, value) = line.split_at_checked(colon).unwrap_or_default();
    if name.is_empty() || !name.iter().all(is_token) {
        return Err(bad("the name of a header is no word"));
    }
    let value = value.strip_prefix(b":").unwrap_or(value);
    let value = without_blanks(value);
    match value.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)) {
        true => Ok((name, value)),
        false => Err(bad("a header has a control character")),
    }
}

fn without_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Whether this is a header's name as the laxest of servers reads it: `Content_Length` is `content-length` to some.
fn is_named(name: &[u8], wanted: &[u8]) -> bool {
    name.len() == wanted.len() && name.iter().map(canonical).eq(wanted.iter().copied())
}

fn canonical(byte: &u8) -> u8 {
    if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}

fn is_about_framing(name: &[u8]) -> bool {
    let name: Vec<u8> = name.iter().map(canonical).collect();
    super::framing::is_about_framing(&String::from_utf8_lossy(&name))
}

/// Digits and nothing else.
pub(super) fn content_length(value: &[u8]) -> Result<u64, Bad> {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|text| text.parse().ok()).filter(|length| *length <= LONGEST_BODY);
    length.ok_or_else(|| bad("content-length is no number"))
}

/// A character of a method or of a header's name (RFC 9110, 5.6.2).
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

fn bad(why: &str) -> Bad {
    Bad { status: 400, reason: Reason::Ambiguous, why: why.to_owned() }
}

fn unended() -> Bad {
    bad("a line does not end in a carriage return and a line feed")
}

fn too_large(why: &str) -> Bad {
    Bad { status: 431, ..bad(why) }
}

#[cfg(test)]
mod tests;
