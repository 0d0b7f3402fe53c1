//! Files: what a person shows in a sandbox while it runs, and what a programmable mount refuses.

use super::Gate;
use crate::ledger;
use airlock_protocol::{
    ledger::{Crossing, Entry},
    policy::Verdict,
};

/// What a person does to the mounts of a running sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remount {
    /// A path of the host, or what serves it.
    pub source: String,
    /// Where inside.
    pub target: String,
    /// `rw`, `ro` or `none`.
    pub access: &'static str,
}

impl Gate {
    /// Records what a person asked for, before it is done. What cannot be recorded is not done.
    pub fn remount(&self, remount: &Remount) -> Result<(), ledger::Error> {
        let Remount { source, target, access } = remount.clone();
        let crossing = Crossing::Mount { source, target, access: access.to_owned() };
        let detail = Some("command line".to_owned());
        self.record(|_| decision(crossing, Verdict::Allow, None, detail)).map(drop)
    }

    /// Records that a person copies files, before it is done. `touch` says in which direction.
    pub fn copy(&self, path: &str, touch: &str) -> Result<(), ledger::Error> {
        let crossing = Crossing::File { path: path.to_owned(), touch: touch.to_owned() };
        let detail = Some("command line".to_owned());
        self.record(|_| decision(crossing, Verdict::Allow, None, detail)).map(drop)
    }

    /// A hook of a programmable mount refused something, so often.
    pub fn refused_file(&self, path: String, touch: &str, times: u64) {
        let crossing = Crossing::File { path, touch: touch.to_owned() };
        let mut entry = decision(crossing, Verdict::Deny, Some("hook"), None);
        if let Entry::Decision { times: counted, .. } = &mut entry {
            *counted = Some(times);
        }
        self.record_or_owe(entry);
    }
}

fn decision(crossing: Crossing, verdict: Verdict, reason: Option<&str>, detail: Option<String>) -> Entry {
    Entry::Decision {
        crossing,
        verdict,
        audit_only: false,
        rule: None,
        reason: reason.map(str::to_owned),
        detail,
        flow: None,
        times: None,
    }
}
