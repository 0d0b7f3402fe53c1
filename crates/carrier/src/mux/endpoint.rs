//! A descriptor as an end of a stream: read and written without waiting, whatever it is.

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

/// What a pipe takes without waiting once it is ready (pipe(7), `PIPE_BUF`).
const ATOMIC: usize = 4096;

/// A descriptor that bytes are read from or written to.
#[derive(Debug)]
pub(crate) struct Endpoint {
    file: OwnedFd,
    way: Way,
}

/// Whether others hold the same open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody else does: it may be switched and shut down.
    Us,
    /// Whoever gave it may.
    Others,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It does not wait, because it is so by nature or was switched.
    Plain,
    /// It might wait: it is written only when ready, and little at once.
    Little,
    Socket(Owner),
}

/// How a read went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Later,
    /// Nothing any more.
    End,
}

/// How a write went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Later,
    /// Nobody takes them any more.
    Gone,
}

impl Endpoint {
    /// Takes a descriptor as it is.
    pub(crate) fn new(file: OwnedFd, owner: Owner) -> io::Result<Endpoint> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        Ok(match (kind, owner) {
            (FileType::Socket, owner) => Endpoint { file, way: Way::Socket(owner) },
            (_, Owner::Us) => {
                airlock_linux::fd::set_nonblocking(file.as_fd())?;
                Endpoint { file, way: Way::Plain }
            }
            (FileType::Fifo, Owner::Others) => match reopen(&file) {
                Ok(own) => Endpoint { file: own, way: Way::Plain },
                Err(_) => Endpoint { file, way: Way::Little },
            },
            (_, Owner::Others) => Endpoint { file, way: Way::Plain },
        })
    }

    pub(super) fn read(&self, into: &mut [u8]) -> Read {
        let read = match self.way {
            Way::Plain | Way::Little => rustix::io::read(&self.file, into),
            Way::Socket(_) => {
                rustix::net::recv(&self.file, into, RecvFlags::DONTWAIT).map(|(count, _)| count)
            }
        };
        match read {
            Ok(0) => Read::End,
            Ok(count) => Read::Bytes(count),
            Err(Errno::AGAIN | Errno::INTR) => Read::Later,
            // A terminal nobody holds any more says EIO.
            Err(_) => Read::End,
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> Written {
        let written = match self.way {
            Way::Plain => rustix::io::write(&self.file, bytes),
            Way::Little => rustix::io::write(&self.file, bytes.get(..ATOMIC).unwrap_or(bytes)),
            Way::Socket(_) => rustix::net::send(&self.file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
        match written {
            Ok(count) => Written::Bytes(count),
            Err(Errno::AGAIN | Errno::INTR) => Written::Later,
            Err(_) => Written::Gone,
        }
    }

    /// Tells whoever reads at the other side that nothing more comes.
    pub(super) fn end_writing(&self) {
        if let Way::Socket(_) = self.way {
            // One that is no longer connected has been told.
            let _ = rustix::net::shutdown(&self.file, Shutdown::Write);
        }
    }

    /// Tells whoever writes at the other side that nothing more is taken.
    pub(super) fn end_reading(&self) {
        if self.way == Way::Socket(Owner::Us) {
            let _ = rustix::net::shutdown(&self.file, Shutdown::Read);
        }
    }

    /// How much can be read now, where the kernel knows: what a terminal shows takes a way of its own to its reader.
    pub(super) fn waiting(&self) -> Option<u64> {
        if rustix::termios::isatty(&self.file) {
            return None;
        }
        rustix::io::ioctl_fionread(&self.file).ok()
    }

    pub(super) fn is_socket(&self) -> bool {
        matches!(self.way, Way::Socket(_))
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The same pipe once more, so that switching it changes nothing for those who share the first.
fn reopen(pipe: &OwnedFd) -> io::Result<OwnedFd> {
    let access = rustix::fs::fcntl_getfl(pipe)? & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)
}
