//! The flags of `images`.

use super::registry::{PullArgs, PushArgs};
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {
    #[command(subcommand)]
    pub(crate) verb: ImagesVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImagesVerb {
    /// Get images from their registries
    Pull(PullArgs),
    /// Send an image to a registry
    Push(PushArgs),
}
