//! What the rules say about a connection. Pure: it neither waits nor writes.
//!
//! The first rule that matches decides. The rules are compiled into an index, so that a decision costs a few look-ups, however many
//! rules there are.
//!
//! ```
//! use airlock_gate::{host::Target, judge::Judge, policy};
//! use airlock_protocol::policy::Verdict;
//! let file = policy::parse_toml("airlock.toml", "[[rule]]\nallow = '*.example.com'\nports = [443]")?;
//! let judge = Judge::compile(&file.policy)?;
//! let target: Target = "api.example.com".parse()?;
//! assert_eq!(judge.connect(&target, 443).verdict, Some(Verdict::Allow));
//! assert_eq!(judge.connect(&target, 22).verdict, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod claims;
mod compile;
mod explain;

pub(crate) use claims::merged;
pub use compile::CompiledRule;
pub(crate) use compile::{place, verdict_word};
pub(crate) use explain::PortWords;
pub use explain::{Explained, Missed, Passed};

use crate::{
    address::Cidr,
    host::{HostName, Target},
};
use airlock_protocol::policy::{Ports, Verdict};
use claims::{Claims, deciding};
use std::{collections::HashMap, net::IpAddr};

/// The rules of a sandbox, ready to decide.
#[derive(Debug, Default)]
pub struct Judge {
    rules: Vec<CompiledRule>,
    names: HashMap<HostName, Claims>,
    under: HashMap<HostName, Claims>,
    every: Claims,
    /// As `every`, of the rules that deny: no other `*` speaks about the host's own loopback.
    every_denied: Claims,
    addresses: HashMap<Cidr, Claims>,
    /// Lengths of prefixes that occur, for IPv4 and IPv6.
    prefixes: [Vec<u8>; 2],
}

/// What the rules say about one connection.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// The verdict of the rule; none where no rule matched, which is a denial.
    pub verdict: Option<Verdict>,
    /// The rule.
    pub rule: Option<&'a CompiledRule>,
}

impl Judge {
    /// The rules in order.
    pub fn rules(&self) -> &[CompiledRule] {
        &self.rules
    }

    /// What the rules say about a connection to `target`.
    pub fn connect(&self, target: &Target, port: u16) -> Judged<'_> {
        let first = match target {
            Target::Name(name) => self.about_name(name).filter_map(|claims| claims.at(port)).min(),
            Target::Address(address) => {
                self.about_address(address.to_canonical().into()).filter_map(|claims| claims.at(port)).min()
            }
        };
        let rule = first.and_then(|index| self.rules.get(index));
        Judged { verdict: rule.map(CompiledRule::verdict), rule }
    }

    /// The ports on which a connection to `name` would be allowed or asked about. None: the name is not known inside.
    pub fn could_match(&self, name: &HostName) -> Vec<Ports> {
        let about: Vec<&Claims> = self.about_name(name).collect();
        self.open(&about)
    }

    /// The wildcard rule that lets `name` be known inside, by its index; none if a rule names it in full, or nothing does.
    pub fn wildcard_of(&self, name: &HostName) -> Option<usize> {
        if self.names.get(name).is_some_and(|claims| claims.rules().any(|rule| self.opens(rule))) {
            return None;
        }
        self.about_name(name).flat_map(Claims::rules).filter(|rule| self.opens(*rule)).min()
    }

    /// Addresses and ports for which a connection would be allowed or asked about. No two overlap.
    pub fn literal_openings(&self) -> Vec<(Cidr, Ports)> {
        let mut ranges: Vec<&Cidr> = self.addresses.keys().collect();
        // A wide range comes before the narrower ones that it holds.
        ranges.sort_by_key(|range| (range.network(), range.prefix()));
        let mut openings: HashMap<Cidr, Vec<Ports>> = HashMap::new();
        for range in &ranges {
            let about: Vec<&Claims> = self.about_address(**range).collect();
            let wider = self.wider_than(**range).filter_map(|wider| openings.get(&wider));
            let known: Vec<Ports> = wider.flatten().copied().collect();
            openings.insert(**range, claims::without(&self.open(&about), &known));
        }
        let of = |range: &Cidr| {
            openings.get(range).into_iter().flatten().map(|ports| (*range, *ports)).collect::<Vec<_>>()
        };
        ranges.into_iter().flat_map(of).collect()
    }

    fn opens(&self, rule: usize) -> bool {
        self.rules.get(rule).is_some_and(|rule| rule.verdict() != Verdict::Deny)
    }

    /// The ports that rules which do not deny decide, if all of `about` speak.
    fn open(&self, about: &[&Claims]) -> Vec<Ports> {
        let decided = deciding(about, &[Ports::ALL])
            .into_iter()
            .filter(|(_, rule)| self.opens(*rule))
            .map(|(ports, _)| ports);
        claims::merged(decided.collect())
    }

    fn about_name(&self, name: &HostName) -> impl Iterator<Item = &Claims> {
        let every = if name.is_host_airlock() { &self.every_denied } else { &self.every };
        let parents = name.parents().filter_map(|parent| self.under.get(parent));
        self.names.get(name).into_iter().chain(parents).chain([every])
    }

    /// Whatever was said about all names under `suffix`.
    fn about_suffix(&self, suffix: &HostName) -> impl Iterator<Item = &Claims> {
        let wider = suffix.parents().filter_map(|parent| self.under.get(parent));
        self.under.get(suffix).into_iter().chain(wider).chain([&self.every])
    }

    /// Whatever was said about ranges that hold all of `range`.
    fn about_address(&self, range: Cidr) -> impl Iterator<Item = &Claims> {
        self.wider_than(range).chain([range]).filter_map(|range| self.addresses.get(&range))
    }

    /// The wider ranges that hold all of `range`, of the lengths that occur.
    fn wider_than(&self, range: Cidr) -> impl Iterator<Item = Cidr> {
        let [v4, v6] = &self.prefixes;
        let prefixes = if matches!(range.network(), IpAddr::V4(_)) { v4 } else { v6 };
        let wider = prefixes.iter().filter(move |prefix| **prefix < range.prefix());
        wider.map(move |prefix| Cidr::holding(range.network(), *prefix))
    }
}

#[cfg(test)]
mod tests;
