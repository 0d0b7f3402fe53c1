//! A tree that is being made: where we are in it, and what an entry gets.

use super::walk::open_below;
use rustix::{
    fs::{FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// The device number of a whiteout: a character device that is none.
pub(super) const WHITEOUT: u64 = 0;
/// What marks a directory that hides all below it.
pub(super) const OPAQUE: &CStr = c"user.overlay.opaque";
/// What marks what was copied from below, to be changed.
pub(super) const ORIGIN: &CStr = c"user.overlay.origin";

/// What a program may do more than who runs it.
pub(super) const CAPABILITY: &CStr = c"security.capability";

/// How the attributes that belong to overlays begin.
pub(super) const OVERLAY: &[u8] = b"user.overlay.";

/// Whether it stands for something that was deleted.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == WHITEOUT
}

/// Makes a whiteout.
pub(super) fn make_whiteout(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Ok(rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), WHITEOUT)?)
}

/// Opens a file to read its bytes. It may have become something else, but nothing that waits.
pub(super) fn open_file(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it became something else meanwhile"));
    }
    Ok(file.into())
}

/// Makes a file that was not there.
pub(super) fn make_file(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Makes a directory that was not there, and opens it.
pub(super) fn make_directory(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    open_below(parent, name)
}

/// Owner and mode. The owner first: changing it takes set-id bits away.
pub(super) fn give(file: BorrowedFd<'_>, owner: (u32, u32), mode: u32) -> io::Result<()> {
    rustix::fs::fchown(file, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777))?)
}

/// When it was changed, by its times.
pub(super) fn times(stat: &Stat) -> Timestamps {
    let nanoseconds = |value| i64::try_from(value).unwrap_or(0);
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: nanoseconds(stat.st_atime_nsec) },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: nanoseconds(stat.st_mtime_nsec) },
    }
}

/// Every extended attribute that this process may read.
pub(super) fn attributes(file: BorrowedFd<'_>) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut list = vec![0u8; 64 << 10];
    let length = match rustix::fs::flistxattr(file, &mut list) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(err) => return Err(err.into()),
    };
    let mut found = Vec::new();
    for name in
        list.get(..length).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty())
    {
        let name = CString::new(name)?;
        let mut value = vec![0u8; 64 << 10];
        if let Ok(length) = rustix::fs::fgetxattr(file, &name, &mut value) {
            value.truncate(length);
            found.push((name, value));
        }
    }
    Ok(found)
}

/// Sets one, where this process may and the file system can. `false` if not.
pub(super) fn set_attribute(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<bool> {
    match rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::RANGE | Errno::TOOBIG | Errno::NOSPC | Errno::INVAL) => {
            Ok(false)
        }
        Err(err) => Err(err.into()),
    }
}

/// The directory above, for trees that only this process changes.
pub(super) fn above(directory: &impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, "..", flags, Mode::empty())?)
}
