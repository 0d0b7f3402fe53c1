//! A tree becomes an archive. Directories are opened part by part, links are entries and never followed, and only regular
//! files are read. Depth costs neither stack nor descriptors.

use crate::{
    Error, SEND, failed,
    tally::{Progress, Tally},
    tar::{self, Entry, Kind},
};
use airlock_protocol::copy::Why;
use rustix::{
    buffer::spare_capacity,
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{CStr, OsStr},
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

/// Bytes read at a time; a file that is not longer is told exactly, whatever its size says (as in `/proc`).
const PIECE: usize = 128 * 1024;

/// What is packed.
#[derive(Debug)]
pub enum Source {
    /// This directory and everything below it.
    Directory(OwnedFd),
    /// One entry of a directory.
    One {
        /// The directory.
        parent: OwnedFd,
        /// The entry.
        name: PathBuf,
    },
}

impl Source {
    /// What is at `path`; a link at its end is itself meant, unless `/` or `/.` follows it. `open` opens a directory.
    pub fn find(path: &Path, open: &dyn Fn(&Path) -> Result<OwnedFd, Errno>) -> Result<Source, Error> {
        let text = path.as_os_str().as_bytes();
        let is_directory = text.ends_with(b"/") || text.ends_with(b"/.");
        let (Some(Component::Normal(name)), false) = (path.components().next_back(), is_directory) else {
            return open(path).map(Source::Directory).map_err(failed("open", path));
        };
        let above = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = open(above.unwrap_or(Path::new("."))).map_err(failed("open", path))?;
        let told = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = told.map_err(failed("open", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(Source::One { parent, name: PathBuf::from(name) });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&parent, name, flags, Mode::empty());
        opened.map(Source::Directory).map_err(failed("open", path))
    }
}

/// Writes an archive of the source; its own entry is `.`, the others are `./…`.
pub fn pack(source: &Source, into: &mut impl Write, progress: Progress<'_>) -> Result<Tally, Error> {
    let mut packing = Packing { into, progress, tally: Tally::default(), piece: vec![0; PIECE] };
    match source {
        Source::Directory(top) => packing.tree(top.as_fd())?,
        Source::One { parent, name } => {
            let told = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
            let stat = told.map_err(failed("look at", name))?;
            packing.entry(parent.as_fd(), name, Path::new("."), &stat)?;
            if packing.tally.entries == 0 {
                let why = "is neither a file, a directory nor a link that can be read";
                return Err(Error::Place { name: crate::words(name.as_os_str()), why });
            }
        }
    }
    packing.send(&tar::END)?;
    packing.into.flush().map_err(failed(SEND, Path::new("the end")))?;
    Ok(packing.tally)
}

struct Packing<'a, W> {
    into: &'a mut W,
    progress: Progress<'a>,
    tally: Tally,
    piece: Vec<u8>,
}

impl<W: Write> Packing<'_, W> {
    fn tree(&mut self, top: BorrowedFd<'_>) -> Result<(), Error> {
        let mut waiting = vec![PathBuf::from(".")];
        while let Some(path) = waiting.pop() {
            let opened = match descend(top, &path) {
                Ok(opened) => opened,
                Err(errno) if path == Path::new(".") => return Err(failed("open", &path)(errno)),
                Err(errno) => {
                    self.unreadable(&path, errno);
                    continue;
                }
            };
            let stat = rustix::fs::fstat(&opened).map_err(failed("look at", &path))?;
            let (mode, attributes) = (stat.st_mode & 0o1777, attributes(&opened));
            self.head(Entry { mode, attributes, ..entry(&path, Kind::Directory, &stat) })?;
            self.directory(&opened, &path, &mut waiting)?;
        }
        Ok(())
    }

    /// Packs what is in a directory; directories wait.
    fn directory(&mut self, opened: &OwnedFd, path: &Path, waiting: &mut Vec<PathBuf>) -> Result<(), Error> {
        let listing = Dir::read_from(opened).map_err(failed("list", path))?;
        for listed in listing {
            let listed = listed.map_err(failed("list", path))?;
            let name = listed.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let below = path.join(text(name));
            if below.as_os_str().len() > tar::LONGEST_PATH - 2 {
                self.tally.leave(&below, Why::TooLong);
                continue;
            }
            match rustix::fs::statat(opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    waiting.push(below)
                }
                Ok(stat) => self.entry(opened.as_fd(), text(name), &below, &stat)?,
                // It is gone again.
                Err(Errno::NOENT) => {}
                Err(errno) => self.unreadable(&below, errno),
            }
        }
        Ok(())
    }

    /// Packs one entry that is no directory.
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &Path, path: &Path, stat: &Stat) -> Result<(), Error> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(parent, name, path),
            FileType::Symlink => match rustix::fs::readlinkat(parent, name, Vec::new()) {
                Ok(target) => {
                    self.tally.files += 1;
                    self.head(entry(path, Kind::Link(target.into_bytes()), stat))
                }
                Err(Errno::NOENT | Errno::INVAL) => Ok(()),
                Err(errno) => {
                    self.unreadable(path, errno);
                    Ok(())
                }
            },
            _ => {
                self.tally.leave(path, Why::Kind);
                Ok(())
            }
        }
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &Path, path: &Path) -> Result<(), Error> {
        // A pipe that stands there by now must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                self.unreadable(path, errno);
                return Ok(());
            }
        };
        let stat = rustix::fs::fstat(&opened).map_err(failed("look at", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            self.tally.leave(path, Why::Changed);
            return Ok(());
        }
        let first = match self.read(&opened) {
            Ok(first) => first,
            Err(errno) => {
                self.unreadable(path, errno);
                return Ok(());
            }
        };
        let told = u64::try_from(stat.st_size).unwrap_or(0);
        let size = if first < PIECE { u64::try_from(first).unwrap_or(0) } else { told };
        self.tally.files += 1;
        let (mode, attributes) = (stat.st_mode & 0o777, attributes(&opened));
        self.head(Entry { mode, attributes, ..entry(path, Kind::File, &stat) }.size(size))?;
        self.body(&opened, path, (first, size))?;
        self.send(tar::padding(size))
    }

    /// Sends exactly as many bytes as were announced, whatever becomes of the file meanwhile.
    fn body(&mut self, file: &OwnedFd, path: &Path, (first, size): (usize, u64)) -> Result<(), Error> {
        let (mut left, mut filled, mut is_short) = (size, first, false);
        while left > 0 {
            if filled == 0 && !is_short {
                filled = self.read(file).unwrap_or(0);
            }
            if filled == 0 {
                is_short = true;
                self.piece.fill(0);
                filled = PIECE;
            }
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(filled);
            let piece = self.piece.get(..count).unwrap_or_default();
            self.into.write_all(piece).map_err(failed(SEND, path))?;
            let count = u64::try_from(count).unwrap_or(0);
            left = left.saturating_sub(count);
            self.tally.bytes = self.tally.bytes.saturating_add(count);
            (self.progress)(&self.tally);
            filled = 0;
        }
        if is_short {
            self.tally.leave(path, Why::Changed);
        }
        Ok(())
    }

    /// Fills the piece as far as the file goes.
    fn read(&mut self, file: &OwnedFd) -> Result<usize, Errno> {
        let mut filled = 0;
        while let Some(rest) = self.piece.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut *rest))? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    fn head(&mut self, entry: Entry) -> Result<(), Error> {
        self.tally.entries += 1;
        (self.progress)(&self.tally);
        self.send(&tar::head(&entry))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.into.write_all(bytes).map_err(failed(SEND, Path::new("the archive")))
    }

    fn unreadable(&mut self, path: &Path, errno: Errno) {
        let why = match errno {
            // It became something else while we looked.
            Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::NXIO => Why::Changed,
            _ => Why::Unreadable,
        };
        self.tally.leave(path, why);
    }
}

/// Opens a directory below `top` part by part; no part may be a link.
fn descend(top: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(top, ".", flags, Mode::empty())?;
    for part in path.components().skip(1) {
        here = rustix::fs::openat(&here, part.as_os_str(), flags, Mode::empty())?;
    }
    Ok(here)
}

/// The extended attributes that are copied, as many as fit. A file system that has none is no failure.
fn attributes(opened: &OwnedFd) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = Vec::with_capacity(tar::MOST_ATTRIBUTES);
    if rustix::fs::flistxattr(opened, spare_capacity(&mut names)).is_err() {
        return Vec::new();
    }
    let mut left = tar::MOST_ATTRIBUTES;
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| tar::is_copied(name)) {
        let mut value = Vec::with_capacity(tar::MOST_ATTRIBUTES);
        let read = rustix::fs::fgetxattr(opened, name, spare_capacity(&mut value));
        let cost = name.len() + value.len();
        if read.is_ok() && cost <= left {
            left -= cost;
            value.shrink_to_fit();
            all.push((name.to_vec(), value));
        }
    }
    all
}

fn entry(path: &Path, kind: Kind, stat: &Stat) -> Entry {
    let mtime = u64::try_from(stat.st_mtime).unwrap_or(0);
    Entry { mtime, ..Entry::new(path.as_os_str().as_bytes().to_vec(), kind) }
}

fn text(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}
