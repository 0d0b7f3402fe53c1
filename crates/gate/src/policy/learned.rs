//! Rules for requests that were seen.

use crate::{glob::Glob, host::Target};
use airlock_protocol::policy::{Origin, Ports, Request, Rule, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Most paths of one rule that are named one by one.
const MOST_PATHS: usize = 40;

/// A request that was seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The name or address.
    pub target: Target,
    /// The port.
    pub port: u16,
    /// `GET`, …; `*` where it is not known.
    pub method: String,
    /// The path; `*` where it is not known.
    pub path: String,
}

/// Rules that allow these requests, one for each host and set of methods.
pub(super) fn rules(seen: &[Seen]) -> Vec<Rule> {
    let mut hosts: BTreeMap<(&Target, u16), BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for one in seen {
        let paths = hosts.entry((&one.target, one.port)).or_default();
        paths.entry(&one.path).or_default().insert(&one.method);
    }
    let mut rules = Vec::new();
    for ((target, port), paths) in hosts {
        for (methods, paths) in patterns(&paths) {
            let request = Request { methods, paths, ..Request::default() };
            let (hosts, ports) = (vec![target.to_string()], vec![Ports::one(port)]);
            rules.push(Rule { request, ..Rule::new(Verdict::Allow, hosts, ports, Origin::default()) });
        }
    }
    rules
}

/// Patterns of paths, with the methods they were seen with.
fn patterns(paths: &BTreeMap<&str, BTreeSet<&str>>) -> BTreeMap<Vec<String>, Vec<String>> {
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    paths.keys().for_each(|path| *alike.entry(general(path)).or_default() += 1);
    let mut by_pattern: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (path, methods) in paths {
        let general = general(path);
        let pattern = match alike.get(&general) {
            Some(0 | 1) | None => exact(path),
            Some(_) => general,
        };
        by_pattern.entry(pattern).or_default().extend(methods);
    }
    let mut by_methods: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for (pattern, methods) in by_pattern {
        let methods = if methods.contains("*") {
            Vec::new()
        } else {
            methods.iter().map(ToString::to_string).collect()
        };
        by_methods.entry(methods).or_default().push(pattern);
    }
    for paths in by_methods
        .values_mut()
        .filter(|paths| paths.len() > MOST_PATHS || paths.iter().any(|path| path == "/**"))
    {
        *paths = vec!["/**".to_owned()];
    }
    by_methods
}

/// The path with a star in place of each number or hash.
fn general(path: &str) -> String {
    if path == "*" {
        return "/**".to_owned();
    }
    let segments =
        path.split('/').map(|segment| if is_id(segment) { "*".to_owned() } else { exact(segment) });
    segments.collect::<Vec<_>>().join("/")
}

/// Digits, or at least eight hexadecimal digits with or without hyphens (a hash, a UUID).
fn is_id(segment: &str) -> bool {
    let is_number = !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
    let is_hash = segment.len() >= 8
        && segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        && segment.bytes().any(|byte| byte.is_ascii_digit());
    is_number || is_hash
}

fn exact(text: &str) -> String {
    match text {
        "*" => "/**".to_owned(),
        "" => String::new(),
        text => Glob::exact(text).map_or("**".to_owned(), |glob| glob.to_string()),
    }
}
