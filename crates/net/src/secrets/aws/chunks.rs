//! Bodies that come in signed chunks: each chunk is signed anew, with the signature of the one before it inside.
//!
//! A chunk is `<size in hex>;chunk-signature=<signature>\r\n<bytes>\r\n`. Behind the last one, of size 0, there may be
//! trailers, the last of which signs the others. A signature stands before what it is made over, so a chunk is held whole.

use super::{
    read::Signed,
    sign::{NOTHING, SigningKey, sha256},
};
use crate::http::filter::{Change, Stop};
use hyper::body::Bytes;

/// Largest chunk: clients make them of 64 kB to 1 MB.
const MOST_OF_A_CHUNK: usize = 4 * 1024 * 1024;
/// Longest line before a chunk, or behind the last.
const LONGEST_LINE: usize = 8 * 1024;
/// Most bytes of trailers.
const MOST_TRAILERS: usize = 16 * 1024;
const SIGNATURE: &str = ";chunk-signature=";
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature:";

/// Signs the chunks of a body anew.
pub(super) struct Chunks {
    key: SigningKey,
    signed: Signed,
    /// The signature before the next.
    before: String,
    state: State,
    held: Vec<u8>,
    /// The size of the chunk that is held, as it was written.
    size: String,
    trailers: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The line before a chunk.
    Head,
    /// So many bytes of a chunk, and a line end.
    Chunk(usize),
    /// Lines behind the last chunk.
    Trailers,
    /// Nothing may follow.
    Done,
}

impl Chunks {
    /// `seed` is the signature of the head.
    pub(super) fn new(key: SigningKey, signed: Signed, seed: String) -> Chunks {
        let (held, size, trailers) = (Vec::new(), String::new(), String::new());
        Chunks { key, signed, before: seed, state: State::Head, held, size, trailers }
    }

    /// Takes one whole thing from the front of what is held; gives what goes on, or `None` if more has to come.
    fn step(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        match self.state {
            State::Head => self.line()?.map(|line| self.head(&line)).transpose(),
            State::Chunk(size) => Ok(self.chunk(size)),
            State::Trailers => self.line()?.map(|line| self.trailer(&line)).transpose(),
            State::Done if self.held.is_empty() => Ok(None),
            State::Done => Err(bad("there is more behind the last chunk")),
        }
    }

    /// A line, without its end.
    fn line(&mut self) -> Result<Option<String>, Stop> {
        let Some(end) = self.held.windows(2).position(|pair| pair == b"\r\n") else {
            return if self.held.len() > LONGEST_LINE { Err(bad("a line is too long")) } else { Ok(None) };
        };
        let mut line: Vec<u8> = self.held.drain(..end + 2).collect();
        line.truncate(end);
        String::from_utf8(line).map(Some).map_err(|_| bad("a line is no text"))
    }

    /// Nothing of a chunk goes on before it is whole, but for the last, which is empty.
    fn head(&mut self, line: &str) -> Result<Vec<u8>, Stop> {
        let (size, signature) = line.split_once(SIGNATURE).ok_or_else(|| bad("a chunk is not signed"))?;
        if signature.len() != NOTHING.len()
            || size.is_empty()
            || !size.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return Err(bad("a chunk does not begin as it should"));
        }
        let bytes = usize::from_str_radix(size, 16).ok().filter(|bytes| *bytes <= MOST_OF_A_CHUNK);
        let bytes = bytes.ok_or_else(|| bad("a chunk is too large"))?;
        if bytes == 0 {
            self.state = State::Trailers;
            return Ok(self.signed_head(size, b""));
        }
        self.state = State::Chunk(bytes);
        // The line is written when the chunk is there.
        size.clone_into(&mut self.size);
        Ok(Vec::new())
    }

    fn chunk(&mut self, size: usize) -> Option<Vec<u8>> {
        if self.held.len() < size + 2 {
            return None;
        }
        let chunk: Vec<u8> = self.held.drain(..size + 2).collect();
        let size_written = std::mem::take(&mut self.size);
        self.state = State::Head;
        let mut out = self.signed_head(&size_written, chunk.get(..size).unwrap_or_default());
        out.extend_from_slice(&chunk);
        Some(out)
    }

    fn signed_head(&mut self, size: &str, chunk: &[u8]) -> Vec<u8> {
        let hash = sha256(chunk);
        self.before = self.sign("PAYLOAD", &format!("{NOTHING}\n{hash}"));
        format!("{size}{SIGNATURE}{}\r\n", self.before).into_bytes()
    }

    /// An empty line ends the body.
    fn trailer(&mut self, line: &str) -> Result<Vec<u8>, Stop> {
        if line.is_empty() {
            self.state = State::Done;
            return Ok(b"\r\n".to_vec());
        }
        if line.strip_prefix(TRAILER_SIGNATURE).is_some() {
            let hash = sha256(self.trailers.as_bytes());
            return Ok(format!("{TRAILER_SIGNATURE}{}\r\n", self.sign("TRAILER", &hash)).into_bytes());
        }
        if self.trailers.len() + line.len() > MOST_TRAILERS {
            return Err(bad("there are too many trailers"));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| bad("a trailer is none"))?;
        self.trailers.push_str(&format!("{}:{}\n", name.trim().to_ascii_lowercase(), value.trim()));
        Ok(format!("{line}\r\n").into_bytes())
    }

    fn sign(&self, what: &str, rest: &str) -> String {
        let Signed { stamp, scope, .. } = &self.signed;
        let before = &self.before;
        self.key.text(&format!("AWS4-HMAC-SHA256-{what}\n{stamp}\n{}\n{before}\n{rest}", scope.words()))
    }
}

impl Change for Chunks {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        self.held.extend_from_slice(&piece);
        let mut out = Vec::new();
        while let Some(part) = self.step()? {
            out.extend_from_slice(&part);
        }
        Ok(out.into())
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        match self.state == State::Done {
            true => Ok(Bytes::new()),
            false => Err(bad("it ends in the middle")),
        }
    }

    fn keeps_length(&self) -> bool {
        true
    }
}

fn bad(why: &str) -> Stop {
    Stop::Failed(format!("the chunks of this body cannot be signed anew: {why}"))
}
