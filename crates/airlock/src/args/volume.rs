//! The flags of `volume`.

use super::values;
use airlock_protocol::Name;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "\
A volume is a directory that outlives sandboxes; several may show it at once. One that `run --persist` made
belongs to a project, and is shown again whenever a sandbox of that project wants the same directory kept.

Examples:
  airlock run --volume cache:/var/cache -- make        made if there is none
  airlock run --persist ~/.cache -- npm ci             kept for this project
  airlock volume ls
  airlock volume rm cache")]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    pub(crate) verb: VolumeVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeVerb {
    /// Make an empty volume, and print its name
    Create(CreateVolumeArgs),
    /// List volumes: how large they are, and who uses them
    #[command(visible_alias = "list")]
    Ls(ListVolumesArgs),
    /// Show everything known about volumes
    Inspect(InspectVolumesArgs),
    /// Remove volumes that no sandbox uses, running or not
    Rm(RemoveVolumesArgs),
    /// Remove every volume that no sandbox uses; those kept for a project that is still there stay
    Prune(PruneVolumesArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CreateVolumeArgs {
    /// What to call it (default: two words)
    #[arg(value_parser = values::volume_name)]
    pub(crate) name: Option<Name>,
    /// Something to know of it later; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = values::label)]
    pub(crate) labels: Vec<(String, String)>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListVolumesArgs {
    /// Only names
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectVolumesArgs {
    /// Which volumes
    #[arg(required = true, value_name = "NAME", value_parser = values::volume_name)]
    pub(crate) names: Vec<Name>,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveVolumesArgs {
    /// Which volumes
    #[arg(required = true, value_name = "NAME", value_parser = values::volume_name)]
    pub(crate) names: Vec<Name>,
    /// One that is not there is no failure
    #[arg(short, long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneVolumesArgs {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Those kept for projects too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// One JSON object; does not ask either
    #[arg(long)]
    pub(crate) json: bool,
}
