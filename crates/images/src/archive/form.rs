//! How a whole archive is compressed, and both ways of it.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Read, Write},
    rc::Rc,
    str::FromStr,
};

use airlock_files::layers::compression::{self, Compression};
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use thiserror::Error;

/// How an archive is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As layers are, or not at all.
    Layer(Compression),
    /// By bzip2.
    Bzip2,
    /// By xz.
    Xz,
}

/// Why a word is no form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("archives are compressed by gzip, bzip2, xz or zstd, or by none")]
pub struct ParseFormError;

/// Most memory that xz may take to decompress, in KiB: what `xz -9` needs, and room.
const XZ_MEMORY: u32 = 100 << 10;
/// Any archive may become as large as this, and a large one so many times larger than it is: what is beyond is a bomb.
const ALWAYS: u64 = 4 << 30;
const TIMES: u64 = 200;
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

impl Form {
    /// By how something begins.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [b'B', b'Z', b'h', ..] => Self::Bzip2,
            [0xfd, b'7', b'z', b'X', ..] => Self::Xz,
            start => Self::Layer(Compression::of(start).unwrap_or(Compression::Plain)),
        }
    }

    /// What was compressed, whatever it was compressed by. What would become a bomb ends with an error.
    pub fn decode<'a>(from: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
        let taken = Rc::new(Cell::new(0));
        let mut counted = Counted { from: BufReader::with_capacity(PIECE, from), taken: Rc::clone(&taken) };
        let decoder: Box<dyn Read + 'a> = match Self::of(counted.peek()?) {
            Self::Layer(Compression::Plain) => return Ok(Box::new(counted)),
            Self::Layer(compression) => compression.decode(counted)?,
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(counted)),
            Self::Xz => Box::new(XzReader::new_mem_limit(counted, true, XZ_MEMORY)),
        };
        let plain = Bounded { from: decoder, bytes: 0, taken };
        Ok(Box::new(BufReader::with_capacity(PIECE, plain)))
    }

    /// Writes what `fill` writes to `to`, compressed.
    pub fn encode<W: Write>(
        self,
        to: W,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<W> {
        match self {
            Self::Layer(compression) => {
                let level = if compression == Compression::Zstd { 3 } else { 6 };
                let mut encoder = compression::Encoder::new(to, compression, level)?;
                fill(&mut encoder)?;
                encoder.finish()
            }
            Self::Bzip2 => {
                let mut encoder = bzip2::write::BzEncoder::new(to, bzip2::Compression::best());
                fill(&mut encoder)?;
                encoder.finish()
            }
            Self::Xz => {
                let mut encoder = XzWriter::new(to, XzOptions::with_preset(6))?;
                fill(&mut encoder)?;
                encoder.finish()
            }
        }
    }
}

impl FromStr for Form {
    type Err = ParseFormError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::Layer(Compression::Plain)),
            "gzip" => Ok(Self::Layer(Compression::Gzip)),
            "zstd" => Ok(Self::Layer(Compression::Zstd)),
            "bzip2" => Ok(Self::Bzip2),
            "xz" => Ok(Self::Xz),
            _ => Err(ParseFormError),
        }
    }
}

/// Counts what is taken from it.
struct Counted<R> {
    from: R,
    taken: Rc<Cell<u64>>,
}

impl<R: BufRead> Counted<R> {
    /// Its first bytes, as many as came at once.
    fn peek(&mut self) -> io::Result<&[u8]> {
        while let Err(err) = self.from.fill_buf() {
            if err.kind() != io::ErrorKind::Interrupted {
                return Err(err);
            }
        }
        self.from.fill_buf()
    }

    fn count(&self, more: usize) {
        self.taken.set(self.taken.get().saturating_add(u64::try_from(more).unwrap_or(0)));
    }
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.count(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.from.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.count(count);
        self.from.consume(count);
    }
}

/// Ends what becomes larger than its bound, which grows with what went in.
struct Bounded<R> {
    from: R,
    bytes: u64,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.bytes = self.bytes.saturating_add(u64::try_from(count).unwrap_or(0));
        if self.bytes > ALWAYS.saturating_add(self.taken.get().saturating_mul(TIMES)) {
            let why = "it becomes far larger than any image when it is decompressed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(count)
    }
}
