//! Trees of files as archives, both ways across the wall.
//!
//! One side packs a tree, the other unpacks it; a pipe is between them. The same code runs on the host and in the guest,
//! so that neither ever opens a path of the other's. What comes out of a sandbox is hostile.
//!
//! - [`tar`]: archives as bytes; pure
//! - [`pack`]: a tree becomes an archive; no link is followed
//! - [`place`]: where what was copied is meant to go
//! - [`unpack`]: an archive becomes a tree, below one directory and nowhere else
//! - [`tally`]: what was copied, and what was not

pub mod pack;
pub mod place;
pub mod tally;
pub mod tar;
pub mod unpack;

use std::{ffi::OsStr, io, path::Path};

/// What stopped a copy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something.
    #[error("could not {tried} {name:?}")]
    Io {
        /// What was tried.
        tried: &'static str,
        /// On what.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What comes is no archive, or one that cannot be taken.
    #[error("the archive makes no sense")]
    Archive(#[from] tar::Malformed),
    /// It breaks off.
    #[error("the copy broke off: the other side ended")]
    BrokenOff,
    /// It wants something outside the directory it is meant for.
    #[error("{name:?} leads out of what is copied")]
    LeadsOut {
        /// Which entry.
        name: String,
    },
    /// A kind of entry that never comes from a sandbox.
    #[error("{name:?} is a hard link, which is not taken")]
    HardLink {
        /// Which entry.
        name: String,
    },
    /// More than the person wants.
    #[error("more than {most} would be copied")]
    TooMuch {
        /// The limit in words.
        most: String,
    },
    /// It cannot be where it is wanted.
    #[error("{name:?} {why}")]
    Place {
        /// Which path.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
}

impl Error {
    /// Whether the other end of the pipe is gone.
    pub fn is_broken_off(&self) -> bool {
        match self {
            Error::BrokenOff => true,
            Error::Archive(tar::Malformed::Read(err)) => is_gone(err),
            Error::Archive(tar::Malformed::Truncated) => true,
            Error::Io { tried: SEND, source, .. } => is_gone(source),
            _ => false,
        }
    }
}

/// What writing to the pipe is called.
const SEND: &str = "send";

fn is_gone(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof)
}

/// Names the path an error is about.
fn failed<E: Into<io::Error>>(tried: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
    let name = words(path.as_os_str());
    move |source| Error::Io { tried, name, source: source.into() }
}

/// A path as text of bounded length.
fn words(path: &OsStr) -> String {
    let text = path.to_string_lossy();
    let cut: String = text.chars().take(LONGEST_WORDS).collect();
    if cut.len() < text.len() { cut + "…" } else { cut }
}

const LONGEST_WORDS: usize = 200;
