//! Why the rules say what they say.

use super::{CompiledRule, Judge, Judged, compile::verdict_word};
use crate::{
    address::{Special, check},
    host::{Destination, Target},
    pattern::Pattern,
};
use airlock_protocol::policy::{Ports, Verdict};
use std::fmt;

/// A decision with its reasons.
#[derive(Debug, Clone)]
pub struct Explained<'a> {
    /// What was asked about.
    pub destination: Destination,
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
}

impl Judge {
    /// As [`Judge::connect`], with the reasons. Goes through all rules.
    pub fn explain(&self, target: &Target, port: u16) -> Explained<'_> {
        let judged = self.connect(target, port);
        let end = judged.rule.map_or(self.rules.len(), CompiledRule::index);
        let looked_at = self.rules.iter().take(end);
        let passed = looked_at.map(|rule| Passed { rule, missed: missed(rule, target) }).collect();
        let destination = Destination { target: target.clone(), port: Some(port) };
        Explained { destination, judged, closed: closed(target, judged), passed }
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

/// Why a rule that does not match does not. A rule that is about the host misses the port.
fn missed(rule: &CompiledRule, target: &Target) -> Missed {
    let about = |host: &&Pattern| host.matches(target);
    let Some(host) = rule.hosts().iter().find(about) else {
        return nearly(rule, target);
    };
    let host_airlock = target.name().is_some_and(|name| name.is_host_airlock());
    match host {
        Pattern::EveryName if host_airlock && rule.verdict() != Verdict::Deny => Missed::HostAirlock,
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
        }
    }
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.destination)?;
        match (self.judged.rule, self.closed) {
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
