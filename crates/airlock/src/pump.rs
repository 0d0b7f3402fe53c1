//! Bytes carried from one descriptor to another, where a terminal may not be handed in itself.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Room that a pipe which `poll` calls writable has at least (`PIPE_BUF`): a write of this size never waits.
const PIECE: usize = 4096;

/// One direction.
#[derive(Debug)]
pub(crate) struct Pump<'a> {
    from: End<'a>,
    to: End<'a>,
    state: State,
    is_ready: bool,
}

/// A descriptor of ours, or one we only use.
#[derive(Debug)]
enum End<'a> {
    Owned(OwnedFd),
    Borrowed(BorrowedFd<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Wait for room first: the reader decides the pace.
    NeedsRoom,
    /// There is room; wait for bytes.
    NeedsBytes,
}

impl<'a> Pump<'a> {
    /// What a program writes into `from` appears on `to`.
    pub(crate) fn outward(from: OwnedFd, to: BorrowedFd<'a>) -> Pump<'a> {
        Pump { from: End::Owned(from), to: End::Borrowed(to), state: State::NeedsBytes, is_ready: false }
    }

    /// What is read from `from` reaches the program through the pipe `to`, which is closed at the end.
    pub(crate) fn inward(from: BorrowedFd<'a>, to: OwnedFd) -> Pump<'a> {
        Pump { from: End::Borrowed(from), to: End::Owned(to), state: State::NeedsRoom, is_ready: false }
    }

    /// What to wait for next.
    pub(crate) fn watched(&self) -> PollFd<'_> {
        match self.state {
            State::NeedsRoom => PollFd::from_borrowed_fd(self.to.as_fd(), PollFlags::OUT),
            State::NeedsBytes => PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN),
        }
    }

    /// Whether what it waited for has come.
    pub(crate) fn set_ready(&mut self, is_ready: bool) {
        self.is_ready = is_ready;
    }

    /// Carries one piece if it can without waiting. `false` when either side has ended.
    pub(crate) fn carry(&mut self) -> bool {
        if !std::mem::take(&mut self.is_ready) {
            return true;
        }
        if self.state == State::NeedsRoom {
            self.state = State::NeedsBytes;
            return true;
        }
        if matches!(self.to, End::Owned(_)) {
            self.state = State::NeedsRoom;
        }
        let mut bytes = [0u8; PIECE];
        match rustix::io::read(self.from.as_fd(), &mut bytes) {
            Ok(0) => false,
            Ok(count) => write_all(self.to.as_fd(), bytes.get(..count).unwrap_or_default()).is_ok(),
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    /// Carries outward what is there already; for the end, when nobody waits any more.
    pub(crate) fn drain(&mut self) {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        while matches!(self.to, End::Borrowed(_)) {
            let mut watched = [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)];
            let has_bytes = poll(&mut watched, Some(&AT_ONCE)).is_ok_and(|count| count > 0);
            self.is_ready = has_bytes;
            if !has_bytes || !self.carry() {
                return;
            }
        }
    }
}

impl AsFd for End<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            End::Owned(fd) => fd.as_fd(),
            End::Borrowed(fd) => *fd,
        }
    }
}

/// Writes everything, also to a descriptor that was set to never wait.
pub(crate) fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None)),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn bytes_come_out_and_the_end_is_noticed() {
        let (from, mut source) = io::pipe().unwrap();
        let (mut seen, to) = io::pipe().unwrap();
        let mut pump = Pump::outward(from.into(), to.as_fd());
        source.write_all(b"hello").unwrap();

        pump.set_ready(true);
        assert!(pump.carry());
        drop(source);
        pump.set_ready(true);
        assert!(!pump.carry());

        let mut bytes = [0; 5];
        seen.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn nothing_is_read_before_the_program_has_room_for_it() {
        let (from, mut source) = io::pipe().unwrap();
        let (mut program, to) = io::pipe().unwrap();
        let mut pump = Pump::inward(from.as_fd(), to.into());
        source.write_all(b"typed").unwrap();

        assert_eq!(pump.state, State::NeedsRoom);
        for _ in 0..2 {
            pump.set_ready(true);
            assert!(pump.carry());
        }
        drop(pump);

        let mut text = String::new();
        program.read_to_string(&mut text).unwrap();
        assert_eq!(text, "typed");
    }
}
