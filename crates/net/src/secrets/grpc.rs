//! Where messages of gRPC end in a body: nothing is kept back beyond that, since whoever waits for a message sends no more
//! before it is answered. Pure.

/// The bytes before each message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// Follows the messages of a body.
#[derive(Debug, Default)]
pub(super) struct Messages {
    head: Vec<u8>,
    left: usize,
}

impl Messages {
    /// The parts of a piece: where each begins and ends, and whether a message ends with it.
    pub(super) fn parts(&mut self, piece: &[u8]) -> Vec<(usize, usize, bool)> {
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < piece.len() {
            let start = at;
            at += self.step(piece.get(at..).unwrap_or_default());
            parts.push((start, at, self.left == 0 && self.head.is_empty()));
        }
        parts
    }

    /// The rest of a head, or of a message.
    fn step(&mut self, rest: &[u8]) -> usize {
        if self.left > 0 {
            let taken = self.left.min(rest.len());
            self.left -= taken;
            return taken;
        }
        let taken = (HEAD - self.head.len().min(HEAD)).min(rest.len());
        self.head.extend_from_slice(rest.get(..taken).unwrap_or_default());
        if let [_, a, b, c, d] = self.head.as_slice() {
            self.left = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
            self.head.clear();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_ends_where_its_length_says() {
        let mut messages = Messages::default();

        assert_eq!(messages.parts(b"\0\0\0\0\x02ab\0\0\0\0\0"), [(0, 5, false), (5, 7, true), (7, 12, true)]);
        assert_eq!(messages.parts(b"\0\0\0"), [(0, 3, false)]);
        assert_eq!(messages.parts(b"\0\x03a"), [(0, 2, false), (2, 3, false)]);
        assert_eq!(messages.parts(b"bc"), [(0, 2, true)]);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_part(body in prop::collection::vec(0u8..4, 0..200), chunk in 1usize..20) {
            let mut messages = Messages::default();
            for piece in body.chunks(chunk) {
                let parts = messages.parts(piece);
                prop_assert_eq!(parts.iter().map(|(start, end, _)| end - start).sum::<usize>(), piece.len());
                prop_assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0));
            }
        }
    }
}
