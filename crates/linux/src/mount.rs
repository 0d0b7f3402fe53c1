//! Mounts, made by descriptor: nothing here follows a path that somebody else could change.
//!
//! A tree is made detached ([`clone_tree`], [`tmpfs`], [`overlay`], …), given its attributes, and then attached to a
//! directory that was opened below the new root by [`open_beneath`] or made by [`make_dir`].

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        UnmountFlags,
    },
};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Component, Path},
};

/// Whether submounts come along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the mount itself.
    One,
    /// Everything mounted below it too.
    Recursive,
}

/// What may be done through a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// The parts of an overlay.
#[derive(Debug)]
pub struct Overlay<'a> {
    /// Read-only layers, topmost first, as paths in the current mount namespace.
    pub lower: &'a [&'a Path],
    /// Where writes go, and the kernel's scratch directory beside it.
    pub upper: Option<(&'a Path, &'a Path)>,
}

/// A copy of the mount at `path` below `dir` (an empty path means `dir` itself), attached nowhere, and private: what
/// is mounted on it later never appears on the host, nor the other way round.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &Path, depth: Depth) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    if depth == Depth::Recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(dir, path, flags)?;
    let alone = MountAttr { propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    set_attributes(tree.as_fd(), &alone, depth)?;
    Ok(tree)
}

/// A further copy of a mount that was made here and is attached, with the same attributes.
pub fn copy(mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(mount, c"", flags)?)
}

/// Sets `nosuid,nodev` and the access on a tree made by this process. Locked attributes stay as they are.
pub fn restrict(tree: BorrowedFd<'_>, access: Access, depth: Depth) -> io::Result<()> {
    let mut set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if access == Access::ReadOnly {
        set |= MOUNT_ATTR_RDONLY;
    }
    set_attributes(tree, &MountAttr { attr_set: set, ..MountAttr::default() }, depth)
}

/// Makes a tree read-only and nothing else.
pub fn make_read_only(tree: BorrowedFd<'_>, depth: Depth) -> io::Result<()> {
    set_attributes(tree, &MountAttr { attr_set: MOUNT_ATTR_RDONLY, ..MountAttr::default() }, depth)
}

/// Shows the ids of a detached tree as the user namespace maps them. Needs host root.
pub fn map_ids(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>, depth: Depth) -> io::Result<()> {
    let userns_fd = u64::try_from(user_namespace.as_raw_fd()).map_err(io::Error::other)?;
    set_attributes(tree, &MountAttr { attr_set: MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() }, depth)
}

/// Attaches a detached tree at the directory or file `target` stands for.
pub fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, c"", target, c"", flags)?)
}

/// A new file system in memory, detached, `nosuid,nodev`. `options` are `key=value`.
pub fn tmpfs(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    new_mount(c"tmpfs", options, attributes)
}

/// A fresh `/proc` of the current PID namespace, detached.
pub fn proc() -> io::Result<OwnedFd> {
    new_mount(c"proc", &[], SEALED_ATTRIBUTES)
}

/// A fresh, read-only `/sys`, detached.
pub fn sysfs() -> io::Result<OwnedFd> {
    new_mount(c"sysfs", &[], SEALED_ATTRIBUTES | MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// A fresh message queue file system, detached.
pub fn mqueue() -> io::Result<OwnedFd> {
    new_mount(c"mqueue", &[], SEALED_ATTRIBUTES)
}

/// A devpts of its own, detached.
pub fn devpts(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    new_mount(c"devpts", options, attributes)
}

/// An overlay, detached, `nosuid,nodev`. Extended attributes are those a user namespace may set.
pub fn overlay(parts: &Overlay<'_>) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let joined = join_layers(parts.lower)?;
    if joined.len() < LONGEST_OPTION {
        rustix::mount::fsconfig_set_string(fs.as_fd(), c"lowerdir", joined.as_slice())?;
    } else {
        // One by one, which kernels know since 6.5.
        for layer in parts.lower {
            rustix::mount::fsconfig_set_string(fs.as_fd(), c"lowerdir+", *layer)?;
        }
    }
    if let Some((upper, work)) = parts.upper {
        rustix::mount::fsconfig_set_string(fs.as_fd(), c"upperdir", upper)?;
        rustix::mount::fsconfig_set_string(fs.as_fd(), c"workdir", work)?;
    }
    rustix::mount::fsconfig_set_flag(fs.as_fd(), c"userxattr")?;
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Cuts this mount namespace off from the one it was copied from.
pub fn make_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// Makes `root` (attached in this namespace) the root directory and drops the old one.
pub fn pivot_into(root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Opens what `path` leads to below `root`, for use as a place (`O_PATH`). Symbolic links and `..` stay below
/// `root`; magic links are refused.
pub fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(root, inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // The kernel cannot be sure of a `..` while anything on the host is renamed or mounted: openat2(2).
            Err(rustix::io::Errno::AGAIN) if tries < MOST_TRIES => tries += 1,
            other => return Ok(other?),
        }
    }
}

/// Opens what `path` is below `root`, as a place, if no part of it is a symbolic link.
pub fn open_plain(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(root, inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens the directory `path` below `root`, making what is missing. A component that is a symbolic link or not a
/// directory is an error: mount points are plain directories.
pub fn make_dir(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut here: Option<OwnedFd> = None;
    for component in path.components() {
        let name = match component {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => Path::new(name),
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let parent = here.as_ref().map_or(root, AsFd::as_fd);
        here = Some(match open_plain_dir(parent, name) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => open_plain_dir(parent, name)?,
                    Err(err) => return Err(err.into()),
                }
            }
            other => other?,
        });
    }
    match here {
        Some(here) => Ok(here),
        None => Ok(rustix::io::fcntl_dupfd_cloexec(root, 0)?),
    }
}

/// Opens the regular file `path` below `root` as a place to mount a file on, making it and its parents if missing.
pub fn make_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let parent = make_dir(root, path.parent().unwrap_or(Path::new("/")))?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::RDONLY;
    rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o644))?;
    open_place(parent.as_fd(), Path::new(name))
}

/// Opens a character device node of the host and checks that it is the one it should be.
pub fn open_device(path: &Path, major: u32, minor: u32) -> io::Result<OwnedFd> {
    let device = open_place(CWD, path)?;
    let stat = rustix::fs::fstat(&device)?;
    let is_character =
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if is_character && number == (major, minor) {
        return Ok(device);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{} is not the device it should be", path.display()),
    ))
}

/// Opens a place without following a last symbolic link.
pub fn open_place(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether something is there.
pub fn exists(dir: BorrowedFd<'_>, path: &Path) -> bool {
    rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Checks that a descriptor lies on a real procfs.
pub fn is_procfs(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// Whether a descriptor lies on a file system in which the kernel tells about itself and its processes.
pub fn is_kernels(fd: impl AsFd) -> bool {
    const SYSFS: u64 = 0x6265_6572;
    let kind = rustix::fs::fstatfs(fd).map(|stat| stat.f_type);
    kind.is_ok_and(|kind| kind == rustix::fs::PROC_SUPER_MAGIC || u64::try_from(kind) == Ok(SYSFS))
}

/// Whether a descriptor lies on a file system that is a door to the kernel and holds no files of anybody's.
pub fn is_interface(fd: impl AsFd) -> bool {
    let kind = rustix::fs::fstatfs(fd).map(|stat| stat.f_type);
    kind.is_ok_and(|kind| INTERFACES.iter().any(|interface| u64::try_from(kind) == Ok(*interface)))
}

/// include/uapi/linux/magic.h: proc, sysfs, cgroup, cgroup2, devpts, mqueue, debugfs, tracefs, securityfs, configfs, bpf, nsfs,
/// binfmt_misc, fusectl, pstore, efivarfs, selinux, smack.
#[rustfmt::skip] // a table: many short numbers to a line
const INTERFACES: &[u64] = &[
    0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x1cd1, 0x1980_0202, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x6265_6570,
    0xcafe_4a11, 0x6e73_6673, 0x4249_4e4d, 0x6573_5543, 0x6165_676c, 0xde5e_81e4, 0xf97c_ff8c, 0x4341_5d53,
];

/// How often a path is looked up anew; a single retry is rare.
const MOST_TRIES: u32 = 10_000;
/// `fsconfig` takes no text that is longer, its closing zero included.
const LONGEST_OPTION: usize = 256;
const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const SEALED_ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn set_attributes(tree: BorrowedFd<'_>, attributes: &MountAttr, depth: Depth) -> io::Result<()> {
    let mut flags = libc::AT_EMPTY_PATH;
    if depth == Depth::Recursive {
        flags |= libc::AT_RECURSIVE;
    }
    let (tree, attributes, size) = (tree.as_raw_fd(), std::ptr::from_ref(attributes), size_of::<MountAttr>());
    // SAFETY: the path is a NUL-terminated empty string, `attributes` is a whole `mount_attr` that outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_mount_setattr, tree, c"".as_ptr(), flags, attributes, size) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn new_mount(kind: &CStr, options: &[(&CStr, &CStr)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(fs.as_fd(), *key, *value)?;
    }
    rustix::mount::fsconfig_create(fs.as_fd())?;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Overlayfs separates layers by `:`; a colon, comma or backslash in a name is escaped.
fn join_layers(layers: &[&Path]) -> io::Result<Vec<u8>> {
    let mut joined = Vec::new();
    for layer in layers {
        if !joined.is_empty() {
            joined.push(b':');
        }
        for byte in layer.as_os_str().as_encoded_bytes() {
            if matches!(byte, b':' | b'\\' | b',') {
                joined.push(b'\\');
            }
            joined.push(*byte);
        }
    }
    if joined.contains(&0) { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(joined) }
}

fn open_plain_dir(dir: BorrowedFd<'_>, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_never_made_through_a_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();

        let made = make_dir(root.as_fd(), Path::new("/link/below"));

        assert!(made.is_err());
        assert!(!outside.path().join("below").exists());
    }

    #[test]
    fn opening_beneath_a_root_never_leaves_it() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();

        let opened = open_beneath(root.as_fd(), Path::new("../link"));

        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_path_with_dots_is_found_while_others_rename() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("../a/b", dir.path().join("a/link")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let busy = tempfile::tempdir().unwrap();
        std::fs::create_dir(busy.path().join("x")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::rename(busy.path().join("x"), busy.path().join("y")).unwrap();
                    std::fs::rename(busy.path().join("y"), busy.path().join("x")).unwrap();
                }
            });
            let found = (0..20_000).all(|_| open_beneath(root.as_fd(), Path::new("/a/../a/link/..")).is_ok());
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(found);
        });
    }

    #[test]
    fn a_regular_file_is_not_taken_for_a_device() {
        assert!(open_device(Path::new("/etc/passwd"), 1, 3).is_err());
        assert!(open_device(Path::new("/dev/null"), 1, 3).is_ok());
    }

    #[test]
    fn layer_names_with_colons_stay_one_layer() {
        let joined = join_layers(&[Path::new("/a:b"), Path::new("/c")]).unwrap();
        assert_eq!(joined, b"/a\\:b:/c");
    }
}
