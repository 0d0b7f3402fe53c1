//! `airlock.toml`, as far as it is about rules. Its other keys are left to whoever knows them.

use super::{
    BadPolicy, LARGEST, MOST_RULES, Source, bounds, check,
    hosts::{Hosts, Word},
    packages, ports, rule, suggestion,
};
use crate::groups::{self, Discovered, Group};
use airlock_protocol::policy::Policy;
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

/// What a policy file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyFile {
    /// Its rules.
    pub policy: Policy,
    /// Groups it defines (`[groups.NAME]`), so that flags can name them too.
    pub groups: Vec<Group>,
    /// Its other keys at the top, in order. Whoever knows all keys refuses the unknown ones.
    pub others: Vec<OtherKey>,
}

/// A key at the top of the file that is not about rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherKey {
    /// The key.
    pub name: String,
    /// Its bytes in the text; [`Source::bad`] makes an error of them.
    pub at: Range<usize>,
}

/// A value with its place.
pub(super) type Value<'a, 'i> = &'a Spanned<DeValue<'i>>;

/// Reads the text of a file.
pub(super) fn toml(source: Source<'_>, discovered: &Discovered) -> Result<PolicyFile, BadPolicy> {
    let (mut file, reads) = reads(source, discovered)?;
    file.policy.rules = reads.into_iter().map(|read| read.rule).collect();
    Ok(file)
}

/// As [`toml`], the rules apart and with their places.
pub(super) fn reads(
    source: Source<'_>,
    discovered: &Discovered,
) -> Result<(PolicyFile, Vec<rule::Read>), BadPolicy> {
    if source.text.len() > LARGEST {
        let what = format!("the file has {} bytes, and {LARGEST} are the most", source.text.len());
        return Err(
            BadPolicy::nowhere(source.name, what).fix("name hosts by wildcards, or give several files")
        );
    }
    let table = DeTable::parse(source.text).map_err(|err| {
        let at = err.span().unwrap_or(0..0);
        source
            .bad(at, format!("this is not TOML: {}", err.message()))
            .fix("correct the line; docs/policy.md shows the form")
    })?;
    let mut file = PolicyFile::default();
    let mut known = discovered.clone();
    if let Some(groups) = table.get_ref().get("groups") {
        file.groups = own_groups(source, groups)?;
        file.groups.iter().cloned().for_each(|group| known.insert(group));
    }
    if let Some(value) = table.get_ref().get("audit_only") {
        let DeValue::Boolean(audit_only) = value.get_ref() else {
            return Err(wrong(source, value, "audit_only", "true or false"));
        };
        file.policy.audit_only = *audit_only;
    }
    file.policy.packages = packages::read(source, table.get_ref())?;
    file.policy.bandwidth = bounds::read_bandwidth(source, table.get_ref())?;
    let mut reads = Vec::new();
    if let Some(value) = table.get_ref().get("rule") {
        reads = rules(source, value, &Hosts { source, known: &known })?;
        reads.sort_by_key(|read| read.at.start);
        check::whole(source, &reads)?;
    }
    let own = ["rule", "groups", "audit_only", "bandwidth", "packages"];
    let others = table.get_ref().keys().filter(|key| !own.contains(&key.get_ref().as_ref()));
    file.others = others.map(|key| OtherKey { name: key.get_ref().to_string(), at: key.span() }).collect();
    file.others.sort_by_key(|key| key.at.start);
    Ok((file, reads))
}

/// A value of another type than the key has.
pub(super) fn wrong(source: Source<'_>, value: Value<'_, '_>, key: &str, wanted: &str) -> BadPolicy {
    source.bad(value.span(), format!("`{key}` is {wanted}, not {}", kind(value)))
}

/// The strings of a list, or the one string that stands for a list of one.
pub(super) fn strings<'a, 'i>(
    source: Source<'_>,
    value: Value<'a, 'i>,
    key: &str,
) -> Result<Vec<Word<'a>>, BadPolicy> {
    let one = |value: Value<'a, 'i>| match value.get_ref() {
        DeValue::String(text) => Ok((text.as_ref(), value.span())),
        _ => Err(wrong(source, value, key, "a string or a list of strings")),
    };
    match value.get_ref() {
        DeValue::Array(values) => values.iter().map(one).collect(),
        _ => Ok(vec![one(value)?]),
    }
}

/// Refuses a key that nobody knows.
pub(super) fn unknown(source: Source<'_>, at: Range<usize>, key: &str, known: &[&str]) -> BadPolicy {
    let bad = source.bad(at, format!("there is no key `{}` here", key.escape_debug()));
    match suggestion(key, known.iter().copied()) {
        Some(near) => bad.fix(format!("did you mean `{near}`?")),
        None => bad.fix(format!("the keys are {}", known.join(", "))),
    }
}

fn rules(source: Source<'_>, value: Value<'_, '_>, hosts: &Hosts<'_>) -> Result<Vec<rule::Read>, BadPolicy> {
    let DeValue::Array(array) = value.get_ref() else {
        return Err(wrong(source, value, "rule", "a list of tables").fix("write [[rule]], with two brackets"));
    };
    if array.len() > MOST_RULES {
        let what = format!("the file has {} rules, and {MOST_RULES} are the most", array.len());
        return Err(source.bad(value.span(), what).fix("give one rule a list of hosts"));
    }
    let lines = Lines::of(source.text);
    let mut reads = Vec::new();
    for (at, table) in tables(source, array)? {
        reads.extend(rule::read(hosts, table, lines.line(at.start), at)?);
    }
    Ok(reads)
}

type Tables<'a, 'i> = Vec<(Range<usize>, &'a DeTable<'i>)>;

fn tables<'a, 'i>(source: Source<'_>, array: &'a DeArray<'i>) -> Result<Tables<'a, 'i>, BadPolicy> {
    let one = |value: Value<'a, 'i>| match value.get_ref() {
        DeValue::Table(table) => Ok((value.span(), table)),
        _ => Err(wrong(source, value, "rule", "a list of tables")),
    };
    array.iter().map(one).collect()
}

fn own_groups(source: Source<'_>, value: Value<'_, '_>) -> Result<Vec<Group>, BadPolicy> {
    let DeValue::Table(table) = value.get_ref() else {
        return Err(wrong(source, value, "groups", "a table of groups").fix("write [groups.NAME]"));
    };
    let mut groups = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        if !groups::is_name(name) {
            let bad = source.bad(key.span(), "a group cannot be called so");
            return Err(bad.why("its name is a letter and then letters, digits and hyphens, all lower case"));
        }
        let DeValue::Table(group) = value.get_ref() else {
            return Err(wrong(source, value, name, "a table").fix(format!("write [groups.{name}]")));
        };
        groups.push(own_group(source, name, value.span(), group)?);
    }
    Ok(groups)
}

fn own_group(
    source: Source<'_>,
    name: &str,
    at: Range<usize>,
    table: &DeTable<'_>,
) -> Result<Group, BadPolicy> {
    let known = ["hosts", "about"];
    if let Some(key) = table.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
        return Err(unknown(source, key.span(), key.get_ref(), &known));
    }
    let about = match table.get("about") {
        None => format!("of {}", source.name),
        Some(value) => match value.get_ref() {
            DeValue::String(about) => about.to_string(),
            _ => return Err(wrong(source, value, "about", "a string")),
        },
    };
    let Some(value) = table.get("hosts") else {
        return Err(source.bad(at, "a group has hosts").fix("write hosts = [\"api.example.com\"]"));
    };
    let nothing = Discovered::default();
    let reader = Hosts { source, known: &nothing };
    let mut hosts = Vec::new();
    for (text, at) in strings(source, value, "hosts")? {
        let (host, run) = reader.entry(text, at)?;
        hosts.push(run.map_or(host.to_string(), |run| ports::behind(&host, run)));
    }
    if hosts.is_empty() {
        return Err(source.bad(value.span(), "a group has hosts").fix("name one, or remove the group"));
    }
    Ok(Group { name: name.to_string(), about, hosts })
}

fn kind(value: Value<'_, '_>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Where lines begin, so that many places are found cheaply.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub(super) fn of(text: &str) -> Lines {
        Lines(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line of a byte, counted from 1.
    pub(super) fn line(&self, at: usize) -> u32 {
        u32::try_from(self.0.partition_point(|newline| *newline < at) + 1).unwrap_or(u32::MAX)
    }
}
