//! Connections that the kernel refused. A program that tries the same again and again makes two records a second, not thousands.

use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// How long alike refusals are counted together.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);
/// Destinations that are told apart in that time.
const MOST: usize = 256;

/// What was refused: host, port, protocol.
pub(crate) type Key = (String, u16, String);

/// The refusals of the last second.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    since: Option<Instant>,
    /// How often since the first, which was told at once.
    again: HashMap<Key, u64>,
    /// Of destinations beyond those.
    others: u64,
}

/// What is left to tell when the window closes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Destinations that were tried again, and how often.
    pub(crate) again: Vec<(Key, u64)>,
    /// Refusals of further destinations.
    pub(crate) others: u64,
}

impl Refusals {
    /// Whether this is told now: the first of its kind in the window.
    pub(crate) fn note(&mut self, key: Key) -> bool {
        self.since.get_or_insert_with(Instant::now);
        if let Some(times) = self.again.get_mut(&key) {
            *times += 1;
            return false;
        }
        if self.again.len() >= MOST {
            self.others += 1;
            return false;
        }
        self.again.insert(key, 0);
        true
    }

    /// When the window closes; none if it is not open.
    pub(crate) fn closes_at(&self) -> Option<Instant> {
        self.since.map(|since| since + WINDOW)
    }

    /// Closes the window.
    pub(crate) fn take(&mut self) -> Counted {
        let Refusals { again, others, .. } = std::mem::take(self);
        let mut again: Vec<(Key, u64)> = again.into_iter().filter(|(_, times)| *times > 0).collect();
        again.sort();
        Counted { again, others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> Key {
        ("192.0.2.7".into(), port, "tcp".into())
    }

    #[test]
    fn the_first_is_told_at_once_and_the_others_are_counted() {
        let mut refusals = Refusals::default();
        let told: Vec<bool> = [1, 1, 2, 1].map(|port| refusals.note(key(port))).into();
        assert_eq!(told, [true, false, true, false]);
        assert_eq!(refusals.take(), Counted { again: vec![(key(1), 2)], others: 0 });
        assert_eq!(refusals.closes_at(), None);
        assert!(refusals.note(key(1)));
    }

    #[test]
    fn a_scan_of_all_ports_is_bounded_and_none_is_lost() {
        let mut refusals = Refusals::default();
        let told = (0..=u16::MAX).filter(|port| refusals.note(key(*port))).count() as u64;
        assert_eq!(told, MOST as u64);
        assert_eq!(told + refusals.take().others, 65_536);
    }
}
