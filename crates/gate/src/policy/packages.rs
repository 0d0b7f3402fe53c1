//! Which packages may be fetched: the table `[packages]`.
//!
//! ```toml
//! [packages]
//! min_age = "7d"                        # two days where it is not said; 0: any
//! allow = ["@acme/ui", "npm:left-pad@1.3.0"]
//! deny = ["pypi:requestz"]
//!
//! [packages.registries]
//! npm = "https://npm.example.com/"
//! ```

use super::{
    BadPolicy, Source,
    read::{Value, strings, unknown, wrong},
};
use crate::host::Destination;
use airlock_protocol::policy::{Packages, Registry, RegistryKind};
use std::fmt::Write as _;
use toml::de::{DeTable, DeValue};

const KEYS: [&str; 4] = ["min_age", "allow", "deny", "registries"];

/// Reads the table, where there is one.
pub(super) fn read(source: Source<'_>, top: &DeTable<'_>) -> Result<Packages, BadPolicy> {
    let mut packages = Packages::default();
    let Some(value) = top.get("packages") else { return Ok(packages) };
    let DeValue::Table(table) = value.get_ref() else {
        return Err(wrong(source, value, "packages", "a table").fix("write [packages]"));
    };
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "min_age" => packages.min_age = Some(age(source, value)?),
            "allow" => packages.allow = names(source, value, "allow")?,
            "deny" => packages.deny = names(source, value, "deny")?,
            "registries" => packages.registries = registries(source, value)?,
            other => return Err(unknown(source, key.span(), other, &KEYS)),
        }
    }
    Ok(packages)
}

/// Of several the strictest: the greatest age, every list and every registry.
pub(super) fn union<'p>(several: impl Iterator<Item = &'p Packages>) -> Packages {
    let mut all = Packages::default();
    for packages in several {
        all.min_age = all.min_age.max(packages.min_age);
        all.registries.extend(packages.registries.iter().cloned());
        all.allow.extend(packages.allow.iter().cloned());
        all.deny.extend(packages.deny.iter().cloned());
    }
    for texts in [&mut all.allow, &mut all.deny] {
        texts.sort();
        texts.dedup();
    }
    all.registries.sort();
    all.registries.dedup();
    all
}

/// The table as the text of a file; empty where nothing is said.
pub(super) fn show(packages: &Packages) -> String {
    let mut text = String::new();
    if packages.is_none() {
        return text;
    }
    text.push_str("[packages]\n");
    // Writing to a String cannot fail.
    if let Some(age) = packages.min_age {
        let _ = writeln!(text, "min_age = \"{age}s\"");
    }
    for (key, names) in [("allow", &packages.allow), ("deny", &packages.deny)] {
        if !names.is_empty() {
            let _ = writeln!(text, "{key} = {}", list(names.iter().map(String::as_str)));
        }
    }
    let of = |kind| packages.registries.iter().filter(move |registry| registry.kind == kind);
    if !packages.registries.is_empty() {
        text.push_str("\n[packages.registries]\n");
    }
    for kind in RegistryKind::ALL.into_iter().filter(|kind| of(*kind).next().is_some()) {
        let _ = writeln!(text, "{} = {}", kind.word(), list(of(kind).map(|registry| registry.url.as_str())));
    }
    text
}

fn list<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let quoted: Vec<String> = texts.map(super::write::quoted).collect();
    format!("[{}]", quoted.join(", "))
}

/// `"2d"`, `"12h"`, `"30m"`, `"90s"`, or 0.
fn age(source: Source<'_>, value: Value<'_, '_>) -> Result<u64, BadPolicy> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.as_str() == "0" => "0s".to_owned(),
        _ => return Err(wrong(source, value, "min_age", "a time such as \"2d\"").fix("write \"2d\", or 0")),
    };
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "d" => 86_400,
        "h" => 3_600,
        "m" => 60,
        "s" => 1,
        _ => 0,
    };
    let number: Option<u64> = number.parse().ok();
    match number.and_then(|number| number.checked_mul(seconds)) {
        Some(age) if seconds > 0 => Ok(age),
        _ => Err(source.bad(value.span(), "this is not a time").fix("write \"2d\", \"12h\" or 0")),
    }
}

/// `[kind:]name[@version]`.
fn names(source: Source<'_>, value: Value<'_, '_>, key: &str) -> Result<Vec<String>, BadPolicy> {
    let mut names = Vec::new();
    for (text, at) in strings(source, value, key)? {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !"*?\"'".contains(c);
        if text.is_empty() || !text.chars().all(is_plain) {
            return Err(source
                .bad(at, "this names no package")
                .why("a package is named as its registry names it, and patterns are not")
                .fix("write \"left-pad\", \"left-pad@1.3.0\" or \"npm:left-pad\""));
        }
        names.push(text.to_owned());
    }
    Ok(names)
}

fn registries(source: Source<'_>, value: Value<'_, '_>) -> Result<Vec<Registry>, BadPolicy> {
    let DeValue::Table(table) = value.get_ref() else {
        return Err(wrong(source, value, "registries", "a table").fix("write [packages.registries]"));
    };
    let mut registries = Vec::new();
    for (key, value) in table {
        let kind = RegistryKind::ALL.into_iter().find(|kind| kind.word() == key.get_ref().as_ref());
        let Some(kind) = kind else {
            let words = RegistryKind::ALL.map(RegistryKind::word);
            return Err(unknown(source, key.span(), key.get_ref(), &words));
        };
        for (text, at) in strings(source, value, kind.word())? {
            let Some(url) = registry_url(text) else {
                let bad = source.bad(at, "this is not the address of a registry");
                return Err(bad.fix("write https://HOST/PATH"));
            };
            registries.push(Registry { kind, url });
        }
    }
    registries.sort();
    Ok(registries)
}

/// The address of a registry as clients name it (`sparse+https://…`), without credentials; none if it is none of HTTP.
pub fn registry_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.trim().split_once("://")?;
    let scheme = scheme.strip_prefix("sparse+").unwrap_or(scheme);
    if !["http", "https"].contains(&scheme) {
        return None;
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let _: Destination = format!("{scheme}://{host}").parse().ok()?;
    Some(format!("{scheme}://{host}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse_toml;

    fn packages(text: &str) -> Packages {
        parse_toml("airlock.toml", text).unwrap().policy.packages
    }

    #[test]
    fn the_table_is_read_and_shown_as_it_was() {
        let text = "[packages]\nmin_age = \"7d\"\nallow = \"left-pad@1.3.0\"\ndeny = [\"npm:a\", \"b\"]\n\n\
                    [packages.registries]\nnpm = \"https://ada:x@npm.example.com/r/\"\ncrates = \"sparse+https://crates.example.com\"\n";
        let read = packages(text);

        assert_eq!(read.min_age, Some(7 * 86_400));
        let urls: Vec<&str> = read.registries.iter().map(|registry| registry.url.as_str()).collect();
        assert_eq!(urls, ["https://npm.example.com/r/", "https://crates.example.com/"]);
        assert_eq!(packages(&show(&read)), read);
        assert_eq!(packages("[packages]\nmin_age = 0\n").min_age, Some(0));
        assert_eq!(packages("").min_age, None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (text, words) in [
            ("packages = 3\n", "airlock.toml:1:12: `packages` is a table"),
            ("[packages]\nage = \"2d\"\n", "airlock.toml:2:1: there is no key `age` here"),
            ("[packages]\nmin_age = \"soon\"\n", "airlock.toml:2:11: this is not a time"),
            ("[packages]\nmin_age = 3\n", "airlock.toml:2:11: `min_age` is a time"),
            ("[packages]\ndeny = \"a*\"\n", "airlock.toml:2:8: this names no package"),
            (
                "[packages.registries]\ngems = \"https://x.example\"\n",
                "airlock.toml:2:1: there is no key `gems`",
            ),
            (
                "[packages.registries]\nnpm = \"ftp://x.example\"\n",
                "airlock.toml:2:7: this is not the address",
            ),
        ] {
            let bad = parse_toml("airlock.toml", text).unwrap_err();
            assert!(bad.headline().starts_with(words), "{}", bad.headline());
        }
    }

    #[test]
    fn of_several_the_strictest_counts() {
        let several = [
            packages("[packages]\nmin_age = \"1d\"\ndeny = \"a\"\n"),
            packages("[packages]\nmin_age = 0\ndeny = \"a\"\n"),
        ];
        let all = union(several.iter());
        assert_eq!((all.min_age, all.deny.len()), (Some(86_400), 1));
    }
}
