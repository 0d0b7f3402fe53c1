//! What a kernel asks. Pure; every message gives a request or is malformed, whatever its bytes.

use crate::provider::{
    Allocate, Change, Handle, Kind, Lock, Name, Node, Remove, Rename, Seek, SetAttribute, Want,
};
use rustix::io::Errno;

/// Bytes of the head of every message.
pub const HEAD: usize = 40;

/// What every message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The message's own number, which its answer bears.
    pub unique: u64,
    /// Which node it is about.
    pub node: Node,
    /// Who asks.
    pub user: u32,
    /// With which group.
    pub group: u32,
    /// What is asked, as a number.
    pub operation: u32,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request<'a> {
    /// The first message of a connection.
    Init {
        /// Version of the protocol.
        version: (u32, u32),
        /// Most bytes read ahead.
        read_ahead: u32,
        /// What the kernel can do.
        flags: u64,
    },
    /// Nothing more comes.
    Destroy,
    /// Find a name.
    Lookup(Name<'a>),
    /// Forget lookups. Never answered.
    Forget(Vec<(Node, u64)>),
    /// Attributes of the node.
    Attributes,
    /// Other attributes.
    Change(Option<Handle>, Change),
    /// Where a link points.
    Readlink,
    /// A symbolic link.
    Symlink {
        /// Its name.
        name: Name<'a>,
        /// Where it points.
        target: &'a [u8],
    },
    /// A new node without content.
    Make {
        /// Its name.
        name: Name<'a>,
        /// What it is.
        kind: Kind,
        /// Its permissions.
        mode: u32,
    },
    /// A name goes.
    Remove(Name<'a>, Remove),
    /// A name changes.
    Rename {
        /// The old name, in the node.
        from: Name<'a>,
        /// The directory of the new one.
        to: (Node, Name<'a>),
        /// How.
        how: Rename,
    },
    /// One more name, in the node, for another one.
    Link(Node, Name<'a>),
    /// Open the file.
    Open(Want),
    /// Make and open a file.
    Create {
        /// Its name.
        name: Name<'a>,
        /// Its permissions.
        mode: u32,
        /// What for.
        want: Want,
    },
    /// Bytes of an open file.
    Read {
        /// Which.
        handle: Handle,
        /// From where.
        offset: u64,
        /// How many at most.
        size: u32,
    },
    /// Bytes for an open file.
    Write {
        /// Which.
        handle: Handle,
        /// Where to.
        offset: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// A file is closed.
    Release(Handle),
    /// Make safe what was written.
    Sync(Handle),
    /// Make safe a directory.
    SyncDirectory,
    /// Set an extended attribute.
    SetAttribute {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Whether it may be there already.
        how: SetAttribute,
    },
    /// The value of an extended attribute, or only its length where `size` is 0.
    Attribute {
        /// Its name.
        name: &'a [u8],
        /// Most bytes.
        size: u32,
    },
    /// The names of extended attributes, or only their length where `size` is 0.
    AttributeNames {
        /// Most bytes.
        size: u32,
    },
    /// Remove an extended attribute.
    RemoveAttribute(&'a [u8]),
    /// Open a directory.
    OpenDirectory,
    /// Entries of an open directory.
    List {
        /// Which.
        handle: Handle,
        /// From where on.
        from: u64,
        /// Most bytes.
        size: u32,
        /// Whether each is looked up too.
        plus: bool,
    },
    /// A directory is closed.
    ReleaseDirectory(Handle),
    /// How full it is.
    Room,
    /// Make or free room in a file.
    Allocate {
        /// Which.
        handle: Handle,
        /// What.
        how: Allocate,
        /// From where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Find data or a hole.
    Seek {
        /// In which file.
        handle: Handle,
        /// From where on.
        offset: u64,
        /// Which of them.
        what: Seek,
    },
    /// Copy bytes of one open file to another.
    Copy {
        /// From where.
        from: (Handle, u64),
        /// Where to.
        to: (Handle, u64),
        /// How many.
        length: u64,
    },
    /// A descriptor of a file is closed by an owner of locks.
    Flush(Handle, u64),
    /// Take, change, give back or find a lock.
    Lock {
        /// In which file.
        handle: Handle,
        /// Which.
        lock: Lock,
        /// What is done.
        how: Locking,
    },
    /// A request, by its number, is wanted no more. Never answered itself.
    Interrupt(u64),
    /// Something that is not served; the answer says so, and the kernel does it by itself or does without.
    Other,
}

/// What is done about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// Tell what is in its way.
    Find,
    /// Take it, or say at once that another is in its way.
    Try,
    /// Take it as soon as nothing is in its way.
    Wait,
}

/// A message that no kernel sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Without a whole head: there is nobody to answer.
    #[error("a message of the file system protocol has no head")]
    Head,
    /// The rest is not what it should be.
    #[error("a message of the file system protocol is cut off or wrong")]
    Body(Head, Errno),
}
