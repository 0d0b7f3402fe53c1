//! Denied names that were asked for a moment ago, so that a program which asks again and again makes one record, and one
//! more for how often. (Counting is the gate's.)

use airlock_gate::Reason;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long a denied name is not recorded again.
const WINDOW: Duration = Duration::from_secs(10);
/// Names that are remembered.
const MOST: usize = 1024;

/// The denied names of the last moments.
#[derive(Debug, Default)]
pub(super) struct Heard {
    names: HashMap<String, (Denied, Instant)>,
}

/// Why a name was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) reason: Reason,
    /// In words.
    pub(super) why: String,
}

impl Heard {
    /// Why a name was denied, if that was recorded a moment ago.
    pub(super) fn again(&self, name: &str) -> Option<Denied> {
        let (denied, until) = self.names.get(name)?;
        (*until > Instant::now()).then(|| denied.clone())
    }

    /// A name was recorded as denied.
    pub(super) fn note(&mut self, name: &str, denied: Denied) {
        let now = Instant::now();
        if self.names.len() >= MOST {
            self.names.retain(|_, (_, until)| *until > now);
        }
        if self.names.len() >= MOST {
            self.names.clear();
        }
        self.names.insert(name.to_owned(), (denied, now + WINDOW));
    }

    /// Other rules: what was denied may be allowed now.
    pub(super) fn forget(&mut self) {
        self.names.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> Denied {
        Denied { reason: Reason::NoRule, why: "no rule".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_denied_name_is_recorded_once_in_a_window() {
        let mut heard = Heard::default();
        assert_eq!(heard.again("a.example"), None);
        heard.note("a.example", denied());
        assert_eq!(heard.again("a.example"), Some(denied()));
        tokio::time::advance(WINDOW).await;
        assert_eq!(heard.again("a.example"), None);
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded() {
        let mut heard = Heard::default();
        for number in 0..5000 {
            heard.note(&format!("n{number}.example"), denied());
        }
        assert!(heard.names.len() <= MOST);
    }
}
