//! What may cross the wall, as rules in order. The first rule that matches decides; nothing matched is denied.
//!
//! These are the rules as they travel and lie on disk, already normalised; `gate` reads them from a person's file and
//! judges by them.

use serde::{Deserialize, Serialize};

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
    /// Where a person finds it.
    #[serde(default)]
    pub origin: Origin,
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
