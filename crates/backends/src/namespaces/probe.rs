//! An overlay can mount and then refuse every write: found out here, not by the program.

use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{io, os::fd::BorrowedFd, path::Path};

/// Makes a file in a directory of an overlay. It has no name, so that nothing of it is left, whoever is killed when.
pub(super) fn write(root: BorrowedFd<'_>, directory: &Path) -> io::Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(root, directory, flags, mode) {
        // Overlays can since Linux 6.3.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        made => return Ok(made.map(drop)?),
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let named = directory.join(format!(".airlock-probe-{}-{}", now.tv_sec, now.tv_nsec));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, &named, flags, mode)?;
    Ok(rustix::fs::unlinkat(root, &named, AtFlags::empty())?)
}
