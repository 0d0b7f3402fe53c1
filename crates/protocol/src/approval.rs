//! Crossings that wait for a person.

use crate::policy::Request;
use serde::{Deserialize, Serialize};

/// One crossing that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Stable while it waits and never used again: `<sandbox id>-<n>` shortened by people as ids are.
    pub id: String,
    /// The sandbox's name.
    pub sandbox: String,
    /// Since when (RFC 3339, UTC).
    pub since: String,
    /// When it is refused unanswered (RFC 3339, UTC).
    pub until: String,
    /// What wants to cross: `connect`, `request`.
    pub kind: String,
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Of a request: its method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Its path, decoded, without what a terminal would obey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its query, decoded likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// What a rule that answers it for longer asks of requests: exactly this one, whatever its query.
    #[serde(default, skip_serializing_if = "Request::is_any")]
    pub grant: Request,
    /// The rule that asks, in words (`ask *.example.com (airlock.toml:12)`).
    pub rule: String,
}

impl Pending {
    /// What wants to cross, in words: `connect api.example.com:443`, `POST api.example.com:443/v1/orders`.
    pub fn words(&self) -> String {
        let Pending { kind, host, port, method, path, query, .. } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        match (method, path) {
            (Some(method), Some(path)) => {
                let query = query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
                format!("{method} {host}:{port}{path}{query}")
            }
            _ => format!("{kind} {host}:{port}"),
        }
    }
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
    /// For this host and port (and this method and path), as long as the sandbox lives.
    Sandbox,
    /// As `Sandbox`; the client also writes the rule into the policy file.
    Always,
}
