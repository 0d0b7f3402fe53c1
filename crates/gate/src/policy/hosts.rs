//! The hosts of a rule: patterns, groups, and what no rule may open.

use super::{BadPolicy, Source, ports};
use crate::{
    address::{Cidr, Special, special, special_range},
    groups::{self, Discovered, NoGroup},
    pattern::{BadPattern, Pattern},
};
use airlock_protocol::policy::{Ports, Verdict};
use std::{collections::HashSet, ops::Range};

/// Reads hosts, with the groups that are known.
pub(super) struct Hosts<'a> {
    pub(super) source: Source<'a>,
    pub(super) known: &'a Discovered,
}

/// Hosts that share their ports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) ports: Vec<Ports>,
    pub(super) hosts: Vec<String>,
}

/// A word and its place.
pub(super) type Word<'a> = (&'a str, Range<usize>);

impl Hosts<'_> {
    /// The hosts that `words` stand for, on the `ports` of the rule; where it names none, on those that a group's entry names, or else
    /// on 80 and 443.
    pub(super) fn named(
        &self,
        verdict: Verdict,
        words: &[Word<'_>],
        ports: Option<&[Ports]>,
    ) -> Result<Vec<Named>, BadPolicy> {
        let mut all: Vec<Named> = Vec::new();
        let mut seen = HashSet::new();
        let is_open = ports.is_none();
        for (text, at) in words {
            for (host, own) in self.expand(text, at.clone())? {
                let given = ports.map(<[Ports]>::to_vec).or(own.map(|run| vec![run]));
                self.permit(verdict, &host, given.as_deref(), at.clone())?;
                let ports = given.unwrap_or_else(ports::usual);
                let host = host.to_string();
                let apart = own.filter(|_| is_open).map(|run| (run.first, run.last));
                if !seen.insert((host.clone(), apart)) {
                    continue;
                }
                match all.iter_mut().find(|named| named.ports == ports) {
                    Some(named) => named.hosts.push(host),
                    None => all.push(Named { ports, hosts: vec![host] }),
                }
            }
        }
        Ok(all)
    }

    /// An entry of a group: `HOST[:PORTS]`.
    pub(super) fn entry(&self, text: &str, at: Range<usize>) -> Result<(Pattern, Option<Ports>), BadPolicy> {
        let (host, run) = split_ports(text);
        let run = match run {
            None => None,
            Some(run) => Some(self.run(text, run, at.clone())?),
        };
        Ok((self.one(host, at)?, run))
    }

    /// The ports behind a host.
    pub(super) fn run(&self, text: &str, run: &str, at: Range<usize>) -> Result<Ports, BadPolicy> {
        ports::parse(run).map_err(|why| self.source.bad(at, not_host(text)).why(why).fix("write HOST:PORT"))
    }

    /// The hosts that one word stands for: those of a group, or itself.
    fn expand(&self, text: &str, at: Range<usize>) -> Result<Vec<(Pattern, Option<Ports>)>, BadPolicy> {
        if !groups::is_name(text) || text == "localhost" {
            return Ok(vec![(self.one(text, at)?, None)]);
        }
        match groups::find(text, self.known) {
            Ok(group) => group.hosts.iter().map(|host| self.entry(host, at.clone())).collect(),
            Err(err) => Err(no_group(self.source.bad(at, err.to_string()), &err)),
        }
    }

    /// Refuses a host that no rule may open, or not so widely.
    fn permit(
        &self,
        verdict: Verdict,
        host: &Pattern,
        ports: Option<&[Ports]>,
        at: Range<usize>,
    ) -> Result<(), BadPolicy> {
        let bad = |what: String| self.source.bad(at, what);
        match host {
            _ if verdict == Verdict::Deny => Ok(()),
            Pattern::Addresses(range) => match kind_of(range) {
                Some(kind) if kind.is_never() => {
                    let why = format!("it is {}, which no rule opens", kind.word());
                    Err(bad(format!("`{range}` cannot be opened")).why(why).fix("remove it"))
                }
                _ => Ok(()),
            },
            Pattern::Under(name) if name.is_host_airlock() => {
                let bad = bad(format!("`{host}` leads nowhere"))
                    .why("this host's own loopback has no names below it");
                Err(bad.fix("name it and its ports: host.airlock:3000"))
            }
            host if host.is_host_airlock() && matches!(ports, None | Some([Ports::ALL])) => {
                let bad = bad(format!("`{host}` is opened by port")).why("it is this host's own loopback");
                Err(bad.fix("name the ports: ports = [3000] in a file, host.airlock:3000 in a flag"))
            }
            _ => Ok(()),
        }
    }

    /// One host. A name of one label ends in a dot, lest a slip in the name of a group pass for it.
    fn one(&self, text: &str, at: Range<usize>) -> Result<Pattern, BadPolicy> {
        let bad = || self.source.bad(at.clone(), not_host(text));
        let host: Pattern =
            text.parse().map_err(|err: BadPattern| bad().why(err.to_string()).fix(err.fix()))?;
        let (Pattern::Name(name) | Pattern::Under(name)) = &host else { return Ok(host) };
        if name.labels().next_back() == Some("localhost") {
            let why = "inside a sandbox localhost is the sandbox itself, which needs no rule";
            return Err(bad().why(why).fix("this host's own loopback is host.airlock, with ports"));
        }
        if name.labels().count() < 2 && !text.ends_with('.') {
            let fix = format!(
                "`airlock policy groups` lists the groups; for a host of that name write \"{name}.\""
            );
            return Err(bad()
                .why("a word without a dot is a group, and there is none of that name")
                .fix(fix));
        }
        Ok(host)
    }
}

fn no_group(bad: BadPolicy, err: &NoGroup) -> BadPolicy {
    match err {
        NoGroup::Unknown { suggestion: Some(near), .. } => bad.fix(format!("did you mean {near}?")),
        NoGroup::Unknown { name, suggestion: None } => bad.fix(format!(
            "`airlock policy groups` lists the groups; for a host of that name write \"{name}.\""
        )),
        NoGroup::Silent { name, setting, .. } => {
            bad.fix(format!("{setting}, or write [groups.{name}] with hosts = [\"…\"] in the file"))
        }
    }
}

fn not_host(text: &str) -> String {
    let text: String = text.chars().take(100).collect();
    format!("`{}` is not a host that a rule can name", text.escape_debug())
}

/// What is special about all of a range.
pub(super) fn kind_of(range: &Cidr) -> Option<Special> {
    match range.is_single() {
        true => special(range.network()),
        false => special_range(range),
    }
}

/// Host and ports of `HOST[:PORTS]`. The colons of a bare IPv6 address are its own, and so is that of a URL.
pub(super) fn split_ports(text: &str) -> (&str, Option<&str>) {
    let end = text.rfind(']').unwrap_or(0);
    let tail = text.get(end..).unwrap_or("");
    match tail.matches(':').count() {
        1 if !text.contains("://") => {
            let Some((head, ports)) = tail.split_once(':') else { return (text, None) };
            (text.get(..end + head.len()).unwrap_or(text), Some(ports))
        }
        _ => (text, None),
    }
}
