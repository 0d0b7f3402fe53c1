//! This program going on in a second process that outlives the first. Nothing is executed anew, so that nothing is
//! loaded, relocated and paged in a second time: that is a sixth of a start.
//!
//! ```no_run
//! use airlock_linux::detach::{Detached, Side, fork};
//! use std::{fs::File, os::fd::AsFd};
//! let null = File::open("/dev/null")?;
//! let other = Detached {
//!     title: "airlock keep",
//!     environment: &[c"PATH=/usr/bin".into()],
//!     descriptors: &[null.as_fd(), null.as_fd(), null.as_fd()],
//! };
//! match fork(&other)? {
//!     Side::Parent => {}
//!     Side::Child => std::process::exit(0),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

use crate::{clone, signal};
use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

/// What the second process has: a session of its own, no terminal, directory `/`, no signal blocked or ignored (but
/// SIGPIPE, as in every program of Rust), and nothing of the first one's that is not named here.
#[derive(Debug)]
pub struct Detached<'a> {
    /// How lists of processes show it.
    pub title: &'a str,
    /// Its whole environment, `NAME=value`.
    pub environment: &'a [CString],
    /// Its descriptors 0, 1, 2 and so on. All others are closed.
    pub descriptors: &'a [BorrowedFd<'a>],
}

/// Who returned from [`fork`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The caller.
    Parent,
    /// The second process. What owned a descriptor in the first one must never be dropped here: it must end without
    /// returning to whoever called.
    Child,
}

/// Forks. Fails with `EINVAL` where the process has more than one thread: the child may run any code. A child that
/// cannot be set apart from its parent ends at once.
pub fn fork(detached: &Detached<'_>) -> io::Result<Side> {
    clone::assert_single_threaded()?;
    // SAFETY: the process has one thread, so the copy is whole and may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => match set_apart(detached) {
            Ok(()) => Ok(Side::Child),
            Err(_) => clone::exit_now(125),
        },
        _ => Ok(Side::Parent),
    }
}

fn set_apart(detached: &Detached<'_>) -> io::Result<()> {
    rustix::process::setsid()?;
    signal::reset_for_copy();
    take_descriptors(detached.descriptors)?;
    rustix::process::chdir("/")?;
    replace_environment(detached.environment);
    if let Some(area) = Area::of_this_process() {
        area.fill(detached.title, detached.environment);
    }
    Ok(rustix::thread::set_name(c"airlock")?)
}

/// Gives descriptors their new numbers and closes all others.
fn take_descriptors(descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    // Out of the way of the numbers they are about to get.
    let count = i32::try_from(descriptors.len()).map_err(io::Error::other)?;
    let sources: Vec<OwnedFd> = descriptors
        .iter()
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, count.max(10)))
        .collect::<Result<_, _>>()?;
    for (number, source) in (0..count).zip(&sources) {
        // SAFETY: the number may belong to an owner of the parent's, which never acts in this process (see `Side`).
        if unsafe { libc::dup2(source.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Closed below, with everything else.
    std::mem::forget(sources);
    let first = libc::c_uint::try_from(count).map_err(io::Error::other)?;
    // SAFETY: as above; `sources` are forgotten.
    match unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn replace_environment(environment: &[CString]) {
    // SAFETY: the process has one thread, and nobody holds a pointer into its environment.
    unsafe { libc::clearenv() };
    for entry in environment {
        // Kept for good: the environment refers to it.
        let entry = entry.clone().into_raw();
        // SAFETY: a string that ends with zero and lives as long as the process.
        unsafe { libc::putenv(entry) };
    }
}

/// The memory in which the kernel finds the arguments and the environment this process was executed with, to show them
/// to others. The process itself has copies of what it needs.
struct Area {
    start: usize,
    end_of_arguments: usize,
    end: usize,
}

impl Area {
    /// Where it is, unless it is not as the kernel has always laid it out: arguments, then environment, adjacent.
    fn of_this_process() -> Option<Area> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        Area::parse(&stat)
    }

    /// Fields 48 to 51 of proc_pid_stat(5). The second may contain anything, in parentheses.
    fn parse(stat: &str) -> Option<Area> {
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ').skip(45).map(|field| field.trim_end().parse::<usize>().ok());
        let mut next = || fields.next().flatten();
        let (start, end_of_arguments, environment, end) = (next()?, next()?, next()?, next()?);
        let is_whole =
            0 < start && start < end_of_arguments && end_of_arguments == environment && environment < end;
        is_whole.then_some(Area { start, end_of_arguments, end })
    }

    /// Shows `title` for the arguments and `environment` for the environment, as far as there is room.
    fn fill(&self, title: &str, environment: &[CString]) {
        let bytes = self.contents(title, environment);
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: the kernel mapped this memory for this process, writable, and says where it is; `bytes` is exactly
        // as long. The strings in it are referred to by `argv`, which nobody reads any more, and by the old
        // environment, which is replaced.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// The whole memory anew. A title longer than the arguments goes on where the environment was: if the last byte of
    /// the arguments is no zero, the kernel shows one string that ends with the first zero (fs/proc/base.c).
    fn contents(&self, title: &str, environment: &[CString]) -> Vec<u8> {
        let (all, arguments) = (self.end - self.start, self.end_of_arguments - self.start);
        let mut bytes: Vec<u8> =
            title.bytes().filter(|byte| *byte != 0).take(all.saturating_sub(1)).collect();
        bytes.push(0);
        if bytes.len() < arguments {
            bytes.resize(arguments, 0);
        }
        for entry in environment.iter().map(|entry| entry.as_bytes_with_nul()) {
            if bytes.len() + entry.len() <= all {
                bytes.extend_from_slice(entry);
            }
        }
        bytes.resize(all, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(arguments: usize, environment: usize) -> Area {
        Area { start: 1000, end_of_arguments: 1000 + arguments, end: 1000 + arguments + environment }
    }

    #[test]
    fn a_title_shorter_than_the_arguments_is_followed_by_zeros_and_the_environment() {
        let bytes = area(8, 6).contents("keep", &[c"A=b".into()]);
        assert_eq!(bytes, b"keep\0\0\0\0A=b\0\0\0");
    }

    #[test]
    fn a_longer_title_goes_on_where_the_environment_was_and_the_rest_comes_where_there_is_room() {
        let bytes = area(3, 12).contents("keep x", &[c"LONG=longer".into(), c"A=b".into()]);
        assert_eq!(bytes, b"keep x\0A=b\0\0\0\0\0");
    }

    #[test]
    fn nothing_is_written_beyond_the_memory_there_is() {
        assert_eq!(area(2, 2).contents("keep", &[c"A=b".into()]), b"kee\0");
    }

    #[test]
    fn the_memory_is_found_behind_any_name_and_only_where_it_is_whole() {
        let stat = |tail: &str| format!("7 (a) b) S {}{tail}\n", "0 ".repeat(44));
        let found = Area::parse(&stat("100 200 200 300 0")).unwrap();
        assert_eq!((found.start, found.end_of_arguments, found.end), (100, 200, 300));
        for odd in ["100 200 201 300 0", "0 0 0 0 0", "100 200 200 200 0", "200 100 100 300 0", "100 200", ""]
        {
            assert!(Area::parse(&stat(odd)).is_none(), "{odd}");
        }
        assert!(Area::of_this_process().is_some());
    }
}
