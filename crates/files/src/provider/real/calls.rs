//! What a provider's words are in calls of the host's kernel.

use super::nodes::WITHIN;
use crate::provider::types::{Kind, Name, Result, Time, Want};
use rustix::{
    fs::{AtFlags, Mode, OFlags, Timespec},
    io::Errno,
};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Only what any user may set; capabilities and labels of the host are not the sandbox's business.
pub(super) fn own_attribute(name: &[u8], otherwise: Errno) -> Result<()> {
    if name.starts_with(b"user.") { Ok(()) } else { Err(otherwise) }
}

/// A new file, open for both.
pub(super) fn new_file(directory: BorrowedFd<'_>, name: Name<'_>, mode: u32) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(directory, name.bytes(), flags, Mode::from_raw_mode(mode & 0o1777), WITHIN)
}

pub(super) fn flags(want: Want) -> OFlags {
    let mut flags = match (want.read, want.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    flags.set(OFlags::APPEND, want.append);
    flags.set(OFlags::TRUNC, want.truncate);
    flags
}

pub(super) fn kind_of(directory: &OwnedFd, name: &[u8], told: rustix::fs::FileType) -> Option<Kind> {
    if matches!(name, b"." | b"..") {
        return None;
    }
    let bits = match told {
        rustix::fs::FileType::Unknown => {
            rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode
        }
        told => told.as_raw_mode(),
    };
    Kind::from_bits(bits)
}

pub(super) fn timespec(time: Option<Time>) -> Timespec {
    match time {
        Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    }
}
