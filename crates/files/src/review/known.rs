//! What of the host is our own work: the marks of what applies and undos wrote, so that it is not taken for a change that
//! somebody else made. One file, replaced as a whole.

use super::{Error, change::Seen, names};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

/// Marks by path.
#[derive(Debug, Default)]
pub struct Known {
    marks: HashMap<PathBuf, Mark>,
}

/// What tells a file that nobody touched since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) inode: u64,
    pub(super) ctime: (i64, u32),
    pub(super) size: u64,
}

impl Known {
    /// What the journals in this folder know.
    pub fn of(folder: &Path) -> Result<Known, Error> {
        Known::read(&folder.join("known"))
    }

    /// Reads the file; none means nothing is known.
    pub(super) fn read(path: &Path) -> Result<Known, Error> {
        let failed = |source| Error::Journal { tried: "read", path: path.to_owned(), source };
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Known::default()),
            Err(err) => return Err(failed(err)),
        };
        let list: Vec<(String, Mark)> =
            serde_json::from_slice(&text).map_err(|err| failed(io::Error::other(err)))?;
        let marks = list.into_iter().filter_map(|(path, mark)| Some((read_path(&path)?, mark))).collect();
        Ok(Known { marks })
    }

    /// Replaces the file.
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::Journal { tried: "write", path: path.to_owned(), source };
        let list: Vec<(String, Mark)> =
            self.marks.iter().map(|(path, mark)| (written_path(path), *mark)).collect();
        let text = serde_json::to_vec(&list).map_err(|err| failed(io::Error::other(err)))?;
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).map_err(failed)?;
        fs::rename(&fresh, path).map_err(|source| Error::Journal {
            tried: "replace",
            path: path.to_owned(),
            source,
        })
    }

    /// Whether what stands at a path is our own work, as it was left.
    pub(super) fn has(&self, path: &Path, seen: &Seen) -> bool {
        self.marks.get(path).is_some_and(|mark| *mark == Mark::of(seen))
    }

    pub(super) fn note(&mut self, path: &Path, mark: Mark) {
        self.marks.insert(path.to_owned(), mark);
    }
}

impl Mark {
    pub(super) fn of(seen: &Seen) -> Mark {
        Mark { inode: seen.inode, ctime: seen.ctime, size: seen.size }
    }
}

/// A path as it stands in our files.
pub(super) fn written_path(path: &Path) -> String {
    names::quote(path.as_os_str().as_bytes())
}

/// The path that was written.
pub(super) fn read_path(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(OsString::from_vec(names::read(text)?)))
}
