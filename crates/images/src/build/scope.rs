//! Build arguments: which a stage knows, and their values. Pure and total.

use super::{Fault, dockerfile::Dockerfile, instruction::Kind, words};
use crate::manifest::Platform;
use std::collections::{BTreeMap, BTreeSet};

/// Arguments that need no `ARG`, and that make no difference to the cache.
const PROXIES: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Arguments of a whole build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// `--build-arg`
    given: BTreeMap<String, String>,
    /// Those before the first `FROM`, and those of the platforms.
    globals: BTreeMap<String, String>,
}

/// Arguments that a stage has declared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared(Vec<(String, Option<String>)>);

impl Scope {
    /// The arguments of a build for `target`, done on `here`.
    pub fn new(
        file: &Dockerfile,
        given: BTreeMap<String, String>,
        target: &Platform,
        here: &Platform,
    ) -> Result<Self, Fault> {
        let mut made = Self { given, globals: BTreeMap::new() };
        for (prefix, platform) in [("TARGET", target), ("BUILD", here)] {
            let variant = platform.variant.clone().unwrap_or_default();
            let whole = format!("{}/{}", platform.os, platform.architecture);
            let whole = if variant.is_empty() { whole } else { format!("{whole}/{variant}") };
            for (name, value) in [
                ("PLATFORM", whole),
                ("OS", platform.os.clone()),
                ("ARCH", platform.architecture.clone()),
                ("VARIANT", variant),
            ] {
                made.globals.insert(format!("{prefix}{name}"), value);
            }
        }
        for instruction in &file.globals {
            let Kind::Arg(pairs) = &instruction.kind else { continue };
            for (name, value) in pairs {
                let value = match (made.given.get(name), value) {
                    (Some(given), _) => given.clone(),
                    (None, None) => continue,
                    (None, Some(text)) => {
                        let values = |name: &str| made.globals.get(name).cloned();
                        let fault = |bad: words::Bad| {
                            Fault::new(instruction.line, &instruction.text, bad.to_string())
                        };
                        words::expand(text, file.escape, &values).map_err(fault)?
                    }
                };
                made.globals.insert(name.clone(), value);
            }
        }
        Ok(made)
    }

    /// A value in a `FROM`.
    pub fn global(&self, name: &str) -> Option<String> {
        self.globals.get(name).cloned()
    }

    /// Proxies that were given: they need no `ARG`.
    pub fn proxies(&self) -> Vec<(String, String)> {
        let given = |name: &&str| self.given.get(*name).map(|value| ((*name).to_owned(), value.clone()));
        PROXIES.iter().filter_map(given).collect()
    }

    /// Arguments given that nothing in the file declares.
    pub fn unused(&self, file: &Dockerfile) -> Vec<String> {
        let instructions = file.stages.iter().flat_map(|stage| &stage.instructions).chain(&file.globals);
        let mut declared = BTreeSet::new();
        for instruction in instructions {
            if let Kind::Arg(pairs) = &instruction.kind {
                declared.extend(pairs.iter().map(|(name, _)| name.as_str()));
            }
        }
        let is_unused =
            |name: &&String| !declared.contains(name.as_str()) && !PROXIES.contains(&name.as_str());
        self.given.keys().filter(is_unused).cloned().collect()
    }
}

impl Declared {
    /// `ARG name` or `ARG name=value`, the value expanded.
    pub fn declare(&mut self, scope: &Scope, name: &str, default: Option<String>) {
        let value = match (scope.given.get(name), default) {
            (Some(given), _) => Some(given.clone()),
            (None, Some(value)) => Some(value),
            (None, None) => scope.globals.get(name).cloned(),
        };
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value));
    }

    /// The value of a name, if it was declared and has one.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_deref())
    }

    /// All with values, by name.
    pub fn values(&self) -> Vec<(String, String)> {
        let mut values: Vec<(String, String)> =
            self.0.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect();
        values.sort();
        values
    }
}

/// Whether an argument makes no difference to the cache and to the history.
pub fn is_proxy(name: &str) -> bool {
    PROXIES.contains(&name)
}
