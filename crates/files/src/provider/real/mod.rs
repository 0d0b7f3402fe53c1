//! A directory of the host. Every call is about one descriptor and one name in it, so that nothing outside is ever
//! reached: not by a link, `..`, a rename meanwhile, or a mount below. As host root each call is made as the directory's
//! owner, with the owner's power and no more.
//!
//! Or a whole root, for a machine of its own: then mounts are crossed, owners are those of the files, and what tells of
//! this kernel is not shown.

mod calls;
mod known;
mod locks;
mod nodes;
mod places;
mod reach;
#[cfg(test)]
mod tests;

use super::{
    Provider,
    types::{
        Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Lock, LockKind, LockRange, Name,
        New, Node, Remove, Rename, Result, Room, Seek, SetAttribute, Take, Time, Want,
    },
};
use calls::{flags, read_all, room, timespec, write_all};
pub use known::{Known, KnownNode, KnownOpen};
use locks::Locks;
use nodes::{Bounds, Found, MOST_NODES, Nodes};
use reach::{Devices, Reach};
use rustix::{
    buffer::spare_capacity,
    fs::{
        AtFlags, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Timestamps,
        XattrFlags,
    },
    io::Errno,
};
use std::{
    collections::HashMap,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

/// How long the kernel inside believes what it was told: others on the host change these files too.
const VALID: Duration = Duration::from_secs(1);
/// Bits that let a file run as its owner.
const SET_ID: u32 = 0o6000;
/// Largest value and largest list of extended attributes (xattr(7)).
const MOST_ATTRIBUTE: usize = 64 << 10;
/// Most descriptors of files that are only known.
const MOST_PLACES: u64 = 4096;
/// Most files that are open.
const MOST_OPEN: u64 = 8192;
/// How many times as many of both a whole root has.
const WHOLE: u64 = 8;
/// Most bytes that are copied at a time: others wait for an answer too.
const MOST_COPIED: u64 = 16 << 20;

/// Whose the files are: this user of the host is that one inside. All others are nobody's inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User and group on the host.
    pub host: (u32, u32),
    /// User and group inside.
    pub inside: Caller,
}

/// A directory of the host.
pub struct Real {
    reach: Reach,
    root: OwnedFd,
    /// `/proc/self/fd`: descriptors by name, for calls that take only names.
    descriptors: OwnedFd,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<Handle, Open>>,
    locks: Mutex<Locks>,
    next: AtomicU64,
    most_open: usize,
}

#[derive(Clone)]
enum Open {
    File(Arc<OwnedFd>, Node),
    /// One listing at a time: the descriptor has one place.
    Directory(Arc<Mutex<OwnedFd>>, Node),
    /// A directory that shows nothing.
    Sealed(Node),
}

impl Real {
    /// Serves what `root`, a directory, stands for.
    pub fn new(root: OwnedFd, owner: Owner) -> Result<Real> {
        Real::with(root, Reach::directory(owner), MOST_NODES)
    }

    /// Serves everything below `root`, the root of this process, as it is, but for what every machine has of its own:
    /// `/proc`, `/sys`, `/dev` and other doors to the kernel are empty directories. What is made is the caller's, as far as
    /// this process may give files away.
    ///
    /// The process's mask should be 0. Without the power over set-id bits (`CAP_FSETID`) some cannot be set.
    pub fn whole(root: OwnedFd) -> Result<Real> {
        Real::with(root, Reach::Whole(Devices::default()), MOST_NODES)
    }

    fn with(root: OwnedFd, reach: Reach, nodes: usize) -> Result<Real> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&root)?;
        if Kind::from_bits(stat.st_mode) != Some(Kind::Directory) {
            return Err(Errno::NOTDIR);
        }
        let allowed =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let times = if matches!(reach, Reach::Whole(_)) { WHOLE } else { 1 };
        let bound = |most: u64| usize::try_from((most * times).min(allowed / 4)).unwrap_or(64);
        let most = Bounds { nodes, files: bound(MOST_PLACES) };
        let nodes = Nodes::new(root.try_clone().map_err(|_| Errno::MFILE)?, &stat, reach.way(), most);
        Ok(Real {
            reach,
            root,
            descriptors,
            nodes: Mutex::new(nodes),
            open: Mutex::default(),
            locks: Mutex::default(),
            next: AtomicU64::new(0),
            most_open: bound(MOST_OPEN),
        })
    }
}

impl Provider for Real {
    fn caching(&self) -> Caching {
        Caching { valid: VALID, alone: false, names: matches!(self.reach, Reach::Whole(_)) }
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        let directory = self.directory(parent)?;
        self.entry(parent, name, self.find(directory.as_fd(), name)?)
    }

    fn forget(&self, node: Node, times: u64) {
        lock(&self.nodes).forget(node, times);
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        self.told(node, self.place(node)?.as_fd())
    }

    fn change(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        let place = self.changed_place(node)?;
        let place = place.as_fd();
        self.reach.change_owner(place, change, &self.described(place)?)?;
        if let Some(mode) = change.mode {
            self.reach.check_mode(mode)?;
            match lock(&self.nodes).kind(node)? {
                Kind::Link => return Err(Errno::OPNOTSUPP),
                _ => self.set_mode(place, mode)?,
            }
        }
        if let Some(size) = change.size {
            self.resize(place, handle, size)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let timestamps = Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            rustix::fs::utimensat(place, "", &timestamps, AtFlags::EMPTY_PATH)?;
        }
        self.told(node, place)
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(self.place(node)?, "", Vec::new())?;
        Ok(target.into_bytes())
    }

    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, caller: Caller) -> Result<Entry> {
        let directory = self.changed_directory(parent, name)?;
        match new {
            New::Link { target } => {
                self.reach.make(caller, || rustix::fs::symlinkat(target, &directory, name.bytes()))?;
            }
            New::Plain { kind: Kind::File, mode } => {
                drop(self.reach.new_file(directory.as_fd(), name, mode, caller)?);
                return self.entry(parent, name, self.find(directory.as_fd(), name)?);
            }
            New::Plain { kind: Kind::Directory, mode } => {
                self.reach.check_mode(mode)?;
                let mode = Mode::from_raw_mode(mode);
                self.reach.make(caller, || rustix::fs::mkdirat(&directory, name.bytes(), mode))?;
            }
            New::Plain { kind, mode } => {
                self.reach.check_kind(kind)?;
                let kind = FileType::from_raw_mode(kind.bits());
                let mode = Mode::from_raw_mode(mode & !SET_ID);
                self.reach.make(caller, || rustix::fs::mknodat(&directory, name.bytes(), kind, mode, 0))?;
            }
        }
        let mut made = self.find(directory.as_fd(), name)?;
        self.reach.give(directory.as_fd(), made.file.as_fd(), caller)?;
        made.stat = rustix::fs::fstat(&made.file)?;
        self.entry(parent, name, made)
    }

    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()> {
        let flags = match what {
            Remove::File => AtFlags::empty(),
            Remove::Directory => AtFlags::REMOVEDIR,
        };
        rustix::fs::unlinkat(self.changed_directory(parent, name)?, name.bytes(), flags)
    }

    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()> {
        let (source, target) = (self.changed_directory(from.0, from.1)?, self.changed_directory(to.0, to.1)?);
        let flags = match how {
            Rename::Replace => RenameFlags::empty(),
            Rename::Keep => RenameFlags::NOREPLACE,
            Rename::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&source, from.1.bytes(), &target, to.1.bytes(), flags)?;
        let mut nodes = lock(&self.nodes);
        let moved = rustix::fs::statat(&target, to.1.bytes(), AtFlags::SYMLINK_NOFOLLOW);
        moved.iter().for_each(|stat| nodes.renamed(stat, to.0, to.1));
        if how == Rename::Exchange {
            let other = rustix::fs::statat(&source, from.1.bytes(), AtFlags::SYMLINK_NOFOLLOW);
            other.iter().for_each(|stat| nodes.renamed(stat, from.0, from.1));
        }
        Ok(())
    }

    fn link(&self, node: Node, parent: Node, name: Name<'_>) -> Result<Entry> {
        let (place, directory) = (self.place(node)?, self.changed_directory(parent, name)?);
        if lock(&self.nodes).kind(node)? == Kind::Directory {
            return Err(Errno::PERM);
        }
        let old = place.as_raw_fd().to_string();
        rustix::fs::linkat(&self.descriptors, old, &directory, name.bytes(), AtFlags::SYMLINK_FOLLOW)?;
        self.entry(parent, name, self.find(directory.as_fd(), name)?)
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        let place = self.place(node)?;
        if lock(&self.nodes).kind(node)? != Kind::File {
            return Err(Errno::ACCESS);
        }
        // In a whole root devices are served as files; their mount refuses them already.
        if matches!(self.reach, Reach::Whole(_))
            && !FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_file()
        {
            return Err(Errno::ACCESS);
        }
        if (want.write || want.truncate) && matches!(self.reach, Reach::Directory { .. }) {
            self.drop_set_id(place.as_fd())?;
        }
        let file = self.reopen(place.as_fd(), flags(want))?;
        self.keep(Open::File(Arc::new(file), node))
    }

    fn create(
        &self,
        (parent, name): (Node, Name<'_>),
        mode: u32,
        want: Want,
        caller: Caller,
    ) -> Result<(Entry, Handle)> {
        let directory = self.changed_directory(parent, name)?;
        let file = match self.reach.new_file(directory.as_fd(), name, mode, caller) {
            Ok(file) => file,
            Err(Errno::EXIST) if !want.exclusive => {
                let entry = self.lookup(parent, name)?;
                let opened = self.open(entry.node, want);
                let forgotten = |err| {
                    self.forget(entry.node, 1);
                    err
                };
                return Ok((entry.clone(), opened.map_err(forgotten)?));
            }
            Err(err) => return Err(err),
        };
        let place = self.reopen(file.as_fd(), OFlags::PATH)?;
        let stat = rustix::fs::fstat(&place)?;
        let entry =
            self.entry(parent, name, Found { file: place, stat, kind: Kind::File, is_sealed: false })?;
        if want.append {
            rustix::fs::fcntl_setfl(&file, OFlags::APPEND | OFlags::NONBLOCK)?;
        }
        let handle = self.keep(Open::File(Arc::new(file), entry.node))?;
        Ok((entry, handle))
    }

    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
        read_all(&*self.file(handle)?, offset, size, into)
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        write_all(&*self.file(handle)?, offset, bytes)
    }

    fn sync(&self, handle: Handle) -> Result<()> {
        rustix::fs::fsync(self.file(handle)?)
    }

    fn allocate(&self, handle: Handle, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let mode = match how {
            Allocate::Grow => FallocateFlags::empty(),
            Allocate::Keep => FallocateFlags::KEEP_SIZE,
            Allocate::Punch => FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
            Allocate::Zero => FallocateFlags::ZERO_RANGE,
        };
        rustix::fs::fallocate(self.file(handle)?, mode, offset, length)
    }

    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(self.file(handle)?, from)
    }

    fn copy(&self, from: (Handle, u64), to: (Handle, u64), length: u64) -> Result<usize> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        let length = usize::try_from(length.min(MOST_COPIED)).unwrap_or(0);
        rustix::fs::copy_file_range(&source, Some(&mut { from.1 }), &target, Some(&mut { to.1 }), length)
    }

    fn release(&self, handle: Handle) {
        self.close(handle);
    }

    fn is_unchanged(&self, handle: Handle) -> bool {
        let opened = lock(&self.open).get(&handle).cloned();
        let Some(Open::File(file, node)) = opened.filter(|_| matches!(self.reach, Reach::Whole(_))) else {
            return false;
        };
        let stat = rustix::fs::fstat(file);
        stat.is_ok_and(|stat| lock(&self.nodes).is_unchanged(node, &stat, Time::now()))
    }

    fn backing(&self, handle: Handle) -> Option<OwnedFd> {
        self.file(handle).ok()?.try_clone().ok()
    }

    fn keeps_locks(&self) -> bool {
        true
    }

    fn set_lock(&self, handle: Handle, lock: &Lock) -> Result<()> {
        self.lock(handle, lock)
    }

    fn locked(&self, handle: Handle, lock: &Lock) -> Result<Option<(LockRange, LockKind)>> {
        self.in_the_way(handle, lock)
    }

    fn unlock(&self, handle: Handle, owner: u64) {
        if let Some(Open::File(_, node)) = lock(&self.open).get(&handle) {
            lock(&self.locks).forget(*node, owner);
        }
    }

    fn open_directory(&self, node: Node) -> Result<Handle> {
        let place = self.place(node)?;
        if lock(&self.nodes).is_sealed(node) {
            return self.keep(Open::Sealed(node));
        }
        let directory = self.reopen(place.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.keep(Open::Directory(Arc::new(Mutex::new(directory)), node))
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        self.reach.act()?;
        let opened = lock(&self.open).get(&handle).cloned();
        let (directory, node) = match opened {
            Some(Open::Directory(directory, node)) => (directory, node),
            Some(Open::Sealed(_)) => return Ok(()),
            _ => return Err(Errno::BADF),
        };
        let device = lock(&self.nodes).device(node).unwrap_or(0);
        let directory = lock(&directory);
        rustix::fs::seek(&*directory, SeekFrom::Start(from))?;
        let mut buffer = [const { MaybeUninit::uninit() }; 32 << 10];
        let mut entries = RawDir::new(&*directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Some(listed) = self.reach.listed(&directory, device, &entry) else { continue };
            if !take(listed) {
                break;
            }
        }
        Ok(())
    }

    fn release_directory(&self, handle: Handle) {
        self.close(handle);
    }

    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.reach.check_attribute(name, Errno::NODATA)?;
        let place = self.place(node)?;
        let mut value = Vec::with_capacity(MOST_ATTRIBUTE);
        rustix::fs::getxattr(Real::path(place.as_fd()), name, spare_capacity(&mut value))?;
        Ok(value)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let place = self.place(node)?;
        let mut names = Vec::with_capacity(MOST_ATTRIBUTE);
        rustix::fs::listxattr(Real::path(place.as_fd()), spare_capacity(&mut names))?;
        let own = |name: &&[u8]| self.reach.check_attribute(name, Errno::NODATA).is_ok();
        Ok(names.split(|byte| *byte == 0).filter(own).map(<[u8]>::to_vec).collect())
    }

    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        self.reach.check_attribute(name, Errno::OPNOTSUPP)?;
        let flags = match how {
            SetAttribute::Any => XattrFlags::empty(),
            SetAttribute::Create => XattrFlags::CREATE,
            SetAttribute::Replace => XattrFlags::REPLACE,
        };
        rustix::fs::setxattr(Real::path(self.changed_place(node)?.as_fd()), name, value, flags)
    }

    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        self.reach.check_attribute(name, Errno::NODATA)?;
        rustix::fs::removexattr(Real::path(self.changed_place(node)?.as_fd()), name)
    }

    fn room(&self) -> Result<Room> {
        room(self.root.as_fd())
    }

    fn room_at(&self, node: Node) -> Result<Room> {
        room(self.place(node)?.as_fd())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
