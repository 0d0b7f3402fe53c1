//! One rule, from a file or a flag.

use super::{
    BadPolicy, Source,
    hosts::{Hosts, Named, Word, kind_of, split_ports},
    inside::{self, Inside},
    ports,
    read::{Value, strings, unknown},
};
use crate::{
    address::Cidr,
    groups::{self, Discovered},
    judge::{merged, verdict_word},
};
use airlock_protocol::policy::{Origin, Ports, Request, Rule, Tls, Verdict};
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

/// The keys of a `[[rule]]`.
pub const KEYS: [&str; 21] = [
    "allow",
    "deny",
    "ask",
    "ports",
    "methods",
    "paths",
    "query",
    "headers",
    "websocket",
    "git",
    "repositories",
    "encoded_slashes",
    "rate",
    "bytes",
    "bandwidth",
    "tls",
    "pins",
    "body",
    "body_over",
    "private",
    "examples",
];

/// Reads a `[[rule]]` that stands at `at`, on `line`. A group whose hosts have ports of their own makes more than one rule of it.
pub(super) fn read(
    hosts: &Hosts<'_>,
    table: &DeTable<'_>,
    line: u32,
    at: Range<usize>,
) -> Result<Vec<Read>, BadPolicy> {
    let source = hosts.source;
    refuse_keys(source, table)?;
    let (verdict, value) = verdict(source, table, at.clone())?;
    let verdict_at = table.get_key_value(verdict_word(verdict)).map_or(at.clone(), |(key, _)| key.span());
    let ports = match table.get("ports") {
        None => None,
        Some(value) => Some(read_ports(source, value)?),
    };
    let named = hosts.named(verdict, &strings(source, value, verdict_word(verdict))?, ports.as_deref())?;
    if named.is_empty() {
        let bad = source.bad(value.span(), "a rule names at least one host");
        return Err(bad.fix("name one, or remove the rule"));
    }
    let private = read_private(source, table, verdict)?;
    let said = inside::read(source, table, verdict)?;
    let tls = read_tls(source, table, verdict, &said)?;
    let examples = match table.get("examples") {
        None => Vec::new(),
        Some(value) => strings(source, value, "examples")?,
    };
    let examples: Vec<_> = examples.into_iter().map(|(text, at)| (text.to_string(), at)).collect();
    let origin = Origin { from: source.name.to_string(), line };
    let read = |Named { ports, hosts }| Read {
        rule: Rule {
            tls,
            private: private.clone(),
            request: said.request.clone(),
            bounds: said.bounds,
            pins: said.pins.clone(),
            body: said.body,
            ..Rule::new(verdict, hosts, ports, origin.clone())
        },
        at: at.clone(),
        verdict_at: verdict_at.clone(),
        examples: examples.clone(),
    };
    Ok(named.into_iter().map(read).collect())
}

/// Reads `HOST[:PORTS]` of a flag. Who denies a host there without a port means all of it.
pub(super) fn from_flag(
    verdict: Verdict,
    source: Source<'_>,
    known: &Discovered,
) -> Result<Vec<Rule>, BadPolicy> {
    let from = match groups::find(split_ports(source.text).0, known) {
        Ok(group) => format!("group {}", group.name),
        Err(_) => source.name.to_string(),
    };
    let hosts = Hosts { source, known };
    if let Some((methods, url)) = source.text.split_once(' ') {
        let rules = from_request(&hosts, verdict, methods, url.trim(), &Origin { from, line: 0 });
        return rules.map_err(|bad| BadPolicy { line: 0, ..bad });
    }
    let rules = from_word(&hosts, verdict, (source.text, 0..source.text.len()), &Origin { from, line: 0 });
    let mut rules = rules.map_err(|bad| BadPolicy { line: 0, ..bad })?;
    if verdict == Verdict::Deny && split_ports(source.text).1.is_none() {
        rules.iter_mut().for_each(|rule| rule.ports = vec![Ports::ALL]);
    }
    Ok(rules)
}

/// Reads `METHODS URL` of a flag: `GET,HEAD https://api.example.com/v1/**`. The path is a pattern.
fn from_request(
    hosts: &Hosts<'_>,
    verdict: Verdict,
    methods: &str,
    url: &str,
    origin: &Origin,
) -> Result<Vec<Rule>, BadPolicy> {
    let at = 0..hosts.source.text.len();
    let bad = |why: &str| {
        let what = format!("`{}` is not a request that a rule can name", hosts.source.text.escape_debug());
        let fix = "write a method and a URL, such as 'GET https://api.example.com/v1/**'";
        hosts.source.bad(at.clone(), what).why(why).fix(fix)
    };
    let Some((scheme, rest)) = url.split_once("://") else { return Err(bad("the second word is no URL")) };
    let port = match scheme {
        "http" | "ws" => 80,
        "https" | "wss" => 443,
        _ => return Err(bad("only requests of http, https, ws and wss are judged")),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let word = match split_ports(authority) {
        (_, None) => format!("{authority}:{port}"),
        (_, Some(_)) => authority.to_string(),
    };
    let methods = methods.split(',').map(crate::conditions::method).collect::<Result<Vec<_>, _>>();
    let paths =
        (!path.is_empty()).then(|| crate::conditions::path(path).map(|_| path.to_string())).transpose();
    let request = Request {
        methods: once_each(methods.map_err(|why| bad(&why))?),
        paths: paths.map_err(|why| bad(&why))?.into_iter().collect(),
        websocket: scheme.starts_with("ws").then_some(true),
        ..Request::default()
    };
    let rules = from_word(hosts, verdict, (&word, at.clone()), origin)?;
    Ok(rules.into_iter().map(|rule| Rule { request: request.clone(), ..rule }).collect())
}

/// Reads `HOST[:PORTS]`, or a group in place of the host.
pub(super) fn from_word(
    hosts: &Hosts<'_>,
    verdict: Verdict,
    (text, at): Word<'_>,
    origin: &Origin,
) -> Result<Vec<Rule>, BadPolicy> {
    let (host, run) = split_ports(text);
    let ports = match run {
        None => None,
        Some(run) => Some(vec![hosts.run(text, run, at.clone())?]),
    };
    let named = hosts.named(verdict, &[(host, at)], ports.as_deref())?;
    let rule = |Named { ports, hosts }| Rule::new(verdict, hosts, ports, origin.clone());
    Ok(named.into_iter().map(rule).collect())
}

fn refuse_keys(source: Source<'_>, table: &DeTable<'_>) -> Result<(), BadPolicy> {
    let mut keys: Vec<_> = table.keys().collect();
    keys.sort_by_key(|key| key.span().start);
    match keys.into_iter().find(|key| !KEYS.contains(&key.get_ref().as_ref())) {
        Some(key) => Err(unknown(source, key.span(), key.get_ref(), &KEYS)),
        None => Ok(()),
    }
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

fn read_tls(
    source: Source<'_>,
    table: &DeTable<'_>,
    verdict: Verdict,
    inside: &Inside,
) -> Result<Tls, BadPolicy> {
    let Some(value) = table.get("tls") else { return Ok(Tls::default()) };
    if verdict == Verdict::Deny {
        return Err(pointless(source, value, "tls"));
    }
    let opaque = || {
        let key = inside.first.unwrap_or("pins");
        let bad = source.bad(value.span(), format!("`tls = \"opaque\"` and `{key}` do not go together"));
        bad.why("what is opaque is not looked into").fix("remove one of the two")
    };
    match value.get_ref() {
        DeValue::String(text) if text == "opaque" && inside.first.is_some() => Err(opaque()),
        DeValue::String(text) if text == "opaque" => Ok(Tls::Opaque),
        DeValue::String(text) if text == "opened" => Ok(Tls::Opened),
        DeValue::String(text) if text == "checked" => Ok(Tls::Checked),
        _ => Err(source
            .bad(value.span(), "`tls` is \"checked\", \"opened\" or \"opaque\"")
            .fix("remove it: what is checked is the default")),
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

pub(super) fn pointless(source: Source<'_>, value: Value<'_, '_>, key: &str) -> BadPolicy {
    source
        .bad(value.span(), format!("`{key}` means nothing in a rule that denies"))
        .fix(format!("remove `{key}`"))
}

pub(super) fn once_each(mut texts: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    texts.retain(|text| seen.insert(text.clone()));
    texts
}
