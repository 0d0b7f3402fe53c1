//! Length-prefixed frames on a byte stream that may also carry descriptors.
//!
//! A frame is a header of 8 bytes and a body: body length (u32, big-endian), kind (u8), number of descriptors
//! that came with it (u8), stream number (u16, big-endian; 0 for messages). Messages are JSON; data frames carry
//! bytes of a terminal or pipe. Whoever reads is fed whatever arrived and takes whole frames out.
//!
//! ```
//! use airlock_protocol::frame::{Decoder, Frame};
//! let bytes = Frame::data(3, b"hello").encode();
//! let mut decoder = Decoder::default();
//! decoder.feed(&bytes[..5]);
//! assert!(decoder.next()?.is_none());
//! decoder.feed(&bytes[5..]);
//! assert_eq!(decoder.next()?, Some(Frame::data(3, b"hello")));
//! # Ok::<(), airlock_protocol::frame::Malformed>(())
//! ```

use serde::{Serialize, de::DeserializeOwned};

/// Longest body a reader accepts. Bounds memory against a hostile peer.
pub const MAX_BODY: usize = 1 << 20;
/// Most descriptors one frame may carry.
pub const MAX_DESCRIPTORS: u8 = 8;
const HEADER: usize = 8;

/// One unit on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the body is.
    pub kind: Kind,
    /// How many descriptors travel with it.
    pub descriptors: u8,
    /// Which stream a data frame belongs to.
    pub stream: u16,
    /// The payload.
    pub body: Vec<u8>,
}

/// What a frame's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A JSON message.
    Message,
    /// Bytes of a stream.
    Data,
}

/// Bytes that are not frames, or a body that is not the message expected. The connection is of no further use.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// The announced body is longer than [`MAX_BODY`].
    #[error("frame of {0} bytes is over the limit of {MAX_BODY}")]
    TooLong(usize),
    /// A kind of frame that does not exist.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// More descriptors than [`MAX_DESCRIPTORS`].
    #[error("frame with {0} descriptors is over the limit of {MAX_DESCRIPTORS}")]
    Descriptors(u8),
    /// A data frame where a message was due.
    #[error("data frame where a message was due")]
    NotMessage,
    /// A message of another shape.
    #[error("unreadable message")]
    Json(#[source] serde_json::Error),
}

impl Frame {
    /// A message with `descriptors` travelling along. Fails only if the value cannot be written as JSON.
    pub fn message<T: Serialize>(value: &T, descriptors: u8) -> Result<Frame, Malformed> {
        let body = serde_json::to_vec(value).map_err(Malformed::Json)?;
        if body.len() > MAX_BODY {
            return Err(Malformed::TooLong(body.len()));
        }
        Ok(Frame { kind: Kind::Message, descriptors, stream: 0, body })
    }

    /// Bytes of `stream`; the caller keeps pieces below [`MAX_BODY`].
    pub fn data(stream: u16, bytes: &[u8]) -> Frame {
        Frame { kind: Kind::Data, descriptors: 0, stream, body: bytes.to_vec() }
    }

    /// The message in the body.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Malformed> {
        match self.kind {
            Kind::Message => serde_json::from_slice(&self.body).map_err(Malformed::Json),
            Kind::Data => Err(Malformed::NotMessage),
        }
    }

    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        let kind = match self.kind {
            Kind::Message => 0,
            Kind::Data => 1,
        };
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&[kind, self.descriptors]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Collects what arrives and gives out whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Adds bytes as they arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more has been fed.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and more may be fed after None")]
    pub fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, d, kind, descriptors, e, f] = *header;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MAX_BODY {
            return Err(Malformed::TooLong(length));
        }
        if descriptors > MAX_DESCRIPTORS {
            return Err(Malformed::Descriptors(descriptors));
        }
        let kind = match kind {
            0 => Kind::Message,
            1 => Kind::Data,
            other => return Err(Malformed::Kind(other)),
        };
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { kind, descriptors, stream: u16::from_be_bytes([e, f]), body: body.to_vec() };
        self.taken += HEADER + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(decoder: &mut Decoder) -> Vec<Frame> {
        std::iter::from_fn(|| decoder.next().unwrap()).collect()
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_the_body_arrives() {
        let mut decoder = Decoder::default();
        decoder.feed(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert!(matches!(decoder.next(), Err(Malformed::TooLong(_))));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            bodies in proptest::collection::vec((any::<u16>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
            cut in 1usize..50,
        ) {
            let frames: Vec<Frame> = bodies.iter().map(|(stream, body)| Frame::data(*stream, body)).collect();
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.feed(piece);
                seen.extend(drain(&mut decoder));
            }
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
