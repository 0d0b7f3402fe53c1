//! Records of a ledger that may still grow.

use super::{
    files,
    lines::{Line, Lines},
};
use airlock_protocol::{
    ledger::{Entry, Record},
    policy::Verdict,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    io::Errno,
};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// Reads the records of one ledger, the oldest first, over all its files and across rotations.
///
/// ```
/// use airlock_gate::ledger::{Item, Ledger, Reader};
/// use airlock_protocol::ledger::Entry;
/// let folder = tempfile::tempdir()?;
/// let mut reader = Reader::open(folder.path())?;
/// assert!(reader.next()?.is_none());
/// let ledger = Ledger::open(folder.path(), "3f9a0c2e7b14".parse()?, false)?;
/// ledger.append(Entry::Torn { bytes: 3 })?;
/// assert!(matches!(reader.next()?, Some(Item::Record(record)) if record.seq == 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    /// The one that is read, and those after it.
    waiting: VecDeque<Lines<BufReader<File>>>,
}

/// What stands in a line.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A record.
    Record(Box<Record>),
    /// Bytes that are no record.
    Damaged {
        /// How many.
        bytes: u64,
    },
}

impl Reader {
    /// The ledger in this folder; there need not be one yet.
    pub fn open(folder: &Path) -> io::Result<Reader> {
        let mut reader = Reader { folder: folder.to_owned(), waiting: VecDeque::new() };
        reader.open_younger()?;
        Ok(reader)
    }

    /// The next record; `None` if there is none yet. May be called again when the folder has changed.
    #[expect(clippy::should_implement_trait, reason = "it goes on after `None`, and can fail")]
    pub fn next(&mut self) -> io::Result<Option<Item>> {
        loop {
            if let Some(file) = self.waiting.front_mut()
                && let Some(line) = file.next_line()?
            {
                return Ok(Some(item(line)));
            }
            if self.waiting.len() > 1 {
                let over = self.waiting.pop_front();
                match over.map_or(0, |lines| lines.unfinished()) {
                    0 => continue,
                    bytes => return Ok(Some(Item::Damaged { bytes })),
                }
            }
            // After a rotation the old file is read once more: its last lines may have come since.
            if !self.open_younger()? {
                return Ok(None);
            }
        }
    }

    /// Whether there were any.
    fn open_younger(&mut self) -> io::Result<bool> {
        let known = self.waiting.back().map(|lines| lines.source().get_ref());
        let younger = files::open_since(&self.folder, known)?;
        let are_some = !younger.is_empty();
        self.waiting.extend(younger.into_iter().map(|(_, file)| Lines::new(BufReader::new(file))));
        Ok(are_some)
    }
}

fn item(line: Line) -> Item {
    match serde_json::from_slice(&line.text) {
        Ok(record) => Item::Record(Box::new(record)),
        Err(_) => Item::Damaged { bytes: line.length },
    }
}

/// Whether an entry tells of something that was denied, or would have been (`--audit-only`).
pub fn is_denial(entry: &Entry) -> bool {
    matches!(entry, Entry::Decision { verdict, audit_only, .. } if *verdict == Verdict::Deny || *audit_only)
}

/// Tells when a ledger may have grown. Made before the first read, nothing is missed.
#[derive(Debug)]
pub struct Growth(OwnedFd);

impl Growth {
    /// Of the ledger in this folder.
    pub fn of(folder: &Path) -> io::Result<Growth> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let watched = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVED_FROM
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::MOVE_SELF;
        inotify::add_watch(&changes, folder, watched)?;
        Ok(Growth(changes))
    }

    /// Waits for a change, at most so long; `false` if there was none.
    pub fn wait(&self, most: Duration) -> io::Result<bool> {
        let most = Timespec::try_from(most).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&most)) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => {
                self.clear();
                Ok(true)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Forgets the changes so far; for whoever waits on the descriptor together with others.
    pub fn clear(&self) {
        let mut events = [0u8; 4096];
        while rustix::io::read(&self.0, &mut events).is_ok_and(|count| count > 0) {}
    }
}

impl AsFd for Growth {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
