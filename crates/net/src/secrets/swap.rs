//! Puts texts in place of others in a stream, whatever pieces it comes in. Pure.

use super::table::{Found, Needles};
use hyper::body::Bytes;

/// The end of what came so far that may be the beginning of a text.
#[derive(Debug, Default)]
pub(super) struct Swap {
    kept: Vec<u8>,
}

impl Swap {
    /// The next piece; gives what can go on. `instead` tells what to put in place of what was found.
    pub(super) fn push<E>(
        &mut self,
        needles: &Needles,
        piece: Bytes,
        instead: impl FnMut(Found) -> Result<Vec<u8>, E>,
    ) -> Result<Bytes, E> {
        if self.kept.is_empty() && needles.find(&piece, 0).is_none() {
            let held = needles.held(&piece, 0);
            self.kept.extend_from_slice(piece.get(held..).unwrap_or_default());
            return Ok(piece.slice(..held));
        }
        let mut text = std::mem::take(&mut self.kept);
        text.extend_from_slice(&piece);
        let (out, held) = swapped(needles, &text, End::Open, instead)?;
        self.kept = text.split_off(held);
        Ok(out.into())
    }

    /// What was kept back cannot become longer: the end of the stream, or of a message in it.
    pub(super) fn flush<E>(
        &mut self,
        needles: &Needles,
        instead: impl FnMut(Found) -> Result<Vec<u8>, E>,
    ) -> Result<Bytes, E> {
        let text = std::mem::take(&mut self.kept);
        if text.is_empty() {
            return Ok(Bytes::new());
        }
        swapped(needles, &text, End::Closed, instead).map(|(out, _)| out.into())
    }
}

/// The whole of a text, swapped; `None` if nothing was found.
pub(super) fn whole<E>(
    needles: &Needles,
    text: &[u8],
    instead: impl FnMut(Found) -> Result<Vec<u8>, E>,
) -> Result<Option<Vec<u8>>, E> {
    if needles.find(text, 0).is_none() {
        return Ok(None);
    }
    swapped(needles, text, End::Closed, instead).map(|(out, _)| Some(out))
}

/// Whether a text may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Closed,
}

/// What can go on, and how much of `text` that stands for.
fn swapped<E>(
    needles: &Needles,
    text: &[u8],
    end: End,
    mut instead: impl FnMut(Found) -> Result<Vec<u8>, E>,
) -> Result<(Vec<u8>, usize), E> {
    let held_from = |at| if end == End::Open { needles.held(text, at) } else { text.len() };
    let mut out = Vec::with_capacity(text.len());
    let (mut at, mut held) = (0, held_from(0));
    while let Some(found) = needles.find(text, at).filter(|found| found.start < held) {
        out.extend_from_slice(text.get(at..found.start).unwrap_or_default());
        out.extend_from_slice(&instead(found)?);
        at = found.end;
        if at > held {
            held = held_from(at);
        }
    }
    out.extend_from_slice(text.get(at..held).unwrap_or_default());
    Ok((out, held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn swap(texts: &[&str], pieces: &[&[u8]]) -> Vec<u8> {
        let needles =
            Needles::new(&texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>()).unwrap();
        let instead = |found: Found| Ok::<_, Infallible>(vec![b'*'; found.end - found.start]);
        let mut swap = Swap::default();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&swap.push(&needles, Bytes::copy_from_slice(piece), instead).unwrap());
        }
        out.extend_from_slice(&swap.flush(&needles, instead).unwrap());
        out
    }

    #[test]
    fn a_text_in_one_byte_pieces_is_found() {
        let pieces: Vec<&[u8]> = b"one secret-value two".chunks(1).collect();

        assert_eq!(swap(&["secret-value"], &pieces), b"one ************ two");
    }

    #[test]
    fn an_event_is_not_kept_back() {
        let needles = Needles::new(&[b"secret-value".to_vec()]).unwrap();
        let mut swap = Swap::default();
        let piece = Bytes::from_static(b"data: {}\n\n");

        let out = swap.push(&needles, piece.clone(), |_| Ok::<_, Infallible>(Vec::new())).unwrap();

        assert_eq!(out, piece);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            texts in prop::collection::vec("[ab]{2,6}", 1..4),
            text in "[abc]{0,60}",
            cuts in prop::collection::vec(1usize..9, 0..60),
        ) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(swap(&texts, &pieces), swap(&texts, &[text.as_bytes()]));
        }

        #[test]
        fn nothing_that_was_looked_for_comes_out(text in "[abs]{0,40}", chunk in 1usize..7) {
            let whole = format!("{text}sasabs{text}");
            let out = swap(&["sasabs"], &whole.as_bytes().chunks(chunk).collect::<Vec<_>>());
            prop_assert!(!out.windows(6).any(|six| six == b"sasabs"));
            prop_assert_eq!(out.len(), whole.len());
        }
    }
}
