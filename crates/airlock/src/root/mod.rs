//! Which root file system a run has: the host's own system, an image, or a directory.

pub(crate) mod config;

use crate::{args::RunArgs, failure::Failure};
use airlock_images::manifest::RunConfig;
use airlock_protocol::spec::Image;
use std::path::PathBuf;

/// The word for the host's own system.
const HOST: &str = "host";

/// A root that is not the host's own system.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    /// The image, if it is one.
    pub(crate) image: Option<Image>,
    /// The directory, if it is one.
    pub(crate) rootfs: Option<PathBuf>,
    /// How it is run.
    pub(crate) run: RunConfig,
}

/// The root that the flags mean; none is the host's own system.
pub(crate) fn choose(args: &RunArgs) -> Result<Option<Root>, Failure> {
    if let Some(path) = &args.rootfs {
        let rootfs = path.canonicalize().map_err(|err| {
            Failure::because(format!("{} cannot be a root file system", path.display()), &err)
        })?;
        return Ok(Some(Root { image: None, rootfs: Some(rootfs), run: RunConfig::default() }));
    }
    match args.image.as_deref() {
        None | Some(HOST) => Ok(None),
        Some(name) => Err(Failure::new(format!("there is no image {name}")).fix("airlock images ls")),
    }
}

/// Says what a run without a command lacks.
pub(crate) fn no_command() -> Failure {
    Failure::new("no command was given").code(2).fix("airlock run -- COMMAND, or an image that has one")
}
