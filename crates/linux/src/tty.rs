//! The terminal of the person: its size, raw mode, and getting it back whatever happens.
//!
//! While the terminal is raw, a small process of its own (the guardian) waits for this one to end. If it ends without
//! putting the terminal back (kill -9), the guardian does.
//!
//! ```no_run
//! use airlock_linux::tty::Raw;
//! use std::os::fd::AsFd;
//! let mut raw = Raw::prepare(std::io::stdin().as_fd())?;
//! raw.enter()?;   // bytes flow as they are typed
//! raw.leave()?;   // as it was before; also when dropped
//! # Ok::<(), std::io::Error>(())
//! ```

use crate::signal;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// A terminal that can be switched to raw mode and is put back at the end.
#[derive(Debug)]
pub struct Raw {
    terminal: OwnedFd,
    before: Termios,
    guardian: Option<Guardian>,
    is_raw: bool,
}

/// The process that waits for this one to end, and our end of the pipe by which it notices.
#[derive(Debug)]
struct Guardian {
    pid: rustix::process::Pid,
    held: OwnedFd,
}

impl Raw {
    /// Remembers how the terminal is now; changes nothing yet.
    pub fn prepare(terminal: BorrowedFd<'_>) -> io::Result<Raw> {
        let before = tcgetattr(terminal)?;
        let terminal = rustix::io::fcntl_dupfd_cloexec(terminal, 3)?;
        Ok(Raw { terminal, before, guardian: None, is_raw: false })
    }

    /// Raw mode: every byte is passed on as typed, none is interpreted. The first call starts the guardian.
    ///
    /// Call it only while [`is_foreground`]: the kernel stops a background process that tries. The process must have
    /// one thread: it forks.
    pub fn enter(&mut self) -> io::Result<()> {
        if self.is_raw {
            return Ok(());
        }
        // What was set meanwhile (by a shell, between a stop and a continue) is what to come back to.
        self.before = tcgetattr(&self.terminal)?;
        self.guardian = Some(guard(self.terminal.as_fd(), &self.before)?);
        tcsetattr(&self.terminal, OptionalActions::Drain, &raw_form(&self.before))?;
        self.is_raw = true;
        Ok(())
    }

    /// The terminal as it was before.
    pub fn leave(&mut self) -> io::Result<()> {
        if !self.is_raw {
            return Ok(());
        }
        tcsetattr(&self.terminal, OptionalActions::Drain, &self.before)?;
        self.is_raw = false;
        if let Some(guardian) = self.guardian.take() {
            guardian.dismiss();
        }
        Ok(())
    }

    /// Whether it is raw now.
    pub fn is_raw(&self) -> bool {
        self.is_raw
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone (hung up) needs no restoring.
        let _ = self.leave();
    }
}

/// Whether the descriptor is a terminal.
pub fn is_terminal(fd: impl AsFd) -> bool {
    rustix::termios::isatty(fd)
}

/// Rows and columns, or `None` if it is no terminal or does not know.
pub fn size(terminal: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Whether this process may read from the terminal and change its modes without being stopped.
pub fn is_foreground(terminal: impl AsFd) -> bool {
    match rustix::termios::tcgetpgrp(terminal) {
        Ok(group) => group == rustix::process::getpgrp(),
        // Not our controlling terminal: no job control there, so nobody stops us.
        Err(_) => true,
    }
}

/// Whether the terminal hands over whole lines. If not, some other program has taken it for itself.
pub fn reads_lines(terminal: impl AsFd) -> bool {
    tcgetattr(terminal).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON))
}

fn raw_form(before: &Termios) -> Termios {
    let mut raw = before.clone();
    raw.make_raw();
    raw
}

impl Guardian {
    /// It sees that the terminal is no longer raw and ends without touching it.
    fn dismiss(self) {
        drop(self.held);
        let wait = || rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty());
        // A parent that ignores SIGCHLD has no children to wait for: nothing is left either way.
        let _ = rustix::io::retry_on_intr(wait);
    }
}

/// Starts the guardian; it ends when its pipe is closed, in whatever way.
fn guard(terminal: BorrowedFd<'_>, before: &Termios) -> io::Result<Guardian> {
    let (watched, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let raw = raw_form(before);
    // SAFETY: the process has one thread (the caller's promise), so the child may go on as any program does. It
    // neither returns nor runs a destructor.
    let pid = unsafe { libc::fork() };
    let failure = io::Error::last_os_error();
    match pid {
        0 => {
            drop(held);
            watch(watched, terminal, &raw, before);
            // SAFETY: ends the child at once, with none of the parent's clean-up.
            unsafe { libc::_exit(0) }
        }
        pid => match rustix::process::Pid::from_raw(pid) {
            Some(pid) => Ok(Guardian { pid, held }),
            None => Err(failure),
        },
    }
}

/// Waits for the end of the pipe, then puts the terminal back if it is still as we left it: a shell that was faster
/// has set it to its own liking already.
fn watch(watched: OwnedFd, terminal: BorrowedFd<'_>, raw: &Termios, before: &Termios) {
    for signal in [
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ] {
        signal::ignore(signal);
    }
    let _ = rustix::process::setpgid(None, None);
    keep_only(&[watched.as_raw_fd(), terminal.as_raw_fd()]);
    let mut byte = [0u8; 1];
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(&watched, &mut byte));
    if tcgetattr(terminal).is_ok_and(|now| same_modes(&now, raw)) {
        let _ = tcsetattr(terminal, OptionalActions::Now, before);
    }
}

/// Closes what the guardian inherited: a pipe it held open would keep its reader waiting.
fn keep_only(kept: &[i32]) {
    let mut first = 0u32;
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    for fd in kept.into_iter().chain([u32::MAX]) {
        if let Some(last) = fd.checked_sub(1).filter(|last| *last >= first) {
            // SAFETY: the owners of these descriptors never run in this process again.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = fd.saturating_add(1);
    }
}

fn same_modes(a: &Termios, b: &Termios) -> bool {
    a.input_modes == b.input_modes
        && a.output_modes == b.output_modes
        && a.local_modes == b.local_modes
        && a.control_modes == b.control_modes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::OpenptFlags;

    fn terminal() -> (OwnedFd, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        (master, slave)
    }

    #[test]
    fn a_terminal_is_as_before_when_raw_mode_ends() {
        let (_master, slave) = terminal();
        let mut raw = Raw::prepare(slave.as_fd()).unwrap();
        raw.is_raw = true;
        tcsetattr(&slave, OptionalActions::Now, &raw_form(&raw.before)).unwrap();
        assert!(!reads_lines(&slave));

        drop(raw);

        assert!(reads_lines(&slave));
    }

    #[test]
    fn a_pipe_is_no_terminal_and_has_no_size() {
        let (read, _write) = io::pipe().unwrap();
        assert!(!is_terminal(&read));
        assert_eq!(size(&read), None);
    }
}
