//! Images in files: loaded, saved, and made of a plain root file system.
//!
//! - [`load`]: what `docker save`, `podman save`, `skopeo` and builders write: docker-archive or OCI layout, in one archive
//!   or in a directory
//! - [`save()`]: the same again, as docker 28 writes it, or as an OCI layout with every blob as it came
//! - [`import()`]: one layer of a root file system
//!
//! Archives may be compressed by gzip, bzip2, xz or zstd ([`Form`]); they are read in one go, from a pipe too. What comes is
//! hostile: nothing is taken by what it is called, every blob is hashed while it is written, small files are bounded in
//! number and size, and nothing is unpacked here.

mod form;
mod import;
mod intake;
mod load;
mod save;

pub use form::{Form, ParseFormError};
pub use import::{Import, import};
pub use load::{Loaded, load, load_directory};
pub use save::{Layout, save};

use std::io;

use thiserror::Error;

use crate::{manifest, reference::ParseReferenceError, store};

/// Why an archive could not be read or written.
#[derive(Debug, Error)]
pub enum Error {
    /// It could not be read.
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    /// It could not be written.
    #[error("the archive cannot be written")]
    Write(#[source] io::Error),
    /// What it holds makes no sense.
    #[error("{what} in the archive cannot be used")]
    Part {
        /// Which file.
        what: String,
        /// Why.
        #[source]
        source: manifest::Error,
    },
    /// What it holds makes no sense.
    #[error("the archive holds no image that can be loaded: {0}")]
    Refused(String),
    /// A name in it is none.
    #[error(transparent)]
    Name(#[from] ParseReferenceError),
    /// The store did not cooperate.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Error {
    /// The exit code a command ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Store(err) => err.exit_code(),
            Self::Refused(_) | Self::Part { .. } | Self::Name(_) => 1,
            Self::Read(_) | Self::Write(_) => 125,
        }
    }

    /// What to do next, for a person.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Store(err) => err.fix(),
            Self::Refused(_) => {
                Some("an archive of `docker save` or an OCI layout is expected; a plain root file system is for `airlock images import`".to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
