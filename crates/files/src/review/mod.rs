//! What a sandbox changed in its copy of the workspace, and how it reaches the host.
//!
//! | module | holds |
//! |---|---|
//! | [`tree`], [`reader`] | the two sides, opened without following anything |
//! | [`walk`], [`content`], [`renames`] | finding every [`Change`] |
//! | [`text`], [`patch`] | showing it as git does |
//! | [`judge`], [`known`] | which of it may reach the host |
//! | [`apply`], [`act`] | writing it there |
//! | [`journal`], [`recover`], [`undo`] | taking it back, and surviving a kill |
//! | [`names`] | names of files as a person may see them |
//!
//! ```no_run
//! # use std::{fs::File, os::fd::AsFd};
//! let (host, upper) = (File::open("/home/ada/project")?, File::open("/state/disk/workspace/upper")?);
//! let changes = airlock_files::review::changes(host.as_fd(), upper.as_fd())?;
//! println!("{} files changed", changes.files());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod act;
mod apply;
mod change;
mod content;
mod journal;
mod judge;
mod known;
pub mod names;
mod patch;
mod place;
mod reader;
mod recover;
mod renames;
mod text;
mod tree;
mod undo;
mod walk;

pub use apply::Applied;
pub use change::{Change, Changes, Kind, LeftOut, Seen, Verb, Why};
pub use journal::Journals;
pub use judge::{Judge, Protected, Verdict};
pub use known::Known;
pub use patch::{Style, WriteError, visible};
pub use reader::Reader;
pub use tree::Tree;
pub use undo::{Since, Undone};

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
    /// A file of the journal could not be read or written.
    #[error("could not {tried} {}", path.display())]
    Journal {
        /// What was tried.
        tried: &'static str,
        /// On what, on the host.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Somebody else changed these paths meanwhile.
    #[error("changed on the host meanwhile: {}", list(paths))]
    Changed {
        /// Which.
        paths: Vec<PathBuf>,
    },
    /// An undo was interrupted, and must be ended first.
    #[error("an undo was interrupted")]
    HalfUndone,
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

/// Some of many paths.
fn list(paths: &[PathBuf]) -> String {
    let some: Vec<String> = paths.iter().take(5).map(|path| shown(path)).collect();
    match paths.len() {
        0..=5 => some.join(", "),
        more => format!("{} and {} more", some.join(", "), more - 5),
    }
}

fn shown(path: &std::path::Path) -> String {
    names::quote(path.as_os_str().as_bytes())
}

/// Where tests end everything at once, as a kill would.
#[cfg(test)]
use apply_tests::interruption;

/// Where tests end everything at once, as a kill would.
#[cfg(not(test))]
fn interruption() {}

#[cfg(test)]
mod apply_tests;
#[cfg(test)]
mod race_tests;
#[cfg(test)]
mod tests;
