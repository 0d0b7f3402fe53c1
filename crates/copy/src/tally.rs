//! What was copied, and what was not.

use crate::words;
use airlock_protocol::copy::{Left, Why};
use std::path::Path;

/// Most entries that are named when they were left out; more are only counted.
const MOST_NAMED: usize = 20;

/// What a copy did so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files and links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Everything, directories too.
    pub entries: u64,
    /// What was left out, the first few.
    pub left: Vec<Left>,
    /// How many were left out.
    pub left_count: u64,
}

impl Tally {
    /// Something is not copied.
    pub(crate) fn leave(&mut self, path: &Path, why: Why) {
        self.left_count += 1;
        if self.left.len() < MOST_NAMED {
            self.left.push(Left { path: words(path.as_os_str()), why });
        }
    }
}

/// Who hears how far a copy is.
pub type Progress<'a> = &'a mut dyn FnMut(&Tally);
