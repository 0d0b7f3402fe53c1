//! What is written to the ledger and told to watchers; and what could not be written yet.

use super::{Gate, busy::Ended, crossing};
use crate::{
    host::Target,
    judge::Judged,
    ledger::{self, Happened},
    permit::{Denial, Reason, Trace},
    refusals::{Asked, Counted, Key, Sort},
    request::Request,
};
use airlock_protocol::{
    event::Event,
    ledger::{Crossing, Entry, Record},
    policy::Verdict,
};
use std::{collections::VecDeque, fmt::Write as _, net::SocketAddr, time::Duration};

/// Entries that may be owed; more are only counted.
const MOST_OWED: usize = 256;
/// So many ended flows are written without waiting for more.
const MOST_GATHERED: usize = 64;
/// Bytes of `255.255.255.255:65535`; longer ones take more memory when they need it.
const ADDRESS: usize = 21;
/// How long an ended flow waits for something it can be written with.
const GATHERING: Duration = Duration::from_millis(20);

/// How a permitted flow ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished<'a> {
    /// Which.
    pub trace: &'a Trace,
    /// The address that was dialled, where one was.
    pub address: Option<SocketAddr>,
    /// Bytes from the sandbox.
    pub sent: u64,
    /// Bytes to the sandbox.
    pub received: u64,
    /// From the permit to the end.
    pub lasted: Duration,
    /// `closed`, `reset`, `unreachable`, `revoked`, `sni`, …
    pub status: &'a str,
    /// The status code of the answer, where the flow was a request.
    pub code: Option<u16>,
}

/// What is not written yet: ended flows that wait for something they can be written with, and what could not be written. All
/// of it is written before anything else, in one write with that.
#[derive(Debug, Default)]
pub(super) struct Owed {
    entries: VecDeque<Happened>,
    more: u64,
}

impl Gate {
    /// A permitted flow has ended. Its record is written with the next decision, and after [`GATHERING`] at the latest.
    pub fn finish(&self, finished: &Finished<'_>) {
        let ended = Ended {
            host: finished.trace.target.to_string(),
            port: finished.trace.port,
            address: finished.address.map(written),
            sent: finished.sent,
            received: finished.received,
            millis: u64::try_from(finished.lasted.as_millis()).unwrap_or(u64::MAX),
            code: finished.code,
        };
        let flow = finished.trace.flow;
        let many = if finished.trace.call.is_none() { &self.busy } else { &self.busy_inside };
        if finished.trace.is_counted && many.borrow_mut().end(flow, finished.status, ended.clone()) {
            self.crowded.notify_one();
            return;
        }
        self.gather(ended.entry(flow, finished.status.to_owned(), None));
    }

    /// Nothing hangs on when the end of a flow is written, but that it is told in its turn.
    fn gather(&self, entry: Entry) {
        let mut owed = self.owed.borrow_mut();
        owed.push(entry);
        if owed.entries.len() < MOST_GATHERED {
            return self.gathered.notify_one();
        }
        drop(owed);
        // What cannot be written stays owed.
        let _ = self.pay();
    }

    /// Writes ended flows that nothing else came to be written with. Runs until dropped.
    pub(super) async fn keep_writing_gathered(&self) {
        loop {
            self.gathered.notified().await;
            tokio::time::sleep(GATHERING).await;
            let _ = self.pay();
        }
    }

    /// Something permitted turned out to be forbidden: its address, the name in its TLS. `Ok` if it may go on, since only
    /// audited; what could not be told safe never may.
    pub fn note_denial(&self, trace: &Trace, reason: Reason, detail: &str) -> Result<(), Denial> {
        let is_excused = self.policy.borrow().audit_only && !reason.is_final();
        let detail = ledger::shown(detail);
        let Trace { target, port, call, .. } = trace;
        let (crossing, what) = match call.as_deref() {
            None => (crossing::connect(target, *port), crossing::connecting(target, *port)),
            Some(Request { method, path, .. }) => {
                let (host, method, path) = (target.to_string(), method.clone(), path.clone());
                let what = crossing::requesting(&method, &path, target, *port);
                (Crossing::Request { host, port: *port, method, path }, what)
            }
        };
        self.record_or_owe(Entry::Decision {
            crossing,
            verdict: if is_excused { Verdict::Allow } else { Verdict::Deny },
            audit_only: is_excused,
            rule: trace.rule.as_deref().map(str::to_owned),
            reason: Some(reason.word().to_owned()),
            detail: Some(detail.clone()),
            flow: Some(trace.flow),
            times: None,
        });
        if is_excused {
            return Ok(());
        }
        let rule = trace.rule.as_deref().map(str::to_owned);
        Err(Denial { reason, what, rule, detail: Some(detail), hint: String::new() })
    }

    /// The kernel refused a packet to this destination: no rule could match it.
    pub fn refused_by_kernel(&self, destination: SocketAddr, protocol: &str) {
        self.refused(&Target::Address(destination.ip()), destination.port(), protocol);
    }

    /// As [`Gate::refused_by_kernel`], where the address is known to stand for a name.
    pub fn refused(&self, target: &Target, port: u16, protocol: &str) {
        let key: Key = (target.to_string(), port, protocol.to_owned());
        let is_first = self.refusals.borrow_mut().is_first(key.clone());
        self.refused.notify_one();
        if is_first {
            self.record_or_owe(self.refusal(key, None));
        }
    }

    /// The kernel refused so many more packets, and did not tell where they wanted to go.
    pub fn refused_untold(&self, times: u64) {
        if times > 0 {
            self.record_or_owe(several(times, Some(Reason::Several)));
        }
    }

    /// A name whose denial is in the ledger was asked for again. Counted, and told later.
    pub fn asked_again(&self, name: &str, question: &str, reason: Reason) {
        let (name, question) = (ledger::shown(name), ledger::shown(question));
        self.refusals.borrow_mut().asked_again(Asked { name, question, reason });
        self.refused.notify_one();
    }

    /// Whether a decision without an effect outside has a record of its own; else it is counted.
    pub(super) fn is_told(&self, sort: Sort) -> bool {
        let is_told = self.refusals.borrow_mut().note(sort);
        if !is_told {
            self.refused.notify_one();
        }
        is_told
    }

    /// Tells counted refusals when their window closes. Runs until dropped.
    pub(super) async fn keep_telling(&self) {
        loop {
            let closes_at = self.refusals.borrow().closes_at();
            match closes_at {
                // Another window may open meanwhile that closes sooner.
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => self.tell_refused(),
                    () = self.refused.notified() => {}
                },
                None => self.refused.notified().await,
            }
        }
    }

    /// Tells counted connections when their window closes. Runs until dropped.
    pub(super) async fn keep_telling_busy(&self) {
        loop {
            let closes_at = [&self.busy, &self.busy_inside]
                .into_iter()
                .filter_map(|busy| busy.borrow().closes_at())
                .min();
            match closes_at {
                Some(at) if at <= tokio::time::Instant::now() => self.tell_busy(),
                // It may have got longer meanwhile.
                Some(at) => tokio::time::sleep_until(at).await,
                None => self.crowded.notified().await,
            }
        }
    }

    pub(super) fn tell_busy(&self) {
        for busy in [&self.busy, &self.busy_inside] {
            let counted = busy.borrow_mut().take();
            counted.into_iter().for_each(|entry| self.record_or_owe(entry));
        }
    }

    fn tell_refused(&self) {
        let counted = self.refusals.borrow_mut().take();
        self.tell_counted(counted);
    }

    /// Tells everything counted, also where a window is still open.
    pub(super) fn tell_all_refused(&self) {
        let counted = self.refusals.borrow_mut().take_all();
        self.tell_counted(counted);
    }

    fn tell_counted(&self, counted: Counted) {
        for (asked, times) in counted.asked {
            self.record_or_owe(self.denied_name(asked, times));
        }
        for (key, times) in counted.again {
            self.record_or_owe(self.refusal(key, Some(times)));
        }
        if counted.denied > 0 {
            self.record_or_owe(several(counted.denied, Some(Reason::Several)));
        }
        if counted.resolved > 0 {
            self.record_or_owe(several(counted.resolved, None));
        }
    }

    fn refusal(&self, (host, port, protocol): Key, times: Option<u64>) -> Entry {
        let judge = self.judge.borrow();
        let target = host.parse::<Target>().ok();
        let judged = target.map(|target| judge.connect(&target, port));
        let (reason, rule) = match judged {
            _ if protocol != "tcp" => (Reason::Protocol, None),
            Some(Judged { verdict: Some(Verdict::Deny), rule, .. }) => (Reason::Rule, rule),
            _ => (Reason::NoRule, None),
        };
        Entry::Decision {
            crossing: Crossing::Connect { host, port, protocol },
            verdict: Verdict::Deny,
            audit_only: false,
            rule: rule.map(|rule| rule.words().to_owned()),
            reason: Some(reason.word().to_owned()),
            detail: None,
            flow: None,
            times,
        }
    }

    fn denied_name(&self, Asked { name, question, reason }: Asked, times: u64) -> Entry {
        let judge = self.judge.borrow();
        let target = name.parse::<Target>().ok();
        let judged =
            target.filter(|_| reason == Reason::Rule).and_then(|target| judge.connect(&target, 443).rule);
        Entry::Decision {
            crossing: Crossing::Resolve { host: name, question },
            verdict: Verdict::Deny,
            audit_only: false,
            rule: judged.map(|rule| rule.words().to_owned()),
            reason: Some(reason.word().to_owned()),
            detail: None,
            flow: None,
            times: Some(times),
        }
    }

    /// Writes an entry, behind everything owed; gives its number.
    pub(super) fn record(&self, entry: impl FnOnce(u64) -> Entry) -> Result<u64, ledger::Error> {
        self.write(Some(entry))
    }

    /// Writes an entry now or, if that fails, later. One denial of too many is only counted.
    pub(super) fn record_or_owe(&self, entry: Entry) {
        if is_plain_denial(&entry) && !self.is_told(Sort::Denied) {
            return;
        }
        self.owed.borrow_mut().push(entry);
        // What cannot be written stays owed.
        let _ = self.pay();
    }

    /// A crossing was denied because it could not be recorded.
    pub(super) fn owe_unrecorded(&self, crossing: Crossing) {
        self.owed.borrow_mut().push_unrecorded(crossing);
    }

    /// Writes what waits to be written. Everything that is written takes it along; for whoever wants it before.
    pub fn pay(&self) -> Result<(), ledger::Error> {
        if self.owed.borrow().is_nothing() {
            return Ok(());
        }
        self.write(None::<fn(u64) -> Entry>).map(|_| ())
    }

    /// Writes everything owed, and `last` behind it, in one write; the number of the last record.
    fn write(&self, last: Option<impl FnOnce(u64) -> Entry>) -> Result<u64, ledger::Error> {
        let mut tell = |record: Record| self.events.tell(|| Event::Crossing(Box::new(record)));
        let told: ledger::Told<'_> = if self.events.are_watched() { Some(&mut tell) } else { None };
        let mut owed = self.owed.borrow_mut();
        let result = owed.written(|entries| self.ledger.append_behind(entries, last, told));
        drop(owed);
        let number = result.inspect_err(|err| self.ledger_fails(err))?;
        self.ledger_works();
        Ok(number)
    }
}

impl Owed {
    fn is_nothing(&self) -> bool {
        self.entries.is_empty() && self.more == 0
    }

    fn push(&mut self, entry: Entry) {
        match self.entries.len() < MOST_OWED {
            true => self.entries.push_back(Happened::now(entry)),
            false => self.more = self.more.saturating_add(decisions(&entry)),
        }
    }

    /// Has `write` write the entries, and behind them how many more there are.
    fn written<T, E>(&mut self, write: impl FnOnce(&mut VecDeque<Happened>) -> Result<T, E>) -> Result<T, E> {
        let more = self.more;
        if more > 0 {
            self.entries.push_back(Happened::now(several(more, Some(Reason::Ledger))));
        }
        let result = write(&mut self.entries);
        match result {
            Ok(_) => self.more = 0,
            Err(_) if more > 0 => drop(self.entries.pop_back()),
            Err(_) => {}
        }
        result
    }

    /// Alike ones in a row are one entry.
    fn push_unrecorded(&mut self, crossing: Crossing) {
        if let Some(Entry::Decision { crossing: last, reason: Some(reason), times: Some(times), .. }) =
            self.entries.back_mut().map(|last| &mut last.entry)
            && *last == crossing
            && reason == Reason::Ledger.word()
        {
            *times += 1;
            return;
        }
        self.push(Entry::Decision {
            crossing,
            verdict: Verdict::Deny,
            audit_only: false,
            rule: None,
            reason: Some(Reason::Ledger.word().to_owned()),
            detail: None,
            flow: None,
            times: Some(1),
        });
    }
}

/// An address as text, whose memory is taken at once.
fn written(address: SocketAddr) -> String {
    let mut text = String::with_capacity(ADDRESS);
    // A text takes what is written to it.
    let _ = write!(text, "{address}");
    text
}

/// How many decisions an entry stands for.
fn decisions(entry: &Entry) -> u64 {
    match entry {
        Entry::Decision { times, .. } => times.unwrap_or(1),
        _ => 0,
    }
}

/// Something that never began: nothing else in the ledger hangs on it.
fn is_plain_denial(entry: &Entry) -> bool {
    matches!(entry, Entry::Decision { verdict: Verdict::Deny, flow: None, times: None, .. })
}

/// Crossings that are only counted: denials, or lookups that were answered.
fn several(times: u64, denied: Option<Reason>) -> Entry {
    let (host, verdict) = ("*".to_owned(), if denied.is_some() { Verdict::Deny } else { Verdict::Allow });
    let crossing = match denied {
        Some(_) => Crossing::Connect { host, port: 0, protocol: "any".to_owned() },
        None => Crossing::Resolve { host, question: "any".to_owned() },
    };
    Entry::Decision {
        crossing,
        verdict,
        audit_only: false,
        rule: None,
        reason: denied.map(|reason| reason.word().to_owned()),
        detail: Some("too many to be told one by one".to_owned()),
        flow: None,
        times: Some(times),
    }
}
