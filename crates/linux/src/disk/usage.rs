//! How much a tree takes, how much its file system has left, how much of it is never given to sandboxes.
//!
//! ```
//! let used = airlock_linux::disk::usage(".".as_ref())?;
//! assert!(used.inodes > 0);
//! assert_eq!(airlock_linux::disk::reserve(10 << 30), 512 << 20);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags, openat, statvfs, statx,
};
use rustix::io::Errno;

/// Directories nested deeper than this end the walk with an error: each level holds a descriptor, and who nests deeper wants to
/// hide something.
const DEPTH: usize = 256;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a tree takes on its file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of allocated blocks; holes do not count, a file with many names counts once.
    pub bytes: u64,
    /// Files, directories and everything else with an inode.
    pub inodes: u64,
    /// Directories that could not be read, so that what is in them is not counted. Ids of a sandbox that are not the caller's
    /// can close them: then walk from inside the user namespace that owns the ids, or take any as a sign of hiding.
    pub unread: u64,
}

/// What a file system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Bytes an ordinary user may still write.
    pub bytes: u64,
    /// Inodes left; `u64::MAX` where the file system has no fixed number.
    pub inodes: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Walks the tree, which may change meanwhile and may be hostile: symbolic links are not followed, mounts not crossed, what
/// vanishes is not counted.
///
/// # Errors
/// If `dir` cannot be read, or directories nest deeper than 256: then count it as too much.
pub fn usage(dir: &Path) -> io::Result<Usage> {
    let top = openat(CWD, dir, DIRECTORY, Mode::empty())?;
    let mut walk = Walk::default();
    walk.count(&top, c"", AtFlags::EMPTY_PATH)?;
    let mut levels = vec![walk.enter(top)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.directories.pop() else {
            levels.pop();
            continue;
        };
        match openat(&level.dir, &name, DIRECTORY, Mode::empty()) {
            Ok(dir) => {
                let below = walk.enter(dir)?;
                levels.push(below);
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(Errno::ACCESS) => walk.usage.unread = walk.usage.unread.saturating_add(1),
            Err(other) => return Err(other.into()),
        }
        if levels.len() > DEPTH {
            return Err(io::Error::other("directories nest too deep"));
        }
    }
    Ok(walk.usage)
}

/// What the file system of `dir` has left.
///
/// # Errors
/// If it cannot be asked.
pub fn free(dir: &Path) -> io::Result<Free> {
    let found = statvfs(dir)?;
    let inodes = if found.f_files == 0 { u64::MAX } else { found.f_favail };
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Free { bytes: bytes(found.f_bavail), inodes, total: bytes(found.f_blocks) })
}

/// How many bytes of a file system of `total` bytes sandboxes must leave to the host: 5 %, at most 1 GiB.
#[must_use]
pub fn reserve(total: u64) -> u64 {
    (total / 20).min(1 << 30)
}

#[derive(Default)]
struct Walk {
    usage: Usage,
    /// Files with several names that were counted already.
    linked: HashSet<(u32, u32, u64)>,
}

struct Level {
    dir: OwnedFd,
    directories: Vec<CString>,
}

impl Walk {
    /// Counts what is in a directory and notes the directories to enter.
    fn enter(&mut self, dir: OwnedFd) -> io::Result<Level> {
        let mut directories = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.count(&dir, name, AtFlags::SYMLINK_NOFOLLOW)? == Some(FileType::Directory) {
                directories.push(name.to_owned());
            }
        }
        Ok(Level { dir, directories })
    }

    /// Adds one file; `None` if it is gone or another mount begins there.
    fn count(
        &mut self,
        dir: &OwnedFd,
        name: &std::ffi::CStr,
        flags: AtFlags,
    ) -> io::Result<Option<FileType>> {
        let wanted = StatxFlags::BLOCKS | StatxFlags::NLINK | StatxFlags::INO | StatxFlags::TYPE;
        let found = match statx(dir.as_fd(), name, flags | AtFlags::STATX_DONT_SYNC, wanted) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(other) => return Err(other.into()),
        };
        let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            && !flags.contains(AtFlags::EMPTY_PATH);
        if is_mount {
            return Ok(None);
        }
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        let identity = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        if kind == FileType::Directory || found.stx_nlink < 2 || self.linked.insert(identity) {
            self.usage.bytes = self.usage.bytes.saturating_add(found.stx_blocks.saturating_mul(512));
            self.usage.inodes = self.usage.inodes.saturating_add(1);
        }
        Ok(Some(kind))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_tree_is_counted_once_per_file() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), vec![1_u8; 100_000]).unwrap();
        fs::hard_link(at("a/b/file"), at("a/again")).unwrap();
        std::os::unix::fs::symlink("/", at("a/root")).unwrap();
        fs::File::create(at("hole")).unwrap().set_len(1 << 40).unwrap();

        let used = usage(home.path()).unwrap();

        assert_eq!(used.inodes, 6);
        assert!((100_000..200_000).contains(&used.bytes), "{used:?}");
    }

    #[test]
    fn directories_nested_too_deep_are_an_error() {
        let home = tempfile::tempdir().unwrap();
        let mut deep = home.path().to_path_buf();
        (0..300).for_each(|_| deep.push("d"));
        fs::create_dir_all(&deep).unwrap();

        assert!(usage(home.path()).is_err());
    }

    #[test]
    fn another_mount_is_not_entered() {
        let used = usage("/dev".as_ref()).unwrap();

        assert!(used.inodes > 0);
    }

    #[test]
    fn the_reserve_is_small_on_small_disks_and_bounded_on_large_ones() {
        assert_eq!([reserve(0), reserve(100), reserve(u64::MAX)], [0, 5, 1 << 30]);
    }

    #[test]
    fn a_file_system_says_what_it_has() {
        let found = free("/".as_ref()).unwrap();

        assert!(found.total > 0 && found.bytes <= found.total);
    }
}
