//! Project quotas: a directory tree with an id of its own, bounded by the host's file system.
//!
//! No process in a user namespace can change a file's project id or exceed the bound (both need the host's root), and files
//! cannot be renamed or linked into the tree from outside.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::{BYTES_PER_FILE, Error};

/// The bounded tree in the sandbox's directory.
const NAME: &str = "disk";

/// linux/fs.h and linux/quota.h, linux/dqblk_xfs.h.
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801C_581F_u32 as libc::Ioctl;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401C_5820;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
const PRJQUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const Q_XGETQSTATV: u32 = 0x5808;
const FS_QSTATV_VERSION1: u8 = 1;
const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
const QIF_LIMITS: u32 = 1 | 4;
/// The unit of block limits.
const QUOTA_BLOCK: u64 = 1024;

const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;

/// Ids above this are ours by convention; the inode number of the tree makes them distinct on one file system.
const FIRST_ID: u32 = 0x4000_0000;
const TRIES: u32 = 64;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Debug, Default)]
struct Quota {
    block_hard: u64,
    block_soft: u64,
    space: u64,
    inode_hard: u64,
    inode_soft: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// `struct fs_quota_statv`; only the front of it is of interest.
#[repr(C)]
#[derive(Debug, Default)]
struct Status {
    version: u8,
    pad: u8,
    flags: u16,
    rest: [u64; 20],
}

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Whether the file system of `dir` accounts for projects and enforces their limits.
pub(super) fn is_enforced(dir: &Path) -> bool {
    let Ok(opened) = File::open(dir) else { return false };
    let mut status = Status { version: FS_QSTATV_VERSION1, ..Status::default() };
    quotactl(&opened, Q_XGETQSTATV, 0, &mut status).is_ok()
        && status.flags & FS_QUOTA_PDQ_ENFD != 0
        && xattr(&opened).is_ok()
}

/// Opens the bounded tree below `dir`, made if missing.
pub(super) fn open(dir: &Path, bytes: u64) -> Result<OwnedFd, Error> {
    let path = dir.join(NAME);
    let bounded = bound(&path, bytes);
    bounded.map_err(|source| Error::Quota { path: path.clone(), source })?;
    detached(&path).map_err(|source| Error::Mount { path, source })
}

fn bound(path: &PathBuf, bytes: u64) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o755).create(path) {
        Err(there) if there.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let tree = File::open(path)?;
    let mut attributes = xattr(&tree)?;
    let is_ours = attributes.xflags & FS_XFLAG_PROJINHERIT != 0 && attributes.projid >= FIRST_ID;
    if !is_ours {
        attributes.projid = unused_id(&tree)?;
        attributes.xflags |= FS_XFLAG_PROJINHERIT;
    }
    // The bound stands before the first file can be counted against it.
    quotactl(&tree, Q_SETQUOTA, attributes.projid, &mut limits(bytes))?;
    if is_ours { Ok(()) } else { set_xattr(&tree, &attributes) }
}

fn limits(bytes: u64) -> Quota {
    Quota {
        block_hard: bytes / QUOTA_BLOCK,
        inode_hard: bytes / BYTES_PER_FILE,
        valid: QIF_LIMITS,
        ..Quota::default()
    }
}

/// An id that nothing is counted against; limits alone are what a removed sandbox has left.
fn unused_id(tree: &File) -> io::Result<u32> {
    let inode = u32::try_from(tree.metadata()?.ino() & u64::from(FIRST_ID - 1)).unwrap_or_default();
    for step in 0..TRIES {
        let id = FIRST_ID | (inode.wrapping_add(step) & (FIRST_ID - 1));
        let mut found = Quota::default();
        match quotactl(tree, Q_GETQUOTA, id, &mut found) {
            Ok(()) if found.inodes > 0 || found.space > 0 => {}
            Ok(()) => return Ok(id),
            Err(none) if matches!(none.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return Ok(id),
            Err(other) => return Err(other),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

fn quotactl<T>(file: &File, command: u32, id: u32, argument: &mut T) -> io::Result<()> {
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: each command above reads or writes one structure of type T, whose layout is the kernel's; it outlives the call.
    let outcome = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, std::ptr::from_mut(argument))
    };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn xattr(file: &File) -> io::Result<FsXattr> {
    let mut found = FsXattr::default();
    // SAFETY: the kernel writes one `struct fsxattr`, whose layout FsXattr has.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut found) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
}

fn set_xattr(file: &File, wanted: &FsXattr) -> io::Result<()> {
    // SAFETY: the kernel reads one `struct fsxattr`, whose layout FsXattr has.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR, std::ptr::from_ref(wanted)) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn detached(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(CWD, path, flags)?;
    let attributes =
        MountAttr { set: MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, clear: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a static empty string, and the kernel reads one `struct mount_attr` of the size given.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(tree) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_the_kernel_uses() {
        let sizes = [size_of::<FsXattr>(), size_of::<Quota>(), size_of::<MountAttr>()];

        assert_eq!(sizes, [28, 72, 32]);
        assert!(size_of::<Status>() >= 160);
    }

    #[test]
    fn a_file_system_without_projects_is_seen_as_such() {
        assert!(!is_enforced(Path::new("/proc")));
        assert!(!is_enforced(Path::new("/no/such")));
    }

    #[test]
    fn a_tree_can_be_had_as_a_detached_mount() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|value| value != "1"), "not root");
            return eprintln!("skipped: not root");
        }
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("in"), "here").unwrap();

        let tree = detached(home.path()).unwrap();

        let found = std::fs::read(format!("/proc/self/fd/{}/in", tree.as_raw_fd())).unwrap();
        assert_eq!(found, b"here");
    }
}
