//! Permitted connections and requests that are too many to be told one by one: a program could drive everything else out of a
//! bounded ledger with them.
//!
//! Beyond an allowance, connections to the same host and port by the same rule (requests: with the same method) share a record while a window is open. The
//! first has its own before it is permitted; the others are counted under its number, and when the window closes one
//! record tells how many they were, and one for each way they ended tells their bytes.

use crate::{allowance::Allowance, permit::Reason};
use airlock_protocol::{
    ledger::{Crossing, Entry},
    policy::Verdict,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Connections that are told one by one, and then each second.
const BURST: u32 = 20_000;
const PER_SECOND: u32 = 50;
/// How long a window is open, at least.
const WINDOW: Duration = Duration::from_secs(1);
/// And for each record that it will close with: those are then at most 20 a second.
const FOR_EACH: Duration = Duration::from_millis(50);
/// Records that one window can close with, of each sort. What is beyond is told one by one.
const MOST: usize = 1024;

/// What connections have in common that share a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Alike {
    pub(super) host: String,
    pub(super) port: u16,
    /// The method of a request, the name of a secret.
    pub(super) what: Option<String>,
    pub(super) rule: Option<Arc<str>>,
    pub(super) excused: Option<Reason>,
    pub(super) detail: Option<String>,
}

#[derive(Debug)]
struct Begun {
    /// The number of the first, which has its own record.
    flow: u64,
    crossing: Crossing,
    /// How many came after it.
    times: u64,
}

/// How flows of one number ended, together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ended {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) address: Option<String>,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) millis: u64,
    pub(super) code: Option<u16>,
}

impl Ended {
    /// As the ledger has it.
    pub(super) fn entry(self, flow: u64, status: String, times: Option<u64>) -> Entry {
        let Ended { host, port, address, sent, received, millis, code } = self;
        Entry::Flow { flow, host, port, address, sent, received, millis, status, code, times }
    }
}

/// The connections of the open window.
#[derive(Debug)]
pub(super) struct Busy {
    allowance: Allowance,
    since: Option<Instant>,
    begun: HashMap<Alike, Begun>,
    /// By number and status.
    ended: HashMap<(u64, String), (u64, Ended)>,
}

impl Default for Busy {
    fn default() -> Busy {
        Busy::with(BURST, PER_SECOND)
    }
}

impl Busy {
    pub(super) fn with(burst: u32, per_second: u32) -> Busy {
        let allowance = Allowance::new(burst, per_second);
        Busy { allowance, since: None, begun: HashMap::new(), ended: HashMap::new() }
    }

    /// Whether one more is told by itself, whatever came before.
    pub(super) fn is_told(&mut self) -> bool {
        self.allowance.take()
    }

    /// Counts one more of these, if the first was told in this window; the number of that.
    pub(super) fn again(&mut self, alike: &Alike) -> Option<u64> {
        let begun = self.begun.get_mut(alike)?;
        begun.times += 1;
        Some(begun.flow)
    }

    /// The first of these was told.
    pub(super) fn begin(&mut self, alike: Alike, flow: u64, crossing: Crossing) {
        if self.begun.len() < MOST {
            self.since.get_or_insert_with(Instant::now);
            self.begun.insert(alike, Begun { flow, crossing, times: 0 });
        }
    }

    /// Counts the end of one that was counted; `false` if it has to be told by itself.
    pub(super) fn end(&mut self, flow: u64, status: &str, ended: Ended) -> bool {
        let key = (flow, status.to_owned());
        if self.ended.len() >= MOST && !self.ended.contains_key(&key) {
            return false;
        }
        self.since.get_or_insert_with(Instant::now);
        let (times, sum) = self.ended.entry(key).or_default();
        *times += 1;
        *sum = Ended {
            sent: sum.sent.saturating_add(ended.sent),
            received: sum.received.saturating_add(ended.received),
            millis: sum.millis.max(ended.millis),
            ..ended
        };
        true
    }

    /// When the window closes, as it is now; none if it is not open.
    pub(super) fn closes_at(&self) -> Option<Instant> {
        let records = u32::try_from(self.begun.len().max(self.ended.len())).unwrap_or(u32::MAX);
        self.since.map(|since| since + WINDOW.max(FOR_EACH.saturating_mul(records)))
    }

    /// Closes the window; what is left to tell.
    pub(super) fn take(&mut self) -> Vec<Entry> {
        self.since = None;
        let begun = std::mem::take(&mut self.begun).into_iter().filter(|(_, begun)| begun.times > 0);
        let decisions = begun.map(|(alike, begun)| Entry::Decision {
            verdict: Verdict::Allow,
            audit_only: alike.excused.is_some(),
            rule: alike.rule.as_deref().map(str::to_owned),
            reason: alike.excused.map(|reason| reason.word().to_owned()),
            detail: alike.detail,
            flow: (!matches!(begun.crossing, Crossing::Reveal { .. })).then_some(begun.flow),
            crossing: begun.crossing,
            times: Some(begun.times),
        });
        let ended = std::mem::take(&mut self.ended).into_iter();
        let flows = ended.map(|((flow, status), (times, ended))| ended.entry(flow, status, Some(times)));
        decisions.chain(flows).collect()
    }
}
