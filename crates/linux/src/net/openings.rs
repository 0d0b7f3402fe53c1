//! Which elements of the kernel's sets stand for a list of openings. Pure.
//!
//! The kernel refuses elements that overlap. Prefixes lie in each other or apart, so each prefix only says what no
//! shorter one around it has said: its ports without theirs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Destinations that reach the listener: every address of a prefix, at ports from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opening {
    /// An address of the prefix.
    pub address: IpAddr,
    /// How many leading bits count.
    pub prefix: u8,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// A box of addresses and ports, both ends included. For IPv4 the addresses are the low 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) addresses: (u128, u128),
    pub(super) ports: (u16, u16),
}

/// All openings of one address family.
#[derive(Debug, Default)]
pub(super) struct Openings {
    prefixes: BTreeMap<Prefix, BTreeSet<(u16, u16)>>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<u8, usize>,
}

/// What the kernel has to be told.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) remove: Vec<Span>,
    pub(super) add: Vec<Span>,
}

/// Something was opened or closed, or should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Open(Prefix, (u16, u16)),
    Close(Prefix, (u16, u16)),
}

/// First address, then number of leading bits of 128 that count: an enclosing prefix sorts before what it encloses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Prefix(u128, u8);

/// Leading bits that every IPv4 address has when it is written in 128.
const V4_LEADING: u8 = 96;

impl Opening {
    /// Its prefix and ports; `None` if it makes no sense.
    pub(super) fn parts(&self) -> Option<(Prefix, (u16, u16))> {
        let (address, bits) = match self.address {
            IpAddr::V4(address) if self.prefix <= 32 => (address.to_bits().into(), self.prefix + V4_LEADING),
            IpAddr::V6(address) if self.prefix <= 128 => (address.to_bits(), self.prefix),
            _ => return None,
        };
        (self.first <= self.last).then_some((Prefix::of(address, bits), (self.first, self.last)))
    }
}

impl Prefix {
    fn of(address: u128, bits: u8) -> Prefix {
        Prefix(address & !low_bits(bits), bits)
    }

    fn last(self) -> u128 {
        self.0 | low_bits(self.1)
    }
}

/// Ones where a prefix of this length has none.
fn low_bits(bits: u8) -> u128 {
    u128::MAX.checked_shr(bits.into()).unwrap_or(0)
}

impl Openings {
    /// Makes the changes. Gives back what the kernel has to be told, and the changes that undo them.
    pub(super) fn apply(&mut self, changes: &[Change]) -> (Difference, Vec<Change>) {
        let touched: BTreeSet<Prefix> = changes.iter().map(Change::prefix).collect();
        let affected = |openings: &Openings| {
            touched.iter().flat_map(|prefix| openings.spans_within(*prefix)).collect::<BTreeSet<Span>>()
        };
        let before = affected(self);
        let mut undo: Vec<Change> = changes.iter().filter_map(|change| self.make(*change)).collect();
        undo.reverse();
        let after = affected(self);
        let difference = Difference {
            remove: before.difference(&after).copied().collect(),
            add: after.difference(&before).copied().collect(),
        };
        (difference, undo)
    }

    /// Every opening there is, as changes that close it.
    pub(super) fn close_all(&self) -> Vec<Change> {
        let each = self.prefixes.iter();
        each.flat_map(|(prefix, ports)| ports.iter().map(|ports| Change::Close(*prefix, *ports))).collect()
    }

    /// Makes one change; gives back what undoes it, if it changed anything.
    fn make(&mut self, change: Change) -> Option<Change> {
        match change {
            Change::Open(prefix, ports) => {
                let known = self.prefixes.entry(prefix).or_default();
                if known.is_empty() {
                    *self.lengths.entry(prefix.1).or_default() += 1;
                }
                known.insert(ports).then_some(Change::Close(prefix, ports))
            }
            Change::Close(prefix, ports) => {
                let known = self.prefixes.get_mut(&prefix)?;
                let was_open = known.remove(&ports);
                if known.is_empty() {
                    self.prefixes.remove(&prefix);
                    let count = self.lengths.get_mut(&prefix.1)?;
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        self.lengths.remove(&prefix.1);
                    }
                }
                was_open.then_some(Change::Open(prefix, ports))
            }
        }
    }

    /// What a prefix and the prefixes in it say.
    fn spans_within(&self, outer: Prefix) -> Vec<Span> {
        let within = self.prefixes.range(outer..=Prefix(outer.last(), 128));
        within.flat_map(|(prefix, ports)| self.spans_of(*prefix, ports)).collect()
    }

    fn spans_of(&self, prefix: Prefix, ports: &BTreeSet<(u16, u16)>) -> Vec<Span> {
        let around = self
            .lengths
            .range(..prefix.1)
            .filter_map(|(bits, _)| self.prefixes.get(&Prefix::of(prefix.0, *bits)));
        let said: BTreeSet<(u16, u16)> = around.flatten().copied().collect();
        let addresses = (prefix.0, prefix.last());
        let left = without(&merged(ports), &merged(&said));
        left.into_iter().map(|ports| Span { addresses, ports }).collect()
    }
}

impl Change {
    fn prefix(&self) -> Prefix {
        match self {
            Change::Open(prefix, _) | Change::Close(prefix, _) => *prefix,
        }
    }
}

/// The same ports in ranges that neither overlap nor touch.
fn merged(ranges: &BTreeSet<(u16, u16)>) -> Vec<(u16, u16)> {
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for &(first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// `ranges` without `taken`; both as [`merged`] gives them.
fn without(ranges: &[(u16, u16)], taken: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let mut left = Vec::new();
    for &(first, last) in ranges {
        let mut next = Some(first);
        for &(from, to) in taken.iter().filter(|(from, to)| *to >= first && *from <= last) {
            if let Some(start) = next.filter(|start| *start < from) {
                left.push((start, from - 1));
            }
            next = to.checked_add(1).filter(|start| *start <= last);
        }
        left.extend(next.map(|start| (start, last)));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opening(text: &str, prefix: u8, first: u16, last: u16) -> Opening {
        Opening { address: text.parse().unwrap(), prefix, first, last }
    }

    fn open(openings: &[Opening]) -> Vec<Change> {
        openings.iter().map(|opening| opening.parts().unwrap()).map(|(p, q)| Change::Open(p, q)).collect()
    }

    #[test]
    fn an_address_in_an_open_prefix_adds_only_its_own_ports() {
        let mut all = Openings::default();
        let (first, _) = all.apply(&open(&[opening("10.0.0.0", 8, 80, 443)]));
        let (second, _) = all.apply(&open(&[opening("10.1.2.3", 32, 22, 100)]));

        let ten = u128::from(u32::from_be_bytes([10, 0, 0, 0]));
        let host = u128::from(u32::from_be_bytes([10, 1, 2, 3]));
        assert_eq!(first.add, [Span { addresses: (ten, ten + 0xff_ffff), ports: (80, 443) }]);
        assert_eq!(second.add, [Span { addresses: (host, host), ports: (22, 79) }]);
        assert_eq!(second.remove, []);
    }

    #[test]
    fn closing_a_prefix_gives_back_what_it_covered() {
        let mut all = Openings::default();
        all.apply(&open(&[opening("10.0.0.0", 8, 80, 443), opening("10.1.2.3", 32, 443, 443)]));
        let (prefix, ports) = opening("10.9.9.9", 8, 80, 443).parts().unwrap();

        let (difference, undo) = all.apply(&[Change::Close(prefix, ports)]);

        assert_eq!(difference.remove.len(), 1);
        assert_eq!(difference.add.iter().map(|span| span.ports).collect::<Vec<_>>(), [(443, 443)]);
        let (back, _) = all.apply(&undo);
        assert_eq!((back.add, back.remove), (difference.remove, difference.add));
    }

    #[test]
    fn an_opening_that_makes_no_sense_has_no_parts() {
        assert_eq!(opening("10.0.0.0", 33, 1, 2).parts(), None);
        assert_eq!(opening("::", 129, 1, 2).parts(), None);
        assert_eq!(opening("::", 0, 2, 1).parts(), None);
    }

    /// Few addresses, lengths and ports, so that they meet often.
    fn any_opening() -> impl Strategy<Value = Opening> {
        (0u32..8, prop::sample::select(vec![0u8, 29, 30, 31, 32]), 0u16..12, 0u16..6).prop_map(
            |(address, prefix, first, more)| {
                let scale = |port: u16| if port > 11 { u16::MAX } else { port };
                Opening {
                    address: IpAddr::V4(address.into()),
                    prefix,
                    first: scale(first),
                    last: scale(first + more),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn the_kernel_has_exactly_what_is_open_and_nothing_twice(
            edits in prop::collection::vec((any::<bool>(), prop::collection::vec(any_opening(), 1..4)), 1..12)
        ) {
            let (mut all, mut kernel, mut wanted) = (Openings::default(), BTreeSet::new(), BTreeSet::new());
            for (opens, some) in edits {
                let parts = some.iter().filter_map(Opening::parts);
                let changes: Vec<Change> = parts
                    .map(|(prefix, ports)| if opens { Change::Open(prefix, ports) } else { Change::Close(prefix, ports) })
                    .collect();
                for change in &changes {
                    match change {
                        Change::Open(prefix, ports) => { wanted.insert((*prefix, *ports)); }
                        Change::Close(prefix, ports) => { wanted.remove(&(*prefix, *ports)); }
                    }
                }
                let (difference, _) = all.apply(&changes);
                for span in &difference.remove { prop_assert!(kernel.remove(span)); }
                for span in &difference.add { prop_assert!(kernel.insert(*span)); }

                for address in 0u128..9 {
                    for port in (0u16..20).chain([u16::MAX]) {
                        let within = |span: &&Span| (span.addresses.0..=span.addresses.1).contains(&address)
                            && (span.ports.0..=span.ports.1).contains(&port);
                        let open = wanted.iter().any(|(prefix, ports): &(Prefix, (u16, u16))|
                            (prefix.0..=prefix.last()).contains(&address) && (ports.0..=ports.1).contains(&port));
                        prop_assert_eq!(kernel.iter().filter(within).count(), usize::from(open));
                    }
                }
            }
            let (difference, _) = all.apply(&all.close_all());
            prop_assert_eq!(difference.remove.len(), kernel.len());
            prop_assert!(all.prefixes.is_empty() && all.lengths.is_empty());
        }
    }
}
