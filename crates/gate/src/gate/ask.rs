//! One crossing from question to answer.

use super::{Crossing, Gate, busy::Alike};
use crate::{
    address::Cidr,
    approvals::{Answered, Waiting},
    host::Target,
    judge::{CompiledRule, Judge, Judged, Narrowest},
    ledger,
    meter::Meter,
    permit::{Denial, Kind, Permit, Reason, Trace},
    refusals::Sort,
    request::Request,
};
use airlock_protocol::{
    approval::Given,
    ledger::Entry,
    policy::{Body, Rate, Tls, Verdict},
};
use std::sync::Arc;

/// What became of a crossing.
type Decided = Result<Permit, Denial>;

/// What the rules say about a crossing.
#[derive(Debug)]
struct Ruling {
    verdict: Verdict,
    /// Why, if it is denied.
    reason: Reason,
    rule: Option<Arc<str>>,
    /// Whether the rule is about git.
    is_git: bool,
    tls: Tls,
    private: Vec<Cidr>,
    pins: Vec<String>,
    body: Option<Body>,
    meter: Meter,
    /// Whether the rule asks a person.
    asks: bool,
}

impl Gate {
    /// Decides. The decision is in the ledger when this returns; where a person is asked it waits until then.
    ///
    /// With `audit_only` everything is permitted that can be recorded, and what would have been denied is recorded as such.
    pub async fn ask(&self, crossing: Crossing) -> Result<Permit, Denial> {
        let ruling = self.rule(&crossing);
        let permit = match ruling.verdict {
            Verdict::Allow => self.allow(&crossing, ruling, None),
            Verdict::Deny => self.deny(&crossing, ruling, None),
            Verdict::Ask if self.policy.borrow().audit_only => self.deny(&crossing, ruling, None),
            Verdict::Ask => self.wait(&crossing, ruling).await,
        }?;
        match self.ledger.commit().await {
            Ok(()) => Ok(permit),
            Err(err) => Err(self.unrecorded(&crossing, &err)),
        }
    }

    fn rule(&self, crossing: &Crossing) -> Ruling {
        let judge = self.judge.borrow();
        match crossing {
            Crossing::Resolve { .. } => resolve(&judge, crossing),
            Crossing::Connect { target, port } => self.connection(&judge, target, *port),
            Crossing::Request(request) => self.request(&judge, request),
            Crossing::Reveal { secret, target, port } => self.secret(&judge, secret, target, *port),
            Crossing::Publish { port, .. } => {
                Ruling { meter: self.meters.borrow().of(None), ..publish(self.published.contains(port)) }
            }
        }
    }

    /// Of an opened connection nothing is counted but what its requests are.
    fn connection(&self, judge: &Judge, target: &Target, port: u16) -> Ruling {
        let judged = judge.connect(target, port);
        let ruling = Ruling::from(judged);
        if judged.inside {
            let Narrowest { private, pins } = judge.narrowest(target, port);
            return Ruling { private, pins, ..ruling };
        }
        let is_wanted = ruling.tls == Tls::Checked && self.is_wanted_open(target, port);
        match ruling.tls == Tls::Opened || is_wanted || self.secrets.wants(target, port) {
            true => Ruling { tls: Tls::Opened, ..ruling },
            false => {
                Ruling { meter: self.meters.borrow().of(judged.rule.map(CompiledRule::index)), ..ruling }
            }
        }
    }

    /// Where a person was asked about the whole connection, its requests are answered with it.
    fn request(&self, judge: &Judge, request: &Request) -> Ruling {
        let judged = judge.request(request);
        let mut ruling = Ruling::from(judged);
        if ruling.verdict == Verdict::Ask
            && judge.connect(&request.target, request.port).verdict == Some(Verdict::Ask)
        {
            ruling.verdict = Verdict::Allow;
        }
        Ruling { meter: self.meters.borrow().of(judged.rule.map(CompiledRule::index)), ..ruling }
    }

    /// The request that a secret goes into was permitted, also where a person was asked for it.
    fn secret(&self, judge: &Judge, secret: &str, target: &Target, port: u16) -> Ruling {
        let ruling = Ruling::from(judge.connect(target, port));
        let is_bound = self.secrets.find(secret).is_some_and(|secret| secret.is_bound_to(target));
        match ruling.verdict {
            _ if !is_bound => Ruling { verdict: Verdict::Deny, reason: Reason::Secret, ..ruling },
            Verdict::Ask => Ruling { verdict: Verdict::Allow, ..ruling },
            Verdict::Allow | Verdict::Deny => ruling,
        }
    }

    /// Decides on a secret at once.
    pub(super) fn decide_reveal(&self, crossing: &Crossing) -> Result<Permit, Denial> {
        let ruling = self.rule(crossing);
        match ruling.verdict {
            Verdict::Allow => self.allow(crossing, ruling, None),
            Verdict::Ask | Verdict::Deny => self.deny(crossing, ruling, None),
        }
    }

    /// Permits what the rule's bounds have room for.
    fn allow(&self, crossing: &Crossing, ruling: Ruling, detail: Option<String>) -> Result<Permit, Denial> {
        if ruling.meter.is_spent() {
            return self.deny(crossing, Ruling { reason: Reason::Bytes, ..ruling }, detail);
        }
        if let Err(Rate { count, seconds }) = ruling.meter.use_once() {
            let said = format!("{count} in {seconds} s");
            return self.deny(crossing, Ruling { reason: Reason::Rate, ..ruling }, Some(said));
        }
        self.permit(crossing, ruling, None, detail)
    }

    /// Denies, or with `audit_only` records that it would have. This host's own loopback stays closed all the same.
    fn deny(&self, crossing: &Crossing, ruling: Ruling, detail: Option<String>) -> Result<Permit, Denial> {
        let reason = ruling.reason;
        if self.policy.borrow().audit_only && !crossing.is_to_this_host() && reason != Reason::Secret {
            return self.permit(crossing, ruling, Some(reason), detail);
        }
        self.record_or_owe(Entry::Decision {
            crossing: crossing.record(),
            verdict: Verdict::Deny,
            audit_only: false,
            rule: ruling.rule.as_deref().map(str::to_owned),
            reason: Some(reason.word().to_owned()),
            detail: detail.clone(),
            flow: None,
            times: None,
        });
        Err(self.denial(crossing, reason, ruling.rule, detail))
    }

    /// The only place where a permit is made.
    fn permit(
        &self,
        crossing: &Crossing,
        ruling: Ruling,
        excused: Option<Reason>,
        detail: Option<String>,
    ) -> Result<Permit, Denial> {
        let kind = crossing.kind();
        let mut ruling = ruling;
        if self.policy.borrow().audit_only {
            ruling.meter = ruling.meter.without_budget();
        }
        let trace = |flow, rule| Trace {
            flow,
            target: crossing.target(),
            port: crossing.port(),
            call: crossing.call(),
            rule,
            is_counted: false,
        };
        // Nothing leaves for a lookup, so many of them may be counted; but they too need a ledger that works.
        if kind == Kind::Resolve && excused.is_none() && !self.is_told(Sort::Resolved) {
            self.pay().map_err(|err| self.unrecorded(crossing, &err))?;
            let trace = trace(0, ruling.rule.clone());
            return Ok(ruling.permit(kind, trace));
        }
        // Of very many connections the first in a while is told, and its record stands for those that follow it.
        let many = if kind == Kind::Connect { &self.busy } else { &self.busy_inside };
        let is_many = matches!(kind, Kind::Connect | Kind::Request | Kind::Reveal);
        let busy = (is_many && !many.borrow_mut().is_told())
            .then(|| alike(crossing, &ruling, excused, detail.as_deref()));
        let counted = busy.as_ref().and_then(|alike| many.borrow_mut().again(alike));
        if let Some(flow) = counted {
            self.pay().map_err(|err| self.unrecorded(crossing, &err))?;
            let trace = Trace { is_counted: true, ..trace(flow, ruling.rule.clone()) };
            return Ok(ruling.permit(kind, trace));
        }
        let rule = ruling.rule.as_deref().map(str::to_owned);
        let written = self.record(|seq| Entry::Decision {
            crossing: crossing.record(),
            verdict: Verdict::Allow,
            audit_only: excused.is_some(),
            rule,
            reason: excused.map(|reason| reason.word().to_owned()),
            detail,
            flow: (!matches!(kind, Kind::Resolve | Kind::Reveal)).then_some(seq),
            times: None,
        });
        let flow = written.map_err(|err| self.unrecorded(crossing, &err))?;
        if let Some(alike) = busy {
            many.borrow_mut().begin(alike, flow, crossing.record_of_many());
            self.crowded.notify_one();
        }
        let trace = trace(flow, ruling.rule.clone());
        Ok(ruling.permit(kind, trace))
    }

    /// What cannot be recorded does not cross. Told as soon as it can be.
    pub(super) fn unrecorded(&self, crossing: &Crossing, err: &ledger::Error) -> Denial {
        self.ledger_fails(err);
        self.owe_unrecorded(crossing.record());
        let mut denial = self.denial(crossing, Reason::Ledger, None, Some(err.to_string()));
        denial.hint = "free space where the state directory is; crossings work again at once".to_owned();
        denial
    }

    fn denial(
        &self,
        crossing: &Crossing,
        reason: Reason,
        rule: Option<Arc<str>>,
        detail: Option<String>,
    ) -> Denial {
        let place = crossing.place().filter(|_| !matches!(reason, Reason::Rate | Reason::Bytes));
        let hint = place.map(|place| format!("airlock allow {} {place}", self.name)).unwrap_or_default();
        let rule = rule.as_deref().map(str::to_owned);
        Denial { reason, what: crossing.words(), rule, detail, hint }
    }

    /// Parks a crossing until a person answers, time is up, or other rules decide.
    async fn wait(&self, crossing: &Crossing, ruling: Ruling) -> Result<Permit, Denial> {
        let mut generation = self.generation.subscribe();
        let rule = ruling.rule.clone();
        let mut waiting = match self.join(crossing, ruling) {
            Ok(waiting) => waiting,
            Err(decided) => return *decided,
        };
        let mut parked = Parked { gate: self, crossing, rule, request: waiting.id().to_owned() };
        loop {
            tokio::select! {
                biased;
                answered = waiting.answered() => return parked.end(|| self.settle(crossing, answered)),
                _ = generation.changed() => {
                    let ruling = self.rule(crossing);
                    match ruling.verdict {
                        Verdict::Ask => parked.rule = ruling.rule,
                        Verdict::Allow => return parked.end(|| self.allow(crossing, ruling, None)),
                        Verdict::Deny => return parked.end(|| self.deny(crossing, ruling, None)),
                    }
                }
            }
        }
    }

    /// Waits with others for the same, or asks anew; or else the decision, if nobody can be asked.
    fn join(&self, crossing: &Crossing, ruling: Ruling) -> Result<Waiting<'_>, Box<Decided>> {
        let question = crossing.question(ruling.is_git);
        let crowded =
            |ruling| Err(Box::new(self.deny(crossing, Ruling { reason: Reason::Crowded, ..ruling }, None)));
        match self.approvals.join(&question) {
            Some(Ok(waiting)) => return Ok(waiting),
            Some(Err(_)) => return crowded(ruling),
            None if !self.approvals.take_room() => return crowded(ruling),
            None => {}
        }
        let rule = ruling.rule.as_deref().unwrap_or_default().to_owned();
        let id = |seq| format!("{}-{seq}", self.sandbox);
        let asked = |seq| Entry::Asked { request: id(seq), crossing: crossing.record(), rule: rule.clone() };
        match self.record(asked) {
            Ok(seq) => Ok(self.approvals.ask(id(seq), &self.name, &question, &rule)),
            Err(err) => Err(Box::new(Err(self.unrecorded(crossing, &err)))),
        }
    }

    /// What a person said counts if the rules still ask. Rules that changed meanwhile go before it.
    fn settle(&self, crossing: &Crossing, answered: Option<Answered>) -> Result<Permit, Denial> {
        let ruling = self.rule(crossing);
        let Some(Answered { request, verdict, by }) = answered else {
            return self.deny(crossing, Ruling { reason: Reason::Unanswered, ..ruling }, None);
        };
        match (verdict, ruling.verdict) {
            (Given::Approved, Verdict::Allow | Verdict::Ask) => {
                self.allow(crossing, ruling, Some(format!("approved by {by}, request {request}")))
            }
            (Given::Approved, Verdict::Deny) => self.deny(crossing, ruling, None),
            (Given::Refused, _) => {
                let detail = format!("refused by {by}, request {request}");
                self.deny(crossing, Ruling { reason: Reason::Refused, ..ruling }, Some(detail))
            }
        }
    }
}

impl Ruling {
    fn permit(self, kind: Kind, trace: Trace) -> Permit {
        let Ruling { tls, private, pins, body, meter, asks, .. } = self;
        Permit { kind, trace, tls, private, pins, body, meter, was_asked: asks }
    }
}

impl From<Judged<'_>> for Ruling {
    fn from(judged: Judged<'_>) -> Ruling {
        let (verdict, reason) = match judged.verdict {
            Some(Verdict::Deny) => (Verdict::Deny, Reason::Rule),
            Some(Verdict::Ask) => (Verdict::Ask, Reason::Ask),
            Some(Verdict::Allow) => (Verdict::Allow, Reason::NoRule),
            None => (Verdict::Deny, Reason::NoRule),
        };
        Ruling {
            verdict,
            reason,
            rule: judged.rule.map(CompiledRule::kept_words),
            is_git: judged.rule.is_some_and(CompiledRule::is_about_git),
            tls: judged.tls,
            private: judged.rule.map_or(Vec::new(), |rule| rule.private().to_vec()),
            pins: judged.rule.map_or(Vec::new(), |rule| rule.pins().to_vec()),
            body: judged.rule.and_then(CompiledRule::body),
            meter: Meter::default(),
            asks: verdict == Verdict::Ask,
        }
    }
}

fn alike(crossing: &Crossing, ruling: &Ruling, excused: Option<Reason>, detail: Option<&str>) -> Alike {
    Alike {
        host: crossing.target().to_string(),
        port: crossing.port(),
        what: crossing.sort(),
        rule: ruling.rule.clone(),
        excused,
        detail: detail.map(str::to_owned),
    }
}

/// A name is known inside if a connection to it could be allowed, or asked about, at any port.
fn resolve(judge: &Judge, crossing: &Crossing) -> Ruling {
    let target = crossing.target();
    let open = target.name().map(|name| judge.could_match(name)).unwrap_or_default();
    match open.first() {
        Some(ports) => {
            Ruling { verdict: Verdict::Allow, ..Ruling::from(judge.connect(&target, ports.first)) }
        }
        // Port 443 stands for the others: what is denied there is what a person reads in the policy.
        None => Ruling { verdict: Verdict::Deny, ..Ruling::from(judge.connect(&target, 443)) },
    }
}

fn publish(is_published: bool) -> Ruling {
    let (verdict, rule) = match is_published {
        true => (Verdict::Allow, Some("publish (--publish)".into())),
        false => (Verdict::Deny, None),
    };
    Ruling {
        verdict,
        reason: Reason::NoRule,
        rule,
        is_git: false,
        tls: Tls::Opaque,
        private: Vec::new(),
        pins: Vec::new(),
        body: None,
        meter: Meter::default(),
        asks: false,
    }
}

/// A crossing that waits. If the program gives up, that is recorded.
struct Parked<'a> {
    gate: &'a Gate,
    crossing: &'a Crossing,
    rule: Option<Arc<str>>,
    request: String,
}

impl Parked<'_> {
    /// It was decided.
    fn end<T>(mut self, decide: impl FnOnce() -> T) -> T {
        self.request.clear();
        decide()
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        if self.request.is_empty() {
            return;
        }
        self.gate.record_or_owe(Entry::Decision {
            crossing: self.crossing.record(),
            verdict: Verdict::Deny,
            audit_only: false,
            rule: self.rule.as_deref().map(str::to_owned),
            reason: Some(Reason::Abandoned.word().to_owned()),
            detail: Some(format!("request {}", self.request)),
            flow: None,
            times: None,
        });
    }
}
