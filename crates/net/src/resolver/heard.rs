//! Denied names that were asked for a moment ago, so that a program which asks again and again fills no ledger.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long a denied name is not recorded again.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Denied names that are recorded one by one in that time.
const MOST: usize = 256;

/// The denied names of the last moments.
#[derive(Debug, Default)]
pub(super) struct Heard {
    since: Option<Instant>,
    names: HashMap<String, String>,
    others: u64,
}

/// What is to be done about a denied name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Again {
    /// It is to be recorded.
    No,
    /// It was recorded, for this reason.
    Yes(String),
    /// There are too many; it was counted.
    Flood,
}

impl Heard {
    /// Whether a denied name was recorded a moment ago.
    pub(super) fn again(&mut self, name: &str) -> Again {
        if let Some(why) = self.names.get(name) {
            return Again::Yes(why.clone());
        }
        if self.names.len() >= MOST {
            self.others = self.others.saturating_add(1);
            return Again::Flood;
        }
        Again::No
    }

    /// A name was recorded as denied.
    pub(super) fn note(&mut self, name: &str, why: &str) {
        self.since.get_or_insert_with(Instant::now);
        self.names.insert(name.to_owned(), why.to_owned());
    }

    /// Other rules: what was denied may be allowed now.
    pub(super) fn forget(&mut self) {
        self.names.clear();
    }

    /// When all this is forgotten; none where there is nothing.
    pub(super) fn closes_at(&self) -> Option<Instant> {
        self.since.map(|since| since + WINDOW)
    }

    /// Forgets everything; tells how many names were counted but not recorded.
    pub(super) fn close(&mut self) -> u64 {
        std::mem::take(self).others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_denied_name_is_recorded_once_in_a_window() {
        let mut heard = Heard::default();
        assert_eq!(heard.again("a.example"), Again::No);
        heard.note("a.example", "no rule");
        assert_eq!(heard.again("a.example"), Again::Yes("no rule".to_owned()));
        assert_eq!(heard.close(), 0);
        assert_eq!(heard.again("a.example"), Again::No);
    }

    #[tokio::test]
    async fn a_flood_of_names_is_counted() {
        let mut heard = Heard::default();
        for number in 0..1000 {
            let name = format!("n{number}.example");
            if heard.again(&name) == Again::No {
                heard.note(&name, "no rule");
            }
        }
        assert_eq!(heard.names.len(), MOST);
        assert_eq!(heard.close(), 1000 - 256);
    }
}
