//! Archives as POSIX has them (pax), as bytes: <https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html>
//!
//! What is written is ustar, with pax headers for long names and sizes. What is read may also have the long names of
//! GNU tar. Reading is strict: whatever is not understood whole is refused, and nothing is kept in memory but one header.
//!
//! ```
//! use airlock_copy::tar::{self, Entry, Kind, Reader};
//! let entry = Entry::new(b"./a".to_vec(), Kind::File).size(2);
//! let mut bytes = tar::head(&entry);
//! bytes.extend(b"hi");
//! bytes.extend(tar::padding(2));
//! bytes.extend(tar::END);
//! let mut reader = Reader::new(bytes.as_slice());
//! assert_eq!(reader.next()?, Some(entry));
//! # Ok::<(), airlock_copy::tar::Malformed>(())
//! ```

pub mod numbers;
mod read;
mod write;

/// What the names of extended attributes begin with in a pax header, as all who write them agree.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
/// Most bytes of names and values of one entry's extended attributes, as the kernel has it for one.
pub const MOST_ATTRIBUTES: usize = 64 << 10;

/// Whether an extended attribute is copied: what any user may set, but for marks that an overlay would obey. The archive cannot
/// hold a name with `=`.
pub fn is_copied(name: &[u8]) -> bool {
    let is_plain = name.len() <= 255 && !name.iter().any(|byte| matches!(byte, b'=' | 0));
    is_plain && name.starts_with(b"user.") && name.len() > 5 && !name.starts_with(b"user.overlay.")
}

pub use read::{Malformed, Reader};
pub use write::{END, head, padding};

/// Everything in an archive is a multiple of this long.
pub const BLOCK: usize = 512;
/// Longest path, as the kernel has it.
pub const LONGEST_PATH: usize = 4_096;

/// One entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where, as it is written.
    pub path: Vec<u8>,
    /// What.
    pub kind: Kind,
    /// Permissions, with set-id bits where there were any.
    pub mode: u32,
    /// Bytes that follow, for files.
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: u64,
    /// Extended attributes of the `user.` kind, names and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Link(Vec<u8>),
    /// Another name of an entry that came before.
    HardLink(Vec<u8>),
    /// A device, a pipe or something unheard of.
    Other,
}

impl Entry {
    /// An entry with common permissions.
    pub fn new(path: Vec<u8>, kind: Kind) -> Entry {
        let mode = match kind {
            Kind::Directory => 0o755,
            Kind::Link(_) => 0o777,
            _ => 0o644,
        };
        Entry { path, kind, mode, size: 0, mtime: 0, attributes: Vec::new() }
    }

    /// With so many bytes that follow.
    pub fn size(self, size: u64) -> Entry {
        Entry { size, ..self }
    }
}

/// Where the fields of a header are.
mod field {
    use std::ops::Range;

    pub(super) const NAME: Range<usize> = 0..100;
    pub(super) const MODE: Range<usize> = 100..108;
    pub(super) const UID: Range<usize> = 108..116;
    pub(super) const GID: Range<usize> = 116..124;
    pub(super) const SIZE: Range<usize> = 124..136;
    pub(super) const MTIME: Range<usize> = 136..148;
    pub(super) const CHECKSUM: Range<usize> = 148..156;
    pub(super) const TYPE: Range<usize> = 156..157;
    pub(super) const LINK: Range<usize> = 157..257;
    pub(super) const MAGIC: Range<usize> = 257..265;
    pub(super) const PREFIX: Range<usize> = 345..500;
}

#[cfg(test)]
mod tests;
