//! What may cross the wall, as rules in order. The first rule that matches decides; nothing matched is denied.
//!
//! These are the rules as they travel and lie on disk, already normalised; `gate` reads them from a person's file and
//! judges by them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The rules of one sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// In the order they are tried.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Nothing is denied; what would have been is recorded.
    #[serde(default)]
    pub audit_only: bool,
    /// Bytes a second that all flows together may move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Which packages may be fetched from registries.
    #[serde(default, skip_serializing_if = "Packages::is_none")]
    pub packages: Packages,
}

/// Which packages may be fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packages {
    /// Where packages are fetched; nothing is looked at anywhere else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<Registry>,
    /// For how many seconds a version must have been public; two days where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_age: Option<u64>,
    /// However young: `name`, `name@version`, each also with the kind before it (`npm:name`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// However old, and whatever `allow` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

/// A place that packages come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// Which clients it serves.
    pub kind: RegistryKind,
    /// Its index, as `http://` or `https://`.
    pub url: String,
}

/// Which clients a registry serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistryKind {
    /// npm, yarn, pnpm.
    Npm,
    /// pip, uv.
    Pypi,
    /// cargo.
    Crates,
    /// go.
    Go,
    /// Maven, Gradle.
    Maven,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What happens to what it matches.
    pub verdict: Verdict,
    /// Names (`api.example.com`, `*.example.com`, `*`) and addresses (`192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`).
    pub hosts: Vec<String>,
    /// Ports; a rule that names none has 80 and 443 here.
    pub ports: Vec<Ports>,
    /// What must be true of TLS inside the connection.
    #[serde(default)]
    pub tls: Tls,
    /// Private address ranges these names may resolve into (`10.20.0.0/16`).
    #[serde(default)]
    pub private: Vec<String>,
    /// What must be true of a request inside the connection; a rule without it is about whole connections.
    #[serde(default, skip_serializing_if = "Request::is_any")]
    pub request: Request,
    /// What it allows at most.
    #[serde(default, skip_serializing_if = "Bounds::is_none")]
    pub bounds: Bounds,
    /// The server's certificate has one of these keys (`sha256/<base64>` of its public key).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// Bodies that scripts see; none where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
    /// Where a person finds it.
    #[serde(default)]
    pub origin: Origin,
}

/// How much of a body scripts see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// The most bytes.
    pub most: u32,
    /// What happens to a body that cannot be shown: longer, a stream (SSE, WebSocket), or no text.
    #[serde(default)]
    pub over: Over,
}

/// What happens to a body that cannot be shown to a script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// It is denied.
    #[default]
    Deny,
    /// It passes unseen; the script sees the head.
    Pass,
}

/// What must be true of a request. What is empty is not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// `GET`, `POST`, …; `GET` does not stand for `HEAD`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Patterns of paths: `*` does not cross `/`, `**` does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Parameters that must be there, each with a pattern of its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// Headers that must be there, each with a pattern of its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Only WebSockets, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub websocket: Option<bool>,
    /// Only git, and only this of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<Git>,
    /// Patterns of the repositories (`acme/*`), without `.git`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<String>,
    /// Also paths with encoded slashes, each of which is then part of a segment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encoded_slashes: bool,
}

/// What may be done with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Git {
    /// Read it.
    Fetch,
    /// Read and write it.
    Push,
}

/// What a rule allows at most, for one sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Requests in a time; connections where the rule is about those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Bytes both ways together, while the sandbox lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bytes a second, both ways together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

/// So many in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In how many seconds.
    pub seconds: u32,
}

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may cross.
    Allow,
    /// It may not.
    Deny,
    /// A person is asked.
    Ask,
}

/// A run of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// What must be true of TLS inside a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tls {
    /// A connection that begins with a ClientHello names the host of the rule in it, unencrypted.
    #[default]
    Checked,
    /// Not looked at.
    Opaque,
    /// Ended at the wall, so that every request inside is judged, also where the rule says nothing about requests.
    Opened,
}

/// Where a rule was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// A file, a flag (`--allow`), a group (`group github`), or an answer (`approved`).
    pub from: String,
    /// Line of the file, counted from 1; 0 where it is none.
    #[serde(default)]
    pub line: u32,
}

impl Rule {
    /// A rule about whole connections.
    pub fn new(verdict: Verdict, hosts: Vec<String>, ports: Vec<Ports>, origin: Origin) -> Rule {
        Rule {
            verdict,
            hosts,
            ports,
            tls: Tls::default(),
            private: Vec::new(),
            request: Request::default(),
            bounds: Bounds::default(),
            pins: Vec::new(),
            body: None,
            origin,
        }
    }
}

impl Packages {
    /// Whether every package may be fetched.
    pub fn is_none(&self) -> bool {
        *self == Packages::default()
    }
}

impl RegistryKind {
    /// All of them.
    pub const ALL: [RegistryKind; 5] =
        [RegistryKind::Npm, RegistryKind::Pypi, RegistryKind::Crates, RegistryKind::Go, RegistryKind::Maven];

    /// The name of its group of hosts.
    pub fn word(self) -> &'static str {
        match self {
            RegistryKind::Npm => "npm",
            RegistryKind::Pypi => "pypi",
            RegistryKind::Crates => "crates",
            RegistryKind::Go => "go",
            RegistryKind::Maven => "maven",
        }
    }
}

impl Request {
    /// Whether nothing is asked of requests.
    pub fn is_any(&self) -> bool {
        *self == Request::default()
    }
}

impl Bounds {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Bounds::default()
    }
}

impl Ports {
    /// One port.
    pub fn one(port: u16) -> Ports {
        Ports { first: port, last: port }
    }

    /// Every port.
    pub const ALL: Ports = Ports { first: 0, last: u16::MAX };

    /// Whether `port` is among them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}
