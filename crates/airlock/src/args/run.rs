//! The flags of `run` and `exec`.

use super::{
    mount::{MountWord, mount_word},
    values::{self, EnvWord},
};
use crate::secrets::table;
use airlock_protocol::{
    Name,
    files::{Paths, VolumeUse},
    spec::{Disk, Place, Publish, Restart, Tmpfs},
};
use clap::{Args, ValueEnum};
use std::{path::PathBuf, time::Duration};

pub(super) const RUN_USAGE: &str =
    "airlock run [OPTIONS] [--] COMMAND...\n       airlock run [OPTIONS] --image NAME [--] [COMMAND...]";
pub(super) const RUN_HELP: &str = "\
The command sees this host's programs but none of its homes, credentials, sockets or processes, and no
network but what rules allow. Of the environment it gets PATH, HOME, USER, TERM, COLORTERM, NO_COLOR, LANG, LC_*, TZ and what
--env names. The current directory is its workspace, at the same path: it sees your files and changes a copy of them,
unless --workspace says otherwise. Files with secrets (.env, private keys) are hidden.

stdin, stdout, stderr, signals and the exit code are the command's own, as if it ran unsealed. Where they
are a terminal it gets a terminal of its own.

With --image the root is that of the image, and so are user, variables, entrypoint, command, volumes, healthcheck and
stop signal where no flag says otherwise. A command that is typed starts in the workspace, the image's own in its directory.

Bounded on disk without root: --disk 1G,tmpfs is counted as memory and gone at stop; --disk 1G,watched is
checked several times a second, so that a burst can go over it before the sandbox is frozen.

Examples:
  airlock run -- npm test
  airlock run --workspace rw -- cargo fmt
  airlock run --workspace ro --memory 2G --timeout 5m -- ./untrusted
  airlock run --allow npm --allow api.example.com --ask '*.example.org' -- ./agent
  airlock run --secret ANTHROPIC_API_KEY --secret TOKEN@api.example.com -- ./agent
  airlock run -d --name db --restart on-failure:5 --tmpfs /data -- ./database
  airlock run --image alpine:3.20 -- apk info
  producer | airlock run -q -- filter > result

A secret's value is taken from the variable of its name, or from where [secrets.NAME] in config.toml says.
Inside, the variable holds a placeholder; the wall puts the value in its place in requests to the secret's hosts.

Rules are tried in this order, and the first that matches decides: --deny, --ask, --allow, the project's
airlock.toml, each --policy. What no rule matches is denied.";

/// The flags of `run`, which `learn` has too.
#[derive(Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,

    /// Its root file system: an image (`airlock images ls`), or host, this system itself (default)
    #[arg(long, value_name = "NAME", help_heading = "Image")]
    pub(crate) image: Option<String>,
    /// When the image is asked for at its registry: missing (default), always or never
    #[arg(long, value_enum, value_name = "WHEN", hide_possible_values = true, help_heading = "Image")]
    pub(crate) pull: Option<Pull>,
    /// A directory of this host as the root file system; it stays as it is
    #[arg(long, value_name = "DIR", conflicts_with = "image", help_heading = "Image")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Run this in place of the image's entrypoint; an empty text runs the command alone
    #[arg(long, value_name = "PROGRAM", help_heading = "Image")]
    pub(crate) entrypoint: Option<String>,
    /// What runs once on top of the image; files say it.
    #[arg(skip)]
    pub(crate) setup: Vec<String>,

    /// Where it runs: namespaces of this host's kernel (default), or microvm, with a kernel of its own
    #[arg(long, value_enum, value_name = "PLACE", hide_possible_values = true, help_heading = "Place")]
    pub(crate) backend: Option<Backend>,
    /// The kernel of a microvm in place of the usual one (`airlock prefetch --backend microvm`)
    #[arg(long, value_name = "FILE", help_heading = "Place")]
    pub(crate) kernel: Option<PathBuf>,

    /// What to call the sandbox (default: two words)
    #[arg(long, help_heading = "Identity")]
    pub(crate) name: Option<Name>,
    /// Host name inside (default: the sandbox's name)
    #[arg(long, value_parser = values::hostname, help_heading = "Identity")]
    pub(crate) hostname: Option<String>,
    /// User inside: NAME, UID, NAME:GROUP or UID:GID (default: the image's, or 0)
    #[arg(short, long, help_heading = "Identity")]
    pub(crate) user: Option<String>,
    /// Settings from this file in place of the project's airlock.toml
    #[arg(long, value_name = "FILE", help_heading = "Identity")]
    pub(crate) config: Option<PathBuf>,
    /// No settings from a project's airlock.toml
    #[arg(long, conflicts_with = "config", help_heading = "Identity")]
    pub(crate) no_config: bool,

    /// The current directory inside: cow (default; writes go to a copy), rw (to the host), ro or none
    #[arg(long, value_enum, value_name = "MODE", hide_possible_values = true, help_heading = "Files")]
    pub(crate) workspace: Option<WorkspaceMode>,
    /// Directory to start in (default: the workspace, or / without one)
    #[arg(short, long, value_name = "DIR", help_heading = "Files")]
    pub(crate) workdir: Option<PathBuf>,
    /// Show a host path inside, or files that airlock serves (type=memory|real|readonly|overlay,dst=...); repeatable
    #[arg(long = "mount", value_name = "SRC:DST[:ro]", value_parser = mount_word, help_heading = "Files")]
    pub(crate) mounts: Vec<MountWord>,
    /// Show a volume inside, made if there is none (`airlock volume`); repeatable
    #[arg(long = "volume", value_name = "NAME:DIR[:ro]", value_parser = values::volume, help_heading = "Files")]
    pub(crate) volumes: Vec<VolumeUse>,
    /// Keep a directory inside, such as ~/.cache, for the next sandboxes of this project; repeatable
    #[arg(long, value_name = "DIR", value_parser = values::inside_or_home, help_heading = "Files")]
    pub(crate) persist: Vec<PathBuf>,
    /// An empty directory in memory; repeatable
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = values::tmpfs, help_heading = "Files")]
    pub(crate) tmpfs: Vec<Tmpfs>,
    /// Which of its paths are protected or hidden; files say it.
    #[arg(skip)]
    pub(crate) paths: Paths,
    /// Only the workspace, mounts and temporary directories are writable
    #[arg(long, help_heading = "Files")]
    pub(crate) read_only: bool,

    /// Set a variable, or pass this host's value on; repeatable
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = values::env_word, help_heading = "Environment")]
    pub(crate) env: Vec<EnvWord>,
    /// Read variables from a file, one NAME=VALUE or NAME a line; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Environment")]
    pub(crate) env_file: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    /// Most memory, such as 512M or 4G
    #[arg(short, long, value_name = "SIZE", value_parser = values::size, help_heading = "Limits")]
    pub(crate) memory: Option<u64>,
    /// Most CPUs, such as 1.5
    #[arg(long, value_name = "N", value_parser = values::cpus, help_heading = "Limits")]
    pub(crate) cpus: Option<u64>,
    /// Most processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Limits")]
    pub(crate) pids: Option<u64>,
    /// Most open files of one process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(8..), help_heading = "Limits")]
    pub(crate) nofile: Option<u64>,
    /// Most bytes it may write; without root add ,tmpfs (in memory) or ,watched (frozen when over)
    #[arg(long, value_name = "SIZE[,HOW]", value_parser = values::disk, help_heading = "Limits")]
    pub(crate) disk: Option<Disk>,
    /// End the program after this time, such as 90, 90s, 5m or 1h: SIGTERM, then SIGKILL
    #[arg(long, value_name = "TIME", value_parser = values::duration, help_heading = "Limits")]
    pub(crate) timeout: Option<Duration>,
    /// Give a capability beyond the default set; repeatable
    #[arg(long, value_name = "CAP", value_parser = values::capability, help_heading = "Limits")]
    pub(crate) cap_add: Vec<String>,
    /// Take a capability (or ALL) away; repeatable
    #[arg(long, value_name = "CAP", value_parser = values::capability, help_heading = "Limits")]
    pub(crate) cap_drop: Vec<String>,
    /// Allow user namespaces and mounts inside: it can hold sandboxes itself
    #[arg(long, help_heading = "Limits")]
    pub(crate) nested: bool,

    /// Keep the sandbox, stopped, when its program has ended
    #[arg(long, help_heading = "Life")]
    pub(crate) keep: bool,
    /// When its program ends by itself: no (default), on-failure[:N] or always
    #[arg(long, value_name = "WHEN", value_parser = values::restart, help_heading = "Life")]
    pub(crate) restart: Option<Restart>,
    #[command(flatten)]
    pub(crate) streams: Detach,
    /// Facts as JSON: with -d on stdout, otherwise on stderr at the end
    #[arg(long, help_heading = "Life")]
    pub(crate) json: bool,
    /// Say nothing but errors
    #[arg(short, long, help_heading = "Life")]
    pub(crate) quiet: bool,
}

/// What may cross the wall.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NetworkArgs {
    /// Allow a host or a group (`airlock policy groups`); without a port 80 and 443; repeatable
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Network")]
    pub(crate) allow: Vec<String>,
    /// Deny a host or a group, whatever other rules say; without a port every port; repeatable
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Network")]
    pub(crate) deny: Vec<String>,
    /// Ask a person before each connection to a host; without a port 80 and 443; repeatable
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Network")]
    pub(crate) ask: Vec<String>,
    /// Rules from a file, TOML or Markdown with front matter; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) policy: Vec<PathBuf>,
    /// A Starlark script that looks at connections, requests and answers besides the rules
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) script: Option<PathBuf>,
    /// Let requests carry a secret that the program never sees, to its hosts only; repeatable
    #[arg(long, value_name = "NAME[@HOST,HOST]", value_parser = table::word, help_heading = "Network")]
    pub(crate) secret: Vec<table::Word>,
    /// Deny nothing; record in the ledger what would have been denied
    #[arg(long, help_heading = "Network")]
    pub(crate) audit_only: bool,
    /// Whether every connection is opened (`airlock learn --requests`).
    #[arg(skip)]
    pub(crate) open_all: bool,
    /// Lead a port of this host inside; on 127.0.0.1 unless an address is given; repeatable
    #[arg(short, long, value_name = "[ADDR:]PORT[:PORT]", value_parser = values::publish, help_heading = "Network")]
    pub(crate) publish: Vec<Publish>,
    /// none: no rule counts, nothing crosses. There is no host network: see --allow and --publish
    #[arg(long, value_name = "none", value_parser = values::network, help_heading = "Network")]
    pub(crate) network: Option<Network>,
}

/// `--network`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// Nothing crosses.
    None,
}

/// Where a sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// Namespaces of this host's kernel (default)
    Namespaces,
    /// A machine with a kernel of its own
    Microvm,
}

impl From<Backend> for Place {
    fn from(backend: Backend) -> Place {
        match backend {
            Backend::Namespaces => Place::Namespaces,
            Backend::Microvm => Place::Microvm,
        }
    }
}

/// When an image is asked for at its registry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pull {
    /// When it is not here
    #[default]
    Missing,
    /// At every start
    Always,
    /// Never
    Never,
}

/// What becomes of the standard streams of `run`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Detach {
    /// Leave it running, print its id; its output goes to `airlock logs`. Implies --keep
    #[arg(short, long, help_heading = "Life")]
    pub(crate) detach: bool,
    /// Relay the keyboard also where stdout is a pipe
    #[arg(short, long, conflicts_with = "detach", help_heading = "Life")]
    pub(crate) interactive: bool,
    /// A terminal for all three streams, whatever ours are
    #[arg(short, long, help_heading = "Life")]
    pub(crate) tty: bool,
}

/// How the current directory appears inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkspaceMode {
    /// Writes go to a copy, which `airlock diff` shows and `airlock apply` keeps (default)
    Cow,
    /// Writes go straight to the host
    Rw,
    /// Readable only
    Ro,
    /// Not at all
    None,
}

#[derive(Debug, Default, Args)]
#[command(override_usage = "airlock exec [OPTIONS] SANDBOX COMMAND...")]
#[command(after_help = "\
Examples:
  airlock exec web ps aux
  airlock exec -it web bash
  tar c . | airlock exec -i web tar x -C /data")]
pub(crate) struct ExecArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Pass our stdin on
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give it a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Set a variable, or pass this host's value on; repeatable
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = values::env_word)]
    pub(crate) env: Vec<EnvWord>,
    /// Directory to start in (default: the sandbox's)
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User inside (default: the sandbox's)
    #[arg(short, long)]
    pub(crate) user: Option<String>,
}
