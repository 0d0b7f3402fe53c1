//! File systems that a process serves: the kernel's device for them, their mounts, and who a serving thread acts as.
//!
//! The kernel serves a mount only through a device that was opened in the user namespace of the mount. Whoever mounts
//! therefore opens the device itself, and hands it to whoever serves.

use rustix::{
    fs::{Mode, OFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags},
    thread::CapabilitySet,
};
use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// The device.
pub const DEVICE: &str = "/dev/fuse";
/// Its numbers.
const NUMBERS: (u32, u32) = (10, 229);

/// Opens the device of this host, in the user namespace of this process.
pub fn open_device() -> io::Result<OwnedFd> {
    let device = crate::mount::open_device(Path::new(DEVICE), NUMBERS.0, NUMBERS.1)?;
    let path = format!("/proc/self/fd/{}", device.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// A new mount that is served through `device`, detached, `nosuid,nodev`. Every user of its user namespace may use it,
/// and the kernel checks permissions. The root is shown as a directory of `owner`.
pub fn mount(device: BorrowedFd<'_>, owner: (u32, u32)) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let options = [
        (c"source", "airlock".to_owned()),
        (c"fd", device.as_raw_fd().to_string()),
        (c"rootmode", "40000".to_owned()),
        (c"user_id", owner.0.to_string()),
        (c"group_id", owner.1.to_string()),
    ];
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(fs.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_set_flag(fs.as_fd(), c"default_permissions")?;
    rustix::mount::fsconfig_set_flag(fs.as_fd(), c"allow_other")?;
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Makes a regular file known to the kernel, which may then read and write it in place of the server. Needs host root.
pub fn open_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    let pointer = std::ptr::from_ref(&map);
    // SAFETY: the request takes a whole `fuse_backing_map`, which outlives the call.
    let number = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, pointer) };
    if number > 0 { u32::try_from(number).map_err(io::Error::other) } else { Err(io::Error::last_os_error()) }
}

/// The kernel needs such a file no more.
pub fn close_backing(device: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    let pointer = std::ptr::from_ref(&number);
    // SAFETY: the request takes a number, which outlives the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, pointer) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// This thread makes files with exactly the mode it says; the others keep their mask.
pub fn own_umask() -> io::Result<()> {
    // SAFETY: only the working directory, the root and the mask of this thread become its own.
    if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::process::umask(Mode::empty());
    Ok(())
}

/// From now on this thread, which is host root, opens and makes files as another user would, and has no power over the
/// files of others. Does nothing in a process that is not host root.
pub fn act_as(user: u32, group: u32) -> io::Result<()> {
    thread_local! {
        static ACTS_AS: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
    }
    if ACTS_AS.get() == Some((user, group)) || rustix::process::geteuid().as_raw() != 0 {
        return Ok(());
    }
    ACTS_AS.set(None);
    set_file_ids(user, group);
    // These calls never tell whether they did it; asking for an impossible id tells who one is.
    let (is_user, is_group) = (set_file_user(u32::MAX), set_file_group(u32::MAX));
    if (is_user, is_group) != (user, group) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    ACTS_AS.set(Some((user, group)));
    Ok(())
}

/// Does something as another user would, and is who it was again. Changes nothing where this process has no power over ids.
pub fn for_user<T>(user: u32, group: u32, act: impl FnOnce() -> T) -> io::Result<T> {
    let group = set_file_group(group);
    let user = set_file_user(user);
    let done = act();
    set_file_user(user);
    set_file_group(group);
    // With root's id came the power back that a thread may have given up.
    set_id_power(Power::Without)?;
    Ok(done)
}

/// The group first: a user without power could not change it any more.
fn set_file_ids(user: u32, group: u32) {
    set_file_user(0);
    set_file_group(group);
    set_file_user(user);
}

/// Gives the id from before.
fn set_file_user(user: u32) -> u32 {
    // SAFETY: changes only the id this thread uses for files.
    let before = unsafe { libc::syscall(libc::SYS_setfsuid, user) };
    u32::try_from(before).unwrap_or(u32::MAX)
}

fn set_file_group(group: u32) -> u32 {
    // SAFETY: changes only the id this thread uses for files.
    let before = unsafe { libc::syscall(libc::SYS_setfsgid, group) };
    u32::try_from(before).unwrap_or(u32::MAX)
}

/// From now on whatever this thread writes loses its set-id bits, as if the writer had no power over them. The kernel of
/// a machine asks for that; whether its program had the power, this kernel cannot know.
pub fn give_up_set_id() -> io::Result<()> {
    thread_local! {
        static GAVE_UP: Cell<bool> = const { Cell::new(false) };
    }
    if !GAVE_UP.get() {
        set_id_power(Power::Without)?;
        GAVE_UP.set(true);
    }
    Ok(())
}

/// Does something with the power over set-id bits that [`give_up_set_id`] took, as far as the process has it.
pub fn with_set_id<T>(act: impl FnOnce() -> T) -> io::Result<T> {
    set_id_power(Power::With)?;
    let done = act();
    set_id_power(Power::Without)?;
    Ok(done)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    With,
    Without,
}

fn set_id_power(power: Power) -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    let wanted = power == Power::With && sets.permitted.contains(CapabilitySet::FSETID);
    sets.effective.set(CapabilitySet::FSETID, wanted);
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[repr(C)]
struct BackingMap {
    fd: libc::c_int,
    flags: u32,
    padding: u64,
}

/// `_IOW(229, 1, struct fuse_backing_map)`
const BACKING_OPEN: libc::Ioctl = 0x4010_e501;
/// `_IOW(229, 2, uint32_t)`
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_gave_up_set_id_bits_takes_them_away_by_writing() {
        use std::{io::Write as _, os::unix::fs::PermissionsExt as _};
        let taken = std::thread::spawn(|| {
            give_up_set_id().unwrap();
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let mode = std::fs::Permissions::from_mode(0o6755);
            with_set_id(|| std::fs::set_permissions(file.path(), mode)).unwrap().unwrap();
            let before = file.path().metadata().unwrap().permissions().mode();
            file.write_all(b"x").unwrap();
            (before & 0o7777, file.path().metadata().unwrap().permissions().mode() & 0o7777)
        });
        assert_eq!(taken.join().unwrap(), (0o6755, 0o755));
    }

    #[test]
    fn a_thread_that_acts_as_another_has_no_power_over_the_files_of_root() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let dir = file.path().to_owned();
        let opened = std::thread::spawn(move || {
            act_as(65_533, 65_533).unwrap();
            let refused = std::fs::File::open(&dir).is_err();
            act_as(0, 0).unwrap();
            (refused, std::fs::File::open(&dir).is_ok())
        });
        assert_eq!(opened.join().unwrap(), (true, true));
    }
}
