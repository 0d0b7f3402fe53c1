//! What the rules say about a connection, and about a request inside one. Pure: it neither waits nor writes.
//!
//! The first rule that matches decides. The rules are compiled into an index, so that a decision costs a few look-ups, however many
//! rules there are. Rules that ask something of requests decide no connection: where one of them could still speak, the connection
//! is opened if some request inside could be allowed, and each request is judged.
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
mod request;

pub use crate::conditions::Miss;
pub(crate) use claims::merged;
pub use compile::CompiledRule;
pub(crate) use compile::{git_word, place, verdict_word};
pub(crate) use explain::PortWords;
pub use explain::{Explained, Missed, Passed};
pub(crate) use request::Narrowest;

use crate::{
    address::Cidr,
    conditions::Glance,
    host::{HostName, Target},
    request::Request,
};
use airlock_protocol::policy::{Ports, Tls, Verdict};
use claims::{Claims, deciding};
use std::{collections::HashMap, net::IpAddr};

/// The rules of a sandbox, ready to decide.
#[derive(Debug, Default)]
pub struct Judge {
    rules: Vec<CompiledRule>,
    names: HashMap<HostName, Said>,
    under: HashMap<HostName, Said>,
    every: Said,
    /// As `every`, of the rules that deny: no other `*` speaks about the host's own loopback.
    every_denied: Said,
    addresses: HashMap<Cidr, Said>,
    /// Lengths of prefixes that occur, for IPv4 and IPv6.
    prefixes: [Vec<u8>; 2],
    /// Whether any rule asks something of requests.
    looks_inside: bool,
}

/// What is said about the hosts of one pattern.
#[derive(Debug, Default)]
struct Said {
    /// By rules about whole connections.
    whole: Claims,
    /// By rules that ask something of requests, in their order.
    inside: Vec<(Ports, usize, Glance)>,
}

/// What the rules say about one connection, or about one request.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// The verdict of the rule; none where no rule matched, which is a denial.
    pub verdict: Option<Verdict>,
    /// The rule. Of a connection whose requests decide: the first that could let one of them pass.
    pub rule: Option<&'a CompiledRule>,
    /// What must be true of TLS inside.
    pub tls: Tls,
    /// Whether the requests inside a connection decide, each for itself.
    pub inside: bool,
}

impl Judge {
    /// The rules in order.
    pub fn rules(&self) -> &[CompiledRule] {
        &self.rules
    }

    /// Whether some connection has to be opened.
    pub fn needs_opening(&self) -> bool {
        self.looks_inside || self.rules.iter().any(|rule| rule.tls() == Tls::Opened)
    }

    /// What the rules say about a connection to `target`.
    pub fn connect(&self, target: &Target, port: u16) -> Judged<'_> {
        match target {
            Target::Name(name) => self.judge(self.about_name(name), port),
            Target::Address(address) => self.judge(self.about_address(address.to_canonical().into()), port),
        }
    }

    fn judge<'a>(&'a self, about: impl Iterator<Item = &'a Said> + Clone, port: u16) -> Judged<'a> {
        let whole = about.clone().filter_map(|said| said.whole.at(port)).min();
        if !self.looks_inside {
            return self.by_whole(whole);
        }
        let before = whole.unwrap_or(usize::MAX);
        if !about.clone().any(|said| said.inside_at(port).any(|rule| rule < before)) {
            return self.by_whole(whole);
        }
        let first = |said: &'a Said| said.inside_at(port).find(|rule| *rule < before && self.opens(*rule));
        let opening = about.filter_map(first).chain(whole.filter(|rule| self.opens(*rule))).min();
        let Some(rule) = opening.and_then(|index| self.rules.get(index)) else { return self.by_whole(whole) };
        Judged { verdict: Some(Verdict::Allow), rule: Some(rule), tls: Tls::Opened, inside: true }
    }

    fn by_whole(&self, rule: Option<usize>) -> Judged<'_> {
        let rule = rule.and_then(|index| self.rules.get(index));
        let tls = rule.map_or(Tls::Checked, CompiledRule::tls);
        Judged { verdict: rule.map(CompiledRule::verdict), rule, tls, inside: false }
    }

    /// The ports on which a connection to `name` would be allowed or asked about. None: the name is not known inside.
    pub fn could_match(&self, name: &HostName) -> Vec<Ports> {
        let about: Vec<&Said> = self.about_name(name).collect();
        self.open(&about)
    }

    /// The wildcard rule that lets `name` be known inside, by its index; none if a rule names it in full, or nothing does.
    pub fn wildcard_of(&self, name: &HostName) -> Option<usize> {
        if self.names.get(name).is_some_and(|said| said.rules().any(|rule| self.opens(rule))) {
            return None;
        }
        self.about_name(name).flat_map(Said::rules).filter(|rule| self.opens(*rule)).min()
    }

    /// Addresses and ports for which a connection would be allowed or asked about. No two overlap.
    pub fn literal_openings(&self) -> Vec<(Cidr, Ports)> {
        let mut ranges: Vec<&Cidr> = self.addresses.keys().collect();
        // A wide range comes before the narrower ones that it holds.
        ranges.sort_by_key(|range| (range.network(), range.prefix()));
        let mut openings: HashMap<Cidr, Vec<Ports>> = HashMap::new();
        for range in &ranges {
            let about: Vec<&Said> = self.about_address(**range).collect();
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

    /// The ports on which something could cross, if all of `about` speak.
    fn open(&self, about: &[&Said]) -> Vec<Ports> {
        let whole: Vec<&Claims> = about.iter().map(|said| &said.whole).collect();
        let decided = deciding(&whole, &[Ports::ALL]);
        let mut open: Vec<Ports> =
            decided.iter().filter(|(_, rule)| self.opens(*rule)).map(|(ports, _)| *ports).collect();
        for (ports, rule, _) in
            about.iter().flat_map(|said| &said.inside).filter(|(_, rule, _)| self.opens(*rule))
        {
            let earlier: Vec<Ports> =
                decided.iter().filter(|(_, other)| other < rule).map(|(ports, _)| *ports).collect();
            open.extend(claims::without(&[*ports], &earlier));
        }
        claims::merged(open)
    }

    fn about_name(&self, name: &HostName) -> impl Iterator<Item = &Said> + Clone {
        let every = if name.is_host_airlock() { &self.every_denied } else { &self.every };
        let parents = name.parents().filter_map(|parent| self.under.get(parent));
        self.names.get(name).into_iter().chain(parents).chain([every])
    }

    /// Whatever was said about all names under `suffix`.
    fn about_suffix(&self, suffix: &HostName) -> impl Iterator<Item = &Said> {
        let wider = suffix.parents().filter_map(|parent| self.under.get(parent));
        self.under.get(suffix).into_iter().chain(wider).chain([&self.every])
    }

    /// Whatever was said about ranges that hold all of `range`.
    fn about_address(&self, range: Cidr) -> impl Iterator<Item = &Said> + Clone {
        self.wider_than(range).chain([range]).filter_map(|range| self.addresses.get(&range))
    }

    /// The wider ranges that hold all of `range`, of the lengths that occur.
    fn wider_than(&self, range: Cidr) -> impl Iterator<Item = Cidr> + Clone {
        let [v4, v6] = &self.prefixes;
        let prefixes = if matches!(range.network(), IpAddr::V4(_)) { v4 } else { v6 };
        let wider = prefixes.iter().filter(move |prefix| **prefix < range.prefix());
        wider.map(move |prefix| Cidr::holding(range.network(), *prefix))
    }
}

impl Said {
    /// Rules that ask something of requests on `port`, in their order.
    fn inside_at(&self, port: u16) -> impl Iterator<Item = usize> {
        self.inside.iter().filter(move |(ports, ..)| ports.contains(port)).map(|(_, rule, _)| *rule)
    }

    /// Those of them that could fit `request` at a glance.
    fn inside_for<'a>(&'a self, request: &'a Request, method: Glance) -> impl Iterator<Item = usize> {
        let fits = move |(ports, _, glance): &&(Ports, usize, Glance)| {
            // A path that can be read in two ways is compared in both, later.
            let path = if request.read_as.is_some() { None } else { Some(request.path.as_bytes()) };
            ports.contains(request.port) && glance.could_fit(&method, path)
        };
        self.inside.iter().filter(fits).map(|(_, rule, _)| *rule)
    }

    /// The rules that decide about some port.
    fn rules(&self) -> impl Iterator<Item = usize> {
        self.whole.rules().chain(self.inside.iter().map(|(_, rule, _)| *rule))
    }
}

#[cfg(test)]
mod tests;
