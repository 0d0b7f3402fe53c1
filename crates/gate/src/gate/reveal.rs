//! Secrets in requests: recorded before they go, and an alarm where a placeholder is on its way to another place.

use super::{Crossing, Gate};
use crate::{
    host::Target,
    ledger,
    permit::{Denial, Permit, Reason},
};
use airlock_protocol::{ledger::Entry, policy::Verdict};

impl Gate {
    /// As [`Gate::ask`] for a secret in a request that a rule permits, where nothing can wait: in the middle of a body. With
    /// `ledger.durable` the record is on the disk when this returns.
    pub fn reveal(&self, secret: &str, target: &Target, port: u16) -> Result<Permit, Denial> {
        let crossing = Crossing::Reveal { secret: secret.to_owned(), target: target.clone(), port };
        let permit = self.decide_reveal(&crossing)?;
        match self.ledger.commit_now() {
            Ok(()) => Ok(permit),
            Err(err) => Err(self.unrecorded(&crossing, &err)),
        }
    }

    /// The keeper itself is about to fetch a token with a secret, where the person who bound it said. Recorded first.
    pub fn fetching(&self, secret: &str, target: &Target, port: u16) -> Result<(), Denial> {
        let crossing = Crossing::Reveal { secret: secret.to_owned(), target: target.clone(), port };
        let written = self.record(|_| Entry::Decision {
            crossing: crossing.record(),
            verdict: Verdict::Allow,
            audit_only: false,
            rule: Some(format!("token_url (secret {secret})")),
            reason: None,
            detail: Some("fetched by the keeper".to_owned()),
            flow: None,
            times: None,
        });
        written.and_then(|_| self.ledger.commit_now()).map_err(|err| self.unrecorded(&crossing, &err))
    }

    /// A placeholder is on its way to where its secret may not go. Recorded; `--audit-only` excuses nothing here.
    pub fn alarm(&self, secret: &str, target: &Target, port: u16, detail: &str) -> Denial {
        let crossing = Crossing::Reveal { secret: secret.to_owned(), target: target.clone(), port };
        let detail = ledger::shown(detail);
        self.record_or_owe(Entry::Decision {
            crossing: crossing.record(),
            verdict: Verdict::Deny,
            audit_only: false,
            rule: None,
            reason: Some(Reason::Secret.word().to_owned()),
            detail: Some(detail.clone()),
            flow: None,
            times: None,
        });
        let hint = format!("airlock secret ls {} shows where each secret may go", self.name);
        Denial { reason: Reason::Secret, what: crossing.words(), rule: None, detail: Some(detail), hint }
    }
}
