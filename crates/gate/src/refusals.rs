//! Decisions without an effect outside: denials and lookups. A program can make thousands of them a second, and would
//! drive everything else out of a bounded ledger; so beyond an allowance they are counted and told by the second.

use crate::allowance::Allowance;
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// How long decisions are counted together.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);
/// Destinations that are told apart in that time.
const MOST: usize = 256;
/// Records that are written one by one.
const BURST: u32 = 1000;
/// And then each second.
const PER_SECOND: u32 = 20;

/// What the kernel refused: host, port, protocol.
pub(crate) type Key = (String, u16, String);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Something was denied.
    Denied,
    /// A name was answered; nothing left the host for it.
    Resolved,
}

/// The decisions of the last second.
#[derive(Debug)]
pub(crate) struct Refusals {
    allowance: Allowance,
    since: Option<Instant>,
    counted: Counted,
    /// How often the kernel refused the same since the first, which was told at once.
    again: HashMap<Key, u64>,
}

/// What is left to tell when the window closes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Destinations that were tried again, and how often.
    pub(crate) again: Vec<(Key, u64)>,
    /// Further denials.
    pub(crate) denied: u64,
    /// Further lookups.
    pub(crate) resolved: u64,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals {
            allowance: Allowance::new(BURST, PER_SECOND),
            since: None,
            counted: Counted::default(),
            again: HashMap::new(),
        }
    }
}

impl Refusals {
    /// Whether this is told by a record of its own; else it is counted.
    pub(crate) fn note(&mut self, sort: Sort) -> bool {
        let is_told = self.allowance.take();
        if !is_told {
            self.since.get_or_insert_with(Instant::now);
            match sort {
                Sort::Denied => self.counted.denied += 1,
                Sort::Resolved => self.counted.resolved += 1,
            }
        }
        is_told
    }

    /// Whether this is the first of its kind in the window; others are counted.
    pub(crate) fn is_first(&mut self, key: Key) -> bool {
        if let Some(times) = self.again.get_mut(&key) {
            *times += 1;
            return false;
        }
        if self.again.len() < MOST {
            self.since.get_or_insert_with(Instant::now);
            self.again.insert(key, 0);
        }
        true
    }

    /// When the window closes; none if it is not open.
    pub(crate) fn closes_at(&self) -> Option<Instant> {
        self.since.map(|since| since + WINDOW)
    }

    /// Closes the window.
    pub(crate) fn take(&mut self) -> Counted {
        self.since = None;
        let again = std::mem::take(&mut self.again).into_iter().filter(|(_, times)| *times > 0);
        let mut counted = Counted { again: again.collect(), ..std::mem::take(&mut self.counted) };
        counted.again.sort();
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> Key {
        ("192.0.2.7".into(), port, "tcp".into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_is_told_at_once_and_the_others_are_counted() {
        let mut refusals = Refusals::default();
        let told: Vec<bool> = [1, 1, 2, 1].map(|port| refusals.is_first(key(port))).into();
        assert_eq!(told, [true, false, true, false]);
        assert_eq!(refusals.take(), Counted { again: vec![(key(1), 2)], ..Counted::default() });
        assert_eq!(refusals.closes_at(), None);
        assert!(refusals.is_first(key(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_and_denials_are_counted_apart() {
        let mut refusals = Refusals::default();
        while refusals.note(Sort::Denied) {}
        for _ in 0..5 {
            refusals.note(Sort::Resolved);
        }
        assert_eq!(refusals.take(), Counted { again: Vec::new(), denied: 1, resolved: 5 });
    }
}
