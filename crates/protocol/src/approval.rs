//! Crossings that wait for a person.

use serde::{Deserialize, Serialize};

/// One crossing that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Stable while it waits and never used again: `<sandbox id>-<n>` shortened by people as ids are.
    pub id: String,
    /// The sandbox's name.
    pub sandbox: String,
    /// Since when (RFC 3339, UTC).
    pub since: String,
    /// When it is refused unanswered (RFC 3339, UTC).
    pub until: String,
    /// What wants to cross: `connect`, `publish`.
    pub kind: String,
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The rule that asks, in words (`ask *.example.com (airlock.toml:12)`).
    pub rule: String,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Which crossing.
    pub id: String,
    /// May it cross?
    pub verdict: Given,
    /// For how long the answer counts.
    pub scope: Scope,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// It may.
    Approved,
    /// It may not.
    Refused,
}

/// For how long an answer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// For this crossing.
    Once,
    /// For this host and port, as long as the sandbox lives.
    Sandbox,
    /// As `Sandbox`; the client also writes the rule into the policy file.
    Always,
}
