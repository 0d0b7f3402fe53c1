//! Another provider, which cannot be written.

use super::{
    Provider,
    types::{
        Attributes, Caching, Caller, Change, Entry, Handle, Name, New, Node, Remove, Rename, Result, Room,
        Seek, Take, Want,
    },
};
use rustix::io::Errno;
use std::{os::fd::OwnedFd, sync::Arc};

/// Serves another one; whatever would change it is refused with `EROFS`.
pub struct Readonly {
    of: Arc<dyn Provider>,
}

impl Readonly {
    /// Serves `of`.
    pub fn new(of: Arc<dyn Provider>) -> Readonly {
        Readonly { of }
    }
}

impl Provider for Readonly {
    fn caching(&self) -> Caching {
        self.of.caching()
    }

    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry> {
        self.of.lookup(parent, name)
    }

    fn forget(&self, node: Node, times: u64) {
        self.of.forget(node, times);
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        self.of.attributes(node)
    }

    fn change(&self, _: Node, _: Option<Handle>, _: &Change) -> Result<Attributes> {
        Err(Errno::ROFS)
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        self.of.readlink(node)
    }

    fn make(&self, _: Node, _: Name<'_>, _: New<'_>, _: Caller) -> Result<Entry> {
        Err(Errno::ROFS)
    }

    fn remove(&self, _: Node, _: Name<'_>, _: Remove) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn rename(&self, _: (Node, Name<'_>), _: (Node, Name<'_>), _: Rename) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn link(&self, _: Node, _: Node, _: Name<'_>) -> Result<Entry> {
        Err(Errno::ROFS)
    }

    fn open(&self, node: Node, want: Want) -> Result<Handle> {
        if want.write || want.truncate {
            return Err(Errno::ROFS);
        }
        self.of.open(node, want)
    }

    fn create(
        &self,
        (parent, name): (Node, Name<'_>),
        _: u32,
        want: Want,
        _: Caller,
    ) -> Result<(Entry, Handle)> {
        if want.write || want.truncate || want.exclusive {
            return Err(Errno::ROFS);
        }
        let entry = self.of.lookup(parent, name).map_err(|_| Errno::ROFS)?;
        match self.of.open(entry.node, want) {
            Ok(handle) => Ok((entry, handle)),
            Err(err) => {
                self.of.forget(entry.node, 1);
                Err(err)
            }
        }
    }

    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
        self.of.read(handle, offset, size, into)
    }

    fn write(&self, _: Handle, _: u64, _: &[u8]) -> Result<usize> {
        Err(Errno::ROFS)
    }

    fn sync(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.of.seek(handle, offset, what)
    }

    fn release(&self, handle: Handle) {
        self.of.release(handle);
    }

    // Locks stay with the kernel: who may only read does not hold up programs of the host.

    fn backing(&self, handle: Handle) -> Option<OwnedFd> {
        // The kernel opens it anew, and only for what the mount allows: see `open`.
        self.of.backing(handle)
    }

    fn open_directory(&self, node: Node) -> Result<Handle> {
        self.of.open_directory(node)
    }

    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
        self.of.list(handle, from, take)
    }

    fn release_directory(&self, handle: Handle) {
        self.of.release_directory(handle);
    }

    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.of.attribute(node, name)
    }

    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        self.of.attribute_names(node)
    }

    fn set_attribute(&self, _: Node, _: &[u8], _: &[u8], _: super::SetAttribute) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn remove_attribute(&self, _: Node, _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn room(&self) -> Result<Room> {
        self.of.room()
    }
}
