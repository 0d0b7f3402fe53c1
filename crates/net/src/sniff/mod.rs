//! What the first bytes of a connection say about TLS. Pure: bytes in, an answer out.
//!
//! The client's first flight may come in any number of segments and its `ClientHello` in any number of records (RFC 8446
//! section 5.1). Nothing is passed on before [`Sniffer::push`] has said what it is.
//!
//! Strict where a server may be lenient: whatever could make a server read another host name than we did (a host name
//! given twice, an extension given twice, a record of another kind before or between the pieces, the SSLv2 form) is
//! [`Sniffed::Malformed`], not [`Sniffed::NotTls`].
//!
//! ```
//! use airlock_net::sniff::{Sniffed, Sniffer};
//! let mut sniffer = Sniffer::new();
//! assert_eq!(sniffer.push(&[0x16, 0x03]), Sniffed::NeedMore);
//! assert_eq!(Sniffer::new().push(b"SSH-2.0-client\r\n"), Sniffed::NotTls);
//! ```

mod hello;
mod second;
#[cfg(test)]
mod tests;

pub use hello::Hello;
pub use second::{Further, Second};

/// More than this before the end of a `ClientHello` is no `ClientHello`. Those of real clients have 200 to 4,000 bytes.
pub const HELLO_MAX: usize = 64 * 1024;

/// A record's payload is at most this (RFC 8446 section 5.1).
const RECORD_MAX: usize = 1 << 14;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// What the bytes so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniffed {
    /// The beginning of something; more is needed to tell.
    NeedMore,
    /// Not TLS.
    NotTls,
    /// TLS, and this is how it begins.
    Hello(Hello),
    /// TLS, but not as it should be; the text says in what.
    Malformed(&'static str),
}

/// Takes the first bytes of a connection, however they are cut. Keeps each byte at most once.
#[derive(Debug)]
pub struct Sniffer {
    /// More than this before the end of a `ClientHello` is none.
    most: usize,
    /// Bytes so far.
    total: usize,
    /// Those that are in no whole record yet; once the hello is whole, those behind it.
    rest: Vec<u8>,
    /// The handshake message as far as whole records have brought it.
    message: Vec<u8>,
}

impl Default for Sniffer {
    fn default() -> Sniffer {
        Sniffer::new()
    }
}

impl Sniffer {
    /// One that has seen nothing, for hellos of up to [`HELLO_MAX`].
    pub fn new() -> Sniffer {
        Sniffer::for_at_most(HELLO_MAX)
    }

    fn for_at_most(most: usize) -> Sniffer {
        Sniffer { most, total: 0, rest: Vec::new(), message: Vec::new() }
    }

    /// Adds what came next. Once it has given another answer than [`Sniffed::NeedMore`] it is spent.
    pub fn push(&mut self, bytes: &[u8]) -> Sniffed {
        let is_first = self.total == self.rest.len();
        self.total = self.total.saturating_add(bytes.len());
        self.rest.extend_from_slice(bytes);
        if is_first {
            match kind(&self.rest) {
                Kind::Unclear => return Sniffed::NeedMore,
                Kind::Other => return Sniffed::NotTls,
                Kind::Wrong(why) => return Sniffed::Malformed(why),
                Kind::Handshake => {}
            }
        }
        match self.gather() {
            Ok(None) if self.total > self.most => Sniffed::Malformed("the ClientHello is too long"),
            Ok(None) => Sniffed::NeedMore,
            Ok(Some(hello)) => Sniffed::Hello(hello),
            Err(why) => Sniffed::Malformed(why),
        }
    }

    /// What came behind the records of the `ClientHello`, once that is whole.
    pub fn behind(&self) -> &[u8] {
        &self.rest
    }

    /// Bytes that are kept.
    pub fn held(&self) -> usize {
        self.rest.len().saturating_add(self.message.len())
    }

    /// Moves whole records to the message; a hello if that completes it.
    fn gather(&mut self) -> Result<Option<Hello>, &'static str> {
        let bytes = std::mem::take(&mut self.rest);
        let mut rest = bytes.as_slice();
        let gathered = self.gather_from(&mut rest);
        // A copy, so that no more room is kept than is needed.
        self.rest = if rest.len() == bytes.len() { bytes } else { rest.to_vec() };
        gathered
    }

    fn gather_from(&mut self, rest: &mut &[u8]) -> Result<Option<Hello>, &'static str> {
        while let Some(record) = record(rest)? {
            self.message.extend_from_slice(record.payload);
            *rest = rest.get(record.whole..).unwrap_or_default();
            let Some((whole, body)) = message(&self.message)? else { continue };
            if self.message.len() > whole {
                return Err("something follows the ClientHello in its record");
            }
            let hello = Hello::parse(body)?;
            self.message = Vec::new();
            return Ok(Some(hello));
        }
        Ok(None)
    }
}

enum Kind {
    Unclear,
    Handshake,
    Other,
    Wrong(&'static str),
}

/// What the first bytes are the beginning of.
fn kind(bytes: &[u8]) -> Kind {
    match bytes {
        [] | [20..=24] => Kind::Unclear,
        [HANDSHAKE, 3, ..] => Kind::Handshake,
        // Some servers skip such a record and read on.
        [20..=24, 3, ..] => Kind::Wrong("a TLS record of another kind comes first"),
        // The 2-byte header of SSLv2 and its hello: no place for a name, and old servers still take it.
        [0x80..=0xff, _, 1, 0, 2, ..] | [0x80..=0xff, _, 1, 3, _, ..] => {
            Kind::Wrong("the hello has the form of SSLv2")
        }
        [0x80..=0xff] | [0x80..=0xff, _] | [0x80..=0xff, _, 1] | [0x80..=0xff, _, 1, 0 | 3] => Kind::Unclear,
        _ => Kind::Other,
    }
}

struct Record<'a> {
    payload: &'a [u8],
    /// With its header.
    whole: usize,
}

/// The handshake record that `bytes` begin with, once it is whole.
fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, &'static str> {
    match bytes {
        [] | [HANDSHAKE] => return Ok(None),
        [HANDSHAKE, 3, ..] => {}
        _ => return Err("another record comes before the end of the ClientHello"),
    }
    let [_, _, minor, high, low, rest @ ..] = bytes else { return Ok(None) };
    if *minor > 4 {
        return Err("the record has an unknown version");
    }
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if length == 0 || length > RECORD_MAX {
        return Err("the record has a length that is not allowed");
    }
    Ok(rest.get(..length).map(|payload| Record { payload, whole: length + 5 }))
}

/// The `ClientHello` that `bytes` begin with, once it is whole: its length with the header, and its body.
fn message(bytes: &[u8]) -> Result<Option<(usize, &[u8])>, &'static str> {
    let [kind, rest @ ..] = bytes else { return Ok(None) };
    if *kind != CLIENT_HELLO {
        return Err("the first handshake message is no ClientHello");
    }
    let [a, b, c, body @ ..] = rest else { return Ok(None) };
    let Ok(length) = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])) else { return Ok(None) };
    if length > HELLO_MAX {
        return Err("the ClientHello is too long");
    }
    Ok(body.get(..length).map(|body| (length + 4, body)))
}
