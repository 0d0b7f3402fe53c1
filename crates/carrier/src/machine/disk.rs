//! A root on disks: the image, read-only, and over it the machine's own disk. Served files are shown in it where they belong.

use super::{During as _, Failed, boot};
use airlock_linux::mount::{self, Access, Depth, Overlay};
use airlock_protocol::carry::{Disks, IMAGE_DISK, OWN_DISK, Shown};
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid},
    mount::MountFlags,
};
use std::{
    ffi::CStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    time::Instant,
};

/// Where the image is mounted, and the machine's own disk.
const IMAGE: &str = "/image";
const OWN: &str = "/own";
/// Parts of the machine's own disk.
const UPPER: &str = "/own/upper";
const WORK: &str = "/own/work";
/// Where the served files are mounted meanwhile.
const FILES: &str = "/files";
const DISKS: &str = "/sys/class/block";

/// Mounts the disks. Gives the root, attached nowhere yet, and what has everything written that goes there.
pub(super) fn mount() -> Result<(OwnedFd, OwnedFd), Failed> {
    boot::load_modules("disk")?;
    let (image, own) = (find(IMAGE_DISK)?, find(OWN_DISK)?);
    let read_only = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    attach(&image, IMAGE, "squashfs", (read_only, None)).during("mount the image")?;
    let writable = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    // What is not written yet stays so: nobody fills it with zeros while programs run.
    attach(&own, OWN, "ext4", (writable, Some(c"noinit_itable"))).during("mount the machine's disk")?;
    for part in [UPPER, WORK] {
        if !Path::new(part).exists() {
            let made = fs::create_dir(part)
                .and_then(|()| fs::set_permissions(part, fs::Permissions::from_mode(0o755)));
            made.during("prepare the machine's disk")?;
        }
    }
    let (lower, upper, work) = (Path::new(IMAGE), Path::new(UPPER), Path::new(WORK));
    let root = mount::overlay(&Overlay { lower: &[lower], upper: Some((upper, work)) })
        .during("join the image and the machine's disk")?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::open(OWN, flags, Mode::empty()).during("open the machine's disk")?;
    Ok((root, own))
}

fn attach(
    device: &Path,
    place: &str,
    kind: &str,
    (flags, options): (MountFlags, Option<&CStr>),
) -> io::Result<()> {
    fs::create_dir_all(place)?;
    Ok(rustix::mount::mount(device, place, kind, flags, options)?)
}

/// The device with this serial number, as soon as it is there.
fn find(serial: &str) -> Result<PathBuf, Failed> {
    let deadline = Instant::now() + boot::PATIENCE;
    loop {
        let found = fs::read_dir(DISKS).ok().into_iter().flatten().flatten().find(|entry| {
            fs::read_to_string(entry.path().join("serial")).is_ok_and(|told| told.trim() == serial)
        });
        let device = found.map(|entry| Path::new("/dev").join(entry.file_name()));
        if let Some(device) = device.filter(|device| device.exists()) {
            return Ok(device);
        }
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::NotFound)).during(&format!("find the disk {serial}"));
        }
        std::thread::sleep(boot::PAUSE);
    }
}

/// Puts into the root what is served: mounts where the host has mounts, copies of single files.
pub(super) fn furnish(disks: &Disks, root: BorrowedFd<'_>, files: &OwnedFd) -> Result<(), Failed> {
    let step = "mount the served files";
    let here = mount::open_place(CWD, Path::new("/")).during(step)?;
    let place = mount::make_dir(here.as_fd(), Path::new(FILES)).during(step)?;
    mount::attach(files.as_fd(), place.as_fd()).during(step)?;
    let files = mount::open_place(CWD, Path::new(FILES)).during(step)?;
    if !mount::exists(root, Path::new("tmp")) {
        let tmp = mount::make_dir(root, Path::new("tmp")).during("make /tmp")?;
        rustix::fs::chmodat(&tmp, ".", Mode::from_raw_mode(0o1777), AtFlags::empty()).during("make /tmp")?;
    }
    for path in &disks.directories {
        // One that is reached through links, or not at all, is the program's own business.
        let _ = mount::make_dir(root, Path::new(path));
    }
    for path in &disks.copied {
        copy(root, files.as_fd(), Path::new(path)).during(&format!("put {path} in its place"))?;
    }
    for shown in &disks.shown {
        show(root, files.as_fd(), shown).during(&format!("show {}", shown.path))?;
    }
    Ok(())
}

fn show(root: BorrowedFd<'_>, files: BorrowedFd<'_>, shown: &Shown) -> io::Result<()> {
    let path = Path::new(&shown.path);
    let target = match shown.is_directory {
        true => mount::make_dir(root, path)?,
        false => plain_file(root, path)?,
    };
    let inside = path.strip_prefix("/").unwrap_or(path);
    let tree = mount::clone_tree(files, inside, Depth::One)?;
    mount::restrict(tree.as_fd(), Access::ReadWrite, Depth::One)?;
    mount::attach(tree.as_fd(), target.as_fd())
}

/// A file at this path. What is there in its place, such as a link of the image, goes.
fn plain_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = mount::make_dir(root, path.parent().unwrap_or(Path::new("/")))?;
    if let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
        && FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
    {
        rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
    }
    mount::make_file(folder.as_fd(), Path::new(name))
}

/// Copies one file, with its directories, unless the root has it.
fn copy(root: BorrowedFd<'_>, files: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let (mut to, mut from) =
        (mount::make_dir(root, Path::new("/"))?, mount::open_plain(files, Path::new("."))?);
    for part in path.parent().into_iter().flat_map(Path::components).skip(1) {
        let part = Path::new(&part);
        let is_new = !mount::exists(to.as_fd(), part);
        (to, from) = (mount::make_dir(to.as_fd(), part)?, mount::open_plain(from.as_fd(), part)?);
        if is_new {
            look_like(&to, &from)?;
        }
    }
    let source = match rustix::fs::openat(&from, name, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty()) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(()),
        other => other?,
    };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(&to, name, flags, Mode::from_raw_mode(0o600)) {
        // What the program made of it stays.
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(err) => Err(err.into()),
        Ok(made) => {
            let stat = rustix::fs::fstat(&source)?;
            io::copy(&mut File::from(source), &mut File::from(made.try_clone()?))?;
            rustix::fs::fchown(&made, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
            Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(stat.st_mode & 0o7777))?)
        }
    }
}

fn look_like(made: &OwnedFd, like: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(like)?;
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(made, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    Ok(rustix::fs::chmodat(made, ".", Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())?)
}
