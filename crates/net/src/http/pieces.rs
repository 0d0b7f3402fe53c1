//! The body of a message of HTTP/1, as it comes (RFC 9112, 7.1). Pure.

use super::line::reply::{self, Follows};
use bytes::BytesMut;
use http::HeaderMap;
use hyper::body::Bytes;

/// Longest line with a chunk's size.
const LONGEST_LINE: usize = 4096;
/// Most digits of a chunk's size.
const MOST_DIGITS: usize = 15;
/// Bytes of what may follow the sizes of chunks, of one answer.
const MOST_EXTRA: usize = 16 * 1024;
/// Bytes of trailers.
const LONGEST_TRAILERS: usize = 16 * 1024;

/// What is left of a body.
#[derive(Debug)]
pub(super) struct Pieces {
    state: State,
    /// Bytes of extensions that came.
    extra: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// So many bytes.
    Length(u64),
    /// Everything that comes.
    Rest,
    /// Before a chunk.
    Size,
    /// In a chunk of which so much is left.
    Chunk(u64),
    /// Behind a chunk.
    ChunkEnd,
    /// Behind the last chunk.
    Trailers,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Some of it; never empty.
    Data(Bytes),
    /// The last.
    Trailers(HeaderMap),
    /// It is over.
    Over,
    /// What is there is not enough.
    More,
}

impl Pieces {
    /// Behind a head.
    pub(super) fn new(follows: Follows) -> Pieces {
        let state = match follows {
            Follows::Length(length) => State::Length(length),
            Follows::Chunks => State::Size,
            Follows::Rest => State::Rest,
        };
        Pieces { state, extra: 0 }
    }

    /// Whether nothing of it is left.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Length(0)
    }

    /// Whether the end of the connection is its end.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.state == State::Rest
    }

    /// How many bytes are left, where that is known.
    pub(super) fn left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Nothing more is read of it.
    pub(super) fn end(&mut self) {
        self.state = State::Length(0);
    }

    /// Takes the next piece out of what was read.
    pub(super) fn next(&mut self, from: &mut BytesMut) -> Result<Next, &'static str> {
        loop {
            match self.state {
                State::Length(0) => return Ok(Next::Over),
                _ if from.is_empty() => return Ok(Next::More),
                State::Rest => return Ok(Next::Data(from.split().freeze())),
                State::Length(left) => {
                    let (data, left) = take(from, left);
                    self.state = State::Length(left);
                    return Ok(Next::Data(data));
                }
                State::Chunk(left) => {
                    let (data, left) = take(from, left);
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                    return Ok(Next::Data(data));
                }
                State::ChunkEnd => match from.get(..2) {
                    Some(b"\r\n") => {
                        let _ = from.split_to(2);
                        self.state = State::Size;
                    }
                    None if from.starts_with(b"\r") => return Ok(Next::More),
                    _ => return Err("a chunk does not end where its size says"),
                },
                State::Size => match self.size(from)? {
                    Some(0) => self.state = State::Trailers,
                    Some(size) => self.state = State::Chunk(size),
                    None => return Ok(Next::More),
                },
                State::Trailers => return self.trailers(from),
            }
        }
    }

    /// The size of the next chunk, if its line is there.
    fn size(&mut self, from: &mut BytesMut) -> Result<Option<u64>, &'static str> {
        let line = from.get(..from.len().min(LONGEST_LINE)).unwrap_or_default();
        let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
            return if from.len() >= LONGEST_LINE {
                Err("the line of a chunk's size is too long")
            } else {
                Ok(None)
            };
        };
        let line = from.split_to(end + 1);
        let line = line.strip_suffix(b"\r\n").ok_or("the line of a chunk's size has no end")?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (digits, rest) = line.split_at_checked(digits).unwrap_or_default();
        if digits.is_empty() || digits.len() > MOST_DIGITS {
            return Err("a chunk has no size");
        }
        if !matches!(rest.trim_ascii_start(), [] | [b';', ..]) || rest.contains(&b'\r') {
            return Err("behind a chunk's size is something else");
        }
        self.extra = self.extra.saturating_add(rest.len());
        if self.extra > MOST_EXTRA {
            return Err("too much is said beside the sizes of chunks");
        }
        let text = std::str::from_utf8(digits).unwrap_or_default();
        u64::from_str_radix(text, 16).map(Some).map_err(|_| "a chunk has no size")
    }

    fn trailers(&mut self, from: &mut BytesMut) -> Result<Next, &'static str> {
        if from.starts_with(b"\r\n") {
            let _ = from.split_to(2);
            self.end();
            return Ok(Next::Over);
        }
        let looked_at = from.get(..from.len().min(LONGEST_TRAILERS)).unwrap_or_default();
        match reply::end(looked_at, 0) {
            Some(end) => {
                let trailers = reply::trailers(&from.split_to(end).freeze())?;
                self.end();
                Ok(Next::Trailers(trailers))
            }
            None if from.len() >= LONGEST_TRAILERS => Err("its trailers are too long"),
            None => Ok(Next::More),
        }
    }
}

fn take(from: &mut BytesMut, left: u64) -> (Bytes, u64) {
    let here = usize::try_from(left).unwrap_or(usize::MAX).min(from.len());
    let taken = u64::try_from(here).unwrap_or(left);
    (from.split_to(here).freeze(), left.saturating_sub(taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The body, its trailers and what is left behind it; in pieces of so many bytes.
    fn read(follows: Follows, text: &[u8], piece: usize) -> Result<(Vec<u8>, usize, usize), &'static str> {
        let (mut pieces, mut from) = (Pieces::new(follows), BytesMut::new());
        let (mut body, mut count, mut sent) = (Vec::new(), 0, text.chunks(piece));
        loop {
            match pieces.next(&mut from)? {
                Next::Data(data) => body.extend(data),
                Next::Trailers(all) => count += all.len(),
                Next::Over => return Ok((body, count, from.len() + sent.map(<[u8]>::len).sum::<usize>())),
                Next::More => match sent.next() {
                    Some(more) => from.extend_from_slice(more),
                    None => return Err("cut"),
                },
            }
        }
    }

    #[test]
    fn chunks_are_put_together_wherever_they_are_cut() {
        let text = b"5\r\nhello\r\n6;a=b\r\n world\r\n00 \r\nx: y\r\nz: w\r\n\r\nHTTP";
        for piece in 1..text.len() {
            assert_eq!(read(Follows::Chunks, text, piece), Ok((b"hello world".to_vec(), 2, 4)), "{piece}");
        }
        assert_eq!(read(Follows::Chunks, b"0\r\n\r\n", 1), Ok((Vec::new(), 0, 0)));
        assert_eq!(read(Follows::Length(3), b"abcd", 2), Ok((b"abc".to_vec(), 0, 1)));
    }

    #[test]
    fn chunks_that_are_none_are_refused() {
        for text in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x5\r\nhello\r\n",
            "5\nhello\r\n",
            "5\r\nhello0\r\n\r\n",
            "5 5\r\nhello\r\n",
            "5;a\rb\r\nhello\r\n",
            "1234567890123456\r\n",
            "0\r\nno trailer\r\n\r\n",
            "0\r\n folded: x\r\n\r\n",
        ] {
            let refused = read(Follows::Chunks, text.as_bytes(), text.len());
            assert!(refused.is_err_and(|why| why != "cut"), "{text:?}");
        }
        let long = format!("1;{}\r\nx\r\n", "e".repeat(4000)).repeat(5);
        assert!(read(Follows::Chunks, long.as_bytes(), 100).is_err_and(|why| why != "cut"));
        let endless = "0\r\n".to_owned() + &"a: b\r\n".repeat(4000);
        assert_eq!(read(Follows::Chunks, endless.as_bytes(), 1000), Err("its trailers are too long"));
        assert!(read(Follows::Chunks, &[b'1'; 9000], 1000).is_err_and(|why| why != "cut"));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..20) {
            let _ = read(Follows::Chunks, &text, piece);
        }

        #[test]
        fn it_does_not_matter_where_chunks_are_cut(text in "[0-3a;\r\n]{0,40}", piece in 1usize..20) {
            let whole = read(Follows::Chunks, text.as_bytes(), text.len().max(1));
            prop_assert_eq!(read(Follows::Chunks, text.as_bytes(), piece), whole);
        }
    }
}
