//! What happens in a sandbox, for whoever watches.

use crate::{
    approval::{Given, Pending, Scope},
    ledger::Record,
};
use serde::{Deserialize, Serialize};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A decision or the end of a flow, as the ledger has it.
    Crossing(Box<Record>),
    /// A crossing waits for a person.
    Asked(Box<Pending>),
    /// A crossing waits no longer.
    Answered {
        /// Which.
        id: String,
        /// How it was answered.
        verdict: Given,
        /// For how long.
        scope: Scope,
        /// By whom: `terminal`, `command line`, `webhook`, `time`.
        by: String,
    },
    /// A further program was started.
    Exec {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Something was done to a file of a programmable mount that tells of it. Many alike at once are one event.
    File {
        /// Where it is mounted.
        mount: String,
        /// Which file, from there.
        path: String,
        /// `open`, `write`, `rename`, `remove` or `create`.
        touch: String,
        /// How often.
        times: u64,
    },
    /// Nothing crosses: the ledger cannot be written. Told once for each spell.
    LedgerFails {
        /// Why, and what to do.
        why: String,
    },
    /// Protected paths came into being in a workspace that is written directly. Told when the sandbox has ended.
    Appeared {
        /// From the workspace, some of them.
        paths: Vec<String>,
        /// How many there are.
        count: u64,
    },
    /// The rules are others now.
    PolicyChanged {
        /// Counts the changes since the start.
        generation: u64,
    },
}
