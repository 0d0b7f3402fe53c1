//! Lines of a file with their hashes, in bounded memory, however long a line is.

use super::LONGEST_LINE;
use sha2::{Digest, Sha256};
use std::io::{self, BufRead};

/// SHA-256 in lower-case hex.
pub(super) type Hex = [u8; 64];

/// One whole line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Its bytes without the line end; the first [`LONGEST_LINE`] of them.
    pub(super) text: Vec<u8>,
    /// All its bytes, without the line end.
    pub(super) length: u64,
    /// Of all its bytes.
    pub(super) hash: Hex,
}

/// Reads lines; goes on where it stopped when the file has grown.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    begun: Vec<u8>,
    length: u64,
    hasher: Sha256,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(source: R) -> Lines<R> {
        Lines { source, begun: Vec::new(), length: 0, hasher: Sha256::new() }
    }

    /// The next line; `None` if no line end follows (yet).
    pub(super) fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
            let bytes = match self.source.fill_buf() {
                Ok([]) => return Ok(None),
                Ok(bytes) => bytes,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                Err(err) => return Err(err),
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
            self.hasher.update(piece);
            self.length += piece.len() as u64;
            let room = LONGEST_LINE.saturating_sub(self.begun.len());
            self.begun.extend(piece.iter().take(room));
            let used = piece.len() + usize::from(end.is_some());
            self.source.consume(used);
            if end.is_some() {
                return Ok(Some(self.finish()));
            }
        }
    }

    /// Bytes after the last line end.
    pub(super) fn unfinished(&self) -> u64 {
        self.length
    }

    /// What it reads from.
    pub(super) fn source(&self) -> &R {
        &self.source
    }

    fn finish(&mut self) -> Line {
        let length = std::mem::take(&mut self.length);
        let hash = hex(self.hasher.finalize_reset().as_slice());
        Line { text: std::mem::take(&mut self.begun), length, hash }
    }
}

/// SHA-256 of a line, in hex.
pub(super) fn hash(line: &[u8]) -> Hex {
    hex(Sha256::digest(line).as_slice())
}

/// Hex digits as text.
pub(super) fn as_text(hash: &Hex) -> &str {
    str::from_utf8(hash).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> Hex {
    let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    let mut hex = [b'0'; 64];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(bytes) {
        if let [high, low] = pair {
            (*high, *low) = (digit(byte >> 4), digit(byte & 15));
        }
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    #[test]
    fn the_hash_of_nothing_is_the_known_one() {
        let known = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(as_text(&hash(b"")), known);
    }

    #[test]
    fn an_endless_line_is_read_in_bounded_memory_and_still_hashed_whole() {
        let long = vec![b'x'; 5 * LONGEST_LINE];
        let mut lines = Lines::new(BufReader::new(long.as_slice().chain(b"\nlast".as_slice())));
        let line = lines.next_line().unwrap().unwrap();
        assert_eq!((line.text.len(), line.length), (LONGEST_LINE, long.len() as u64));
        assert_eq!(line.hash, hash(&long));
        assert_eq!(lines.next_line().unwrap(), None);
        assert_eq!(lines.unfinished(), 4);
    }

    use std::io::Read as _;

    proptest! {
        #[test]
        fn lines_are_those_of_the_text_whatever_the_pieces(text in proptest::collection::vec(any::<u8>(), 0..300), size in 1usize..20) {
            let mut lines = Lines::new(BufReader::with_capacity(size, text.as_slice()));
            let mut found = Vec::new();
            while let Some(line) = lines.next_line().unwrap() {
                prop_assert_eq!(line.hash, hash(&line.text));
                found.push(line.text);
            }
            let mut expected: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
            let rest = expected.pop().unwrap();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(lines.unfinished(), rest.len() as u64);
        }
    }
}
