//! Why the rules say what they say.

use super::{CompiledRule, Judge, Judged, compile::verdict_word};
use crate::{
    address::{Special, check},
    conditions::Miss,
    host::{Destination, Target},
    pattern::Pattern,
    request::Request,
    url::Asked,
};
use airlock_protocol::policy::{Ports, Verdict};
use std::fmt;

/// A decision with its reasons.
#[derive(Debug, Clone)]
pub struct Explained<'a> {
    /// What was asked about.
    pub destination: Destination,
    /// The request, if it was one.
    pub request: Option<&'a Request>,
    /// What the rules say.
    pub judged: Judged<'a>,
    /// What keeps an address closed although a rule would let it pass: it is special, and the rule does not open it.
    pub closed: Option<Special>,
    /// The rules that were looked at before and did not match, in order.
    pub passed: Vec<Passed<'a>>,
}

/// A rule that did not match.
#[derive(Debug, Clone, Copy)]
pub struct Passed<'a> {
    /// Which.
    pub rule: &'a CompiledRule,
    /// Why not.
    pub missed: Missed,
}

/// Why a rule did not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// It is about other hosts.
    Host,
    /// Its wildcard is for the names under the one that was asked about.
    Apex,
    /// It is about names, and this is an address.
    Literal,
    /// Its `*` does not speak about the host's own loopback.
    HostAirlock,
    /// The host is right, the port is another.
    Port,
    /// It is about some requests, and a connection was asked about.
    Inside,
    /// Host and port are right, something about the request is not.
    Request(Miss),
}

impl Judge {
    /// As [`Judge::connect`], with the reasons. Goes through all rules.
    pub fn explain(&self, target: &Target, port: u16) -> Explained<'_> {
        let judged = self.connect(target, port);
        let end = judged.rule.map_or(self.rules.len(), CompiledRule::index);
        let looked_at = self.rules.iter().take(end);
        let passed = looked_at.map(|rule| Passed { rule, missed: missed(rule, target, port) }).collect();
        let destination = Destination { target: target.clone(), port: Some(port) };
        Explained { destination, request: None, judged, closed: closed(target, judged), passed }
    }

    /// As [`Judge::request`], with the reasons. Goes through all rules.
    pub fn explain_request<'a>(&'a self, request: &'a Request) -> Explained<'a> {
        let (target, port) = (&request.target, request.port);
        let judged = self.request(request);
        let end = judged.rule.map_or(self.rules.len(), CompiledRule::index);
        let why = |rule: &'a CompiledRule| match (missed(rule, target, port), rule.conditions()) {
            (Missed::Inside, Some(conditions)) => {
                conditions.missed(request).map_or(Missed::Port, Missed::Request)
            }
            (missed, _) => missed,
        };
        let passed = self.rules.iter().take(end).map(|rule| Passed { rule, missed: why(rule) }).collect();
        let destination = Destination { target: target.clone(), port: Some(port) };
        Explained { destination, request: Some(request), judged, closed: closed(target, judged), passed }
    }

    /// What the rules say about what a person asked. A URL without a method is a `GET` where requests are judged, and a
    /// connection elsewhere.
    pub fn explain_asked<'a>(&'a self, asked: &'a Asked) -> Explained<'a> {
        let (target, port) = (&asked.destination.target, asked.destination.port_or_https());
        match self.request_of(asked) {
            Some(request) => self.explain_request(request),
            None => self.explain(target, port),
        }
    }

    /// As [`Judge::explain_asked`], without the reasons.
    pub fn judge_asked(&self, asked: &Asked) -> Judged<'_> {
        match self.request_of(asked) {
            Some(request) => self.request(request),
            None => self.connect(&asked.destination.target, asked.destination.port_or_https()),
        }
    }

    fn request_of<'a>(&self, asked: &'a Asked) -> Option<&'a Request> {
        let request = asked.request.as_ref()?;
        (asked.has_method || self.connect(&request.target, request.port).inside).then_some(request)
    }
}

impl Explained<'_> {
    /// What happens: nothing matched, or an address that stays closed, is denied.
    pub fn verdict(&self) -> Verdict {
        match self.closed {
            Some(_) => Verdict::Deny,
            None => self.judged.verdict.unwrap_or(Verdict::Deny),
        }
    }

    /// The rules that came close: the host was right, or nearly.
    pub fn near(&self) -> impl Iterator<Item = &Passed<'_>> {
        self.passed.iter().filter(|passed| passed.missed != Missed::Host)
    }
}

/// What a name leads to is seen only when it is dialled; an address shows it at once.
fn closed(target: &Target, judged: Judged<'_>) -> Option<Special> {
    let (Target::Address(address), Some(rule)) = (target, judged.rule) else { return None };
    check(*address, rule.private()).err().filter(|_| rule.verdict() != Verdict::Deny)
}

/// Why a rule that does not match a connection does not.
fn missed(rule: &CompiledRule, target: &Target, port: u16) -> Missed {
    let about = |host: &&Pattern| host.matches(target);
    let Some(host) = rule.hosts().iter().find(about) else {
        return nearly(rule, target);
    };
    let host_airlock = target.name().is_some_and(|name| name.is_host_airlock());
    match host {
        Pattern::EveryName if host_airlock && rule.verdict() != Verdict::Deny => Missed::HostAirlock,
        _ if rule.ports().iter().any(|run| run.contains(port)) => Missed::Inside,
        _ => Missed::Port,
    }
}

fn nearly(rule: &CompiledRule, target: &Target) -> Missed {
    let apex = |host: &Pattern| matches!((host, target), (Pattern::Under(suffix), Target::Name(name)) if suffix == name);
    if rule.hosts().iter().any(apex) {
        return Missed::Apex;
    }
    match target {
        Target::Address(_) if rule.hosts().contains(&Pattern::EveryName) => Missed::Literal,
        _ => Missed::Host,
    }
}

impl fmt::Display for Passed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule.words())?;
        match self.missed {
            Missed::Host => f.write_str("another host"),
            Missed::Apex => f.write_str("a wildcard is for the names under a name, not for the name itself"),
            Missed::Literal => f.write_str("`*` is for names; an address is named as such"),
            Missed::HostAirlock => {
                f.write_str("`*` does not reach this host's loopback; host.airlock is named in full")
            }
            Missed::Port => write!(f, "only on {}", PortWords(self.rule.ports())),
            Missed::Inside => f.write_str("it is about some requests"),
            Missed::Request(miss) => match self.rule.conditions() {
                Some(conditions) => f.write_str(&conditions.wanted(miss)),
                None => f.write_str("another request"),
            },
        }
    }
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.request {
            None => write!(f, "{}: ", self.destination)?,
            Some(request) => write!(f, "{} {}{}: ", request.method, self.destination, request.path)?,
        }
        match (self.judged.rule, self.closed) {
            (Some(rule), None) if self.judged.inside => {
                writeln!(f, "opened, since {} is about requests; each of them is judged", rule.words())?;
            }
            (None, _) => writeln!(f, "deny, since no rule matches")?,
            (Some(rule), None) => writeln!(f, "{} by {}", verdict_word(rule.verdict()), rule.words())?,
            (Some(_), Some(kind)) if kind.is_never() => {
                writeln!(f, "deny, since the address is {}, which no rule opens", kind.word())?;
            }
            (Some(rule), Some(kind)) => {
                writeln!(
                    f,
                    "deny, since the address is {} and {} does not open it",
                    kind.word(),
                    rule.words()
                )?;
            }
        }
        for passed in self.near() {
            writeln!(f, "  passed over {passed}")?;
        }
        Ok(())
    }
}

/// Ports for a person: `port 443`, `ports 80, 443 and 8000-8100`.
pub(crate) struct PortWords<'a>(pub(crate) &'a [Ports]);

impl fmt::Display for PortWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == [Ports::ALL] {
            return f.write_str("every port");
        }
        let many = self.0.len() > 1 || self.0.iter().any(|run| run.first != run.last);
        f.write_str(if many { "ports " } else { "port " })?;
        for (place, run) in self.0.iter().enumerate() {
            match place {
                0 => {}
                place if place + 1 == self.0.len() => f.write_str(" and ")?,
                _ => f.write_str(", ")?,
            }
            match run.first == run.last {
                true => write!(f, "{}", run.first)?,
                false => write!(f, "{}-{}", run.first, run.last)?,
            }
        }
        Ok(())
    }
}
