//! Crossings for which there is no room.

use super::{Crossing, Gate};
use crate::{ledger, permit::Reason};
use airlock_protocol::{ledger::Entry, policy::Verdict};

impl Gate {
    /// Records that a crossing was turned away before it was judged, since so many others are under way.
    pub fn turn_away(&self, crossing: &Crossing, detail: &str) {
        self.record_or_owe(Entry::Decision {
            crossing: crossing.record(),
            verdict: Verdict::Deny,
            audit_only: false,
            rule: None,
            reason: Some(Reason::Crowded.word().to_owned()),
            detail: Some(ledger::shown(detail)),
            flow: None,
            times: None,
        });
    }
}
