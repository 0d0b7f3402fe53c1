//! How a layer is compressed, and both ways of it.

use std::io::{self, BufRead, Read, Write};

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// By gzip, perhaps in several members.
    Gzip,
    /// By zstd, perhaps in several frames.
    Zstd,
}

/// Most memory that zstd may take for its window, as a power of two.
const WINDOW: u32 = 27;
/// Bytes that tell what something is.
pub const TELLING: usize = 4;

impl Compression {
    /// By how something begins, whatever it is called. `None` for a compression that layers do not have.
    pub fn of(start: &[u8]) -> Option<Compression> {
        match start {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            // A frame that is to be passed over.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', ..] => None,
            _ => Some(Compression::Plain),
        }
    }

    /// What was compressed.
    pub fn decode<'a>(self, from: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Compression::Plain => Box::new(from),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(from)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(from)?;
                decoder.window_log_max(WINDOW)?;
                Box::new(decoder)
            }
        })
    }
}

/// Compresses what is written to it. The same bytes come out of the same bytes.
pub enum Encoder<W: Write> {
    /// As it is.
    Plain(W),
    /// By gzip.
    Gzip(flate2::write::GzEncoder<W>),
    /// By zstd.
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> Encoder<W> {
    /// Into `to`. `level` is how hard it tries, in the words of the program it is of.
    pub fn new(to: W, compression: Compression, level: i32) -> io::Result<Encoder<W>> {
        Ok(match compression {
            Compression::Plain => Encoder::Plain(to),
            Compression::Gzip => {
                let level = flate2::Compression::new(u32::try_from(level.clamp(0, 9)).unwrap_or(6));
                // No name and no time in its header; the system is told as unknown.
                Encoder::Gzip(flate2::GzBuilder::new().operating_system(255).write(to, level))
            }
            Compression::Zstd => Encoder::Zstd(zstd::stream::write::Encoder::new(to, level)?),
        })
    }

    /// Writes the end.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Encoder::Plain(to) => Ok(to),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Encoder::Plain(to) => to.write(bytes),
            Encoder::Gzip(encoder) => encoder.write(bytes),
            Encoder::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Encoder::Plain(to) => to.flush(),
            Encoder::Gzip(encoder) => encoder.flush(),
            Encoder::Zstd(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compressed_in_several_members_comes_out_whole_and_is_told_by_its_start() {
        for compression in [Compression::Plain, Compression::Gzip, Compression::Zstd] {
            let member = |text: &str| {
                let mut encoder = Encoder::new(Vec::new(), compression, 3).unwrap();
                encoder.write_all(text.as_bytes()).unwrap();
                encoder.finish().unwrap()
            };
            let bytes = [member("one "), member("two")].concat();

            let mut text = String::new();
            compression.decode(bytes.as_slice()).unwrap().read_to_string(&mut text).unwrap();

            assert_eq!((text.as_str(), Compression::of(&bytes)), ("one two", Some(compression)));
        }
    }
}
