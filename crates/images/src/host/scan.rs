//! Walks the host's directories and collects what must be hidden.
//!
//! Every step goes through a descriptor of the directory above, follows no symbolic link and crosses no mount. What cannot
//! be read for another reason than the reader's own missing permission is an error: a layer made from half a scan would
//! show what it should hide.
//!
//! ```ignore
//! let mut scan = Scan::new(&root, &reader, &rules, &mut |_| {})?;
//! scan.tree(Path::new("etc"))?;
//! let found = scan.found;
//! ```

use super::{
    Error, Progress, Reader,
    index::{Hidden, Stamp, Times},
    judge::{Facts, Judged, Kind, judge},
    secrets::{Live, Rules, Then, holds_password},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Access, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString, OsStr},
    io::Read as _,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// What a scan found, in the order it was met. Paths are relative to the root.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) trees: Vec<PathBuf>,
    pub(super) covered: Vec<PathBuf>,
    pub(super) watched: Vec<Stamp>,
    pub(super) hidden: Vec<Hidden>,
}

/// A scan under way.
pub(super) struct Scan<'a> {
    root: &'a OwnedFd,
    reader: &'a Reader,
    rules: &'a Rules,
    progress: &'a mut dyn FnMut(Progress),
    /// When it began, in seconds since 1970; tells which directories are too fresh to be trusted later.
    pub(super) began: i64,
    /// Entries met.
    pub(super) seen: u64,
    /// The directory that is being read.
    at: PathBuf,
    listing: Vec<u8>,
    pub(super) found: Found,
}

/// Deeper directories are hidden whole.
const DEEPEST: usize = 100;
/// A directory with more hidden entries than these is hidden whole.
const MOST_HIDDEN_IN_ONE: usize = 20_000;
/// A directory with more directories in it than these is hidden whole.
const MOST_DIRECTORIES_IN_ONE: usize = 200_000;
/// With more hidden entries than these in all there is no image: the memory and the layer are bounded.
const MOST_HIDDEN: usize = 200_000;
/// Longest settings file that is searched for passwords; a longer one is hidden.
const LONGEST_SETTINGS: u64 = 1 << 20;
/// A directory changed so few seconds before the scan may change again without its times showing it.
const RACY_SECONDS: i64 = 2;
/// The callback is called once for so many entries.
const REPORT_EVERY: u64 = 4096;

const STEP: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
const TO_TREE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl<'a> Scan<'a> {
    /// A scan of the host whose root directory is `root`.
    pub(super) fn new(
        root: &'a OwnedFd,
        reader: &'a Reader,
        rules: &'a Rules,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let (at, listing) = (PathBuf::new(), Vec::with_capacity(1 << 15));
        Self { root, reader, rules, progress, began: now(), seen: 0, at, listing, found: Found::default() }
    }

    /// Scans the tree at `path`: a directory of the root, or a mount below one. A tree that must not be shown at all, or
    /// is not there, is not among the trees found.
    pub(super) fn tree(&mut self, path: &Path) -> Result<(), Error> {
        let Ok(live) = self.rules.descend(path) else { return Ok(()) };
        self.at = path.to_owned();
        let tree = match open_directory(self.root, path, TO_TREE) {
            Ok(tree) => tree,
            // A mounted file, or one that this reader cannot reach: no tree.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(()),
            Err(source) => return Err(self.unreadable(source)),
        };
        let stat = stat_itself(&tree).map_err(|source| self.unreadable(source))?;
        if judge(self.reader, facts(&stat)) != Judged::Show {
            return Ok(());
        }
        self.found.trees.push(path.to_owned());
        match self.directory(&tree, &stat, &live, 0)? {
            Outcome::Read => Ok(()),
            Outcome::TooMuch => Err(Error::TooMuch { path: self.at.clone() }),
        }
    }

    fn directory(
        &mut self,
        dir: &OwnedFd,
        stat: &Statx,
        live: &Live,
        depth: usize,
    ) -> Result<Outcome, Error> {
        let before = self.found.hidden.len();
        self.watch(stat);
        let directories = self.list(dir, live)?;
        let is_too_much = self.found.hidden.len().saturating_sub(before) > MOST_HIDDEN_IN_ONE
            || directories.len() > MOST_DIRECTORIES_IN_ONE
            || depth > DEEPEST;
        if is_too_much {
            self.found.hidden.truncate(before);
            return Ok(Outcome::TooMuch);
        }
        for name in directories {
            let below = self.rules.below(live, name.to_bytes());
            self.at.push(OsStr::from_bytes(name.to_bytes()));
            let outcome = self.enter(dir, &name, &below, depth);
            self.at.pop();
            if let Entered::Hide = outcome? {
                self.hide(&name, Kind::Directory)?;
            }
        }
        Ok(Outcome::Read)
    }

    /// Reads the names of a directory: decides about what is not a directory, returns what is.
    fn list(&mut self, dir: &OwnedFd, live: &Live) -> Result<Vec<CString>, Error> {
        let mut directories = Vec::new();
        let mut listing = std::mem::take(&mut self.listing);
        let mut entries = RawDir::new(dir, listing.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|source| self.unreadable(source))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.count();
            let kind = match kind_of(entry.file_type()) {
                Some(kind) => kind,
                None => match self.stat(dir, name)? {
                    Some(facts) => facts.kind,
                    None => continue,
                },
            };
            match self.rules.verdict(live, name.to_bytes()) {
                Some(Then::Hide) => self.hide(name, kind)?,
                Some(Then::Cover) if kind == Kind::Directory => self.found.covered.push(self.path_of(name)),
                Some(Then::HideIfItHoldsAPassword)
                    if kind == Kind::File && self.holds_password(dir, name)? =>
                {
                    self.hide(name, kind)?
                }
                _ if kind == Kind::Directory => directories.push(name.to_owned()),
                _ => self.decide(dir, name, kind)?,
            }
        }
        self.listing = listing;
        Ok(directories)
    }

    /// Decides about something that is not a directory and that no rule hides.
    fn decide(&mut self, dir: &OwnedFd, name: &CStr, kind: Kind) -> Result<(), Error> {
        let facts = match kind {
            Kind::Link => return Ok(()),
            Kind::Special => return self.hide(name, kind),
            Kind::File | Kind::Directory => self.stat(dir, name)?,
        };
        let Some(facts) = facts else { return Ok(()) };
        let is_hidden = match judge(self.reader, facts) {
            Judged::Show => false,
            Judged::Hide => true,
            Judged::HideIfReachable => may(dir, name, Access::READ_OK),
        };
        if is_hidden { self.hide(name, facts.kind) } else { Ok(()) }
    }

    /// Goes into the directory `name`, which `self.at` already names.
    fn enter(&mut self, parent: &OwnedFd, name: &CStr, live: &Live, depth: usize) -> Result<Entered, Error> {
        let dir = match open_directory(parent, name, STEP) {
            Ok(dir) => dir,
            // Another mount: a tree of its own, or not shown.
            Err(Errno::XDEV | Errno::NOENT) => return Ok(Entered::Shown),
            // It is something else by now, which the decision about directories hides unless it is open to others.
            Err(Errno::ACCESS | Errno::NOTDIR | Errno::LOOP) => return self.decide_closed(parent, name),
            Err(source) => return Err(self.unreadable(source)),
        };
        let stat = stat_itself(&dir).map_err(|source| self.unreadable(source))?;
        // This process could open it, so what the kernel would say is known.
        if judge(self.reader, facts(&stat)) != Judged::Show {
            return Ok(Entered::Hide);
        }
        match self.directory(&dir, &stat, live, depth.saturating_add(1))? {
            Outcome::Read => Ok(Entered::Shown),
            Outcome::TooMuch => Ok(Entered::Hide),
        }
    }

    /// Decides about a directory that cannot be listed: it is hidden if the reader could still go through it.
    fn decide_closed(&mut self, parent: &OwnedFd, name: &CStr) -> Result<Entered, Error> {
        let found = rustix::fs::statx(parent, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
        let facts = match found {
            Ok(stat) => facts(&stat),
            Err(Errno::NOENT | Errno::ACCESS) => return Ok(Entered::Shown),
            Err(source) => return Err(self.unreadable(source)),
        };
        let is_hidden = match judge(self.reader, facts) {
            Judged::Hide => true,
            Judged::Show if facts.kind == Kind::Link => false,
            Judged::Show | Judged::HideIfReachable => {
                may(parent, name, Access::READ_OK) || may(parent, name, Access::EXEC_OK)
            }
        };
        Ok(if is_hidden { Entered::Hide } else { Entered::Shown })
    }

    fn holds_password(&self, dir: &OwnedFd, name: &CStr) -> Result<bool, Error> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat2(dir, name, flags, Mode::empty(), STEP) {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::ACCESS | Errno::NOENT | Errno::LOOP) => return Ok(false),
            Err(Errno::XDEV) => return Ok(true),
            Err(source) => return Err(self.unreadable(source)),
        };
        let mut text = Vec::new();
        let read = file.take(LONGEST_SETTINGS.saturating_add(1)).read_to_end(&mut text);
        let read =
            read.map_err(|source| Error::Read { path: Path::new("/").join(self.path_of(name)), source })?;
        Ok(u64::try_from(read).is_ok_and(|read| read > LONGEST_SETTINGS) || holds_password(&text))
    }

    fn stat(&self, dir: &OwnedFd, name: &CStr) -> Result<Option<Facts>, Error> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(
            dir,
            name,
            flags,
            StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID,
        ) {
            Ok(stat) => Ok(Some(facts(&stat))),
            // Gone since it was listed; or in a directory that can be listed but not searched, so never opened either.
            Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
            Err(source) => Err(self.unreadable(source)),
        }
    }

    fn hide(&mut self, name: &CStr, kind: Kind) -> Result<(), Error> {
        if self.found.hidden.len() >= MOST_HIDDEN {
            return Err(Error::TooMuch { path: self.at.clone() });
        }
        let path = self.path_of(name);
        self.found.hidden.push(Hidden { path, is_directory: kind == Kind::Directory });
        Ok(())
    }

    /// Notes how this directory looks, if its changes are to be noticed at every start.
    fn watch(&mut self, stat: &Statx) {
        if !self.at.starts_with("etc") && self.at.iter().count() > 1 {
            return;
        }
        let times = times(stat);
        let is_racy = times.changed.0 >= self.began.saturating_sub(RACY_SECONDS);
        self.found.watched.push(Stamp { path: self.at.clone(), seen: (!is_racy).then_some(times) });
    }

    fn count(&mut self) {
        self.seen = self.seen.saturating_add(1);
        if self.seen.is_multiple_of(REPORT_EVERY) {
            let hidden = u64::try_from(self.found.hidden.len()).unwrap_or(u64::MAX);
            (self.progress)(Progress { seen: self.seen, hidden });
        }
    }

    fn path_of(&self, name: &CStr) -> PathBuf {
        self.at.join(OsStr::from_bytes(name.to_bytes()))
    }

    fn unreadable(&self, source: Errno) -> Error {
        Error::Read { path: Path::new("/").join(&self.at), source: source.into() }
    }
}

enum Outcome {
    Read,
    TooMuch,
}

enum Entered {
    Shown,
    Hide,
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// What a stamp keeps of a directory.
pub(super) fn times(stat: &Statx) -> Times {
    Times {
        inode: stat.stx_ino,
        changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
    }
}

/// Opens a directory below `dir`; again if a rename elsewhere disturbed the kernel's walk.
fn open_directory<P: rustix::path::Arg + Copy>(
    dir: impl AsFd,
    path: P,
    how: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let dir = dir.as_fd();
    for _ in 0..64 {
        match rustix::fs::openat2(dir, path, DIRECTORY, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            outcome => return outcome,
        }
    }
    Err(Errno::AGAIN)
}

fn stat_itself(dir: &OwnedFd) -> Result<Statx, Errno> {
    rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Whether the kernel lets this process do `access`; what it does not clearly refuse counts as allowed.
fn may(dir: &OwnedFd, name: &CStr, access: Access) -> bool {
    let asked = rustix::fs::accessat(dir, name, access, AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW);
    !matches!(asked, Err(Errno::ACCESS | Errno::PERM | Errno::NOENT))
}

fn facts(stat: &Statx) -> Facts {
    let mode = u32::from(stat.stx_mode);
    let kind = kind_of(FileType::from_raw_mode(mode)).unwrap_or(Kind::Special);
    Facts { kind, mode: mode & 0o7777, uid: stat.stx_uid, gid: stat.stx_gid }
}

fn kind_of(kind: FileType) -> Option<Kind> {
    match kind {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Directory),
        FileType::Symlink => Some(Kind::Link),
        FileType::Unknown => None,
        _ => Some(Kind::Special),
    }
}
