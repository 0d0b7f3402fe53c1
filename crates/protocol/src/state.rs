//! What `state.json` says of a sandbox. Written by its keeper (or by whoever finds the keeper dead), read by all.

use crate::{
    Name, SandboxId,
    spec::{DiskBy, Publish},
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One sandbox as it is. Replaced as a whole, atomically. Additions only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Its id.
    pub id: SandboxId,
    /// Its name.
    pub name: Name,
    /// When it was made (RFC 3339, UTC).
    pub created_at: String,
    /// Where its workspace is copied on write: since when, in nanoseconds of the clock that file systems stamp with. What changes
    /// on the host later may have changed under the sandbox.
    #[serde(default)]
    pub copied_since: Option<i64>,
    /// When the program last started.
    #[serde(default)]
    pub started_at: Option<String>,
    /// What it does now.
    pub status: Status,
    /// How the program last ended.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// The keeper's process, a hint: the lock tells life from death.
    #[serde(default)]
    pub keeper_pid: Option<u32>,
    /// PID 1 of the sandbox as the host sees it.
    #[serde(default)]
    pub init_pid: Option<u32>,
    /// How often the program was started anew.
    #[serde(default)]
    pub restarts: u32,
    /// The bounds in force, and how.
    #[serde(default)]
    pub limits: Vec<Enforced>,
    /// How user ids inside become ids outside.
    #[serde(default)]
    pub id_map: Vec<IdExtent>,
    /// The same of groups.
    #[serde(default)]
    pub group_map: Vec<IdExtent>,
    /// Whether the program does its work, where a check tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// The machine it runs in, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Something a person should know, such as why it is frozen.
    #[serde(default)]
    pub note: Option<String>,
    /// Ports of the host that lead inside.
    #[serde(default)]
    pub published: Vec<Publish>,
    /// What stands in its workspace for protected paths that were not there; to remove when it has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<Placeholder>,
    /// Paths of control groups to remove when it is gone.
    #[serde(default)]
    pub cgroups: Vec<String>,
}

/// A machine with a kernel of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// What runs it, such as `QEMU 7.2.22`.
    pub monitor: String,
    /// Its kernel.
    pub kernel: String,
    /// Why its processor is emulated, which is slow; nothing where this host's own is used.
    #[serde(default)]
    pub emulated: Option<String>,
    /// Why it had to boot, which is slow; nothing where it went on from a machine that was booted before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<String>,
}

/// Something that stands in a workspace for a protected path that was not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placeholder {
    /// Where, from the workspace.
    pub path: PathBuf,
    /// What is in it; nothing means an empty directory.
    #[serde(default)]
    pub text: Option<String>,
}

/// What the last checks said of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// What follows from them.
    pub status: HealthStatus,
    /// How many failed in a row.
    pub failures: u32,
    /// The last one.
    #[serde(default)]
    pub last: Option<Checked>,
}

/// One check that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// When it ended (RFC 3339, UTC).
    pub at: String,
    /// Its exit code; none where it did not end in time or could not be started.
    #[serde(default)]
    pub code: Option<u8>,
    /// The beginning of what it wrote. It comes from inside the sandbox.
    pub output: String,
}

/// Whether a program does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Nobody knows yet.
    Starting,
    /// It does.
    Healthy,
    /// It does not.
    Unhealthy,
}

/// What a sandbox does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Being built; no program runs yet.
    Creating,
    /// The program runs.
    Running,
    /// The program ended and is about to be started anew.
    Restarting,
    /// Frozen; `note` says why.
    Paused,
    /// The program ended and the sandbox with it.
    Stopped,
    /// Its keeper died; nothing of it runs.
    Crashed,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The code a shell would see (128+n for a signal, 124 time-out, 137 out of memory).
    pub code: u8,
    /// Why.
    pub cause: Cause,
    /// When (RFC 3339, UTC).
    pub at: String,
}

/// Why a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// It returned.
    Exited,
    /// A signal ended it.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// Memory ran out.
    OutOfMemory,
    /// Its time was up.
    TimedOut,
    /// It could not be started.
    NotStarted {
        /// What the kernel said.
        why: String,
    },
    /// The keeper died and took the sandbox along.
    KeeperDied,
    /// The host was started anew.
    HostRebooted,
    /// The sandbox's PID 1 ended unasked.
    GuestDied,
}

/// One bound in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// Which.
    pub limit: Limit,
    /// Its value: bytes, thousandths of a CPU, processes, files, milliseconds.
    pub value: u64,
    /// Asked for, or the default.
    pub requested: bool,
    /// What enforces it.
    pub by: By,
}

/// What is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Bytes of memory.
    Memory,
    /// Thousandths of a CPU.
    Cpu,
    /// Processes and threads.
    Pids,
    /// Open files of one process.
    Nofile,
    /// Bytes written.
    Disk,
    /// Free bytes left to the host's file system.
    DiskReserve,
    /// Bytes of log kept.
    Log,
    /// Milliseconds of life.
    Timeout,
}

/// What enforces a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Control groups, version 1.
    CgroupV1,
    /// Control groups, version 2.
    CgroupV2,
    /// A resource limit of the process.
    Rlimit,
    /// The keeper.
    Keeper,
    /// A project quota.
    Quota,
    /// A file system of that size in a file.
    LoopImage,
    /// A file system of that size in memory.
    Tmpfs,
    /// A disk of that size of a machine's own.
    BlockDevice,
    /// Nothing: this host cannot, and it was not asked for.
    Nothing,
}

/// A run of ids: `count` ids from `inside` are those from `outside` on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdExtent {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

impl Status {
    /// Whether a keeper should be alive.
    pub fn is_live(self) -> bool {
        matches!(self, Status::Creating | Status::Running | Status::Restarting | Status::Paused)
    }

    /// The word a person reads.
    pub fn word(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Running => "running",
            Status::Restarting => "restarting",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
            Status::Crashed => "crashed",
        }
    }
}

impl HealthStatus {
    /// The word a person reads.
    pub fn word(self) -> &'static str {
        match self {
            HealthStatus::Starting => "starting",
            HealthStatus::Healthy => "healthy",
            HealthStatus::Unhealthy => "unhealthy",
        }
    }
}

impl From<DiskBy> for By {
    fn from(by: DiskBy) -> By {
        match by {
            DiskBy::Kernel => By::LoopImage,
            DiskBy::Tmpfs => By::Tmpfs,
            DiskBy::Watched => By::Keeper,
            DiskBy::Machine => By::BlockDevice,
        }
    }
}
