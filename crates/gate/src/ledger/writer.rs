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
    at: String,
    /// What.
    pub entry: Entry,
}

impl Happened {
    /// It has happened just now.
    pub fn now(entry: Entry) -> Happened {
        Happened { at: format!("{:.6}", jiff::Timestamp::now()), entry }
    }
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
        self.append_behind(&mut VecDeque::new(), Some(entry), |record| last = Some(record))?;
        let lost = || io::Error::other("nothing was written");
        last.ok_or_else(|| Error::Write { folder: self.inner.borrow().folder.clone(), source: lost() })
    }

    /// Writes what happened `before`, in its order, and behind it `last`: all in one write, or nothing of it. What is
    /// written is taken out of `before` and given to `written`.
    pub fn append_behind(
        &self,
        before: &mut VecDeque<Happened>,
        last: Option<impl FnOnce(u64) -> Entry>,
        written: impl FnMut(Record),
    ) -> Result<(), Error> {
        self.unsynced.check()?;
        let mut inner = self.inner.borrow_mut();
        inner
            .append(before, last, &self.unsynced)
            .map(|records| records.into_iter().for_each(written))
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
        unsynced: &Unsynced,
    ) -> io::Result<Vec<Record>> {
        if self.torn_before > 0 {
            self.write_one(Entry::Torn { bytes: self.torn_before }, unsynced)?;
            self.torn_before = 0;
        }
        if self.is_full() {
            self.rotate(unsynced)?;
        }
        let owed = before.len();
        let number = self.seq.saturating_add(u64::try_from(owed).unwrap_or(u64::MAX)).saturating_add(1);
        let last = last.map(|last| Happened::now(last(number)));
        let mut records = Vec::with_capacity(owed.saturating_add(1));
        match self.write(before.drain(..).chain(last), &mut records, unsynced) {
            Ok(()) => Ok(records),
            Err(err) => {
                let unwritten = records.into_iter().map(|Record { at, entry, .. }| Happened { at, entry });
                before.extend(unwritten.take(owed));
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
        self.write(std::iter::once(Happened::now(entry)), &mut Vec::with_capacity(1), unsynced)
    }

    /// Makes `records` of what happened and writes them at once. If that fails, they are none.
    fn write(
        &mut self,
        happened: impl Iterator<Item = Happened>,
        records: &mut Vec<Record>,
        unsynced: &Unsynced,
    ) -> io::Result<()> {
        let (mut seq, mut head) = (self.seq, self.head);
        self.buffer.clear();
        for Happened { at, mut entry } in happened {
            text::bound(&mut entry);
            seq += 1;
            let record =
                Record { seq, at, sandbox: self.sandbox.clone(), entry, prev: as_text(&head).to_owned() };
            head = self.put(&record)?;
            records.push(record);
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
        Ok(())
    }

    /// Puts one line into the buffer; its hash.
    fn put(&mut self, record: &Record) -> io::Result<Hex> {
        let begin = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, record)?;
        let hash = hash(self.buffer.get(begin..).unwrap_or_default());
        self.buffer.push(b'\n');
        Ok(hash)
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
