//! Keeper and guest: what PID 1 inside is told, and what it says back.
//!
//! What the guest says is hostile input: it stands inside the wall.

use crate::copy::CopyJob;
use serde::{Deserialize, Serialize};

/// From the keeper to the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ToGuest {
    /// Start a program; its three standard streams travel along as descriptors.
    Start(Start),
    /// Copy files in or out; the pipe with the archive and the one for the report travel along. Told of as a program is.
    Copy(CopyJob),
    /// Send a signal to a program started before (its process group where it leads one).
    Signal {
        /// Which program.
        process: u32,
        /// The signal's number.
        signal: i32,
    },
    /// The terminal of a program has another size, which its master tells; only where something lies between them does
    /// anybody have to do something.
    Resized {
        /// Which program.
        process: u32,
    },
    /// Kill every process but PID 1, so that the program can be started anew.
    Clear,
    /// Stop every process but PID 1 (where no freezer can).
    Freeze,
    /// Undo `Freeze`.
    Thaw,
    /// To a machine: stand still, so that its memory can be saved. What is known of it outside is written to the descriptor
    /// that travels along.
    Rest {
        /// The main program.
        main: u32,
    },
    /// Undo `Rest`.
    Rise,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The keeper's number for it, used in every later message.
    pub process: u32,
    /// Program and arguments; the program is looked up in the `PATH` of `env`.
    pub command: Vec<String>,
    /// Its whole environment, `NAME=value`.
    pub env: Vec<String>,
    /// Directory to start in.
    pub workdir: String,
    /// User and groups to become.
    pub user: User,
    /// Whether a session is made with the first terminal among the streams as its controlling terminal.
    pub terminal: bool,
    /// Open files of the process, where bounded.
    #[serde(default)]
    pub nofile: Option<u64>,
}

/// Who a program runs as, in numbers of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    #[serde(default)]
    pub groups: Vec<u32>,
}

/// From the guest to the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum FromGuest {
    /// The program was executed.
    Started {
        /// The keeper's number.
        process: u32,
        /// Its pid inside.
        pid: u32,
    },
    /// It could not be executed.
    NotStarted {
        /// The keeper's number.
        process: u32,
        /// What was being done.
        step: Step,
        /// The error number.
        errno: i32,
    },
    /// It stopped (job control).
    Stopped {
        /// The keeper's number.
        process: u32,
        /// By which signal.
        signal: i32,
    },
    /// It ended.
    Ended {
        /// The keeper's number.
        process: u32,
        /// How.
        end: End,
        /// Whether no other process is left inside, so that there is nothing to clear.
        alone: bool,
    },
    /// `Clear` is done.
    Cleared,
    /// `Freeze` is done: every process stands still, or does not within a while.
    Frozen,
    /// `Rest` is done, or could not be.
    Resting {
        /// Whether everything stands still.
        still: bool,
    },
    /// A kernel of its own has ended a program for want of memory. Its end is told next.
    OutOfMemory,
    /// Nothing can go on, and why: the last thing that is said.
    Broken {
        /// In words.
        why: String,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    /// It returned this code.
    Exited {
        /// The code.
        code: u8,
    },
    /// This signal ended it.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
}

/// What the guest was doing when a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Making the process.
    Fork,
    /// Taking the terminal.
    Terminal,
    /// Becoming the user.
    User,
    /// Entering the directory.
    Workdir,
    /// Setting a limit.
    Limit,
    /// Finding the program.
    Find,
    /// Executing it.
    Exec,
}

impl End {
    /// The code a shell would report.
    pub fn shell_code(self) -> u8 {
        match self {
            End::Exited { code } => code,
            End::Signalled { signal } => u8::try_from(signal & 0x7f).unwrap_or(0x7f) | 0x80,
        }
    }
}
