//! One rule, from a file or a flag.

use super::{
    BadPolicy, Source, ports,
    read::{Value, strings, unknown},
};
use crate::{
    address::{Cidr, Special, special, special_range},
    groups::{self, Discovered, NoGroup},
    judge::{merged, verdict_word},
    pattern::Pattern,
};
use airlock_protocol::policy::{Origin, Ports, Rule, Tls, Verdict};
use std::{collections::HashSet, ops::Range};
use toml::de::{DeTable, DeValue};

/// A rule and what is checked when all rules are known.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) rule: Rule,
    /// Its place in the text.
    pub(super) at: Range<usize>,
    /// The place of the word `allow`, `deny` or `ask`.
    pub(super) verdict_at: Range<usize>,
    /// What it must match, or with a `!` before it must not.
    pub(super) examples: Vec<(String, Range<usize>)>,
}

/// Reads hosts, with the groups that are known.
pub(super) struct Hosts<'a> {
    pub(super) source: Source<'a>,
    pub(super) known: &'a Discovered,
}

const KEYS: [&str; 7] = ["allow", "deny", "ask", "ports", "tls", "private", "examples"];

/// Keys about what is inside a connection.
const REQUEST_KEYS: [&str; 11] = [
    "methods",
    "paths",
    "query",
    "headers",
    "websocket",
    "git",
    "repositories",
    "rate",
    "bytes",
    "bandwidth",
    "pins",
];

/// Reads a `[[rule]]` that stands at `at`, on `line`.
pub(super) fn read(
    hosts: &Hosts<'_>,
    table: &DeTable<'_>,
    line: u32,
    at: Range<usize>,
) -> Result<Read, BadPolicy> {
    let source = hosts.source;
    refuse_keys(source, table)?;
    let (verdict, value) = verdict(source, table, at.clone())?;
    let verdict_at = table.get_key_value(verdict_word(verdict)).map_or(at.clone(), |(key, _)| key.span());
    let listed = strings(source, value, verdict_word(verdict))?;
    let ports = match table.get("ports") {
        None => None,
        Some(value) => Some(read_ports(source, value)?),
    };
    let mut names = Vec::new();
    for (text, at) in &listed {
        for host in hosts.expand(text, at.clone())? {
            permissible(source, &host, at.clone(), verdict, ports.as_deref())?;
            names.push(host.to_string());
        }
    }
    if names.is_empty() {
        return Err(source
            .bad(value.span(), "a rule names at least one host")
            .fix("name one, or remove the rule"));
    }
    let rule = Rule {
        verdict,
        hosts: once_each(names),
        ports: ports.unwrap_or_else(ports::usual),
        tls: read_tls(source, table, verdict)?,
        private: read_private(source, table, verdict)?,
        origin: Origin { from: source.name.to_string(), line },
    };
    let examples = match table.get("examples") {
        None => Vec::new(),
        Some(value) => strings(source, value, "examples")?,
    };
    let examples = examples.into_iter().map(|(text, at)| (text.to_string(), at)).collect();
    Ok(Read { rule, at, verdict_at, examples })
}

/// Reads `HOST[:PORTS]` of a flag, or an entry of a list that has the same form.
pub(super) fn from_flag(
    verdict: Verdict,
    source: Source<'_>,
    known: &Discovered,
) -> Result<Vec<Rule>, BadPolicy> {
    let hosts = Hosts { source, known };
    let flat = |bad: BadPolicy| BadPolicy { line: 0, ..bad };
    let origin = match groups::find(split_ports(source.text).0, known) {
        Ok(group) if groups::is_name(&group.name) => format!("group {}", group.name),
        _ => source.name.to_string(),
    };
    let rule = one_line(&hosts, verdict, source.text, 0..source.text.len()).map_err(flat)?;
    Ok(vec![Rule { origin: Origin { from: origin, line: 0 }, ..rule }])
}

/// A rule of `HOST[:PORTS]`, which stands at `at`.
pub(super) fn one_line(
    hosts: &Hosts<'_>,
    verdict: Verdict,
    text: &str,
    at: Range<usize>,
) -> Result<Rule, BadPolicy> {
    let (host, written) = split_ports(text);
    let ports = match written {
        None => None,
        Some(text) => {
            let run =
                ports::parse(text).map_err(|why| hosts.source.bad(at.clone(), not_host(host)).why(why))?;
            Some(vec![run])
        }
    };
    let mut names = Vec::new();
    for host in hosts.expand(host, at.clone())? {
        permissible(hosts.source, &host, at.clone(), verdict, ports.as_deref())?;
        names.push(host.to_string());
    }
    Ok(Rule {
        verdict,
        hosts: once_each(names),
        ports: ports.unwrap_or_else(ports::usual),
        tls: Tls::default(),
        private: Vec::new(),
        origin: Origin { from: hosts.source.name.to_string(), line: hosts.source.line(at.start) },
    })
}

impl Hosts<'_> {
    /// The hosts that one word stands for: those of a group, or itself.
    fn expand(&self, text: &str, at: Range<usize>) -> Result<Vec<Pattern>, BadPolicy> {
        if !groups::is_name(text) || text == "localhost" {
            return Ok(vec![self.one(text, at)?]);
        }
        match groups::find(text, self.known) {
            Ok(group) => group.hosts.iter().map(|host| self.one(host, at.clone())).collect(),
            Err(err) => Err(no_group(self.source.bad(at, err.to_string()), &err)),
        }
    }

    /// One host. A name of one label ends in a dot, lest a slip in the name of a group pass for it.
    pub(super) fn one(&self, text: &str, at: Range<usize>) -> Result<Pattern, BadPolicy> {
        let bad = || self.source.bad(at.clone(), not_host(text));
        let host: Pattern = text
            .parse()
            .map_err(|err: crate::pattern::BadPattern| bad().why(err.to_string()).fix(err.fix()))?;
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

fn refuse_keys(source: Source<'_>, table: &DeTable<'_>) -> Result<(), BadPolicy> {
    let mut keys: Vec<_> = table.keys().collect();
    keys.sort_by_key(|key| key.span().start);
    for key in keys {
        let name = key.get_ref().as_ref();
        if REQUEST_KEYS.contains(&name) {
            let bad = source.bad(key.span(), format!("`{name}` is not judged by this version"));
            let why = "it is about what is inside a connection, and this version judges connections only; \
                a rule that was half obeyed would allow more than it says";
            return Err(bad.why(why).fix(format!("remove `{name}`; a rule with `ask` lets a person decide")));
        }
        if !KEYS.contains(&name) {
            return Err(unknown(source, key.span(), name, &KEYS));
        }
    }
    Ok(())
}

fn verdict<'a, 'i>(
    source: Source<'_>,
    table: &'a DeTable<'i>,
    at: Range<usize>,
) -> Result<(Verdict, Value<'a, 'i>), BadPolicy> {
    let all = [Verdict::Allow, Verdict::Deny, Verdict::Ask];
    let given: Vec<_> =
        all.into_iter().filter_map(|verdict| Some((verdict, table.get(verdict_word(verdict))?))).collect();
    match given.as_slice() {
        [one] => Ok(*one),
        [] => Err(source
            .bad(at, "a rule allows, denies or asks")
            .fix("write allow = \"api.example.com\", or deny, or ask")),
        [_, (second, value), ..] => {
            let what = format!("a rule says one thing, and `{}` is a second", verdict_word(*second));
            Err(source.bad(value.span(), what).fix("make two rules of it"))
        }
    }
}

fn read_ports(source: Source<'_>, value: Value<'_, '_>) -> Result<Vec<Ports>, BadPolicy> {
    let one = |value: Value<'_, '_>| {
        let bad = |why: &str| source.bad(value.span(), "this is not a port").why(why);
        match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => ports::parse(number.as_str()).map_err(bad),
            DeValue::String(text) => ports::parse(text).map_err(bad),
            _ => Err(bad("ports are numbers, runs such as \"8000-8100\", or \"*\"")),
        }
    };
    let runs = match value.get_ref() {
        DeValue::Array(values) => values.iter().map(one).collect::<Result<Vec<_>, _>>()?,
        _ => vec![one(value)?],
    };
    if runs.is_empty() {
        return Err(source
            .bad(value.span(), "a rule names at least one port")
            .fix("remove `ports` for 80 and 443"));
    }
    Ok(merged(runs))
}

fn read_tls(source: Source<'_>, table: &DeTable<'_>, verdict: Verdict) -> Result<Tls, BadPolicy> {
    let Some(value) = table.get("tls") else { return Ok(Tls::default()) };
    if verdict == Verdict::Deny {
        return Err(pointless(source, value, "tls"));
    }
    match value.get_ref() {
        DeValue::String(text) if text == "opaque" => Ok(Tls::Opaque),
        DeValue::String(text) if text == "checked" => Ok(Tls::Checked),
        _ => Err(source.bad(value.span(), "`tls` is \"checked\" or \"opaque\"")),
    }
}

fn read_private(source: Source<'_>, table: &DeTable<'_>, verdict: Verdict) -> Result<Vec<String>, BadPolicy> {
    let Some(value) = table.get("private") else { return Ok(Vec::new()) };
    if verdict == Verdict::Deny {
        return Err(pointless(source, value, "private"));
    }
    let mut ranges = Vec::new();
    for (text, at) in strings(source, value, "private")? {
        let bad = || source.bad(at.clone(), format!("`{}` cannot be opened", text.escape_debug()));
        let fix = "write a private range such as 10.20.0.0/16";
        let range: Cidr =
            text.parse().map_err(|err: crate::address::BadCidr| bad().why(err.to_string()).fix(fix))?;
        match kind_of(&range) {
            Some(kind) if kind.is_never() => {
                return Err(bad().why(format!("it is {}, which no rule opens", kind.word())).fix(fix));
            }
            Some(_) => ranges.push(range.to_string()),
            None => {
                return Err(bad()
                    .why("it is not a private range, so that it is either open already or too wide")
                    .fix(fix));
            }
        }
    }
    Ok(once_each(ranges))
}

fn pointless(source: Source<'_>, value: Value<'_, '_>, key: &str) -> BadPolicy {
    source
        .bad(value.span(), format!("`{key}` means nothing in a rule that denies"))
        .fix(format!("remove `{key}`"))
}

/// Refuses a host that no rule may open, or not so widely.
fn permissible(
    source: Source<'_>,
    host: &Pattern,
    at: Range<usize>,
    verdict: Verdict,
    ports: Option<&[Ports]>,
) -> Result<(), BadPolicy> {
    if verdict == Verdict::Deny {
        return Ok(());
    }
    match host {
        Pattern::Addresses(range) => match kind_of(range) {
            Some(kind) if kind.is_never() => {
                let bad = source.bad(at, format!("`{range}` cannot be opened"));
                Err(bad.why(format!("it is {}, which no rule opens", kind.word())).fix("remove it"))
            }
            _ => Ok(()),
        },
        Pattern::Name(name) if name.is_host_airlock() => match ports {
            None | Some([Ports::ALL]) => {
                let bad = source
                    .bad(at, format!("`{name}` is opened by port"))
                    .why("it is this host's own loopback");
                Err(bad.fix("name the ports: ports = [3000] in a file, host.airlock:3000 in a flag"))
            }
            Some(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

fn kind_of(range: &Cidr) -> Option<Special> {
    match range.is_single() {
        true => special(range.network()),
        false => special_range(range),
    }
}

/// Host and ports of `HOST[:PORTS]`. The colons of a bare IPv6 address are its own, and so is that of a URL.
fn split_ports(text: &str) -> (&str, Option<&str>) {
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

fn once_each(mut texts: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    texts.retain(|text| seen.insert(text.clone()));
    texts
}
