//! Rules as the text of a file.

use super::{
    bounds,
    learned::{self, Seen},
    packages, ports,
};
use crate::{
    address::special,
    host::{HostName, Target},
    judge::{Judge, git_word, place, verdict_word},
};
use airlock_protocol::policy::{Body, Bounds, Origin, Over, Policy, Ports, Request, Rule, Tls, Verdict};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// Longest line that a list of hosts is kept on.
const WIDTH: usize = 100;

/// All rules as a file that reads back as the same policy. Rules that can never match are comments in it.
pub fn show(policy: &Policy) -> String {
    let dead = Judge::compile(policy).map(|judge| judge.shadows()).unwrap_or_default();
    let mut text = String::new();
    if policy.audit_only {
        text.push_str("audit_only = true\n");
    }
    let packages = packages::show(&policy.packages);
    if let Some(bandwidth) = policy.bandwidth {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "bandwidth = \"{}/s\"", bounds::shown_bytes(bandwidth));
    }
    for (index, rule) in policy.rules.iter().enumerate() {
        if !text.is_empty() {
            text.push('\n');
        }
        if !rule.origin.from.is_empty() {
            let _ = writeln!(text, "# {}", one_line(&place(&rule.origin)));
        }
        let body = rule_text(rule);
        match dead.get(index) {
            Some(Some(_)) => {
                text.push_str("# can never match, since earlier rules match all of it:\n");
                body.lines().for_each(|line| {
                    let _ = writeln!(text, "# {line}");
                });
            }
            _ => text.push_str(&body),
        }
    }
    if !text.is_empty() && !packages.is_empty() {
        text.push('\n');
    }
    text + &packages
}

/// A file that allows exactly what was `seen`, and is short to read.
pub fn narrow(seen: &[(Target, u16)]) -> String {
    narrow_requests(seen, &[])
}

/// As [`narrow`], where of some connections the requests inside were seen: those are then allowed, and no others.
pub fn narrow_requests(seen: &[(Target, u16)], requests: &[Seen]) -> String {
    let inside =
        |target: &Target, port: u16| requests.iter().any(|one| one.target == *target && one.port == port);
    let whole: Vec<_> = seen.iter().filter(|(target, port)| !inside(target, *port)).cloned().collect();
    let mut text = narrow_connections(&whole);
    for rule in learned::rules(requests) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&rule_text(&rule));
    }
    text
}

fn narrow_connections(seen: &[(Target, u16)]) -> String {
    let mut ports: BTreeMap<&Target, Vec<Ports>> = BTreeMap::new();
    let mut never = BTreeSet::new();
    for (target, port) in seen {
        match target {
            Target::Address(address) if special(*address).is_some_and(|kind| kind.is_never()) => {
                never.insert(target);
            }
            _ => ports.entry(target).or_default().push(Ports::one(*port)),
        }
    }
    let mut rules: BTreeMap<Vec<(u16, u16)>, Vec<&Target>> = BTreeMap::new();
    for (target, ports) in ports {
        let runs = crate::judge::merged(ports).into_iter().map(|run| (run.first, run.last));
        rules.entry(runs.collect()).or_default().push(target);
    }
    let mut text = String::new();
    for target in never {
        let _ = writeln!(text, "# {target} was tried; no rule can open it");
    }
    for (runs, mut targets) in rules {
        targets.sort_by_key(|target| reading_order(target));
        let hosts = targets.iter().map(ToString::to_string).collect();
        let ports = runs.into_iter().map(|(first, last)| Ports { first, last }).collect();
        let rule = Rule::new(Verdict::Allow, hosts, ports, Origin::default());
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&rule_text(&rule));
    }
    text
}

/// `[[rule]]` and its keys.
pub(super) fn rule_text(rule: &Rule) -> String {
    let mut text = "[[rule]]\n".to_string();
    for line in keys(rule) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The keys of a rule, one a line or more.
fn keys(rule: &Rule) -> Vec<String> {
    let hosts: Vec<String> = rule.hosts.iter().map(|host| quoted(&written(host))).collect();
    let mut keys = vec![format!("{} = {}", verdict_word(rule.verdict), list(&hosts))];
    let loopback = rule.hosts.iter().any(|host| host == crate::host::HOST_AIRLOCK);
    if rule.ports != ports::usual() || loopback {
        let ports: Vec<String> = rule.ports.iter().map(|run| ports::shown(*run)).collect();
        keys.push(format!("ports = [{}]", ports.join(", ")));
    }
    keys.extend(inside_keys(rule));
    match rule.tls {
        Tls::Checked => {}
        Tls::Opaque => keys.push("tls = \"opaque\"".to_string()),
        Tls::Opened => keys.push("tls = \"opened\"".to_string()),
    }
    if !rule.private.is_empty() {
        let ranges: Vec<String> = rule.private.iter().map(|range| quoted(range)).collect();
        keys.push(format!("private = [{}]", ranges.join(", ")));
    }
    keys
}

/// The keys about what is inside, and how much of it.
pub(super) fn inside_keys(rule: &Rule) -> impl Iterator<Item = String> {
    let pins = (!rule.pins.is_empty()).then(|| format!("pins = {}", quoted_list(&rule.pins)));
    request_keys(&rule.request).into_iter().chain(bound_keys(rule)).chain(pins).chain(body_keys(rule))
}

fn body_keys(rule: &Rule) -> Vec<String> {
    let Some(Body { most, over }) = rule.body else { return Vec::new() };
    let mut keys = vec![format!("body = \"{}\"", bounds::shown_bytes(most.into()))];
    if over == Over::Pass {
        keys.push("body_over = \"pass\"".to_string());
    }
    keys
}

fn request_keys(request: &Request) -> Vec<String> {
    let Request { methods, paths, query, headers, websocket, git, repositories, encoded_slashes } = request;
    let list = |key: &str, values: &[String]| {
        (!values.is_empty()).then(|| format!("{key} = {}", quoted_list(values)))
    };
    let table = |key: &str, pairs: &BTreeMap<String, String>| {
        let pairs: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value))).collect();
        (!pairs.is_empty()).then(|| format!("{key} = {{ {} }}", pairs.join(", ")))
    };
    let keys = [
        list("methods", methods),
        list("paths", paths),
        table("query", query),
        table("headers", headers),
        websocket.map(|websocket| format!("websocket = {websocket}")),
        git.map(|git| format!("git = \"{}\"", git_word(git))),
        list("repositories", repositories),
        encoded_slashes.then(|| "encoded_slashes = true".to_owned()),
    ];
    keys.into_iter().flatten().collect()
}

fn bound_keys(rule: &Rule) -> impl Iterator<Item = String> {
    let Bounds { rate, bytes, bandwidth } = rule.bounds;
    let keys = [
        rate.map(|rate| format!("rate = \"{}\"", bounds::shown_rate(rate))),
        bytes.map(|bytes| format!("bytes = \"{}\"", bounds::shown_bytes(bytes))),
        bandwidth.map(|bytes| format!("bandwidth = \"{}/s\"", bounds::shown_bytes(bytes))),
    ];
    keys.into_iter().flatten()
}

fn quoted_list(values: &[String]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    match list(&quoted) {
        one if quoted.len() == 1 => format!("[{one}]"),
        many => many,
    }
}

/// A host as a file names it: a name of one label with its dot, lest it be a group.
fn written(host: &str) -> String {
    match host.parse::<HostName>() {
        Ok(name) if name.labels().count() == 1 => format!("{name}."),
        _ => host.to_string(),
    }
}

/// One value, a list on one line, or one value a line.
fn list(values: &[String]) -> String {
    match values {
        [one] => one.clone(),
        many if many.iter().map(|value| value.len() + 2).sum::<usize>() < WIDTH => {
            format!("[{}]", many.join(", "))
        }
        many => format!("[\n    {},\n]", many.join(",\n    ")),
    }
}

/// A basic string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_string();
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Names by their domains, so that hosts of one owner stand together; then addresses.
fn reading_order(target: &Target) -> (Vec<String>, Option<std::net::IpAddr>) {
    match target {
        Target::Name(name) => (name.labels().rev().map(str::to_string).collect(), None),
        Target::Address(address) => (vec!["~".to_string()], Some(*address)),
    }
}
