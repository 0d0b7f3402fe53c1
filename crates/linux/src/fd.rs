//! Passing and closing descriptors.
//!
//! ```
//! use airlock_linux::fd;
//! use std::os::fd::AsFd;
//! let (left, right) = fd::pair()?;
//! fd::send_with_fds(left.as_fd(), b"take this", &[std::io::stderr().as_fd()])?;
//! let (mut bytes, mut received) = ([0; 64], Vec::new());
//! assert_eq!(fd::receive_with_fds(right.as_fd(), &mut bytes, &mut received)?, 9);
//! assert_eq!(received.len(), 1);
//! # Ok::<(), std::io::Error>(())
//! ```

use rustix::{
    fs::{FileType, OFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};
use std::{
    collections::BTreeSet,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, PoisonError},
};

/// The file system of pipes without a name (include/uapi/linux/magic.h).
const PIPEFS: u64 = 0x5049_5045;

/// Most descriptors one call takes or gives; more that arrive are closed.
pub const MOST: usize = 9;

/// A connected pair of stream sockets, closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sends bytes with descriptors attached to the first of them. May send only a part of the bytes; the
/// descriptors have then gone with that part. `bytes` must not be empty if `fds` is not.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Sends all bytes on a blocking socket, the descriptors with the first of them.
pub fn send_all(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut rest = bytes;
    let mut fds = fds;
    while !rest.is_empty() {
        match send_with_fds(socket, rest, fds) {
            Ok(sent) => {
                rest = rest.get(sent..).unwrap_or_default();
                fds = &[];
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Receives bytes and whatever descriptors came with them (closed on exec). 0 means the peer is gone.
pub fn receive_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}

/// Closes every descriptor from `first` on that is not in `keep`, at exec: what the program inherits is
/// exactly what was meant.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    let first = libc::c_uint::try_from(first).map_err(io::Error::other)?;
    // SAFETY: only sets a flag on descriptors of this process; none is closed under a live owner.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor from 3 on but one. For children of [`crate::clone::fork`] that never return: what they
/// inherited must not live on with them.
pub fn close_all_but(kept: BorrowedFd<'_>) -> io::Result<()> {
    let kept = libc::c_uint::try_from(std::os::fd::AsRawFd::as_raw_fd(&kept)).map_err(io::Error::other)?;
    for (first, last) in [(3, kept.saturating_sub(1)), (kept.saturating_add(1).max(3), libc::c_uint::MAX)] {
        // SAFETY: the caller owns this process alone and never uses (or drops) what it inherited.
        if first <= last && unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Switches a descriptor's reads and writes to never wait.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// Takes over a descriptor that the parent process left open under a known number.
///
/// Fails if nothing is open there. Each number may be taken once in a process.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
    if !TAKEN.lock().unwrap_or_else(PoisonError::into_inner).insert(number) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this descriptor was taken before"));
    }
    // SAFETY: F_GETFD only asks; a number with nothing open gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and the mark above makes this the only owner in the process.
    let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Why a descriptor may not become a standard stream of a sandboxed program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It opens the host's files by relative paths.
    Directory,
    /// It stands for a place, not for bytes.
    PathOnly,
    /// Writing to it is writing to a disk.
    BlockDevice,
}

/// Checks that a descriptor hands in bytes and nothing else. Terminals are the caller's business.
pub fn check_stream(fd: BorrowedFd<'_>) -> io::Result<Result<(), Unfit>> {
    if rustix::fs::fcntl_getfl(fd)?.contains(OFlags::PATH) {
        return Ok(Err(Unfit::PathOnly));
    }
    let mode = rustix::fs::fstat(fd)?.st_mode;
    Ok(match FileType::from_raw_mode(mode) {
        FileType::Directory => Err(Unfit::Directory),
        FileType::BlockDevice => Err(Unfit::BlockDevice),
        _ => Ok(()),
    })
}

/// Whether the descriptor is a pipe without a name. A named one is a file of the host, with an owner of its own.
pub fn is_pipe(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|kind| kind == PIPEFS))
}

/// Whether the descriptor is a regular file.
pub fn is_file(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_directory_is_no_standard_stream() {
        let dir = File::open("/").unwrap();
        assert_eq!(check_stream(dir.as_fd()).unwrap(), Err(Unfit::Directory));
    }

    #[test]
    fn a_pipe_is_a_standard_stream() {
        let (read, _write) = io::pipe().unwrap();
        assert_eq!(check_stream(read.as_fd()).unwrap(), Ok(()));
    }

    #[test]
    fn an_inherited_descriptor_can_be_taken_once() {
        let file = File::open("/dev/null").unwrap();
        // Far above what other tests of this process have open, whose numbers must not be taken from them.
        let number = rustix::io::fcntl_dupfd_cloexec(&file, 900).unwrap();
        let raw = std::os::fd::IntoRawFd::into_raw_fd(number);
        assert!(inherited(raw).is_ok());
        assert!(inherited(raw).is_err());
    }
}
