//! Frames of WebSocket (RFC 6455, 5.2): which bytes are payload, and how they are masked. Pure.

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    /// Compressed, or otherwise extended: no extension was agreed on.
    #[error("a frame uses an extension that was not agreed on")]
    Extended,
    /// A length that is none.
    #[error("a frame's length is none")]
    Length,
}

/// Follows the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: Vec<u8>,
    frame: Option<Frame>,
}

/// A frame whose head is read.
#[derive(Debug, Clone, Copy)]
struct Frame {
    left: u64,
    mask: [u8; 4],
    /// Bytes of its payload that were seen.
    seen: usize,
    is_control: bool,
    is_last: bool,
}

/// One byte, or an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Of a head: passed on as it is.
    Head(u8),
    /// Of the payload of a message, and what it is masked with.
    Data(u8, u8),
    /// Of the payload of a control frame.
    Control(u8, u8),
    /// A message has ended.
    MessageEnd,
    /// A control frame has ended.
    ControlEnd,
}

impl Frames {
    /// Tells what each byte of a piece is.
    pub(super) fn each(&mut self, piece: &[u8], mut see: impl FnMut(Seen)) -> Result<(), BadFrame> {
        for byte in piece {
            match &mut self.frame {
                None => {
                    see(Seen::Head(*byte));
                    self.head.push(*byte);
                    self.frame = read(&self.head)?;
                }
                Some(frame) => {
                    let mask = frame.mask.get(frame.seen % 4).copied().unwrap_or(0);
                    see(if frame.is_control { Seen::Control(*byte, mask) } else { Seen::Data(*byte, mask) });
                    frame.seen = frame.seen.wrapping_add(1);
                    frame.left -= 1;
                }
            }
            self.end_frame(&mut see);
        }
        Ok(())
    }

    fn end_frame(&mut self, see: &mut impl FnMut(Seen)) {
        let Some(frame) = self.frame.filter(|frame| frame.left == 0) else { return };
        self.frame = None;
        self.head.clear();
        match (frame.is_control, frame.is_last) {
            (true, _) => see(Seen::ControlEnd),
            (false, true) => see(Seen::MessageEnd),
            (false, false) => {}
        }
    }
}

/// A head that is whole.
fn read(head: &[u8]) -> Result<Option<Frame>, BadFrame> {
    let [first, second, rest @ ..] = head else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(BadFrame::Extended);
    }
    let (left, rest) = match (second & 0x7f, rest) {
        (126, [a, b, rest @ ..]) => (u64::from(u16::from_be_bytes([*a, *b])), rest),
        (127, [a, b, c, d, e, f, g, h, rest @ ..]) => {
            (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest)
        }
        (126 | 127, _) => return Ok(None),
        (length, rest) => (u64::from(length), rest),
    };
    if left > u64::MAX / 2 {
        return Err(BadFrame::Length);
    }
    let mask = match (second & 0x80, rest) {
        (0, _) => [0; 4],
        (_, [a, b, c, d]) => [*a, *b, *c, *d],
        _ => return Ok(None),
    };
    Ok(Some(Frame { left, mask, seen: 0, is_control: first & 0x08 != 0, is_last: first & 0x80 != 0 }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame with this first byte.
    pub(in crate::secrets) fn frame(first: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
        let bit = if mask.is_some() { 0x80 } else { 0 };
        let mut out = vec![first];
        match payload.len() {
            length @ 0..=125 => out.push(bit | u8::try_from(length).unwrap()),
            length @ 126..=65535 => {
                out.push(bit | 126);
                out.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            length => {
                out.push(bit | 127);
                out.extend((length as u64).to_be_bytes());
            }
        }
        out.extend(mask.unwrap_or_default().iter().take(if mask.is_some() { 4 } else { 0 }));
        let mask = mask.unwrap_or_default();
        out.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        out
    }

    fn payload(bytes: &[u8], chunk: usize) -> Result<Vec<u8>, BadFrame> {
        let (mut frames, mut out) = (Frames::default(), Vec::new());
        for piece in bytes.chunks(chunk) {
            frames.each(piece, |seen| {
                if let Seen::Data(byte, mask) = seen {
                    out.push(byte ^ mask);
                }
            })?;
        }
        Ok(out)
    }

    #[test]
    fn a_compressed_frame_is_refused() {
        assert_eq!(payload(&frame(0xc1, None, b"x"), 1), Err(BadFrame::Extended));
        assert_eq!(payload(&[0x82, 0x7f, 0xff, 0, 0, 0, 0, 0, 0, 0], 3), Err(BadFrame::Length));
    }

    proptest! {
        #[test]
        fn payloads_are_unmasked(
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
            mask: Option<[u8; 4]>,
            chunk in 1usize..200,
        ) {
            let bytes: Vec<u8> = texts.iter().flat_map(|text| frame(0x82, mask, text)).collect();
            prop_assert_eq!(payload(&bytes, chunk).unwrap(), texts.concat());
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300), chunk in 1usize..50) {
            let _ = payload(&bytes, chunk);
        }
    }
}
