//! Adds records to a ledger.

use super::{
    files::{self, BOUNDS, Bounds, End},
    lines::{Hex, as_text, hash},
    sync::Unsynced,
    text,
};
use airlock_protocol::{
    SandboxId,
    ledger::{Entry, Record},
};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::{
    cell::RefCell,
    collections::VecDeque,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes for lines that are kept between two writes.
const BUFFER: usize = 4096;

/// The ledger of one sandbox, written by its keeper only.
#[derive(Debug)]
pub struct Ledger {
    inner: RefCell<Inner>,
    pub(super) unsynced: Unsynced,
    durable: bool,
}

/// An entry, and when it happened: its record has that time, also where it is written later.
#[derive(Debug, Clone, PartialEq)]
pub struct Happened {
    at: Timestamp,
    /// What.
    pub entry: Entry,
}

impl Happened {
    /// It has happened just now.
    pub fn now(entry: Entry) -> Happened {
        Happened { at: Timestamp::now(), entry }
    }
}

/// Who is told of records that were written; nobody where it is none, and then none is made.
pub type Told<'a> = Option<&'a mut dyn FnMut(Record)>;

/// A [`Record`] as it is written: nothing of it is copied for that.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    #[serde(serialize_with = "to_microseconds")]
    at: Timestamp,
    sandbox: &'a SandboxId,
    #[serde(flatten)]
    entry: &'a Entry,
    prev: &'a str,
}

impl Line<'_> {
    fn record(&self) -> Record {
        Record {
            seq: self.seq,
            at: format!("{:.6}", self.at),
            sandbox: self.sandbox.clone(),
            entry: self.entry.clone(),
            prev: self.prev.to_owned(),
        }
    }
}

fn to_microseconds<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.6}"))
}

/// A ledger that cannot be written. Nothing crosses while this is so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files could not be read at the start.
    #[error("could not open the ledger in {folder}")]
    Open {
        /// Where.
        folder: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A record could not be written.
    #[error("could not write to the ledger in {folder}: {source}")]
    Write {
        /// Where.
        folder: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What was written could not be brought to the disk.
    #[error("could not bring the ledger to the disk: {why}")]
    Sync {
        /// What the kernel said.
        why: String,
    },
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    sandbox: SandboxId,
    bounds: Bounds,
    /// Opened at the first record.
    file: Option<Arc<File>>,
    /// Bytes of the current file that are whole lines.
    length: u64,
    /// There are bytes after `length`.
    is_torn: bool,
    /// How many of them were there at the start and are not told yet.
    torn_before: u64,
    seq: u64,
    head: Hex,
    buffer: Vec<u8>,
}

impl Ledger {
    /// The ledger in a sandbox's folder, continued if there is one. Makes nothing before the first record.
    ///
    /// With `durable`, [`Ledger::commit`] waits until the disk has what was written.
    pub fn open(folder: &Path, sandbox: SandboxId, durable: bool) -> Result<Ledger, Error> {
        Ledger::open_with(folder, sandbox, durable, BOUNDS)
    }

    pub(super) fn open_with(
        folder: &Path,
        sandbox: SandboxId,
        durable: bool,
        bounds: Bounds,
    ) -> Result<Ledger, Error> {
        let end = files::end(folder).map_err(|source| Error::Open { folder: folder.to_owned(), source })?;
        let End { seq, head, length, torn } =
            end.unwrap_or(End { seq: 0, head: hash(b""), length: 0, torn: 0 });
        let inner = Inner {
            folder: folder.to_owned(),
            sandbox,
            bounds,
            file: None,
            length,
            is_torn: torn > 0,
            torn_before: torn,
            seq,
            head,
            buffer: Vec::with_capacity(BUFFER),
        };
        Ok(Ledger { inner: RefCell::new(inner), unsynced: Unsynced::in_folder(folder), durable })
    }

    /// Writes one record. When this returns, it survives the death of this process.
    pub fn append(&self, entry: Entry) -> Result<Record, Error> {
        self.append_with(|_| entry)
    }

    /// As [`Ledger::append`], for an entry that names its own record's number.
    pub fn append_with(&self, entry: impl FnOnce(u64) -> Entry) -> Result<Record, Error> {
        let mut last = None;
        self.append_behind(&mut VecDeque::new(), Some(entry), Some(&mut |record| last = Some(record)))?;
        let lost = || io::Error::other("nothing was written");
        last.ok_or_else(|| Error::Write { folder: self.inner.borrow().folder.clone(), source: lost() })
    }

    /// Writes what happened `before`, in its order, and behind it `last`: all in one write, or nothing of it. What is
    /// written is taken out of `before` and `told`. The number of the last record.
    pub fn append_behind(
        &self,
        before: &mut VecDeque<Happened>,
        last: Option<impl FnOnce(u64) -> Entry>,
        told: Told<'_>,
    ) -> Result<u64, Error> {
        self.unsynced.check()?;
        let mut inner = self.inner.borrow_mut();
        inner
            .append(before, last, told, &self.unsynced)
            .map_err(|source| Error::Write { folder: inner.folder.clone(), source })
    }

    /// With `durable`: waits until everything written so far is on the disk. Calls at the same time share the wait.
    pub async fn commit(&self) -> Result<(), Error> {
        match self.durable {
            true => self.unsynced.sync().await,
            false => Ok(()),
        }
    }

    /// As [`Ledger::commit`], where nothing can wait for others.
    pub fn commit_now(&self) -> Result<(), Error> {
        match self.durable {
            true => self.sync_now(),
            false => Ok(()),
        }
    }

    /// Brings to the disk, within a second, what is written. Runs until dropped; wakes only after a record.
    pub async fn keep_synced(&self) {
        self.unsynced.keep().await;
    }

    /// Brings to the disk what is written, now.
    pub fn sync_now(&self) -> Result<(), Error> {
        self.unsynced.sync_now()
    }
}

impl Drop for Ledger {
    /// The last records are on the disk too when the keeper ends.
    fn drop(&mut self) {
        let _ = self.unsynced.sync_now();
    }
}

impl Inner {
    fn append(
        &mut self,
        before: &mut VecDeque<Happened>,
        last: Option<impl FnOnce(u64) -> Entry>,
        told: Told<'_>,
        unsynced: &Unsynced,
    ) -> io::Result<u64> {
        if self.torn_before > 0 {
            self.write_one(Entry::Torn { bytes: self.torn_before }, unsynced)?;
            self.torn_before = 0;
        }
        if self.is_full() {
            self.rotate(unsynced)?;
        }
        let owed = before.len();
        let number = self.seq.saturating_add(u64::try_from(owed).unwrap_or(u64::MAX)).saturating_add(1);
        before.extend(last.map(|last| Happened::now(last(number))));
        match self.write(before.iter_mut(), told, unsynced) {
            Ok(()) => {
                before.clear();
                Ok(self.seq)
            }
            Err(err) => {
                before.truncate(owed);
                Err(err)
            }
        }
    }

    fn is_full(&self) -> bool {
        self.length >= self.bounds.bytes
    }

    /// Told first, then done: if we die in between, the files are as if nothing had been told, and it is told again.
    fn rotate(&mut self, unsynced: &Unsynced) -> io::Result<()> {
        let (dropped, first_kept) = files::about_to_drop(&self.folder, self.bounds);
        self.write_one(Entry::Rotated { dropped, first_kept }, unsynced)?;
        files::shift(&self.folder, self.bounds)?;
        (self.file, self.length) = (None, 0);
        Ok(())
    }

    fn write_one(&mut self, entry: Entry, unsynced: &Unsynced) -> io::Result<()> {
        self.write(std::iter::once(&mut Happened::now(entry)), None, unsynced)
    }

    /// Makes lines of what happened, writes them at once, and tells of them. If that fails, there are none.
    fn write<'a>(
        &mut self,
        happened: impl Iterator<Item = &'a mut Happened>,
        told: Told<'_>,
        unsynced: &Unsynced,
    ) -> io::Result<()> {
        let (mut seq, mut head) = (self.seq, self.head);
        let mut records = Vec::new();
        self.buffer.clear();
        for Happened { at, entry } in happened {
            text::bound(entry);
            seq += 1;
            let line = Line { seq, at: *at, sandbox: &self.sandbox, entry, prev: as_text(&head) };
            if told.is_some() {
                records.push(line.record());
            }
            head = put(&mut self.buffer, &line)?;
        }
        let file = self.ready_file(unsynced)?;
        if let Err(err) = (&*file).write_all(&self.buffer) {
            self.is_torn = true;
            // If this fails too it is tried again before the next record.
            let _ = self.cut(&file);
            return Err(err);
        }
        self.length += self.buffer.len() as u64;
        self.buffer.shrink_to(BUFFER);
        (self.seq, self.head) = (seq, head);
        unsynced.wrote(&file);
        told.into_iter().for_each(|told| records.drain(..).for_each(told));
        Ok(())
    }

    /// The current file, opened, and ending with a line end.
    fn ready_file(&mut self, unsynced: &Unsynced) -> io::Result<Arc<File>> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                let file = Arc::new(files::open_for_append(&self.folder)?);
                unsynced.folder_changed();
                self.file.insert(file).clone()
            }
        };
        if self.is_torn {
            self.cut(&file)?;
        }
        Ok(file)
    }

    fn cut(&mut self, file: &File) -> io::Result<()> {
        file.set_len(self.length)?;
        self.is_torn = false;
        Ok(())
    }
}

/// Puts one line into the buffer; its hash.
fn put(buffer: &mut Vec<u8>, line: &Line<'_>) -> io::Result<Hex> {
    let begin = buffer.len();
    serde_json::to_writer(&mut *buffer, line)?;
    let hash = hash(buffer.get(begin..).unwrap_or_default());
    buffer.push(b'\n');
    Ok(hash)
}
