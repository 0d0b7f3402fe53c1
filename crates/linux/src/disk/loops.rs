//! A loop device that clears itself, and the file system on it as a detached mount.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use super::Error;

/// loop(4), linux/loop.h.
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_SET_DIRECT_IO: libc::Ioctl = 0x4C08;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// The kernel names a free device, and anyone may take it first.
const TRIES: usize = 256;

/// `struct loop_config` with its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// `lo_device`, `lo_inode`, `lo_rdevice`, `lo_offset`, `lo_sizelimit`.
    places: [u64; 5],
    /// `lo_number`, `lo_encrypt_type`, `lo_encrypt_key_size`.
    numbers: [u32; 3],
    flags: u32,
    /// `lo_file_name`, `lo_crypt_name`, `lo_encrypt_key`.
    names: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Mounts the ext4 file system in `image`. The device is ours from the first moment (attaching and flagging are one call), and
/// it is cleared when the mount and the device's descriptor, which are returned in this order, are gone.
pub(super) fn mount(path: &Path, image: &File) -> Result<(OwnedFd, OwnedFd), Error> {
    let (device_path, device) =
        attach(image).map_err(|source| Error::Loop { path: path.to_path_buf(), source })?;
    let mounted = mount_device(&device_path)
        .map_err(|errno| Error::Mount { path: path.to_path_buf(), source: errno.into() })?;
    Ok((mounted, device))
}

/// Makes the device write past the host's page cache.
pub(super) fn set_direct(device: &OwnedFd) -> io::Result<()> {
    let on: libc::c_ulong = 1;
    // SAFETY: LOOP_SET_DIRECT_IO takes a number and the descriptor is open.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_DIRECT_IO, on) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(super) fn attach(image: &File) -> io::Result<(PathBuf, OwnedFd)> {
    let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..TRIES {
        let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
        let device = match open(&path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(device) => device,
            // Removed or taken exclusively since the kernel named it.
            Err(Errno::NXIO | Errno::BUSY) => continue,
            Err(other) => return Err(other.into()),
        };
        match configure(&device, image) {
            Ok(()) => return Ok((path, device)),
            Err(taken) if taken.raw_os_error() == Some(libc::EBUSY) => {}
            Err(other) => return Err(other),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

fn free_number(control: &OwnedFd) -> io::Result<i32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and the descriptor is open.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

fn configure(device: &OwnedFd, image: &File) -> io::Result<()> {
    let config = LoopConfig {
        fd: u32::try_from(image.as_fd().as_raw_fd()).map_err(io::Error::other)?,
        block_size: 4096,
        places: [0; 5],
        numbers: [0; 3],
        flags: LO_FLAGS_AUTOCLEAR,
        names: [0; 160],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads one `struct loop_config`, whose layout LoopConfig has; it lives until the call returns.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn mount_device(device: &Path) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", device)?;
    // The inode tables of a sparse file are zero without anyone writing them.
    fsconfig_set_flag(context.as_fd(), "noinit_itable")?;
    fsconfig_set_string(context.as_fd(), "errors", "remount-ro")?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_size_the_kernel_reads() {
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
