//! Requests that rules permit and something else stops: a script, a package that is too young.

use super::Gate;
use crate::{
    host::Target,
    ledger,
    permit::{Denial, Reason},
};
use airlock_protocol::{
    ledger::{Crossing, Entry},
    policy::Verdict,
};

/// What is stopped.
#[derive(Debug, Clone, Copy)]
pub struct Stopped<'a> {
    /// Where it goes.
    pub target: &'a Target,
    /// The port.
    pub port: u16,
    /// What of it.
    pub part: Part<'a>,
}

/// What of a flow is stopped.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// The whole connection.
    Connection,
    /// A request inside it.
    Request {
        /// `GET`, `POST`, …
        method: &'a str,
        /// The decoded path.
        path: &'a str,
    },
}

/// Why something permitted is stopped.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    /// In a word.
    pub reason: Reason,
    /// By which rule, in words.
    pub rule: Option<&'a str>,
    /// More for a person.
    pub detail: &'a str,
    /// What a person can do; may be empty.
    pub hint: &'a str,
}

impl Gate {
    /// Records that something permitted is stopped. `Ok` if it may go on, since only audited.
    pub fn stop(&self, stopped: Stopped<'_>, cause: &Cause<'_>) -> Result<(), Denial> {
        let is_excused = self.policy.borrow().audit_only;
        let verdict = if is_excused { Verdict::Allow } else { Verdict::Deny };
        self.record_stop(stopped, cause, verdict);
        if is_excused {
            return Ok(());
        }
        let place = super::crossing::place(stopped.target, stopped.port);
        let what = match stopped.part {
            Part::Connection => format!("connecting to {place}"),
            Part::Request { method, path } => {
                format!("{} {} at {place}", ledger::shown(method), ledger::shown(path))
            }
        };
        let rule = cause.rule.map(ledger::shown);
        let detail = Some(ledger::shown(cause.detail));
        Err(Denial { reason: cause.reason, what, rule, detail, hint: cause.hint.to_owned() })
    }

    /// Records that part of an answer was kept back; the rest goes on.
    pub fn note_kept_back(&self, stopped: Stopped<'_>, cause: &Cause<'_>) {
        self.record_stop(stopped, cause, Verdict::Deny);
    }

    fn record_stop(&self, stopped: Stopped<'_>, cause: &Cause<'_>, verdict: Verdict) {
        let Stopped { target, port, part } = stopped;
        let crossing = match part {
            Part::Connection => super::crossing::connect(target, port),
            Part::Request { method, path } => Crossing::Request {
                host: target.to_string(),
                port,
                method: ledger::shown(method),
                path: ledger::shown(path),
            },
        };
        self.record_or_owe(Entry::Decision {
            crossing,
            verdict,
            audit_only: verdict == Verdict::Allow,
            rule: cause.rule.map(ledger::shown),
            reason: Some(cause.reason.word().to_owned()),
            detail: Some(ledger::shown(cause.detail)),
            flow: None,
            times: None,
        });
    }
}
