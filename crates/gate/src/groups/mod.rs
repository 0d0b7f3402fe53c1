//! Hosts that belong together under one name: `--allow github`.
//!
//! The hosts of well-known services are data files. The hosts of package registries are not known here: they are taken from this
//! host's own package clients by whoever reads files, and handed in as [`Discovered`].

use crate::policy::suggestion;
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};

/// A group and its hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// What it is for, in one line.
    pub about: String,
    /// Its hosts, as a rule names them; one that is reached on another port than 80 and 443 has it behind it (`HOST:PORT`).
    pub hosts: Vec<String>,
}

/// Groups that are not known beforehand: those of package clients, and those of the file that is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovered(BTreeMap<String, Group>);

/// Why a name is no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGroup {
    /// Nobody knows it.
    #[error("there is no group {name}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        suggestion: Option<String>,
    },
    /// The package client of this host names no hosts.
    #[error("the group {name} is taken from this host's {client}, which names no host")]
    Silent {
        /// What was asked for.
        name: String,
        /// The program whose settings are read.
        client: &'static str,
        /// The setting to make.
        setting: &'static str,
    },
}

/// Groups whose hosts the package clients of this host tell: name, client, and the setting that names them.
pub const REGISTRIES: [(&str, &str, &str); 6] = [
    ("crates", "cargo", "name it under `[source]` or `[registries]` in cargo's config.toml"),
    ("debian", "apt", "name a source in /etc/apt/sources.list or sources.list.d"),
    ("go", "go", "run `go env -w GOPROXY=URL`"),
    ("maven", "Maven", "name a `<mirror>` in Maven's settings.xml"),
    ("npm", "npm", "run `npm config set registry URL`"),
    ("pypi", "pip", "run `pip config set global.index-url URL`"),
];

macro_rules! data {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../../groups/", $name, ".toml")))),*] };
}

/// Each a file: `about` and `hosts`.
const DATA: [(&str, &str); 18] = data![
    "anthropic",
    "atlassian",
    "bitbucket",
    "cohere",
    "deepseek",
    "gemini",
    "github",
    "gitlab",
    "groq",
    "linear",
    "mistral",
    "notion",
    "openai",
    "openrouter",
    "sentry",
    "slack",
    "wikipedia",
    "xai",
];

impl Discovered {
    /// Adds a group, or replaces it.
    pub fn insert(&mut self, group: Group) {
        self.0.insert(group.name.clone(), group);
    }

    /// All of them, by name.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.0.values()
    }
}

/// The group called `name`. What was discovered comes first.
pub fn find(name: &str, discovered: &Discovered) -> Result<Group, NoGroup> {
    if let Some(group) = discovered.0.get(name) {
        return Ok(group.clone());
    }
    if let Some(group) = DATA.iter().find(|(own, _)| *own == name).and_then(|(name, text)| read(name, text)) {
        return Ok(group);
    }
    if let Some((name, client, setting)) = REGISTRIES.iter().find(|(own, ..)| *own == name) {
        return Err(NoGroup::Silent { name: (*name).to_string(), client, setting });
    }
    let known = names(discovered);
    let suggestion = suggestion(name, known.iter().map(String::as_str)).map(str::to_string);
    Err(NoGroup::Unknown { name: name.to_string(), suggestion })
}

/// Every group, by name. Those that no client told of have no hosts.
pub fn list(discovered: &Discovered) -> Vec<Group> {
    let silent = |name: &str| {
        let (_, client, setting) = REGISTRIES.iter().find(|(own, ..)| *own == name)?;
        let about = format!("from this host's {client}, which names no host; {setting}");
        Some(Group { name: name.to_string(), about, hosts: Vec::new() })
    };
    names(discovered).iter().filter_map(|name| find(name, discovered).ok().or_else(|| silent(name))).collect()
}

/// Whether a text could be the name of a group: lower-case letters, digits and hyphens, no dot.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn names(discovered: &Discovered) -> Vec<String> {
    let mut names: Vec<String> = DATA.iter().map(|(name, _)| (*name).to_string()).collect();
    names.extend(REGISTRIES.iter().map(|(name, ..)| (*name).to_string()));
    names.extend(discovered.0.keys().cloned());
    names.sort();
    names.dedup();
    names
}

fn read(name: &str, text: &str) -> Option<Group> {
    let table = DeTable::parse(text).ok()?;
    let DeValue::String(about) = table.get_ref().get("about")?.get_ref() else { return None };
    let DeValue::Array(hosts) = table.get_ref().get("hosts")?.get_ref() else { return None };
    let hosts = hosts.iter().filter_map(|host| match host.get_ref() {
        DeValue::String(host) => Some(host.to_string()),
        _ => None,
    });
    Some(Group { name: name.to_string(), about: about.to_string(), hosts: hosts.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;

    #[test]
    fn every_data_file_is_a_group_of_hosts_in_normal_form() {
        for (name, text) in DATA {
            let group = read(name, text).unwrap();
            assert!(is_name(name) && !group.about.is_empty() && !group.hosts.is_empty(), "{name}");
            for host in &group.hosts {
                assert_eq!(host.parse::<Pattern>().unwrap().to_string(), *host, "{name}");
                assert!(
                    !matches!(host.parse(), Ok(Pattern::EveryName | Pattern::Addresses(_))),
                    "{name}: {host}"
                );
            }
        }
        let mut names: Vec<&str> = DATA.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DATA.len());
    }

    #[test]
    fn a_registry_without_a_client_that_names_it_has_no_hosts() {
        let nothing = Discovered::default();
        assert!(matches!(find("npm", &nothing), Err(NoGroup::Silent { client: "npm", .. })));
        assert!(
            matches!(find("githb", &nothing), Err(NoGroup::Unknown { suggestion: Some(near), .. }) if near == "github")
        );
        assert!(matches!(find("zzzzzz", &nothing), Err(NoGroup::Unknown { suggestion: None, .. })));
        let listed = list(&nothing);
        assert_eq!(listed.len(), DATA.len() + REGISTRIES.len());
        assert!(listed.iter().filter(|group| group.hosts.is_empty()).count() == REGISTRIES.len());
    }
}
