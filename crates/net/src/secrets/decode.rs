//! Takes the encoding off a body, piece by piece, in bounded memory: gzip, deflate, br and zstd.
//!
//! What one piece becomes is bounded, so that a few bytes that stand for very many end the stream and not the keeper.

use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use std::io::{self, Write};
use zstd::stream::{raw, write, zio};

/// Most bytes that one piece may become.
const MOST_OF_A_PIECE: usize = 4 * 1024 * 1024;
/// Most encodings on top of each other.
const MOST_LAYERS: usize = 3;
/// The largest window of zstd that every decoder has to support, as a power of two (RFC 8878, 3.1.1.1.2).
const ZSTD_WINDOW: u32 = 23;

/// Why a body cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecoded {
    /// An encoding that we do not know.
    #[error("its encoding is not known here")]
    Unknown,
    /// It is not what its encoding says.
    #[error("it is not encoded as it says")]
    Broken,
    /// A piece became too large.
    #[error("a few of its bytes stand for more than {} MB", MOST_OF_A_PIECE / (1024 * 1024))]
    Bomb,
}

/// An encoding that can be taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// Takes one or more encodings off.
#[derive(Debug)]
pub(super) struct Decoder {
    layers: Vec<Layer>,
    /// A body without a byte is whole, whatever its encoding.
    has_begun: bool,
}

enum Layer {
    Gzip(Box<MultiGzDecoder<Sink>>),
    /// Which of the two kinds it is, its first byte tells.
    Deflate,
    Zlib(Box<ZlibDecoder<Sink>>),
    Raw(Box<DeflateDecoder<Sink>>),
    Brotli(Box<brotli_decompressor::DecompressorWriter<Sink>>),
    Zstd(Box<write::Decoder<'static, Sink>>),
}

/// What came out and nobody took yet.
#[derive(Debug, Default)]
struct Sink {
    out: Vec<u8>,
    is_full: bool,
}

impl Coding {
    fn parse(name: &str) -> Option<Coding> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Coding::Gzip,
            "deflate" => Coding::Deflate,
            "br" => Coding::Brotli,
            "zstd" => Coding::Zstd,
            _ => return None,
        })
    }
}

/// Whether an entry of `accept-encoding` is one that can be taken off again.
pub(super) fn is_known(entry: &str) -> bool {
    let name = entry.split(';').next().unwrap_or_default().trim();
    name.eq_ignore_ascii_case("identity") || Coding::parse(name).is_some()
}

impl Decoder {
    /// For a body with this `content-encoding`; `None` if it has none in truth.
    pub(super) fn new(encoding: &str) -> Result<Option<Decoder>, Undecoded> {
        let names = encoding.split(',').map(str::trim);
        let names: Vec<&str> =
            names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity")).collect();
        if names.len() > MOST_LAYERS {
            return Err(Undecoded::Unknown);
        }
        let mut layers = Vec::new();
        // The last one that is named was put on last.
        for name in names.into_iter().rev() {
            layers.push(Layer::new(Coding::parse(name).ok_or(Undecoded::Unknown)?)?);
        }
        Ok((!layers.is_empty()).then_some(Decoder { layers, has_begun: false }))
    }

    /// The next piece, decoded.
    pub(super) fn piece(&mut self, piece: &[u8]) -> Result<Vec<u8>, Undecoded> {
        self.has_begun |= !piece.is_empty();
        let mut text: Option<Vec<u8>> = None;
        for layer in &mut self.layers {
            text = Some(layer.piece(text.as_deref().unwrap_or(piece))?);
        }
        Ok(text.unwrap_or_default())
    }

    /// There is no more. A body that was cut off is an error.
    pub(super) fn end(&mut self) -> Result<Vec<u8>, Undecoded> {
        let mut text: Vec<u8> = Vec::new();
        if !self.has_begun {
            return Ok(text);
        }
        for layer in &mut self.layers {
            let mut out = layer.piece(&text)?;
            out.extend(layer.end()?);
            text = out;
        }
        Ok(text)
    }
}

impl Layer {
    fn new(coding: Coding) -> Result<Layer, Undecoded> {
        Ok(match coding {
            Coding::Gzip => Layer::Gzip(Box::new(MultiGzDecoder::new(Sink::default()))),
            Coding::Deflate => Layer::Deflate,
            Coding::Brotli => {
                Layer::Brotli(Box::new(brotli_decompressor::DecompressorWriter::new(Sink::default(), 4096)))
            }
            Coding::Zstd => Layer::Zstd(Box::new(zstd_decoder().map_err(|_| Undecoded::Broken)?)),
        })
    }

    fn piece(&mut self, piece: &[u8]) -> Result<Vec<u8>, Undecoded> {
        let Some(first) = piece.first() else { return Ok(Vec::new()) };
        if let Layer::Deflate = self {
            // RFC 1950, 2.2: a zlib header says method 8; servers send the raw form too.
            *self = match first & 0x0f {
                8 => Layer::Zlib(Box::new(ZlibDecoder::new(Sink::default()))),
                _ => Layer::Raw(Box::new(DeflateDecoder::new(Sink::default()))),
            };
        }
        let written =
            self.writer().map_or(Ok(()), |writer| writer.write_all(piece).and_then(|()| writer.flush()));
        self.taken(written)
    }

    fn end(&mut self) -> Result<Vec<u8>, Undecoded> {
        let ended = match self {
            Layer::Gzip(decoder) => decoder.try_finish(),
            Layer::Zlib(decoder) => decoder.try_finish(),
            Layer::Raw(decoder) => decoder.try_finish(),
            Layer::Brotli(decoder) => decoder.close(),
            Layer::Zstd(decoder) => decoder.flush(),
            Layer::Deflate => Ok(()),
        };
        self.taken(ended)
    }

    /// What came out, if all went well.
    fn taken(&mut self, result: io::Result<()>) -> Result<Vec<u8>, Undecoded> {
        let Some(sink) = self.sink() else { return Ok(Vec::new()) };
        match (sink.is_full, result) {
            (true, _) => Err(Undecoded::Bomb),
            (false, Err(_)) => Err(Undecoded::Broken),
            (false, Ok(())) => Ok(std::mem::take(&mut sink.out)),
        }
    }

    fn writer(&mut self) -> Option<&mut dyn Write> {
        Some(match self {
            Layer::Gzip(decoder) => decoder,
            Layer::Zlib(decoder) => decoder,
            Layer::Raw(decoder) => decoder,
            Layer::Brotli(decoder) => decoder,
            Layer::Zstd(decoder) => decoder,
            Layer::Deflate => return None,
        })
    }

    fn sink(&mut self) -> Option<&mut Sink> {
        Some(match self {
            Layer::Gzip(decoder) => decoder.get_mut(),
            Layer::Zlib(decoder) => decoder.get_mut(),
            Layer::Raw(decoder) => decoder.get_mut(),
            Layer::Brotli(decoder) => decoder.get_mut(),
            Layer::Zstd(decoder) => decoder.get_mut(),
            Layer::Deflate => return None,
        })
    }
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Layer")
    }
}

fn zstd_decoder() -> io::Result<write::Decoder<'static, Sink>> {
    let mut decoder = raw::Decoder::new()?;
    decoder.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(ZSTD_WINDOW))?;
    Ok(write::Decoder::with_writer(zio::Writer::new(Sink::default(), decoder)))
}

impl Write for Sink {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.out.len() + piece.len() > MOST_OF_A_PIECE {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.out.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `text` in this encoding.
    pub(in crate::secrets) fn encoded(coding: &str, text: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::default();
        match coding {
            "gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "raw" => {
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "zstd" => zstd::encode_all(text, 3).unwrap(),
            "br" => brotli_stored(text),
            _ => text.to_vec(),
        }
    }

    /// Brotli without compression (RFC 7932, 9.2): a window of 16 bits, blocks of at most 64 kB as they are, an empty last one.
    fn brotli_stored(text: &[u8]) -> Vec<u8> {
        let mut out = Bits::default();
        out.push(0, 1);
        for block in text.chunks(65536) {
            out.push(0, 1); // not the last
            out.push(0, 2); // a length of four half bytes
            out.push(u32::try_from(block.len() - 1).unwrap(), 16);
            out.push(1, 1); // as it is
            out.align();
            out.bytes.extend_from_slice(block);
        }
        out.push(3, 2); // the last, and empty
        out.bytes
    }

    #[derive(Default)]
    struct Bits {
        bytes: Vec<u8>,
        used: u32,
    }

    impl Bits {
        fn push(&mut self, value: u32, bits: u32) {
            for bit in 0..bits {
                if self.used.is_multiple_of(8) {
                    self.bytes.push(0);
                }
                *self.bytes.last_mut().unwrap() |=
                    u8::try_from((value >> bit) & 1).unwrap() << (self.used % 8);
                self.used += 1;
            }
        }

        fn align(&mut self) {
            self.used = 0;
        }
    }

    fn decoded(coding: &str, body: &[u8], chunk: usize) -> Result<Vec<u8>, Undecoded> {
        let mut decoder = Decoder::new(coding)?.unwrap();
        let mut out = Vec::new();
        for piece in body.chunks(chunk) {
            out.extend(decoder.piece(piece)?);
        }
        out.extend(decoder.end()?);
        Ok(out)
    }

    #[test]
    fn a_few_bytes_that_stand_for_very_many_end_the_stream() {
        let zeros = vec![0; 5 * 1024 * 1024];
        for coding in ["gzip", "deflate", "zstd"] {
            let body = encoded(coding, &zeros);
            assert_eq!(decoded(coding, &body, 1 << 20), Err(Undecoded::Bomb), "{coding}");
        }
    }

    #[test]
    fn what_arrives_can_be_read_before_the_end() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"data: one\n\n").unwrap();
        encoder.flush().unwrap();
        let first = std::mem::take(encoder.get_mut());

        let mut decoder = Decoder::new("gzip").unwrap().unwrap();

        assert_eq!(decoder.piece(&first).unwrap(), b"data: one\n\n");
    }

    #[test]
    fn two_encodings_are_taken_off_in_their_order() {
        let body = encoded("zstd", &encoded("gzip", b"hello"));

        assert_eq!(decoded("gzip, zstd", &body, 3).unwrap(), b"hello");
        assert!(Decoder::new("identity").unwrap().is_none());
        assert_eq!(Decoder::new("gzip, compress").unwrap_err(), Undecoded::Unknown);
        assert_eq!(Decoder::new("br,br,br,br").unwrap_err(), Undecoded::Unknown);
    }

    #[test]
    fn a_body_that_was_cut_off_is_told_from_a_whole_one() {
        for coding in ["gzip", "br"] {
            let body = encoded(coding, &[7; 5000]);
            assert_eq!(decoded(coding, &body[..body.len() - 2], 100), Err(Undecoded::Broken), "{coding}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_encoding_comes_off(text in prop::collection::vec(any::<u8>(), 0..3000), chunk in 1usize..700) {
            for coding in ["gzip", "deflate", "br", "zstd"] {
                prop_assert_eq!(&decoded(coding, &encoded(coding, &text), chunk).unwrap(), &text);
            }
            prop_assert_eq!(&decoded("deflate", &encoded("raw", &text), chunk).unwrap(), &text);
        }

        #[test]
        fn any_bytes_are_taken(body in prop::collection::vec(any::<u8>(), 0..500), chunk in 1usize..100) {
            for coding in ["gzip", "deflate", "br", "zstd"] {
                let _ = decoded(coding, &body, chunk);
            }
        }
    }
}
