//! Decisions without an effect outside: denials and lookups. A program can make thousands of them a second, and would
//! drive everything else out of a bounded ledger; so beyond an allowance they are counted and told by the second.

use crate::{allowance::Allowance, permit::Reason};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// How long decisions are counted together.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);
/// How long repeated questions for denied names are.
pub(crate) const NAMES_WINDOW: Duration = Duration::from_secs(10);
/// Destinations that are told apart in that time, and so many names.
const MOST: usize = 256;
/// Records that are written one by one.
const BURST: u32 = 1000;
/// And then each second.
const PER_SECOND: u32 = 20;

/// What the kernel refused: host, port, protocol.
pub(crate) type Key = (String, u16, String);

/// A denied name that was asked for again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) question: String,
    pub(crate) reason: Reason,
}

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
    asked_since: Option<Instant>,
    /// How often a name was asked for since its denial was told.
    asked: HashMap<Asked, u64>,
}

/// What is left to tell when the window closes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Destinations that were tried again, and how often.
    pub(crate) again: Vec<(Key, u64)>,
    /// Denied names that were asked for again, and how often.
    pub(crate) asked: Vec<(Asked, u64)>,
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
            asked_since: None,
            asked: HashMap::new(),
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

    /// A denied name was asked for again.
    pub(crate) fn asked_again(&mut self, asked: Asked) {
        match self.asked.len() < MOST || self.asked.contains_key(&asked) {
            true => {
                self.asked_since.get_or_insert_with(Instant::now);
                *self.asked.entry(asked).or_default() += 1;
            }
            false => {
                self.since.get_or_insert_with(Instant::now);
                self.counted.denied += 1;
            }
        }
    }

    /// When the next window closes; none if none is open.
    pub(crate) fn closes_at(&self) -> Option<Instant> {
        let first = self.since.map(|since| since + WINDOW);
        let names = self.asked_since.map(|since| since + NAMES_WINDOW);
        first.into_iter().chain(names).min()
    }

    /// Closes the windows whose time has come.
    pub(crate) fn take(&mut self) -> Counted {
        let is_over = self.asked_since.is_some_and(|since| since + NAMES_WINDOW <= Instant::now());
        let asked = if is_over { self.take_asked() } else { Vec::new() };
        self.take_with(asked)
    }

    /// Closes all windows.
    pub(crate) fn take_all(&mut self) -> Counted {
        let asked = self.take_asked();
        self.take_with(asked)
    }

    fn take_asked(&mut self) -> Vec<(Asked, u64)> {
        self.asked_since = None;
        let mut asked: Vec<_> = std::mem::take(&mut self.asked).into_iter().collect();
        asked.sort();
        asked
    }

    /// What has no place of its own in the ledger any more is told as one of many.
    fn take_with(&mut self, asked: Vec<(Asked, u64)>) -> Counted {
        self.since = None;
        let mut again: Vec<_> =
            std::mem::take(&mut self.again).into_iter().filter(|(_, times)| *times > 0).collect();
        again.sort();
        let mut counted = std::mem::take(&mut self.counted);
        let mut is_told = |times: u64| {
            let is_told = self.allowance.take();
            counted.denied += if is_told { 0 } else { times };
            is_told
        };
        let again = again.into_iter().filter(|(_, times)| is_told(*times)).collect();
        let asked = asked.into_iter().filter(|(_, times)| is_told(*times)).collect();
        Counted { again, asked, ..counted }
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
        assert_eq!(refusals.take(), Counted { denied: 1, resolved: 5, ..Counted::default() });
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_asked_for_again_and_again_is_counted_for_ten_seconds() {
        let mut refusals = Refusals::default();
        let asked = || Asked { name: "a.test".into(), question: "A".into(), reason: Reason::NoRule };
        refusals.asked_again(asked());
        refusals.is_first(key(1));
        tokio::time::advance(WINDOW).await;
        refusals.asked_again(asked());
        assert_eq!(refusals.take(), Counted::default());
        assert!(refusals.closes_at().is_some());
        tokio::time::advance(NAMES_WINDOW).await;
        assert_eq!(refusals.take(), Counted { asked: vec![(asked(), 2)], ..Counted::default() });
        assert_eq!(refusals.closes_at(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_of_many_things_do_not_fill_the_ledger_and_none_is_lost() {
        let mut refusals = Refusals::default();
        while refusals.note(Sort::Denied) {}
        for number in 0..2000u64 {
            let name = format!("n{number}.test");
            refusals.asked_again(Asked { name, question: "A".into(), reason: Reason::NoRule });
        }
        for _ in 0..3 {
            refusals.is_first(key(1));
        }
        assert_eq!(refusals.take_all(), Counted { denied: 1 + 2000 + 2, ..Counted::default() });
    }
}
