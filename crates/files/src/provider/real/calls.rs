//! What a provider's words are in calls of the host's kernel.

use super::nodes::{self, WITHIN, Way};
use crate::provider::types::{Kind, Name, Result, Room, Time, Want};
use rustix::{
    fs::{AtFlags, Mode, OFlags, Timespec},
    io::Errno,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A new file, open for both. A name that is there is never followed.
pub(super) fn create_file(directory: BorrowedFd<'_>, name: Name<'_>, mode: u32, way: Way) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode & 0o1777);
    match way {
        Way::OneMount => rustix::fs::openat2(directory, name.bytes(), flags, mode, WITHIN),
        Way::AllMounts => rustix::fs::openat(directory, name.bytes(), flags, mode),
    }
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

pub(super) fn kind_of(
    directory: &OwnedFd,
    name: &[u8],
    told: rustix::fs::FileType,
    way: Way,
) -> Option<Kind> {
    if matches!(name, b"." | b"..") {
        return None;
    }
    let bits = match told {
        rustix::fs::FileType::Unknown => {
            rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode
        }
        told => told.as_raw_mode(),
    };
    nodes::kind(bits, way)
}

pub(super) fn timespec(time: Option<Time>) -> Timespec {
    match time {
        Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    }
}

/// Appends what is there of so many bytes; fewer only at the end of the file.
pub(super) fn read_all(file: impl AsFd, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
    let (start, mut count) = (into.len(), 0);
    into.resize(start + size, 0);
    while let Some(rest) = into.get_mut(start + count..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(&file, rest, offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(Errno::INTR) => {}
            Err(err) => return Err(err),
        }
    }
    into.truncate(start + count);
    Ok(())
}

/// Writes all, or as many as there is room for.
pub(super) fn write_all(file: impl AsFd, offset: u64, bytes: &[u8]) -> Result<usize> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(&file, rest, offset + written as u64) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(_) if written > 0 => break,
            Err(err) => return Err(err),
        }
    }
    Ok(written)
}

pub(super) fn room(place: BorrowedFd<'_>) -> Result<Room> {
    let stat = rustix::fs::fstatvfs(place)?;
    Ok(Room {
        block: u32::try_from(stat.f_frsize).unwrap_or(4096),
        blocks: stat.f_blocks,
        free: stat.f_bavail,
        files: stat.f_files,
        files_free: stat.f_favail,
    })
}
