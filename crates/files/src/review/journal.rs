//! What an apply did, written down before it is done, so that it can be undone, also after a kill or a power cut.
//!
//! ```text
//! review/lock        one at a time
//! review/known       what of the host is our own work
//! review/<n>/journal one line a record
//! review/<n>/<k>     what the k-th act replaced
//! ```
//!
//! Of each act there is a record before it ([`Record::Begun`]), one when what it puts there is ready, and one after it. An
//! act that has no last record was interrupted: [`super::recover`] finds out how far it came.

use super::{
    Error,
    change::{Kind, Seen},
    known::{Known, Mark},
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// The folder of a sandbox's applies, locked.
#[derive(Debug)]
pub struct Journals {
    folder: PathBuf,
    pub(super) known: Known,
    _lock: File,
}

/// One apply.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) folder: PathBuf,
    file: File,
    next: u64,
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    /// An act is about to begin.
    Begun { act: u64, path: String, what: What, temporary: String, old: Option<Old> },
    /// What it puts there stands ready under the temporary name.
    Ready { act: u64, inode: u64 },
    /// It is done.
    Done { act: u64, mark: Option<Mark> },
    /// It was undone.
    Undone { act: u64 },
    /// Nothing more comes.
    Finished,
}

/// What an act does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    /// Makes or replaces.
    Put,
    /// Takes away.
    Remove,
    /// Changes permissions.
    Mode,
}

/// What stood at the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Old {
    pub(super) kind: OldKind,
    pub(super) mode: u32,
    pub(super) mtime: (i64, u32),
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) owner: Option<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OldKind {
    File,
    Directory,
    Link,
}

impl Journals {
    /// The folder, made where it is missing, and locked: `None` if another apply or undo is at work.
    pub fn open(folder: &Path) -> Result<Option<Journals>, Error> {
        let failed = |tried| move |source| Error::Journal { tried, path: folder.to_owned(), source };
        match fs::create_dir(folder) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make")(err)),
            _ => {}
        }
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"));
        let lock = lock.map_err(failed("open"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(failed("lock")(errno.into())),
        }
        let known = Known::read(&folder.join("known"))?;
        Ok(Some(Journals { folder: folder.to_owned(), known, _lock: lock }))
    }

    /// What of the host is our own work.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Writes down what of the host is our own work.
    pub(super) fn save_known(&self) -> Result<(), Error> {
        self.known.write(&self.folder.join("known"))
    }

    /// How many applies can be undone.
    pub fn depth(&self) -> Result<usize, Error> {
        Ok(self.numbers()?.len())
    }

    /// The last apply, and what is written of it.
    pub(super) fn last(&self) -> Result<Option<(Journal, Vec<Record>)>, Error> {
        let Some(number) = self.numbers()?.last().copied() else { return Ok(None) };
        Journal::open(self.folder.join(number.to_string())).map(Some)
    }

    /// A new one after the last.
    pub(super) fn begin(&self) -> Result<Journal, Error> {
        let number = self.numbers()?.last().copied().unwrap_or(0) + 1;
        let folder = self.folder.join(number.to_string());
        fs::create_dir(&folder).map_err(|source| Error::Journal {
            tried: "make",
            path: folder.clone(),
            source,
        })?;
        Ok(Journal::open(folder)?.0)
    }

    fn numbers(&self) -> Result<Vec<u64>, Error> {
        let failed = |source| Error::Journal { tried: "list", path: self.folder.clone(), source };
        let entries = fs::read_dir(&self.folder).map_err(failed)?;
        let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut numbers: Vec<u64> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

impl Journal {
    fn open(folder: PathBuf) -> Result<(Journal, Vec<Record>), Error> {
        let path = folder.join("journal");
        let failed = |source| Error::Journal { tried: "open", path: path.clone(), source };
        let file = File::options().create(true).read(true).append(true).open(&path).map_err(failed)?;
        let mut records = Vec::new();
        for line in BufReader::new(&file).lines() {
            // A line that a power cut left half written is the last one, and what it was about has not begun.
            let Some(record) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            records.push(record);
        }
        let acts = records.iter().filter(|record| matches!(record, Record::Begun { .. })).count();
        let next = u64::try_from(acts).unwrap_or(u64::MAX);
        Ok((Journal { folder, file, next }, records))
    }

    /// The number of the next act.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Where what an act replaced is kept.
    pub(super) fn saved(&self, act: u64) -> PathBuf {
        self.folder.join(act.to_string())
    }

    /// The folder, opened, to move things into and out of it.
    pub(super) fn open_folder(&self) -> Result<OwnedFd, Error> {
        let opened = File::open(&self.folder).map(OwnedFd::from);
        opened.map_err(|source| Error::Journal { tried: "open", path: self.folder.clone(), source })
    }

    /// Adds a record.
    pub(super) fn write(&mut self, record: &Record) -> Result<(), Error> {
        super::interruption();
        let mut line = serde_json::to_vec(record).map_err(|err| self.failed("write", err.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|err| self.failed("write", err))?;
        super::interruption();
        Ok(())
    }

    /// Has it on disk.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|err| self.failed("sync", err))
    }

    /// Forgets the apply: it was undone, or did nothing.
    pub(super) fn remove(self) -> Result<(), Error> {
        fs::remove_dir_all(&self.folder).map_err(|err| self.failed("remove", err))
    }

    fn failed(&self, tried: &'static str, source: io::Error) -> Error {
        Error::Journal { tried, path: self.folder.join("journal"), source }
    }
}

impl Old {
    pub(super) fn of(seen: &Seen) -> Option<Old> {
        let kind = match seen.kind {
            Kind::File => OldKind::File,
            Kind::Directory => OldKind::Directory,
            Kind::Link => OldKind::Link,
            Kind::Special => return None,
        };
        Some(Old {
            kind,
            mode: seen.mode,
            mtime: seen.mtime,
            inode: seen.inode,
            size: seen.size,
            owner: Some(seen.owner),
        })
    }

    /// Whether something looks as this did, be it a copy.
    pub(super) fn looks_like(&self, seen: &Seen) -> bool {
        let is_same_kind = Old::of(seen).is_some_and(|old| old.kind == self.kind);
        let is_same_mode = self.kind == OldKind::Link || seen.mode == self.mode;
        is_same_kind && is_same_mode && seen.size == self.size && seen.mtime == self.mtime
    }

    /// Whether this is still what stands there, whatever name it has now. The time of its last change of name does not
    /// count, and directories change with what is in them.
    pub(super) fn is(&self, seen: &Seen) -> bool {
        let same = Old::of(seen).is_some_and(|old| old.kind == self.kind && old.inode == self.inode);
        same && (self.kind == OldKind::Directory || (seen.size == self.size && seen.mtime == self.mtime))
    }
}
