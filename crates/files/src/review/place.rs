//! Acts on directories of the host: each one a single step of the kernel, none follows a link.

use super::{
    change::Seen,
    content::fill,
    tree::{DIRECTORY_FLAGS, look, open_below},
};
use rustix::{
    buffer::spare_capacity,
    fs::{
        AtFlags, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags, fchmod,
        fchown, openat, renameat_with, unlinkat, utimensat,
    },
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

/// Who owns what is made.
pub(super) type Owner = Option<(u32, u32)>;

const BLOCK: usize = 256 << 10;
/// Largest value and largest list of extended attributes (xattr(7)).
const MOST_ATTRIBUTE: usize = 64 << 10;

/// Opens a directory below another; the empty path is the directory itself.
pub(super) fn open_directory(top: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { OsStr::new(".") } else { path.as_os_str() };
    open_below(top, path, DIRECTORY_FLAGS)
}

/// What stands at a name now.
pub(super) fn seen(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Seen>, Errno> {
    Ok(look(parent, name)?.map(|stat| Seen::new(&stat, 0)))
}

/// A file with the content of another, on disk, under a new name. Holes stay holes, and nothing is read beyond the size that
/// the file had when it was opened.
pub(super) fn make_file(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    source: &mut File,
    mode: u32,
) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
    let metadata = source.metadata()?;
    copy(source, &mut file, metadata.len())?;
    finish(&file, source, mode)?;
    Ok(file)
}

fn finish(file: &File, source: &File, mode: u32) -> io::Result<()> {
    fchmod(file, Mode::from_raw_mode(mode & 0o777))?;
    let stat = rustix::fs::fstat(source)?;
    set_mtime(file.as_fd(), (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)))
}

/// Gives a new file to its owner, as root does it. Permissions come after: a change of owner may take bits away.
pub(super) fn give(file: BorrowedFd<'_>, owner: Owner, mode: u32) -> io::Result<()> {
    if let Some((user, group)) = owner {
        fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        fchmod(file, Mode::from_raw_mode(mode & 0o777))?;
    }
    Ok(())
}

pub(super) fn set_mtime(file: BorrowedFd<'_>, (seconds, nanoseconds): (i64, u32)) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps {
        last_access: now,
        last_modification: Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) },
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

/// Copies extended attributes, as far as the file system and this process's rights go.
pub(super) fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let (mut names, mut value) = (Vec::with_capacity(MOST_ATTRIBUTE), Vec::with_capacity(MOST_ATTRIBUTE));
    if rustix::fs::flistxattr(from, spare_capacity(&mut names)).is_err() {
        return;
    }
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        value.clear();
        if rustix::fs::fgetxattr(from, name, spare_capacity(&mut value)).is_ok() {
            let _ = rustix::fs::fsetxattr(to, name, &value, XattrFlags::empty());
        }
    }
}

/// As [`set_mtime`], of a link itself.
pub(super) fn set_link_mtime(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    (seconds, nanoseconds): (i64, u32),
) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps {
        last_access: now,
        last_modification: Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) },
    };
    Ok(utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Copies `length` bytes; shares them where the file system can.
fn copy(source: &mut File, target: &mut File, length: u64) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(&mut *target, &*source).is_ok() {
        return target.set_len(length);
    }
    let mut buffer = vec![0u8; BLOCK.min(usize::try_from(length).unwrap_or(BLOCK)).max(1)];
    let mut at = 0u64;
    while at < length {
        let data = match rustix::fs::seek(&*source, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole is left; or the file has been cut.
            Err(Errno::NXIO) => break,
            // Not every file system knows of holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(&*source, SeekFrom::Hole(data)).unwrap_or(length).min(length);
        rustix::fs::seek(&*source, SeekFrom::Start(data))?;
        rustix::fs::seek(&*target, SeekFrom::Start(data))?;
        at = data;
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(BLOCK).min(buffer.len());
            let block = fill(source, buffer.get_mut(..wanted).unwrap_or_default())?;
            if block.is_empty() {
                return target.set_len(length);
            }
            target.write_all(block)?;
            at += u64::try_from(block.len()).unwrap_or(0);
        }
    }
    target.set_len(length)
}

/// Renames where nothing may stand yet.
pub(super) fn rename_new(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr)) -> Result<(), Errno> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        // Some file systems know no flags. Whoever is quicker than this look loses nothing that was reviewed.
        Err(Errno::INVAL | Errno::NOSYS) => match look(to.0, to.1)? {
            Some(_) => Err(Errno::EXIST),
            None => rustix::fs::renameat(from.0, from.1, to.0, to.1),
        },
        other => other,
    }
}

/// Two names of a directory trade places.
pub(super) fn exchange(parent: BorrowedFd<'_>, one: &OsStr, other: &OsStr) -> Result<(), Errno> {
    renameat_with(parent, one, parent, other, RenameFlags::EXCHANGE)
}

/// Changes the permissions of a file or directory, by itself.
pub(super) fn set_mode(parent: BorrowedFd<'_>, name: &OsStr, mode: u32) -> Result<(), Errno> {
    let place = open_below(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o777))
}

/// Removes a file or link; fine if it is gone.
pub(super) fn unlink(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes an empty directory; fine if it is gone.
pub(super) fn remove_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
