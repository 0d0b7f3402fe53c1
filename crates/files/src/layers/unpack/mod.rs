//! A tree of OCI layers. Every byte is hostile: nothing leaves the tree, no device comes in, and whatever is there is
//! bounded.
//!
//! Layers that another sandbox wrote come one upon the other into one tree ([`Way::Stacked`]); no set-id bit comes with
//! them, and no link is followed. A layer of an image comes alone ([`Way::Alone`]): its tree is what an overlay has below.
//! Links that it makes itself are followed as docker does, with the tree as their root.

mod contents;
mod place;

use super::{
    Error,
    archive::{Entry, Kind, Reader, Time, refused},
    compression::Compression,
    failed, pack,
    tree::{self, make_whiteout, set_attribute},
    walk::open_below,
};
use place::Here;
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::{CString, OsStr},
    io::{self, BufRead, BufReader, Read},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// What may still be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes, of which each entry takes some besides its own.
    pub bytes: u64,
}

/// How layers become a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One upon the other, from a sandbox: nothing in them gives anybody more power.
    Stacked,
    /// One by itself, of an image: whose its files are is as the layer says.
    Alone(Owners),
}

/// Whose the files of an image are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// As the layer says, where there is such an id.
    AsTold,
    /// All belong to the one id there is.
    One,
}

/// What came of a layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Entries in it.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Device nodes, which were left out.
    pub devices: u64,
    /// Entries that belong to an id which is not there: root's, without set-id bits.
    pub foreign: u64,
    /// Extended attributes that were left out.
    pub attributes: u64,
}

/// What an entry costs besides its bytes.
const ENTRY: u64 = 1 << 10;
/// Most bytes that are kept in memory for the times of directories.
const MOST_HELD: usize = 128 << 20;
/// How much of a stream is read at once.
const PIECE: usize = 64 << 10;

/// A tree that layers are unpacked into.
pub struct Unpacking<'a> {
    top: BorrowedFd<'a>,
    /// Where that goes which is no longer there.
    trash: BorrowedFd<'a>,
    way: Way,
    moved: u64,
    /// The directory that was used last.
    last: Option<Here>,
    /// Where the layer's part stands inside.
    prefix: Vec<CString>,
    /// When directories were changed: told at the end, for making entries changes it.
    times: Vec<(Vec<CString>, Time)>,
    held: usize,
    told: Told,
}

impl<'a> Unpacking<'a> {
    /// Into `top`; `trash` is an empty directory of the same file system.
    pub fn new(top: BorrowedFd<'a>, trash: BorrowedFd<'a>, way: Way) -> Unpacking<'a> {
        Unpacking {
            top,
            trash,
            way,
            moved: 0,
            last: None,
            prefix: Vec::new(),
            times: Vec::new(),
            held: 0,
            told: Told::default(),
        }
    }

    /// Unpacks one more layer, compressed by zstd, of which only what is below `prefix` is taken: an entry elsewhere is
    /// refused.
    pub fn layer(
        &mut self,
        compressed: impl Read,
        prefix: &[u8],
        bounds: &mut Bounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let broken = |err: io::Error| failed("read", b"the archive")(err);
        let decoder =
            Compression::Zstd.decode(BufReader::with_capacity(PIECE, compressed)).map_err(broken)?;
        let plain = Limited { from: decoder, bounds: bounds.bytes };
        self.prefix = components(prefix).map_err(broken)?;
        self.archive(BufReader::with_capacity(PIECE, plain), bounds, progress).map(drop)
    }

    /// Unpacks an archive and reads it to its very end. `progress` hears of bytes of files.
    pub fn archive(
        &mut self,
        from: impl BufRead,
        bounds: &mut Bounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Told, Error> {
        let broken = |err: io::Error| failed("read", b"the archive")(err);
        let mut reader = Reader::new(from);
        while let Some(entry) = reader.next_entry().map_err(broken)? {
            spend(bounds, ENTRY.saturating_add(entry.size)).map_err(failed("unpack", &entry.path))?;
            self.told.entries += 1;
            self.told.bytes += entry.size;
            self.told.attributes += entry.other_attributes;
            self.entry(&mut reader, &entry).map_err(failed("unpack", &entry.path))?;
            progress(entry.size);
        }
        reader.drain().map_err(broken)?;
        self.last = None;
        self.settle_times();
        Ok(std::mem::take(&mut self.told))
    }

    fn entry<R: BufRead>(&mut self, reader: &mut Reader<R>, entry: &Entry) -> io::Result<()> {
        let path = self.path_of(&entry.path)?;
        let Some(path) = path.strip_prefix(self.prefix.as_slice()) else {
            // The directories that lead to it are made anyway.
            let leads = self.prefix.starts_with(&path) && entry.kind == Kind::Directory;
            return if leads { Ok(()) } else { Err(refused("it is outside of its part")) };
        };
        let Some((name, parents)) = path.split_last() else { return self.top_itself(entry) };
        if self.way != Way::Stacked && is_of_aufs(path) {
            return Ok(());
        }
        let parent = self.open(parents, entry.time)?;
        if name.as_bytes() == pack::OPAQUE {
            return self.make_opaque(&parent);
        }
        match name.as_bytes().strip_prefix(pack::WHITEOUT) {
            Some(gone) => self.make_gone(&parent, gone),
            None => self.make(reader, entry, &parent, path),
        }
    }

    fn make<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        entry: &Entry,
        parent: &OwnedFd,
        path: &[CString],
    ) -> io::Result<()> {
        let Some(name) = path.last() else { return Ok(()) };
        match entry.kind {
            Kind::Directory => {
                let made = self.directory(parent, name)?;
                self.give(made.as_fd(), entry)?;
                return self.hold_time(path.to_vec(), entry.time);
            }
            Kind::File => {
                let file: std::fs::File =
                    self.fresh(parent, name, || tree::make_file(parent.as_fd(), name))?;
                contents::write(reader, entry, &file)?;
                self.give(file.as_fd(), entry)?;
                return Ok(rustix::fs::futimens(&file, &times(entry.time))?);
            }
            Kind::Link => return self.link(&entry.link, parent, name),
            Kind::Symlink => {
                let target = &entry.link;
                if target.is_empty() || target.len() >= LONGEST_LINK {
                    return Err(refused("it leads nowhere"));
                }
                let target = OsStr::from_bytes(target);
                self.fresh(parent, name, || Ok(rustix::fs::symlinkat(target, parent, name)?))?;
            }
            Kind::Fifo => {
                let mode = Mode::from_raw_mode(entry.mode & 0o777);
                let make = || Ok(rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0)?);
                self.fresh(parent, name, make)?;
                rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
            }
            Kind::Device if self.way == Way::Stacked => return Err(refused("it is a device")),
            Kind::Device => {
                // What was there before has gone all the same.
                self.take_away(parent, name)?;
                self.told.devices += 1;
                return Ok(());
            }
        }
        self.own(entry, |user, group| {
            rustix::fs::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
        })?;
        Ok(rustix::fs::utimensat(parent, name, &times(entry.time), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// A further name of something that was unpacked before.
    fn link(&mut self, target: &[u8], parent: &OwnedFd, name: &CString) -> io::Result<()> {
        let target = self.path_of(target)?;
        let target = target
            .strip_prefix(self.prefix.as_slice())
            .ok_or_else(|| refused("its first name is outside of its part"))?;
        let (first, parents) = target.split_last().ok_or_else(|| refused("it has no first name"))?;
        let missing = || refused("its first name is not in this layer");
        let from = self.open_there(parents).map_err(|_| missing())?;
        let found = rustix::fs::statat(&from, first, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        match (FileType::from_raw_mode(found.st_mode), self.way) {
            (FileType::RegularFile, _) | (FileType::Symlink | FileType::Fifo, Way::Alone(_)) => {}
            _ => return Err(refused("its first name is no file")),
        }
        let link = || match rustix::fs::linkat(&from, first, parent, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Err(refused("it is its own first name")),
            other => Ok(other?),
        };
        self.fresh(parent, name, link)
    }

    /// Everything below a directory goes in whatever lies below the layer.
    fn make_opaque(&mut self, directory: &OwnedFd) -> io::Result<()> {
        if self.way == Way::Stacked {
            let listing = open_below(directory.as_fd(), c".")?;
            let names: Vec<CString> = rustix::fs::Dir::read_from(&listing)?
                .filter_map(|entry| Some(entry.ok()?.file_name().to_owned()))
                .filter(|name| name.as_c_str() != c"." && name.as_c_str() != c"..")
                .collect();
            names.iter().try_for_each(|name| self.take_away(directory, name))?;
        }
        set_attribute(directory.as_fd(), tree::OPAQUE, b"y").map(drop)
    }

    /// Something goes in whatever lies below the layer. In the layer itself it stays.
    fn make_gone(&mut self, parent: &OwnedFd, gone: &[u8]) -> io::Result<()> {
        if gone.is_empty() || gone == b"." || gone == b".." || gone.starts_with(pack::WHITEOUT) {
            return Ok(());
        }
        let gone = CString::new(gone)?;
        if self.way == Way::Stacked {
            self.take_away(parent, &gone)?;
        }
        match make_whiteout(parent.as_fd(), &gone) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => match open_below(parent.as_fd(), &gone)
            {
                Ok(directory) => self.make_opaque(&directory),
                Err(_) => Ok(()),
            },
            other => other,
        }
    }

    fn top_itself(&mut self, entry: &Entry) -> io::Result<()> {
        if entry.kind != Kind::Directory {
            return Err(refused("it has no name"));
        }
        self.give(self.top, entry)?;
        self.hold_time(Vec::new(), entry.time)
    }

    /// Owner, mode and attributes, in this order: a change of owner takes set-id bits and capabilities away.
    fn give(&mut self, file: BorrowedFd<'_>, entry: &Entry) -> io::Result<()> {
        let is_own = self.own(entry, |user, group| rustix::fs::fchown(file, Some(user), Some(group)))?;
        let mode = match self.way {
            Way::Alone(_) if is_own => entry.mode & 0o7777,
            _ => entry.mode & 0o1777,
        };
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
        for (name, value) in &entry.attributes {
            let is_power = name.as_c_str() == tree::CAPABILITY;
            let is_wanted = !is_power || (is_own && self.way != Way::Stacked && entry.kind == Kind::File);
            if !is_wanted || !set_attribute(file, name, value)? {
                self.told.attributes += 1;
            }
        }
        Ok(())
    }

    /// Gives something its owner. `false` where there is no such id: it is root's then.
    fn own(&mut self, entry: &Entry, give: impl FnOnce(Uid, Gid) -> Result<(), Errno>) -> io::Result<bool> {
        if self.way == Way::Alone(Owners::One) {
            return Ok(true);
        }
        let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        let given = match (id(entry.user), id(entry.group)) {
            (Some(user), Some(group)) => give(Uid::from_raw(user), Gid::from_raw(group)),
            _ => Err(Errno::INVAL),
        };
        match given {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::PERM) => {
                self.told.foreign += 1;
                Ok(false)
            }
            Err(err) => Err(err.into()),
        }
    }

    fn hold_time(&mut self, path: Vec<CString>, time: Time) -> io::Result<()> {
        self.held += path.iter().map(|name| name.as_bytes().len() + 32).sum::<usize>() + 64;
        if self.held > MOST_HELD {
            return Err(refused("there are too many directories"));
        }
        self.times.push((path, time));
        Ok(())
    }

    /// A directory that is no longer there, or no longer one, has no time.
    fn settle_times(&mut self) {
        for (path, time) in std::mem::take(&mut self.times) {
            if let Ok(directory) = self.open_itself(&path) {
                let _ = rustix::fs::futimens(&directory, &times(time));
            }
        }
        self.held = 0;
    }
}

/// Longest target of a symbolic link, with its closing zero.
const LONGEST_LINK: usize = 4096;

/// What only aufs ever read.
fn is_of_aufs(path: &[CString]) -> bool {
    let is_own = |name: &[u8]| name.starts_with(b".wh..wh.") && name != pack::OPAQUE;
    path.iter().any(|name| is_own(name.as_bytes()))
}

pub use place::components;

fn times(time: Time) -> Timestamps {
    let time = Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds };
    Timestamps { last_access: time, last_modification: time }
}

fn spend(bounds: &mut Bounds, bytes: u64) -> io::Result<()> {
    match bounds.bytes.checked_sub(bytes) {
        Some(left) => {
            bounds.bytes = left;
            Ok(())
        }
        None => Err(refused("it holds more than it may")),
    }
}

/// Ends an archive that unpacks to more than the bound, whatever it calls it.
#[derive(Debug)]
pub struct Limited<R> {
    /// What is read.
    pub from: R,
    /// Bytes that may still come.
    pub bounds: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        let left = self.bounds.checked_sub(u64::try_from(count).unwrap_or(u64::MAX));
        self.bounds = left.ok_or_else(|| refused("it holds more than it may"))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
