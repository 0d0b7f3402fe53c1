//! Snapshots, forks, and archives of them.

use super::values;
use airlock_images::reference::Reference;
use airlock_protocol::Name;
use clap::{Args, Subcommand};
use std::path::PathBuf;

pub(super) const FORK_USAGE: &str = "airlock fork [OPTIONS] <SANDBOX|SNAPSHOT> [-- COMMAND…]";

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A sandbox that does not run is kept as it is in an instant, whatever its size. One that runs is frozen while its files are
copied (or share their blocks, where the file system can). Files of the host that it only sees are not in a snapshot.

With --memory the memory of a machine (--backend microvm) that runs is in it too: whoever is forked from it goes on where its programs
were.

Examples:
  airlock snapshot web --name before-upgrade
  airlock snapshot web --memory            with its programs as they run
  airlock fork before-upgrade --start      go on from there, as often as you like
  airlock snapshot ls
  airlock snapshot rm before-upgrade"
)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<SnapshotVerb>,
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// What to call it
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// With the memory of its machine, which runs
    #[arg(long)]
    pub(crate) memory: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// List snapshots
    #[command(visible_alias = "list")]
    Ls(ListSnapshotsArgs),
    /// Print everything known about a snapshot, as JSON
    Inspect(InspectSnapshotArgs),
    /// Remove snapshots; files that nobody else shares go
    Rm(RemoveSnapshotsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListSnapshotsArgs {
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Only ids
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectSnapshotArgs {
    /// Which snapshot: a name, an id or the beginning of one
    pub(crate) snapshot: String,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveSnapshotsArgs {
    /// Which snapshots
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) snapshots: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each fork has the files, the settings and the project of the one it comes from, as they are now, and goes its own way. Published
ports become free ones. A sandbox that does not run is forked in an instant, whatever its size; one that runs is frozen while its
files are copied. With --memory, and from a snapshot that has a memory, each goes on where the programs were when it is started for the
first time, unless it is given another command.

Examples:
  airlock fork web                         a stopped sandbox web-1 with web's files
  airlock fork web -n 5 --start            five that run
  airlock fork before-upgrade -- ./try     from a snapshot, with another command")]
pub(crate) struct ForkArgs {
    /// Which sandbox or snapshot
    #[arg(value_name = "SANDBOX|SNAPSHOT")]
    pub(crate) source: String,
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) number: u16,
    /// What to call it; several get a number each
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Start them
    #[arg(long)]
    pub(crate) start: bool,
    /// Go on from the memory of the machine, which runs
    #[arg(long, conflicts_with = "command")]
    pub(crate) memory: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Another command for them
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
One file with what a sandbox wrote, as an OCI layout: it can be imported on another host, by another user. Not in it: files of the
host that were only seen, volumes and mounts, secrets, rules, variables, certificates, and our own files of /etc.

With --rootfs it is a plain archive of the whole root of a sandbox that was made of an image: the image's files and what was changed
in them, with their owners. SOURCE_DATE_EPOCH bounds their times.

Examples:
  airlock export web -o web.tar
  airlock export web --rootfs | tar -t
  airlock export before-upgrade | ssh other airlock import - --name web")]
pub(crate) struct ExportSandboxArgs {
    /// Which sandbox or snapshot
    #[arg(value_name = "SANDBOX|SNAPSHOT")]
    pub(crate) source: String,
    /// Where to write it; `-` is stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    /// Its whole root file system, as a plain archive
    #[arg(long, conflicts_with = "level")]
    pub(crate) rootfs: bool,
    /// How hard to compress, 1 to 19
    #[arg(long, value_name = "LEVEL", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,
    /// Say nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The image has the layers of the one below, and one more with what the sandbox changed (one for each sandbox that it was forked
from). How it is run stays as the image below says, unless --change says otherwise: the variables and the command of the sandbox
do not come with it. Volumes, mounts and the workspace do not either. A sandbox that runs is frozen meanwhile. SOURCE_DATE_EPOCH bounds all times.

A change is an instruction of a Dockerfile that touches no file: CMD, ENTRYPOINT, ENV, EXPOSE, HEALTHCHECK, LABEL, ONBUILD, SHELL,
STOPSIGNAL, USER, VOLUME, WORKDIR.

Examples:
  airlock commit web web:2
  airlock commit web web:tested --message 'all green' --change 'CMD [\"serve\", \"--port\", \"80\"]' --change 'USER nobody'")]
pub(crate) struct CommitArgs {
    /// Which sandbox
    pub(crate) sandbox: String,
    /// What to call the image; it is taken from whoever has this name
    #[arg(value_name = "NAME[:TAG]")]
    pub(crate) name: Reference,
    /// What it is for; it is told in its history
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// Who made it
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) author: Option<String>,
    /// How it is run, as an instruction of a Dockerfile; may be given several times
    #[arg(short, long, value_name = "INSTRUCTION")]
    pub(crate) change: Vec<String>,
    /// How its layer is compressed
    #[arg(long, value_name = "WHICH", default_value = "gzip")]
    pub(crate) compression: LayerCompression,
    /// A JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Say nothing but its id
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LayerCompression {
    /// What everything reads
    Gzip,
    /// Quicker, and smaller
    Zstd,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Makes a stopped sandbox of a file that `airlock export` wrote. Its command is the one that was exported; what it may reach, see and
have is decided here: no rules, no secrets, no directory of this host but the one that --workspace names.

Examples:
  airlock import web.tar --name web
  airlock import web.tar --workspace . && airlock start -")]
pub(crate) struct ImportArgs {
    /// Which file; `-` is stdin
    pub(crate) file: PathBuf,
    /// What to call it, where not as it was
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// The project that the exported changes are to be seen upon
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Most bytes that its files may take
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = values::size)]
    pub(crate) most: u64,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Say nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
