//! What goes wrong with images that are kept here.

use std::{
    io,
    path::{Path, PathBuf},
};

use airlock_files::remove::Blocked;
use thiserror::Error;

use crate::{digest::Digest, layer, manifest, reference::ParseReferenceError};

/// What went wrong with the store. [`Error::fix`] names the next step where there is one.
#[derive(Debug, Error)]
pub enum Error {
    /// The kernel refused something.
    #[error("could not {tried} {path}")]
    Io {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file of ours does not hold what it should.
    #[error("{path} cannot be understood")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Where it stops making sense.
        #[source]
        source: serde_json::Error,
    },
    /// Nothing matches what was asked for.
    #[error("no image {selector:?}")]
    NoSuch {
        /// What was asked for.
        selector: String,
    },
    /// Several match what was asked for.
    #[error("{selector:?} could be {}", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        selector: String,
        /// What it could mean.
        candidates: Vec<String>,
    },
    /// A name that means something else.
    #[error("no image can be named {0}")]
    Reserved(String),
    /// It is no name at all.
    #[error(transparent)]
    Name(#[from] ParseReferenceError),
    /// Some content is not here.
    #[error("{0} is not in the store")]
    Missing(Digest),
    /// Some content is not what its name says.
    #[error("content with the name {wanted} is {found}")]
    Differs {
        /// Its name.
        wanted: Digest,
        /// What it should be called.
        found: Digest,
    },
    /// Some content was right when it came, and is not any more.
    #[error("{wanted} was damaged on the disk, where it became {found}: it was thrown away")]
    Damaged {
        /// Its name.
        wanted: Digest,
        /// What it is now.
        found: Digest,
    },
    /// More bytes came than were announced.
    #[error("{digest} has more than the {most} bytes that were announced")]
    Long {
        /// Which content.
        digest: Digest,
        /// How many there should be.
        most: u64,
    },
    /// Fewer bytes came than were announced.
    #[error("{digest} has {found} of the {size} bytes that were announced")]
    Short {
        /// Which content.
        digest: Digest,
        /// How many there should be.
        size: u64,
        /// How many came.
        found: u64,
    },
    /// A description is refused.
    #[error("image {what} cannot be used")]
    Manifest {
        /// Which.
        what: String,
        /// Why.
        #[source]
        source: manifest::Error,
    },
    /// Sandboxes need it.
    #[error("image {name} is used by {}", users.join(", "))]
    Used {
        /// What was to be removed.
        name: String,
        /// Who uses it.
        users: Vec<String>,
    },
    /// Removing it by its id would take several names.
    #[error("image {id} has several names: {}", names.join(", "))]
    SeveralNames {
        /// Its id.
        id: String,
        /// Its names.
        names: Vec<String>,
    },
    /// Others are adding images all the time.
    #[error("images are being added or started all the time, so nothing can be deleted now")]
    Busy,
    /// A part of it could not be deleted. It is out of sight.
    #[error("could not delete all of {path}")]
    Remove {
        /// What.
        path: PathBuf,
        /// What stood in the way.
        #[source]
        source: Blocked,
    },
    /// A layer could not be unpacked.
    #[error("layer {layer} of the image cannot be used")]
    Unpack {
        /// Its blob.
        layer: Digest,
        /// Why.
        #[source]
        source: layer::Error,
    },
}

impl Error {
    /// The exit code a command ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoSuch { .. } | Self::Ambiguous { .. } => 3,
            Self::Used { .. } | Self::SeveralNames { .. } | Self::Busy => 1,
            Self::Name(_) | Self::Reserved(_) => 2,
            _ => 125,
        }
    }

    /// Whether the disk did not keep what it was given.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// What to do next, for a person.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::NoSuch { .. } => Some("`airlock images ls` lists those that are here".to_owned()),
            Self::Ambiguous { .. } => Some("type more of it".to_owned()),
            Self::Reserved(_) => Some(
                "choose another name: `host` is this machine's own files, `scratch` is nothing".to_owned(),
            ),
            Self::Missing(_) | Self::Differs { .. } | Self::Damaged { .. } | Self::Unpack { .. } => {
                Some("pull or load the image again".to_owned())
            }
            Self::Used { .. } => {
                Some("remove these sandboxes first, or take only the name away: --force".to_owned())
            }
            Self::SeveralNames { .. } => Some("name one of them, or take all away: --force".to_owned()),
            Self::Busy => Some("try again: airlock images prune".to_owned()),
            Self::Remove { .. } => {
                Some("airlock images prune (tries again), or delete it as root".to_owned())
            }
            Self::Unreadable { path, .. } => Some(format!(
                "move {} away; images that are needed can be pulled or loaded again",
                path.display()
            )),
            _ => None,
        }
    }
}

pub(super) fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { tried, path, source }
}
