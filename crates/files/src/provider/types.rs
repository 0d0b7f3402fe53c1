//! The words of a provider: nodes, names, attributes, and what is asked for.

pub use airlock_linux::lock::{Kind as LockKind, Range as LockRange};
use rustix::{io::Errno, time::ClockId};
use std::time::Duration;

/// What a provider answers: something, or the kernel's number for what is wrong.
pub type Result<T> = std::result::Result<T, Errno>;

/// A file, directory or link of a provider. Its number is never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub u64);

impl Node {
    /// The directory that is mounted.
    pub const ROOT: Node = Node(1);
}

/// A file or directory that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// One part of a path: 1 to 255 bytes, neither `.` nor `..`, without `/` and NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks it.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>> {
        match bytes {
            b"" | b"." | b".." => Err(Errno::INVAL),
            long if long.len() > 255 => Err(Errno::NAMETOOLONG),
            bad if bad.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Errno::INVAL),
            good => Ok(Name(good)),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// What a node is. Devices are never served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe; its bytes never reach the provider.
    Fifo,
    /// The name of a socket; its bytes never reach the provider.
    Socket,
}

impl Kind {
    /// The bits of a mode that say so.
    pub fn bits(self) -> u32 {
        match self {
            Kind::File => 0o100_000,
            Kind::Directory => 0o040_000,
            Kind::Link => 0o120_000,
            Kind::Fifo => 0o010_000,
            Kind::Socket => 0o140_000,
        }
    }

    /// From the bits of a mode; none for devices.
    pub fn from_bits(mode: u32) -> Option<Kind> {
        let all = [Kind::File, Kind::Directory, Kind::Link, Kind::Fifo, Kind::Socket];
        all.into_iter().find(|kind| kind.bits() == mode & 0o170_000)
    }
}

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Since 1970; may be before it.
    pub seconds: i64,
    /// Below a thousand million.
    pub nanos: u32,
}

impl Time {
    /// This moment, by the clock that the kernel stamps files with. It stamps those of a mount too, where writes wait in its
    /// pages: by a finer clock a file that was written would be older than when it was made.
    pub fn now() -> Time {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        Time { seconds: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
    }
}

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// The number programs see.
    pub inode: u64,
    /// What it is.
    pub kind: Kind,
    /// Permissions, with set-id and sticky bits.
    pub mode: u32,
    /// Names it has.
    pub links: u32,
    /// Owner, as inside the sandbox.
    pub user: u32,
    /// Group, as inside the sandbox.
    pub group: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes it takes, in units of 512.
    pub blocks: u64,
    /// Last read.
    pub accessed: Time,
    /// Last written.
    pub modified: Time,
    /// Last changed in any way.
    pub changed: Time,
}

/// An owner that no id inside stands for: shown as nobody's, and no power inside counts over it.
pub const NOBODY: u32 = u32::MAX - 1;

/// A node with a name. Whoever is given one has looked it up once more: see [`Provider::forget`](super::Provider::forget).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which.
    pub node: Node,
    /// What is known of it.
    pub attributes: Attributes,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// User inside.
    pub user: u32,
    /// Group inside.
    pub group: u32,
}

/// What is to be changed of a node; the rest stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Bytes: cut, or made longer with zeros.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<Time>,
    /// Last written.
    pub modified: Option<Time>,
}

/// What is to be made under a new name. Files that are to be open at once are [`Provider::create`](super::Provider::create)d.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum New<'a> {
    /// An empty file, pipe or socket name, or an empty directory.
    Plain {
        /// Which.
        kind: Kind,
        /// Its permissions.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Where it points.
        target: &'a [u8],
    },
}

/// What an open file is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Everything in it goes first.
    pub truncate: bool,
    /// Writes go to the end, wherever that is.
    pub append: bool,
    /// It must not be there yet (only where it is created).
    pub exclusive: bool,
}

/// How a name takes the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// Whatever has the new name goes.
    Replace,
    /// Fails if something has the new name.
    Keep,
    /// Both change places.
    Exchange,
}

/// Which sort of thing a name is removed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remove {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// One entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its inode number.
    pub inode: u64,
    /// What it is.
    pub kind: Kind,
    /// Where the listing goes on behind it; never 0.
    pub next: u64,
}

/// Takes the entries of a directory until it says no.
pub type Take<'t> = dyn FnMut(Listed<'_>) -> bool + 't;

/// How full a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Bytes of one block.
    pub block: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Nodes.
    pub files: u64,
    /// Nodes that may still be made.
    pub files_free: u64,
}

/// What [`Provider::allocate`](super::Provider::allocate) does to a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Room is made; the file grows if need be.
    Grow,
    /// Room is made; the file keeps its size.
    Keep,
    /// The range becomes a hole.
    Punch,
    /// The range becomes zeros; the file grows if need be.
    Zero,
}

/// What is looked for in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that was written.
    Data,
    /// The next hole, or the end.
    Hole,
}

/// How an extended attribute may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetAttribute {
    /// Whether it is there or not.
    Any,
    /// Only if it is not there.
    Create,
    /// Only if it is there.
    Replace,
}

/// A lock that a program takes, changes or gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// Whose it is: a number for each process that the kernel tells apart.
    pub owner: u64,
    /// Of what.
    pub what: Locked,
    /// How; nothing where it is given back.
    pub kind: Option<LockKind>,
}

/// What is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// Bytes of the file (fcntl(2)), for the owner: gone when it closes any descriptor of the file.
    Range(LockRange),
    /// The whole file (flock(2)), for the open file: gone when that is closed.
    Whole,
}

/// What the kernel may remember of a provider's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caching {
    /// How long names and attributes stay right.
    pub valid: Duration,
    /// Whether nobody else changes the files: then content stays known, and writes may wait.
    pub alone: bool,
    /// Whether names that are not there, and where links point, are remembered too. They are wherever nobody else changes
    /// the files.
    pub names: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_moment_is_never_later_than_what_the_kernel_stamps_after_it() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..100 {
            let before = Time::now();
            let path = place.path().join(number.to_string());
            std::fs::write(&path, "x").unwrap();
            let stamped = path.metadata().unwrap();
            let stamped =
                Time { seconds: stamped.mtime(), nanos: u32::try_from(stamped.mtime_nsec()).unwrap() };
            assert!(before <= stamped, "{before:?} is later than {stamped:?}");
        }
    }
}
