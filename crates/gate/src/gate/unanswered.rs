//! Names that are not answered for another reason than the rules: what was asked for is no host name, or there are too
//! many.

use super::Gate;
use crate::{ledger, permit::Reason};
use airlock_protocol::{
    ledger::{Crossing, Entry},
    policy::Verdict,
};

impl Gate {
    /// Records that `name`, whatever its bytes, was asked for and not answered.
    pub fn refuse_name(&self, name: &str, question: &str, reason: Reason, detail: &str) {
        let crossing = Crossing::Resolve { host: ledger::shown(name), question: ledger::shown(question) };
        self.record_or_owe(unanswered(crossing, reason, detail, None));
    }

    /// Records that `times` further names were asked for and not answered, of which none is told.
    pub fn refuse_names(&self, times: u64) {
        let crossing = Crossing::Resolve { host: "*".to_owned(), question: "*".to_owned() };
        self.record_or_owe(unanswered(
            crossing,
            Reason::NoRule,
            "further names within a few seconds",
            Some(times),
        ));
    }
}

fn unanswered(crossing: Crossing, reason: Reason, detail: &str, times: Option<u64>) -> Entry {
    Entry::Decision {
        crossing,
        verdict: Verdict::Deny,
        audit_only: false,
        rule: None,
        reason: Some(reason.word().to_owned()),
        detail: Some(ledger::shown(detail)),
        flow: None,
        times,
    }
}
