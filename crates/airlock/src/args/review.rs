//! Flags of the verbs about changed files: diff, apply, undo, discard.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Works while the sandbox runs and after. Paths are of the workspace. What is printed into a pipe is taken
by `git apply` and `patch`, where nothing in it is binary.

Examples:
  airlock diff                        what the newest sandbox changed
  airlock diff web src --stat         how much of src
  airlock diff web | git apply -R     the other way round")]
pub(crate) struct DiffArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// Only what lies at or below these paths
    pub(crate) paths: Vec<PathBuf>,
    /// Only how many lines changed in each file
    #[arg(long, conflicts_with_all = ["name_only", "json"])]
    pub(crate) stat: bool,
    /// Only names
    #[arg(long, conflicts_with = "json")]
    pub(crate) name_only: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// End with 1 if anything changed
    #[arg(long)]
    pub(crate) exit_code: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each file is replaced in one step. A file that changed on the host since the sandbox got its copy stops
everything before the first one is written. What the host would execute (hooks, settings of git, editors,
shells and agents) is held back. `airlock undo` takes it back.

Examples:
  airlock apply                       keep what the newest sandbox changed
  airlock apply web src docs          only these
  airlock apply web --interactive     ask for each file")]
pub(crate) struct ApplyArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// Only what lies at or below these paths
    pub(crate) paths: Vec<PathBuf>,
    /// Show each file and ask
    #[arg(short, long, conflicts_with_all = ["json", "dry_run"])]
    pub(crate) interactive: bool,
    /// Replace files that changed on the host meanwhile, too
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Write protected paths too: read them first
    #[arg(long)]
    pub(crate) include_protected: bool,
    /// Only tell what would be written
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every path is again what it was: content, permissions, time. Several applies are undone one after another.")]
pub(crate) struct UndoArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// Replace files that changed since they were applied, too
    #[arg(short, long)]
    pub(crate) force: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The sandbox must not run. One that was only kept for its changes goes with them.")]
pub(crate) struct DiscardArgs {
    /// Which sandbox
    #[arg(default_value = "-")]
    pub(crate) sandbox: String,
    /// Only what lies at or below these paths
    pub(crate) paths: Vec<PathBuf>,
    /// Without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
