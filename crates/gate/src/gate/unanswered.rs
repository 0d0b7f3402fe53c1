//! Names that are not answered for another reason than the rules: what was asked for is no host name, or there are too
//! many.

use super::Gate;
use crate::{ledger, permit::Reason};
use airlock_protocol::{
    ledger::{Crossing, Entry},
    policy::Verdict,
};

impl Gate {
    /// Records that `name`, whatever its bytes, was asked for and not answered; beyond an allowance it is counted.
    pub fn refuse_name(&self, name: &str, question: &str, reason: Reason, detail: &str) {
        self.record_or_owe(Entry::Decision {
            crossing: Crossing::Resolve { host: ledger::shown(name), question: ledger::shown(question) },
            verdict: Verdict::Deny,
            audit_only: false,
            rule: None,
            reason: Some(reason.word().to_owned()),
            detail: Some(ledger::shown(detail)),
            flow: None,
            times: None,
        });
    }
}
