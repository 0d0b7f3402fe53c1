//! The keys of a rule about what is inside a connection, and about how much of it.

use super::{
    BadPolicy, Source, bounds,
    read::{Value, strings, wrong},
    rule::{once_each, pointless},
};
use crate::conditions;
use airlock_protocol::policy::{Bounds, Git, Request, Verdict};
use std::{collections::BTreeMap, ops::Range};
use toml::de::{DeTable, DeValue};

/// What a rule says about what is inside.
#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) request: Request,
    pub(super) bounds: Bounds,
    pub(super) pins: Vec<String>,
    /// The first key for which the connection has to be opened.
    pub(super) first: Option<&'static str>,
    /// What is said about git, and where.
    pub(super) git_at: Option<(Git, Range<usize>)>,
}

/// Keys for which a connection is opened.
const OPENING: [&str; 8] =
    ["methods", "paths", "query", "headers", "websocket", "git", "repositories", "pins"];

/// Reads those keys.
pub(super) fn read(source: Source<'_>, table: &DeTable<'_>, verdict: Verdict) -> Result<Inside, BadPolicy> {
    refuse_together(source, table)?;
    if verdict == Verdict::Deny
        && let Some((key, value)) =
            ["rate", "bytes", "bandwidth", "pins"].iter().find_map(|key| Some((*key, table.get(*key)?)))
    {
        return Err(pointless(source, value, key));
    }
    let list = |key: &str, fix: &str, one: fn(&str) -> Result<String, String>| match table.get(key) {
        None => Ok(Vec::new()),
        Some(value) => texts(source, value, key, fix, one),
    };
    let git_at = match table.get("git") {
        None => None,
        Some(value) => Some((git(source, value)?, value.span())),
    };
    let request = Request {
        methods: list("methods", "write a method such as \"GET\"", conditions::method)?,
        paths: list("paths", "write a pattern such as \"/repos/acme/**\"", |text| {
            conditions::path(text).map(|glob| glob.to_string())
        })?,
        query: named(source, table, "query", conditions::parameter)?,
        headers: named(source, table, "headers", conditions::header)?,
        websocket: flag(source, table, "websocket")?,
        git: git_at.as_ref().map(|(git, _)| *git),
        repositories: list("repositories", "write a pattern such as \"acme/*\"", |text| {
            conditions::repository(text).map(|glob| glob.to_string())
        })?,
    };
    let pins =
        list("pins", PIN, |text| bounds::check_pin(text).map(|()| text.to_string()).map_err(str::to_string))?;
    let first = OPENING.into_iter().find(|key| table.contains_key(*key));
    Ok(Inside { request, bounds: bounds::read(source, table)?, pins, first, git_at })
}

const PIN: &str = "write \"sha256/\" and the base64 of the SHA-256 of the certificate's public key";

/// git over SSH is not judged here.
pub(super) fn ssh(source: Source<'_>, at: Range<usize>) -> BadPolicy {
    let bad = source.bad(at, "`git` is judged over HTTP only, and the rule has port 22");
    bad.why("what git does inside SSH is not seen at the wall")
        .fix("remove port 22 here; a rule for port 22 without `git` is about whole connections")
}

/// Keys that contradict each other, or mean nothing alone.
fn refuse_together(source: Source<'_>, table: &DeTable<'_>) -> Result<(), BadPolicy> {
    let at = |key: &str| table.get_key_value(key).map(|(key, _)| key.span());
    if let Some(place) = at("git") {
        let other = ["methods", "paths", "websocket"].into_iter().find(|key| table.contains_key(*key));
        return match other {
            None => Ok(()),
            Some(other) => Err(source
                .bad(at(other).unwrap_or(place), format!("`git` and `{other}` do not go together"))
                .why("`git` stands for the requests that git makes")
                .fix("make two rules of it")),
        };
    }
    match at("repositories") {
        None => Ok(()),
        Some(place) => Err(source
            .bad(place, "`repositories` means nothing without `git`")
            .fix("write git = \"fetch\" or git = \"push\" beside it")),
    }
}

fn git(source: Source<'_>, value: Value<'_, '_>) -> Result<Git, BadPolicy> {
    match value.get_ref() {
        DeValue::String(text) if text == "fetch" => Ok(Git::Fetch),
        DeValue::String(text) if text == "push" => Ok(Git::Push),
        _ => Err(source.bad(value.span(), "`git` is \"fetch\" or \"push\"")),
    }
}

fn flag(source: Source<'_>, table: &DeTable<'_>, key: &str) -> Result<Option<bool>, BadPolicy> {
    let Some(value) = table.get(key) else { return Ok(None) };
    match value.get_ref() {
        DeValue::Boolean(flag) => Ok(Some(*flag)),
        _ => Err(wrong(source, value, key, "true or false")),
    }
}

/// A list of texts, each checked and once.
fn texts(
    source: Source<'_>,
    value: Value<'_, '_>,
    key: &str,
    fix: &str,
    one: fn(&str) -> Result<String, String>,
) -> Result<Vec<String>, BadPolicy> {
    let mut texts = Vec::new();
    for (text, at) in strings(source, value, key)? {
        let what = || format!("this cannot stand in `{key}`");
        texts.push(one(text).map_err(|why| source.bad(at, what()).why(why).fix(fix))?);
    }
    match texts.is_empty() {
        true => Err(source
            .bad(value.span(), format!("`{key}` names at least one"))
            .fix(format!("remove `{key}`"))),
        false => Ok(once_each(texts)),
    }
}

/// A table of names and patterns.
fn named(
    source: Source<'_>,
    table: &DeTable<'_>,
    key: &str,
    name: fn(&str) -> Result<String, String>,
) -> Result<BTreeMap<String, String>, BadPolicy> {
    let Some(value) = table.get(key) else { return Ok(BTreeMap::new()) };
    let fix = format!("write {key} = {{ name = \"pattern\" }}");
    let DeValue::Table(pairs) = value.get_ref() else {
        return Err(wrong(source, value, key, "a table of names and patterns").fix(fix));
    };
    let mut read = BTreeMap::new();
    for (own, value) in pairs {
        let bad = |at: Range<usize>, why: String| {
            source.bad(at, format!("this cannot stand in `{key}`")).why(why).fix(fix.clone())
        };
        let own_name = name(own.get_ref()).map_err(|why| bad(own.span(), why))?;
        let DeValue::String(pattern) = value.get_ref() else {
            return Err(wrong(source, value, own.get_ref(), "a pattern in quotes"));
        };
        conditions::value(pattern).map_err(|why| bad(value.span(), why))?;
        if read.insert(own_name, pattern.to_string()).is_some() {
            return Err(bad(own.span(), "the name stands here twice".to_string()));
        }
    }
    match read.is_empty() {
        true => Err(source
            .bad(value.span(), format!("`{key}` names at least one"))
            .fix(format!("remove `{key}`"))),
        false => Ok(read),
    }
}
