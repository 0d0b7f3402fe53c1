//! The bytes of one file in memory: only what was written takes room.

use std::collections::BTreeMap;

/// Bytes of a whole piece.
const PIECE: u64 = 64 << 10;
/// Room is taken in such steps, so that what is counted is near what is used.
const STEP: usize = 512;
/// What a piece costs besides its bytes.
const PIECE_COST: u64 = 64;

/// Sparse bytes. What lies beyond a piece's length reads as zeros.
#[derive(Debug, Default)]
pub(super) struct Content {
    pieces: BTreeMap<u64, Vec<u8>>,
    size: u64,
    cost: u64,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory it takes.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Appends what is there to `into`.
    pub(super) fn read(&self, offset: u64, size: usize, into: &mut Vec<u8>) {
        let end = self.size.min(offset.saturating_add(size as u64));
        let mut at = offset;
        while at < end {
            let (index, within) = (at / PIECE, at % PIECE);
            let count = (PIECE - within).min(end - at);
            let (from, count) = (to_usize(within), to_usize(count));
            let there = self.pieces.get(&index).and_then(|piece| piece.get(from..)).unwrap_or_default();
            let there = there.get(..count).unwrap_or(there);
            into.extend_from_slice(there);
            into.resize(into.len() + (count - there.len()), 0);
            at += count as u64;
        }
    }

    /// How much more memory a write would take.
    pub(super) fn growth(&self, offset: u64, length: u64) -> u64 {
        let end = offset.saturating_add(length);
        let (mut at, mut more) = (offset, 0u64);
        while at < end {
            let (index, within) = (at / PIECE, at % PIECE);
            let count = (PIECE - within).min(end - at);
            let has = self.pieces.get(&index).map(Vec::len);
            let wants = stepped(to_usize(within + count)).max(has.unwrap_or(0));
            more = more.saturating_add(piece_cost(wants) - has.map_or(0, piece_cost));
            at += count;
        }
        more
    }

    /// Writes; the caller has counted the growth.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (index, within) = (at / PIECE, at % PIECE);
            let count = to_usize(PIECE - within).min(rest.len());
            let (now, later) = rest.split_at(count);
            self.piece(index, within, count).copy_from_slice(now);
            at += count as u64;
            rest = later;
        }
        self.size = self.size.max(at);
    }

    /// A part of a piece, made if it is not there.
    fn piece(&mut self, index: u64, within: u64, count: usize) -> &mut [u8] {
        let from = to_usize(within);
        let is_new = !self.pieces.contains_key(&index);
        let piece = self.pieces.entry(index).or_default();
        self.cost += if is_new { PIECE_COST } else { 0 };
        if piece.len() < from + count {
            let more = stepped(from + count) - piece.len();
            piece.reserve_exact(more);
            piece.resize(piece.len() + more, 0);
            self.cost += more as u64;
        }
        piece.get_mut(from..from + count).unwrap_or_default()
    }

    /// Cuts or grows.
    pub(super) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.clear(size, self.size);
            let gone = self.pieces.split_off(&size.div_ceil(PIECE));
            self.cost -= gone.values().map(|piece| piece_cost(piece.len())).sum::<u64>();
        }
        self.size = size;
    }

    /// Grows to at least `size`.
    pub(super) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Makes the range zeros; whole pieces go.
    pub(super) fn clear(&mut self, from: u64, to: u64) {
        let indices: Vec<u64> = match from / PIECE <= to / PIECE {
            true => self.pieces.range(from / PIECE..=to / PIECE).map(|(index, _)| *index).collect(),
            false => Vec::new(),
        };
        for index in indices {
            let start = index * PIECE;
            let (first, last) = (from.max(start) - start, to.min(start + PIECE).saturating_sub(start));
            if first == 0 && last >= PIECE.min(self.size.saturating_sub(start)) {
                let gone = self.pieces.remove(&index);
                self.cost -= gone.map_or(0, |piece| piece_cost(piece.len()));
            } else if let Some(piece) = self.pieces.get_mut(&index) {
                let last = to_usize(last).min(piece.len());
                piece.get_mut(to_usize(first)..last).unwrap_or_default().fill(0);
            }
        }
    }

    /// The next byte from `offset` on that has memory.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let holds = |(index, piece): (&u64, &Vec<u8>)| {
            let (start, end) = (index * PIECE, index * PIECE + piece.len() as u64);
            (end > offset).then_some(start.max(offset))
        };
        self.pieces.range(offset / PIECE..).find_map(holds).filter(|at| *at < self.size)
    }

    /// The next byte from `offset` on that has no memory; the size, if there is none before.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        while at < self.size {
            let Some(piece) = self.pieces.get(&(at / PIECE)) else { return at };
            if at % PIECE >= piece.len() as u64 {
                return at;
            }
            let end = (at / PIECE) * PIECE + piece.len() as u64;
            if !end.is_multiple_of(PIECE) {
                return end.min(self.size);
            }
            at = end;
        }
        self.size
    }
}

fn piece_cost(length: usize) -> u64 {
    length as u64 + PIECE_COST
}

fn stepped(length: usize) -> usize {
    // Small files exactly, so that many of them cost little; others grow in doubling steps up to a whole piece.
    match length {
        0..=STEP => length.next_multiple_of(64),
        _ => length.next_power_of_two().min(length.next_multiple_of(8 << 10)),
    }
}

/// Offsets within a piece always fit.
fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Resize(u64),
        Clear(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let offset = 0..200_000u64;
        let write = (offset.clone(), prop::collection::vec(any::<u8>(), 0..70_000))
            .prop_map(|(at, bytes)| Step::Write(at, bytes));
        let clear = (offset.clone(), 0..100_000u64).prop_map(|(from, count)| Step::Clear(from, from + count));
        prop::collection::vec(prop_oneof![write, offset.prop_map(Step::Resize), clear], 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_holds_what_a_plain_array_would(steps in steps()) {
            let place = |at: u64| usize::try_from(at).unwrap();
            let (mut content, mut model) = (Content::default(), Vec::<u8>::new());
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let before = content.cost();
                        let growth = content.growth(at, bytes.len() as u64);
                        content.write(at, &bytes);
                        prop_assert_eq!(content.cost(), before + growth);
                        let end = place(at) + bytes.len();
                        if !bytes.is_empty() && model.len() < end { model.resize(end, 0); }
                        if !bytes.is_empty() { model[place(at)..end].copy_from_slice(&bytes); }
                    }
                    Step::Resize(size) => { content.resize(size); model.resize(place(size), 0); }
                    Step::Clear(from, to) => {
                        content.clear(from, to);
                        let end = place(to).min(model.len());
                        if place(from) < end { model[place(from)..end].fill(0); }
                    }
                }
                prop_assert_eq!(content.size(), model.len() as u64);
            }
            let mut read = Vec::new();
            content.read(0, model.len() + 10, &mut read);
            prop_assert!(read == model);
        }
    }

    #[test]
    fn holes_cost_nothing_and_are_found() {
        let mut content = Content::default();
        content.write(10 << 20, b"x");
        assert!(content.cost() < 1024);
        assert_eq!(content.next_data(0), Some(10 << 20));
        assert_eq!(content.next_hole(0), 0);
        assert_eq!(content.next_data((10 << 20) + 100_000), None);
    }
}
