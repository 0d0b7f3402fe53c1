//! What a sandbox changed in its copy of the workspace, and how it reaches the host.
//!
//! | module | holds |
//! |---|---|
//! | [`tree`], [`reader`] | the two sides, opened without following anything |
//! | [`walk`], [`content`], [`renames`] | finding every [`Change`] |
//! | [`text`], [`patch`] | showing it as git does |
//! | [`names`] | names of files as a person may see them |
//!
//! ```no_run
//! # use std::{fs::File, os::fd::AsFd};
//! let (host, upper) = (File::open("/home/ada/project")?, File::open("/state/disk/workspace/upper")?);
//! let changes = airlock_files::review::changes(host.as_fd(), upper.as_fd())?;
//! println!("{} files changed", changes.files());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod change;
mod content;
pub mod names;
mod patch;
mod reader;
mod renames;
mod text;
mod tree;
mod walk;

pub use change::{Change, Changes, Kind, LeftOut, Seen, Verb, Why};
pub use patch::{Style, WriteError, visible};
pub use reader::Reader;
pub use tree::Tree;

use std::{
    io,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt as _},
    path::PathBuf,
};

/// Why changes could not be found, shown or applied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("could not {tried} {}", shown(path))]
    Io {
        /// What was tried.
        tried: &'static str,
        /// On what, relative to the workspace.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// More than anyone could review.
    #[error("the sandbox changed directories with more than {most} entries")]
    TooMany {
        /// How many are looked at.
        most: usize,
    },
}

/// What differs between the workspace and one layer above it, with the rights of this process.
pub fn changes(host: BorrowedFd<'_>, upper: BorrowedFd<'_>) -> Result<Changes, Error> {
    let own = |fd: BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(|source| Error::Io { tried: "open", path: ".".into(), source })
    };
    Tree::new(own(host)?, vec![own(upper)?], Reader::plain()).changes()
}

fn shown(path: &std::path::Path) -> String {
    names::quote(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests;
