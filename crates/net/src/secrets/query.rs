//! Percent-decoding that remembers where each byte came from, so that a part can be replaced without touching the rest. Pure.

/// A decoded text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decoded {
    pub(super) bytes: Vec<u8>,
    /// Where each byte begins in the text it came from; and the end of that text.
    places: Vec<usize>,
}

impl Decoded {
    /// Decodes every whole `%XX`; anything else stands for itself.
    pub(super) fn new(text: &str) -> Decoded {
        let text = text.as_bytes();
        let (mut bytes, mut places) = (Vec::with_capacity(text.len()), Vec::with_capacity(text.len() + 1));
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            places.push(at);
            match escaped(text.get(at..at + 3)) {
                Some(decoded) => {
                    bytes.push(decoded);
                    at += 3;
                }
                None => {
                    bytes.push(*byte);
                    at += 1;
                }
            }
        }
        places.push(text.len());
        Decoded { bytes, places }
    }

    /// Where a byte begins in the text it came from.
    pub(super) fn place(&self, at: usize) -> usize {
        self.places.get(at).or(self.places.last()).copied().unwrap_or(0)
    }
}

fn escaped(text: Option<&[u8]>) -> Option<u8> {
    let [b'%', high, low] = text? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

/// The part of a query that holds the byte at `at`: the name of its parameter.
pub(super) fn parameter(query: &str, at: usize) -> &str {
    let start = query.get(..at).and_then(|before| before.rfind('&')).map_or(0, |amp| amp + 1);
    let rest = query.get(start..).unwrap_or_default();
    rest.split(['&', '=']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_lead_back() {
        let decoded = Decoded::new("a=%73k%2");

        assert_eq!(decoded.bytes, b"a=sk%2");
        assert_eq!([2, 3, 4, 6].map(|at| decoded.place(at)), [2, 5, 6, 8]);
        assert_eq!(parameter("a=1&key=xyz&b=2", 9), "key");
        assert_eq!(parameter("key=xyz", 5), "key");
    }

    proptest! {
        #[test]
        fn any_text_is_decoded(text in ".{0,60}") {
            let decoded = Decoded::new(&text);
            prop_assert!(decoded.bytes.len() <= text.len());
            prop_assert_eq!(decoded.place(decoded.bytes.len()), text.len());
        }
    }
}
