//! What serves a programmable mount.
//!
//! A [`Provider`] answers for nodes by number. The kernel looks a name up ([`Provider::lookup`]), keeps the node it was
//! given, and forgets it some day; paths, permissions and page cache are the kernel's own business, and so are locks unless a
//! provider [keeps](Provider::keeps_locks) them. Everything a
//! provider hears comes from inside a sandbox and may be hostile: numbers that were never given out are answered with
//! `ESTALE` or `EBADF`, never with a panic.
//!
//! ```
//! use airlock_files::provider::{Caller, Memory, Name, Node, Provider, Want};
//! let memory = Memory::new(1 << 20, Caller::default());
//! let want = Want { read: true, write: true, ..Want::default() };
//! let (entry, handle) = memory.create((Node::ROOT, Name::new(b"a")?), 0o644, want, Caller::default())?;
//! memory.write(handle, 0, b"hello")?;
//! let mut read = Vec::new();
//! memory.read(handle, 0, 100, &mut read)?;
//! assert_eq!((read.as_slice(), memory.attributes(entry.node)?.size), (b"hello".as_slice(), 5));
//! # Ok::<(), rustix::io::Errno>(())
//! ```
//!
//! | provider | serves |
//! |---|---|
//! | [`Memory`] | files in this process's memory, bounded |
//! | [`Real`] | a directory of the host, never anything outside it; or the whole root of a sandbox, for a machine |
//! | [`Readonly`] | another one, which cannot be written |
//! | [`Overlay`] | two others: changes go to the upper |
//! | [`Router`] | several, each at a path of its own |
//! | [`Hooked`] | another one, with somebody asked before and told after |

mod build;
mod hooked;
mod memory;
mod overlay;
mod readonly;
mod real;
mod router;
mod rules;
#[cfg(test)]
mod tests;
mod types;

pub use build::{BadProvider, Source, build};
pub use hooked::{Hooked, Hooks, Touched};
pub use memory::Memory;
pub use overlay::Overlay;
pub use readonly::Readonly;
pub use real::{Known, KnownNode, KnownOpen, Owner, Real};
pub use router::{Route, Router};
pub use rules::{Rules, Sink, Told};
pub use rustix::io::Errno;
pub use types::{
    Allocate, Attributes, Caching, Caller, Change, Entry, Handle, Kind, Listed, Lock, LockKind, LockRange,
    Locked, NOBODY, Name, New, Node, Remove, Rename, Result, Room, Seek, SetAttribute, Take, Time, Want,
};

use std::os::fd::OwnedFd;

/// Serves files. Called from several threads at once; a call that takes longer than half a minute is answered with
/// `EIO` in its place.
///
/// Permissions were checked by the kernel against [`Attributes`] before it asks. What a provider does not support it
/// leaves to the defaults here.
pub trait Provider: Send + Sync {
    /// What the kernel may remember.
    fn caching(&self) -> Caching;

    /// Finds a name in a directory. Counts as one lookup of the node.
    fn lookup(&self, parent: Node, name: Name<'_>) -> Result<Entry>;

    /// The kernel forgets so many lookups of a node; with the last of them the number means nothing any more.
    fn forget(&self, node: Node, times: u64);

    /// What is known of a node.
    fn attributes(&self, node: Node) -> Result<Attributes>;

    /// Changes what is known of a node. A change of size or owner takes set-id bits away. `handle` is an open file of it, where the change came through one.
    fn change(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes>;

    /// Where a symbolic link points.
    fn readlink(&self, node: Node) -> Result<Vec<u8>>;

    /// Makes something under a name that is free. Counts as one lookup.
    fn make(&self, parent: Node, name: Name<'_>, new: New<'_>, caller: Caller) -> Result<Entry>;

    /// Takes a name away.
    fn remove(&self, parent: Node, name: Name<'_>, what: Remove) -> Result<()>;

    /// Gives what has one name another one.
    fn rename(&self, from: (Node, Name<'_>), to: (Node, Name<'_>), how: Rename) -> Result<()>;

    /// Gives a file one more name. Counts as one lookup.
    fn link(&self, node: Node, parent: Node, name: Name<'_>) -> Result<Entry>;

    /// Opens a file.
    fn open(&self, node: Node, want: Want) -> Result<Handle>;

    /// Makes a file and opens it; opens the one that is there unless `want` is exclusive. Counts as one lookup.
    fn create(
        &self,
        place: (Node, Name<'_>),
        mode: u32,
        want: Want,
        caller: Caller,
    ) -> Result<(Entry, Handle)>;

    /// Appends at most `size` bytes of a file to `into`; fewer only at its end.
    fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()>;

    /// Writes all bytes, or as many as there is room for. Takes set-id bits away: the kernel leaves that to the provider.
    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize>;

    /// Everything written is safe when this returns.
    fn sync(&self, handle: Handle) -> Result<()>;

    /// Makes or frees room.
    fn allocate(&self, handle: Handle, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let _ = (handle, how, offset, length);
        Err(Errno::OPNOTSUPP)
    }

    /// Finds data or a hole from `offset` on.
    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let _ = (handle, offset, what);
        Err(Errno::OPNOTSUPP)
    }

    /// Copies bytes between two open files; gives how many, which may be fewer.
    fn copy(&self, from: (Handle, u64), to: (Handle, u64), length: u64) -> Result<usize> {
        let _ = (from, to, length);
        Err(Errno::NOSYS)
    }

    /// Whether a file that was just opened has the content it had when the kernel was last told of it, so that what the
    /// kernel has read before is right. Asked only where others change files too.
    fn is_unchanged(&self, handle: Handle) -> bool {
        let _ = handle;
        false
    }

    /// A file is open no more.
    fn release(&self, handle: Handle);

    /// The file of this host behind an open one, where the kernel may read and write that by itself.
    fn backing(&self, handle: Handle) -> Option<OwnedFd> {
        let _ = handle;
        None
    }

    /// Whether locks are asked of the provider, since others than the programs of the mount take some too. Otherwise the
    /// kernel keeps them by itself.
    fn keeps_locks(&self) -> bool {
        false
    }

    /// Takes, changes or gives back a lock, at once; `EAGAIN` where another one is in the way.
    fn set_lock(&self, handle: Handle, lock: &Lock) -> Result<()> {
        let _ = (handle, lock);
        Err(Errno::NOSYS)
    }

    /// Which bytes somebody else has locked in the way of a lock of bytes.
    fn locked(&self, handle: Handle, lock: &Lock) -> Result<Option<(LockRange, LockKind)>> {
        let _ = (handle, lock);
        Err(Errno::NOSYS)
    }

    /// An owner of locks has closed a descriptor of the file: its locks of bytes go.
    fn unlock(&self, handle: Handle, owner: u64) {
        let _ = (handle, owner);
    }

    /// Opens a directory to be listed.
    fn open_directory(&self, node: Node) -> Result<Handle>;

    /// Gives the entries of an open directory to `take`, from `from` on (0 is the beginning), without `.` and `..`, until
    /// it says no. That entry comes again.
    fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()>;

    /// A directory is open no more.
    fn release_directory(&self, handle: Handle);

    /// The value of an extended attribute; `ENODATA` where it is not there.
    fn attribute(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (node, name);
        Err(Errno::OPNOTSUPP)
    }

    /// The names of all extended attributes.
    fn attribute_names(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let _ = node;
        Ok(Vec::new())
    }

    /// Sets an extended attribute.
    fn set_attribute(&self, node: Node, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        let _ = (node, name, value, how);
        Err(Errno::OPNOTSUPP)
    }

    /// Removes an extended attribute.
    fn remove_attribute(&self, node: Node, name: &[u8]) -> Result<()> {
        let _ = (node, name);
        Err(Errno::OPNOTSUPP)
    }

    /// How full it is.
    fn room(&self) -> Result<Room>;

    /// How full it is where a node lies.
    fn room_at(&self, node: Node) -> Result<Room> {
        let _ = node;
        self.room()
    }
}
