//! The flags of `build`.

use airlock_images::{manifest::Platform, reference::Reference};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

pub(super) const HELP: &str = "\
Every RUN runs in a sandbox that reaches nothing but what --allow names; so do the hosts of ADD. What was built before is
taken from the cache by content: names, modes, owners and bytes, not times. Stages that need nothing of each other are
built at the same time, those that nobody needs are not built. The same input gives the same image: everything has the
time of SOURCE_DATE_EPOCH, or none.

A secret is a file in memory while the RUN that names it runs (RUN --mount=type=secret,id=ID). It is in no layer, no
history and no key of the cache.

Examples:
  airlock build -t app .
  airlock build -t app:1 -f docker/Dockerfile --build-arg VERSION=1 --target release .
  airlock build -t app --allow npm --secret id=token,src=$HOME/.token .
  tar c . | airlock build -t app -";

/// The flags of `build`.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// The files to build from: a directory, a tar archive, or - for one on stdin
    pub(crate) context: PathBuf,
    /// What to call the image; repeatable
    #[arg(short, long = "tag", value_name = "NAME[:TAG]")]
    pub(crate) tags: Vec<Reference>,
    /// The Dockerfile (default: Dockerfile in the context)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Give an ARG a value, or pass this host's variable on; repeatable
    #[arg(long = "build-arg", value_name = "NAME[=VALUE]")]
    pub(crate) build_args: Vec<String>,
    /// Build this stage, and not the last one
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,
    /// Take nothing from the cache
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Build for this platform, such as linux/arm64 (default: this host's)
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
    /// Fetch base images also if they are here
    #[arg(long)]
    pub(crate) pull: bool,
    /// Put a label on the image; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<String>,
    /// A secret for RUN --mount=type=secret: a file, or a variable (id=ID,env=NAME); repeatable
    #[arg(long = "secret", value_name = "id=ID,src=FILE")]
    pub(crate) secrets: Vec<String>,
    /// Allow a host or a group (`airlock policy groups`); repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow: Vec<String>,
    /// Write the image's id to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) iidfile: Option<PathBuf>,
    /// How steps are told
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub(crate) progress: ProgressForm,
    /// One JSON object per step, and one for the image
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// Print only the image's id
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How steps are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressForm {
    /// One line per step
    Auto,
    /// One line per step
    Plain,
    /// Nothing but errors
    Quiet,
}
