//! The keys of a rule about what is inside a connection, and about how much of it.

use super::{
    BadPolicy, Source, bounds,
    read::{Value, strings, wrong},
    rule::{once_each, pointless},
};
use crate::conditions;
use airlock_protocol::{
    policy::{Body, Bounds, Git, Over, Request, Verdict},
    size,
};
use std::{collections::BTreeMap, ops::Range};
use toml::de::{DeTable, DeValue};

/// What a rule says about what is inside.
#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) request: Request,
    pub(super) bounds: Bounds,
    pub(super) pins: Vec<String>,
    pub(super) body: Option<Body>,
    /// The first key for which the connection has to be opened.
    pub(super) first: Option<&'static str>,
}

/// Keys for which a connection is opened.
const OPENING: [&str; 10] = [
    "methods",
    "paths",
    "query",
    "headers",
    "websocket",
    "git",
    "repositories",
    "encoded_slashes",
    "pins",
    "body",
];

/// Reads those keys.
pub(super) fn read(source: Source<'_>, table: &DeTable<'_>, verdict: Verdict) -> Result<Inside, BadPolicy> {
    refuse_together(source, table)?;
    if verdict == Verdict::Deny
        && let Some((key, value)) =
            ["rate", "bytes", "bandwidth", "pins", "body", "body_over", "encoded_slashes"]
                .iter()
                .find_map(|key| Some((*key, table.get(*key)?)))
    {
        return Err(pointless(source, value, key));
    }
    let list = |key: &str, fix: &str, one: fn(&str) -> Result<String, String>| match table.get(key) {
        None => Ok(Vec::new()),
        Some(value) => texts(source, value, key, fix, one),
    };
    let request = Request {
        methods: list("methods", "write a method such as \"GET\"", conditions::method)?,
        paths: list("paths", "write a pattern such as \"/repos/acme/**\"", |text| {
            conditions::path(text).map(|glob| glob.to_string())
        })?,
        query: named(source, table, "query", conditions::parameter)?,
        headers: named(source, table, "headers", conditions::header)?,
        websocket: flag(source, table, "websocket")?,
        git: table.get("git").map(|value| git(source, value)).transpose()?,
        repositories: list("repositories", "write a pattern such as \"acme/*\"", |text| {
            conditions::repository(text).map(|glob| glob.to_string())
        })?,
        encoded_slashes: flag(source, table, "encoded_slashes")?.unwrap_or(false),
    };
    let pins =
        list("pins", PIN, |text| bounds::check_pin(text).map(|()| text.to_string()).map_err(str::to_string))?;
    let first = OPENING.into_iter().find(|key| table.contains_key(*key));
    let (bounds, body) = (bounds::read(source, table)?, body(source, table)?);
    Ok(Inside { request, bounds, pins, body, first })
}

/// `body = "1M"` and `body_over`: what scripts see of bodies.
fn body(source: Source<'_>, table: &DeTable<'_>) -> Result<Option<Body>, BadPolicy> {
    let over = match table.get("body_over").map(|value| (value, value.get_ref())) {
        None => Over::default(),
        Some((_, DeValue::String(text))) if text == "deny" => Over::Deny,
        Some((_, DeValue::String(text))) if text == "pass" => Over::Pass,
        Some((value, _)) => {
            return Err(source.bad(value.span(), "`body_over` is \"deny\" or \"pass\""));
        }
    };
    let Some(value) = table.get("body") else {
        return match table.get_key_value("body_over") {
            None => Ok(None),
            Some((key, _)) => Err(source
                .bad(key.span(), "`body_over` means nothing without `body`")
                .fix("write body = \"1M\" beside it")),
        };
    };
    let DeValue::String(text) = value.get_ref() else {
        return Err(wrong(source, value, "body", "a size such as \"1M\""));
    };
    match size::parse(text).ok().and_then(|most| u32::try_from(most).ok()) {
        Some(most) if (1..=MOST_BODY).contains(&most) => Ok(Some(Body { most, over })),
        _ => Err(source
            .bad(value.span(), "this is not a size of bodies that a script can see")
            .why(format!("it is at least one byte and at most {}", size::show(MOST_BODY.into())))
            .fix("write body = \"1M\"")),
    }
}

/// Most bytes of a body that a script sees.
pub(super) const MOST_BODY: u32 = 8 << 20;

const PIN: &str = "write \"sha256/\" and the base64 of the SHA-256 of the certificate's public key";

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

#[cfg(test)]
mod tests {
    use crate::policy::{parse_toml, show};
    use airlock_protocol::policy::{Body, Over, Tls};

    #[test]
    fn bodies_that_scripts_see_are_read_and_shown_and_open_the_connection() {
        let text = "[[rule]]\nallow = \"a.test\"\nbody = \"1M\"\nbody_over = \"pass\"\n";
        let policy = parse_toml("x.toml", text).unwrap().policy;

        assert_eq!(policy.rules[0].body, Some(Body { most: 1 << 20, over: Over::Pass }));
        assert_eq!(parse_toml("x.toml", &show(&policy)).unwrap().policy.rules[0].body, policy.rules[0].body);
        let judge = crate::judge::Judge::compile(&policy).unwrap();
        let judged = judge.connect(&"a.test".parse().unwrap(), 443);
        assert_eq!(judged.tls, Tls::Opened);
    }

    #[test]
    fn sizes_and_words_that_mean_nothing_are_refused() {
        for (keys, words) in [
            ("body = 3", "x.toml:3:8: `body` is a size"),
            ("body = \"9M\"", "x.toml:3:8: this is not a size of bodies"),
            ("body = \"0\"", "x.toml:3:8: this is not a size of bodies"),
            ("body_over = \"deny\"", "x.toml:3:1: `body_over` means nothing without `body`"),
            ("body = \"1M\"\nbody_over = \"maybe\"", "x.toml:4:13: `body_over` is"),
            ("body = \"1M\"\ntls = \"opaque\"", "x.toml:"),
        ] {
            let bad = parse_toml("x.toml", &format!("[[rule]]\nallow = \"a.test\"\n{keys}\n")).unwrap_err();
            assert!(bad.headline().starts_with(words), "{}", bad.headline());
        }
    }
}
