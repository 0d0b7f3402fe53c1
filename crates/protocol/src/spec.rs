//! What was asked for. A [`Spec`] is only a wish: `engine::plan` checks it, and only a plan can be launched.

use crate::{
    Name,
    files::{Paths, Provided, VolumeUse},
    policy::Policy,
    secret::Secret,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

/// One sandbox as its owner wants it. The same keys stand in files, SDKs and JSON-RPC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The program and its arguments; never empty in a checked plan.
    pub command: Vec<String>,
    /// What a person calls it.
    pub name: Name,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "Place::is_usual")]
    pub backend: Place,
    /// The kernel of its machine, where it has one and another than the usual is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// The program that runs its machine, where another than the usual is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<Monitor>,
    /// The image that is its root file system; none is the host's own system, or `rootfs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// A directory of the host that is its root file system, read-only: writes go to the sandbox's own disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<PathBuf>,
    /// Directory the program starts in.
    pub workdir: PathBuf,
    /// The project directory, shown at the same path inside.
    pub workspace: Workspace,
    /// Further host directories and files shown inside.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Directories that outlive the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeUse>,
    /// Directories that are no part of the root's own changes and go with the sandbox; they begin with what the image has there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anonymous: Vec<PathBuf>,
    /// Programmable mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provided: Vec<Provided>,
    /// Which paths of the workspace are protected or hidden.
    #[serde(default)]
    pub paths: Paths,
    /// Empty writable directories in memory.
    #[serde(default)]
    pub tmpfs: Vec<Tmpfs>,
    /// The whole environment of the program, already reduced to what may enter.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// User inside, as `name`, `uid`, `name:group` or `uid:gid`.
    pub user: String,
    /// Host name inside.
    pub hostname: String,
    /// Bounds on what it may use.
    #[serde(default)]
    pub limits: Limits,
    /// Capabilities beyond or below the default set, by name without `CAP_`.
    #[serde(default)]
    pub cap_add: Vec<String>,
    /// See `cap_add`.
    #[serde(default)]
    pub cap_drop: Vec<String>,
    /// Everything but the workspace, mounts and temporary directories is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// User namespaces and mounts are allowed inside, so that it can hold sandboxes itself.
    #[serde(default)]
    pub nested: bool,
    /// What happens when the program ends.
    #[serde(default)]
    pub restart: Restart,
    /// What asks the program to end, where it is not SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<i32>,
    /// How the keeper finds out whether the program does its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Healthcheck>,
    /// Whether the sandbox stays, stopped, after its program ended.
    #[serde(default)]
    pub keep: bool,
    /// Where each of the program's standard streams goes.
    pub stdio: Stdio,
    /// What may cross the wall.
    #[serde(default)]
    pub policy: Policy,
    /// What looks at connections, requests and answers besides the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// What requests may carry and the program never sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// Files that are there from the start, below the home directory of the user inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub home_files: Vec<HomeFile>,
    /// Ports of the host that lead inside.
    #[serde(default)]
    pub publish: Vec<Publish>,
    /// How connections leave this host.
    #[serde(default)]
    pub egress: Egress,
    /// How people are asked.
    #[serde(default)]
    pub approvals: Approvals,
    /// How the ledger is kept.
    #[serde(default)]
    pub ledger: Ledger,
}

/// A kind of place to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Namespaces of this host's kernel.
    #[default]
    Namespaces,
    /// The same, with a machine in them that has a kernel of its own.
    Microvm,
}

/// A program that runs machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Monitor {
    /// QEMU, where Debian has it.
    Qemu,
    /// Firecracker, where it is usually put.
    Firecracker,
    /// Firecracker, elsewhere.
    At(PathBuf),
}

impl Monitor {
    /// The same, where a path is one of this directory.
    #[must_use]
    pub fn below(self, directory: &Path) -> Monitor {
        match self {
            Monitor::At(path) => Monitor::At(directory.join(path)),
            named => named,
        }
    }
}

impl From<String> for Monitor {
    fn from(text: String) -> Monitor {
        match text.as_str() {
            "qemu" => Monitor::Qemu,
            "firecracker" => Monitor::Firecracker,
            _ => Monitor::At(text.into()),
        }
    }
}

impl From<Monitor> for String {
    fn from(monitor: Monitor) -> String {
        match monitor {
            Monitor::Qemu => "qemu".to_owned(),
            Monitor::Firecracker => "firecracker".to_owned(),
            Monitor::At(path) => path.to_string_lossy().into_owned(),
        }
    }
}

impl Place {
    /// Whether nothing needs to be said of it.
    pub fn is_usual(&self) -> bool {
        *self == Place::Namespaces
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Place::Namespaces => "namespaces",
            Place::Microvm => "microvm",
        }
    }
}

/// An image of the store, as it was when the sandbox was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Digest of its configuration, `sha256:…`.
    pub id: String,
    /// What the person called it.
    pub name: String,
    /// Digests of its layers' contents, the lowest first.
    pub layers: Vec<String>,
}

/// A command that tells whether the program does its work, and how often it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Healthcheck {
    /// Program and arguments; 0 is healthy.
    pub command: Vec<String>,
    /// Milliseconds from one answer to the next question.
    pub interval_ms: u64,
    /// Milliseconds until a question counts as failed.
    pub timeout_ms: u64,
    /// Milliseconds after the start in which failures do not count.
    pub start_period_ms: u64,
    /// Milliseconds between questions in that time.
    pub start_interval_ms: u64,
    /// How many failures in a row make it unhealthy.
    pub retries: u32,
}

/// A script, as it was when the sandbox was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// What its errors call it.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A file in the home directory, written before the program starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeFile {
    /// Where, from the home directory: no `..`, not absolute.
    pub path: String,
    /// What is in it. Never a secret: placeholders only.
    pub text: String,
}

/// A port of the host that leads inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// Address of the host to listen on.
    pub address: IpAddr,
    /// Port of the host; 0 takes a free one.
    pub port: u16,
    /// Port inside.
    pub inside: u16,
}

/// How connections leave this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// A proxy of the company that every connection goes through (`http://proxy.example:3128`, `https://…`).
    #[serde(default)]
    pub proxy: Option<String>,
    /// Names and domains that are dialled directly all the same.
    #[serde(default)]
    pub no_proxy: Vec<String>,
    /// Name servers to ask in place of the host's.
    #[serde(default)]
    pub resolvers: Vec<SocketAddr>,
    /// Certificates trusted besides the host's (a file in PEM).
    #[serde(default)]
    pub extra_ca: Option<PathBuf>,
    /// How many names one wildcard rule answers for; 256 where nothing is said.
    #[serde(default)]
    pub wildcard_names: Option<u16>,
}

/// How people are asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approvals {
    /// Milliseconds until an unanswered crossing is refused.
    #[serde(default = "sixty_seconds")]
    pub timeout_ms: u64,
    /// Told of every question.
    #[serde(default)]
    pub webhook: Option<String>,
    /// File with the key that signs what the webhook is told.
    #[serde(default)]
    pub webhook_key: Option<PathBuf>,
}

/// How the ledger is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// Every record is on disk before its effect, not within a second.
    #[serde(default)]
    pub durable: bool,
}

impl Default for Approvals {
    fn default() -> Approvals {
        Approvals { timeout_ms: sixty_seconds(), webhook: None, webhook_key: None }
    }
}

fn sixty_seconds() -> u64 {
    60_000
}

/// The project directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum Workspace {
    /// No directory of the host.
    None,
    /// Writes go to a copy that is the sandbox's own, until a person applies them.
    Cow {
        /// Absolute path, the same on both sides.
        path: PathBuf,
    },
    /// Writes go straight to the host.
    Rw {
        /// Absolute path, the same on both sides.
        path: PathBuf,
    },
    /// Readable only.
    Ro {
        /// Absolute path, the same on both sides.
        path: PathBuf,
    },
}

/// One host path shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path on the host.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: PathBuf,
    /// Writes are refused.
    #[serde(default)]
    pub read_only: bool,
}

/// An empty directory in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tmpfs {
    /// Absolute path inside.
    pub target: PathBuf,
    /// Most bytes it may hold.
    #[serde(default)]
    pub size: Option<u64>,
}

/// Requested bounds; `None` means the default, enforced where the host can.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of memory.
    #[serde(default)]
    pub memory: Option<u64>,
    /// CPUs, in thousandths (1500 = one and a half).
    #[serde(default)]
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    #[serde(default)]
    pub pids: Option<u64>,
    /// Open files of one process.
    #[serde(default)]
    pub nofile: Option<u64>,
    /// Bytes the sandbox may write.
    #[serde(default)]
    pub disk: Option<Disk>,
    /// Seconds until the program is ended.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// A bound on what the sandbox writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Most bytes.
    pub bytes: u64,
    /// How it is enforced.
    pub by: DiskBy,
}

/// Ways to bound a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskBy {
    /// By the kernel: project quota or a file system of that size (host root).
    Kernel,
    /// In memory, gone at stop.
    Tmpfs,
    /// The keeper looks several times a second and freezes the sandbox.
    Watched,
    /// The root is a disk of that size of a machine's own; what else it writes is watched.
    Machine,
}

impl DiskBy {
    /// Whether the keeper looks at what is written on the host.
    pub fn is_watched(self) -> bool {
        matches!(self, DiskBy::Watched | DiskBy::Machine)
    }
}

/// What happens when the program ends by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum Restart {
    /// The sandbox ends too.
    #[default]
    No,
    /// Started anew after a failure, at most `max` times in a row where given.
    OnFailure {
        /// Most restarts in a row.
        max: Option<u32>,
    },
    /// Always started anew.
    Always,
}

/// Where the program's standard streams lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stdio {
    /// Standard input.
    pub stdin: Stream,
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
    /// Size of the terminal, where one of them is one.
    #[serde(default)]
    pub size: Option<WindowSize>,
}

/// Where one stream leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Nothing: reads end at once, writes vanish.
    Null,
    /// The descriptor the client sent along, in the order stdin, stdout, stderr.
    Passed,
    /// The keeper's log.
    Captured,
    /// A terminal of the sandbox's own, held by the keeper.
    Terminal,
}

/// Rows and columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters a line.
    pub columns: u16,
}

impl Stdio {
    /// All three streams lead to `stream`.
    pub fn all(stream: Stream) -> Stdio {
        Stdio { stdin: stream, stdout: stream, stderr: stream, size: None }
    }

    /// The three streams in the order of their descriptors.
    pub fn streams(&self) -> [Stream; 3] {
        [self.stdin, self.stdout, self.stderr]
    }

    /// How many descriptors the client sends along.
    pub fn passed(&self) -> usize {
        self.streams().iter().filter(|stream| **stream == Stream::Passed).count()
    }

    /// Whether any stream is a terminal.
    pub fn has_terminal(&self) -> bool {
        self.streams().contains(&Stream::Terminal)
    }
}

impl Workspace {
    /// The directory, if there is one.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Workspace::None => None,
            Workspace::Cow { path } | Workspace::Rw { path } | Workspace::Ro { path } => Some(path),
        }
    }
}
