//! Nodes and handles become descriptors, and what is found becomes a node.

use super::{
    Open, Real, SET_ID, lock,
    nodes::{self, Found, find},
    reach::Reach,
};
use crate::provider::types::{Attributes, Entry, Handle, Kind, Name, Node, Result};
use airlock_linux::{fuse, mount};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};

impl Real {
    pub(super) fn place(&self, node: Node) -> Result<Arc<OwnedFd>> {
        self.reach.act()?;
        lock(&self.nodes).file(node)
    }

    /// A directory in which names mean something.
    pub(super) fn directory(&self, node: Node) -> Result<Arc<OwnedFd>> {
        self.reach.act()?;
        let mut nodes = lock(&self.nodes);
        if nodes.is_sealed(node) { Err(Errno::NOENT) } else { nodes.file(node) }
    }

    /// As [`Real::directory`], where a name is about to go or to come.
    pub(super) fn changed_directory(&self, node: Node, name: Name<'_>) -> Result<Arc<OwnedFd>> {
        if self.reach.is_own(node, name) { Err(Errno::BUSY) } else { self.directory(node) }
    }

    /// A node whose attributes may be changed.
    pub(super) fn changed_place(&self, node: Node) -> Result<Arc<OwnedFd>> {
        if lock(&self.nodes).is_sealed(node) { Err(Errno::PERM) } else { self.place(node) }
    }

    pub(super) fn find(&self, directory: BorrowedFd<'_>, name: Name<'_>) -> Result<Found> {
        find(directory, name, self.reach.way())
    }

    pub(super) fn entry(&self, parent: Node, name: Name<'_>, mut found: Found) -> Result<Entry> {
        if matches!(self.reach, Reach::Whole(_)) {
            let is_elsewhere = lock(&self.nodes).device(parent)? != found.stat.st_dev;
            found.is_sealed =
                self.reach.is_own(parent, name) || is_elsewhere && mount::is_interface(&found.file);
        }
        if found.is_sealed && found.kind != Kind::Directory {
            return Err(Errno::NOENT);
        }
        let attributes = self.reach.shown(&found.stat, found.kind);
        let node = lock(&self.nodes).note(parent, name, found)?;
        Ok(Entry { node, attributes })
    }

    /// The attributes of a node, which the kernel inside is told from now on.
    pub(super) fn told(&self, node: Node, place: BorrowedFd<'_>) -> Result<Attributes> {
        let stat = rustix::fs::fstat(place)?;
        lock(&self.nodes).tell(node, &stat);
        Ok(self.reach.shown(&stat, nodes::kind(stat.st_mode, self.reach.way()).ok_or(Errno::STALE)?))
    }

    pub(super) fn described(&self, place: BorrowedFd<'_>) -> Result<Attributes> {
        let stat = rustix::fs::fstat(place)?;
        Ok(self.reach.shown(&stat, nodes::kind(stat.st_mode, self.reach.way()).ok_or(Errno::STALE)?))
    }

    /// Opens the very file that a place stands for.
    pub(super) fn reopen(&self, place: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.descriptors, place.as_raw_fd().to_string(), flags, Mode::empty())
    }

    /// A file that is about to be written loses what lets it run as its owner.
    pub(super) fn drop_set_id(&self, place: BorrowedFd<'_>) -> Result<()> {
        let mode = rustix::fs::fstat(place)?.st_mode;
        if mode & SET_ID == 0 || Kind::from_bits(mode) != Some(Kind::File) {
            return Ok(());
        }
        self.set_mode(place, mode & 0o1777)
    }

    pub(super) fn set_mode(&self, place: BorrowedFd<'_>, mode: u32) -> Result<()> {
        let name = place.as_raw_fd().to_string();
        let set =
            || rustix::fs::chmodat(&self.descriptors, name, Mode::from_raw_mode(mode), AtFlags::empty());
        match self.reach {
            Reach::Whole(_) if mode & SET_ID != 0 => fuse::with_set_id(set).map_err(|_| Errno::PERM)?,
            _ => set(),
        }
    }

    pub(super) fn keep(&self, open: Open) -> Result<Handle> {
        let mut all = lock(&self.open);
        if all.len() >= self.most_open {
            return Err(Errno::NFILE);
        }
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        let (Open::File(_, node) | Open::Directory(_, node) | Open::Sealed(node)) = open;
        lock(&self.nodes).pin(node);
        all.insert(handle, open);
        Ok(handle)
    }

    pub(super) fn close(&self, handle: Handle) {
        let closed = lock(&self.open).remove(&handle);
        let Some(Open::File(_, node) | Open::Directory(_, node) | Open::Sealed(node)) = closed else {
            return;
        };
        if lock(&self.nodes).unpin(node) == 0 {
            lock(&self.locks).closed(node);
        }
    }

    pub(super) fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>> {
        self.reach.act()?;
        match lock(&self.open).get(&handle) {
            Some(Open::File(file, _)) => Ok(file.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn resize(&self, place: BorrowedFd<'_>, handle: Option<Handle>, size: u64) -> Result<()> {
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

    /// The name of a descriptor for calls on extended attributes.
    pub(super) fn path(place: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", place.as_raw_fd())
    }
}
