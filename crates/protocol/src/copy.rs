//! Copying files in and out: what the guest is asked, and what it says at the end. The files themselves travel as an
//! archive through a pipe that is passed along.

use crate::guest::User;
use serde::{Deserialize, Serialize};

/// What is to be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "copy", rename_all = "snake_case")]
pub enum Copy {
    /// Pack what is at a path inside into the pipe.
    Out {
        /// Path inside; a relative one is meant from `/`.
        path: String,
        /// Whether what a link at this path leads to is meant.
        #[serde(default)]
        follow: bool,
    },
    /// Unpack what comes out of the pipe.
    In {
        /// Path inside; a relative one is meant from `/`.
        path: String,
        /// What is copied, to be put into `path` if that is a directory; without it the contents of a directory are.
        #[serde(default)]
        name: Option<String>,
        /// Whether the archive is a person's own, to be unpacked into the directory `path`.
        #[serde(default)]
        archive: bool,
    },
}

/// A copy for the guest to do: the pipe with the archive and the pipe for the [`Report`] travel along.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyJob {
    /// The keeper's number for it.
    pub process: u32,
    /// What is to be copied.
    pub copy: Copy,
    /// Who gets what is copied in.
    pub user: User,
}

/// What the guest says at the end, once, as JSON. Hostile input to whoever reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Files and links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What was left out, the first few.
    #[serde(default)]
    pub left: Vec<Left>,
    /// How many were left out.
    #[serde(default)]
    pub left_count: u64,
    /// What stopped it, in words.
    #[serde(default)]
    pub failed: Option<String>,
    /// Why.
    #[serde(default)]
    pub why: Option<String>,
}

/// Something that was not copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Where, from what was copied; cut where it is long.
    pub path: String,
    /// Why.
    pub why: Why,
}

/// Why something was not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It is a device, a socket or a pipe.
    Kind,
    /// It could not be read.
    Unreadable,
    /// It became something else, or shorter, while it was read.
    Changed,
    /// Its path is too long.
    TooLong,
    /// It is a link that leads out of what is copied.
    LeadsOut,
}

impl Why {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Why::Kind => "it is a device, a socket or a pipe",
            Why::Unreadable => "it cannot be read",
            Why::Changed => "it changed while it was read",
            Why::TooLong => "its path is too long",
            Why::LeadsOut => "it is a link that leads out of what is copied",
        }
    }

    /// Whether something is missing that a person wanted.
    pub fn is_failure(self) -> bool {
        matches!(self, Why::Unreadable | Why::Changed | Why::TooLong)
    }
}
