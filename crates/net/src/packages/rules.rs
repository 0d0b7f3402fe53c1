//! Whether a version may be fetched: lists first, then its age. Pure.

use airlock_protocol::policy::{Packages, RegistryKind};
use std::fmt::Write as _;

/// How old a version must be where nobody said so.
pub(crate) const TWO_DAYS: u64 = 2 * 24 * 60 * 60;

/// A package, as its registry names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Package {
    /// Whose name it is.
    pub(crate) kind: RegistryKind,
    /// The name, in the form in which equal ones are equal.
    pub(crate) name: String,
}

/// When a version became public, in seconds since 1970; none: nobody tells.
pub(crate) type Since = Option<u64>;

/// What the lists and the least age say, made ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    min_age: u64,
    allow: Vec<Entry>,
    deny: Vec<Entry>,
}

/// `[kind:]name[@version]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    kind: Option<RegistryKind>,
    name: String,
    version: Option<String>,
    text: String,
}

/// Why a version may not be fetched: what the denial says of it, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// `left-pad 1.3.1 is 3 hours old`.
    pub(crate) what: String,
    /// `packages: min_age = 2 days`.
    pub(crate) rule: String,
}

impl Rules {
    /// Of a policy.
    pub(crate) fn new(packages: &Packages) -> Rules {
        let entries = |texts: &[String]| texts.iter().map(|text| Entry::read(text)).collect();
        Rules {
            min_age: packages.min_age.unwrap_or(TWO_DAYS),
            allow: entries(&packages.allow),
            deny: entries(&packages.deny),
        }
    }

    /// Whether anything could be refused.
    pub(crate) fn is_idle(&self) -> bool {
        self.min_age == 0 && self.deny.is_empty()
    }

    /// Whether every version of a package is denied.
    pub(crate) fn denied(&self, package: &Package) -> Result<(), Refused> {
        match self.deny.iter().find(|entry| entry.version.is_none() && entry.names(package)) {
            None => Ok(()),
            Some(entry) => Err(listed(package, "", entry)),
        }
    }

    /// Whether lists alone decide, so that nobody need know how old a version is.
    pub(crate) fn decided(&self, package: &Package, version: &str) -> Option<Result<(), Refused>> {
        if let Some(entry) = self.deny.iter().find(|entry| entry.is(package, version)) {
            return Some(Err(listed(package, version, entry)));
        }
        let is_free = self.min_age == 0 || self.allow.iter().any(|entry| entry.is(package, version));
        is_free.then_some(Ok(()))
    }

    /// Whether a version may be fetched `now` that is public since `since`.
    pub(crate) fn judge(
        &self,
        package: &Package,
        version: &str,
        since: Since,
        now: u64,
    ) -> Result<(), Refused> {
        if let Some(decided) = self.decided(package, version) {
            return decided;
        }
        let rule = format!("packages: min_age = {}", span(self.min_age));
        let name = &package.name;
        match since {
            None => {
                let what = format!("nobody tells how old {name} {version} is");
                Err(Refused { what, rule })
            }
            // A time to come is no age at all.
            Some(since) if now.saturating_sub(since) < self.min_age => {
                let what = format!("{name} {version} is {} old", span(now.saturating_sub(since)));
                Err(Refused { what, rule })
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether something public since `since` is old enough.
    pub(crate) fn is_old(&self, since: u64, now: u64) -> bool {
        now.saturating_sub(since) >= self.min_age
    }
}

fn listed(package: &Package, version: &str, entry: &Entry) -> Refused {
    let what = format!("{} {version}", package.name);
    Refused {
        what: format!("{} is on the list of what is denied", what.trim_end()),
        rule: format!("packages: deny = \"{}\"", entry.text),
    }
}

impl Entry {
    fn read(text: &str) -> Entry {
        let kinds = RegistryKind::ALL.into_iter();
        let split = kinds.into_iter().find_map(|kind| {
            let rest = text.strip_prefix(kind.word())?.strip_prefix(':')?;
            Some((kind, rest))
        });
        let (kind, rest) = split.map_or((None, text), |(kind, rest)| (Some(kind), rest));
        // The first character may be the `@` of a scope.
        let at = rest.char_indices().skip(1).filter(|(_, c)| *c == '@').map(|(at, _)| at).last();
        let (name, version) = match at.and_then(|at| rest.split_at_checked(at)) {
            Some((name, version)) => (name, version.strip_prefix('@').map(str::to_owned)),
            None => (rest, None),
        };
        Entry { kind, name: name.to_owned(), version, text: text.to_owned() }
    }

    fn names(&self, package: &Package) -> bool {
        self.kind.is_none_or(|kind| kind == package.kind)
            && normal(package.kind, &self.name) == normal(package.kind, &package.name)
    }

    fn is(&self, package: &Package, version: &str) -> bool {
        self.names(package) && self.version.as_deref().is_none_or(|own| own == version)
    }
}

/// A name in the form in which equal names are equal.
pub(crate) fn normal(kind: RegistryKind, name: &str) -> String {
    match kind {
        RegistryKind::Npm | RegistryKind::Go | RegistryKind::Maven => name.to_owned(),
        RegistryKind::Crates => name.to_ascii_lowercase().replace('_', "-"),
        RegistryKind::Pypi => {
            let mut normal = String::new();
            for c in name.chars() {
                match c {
                    '-' | '_' | '.' if normal.ends_with('-') => {}
                    '-' | '_' | '.' => normal.push('-'),
                    c => normal.push(c.to_ascii_lowercase()),
                }
            }
            normal
        }
    }
}

/// `3 hours`, `2 days`: the greatest unit that there is at least one of.
pub(crate) fn span(seconds: u64) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let (unit, word) = units.into_iter().find(|(unit, _)| seconds >= *unit).unwrap_or((1, "second"));
    let count = seconds / unit;
    let mut text = format!("{count} {word}");
    if count != 1 {
        text.push('s');
    }
    text
}

/// Versions that were hidden, in words: the first few, and how many more.
pub(crate) fn hidden(package: &Package, versions: &[(String, Since)], now: u64) -> String {
    let mut text = format!("hidden of {}:", package.name);
    for (version, since) in versions.iter().take(5) {
        // Writing to a String cannot fail.
        let _ = match since {
            Some(since) => write!(text, " {version} ({} old)", span(now.saturating_sub(*since))),
            None => write!(text, " {version} (of unknown age)"),
        };
    }
    if versions.len() > 5 {
        let _ = write!(text, " and {} more", versions.len() - 5);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn rules(min_age: u64, allow: &[&str], deny: &[&str]) -> Rules {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (allow, deny) = (owned(allow), owned(deny));
        Rules::new(&Packages { registries: Vec::new(), min_age: Some(min_age), allow, deny })
    }

    fn npm(name: &str) -> Package {
        Package { kind: RegistryKind::Npm, name: name.to_owned() }
    }

    #[test]
    fn young_and_unknown_versions_are_refused_in_words() {
        let rules = rules(TWO_DAYS, &[], &[]);
        let refused = |since| rules.judge(&npm("left-pad"), "1.3.1", since, NOW).unwrap_err();

        assert_eq!(refused(Some(NOW - 3 * 3600)).what, "left-pad 1.3.1 is 3 hours old");
        assert_eq!(refused(Some(NOW + 50)).what, "left-pad 1.3.1 is 0 seconds old");
        assert_eq!(refused(None).what, "nobody tells how old left-pad 1.3.1 is");
        assert_eq!(refused(None).rule, "packages: min_age = 2 days");
        assert!(rules.judge(&npm("left-pad"), "1.3.1", Some(NOW - TWO_DAYS), NOW).is_ok());
    }

    #[test]
    fn lists_name_packages_or_versions_and_denying_goes_first() {
        let rules = rules(
            TWO_DAYS,
            &["@acme/ui", "left-pad@1.3.1", "bad@1.0.0", "pypi:requests"],
            &["bad", "npm:worse@2.0.0"],
        );
        let ok = |name: &str, version: &str| rules.judge(&npm(name), version, Some(NOW), NOW).is_ok();

        assert!(ok("@acme/ui", "9.9.9") && ok("left-pad", "1.3.1"));
        assert!(!ok("left-pad", "1.3.2") && !ok("bad", "1.0.0") && !ok("requests", "1.0"));
        assert!(rules.denied(&npm("bad")).is_err() && rules.denied(&npm("worse")).is_ok());
        let worse = rules.judge(&npm("worse"), "2.0.0", Some(0), NOW).unwrap_err();
        assert_eq!(worse.rule, "packages: deny = \"npm:worse@2.0.0\"");
        assert!(rules.judge(&npm("worse"), "2.0.1", Some(0), NOW).is_ok());
    }

    #[test]
    fn names_are_compared_as_their_registry_does() {
        assert_eq!(normal(RegistryKind::Pypi, "Zope._-Interface"), "zope-interface");
        assert_eq!(normal(RegistryKind::Crates, "Serde_JSON"), "serde-json");
        assert_eq!(normal(RegistryKind::Npm, "JSONStream"), "JSONStream");
    }

    #[test]
    fn an_age_of_nothing_is_off_unless_a_list_denies() {
        assert!(rules(0, &["a"], &[]).is_idle());
        assert!(!rules(0, &[], &["a"]).is_idle());
        assert!(rules(0, &[], &["a"]).judge(&npm("b"), "1.0.0", None, NOW).is_ok());
    }
}
