//! A directory of the host. Every call is about one descriptor and one name in it, so that nothing outside is ever
//! reached: not by a link, `..`, a rename meanwhile, or a mount below. As host root each call is made as the directory's
//! owner, with the owner's power and no more.

mod calls;
mod locks;
mod nodes;

use super::{
    Provider,
    types::{
        Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Listed, Lock, LockKind,
        LockRange, NOBODY, Name, New, Node, Remove, Rename, Result, Room, Seek, SetAttribute, Take, Time,
        Want,
    },
};
use airlock_linux::fuse;
use calls::{flags, kind_of, new_file, own_attribute, read_all, timespec, write_all};
use locks::Locks;
use nodes::{Found, Nodes, find};
use rustix::{
    buffer::spare_capacity,
    fs::{
        AtFlags, FallocateFlags, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat, Timestamps, XattrFlags,
    },
    io::Errno,
};
use std::{
    collections::HashMap,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long the kernel inside believes what it was told: others on the host change these files too.
const VALID: Duration = Duration::from_secs(1);
/// Bits that never come from inside.
const SET_ID: u32 = 0o6000;
/// Largest value and largest list of extended attributes (xattr(7)).
const MOST_ATTRIBUTE: usize = 64 << 10;
/// Most descriptors of files that are only known.
const MOST_PLACES: u64 = 4096;
/// Most files that are open.
const MOST_OPEN: u64 = 8192;

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
    owner: Owner,
    /// The groups that are the user's inside: the directory's, and that of what is made in it.
    groups: [u32; 2],
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
}

impl Real {
    /// Serves what `root`, a directory, stands for.
    pub fn new(root: OwnedFd, owner: Owner) -> Result<Real> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&root)?;
        if Kind::from_bits(stat.st_mode) != Some(Kind::Directory) {
            return Err(Errno::NOTDIR);
        }
        let allowed =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let bound = |most: u64| usize::try_from(most.min(allowed / 4)).unwrap_or(64);
        let nodes = Nodes::new(root.try_clone().map_err(|_| Errno::MFILE)?, &stat, bound(MOST_PLACES));
        let made = match rustix::process::geteuid().is_root() {
            true => owner.host.1,
            false => rustix::process::getegid().as_raw(),
        };
        Ok(Real {
            owner,
            groups: [owner.host.1, made],
            root,
            descriptors,
            nodes: Mutex::new(nodes),
            open: Mutex::default(),
            locks: Mutex::default(),
            next: AtomicU64::new(0),
            most_open: bound(MOST_OPEN),
        })
    }

    /// Everything is done as the owner.
    fn act(&self) -> Result<()> {
        fuse::act_as(self.owner.host.0, self.owner.host.1).map_err(|_| Errno::PERM)
    }

    fn place(&self, node: Node) -> Result<Arc<OwnedFd>> {
        self.act()?;
        lock(&self.nodes).file(node)
    }

    fn entry(&self, parent: Node, name: Name<'_>, found: Found) -> Result<Entry> {
        let attributes = self.shown(&found.stat, found.kind);
        let node = lock(&self.nodes).note(parent, name, found)?;
        Ok(Entry { node, attributes })
    }

    fn shown(&self, stat: &Stat, kind: Kind) -> Attributes {
        let Owner { host, inside } = self.owner;
        let time = |seconds: i64, nanos: u64| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        Attributes {
            inode: stat.st_ino,
            kind,
            mode: stat.st_mode & 0o1777,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            user: if stat.st_uid == host.0 { inside.user } else { NOBODY },
            group: if self.groups.contains(&stat.st_gid) { inside.group } else { NOBODY },
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    fn described(&self, place: BorrowedFd<'_>) -> Result<Attributes> {
        let stat = rustix::fs::fstat(place)?;
        Ok(self.shown(&stat, Kind::from_bits(stat.st_mode).ok_or(Errno::STALE)?))
    }

    /// Opens the very file that a place stands for.
    fn reopen(&self, place: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.descriptors, place.as_raw_fd().to_string(), flags, Mode::empty())
    }

    /// A file that is about to be written loses what lets it run as its owner.
    fn drop_set_id(&self, place: BorrowedFd<'_>) -> Result<()> {
        let mode = rustix::fs::fstat(place)?.st_mode;
        if mode & SET_ID == 0 || Kind::from_bits(mode) != Some(Kind::File) {
            return Ok(());
        }
        self.set_mode(place, mode & 0o1777)
    }

    fn set_mode(&self, place: BorrowedFd<'_>, mode: u32) -> Result<()> {
        let name = place.as_raw_fd().to_string();
        rustix::fs::chmodat(&self.descriptors, name, Mode::from_raw_mode(mode), AtFlags::empty())
    }

    fn keep(&self, open: Open) -> Result<Handle> {
        let mut all = lock(&self.open);
        if all.len() >= self.most_open {
            return Err(Errno::NFILE);
        }
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        let (Open::File(_, node) | Open::Directory(_, node)) = open;
        lock(&self.nodes).pin(node);
        all.insert(handle, open);
        Ok(handle)
    }

    fn close(&self, handle: Handle) {
        let closed = lock(&self.open).remove(&handle);
        let Some(Open::File(_, node) | Open::Directory(_, node)) = closed else { return };
        if lock(&self.nodes).unpin(node) == 0 {
            lock(&self.locks).closed(node);
        }
    }

    fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>> {
        self.act()?;
        match lock(&self.open).get(&handle) {
            Some(Open::File(file, _)) => Ok(file.clone()),
            _ => Err(Errno::BADF),
        }
    }

    fn resize(&self, place: BorrowedFd<'_>, handle: Option<Handle>, size: u64) -> Result<()> {
        self.drop_set_id(place)?;
        let open = handle.and_then(|handle| self.file(handle).ok());
        if let Some(file) = open
            && rustix::fs::ftruncate(&file, size).is_ok()
        {
            return Ok(());
        }
        if self.described(place)?.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        rustix::fs::ftruncate(self.reopen(place, OFlags::WRONLY)?, size)
    }

    fn refuse_other_owners(&self, place: BorrowedFd<'_>, change: &Change) -> Result<()> {
        let now = self.described(place)?;
        let is_same = change.user.is_none_or(|user| user == now.user)
            && change.group.is_none_or(|group| group == now.group);
        if is_same { Ok(()) } else { Err(Errno::PERM) }
    }

    /// The name of a descriptor for calls on extended attributes.
    fn path(place: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", place.as_raw_fd())
    }
}

impl Provider for Real {
    fn caching(&self) -> Caching {
        Caching { valid: VALID, alone: false }
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        let directory = self.place(parent)?;
        self.entry(parent, name, find(directory.as_fd(), name)?)
    }

    fn forget(&self, node: Node, times: u64) {
        lock(&self.nodes).forget(node, times);
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        self.described(self.place(node)?.as_fd())
    }

    fn change(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        let place = self.place(node)?;
        let place = place.as_fd();
        self.refuse_other_owners(place, change)?;
        if let Some(mode) = change.mode {
            match mode {
                set_id if set_id & SET_ID != 0 => return Err(Errno::PERM),
                _ if lock(&self.nodes).kind(node)? == Kind::Link => return Err(Errno::OPNOTSUPP),
                mode => self.set_mode(place, mode)?,
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
        self.described(place)
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(self.place(node)?, "", Vec::new())?;
        Ok(target.into_bytes())
    }

    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, _: Caller) -> Result<Entry> {
        let directory = self.place(parent)?;
        match new {
            New::Link { target } => rustix::fs::symlinkat(target, &directory, name.bytes())?,
            New::Plain { mode, .. } if mode & SET_ID != 0 => return Err(Errno::PERM),
            New::Plain { kind: Kind::Directory, mode } => {
                rustix::fs::mkdirat(&directory, name.bytes(), Mode::from_raw_mode(mode))?;
            }
            New::Plain { kind: Kind::File, mode } => drop(new_file(directory.as_fd(), name, mode)?),
            New::Plain { .. } => return Err(Errno::PERM),
        }
        self.entry(parent, name, find(directory.as_fd(), name)?)
    }

    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()> {
        let flags = match what {
            Remove::File => AtFlags::empty(),
            Remove::Directory => AtFlags::REMOVEDIR,
        };
        rustix::fs::unlinkat(self.place(parent)?, name.bytes(), flags)
    }

    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()> {
        let (source, target) = (self.place(from.0)?, self.place(to.0)?);
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
        let (place, directory) = (self.place(node)?, self.place(parent)?);
        if lock(&self.nodes).kind(node)? == Kind::Directory {
            return Err(Errno::PERM);
        }
        let old = place.as_raw_fd().to_string();
        rustix::fs::linkat(&self.descriptors, old, &directory, name.bytes(), AtFlags::SYMLINK_FOLLOW)?;
        self.entry(parent, name, find(directory.as_fd(), name)?)
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        let place = self.place(node)?;
        if lock(&self.nodes).kind(node)? != Kind::File {
            return Err(Errno::ACCESS);
        }
        if want.write || want.truncate {
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
        _: Caller,
    ) -> Result<(Entry, Handle)> {
        let directory = self.place(parent)?;
        let made = match mode & SET_ID {
            0 => new_file(directory.as_fd(), name, mode),
            _ => Err(Errno::PERM),
        };
        let file = match made {
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
        let entry = self.entry(parent, name, Found { file: place, stat, kind: Kind::File })?;
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

    fn release(&self, handle: Handle) {
        self.close(handle);
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
        let directory = self.reopen(place.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.keep(Open::Directory(Arc::new(Mutex::new(directory)), node))
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        self.act()?;
        let opened = lock(&self.open).get(&handle).cloned();
        let Some(Open::Directory(directory, _)) = opened else { return Err(Errno::BADF) };
        let directory = lock(&directory);
        rustix::fs::seek(&*directory, SeekFrom::Start(from))?;
        let mut buffer = [const { MaybeUninit::uninit() }; 32 << 10];
        let mut entries = RawDir::new(&*directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let Some(kind) = kind_of(&directory, name, entry.file_type()) else { continue };
            let listed = Listed { name, inode: entry.ino(), kind, next: entry.next_entry_cookie() };
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
        own_attribute(name, Errno::NODATA)?;
        let place = self.place(node)?;
        let mut value = Vec::with_capacity(MOST_ATTRIBUTE);
        rustix::fs::getxattr(Real::path(place.as_fd()), name, spare_capacity(&mut value))?;
        Ok(value)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let place = self.place(node)?;
        let mut names = Vec::with_capacity(MOST_ATTRIBUTE);
        rustix::fs::listxattr(Real::path(place.as_fd()), spare_capacity(&mut names))?;
        let own = |name: &&[u8]| name.starts_with(b"user.");
        Ok(names.split(|byte| *byte == 0).filter(own).map(<[u8]>::to_vec).collect())
    }

    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        own_attribute(name, Errno::OPNOTSUPP)?;
        let flags = match how {
            SetAttribute::Any => XattrFlags::empty(),
            SetAttribute::Create => XattrFlags::CREATE,
            SetAttribute::Replace => XattrFlags::REPLACE,
        };
        rustix::fs::setxattr(Real::path(self.place(node)?.as_fd()), name, value, flags)
    }

    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        own_attribute(name, Errno::NODATA)?;
        rustix::fs::removexattr(Real::path(self.place(node)?.as_fd()), name)
    }

    fn room(&self) -> Result<Room> {
        let stat = rustix::fs::fstatvfs(&self.root)?;
        Ok(Room {
            block: u32::try_from(stat.f_frsize).unwrap_or(4096),
            blocks: stat.f_blocks,
            free: stat.f_bavail,
            files: stat.f_files,
            files_free: stat.f_favail,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
