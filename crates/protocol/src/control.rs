//! Client and keeper: one connection, requests and events.
//!
//! A client sends a [`Request`]; the keeper answers with one [`Reply`] and, for programs it started or watches,
//! further replies until [`Reply::Ended`]. Terminal bytes travel as data frames, stream [`TERMINAL`], both ways.
//!
//! The first connection of a keeper is inherited from the command that made the sandbox. On it the client first sends
//! one [`Begin`], with the passed streams of the spec as descriptors; the keeper answers `Started` or `Refused`, and
//! later `Stopped` and `Ended`.

use crate::{
    approval::{Answer, Pending},
    copy::Copy,
    event::Event,
    files::Provided,
    guest::End,
    policy::{Policy, Rule},
    secret::Values,
    spec::{Mount, Stdio, WindowSize},
    state::{Exit, State},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// The stream number of terminal bytes on a control connection.
pub const TERMINAL: u16 = 1;

/// The first message on the connection a keeper was started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// Whose sandbox it is.
    pub owner: Owner,
    /// The values of its secrets. In memory only.
    #[serde(default)]
    pub values: Values,
    /// Who the person is at other hosts.
    #[serde(default)]
    pub ssh: Ssh,
}

/// Who the person that starts a sandbox is at other hosts by SSH, and whom they know there: files of theirs, for git that rules
/// let pass. Never written down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ssh {
    /// The agent's socket.
    pub agent: Option<PathBuf>,
    /// Keys without a passphrase, tried after the agent's. Only Ed25519 is read.
    pub keys: Vec<PathBuf>,
    /// `known_hosts` files.
    pub known_hosts: Vec<PathBuf>,
}

/// What a sandbox's life hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// The command that started it: when its connection closes, the keeper ends the sandbox.
    Foreground,
    /// Nothing: it goes on when the command is gone.
    Detached,
    /// The command, which wants to look after its files only: no program is started, and its state stays as it is.
    Visit,
}

/// What a client asks of a keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The state as it is now.
    Get,
    /// Run a further program; its passed streams travel along as descriptors.
    Exec(Exec),
    /// Copy files in or out; the pipe with the archive and the one for the report travel along. Answered as `Exec` is.
    Copy(Copy),
    /// Send a signal: to the program this connection started, or else to the main program.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The client's terminal has another size.
    Resize(WindowSize),
    /// End the program: SIGTERM, after `grace_ms` SIGKILL. Answered when the sandbox has stopped.
    Stop {
        /// Milliseconds between the two.
        grace_ms: u64,
    },
    /// End the program and start it anew in the same sandbox.
    Restart {
        /// As in `Stop`.
        grace_ms: u64,
    },
    /// Answer with `Ended` when the main program has ended for good.
    Wait,
    /// Freeze every process.
    Pause,
    /// Undo `Pause`.
    Resume,
    /// Freeze every process as long as this connection lasts: its files are about to be copied.
    Hold,
    /// The rules in force.
    Policy,
    /// Other rules from now on; what they do not allow any more is closed.
    SetPolicy(Policy),
    /// Rules in front of those in force.
    AddRules {
        /// In the order they are tried.
        rules: Vec<Rule>,
    },
    /// Other values for its secrets, all or some of them, from the next request on.
    SetSecrets(Values),
    /// The crossings that wait for a person.
    Approvals,
    /// A person's answer to one of them.
    Answer(Answer),
    /// Show something of the host inside, until the sandbox stops.
    Mount(Shown),
    /// Take away what `Mount` showed.
    Unmount {
        /// Where it is inside.
        target: PathBuf,
    },
    /// Tell what happens from now on, as [`Reply::Event`], until the connection closes.
    Watch,
    /// The directory in which a workspace that is copied on write keeps what differs.
    Layer,
    /// The root of a bounded disk of host root's, which is mounted where only the sandbox is.
    Disk,
    /// Have a machine stand still as long as this connection lasts: its memory and its files are about to be saved. What is
    /// known of it outside is written to the descriptor that travels along.
    Rest,
}

/// What is shown in a running sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shown", rename_all = "snake_case", deny_unknown_fields)]
pub enum Shown {
    /// A path of the host, as it is.
    Bind {
        /// Which, and where.
        mount: Mount,
    },
    /// A programmable mount.
    Provided {
        /// What serves it, and where.
        mount: Provided,
    },
}

/// A further program in a running sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Added to (or replacing) the sandbox's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Directory, where not the sandbox's.
    #[serde(default)]
    pub workdir: Option<String>,
    /// User, where not the sandbox's.
    #[serde(default)]
    pub user: Option<String>,
    /// Where its streams lead.
    pub stdio: Stdio,
}

/// What a keeper answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done, nothing to tell.
    Done,
    /// The state.
    State(Box<State>),
    /// The program runs.
    Started {
        /// Its pid inside.
        pid: u32,
    },
    /// The program stopped (job control); the client may stop itself too and send SIGCONT later.
    Stopped {
        /// By which signal.
        signal: i32,
    },
    /// The program of this connection ended.
    ProgramEnded {
        /// How.
        end: End,
    },
    /// The main program ended for good, and the sandbox with it.
    Ended(Exit),
    /// The rules in force.
    Policy(Policy),
    /// The crossings that wait for a person.
    Approvals {
        /// Oldest first.
        pending: Vec<Pending>,
    },
    /// Something happened.
    Event(Event),
    /// The directory travels along as a descriptor, a place only.
    Layer,
    /// A machine stands still. Who runs it takes orders at the descriptor that travels along.
    Resting {
        /// Only a machine with the same goes on from its memory.
        key: String,
    },
    /// It could not be done.
    Refused(Refusal),
}

/// Why something could not be done, in words for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The exit code a command line should end with.
    pub code: u8,
    /// What was not done.
    pub what: String,
    /// Why.
    #[serde(default)]
    pub why: Option<String>,
    /// What to do next.
    #[serde(default)]
    pub fix: Option<String>,
}
