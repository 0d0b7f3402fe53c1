//! The file system a directory lies on.
//!
//! ```
//! use airlock_linux::probe::place::Place;
//! let root = Place::of("/".as_ref())?;
//! assert!(root.total > 0);
//! # Ok::<(), std::io::Error>(())
//! ```

use crate::disk;
use rustix::fs::StatVfsMountFlags;
use std::{io, path::Path};

/// What matters about it for the state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its kind, such as `ext4`, or a number for those without a name here.
    pub kind: String,
    /// Whether nothing on it can be executed.
    pub is_noexec: bool,
    /// Whether nothing on it can be written.
    pub is_read_only: bool,
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// linux/magic.h and the file systems' own headers.
const KINDS: [(u64, &str); 18] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x6a65_6a63, "virtiofs"),
    (0x00c3_6400, "ceph"),
    (0xf15f, "ecryptfs"),
    (0x4d44, "vfat"),
];

impl Place {
    /// Asks about the file system of `path`.
    pub fn of(path: &Path) -> io::Result<Place> {
        let magic = rustix::fs::statfs(path)?.f_type;
        let flags = rustix::fs::statvfs(path)?.f_flag;
        let free = disk::free(path)?;
        Ok(Place {
            kind: name(u64::try_from(magic).unwrap_or_default() & 0xffff_ffff),
            is_noexec: flags.contains(StatVfsMountFlags::NOEXEC),
            is_read_only: flags.contains(StatVfsMountFlags::RDONLY),
            free: free.bytes,
            total: free.total,
        })
    }
}

fn name(magic: u64) -> String {
    let known = KINDS.iter().find(|(number, _)| *number == magic);
    known.map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned())
}
