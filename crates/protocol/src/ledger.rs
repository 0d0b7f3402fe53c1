//! One line of a sandbox's ledger. Additions only. Never holds a secret or a body.

use crate::{SandboxId, policy::Verdict};
use serde::{Deserialize, Serialize};

/// One decision, or the end of one flow. Written before the effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counts the sandbox's records from 1, without gaps.
    pub seq: u64,
    /// When (RFC 3339, UTC, microseconds).
    pub at: String,
    /// Whose.
    pub sandbox: SandboxId,
    /// What.
    #[serde(flatten)]
    pub entry: Entry,
    /// SHA-256 of the line before this one without its line end, in hex; of the empty text for the first.
    pub prev: String,
}

/// What a record tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A crossing was decided.
    Decision {
        /// What wanted to cross.
        crossing: Crossing,
        /// What was decided: `allow` or `deny`, also after asking.
        verdict: Verdict,
        /// Whether it would have been denied if only recorded (`--audit-only`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        audit_only: bool,
        /// The rule in words; none where no rule matched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// Why, where it was denied, in a word that stays: `no_rule`, `rule`, `refused`, `unanswered`, `address`, `sni`, …
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// More for a person.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// Joins it with the end of the flow, where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow: Option<u64>,
        /// How many alike this line stands for, where there were many at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<u64>,
    },
    /// A permitted flow has ended.
    Flow {
        /// Which (see `Decision`).
        flow: u64,
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// The address that was dialled, where one was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// Bytes from the sandbox.
        sent: u64,
        /// Bytes to the sandbox.
        received: u64,
        /// Milliseconds.
        millis: u64,
        /// How it ended: `closed`, `reset`, `unreachable`, `revoked`, `sni`, …
        status: String,
        /// The status code of the answer, where the flow was a request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<u16>,
        /// How many alike this line stands for, where there were very many: bytes are their sum, `millis` the longest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<u64>,
    },
    /// The rules are others now.
    Policy {
        /// Counts the changes since the start.
        generation: u64,
        /// How many rules.
        rules: u64,
        /// By whom: `allow`, `deny`, `set`, `approval`.
        by: String,
    },
    /// A person is asked; the crossing waits.
    Asked {
        /// The request: `<sandbox id>-<seq of this record>`.
        request: String,
        /// What waits.
        crossing: Crossing,
        /// The rule that asks, in words.
        rule: String,
    },
    /// A person answered.
    Approval {
        /// Which request.
        request: String,
        /// How.
        verdict: crate::approval::Given,
        /// For how long.
        scope: crate::approval::Scope,
        /// By whom.
        by: String,
    },
    /// The file that ends with this line is full; the next record begins another.
    Rotated {
        /// Records that are dropped with the second oldest file; the oldest stays for ever.
        dropped: u64,
        /// The number of the first record that is kept behind those which were dropped; of the oldest while none was. 0 where
        /// it could not be told.
        #[serde(default)]
        first_kept: u64,
    },
    /// A line that was never finished (the power failed, the disk was full) was cut off before this one.
    Torn {
        /// Its bytes.
        bytes: u64,
    },
}

/// What wanted to cross.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "crossing", rename_all = "snake_case")]
pub enum Crossing {
    /// A name was asked for.
    Resolve {
        /// The name.
        host: String,
        /// The type of the question (`A`, `TXT`, …).
        question: String,
    },
    /// A connection.
    Connect {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// `tcp`, `udp` or `icmp`.
        protocol: String,
    },
    /// A request inside a connection that was opened.
    Request {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// `GET`, `POST`, …
        method: String,
        /// The path, without the query.
        path: String,
    },
    /// A secret in a request.
    Reveal {
        /// The secret's name.
        secret: String,
        /// Where it was to go.
        host: String,
        /// The port.
        port: u16,
    },
    /// Something of the host was shown in a running sandbox, or taken away from it.
    Mount {
        /// A path of the host, or what serves it.
        source: String,
        /// Where inside.
        target: String,
        /// `rw`, `ro`, or `none` where it was taken away.
        access: String,
    },
    /// Something was done to a file of a programmable mount.
    File {
        /// Where it is, inside.
        path: String,
        /// `open`, `write`, `rename`, `remove` or `create`.
        touch: String,
    },
    /// A connection from outside to a published port.
    Publish {
        /// Where it came from.
        from: String,
        /// The port inside.
        port: u16,
    },
}
