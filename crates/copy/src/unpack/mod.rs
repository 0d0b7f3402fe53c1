//! An archive becomes a tree, below one directory and nowhere else.
//!
//! Paths are taken apart here, and every directory is opened part by part without following links, so that neither the
//! archive nor a program that renames and links in the same place meanwhile can lead a write elsewhere. A file is written
//! without a name and gets it when it is whole. Set-id bits and devices are never made.

use crate::{
    Error, failed,
    place::Place,
    tally::{Progress, Tally},
    tar::{Entry, Kind, Reader, is_copied},
    words,
};
use airlock_protocol::{copy::Why, size};
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

/// What is taken of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Which symbolic links.
    pub links: Links,
    /// Whether hard links are.
    pub hard_links: HardLinks,
    /// Whether other file systems below the destination are entered.
    pub mounts: Mounts,
    /// Who gets the files, where not whoever unpacks. Without it the umask counts, as for every file that one makes.
    pub owner: Option<(u32, u32)>,
    /// Most bytes of files.
    pub most_bytes: u64,
    /// Most entries.
    pub most_entries: u64,
}

/// Which symbolic links are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// All.
    All,
    /// Those that lead nowhere outside of what is copied.
    Within,
}

/// Whether hard links are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HardLinks {
    /// Below the destination.
    Made,
    /// Never: what sends them is not who it should be.
    Refused,
}

/// Whether other file systems are entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Yes.
    Entered,
    /// No.
    Refused,
}

/// Bytes written at a time.
const PIECE: usize = 128 * 1024;
/// Names of files that are not whole yet, where a file cannot be without one.
const UNFINISHED: &str = ".airlock-cp-";

/// Unpacks what [`crate::pack::pack`] wrote: its first entry is what is copied.
pub fn unpack(
    archive: &mut Reader<impl Read>,
    place: &Place,
    rules: &Rules,
    progress: Progress<'_>,
) -> Result<Tally, Error> {
    let Some(first) = archive.next()? else { return Err(Error::BrokenOff) };
    if !parts(&first)?.as_os_str().is_empty() {
        return Err(Error::LeadsOut { name: words(OsStr::from_bytes(&first.path)) });
    }
    place.fits(first.kind == Kind::Directory)?;
    let mut unpacking = Unpacking::new(rules, progress);
    match (place, &first.kind) {
        (Place::Into(directory), _) => unpacking.all(archive, directory.as_fd()),
        (Place::As { parent, name, .. }, Kind::Directory) => {
            unpacking.count(&first)?;
            let made = unpacking.directory(parent.as_fd(), name, &first)?;
            unpacking.all(archive, made.as_fd())
        }
        (Place::As { parent, name, .. }, _) => {
            unpacking.count(&first)?;
            unpacking.put(archive, parent.as_fd(), (Path::new(""), name), &first)?;
            match archive.next()? {
                None => Ok(()),
                Some(more) => Err(Error::LeadsOut { name: words(OsStr::from_bytes(&more.path)) }),
            }
        }
    }?;
    Ok(unpacking.tally)
}

/// Unpacks an archive of anybody's into a directory that is there.
pub fn unpack_all(
    archive: &mut Reader<impl Read>,
    directory: BorrowedFd<'_>,
    rules: &Rules,
    progress: Progress<'_>,
) -> Result<Tally, Error> {
    let mut unpacking = Unpacking::new(rules, progress);
    unpacking.all(archive, directory)?;
    Ok(unpacking.tally)
}

/// The path of an entry below the destination: no `..`, not absolute, nothing empty. The destination itself is empty.
pub fn parts(entry: &Entry) -> Result<PathBuf, Error> {
    let out = || Error::LeadsOut { name: words(OsStr::from_bytes(&entry.path)) };
    if entry.path.is_empty() || entry.path.contains(&0) {
        return Err(out());
    }
    let mut path = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(&entry.path)).components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => path.push(part),
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return Err(out()),
        }
    }
    Ok(path)
}

/// Whether a link that lies in a directory so many parts below the top leads nowhere above it, whatever other such links
/// are there: only its first parts may be `..`.
pub fn stays_within(depth: usize, target: &[u8]) -> bool {
    let target = Path::new(OsStr::from_bytes(target));
    let mut ups = 0;
    let mut goes_down = false;
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => goes_down = true,
            Component::ParentDir if goes_down => return false,
            Component::ParentDir => ups += 1,
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    ups <= depth
}

struct Unpacking<'a> {
    rules: &'a Rules,
    progress: Progress<'a>,
    tally: Tally,
    piece: Vec<u8>,
    unfinished: u64,
    /// Permissions that are never given.
    mask: u32,
    /// The directory that the last entry went into.
    last: Option<(PathBuf, OwnedFd)>,
}

impl<'a> Unpacking<'a> {
    fn new(rules: &'a Rules, progress: Progress<'a>) -> Unpacking<'a> {
        Unpacking {
            rules,
            progress,
            tally: Tally::default(),
            piece: vec![0; PIECE],
            unfinished: 0,
            mask: if rules.owner.is_none() { umask() } else { 0 },
            last: None,
        }
    }

    fn all(&mut self, archive: &mut Reader<impl Read>, top: BorrowedFd<'_>) -> Result<(), Error> {
        while let Some(entry) = archive.next()? {
            let path = parts(&entry)?;
            self.count(&entry)?;
            let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let parent = match self.last.take() {
                Some((last, parent)) if last == above => parent,
                _ => self.descend(top, above)?,
            };
            if entry.kind == Kind::Directory {
                self.directory(parent.as_fd(), Path::new(name), &entry)?;
            } else if let Kind::HardLink(to) = &entry.kind {
                self.hard_link(top, parent.as_fd(), Path::new(name), to)?;
            } else {
                self.put(archive, parent.as_fd(), (above, Path::new(name)), &entry)?;
            }
            self.last = Some((above.to_owned(), parent));
        }
        Ok(())
    }

    /// Takes note of an entry before anything is written for it.
    fn count(&mut self, entry: &Entry) -> Result<(), Error> {
        if self.tally.entries >= self.rules.most_entries {
            return Err(Error::TooMuch { most: format!("{} files", self.rules.most_entries) });
        }
        if self.rules.most_bytes.saturating_sub(self.tally.bytes) < entry.size {
            return Err(Error::TooMuch { most: size::show(self.rules.most_bytes) });
        }
        self.tally.entries += 1;
        (self.progress)(&self.tally);
        Ok(())
    }

    /// Makes a file or a link.
    fn put(
        &mut self,
        archive: &mut Reader<impl Read>,
        parent: BorrowedFd<'_>,
        (above, name): (&Path, &Path),
        entry: &Entry,
    ) -> Result<(), Error> {
        let path = above.join(name);
        match &entry.kind {
            Kind::File => self.file(archive, parent, name, entry),
            Kind::Link(target) => {
                let depth = above.components().count();
                if self.rules.links == Links::Within && !stays_within(depth, target) {
                    self.tally.leave(&path, Why::LeadsOut);
                    return Ok(());
                }
                self.link(parent, name, target)
            }
            Kind::HardLink(_) => Err(Error::HardLink { name: words(path.as_os_str()) }),
            Kind::Directory | Kind::Other => {
                self.tally.leave(&path, Why::Kind);
                Ok(())
            }
        }
    }

    /// Opens a directory below `top`, making what is missing.
    fn descend(&self, top: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Error> {
        let mut here = self.open(top, Path::new(".")).map_err(failed("open", path))?;
        for part in path.components() {
            let part = Path::new(part.as_os_str());
            here = match self.open(here.as_fd(), part) {
                Err(Errno::NOENT) => self.make(here.as_fd(), part, 0o755).map_err(failed("make", path))?,
                other => other.map_err(failed("open", path))?,
            };
        }
        Ok(here)
    }

    fn open(&self, parent: BorrowedFd<'_>, name: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.rules.mounts == Mounts::Entered {
            return rustix::fs::openat(parent, name, flags, Mode::empty());
        }
        let within = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(parent, name, flags, Mode::empty(), within)
    }

    /// Makes a directory, or opens the one that is there. One that is new can always be entered by its owner.
    fn directory(&self, parent: BorrowedFd<'_>, name: &Path, entry: &Entry) -> Result<OwnedFd, Error> {
        match self.make(parent, name, entry.mode & 0o1777 & !self.mask | 0o700) {
            Err(Errno::EXIST) => self.open(parent, name).map_err(failed("open", name)),
            made => {
                let made = made.map_err(failed("make", name))?;
                set_attributes(&made, entry);
                Ok(made)
            }
        }
    }

    fn make(&self, parent: BorrowedFd<'_>, name: &Path, mode: u32) -> Result<OwnedFd, Errno> {
        rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        let made = self.open(parent, name)?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
        self.give(&made)?;
        Ok(made)
    }

    fn link(&mut self, parent: BorrowedFd<'_>, name: &Path, target: &[u8]) -> Result<(), Error> {
        let fresh = self.fresh_name();
        let made = rustix::fs::symlinkat(OsStr::from_bytes(target), parent, &fresh);
        let given = made.and_then(|()| self.give_at(parent, &fresh));
        let done = given.and_then(|()| rustix::fs::renameat(parent, &fresh, parent, name));
        if let Err(errno) = done {
            let _ = rustix::fs::unlinkat(parent, &fresh, AtFlags::empty());
            return Err(failed("make the link", name)(errno));
        }
        self.tally.files += 1;
        Ok(())
    }

    /// Another name for a file that is below the destination.
    fn hard_link(
        &mut self,
        top: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &Path,
        to: &[u8],
    ) -> Result<(), Error> {
        if self.rules.hard_links == HardLinks::Refused {
            return Err(Error::HardLink { name: words(name.as_os_str()) });
        }
        let to = parts(&Entry::new(to.to_vec(), Kind::File))?;
        let (Some(above), Some(own)) = (to.parent(), to.file_name()) else {
            return Err(Error::LeadsOut { name: words(to.as_os_str()) });
        };
        let from = self.descend(top, above)?;
        let fresh = self.fresh_name();
        let made = rustix::fs::linkat(&from, own, parent, &fresh, AtFlags::empty());
        made.and_then(|()| rustix::fs::renameat(parent, &fresh, parent, name))
            .map_err(failed("link", name))?;
        // Two names of one file are left as they are by a rename.
        let _ = rustix::fs::unlinkat(parent, &fresh, AtFlags::empty());
        self.tally.files += 1;
        Ok(())
    }

    fn file(
        &mut self,
        archive: &mut Reader<impl Read>,
        parent: BorrowedFd<'_>,
        name: &Path,
        entry: &Entry,
    ) -> Result<(), Error> {
        let nameless = nameless(parent);
        let (file, unfinished) = match nameless {
            Some(file) => (file, None),
            None => {
                let fresh = self.fresh_name();
                let flags =
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(parent, &fresh, flags, Mode::RUSR | Mode::WUSR);
                (made.map_err(failed("make", name))?, Some(fresh))
            }
        };
        let written = self
            .fill(archive, &file, name)
            .and_then(|()| self.finish(&file, entry).map_err(failed("finish", name)))
            .and_then(|()| {
                self.name(parent, (&file, unfinished.as_deref()), name).map_err(failed("make", name))
            });
        if let (Err(_), Some(fresh)) = (&written, &unfinished) {
            let _ = rustix::fs::unlinkat(parent, fresh, AtFlags::empty());
        }
        written?;
        self.tally.files += 1;
        Ok(())
    }

    fn fill(&mut self, archive: &mut Reader<impl Read>, file: &OwnedFd, name: &Path) -> Result<(), Error> {
        loop {
            let count = archive.read(&mut self.piece)?;
            let mut rest = self.piece.get(..count).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            while !rest.is_empty() {
                let written = rustix::io::retry_on_intr(|| rustix::io::write(file, rest));
                let written = written.map_err(failed("write", name))?;
                rest = rest.get(written..).unwrap_or_default();
            }
            self.tally.bytes = self.tally.bytes.saturating_add(u64::try_from(count).unwrap_or(0));
            (self.progress)(&self.tally);
        }
    }

    fn finish(&self, file: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
        set_attributes(file, entry);
        self.give(file)?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode & 0o777 & !self.mask))?;
        let time = Timespec { tv_sec: i64::try_from(entry.mtime).unwrap_or(0), tv_nsec: 0 };
        // A time that the file system does not know is no loss.
        let _ = rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time });
        Ok(())
    }

    /// Gives a whole file its name; what had it before is gone then.
    fn name(
        &mut self,
        parent: BorrowedFd<'_>,
        (file, unfinished): (&OwnedFd, Option<&Path>),
        name: &Path,
    ) -> Result<(), Errno> {
        if let Some(unfinished) = unfinished {
            return rustix::fs::renameat(parent, unfinished, parent, name);
        }
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = |name: &Path| rustix::fs::linkat(CWD, &own, parent, name, AtFlags::SYMLINK_FOLLOW);
        match link(name) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
        let fresh = self.fresh_name();
        link(&fresh)?;
        let renamed = rustix::fs::renameat(parent, &fresh, parent, name);
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(parent, &fresh, AtFlags::empty());
        }
        renamed
    }

    fn fresh_name(&mut self) -> PathBuf {
        self.unfinished += 1;
        PathBuf::from(format!("{UNFINISHED}{}-{}", std::process::id(), self.unfinished))
    }

    /// Gives a file to whom it is meant for. Where that power was taken away, it stays whose it is.
    fn give(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let Some((user, group)) = self.rules.owner else { return Ok(()) };
        let given = rustix::fs::fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        tolerate(given)
    }

    fn give_at(&self, parent: BorrowedFd<'_>, name: &Path) -> Result<(), Errno> {
        let Some((user, group)) = self.rules.owner else { return Ok(()) };
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        tolerate(rustix::fs::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW))
    }
}

/// The umask of this process, as the kernel tells it: asking for it by setting it would change it for a moment.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022) & 0o077
}

/// A file system that takes no extended attributes, or not so many, is no failure.
fn set_attributes(file: &OwnedFd, entry: &Entry) {
    for (name, value) in entry.attributes.iter().filter(|(name, _)| is_copied(name)) {
        let _ = rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty());
    }
}

fn tolerate(given: Result<(), Errno>) -> Result<(), Errno> {
    match given {
        Err(Errno::PERM | Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// A file without a name, where the file system and `/proc` allow to name it later.
fn nameless(parent: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, ".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::stat(own).ok().map(|_| file)
}

#[cfg(test)]
mod tests;
