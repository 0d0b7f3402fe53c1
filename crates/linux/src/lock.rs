//! Locks of ranges that belong to an open file, not to a process (fcntl(2), "Open file description locks"): they meet the
//! locks of every other program of this host, and go with the last descriptor of the open file.

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    time::{Duration, Instant},
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

/// Waits for the lock of a whole file or directory (flock(2)), at most so long, and says whether it has it. Those who wait stand
/// in a line, and the kernel wakes only the first.
///
/// An alarm clock ends the waiting: whoever calls this has no other use for its signal (SIGALRM), which has no effect from then on.
pub fn wait_in_line(file: BorrowedFd<'_>, longest: Duration) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {}
        other => return other.map(|()| true).map_err(io::Error::from),
    }
    let until = Instant::now() + longest;
    let _alarm = Alarm::set(longest)?;
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) if Instant::now() < until => {}
            Err(Errno::INTR) => return Ok(false),
            Err(err) => return Err(err.into()),
        }
    }
}

/// Interrupts whatever this thread waits for, again and again, until it is dropped.
struct Alarm(libc::timer_t);

impl Alarm {
    /// Rings after so long, and then again: the first may come when nothing is waited for yet.
    fn set(after: Duration) -> io::Result<Alarm> {
        extern "C" fn interrupt(_: libc::c_int) {}
        let interrupt: extern "C" fn(libc::c_int) = interrupt;
        // SAFETY: a structure of numbers and pointers, for which zero is a value.
        let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
        // Without SA_RESTART: what was waited for is not waited for again.
        action.sa_sigaction = interrupt as libc::sighandler_t;
        // SAFETY: `action` outlives the call, and its handler does nothing.
        if unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let mut event = unsafe { std::mem::zeroed::<libc::sigevent>() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both outlive the call.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let alarm = Alarm(timer);
        let time = |time: Duration| -> io::Result<libc::timespec> {
            let tv_sec = libc::time_t::try_from(time.as_secs()).map_err(io::Error::other)?;
            Ok(libc::timespec { tv_sec, tv_nsec: time.subsec_nanos().into() })
        };
        let times = libc::itimerspec { it_value: time(after)?, it_interval: time(AGAIN)? };
        // SAFETY: the timer was just made; nobody wants its old times.
        match unsafe { libc::timer_settime(alarm.0, 0, &raw const times, ptr::null_mut()) } {
            0 => Ok(alarm),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made by `set`, and deleted only here.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// How often an alarm rings after its time.
const AGAIN: Duration = Duration::from_millis(50);

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
    fn who_waits_in_line_has_the_lock_when_it_is_given_back_or_goes_without() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let (first, second) = (both(place.path()), both(place.path()));
        assert!(wait_in_line(first.as_fd(), Duration::ZERO).unwrap());

        let in_vain = wait_in_line(second.as_fd(), Duration::from_millis(1)).unwrap();
        let waiting = std::thread::spawn(move || wait_in_line(second.as_fd(), Duration::from_secs(600)));
        drop(first);

        assert!(!in_vain);
        assert!(waiting.join().unwrap().unwrap());
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
