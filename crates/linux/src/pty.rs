//! Terminals of sandboxes.
//!
//! The keeper makes them itself, from the sandbox's own devpts, through a descriptor it got while the sandbox was
//! being built: nothing the sandbox says is involved.

use rustix::{
    fs::{Mode, OFlags},
    pty::OpenptFlags,
    termios::Winsize,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// A new terminal: the keeper keeps `master`, the program gets `slave`.
#[derive(Debug)]
pub struct Pty {
    /// The keeper's end, never waits.
    pub master: OwnedFd,
    /// The program's end.
    pub slave: OwnedFd,
}

/// Makes a terminal in the devpts whose root directory is `pts`.
pub fn open(pts: BorrowedFd<'_>) -> io::Result<Pty> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let master = rustix::fs::openat(pts, "ptmx", flags | OFlags::NOFOLLOW, Mode::empty())?;
    let stat = rustix::fs::fstat(&master)?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if device != (5, 2) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "ptmx of the sandbox is not the ptmx device"));
    }
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    Ok(Pty { master, slave })
}

/// Tells a terminal its size; the program gets SIGWINCH.
pub fn resize(terminal: impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}
