//! Locks of ranges that belong to an open file, not to a process (fcntl(2), "Open file description locks"): they meet the
//! locks of every other program of this host, and go with the last descriptor of the open file.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// What others may still do in a range that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lock it in the same way.
    Shared,
    /// Nothing.
    Exclusive,
}

/// Bytes of a file, both ends among them. The largest end means everything from the first on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub from: i64,
    /// The last.
    pub to: i64,
}

impl Range {
    /// A whole file, however long it becomes.
    pub const ALL: Range = Range { from: 0, to: i64::MAX };
}

/// Locks a range, or gives it back (`None`), at once. `WouldBlock` where somebody else has a lock in the way.
pub fn set(file: BorrowedFd<'_>, range: Range, kind: Option<Kind>) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, &mut described(range, kind)?)
}

/// A lock of somebody else that is in the way of this one.
pub fn in_the_way(file: BorrowedFd<'_>, range: Range, kind: Kind) -> io::Result<Option<(Range, Kind)>> {
    let mut lock = described(range, Some(kind))?;
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    let kind = match libc::c_int::from(lock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => Kind::Shared,
        _ => Kind::Exclusive,
    };
    let to = match lock.l_len {
        0 => i64::MAX,
        length => lock.l_start.saturating_add(length).saturating_sub(1),
    };
    Ok(Some((Range { from: lock.l_start, to }, kind)))
}

fn described(range: Range, kind: Option<Kind>) -> io::Result<libc::flock> {
    let Range { from, to } = range;
    if from < 0 || to < from {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let kind = match kind {
        None => libc::F_UNLCK,
        Some(Kind::Shared) => libc::F_RDLCK,
        Some(Kind::Exclusive) => libc::F_WRLCK,
    };
    Ok(libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(io::Error::other)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(io::Error::other)?,
        l_start: from,
        l_len: if to == i64::MAX { 0 } else { to - from + 1 },
        l_pid: 0,
    })
}

fn control(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    let pointer = std::ptr::from_mut(lock);
    // SAFETY: both commands take a whole `flock`, which outlives the call and is nobody else's.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, pointer) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::fd::AsFd};

    fn both(path: &std::path::Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn locks_of_two_open_files_meet_and_go_with_them() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let (one, two) = (both(place.path()), both(place.path()));
        let range = Range { from: 5, to: 9 };

        set(one.as_fd(), range, Some(Kind::Exclusive)).unwrap();
        let refused = set(two.as_fd(), Range::ALL, Some(Kind::Shared)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        set(two.as_fd(), Range { from: 10, to: i64::MAX }, Some(Kind::Exclusive)).unwrap();
        let found = in_the_way(two.as_fd(), Range::ALL, Kind::Shared).unwrap();
        assert_eq!(found, Some((range, Kind::Exclusive)));

        drop(one);
        set(two.as_fd(), Range::ALL, Some(Kind::Exclusive)).unwrap();
        assert_eq!(
            in_the_way(both(place.path()).as_fd(), range, Kind::Shared).unwrap().unwrap().0,
            Range::ALL
        );
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let place = tempfile::NamedTempFile::new().unwrap();
        for (from, to) in [(3, 2), (-1, 5)] {
            assert!(set(both(place.path()).as_fd(), Range { from, to }, None).is_err());
        }
    }
}
