//! The hosts of package registries, as this host's own package clients name them, so that a company's registry works
//! unasked. Our source names none.
//!
//! | group | client | settings |
//! |---|---|---|
//! | `npm` | npm | `NPM_CONFIG_REGISTRY`, `.npmrc` of the user and of the host |
//! | `pypi` | pip, uv | `PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL`, `UV_INDEX_URL`, `UV_DEFAULT_INDEX`, `pip.conf` |
//! | `crates` | cargo | `CARGO_REGISTRIES_*_INDEX`, `config.toml` of `CARGO_HOME` |
//! | `debian` | apt | `/etc/apt/sources.list`, `sources.list.d` |
//! | `go` | go | `GOPROXY`, `GOSUMDB`, `go/env` of the user, `go.env` of the tool chain |
//! | `maven` | Maven | `settings.xml` of the user and of the host |
//!
//! What clients log in with there is found too ([`tokens`]), and never enters.
//!
//! Settings inside a project (`.npmrc`, `.cargo/config.toml`) are never read, nor is any file that lies in the workspace:
//! the sandboxed program could write them.

mod apt;
mod cargo;
mod go;
mod ini;
mod maven;
mod npm;
mod pip;
mod tokens;

pub(crate) use tokens::{Token, settings_inside, token, tokens};

use crate::spec::Host;
use airlock_gate::{
    groups::{Discovered, Group, REGISTRIES},
    host::{Destination, Target},
    policy::registry_url,
};
use airlock_protocol::policy::{Registry, RegistryKind};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The most bytes of a file of settings that are looked at.
const MOST: u64 = 1 << 20;
/// The most hosts that one client may name.
const MOST_HOSTS: usize = 64;

/// Something that names URLs: a variable, or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    from: String,
    urls: Vec<String>,
}

/// This host as a client's settings see it.
struct Settings<'a> {
    variables: &'a BTreeMap<String, String>,
    /// What is in files; none if there is no such file, or it may not be believed.
    read: &'a dyn Fn(&Path) -> Option<String>,
    /// The files in a directory, by name.
    list: &'a dyn Fn(&Path) -> Vec<PathBuf>,
}

/// The groups among those that `texts` (flags, files of rules) mention.
pub(crate) fn discover<'t>(host: &Host, texts: impl IntoIterator<Item = &'t str>) -> Discovered {
    let texts: Vec<&str> = texts.into_iter().collect();
    let is_meant = |name: &str| texts.iter().any(|text| text.contains(name));
    let mut found = Discovered::default();
    let read = |path: &Path| believed(path, &host.directory);
    let settings = Settings { variables: &host.variables, read: &read, list: &files_in };
    for (name, client, _) in REGISTRIES.iter().filter(|(name, ..)| is_meant(name)) {
        let told = told(name, &settings);
        if told.is_empty() {
            continue;
        }
        let mut from: Vec<&str> = told.iter().map(|told| told.from.as_str()).collect();
        from.dedup();
        let about = format!("from this host's {client}: {}", from.join(", "));
        found.insert(Group { name: (*name).to_owned(), about, hosts: hosts(&told) });
    }
    found
}

/// Where the package clients of these groups fetch packages.
pub(crate) fn places<'n>(host: &Host, groups: impl IntoIterator<Item = &'n str>) -> Vec<Registry> {
    let read = |path: &Path| believed(path, &host.directory);
    let settings = Settings { variables: &host.variables, read: &read, list: &files_in };
    let mut places = Vec::new();
    for name in groups {
        let Some(kind) = RegistryKind::ALL.into_iter().find(|kind| kind.word() == name) else { continue };
        let urls = told(name, &settings).into_iter().flat_map(|told| told.urls);
        let urls = urls.filter(|url| destination(url).is_some()).take(MOST_HOSTS);
        places.extend(urls.filter_map(|url| Some(Registry { kind, url: registry_url(&url)? })));
    }
    places.sort();
    places.dedup();
    places
}

/// Every group that a client of this host tells of.
pub(crate) fn discover_all(host: &Host) -> Discovered {
    discover(host, REGISTRIES.iter().map(|(name, ..)| *name))
}

fn told(name: &str, settings: &Settings<'_>) -> Vec<Told> {
    let told = match name {
        "npm" => npm::told(settings),
        "pypi" => pip::told(settings),
        "crates" => cargo::told(settings),
        "debian" => apt::told(settings),
        "go" => go::told(settings),
        "maven" => maven::told(settings),
        _ => Vec::new(),
    };
    told.into_iter().filter(|told| !hosts(std::slice::from_ref(told)).is_empty()).collect()
}

/// `HOST`, or `HOST:PORT` where it is none of the usual two; each once.
fn hosts(told: &[Told]) -> Vec<String> {
    let mut hosts = Vec::new();
    for destination in told.iter().flat_map(|told| &told.urls).filter_map(|url| destination(url)) {
        let host = match destination.port_or_https() {
            80 | 443 => destination.target.to_string(),
            port => match &destination.target {
                Target::Address(address) if address.is_ipv6() => format!("[{address}]:{port}"),
                target => format!("{target}:{port}"),
            },
        };
        if hosts.len() < MOST_HOSTS && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

/// Where a URL leads, whoever it would log in as. None if that is nowhere, or this host itself.
fn destination(url: &str) -> Option<Destination> {
    let (scheme, rest) = url.trim().split_once("://")?;
    // `sparse+https`, `git+ssh`, `mirror+http`.
    let scheme = scheme.rsplit('+').next().unwrap_or(scheme);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let destination: Destination = format!("{scheme}://{host}").parse().ok()?;
    let is_loopback = match &destination.target {
        Target::Address(address) => address.is_loopback() || address.is_unspecified(),
        Target::Name(name) => name.as_str() == "localhost" || name.as_str().ends_with(".localhost"),
    };
    (!is_loopback).then_some(destination)
}

/// What a file of settings says, unless the sandboxed program could have written it.
fn believed(path: &Path, workspace: &Path) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    if path.starts_with(workspace) {
        return None;
    }
    let file = std::fs::File::open(&path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST), &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

impl Settings<'_> {
    /// A variable that is set and not empty.
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// URLs that a variable holds, parted by spaces.
    fn in_variable(&self, name: &str) -> Option<Told> {
        let value = self.variable(name)?;
        Some(Told { from: name.to_owned(), urls: value.split_whitespace().map(str::to_owned).collect() })
    }

    /// URLs that a file holds.
    fn in_file(&self, path: &Path, urls: impl Fn(&str) -> Vec<String>) -> Option<Told> {
        let urls = urls(&(self.read)(path)?);
        (!urls.is_empty()).then(|| Told { from: path.display().to_string(), urls })
    }

    /// A path in the home directory.
    fn home(&self, below: &str) -> Option<PathBuf> {
        self.variable("HOME").map(|home| Path::new(home).join(below))
    }

    /// A path among the user's settings.
    fn user_config(&self, below: &str) -> Option<PathBuf> {
        match self.variable("XDG_CONFIG_HOME") {
            Some(folder) => Some(Path::new(folder).join(below)),
            None => self.home(&format!(".config/{below}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients tell on a host with these variables and files.
    pub(super) fn told_on(
        name: &str,
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
    ) -> Vec<(String, Vec<String>)> {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let read = |path: &Path| {
            files.iter().find(|(own, _)| Path::new(own) == path).map(|(_, text)| (*text).to_owned())
        };
        let list = |folder: &Path| {
            files
                .iter()
                .map(|(path, _)| PathBuf::from(path))
                .filter(|path| path.parent() == Some(folder))
                .collect()
        };
        let settings = Settings { variables: &variables, read: &read, list: &list };
        let told = told(name, &settings);
        told.iter().map(|told| (told.from.clone(), hosts(std::slice::from_ref(told)))).collect()
    }

    pub(super) fn expected(told: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let owned = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect();
        told.iter().map(|(from, hosts)| ((*from).to_owned(), owned(hosts))).collect()
    }

    #[test]
    fn a_url_gives_host_and_port_and_never_its_credentials() {
        let host = |url: &str| hosts(&[Told { from: String::new(), urls: vec![url.to_owned()] }]);
        assert_eq!(host("https://ada:secret@npm.example.com/path/"), ["npm.example.com"]);
        assert_eq!(host("sparse+https://index.example.com/api/"), ["index.example.com"]);
        assert_eq!(host("http://mirror.example.com:8080"), ["mirror.example.com:8080"]);
        assert_eq!(host("ssh://git@git.example.com/index"), ["git.example.com:22"]);
        assert_eq!(host("https://192.0.2.7/simple"), ["192.0.2.7"]);
        assert_eq!(host("https://[2001:db8::1]:8443/simple"), ["[2001:db8::1]:8443"]);
        for nowhere in
            ["http://localhost:4873", "http://127.0.0.1/", "file:///srv", "direct", "https://", "x://y z"]
        {
            assert!(host(nowhere).is_empty(), "{nowhere}");
        }
    }

    #[test]
    fn a_client_that_tells_nothing_gives_no_group() {
        for (name, ..) in REGISTRIES {
            assert!(told_on(name, &[("HOME", "/home/ada")], &[]).is_empty(), "{name}");
        }
    }

    #[test]
    fn settings_in_the_workspace_are_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let path = folder.join(".npmrc");
        std::fs::write(&path, "registry=https://evil.example/").unwrap();
        let variables = BTreeMap::from([("HOME".to_owned(), folder.display().to_string())]);

        let elsewhere =
            Host { directory: "/srv/project".into(), variables: variables.clone(), ..Host::default() };
        let inside = Host { directory: folder.clone(), variables, ..Host::default() };

        assert_eq!(discover(&elsewhere, ["npm"]).groups().count(), 1);
        assert_eq!(discover(&inside, ["npm"]).groups().count(), 0);
        assert_eq!(discover(&elsewhere, ["github"]).groups().count(), 0);
    }
}
