//! The bytes between both ends.

use super::Broken;
use airlock_protocol::carry::{Decoder, Malformed, Message};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// No more is begun while so much waits to be sent.
const ROOM: usize = 64 * 1024;
const PIECE: usize = 64 * 1024;
/// Between looks at a port whose other end is not there.
const PAUSE: Duration = Duration::from_millis(1);

/// A port and what waits on its both sides.
pub(super) struct Port {
    file: OwnedFd,
    outgoing: VecDeque<u8>,
    /// While it is hushed, what is said.
    later: Option<VecDeque<u8>>,
    decoder: Decoder,
}

impl Port {
    pub(super) fn new(file: OwnedFd) -> io::Result<Port> {
        airlock_linux::fd::set_nonblocking(file.as_fd())?;
        Ok(Port { file, outgoing: VecDeque::new(), later: None, decoder: Decoder::default() })
    }

    pub(super) fn interest(&self, listens: bool) -> PollFlags {
        let out = if self.outgoing.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        if listens { out | PollFlags::IN } else { out }
    }

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.len() + self.later.as_ref().map_or(0, VecDeque::len) < ROOM
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub(super) fn say(&mut self, message: &Message) -> Result<(), Malformed> {
        self.later.as_mut().unwrap_or(&mut self.outgoing).extend(message.encode()?);
        Ok(())
    }

    /// From now on what is said waits; only what is put between goes.
    pub(super) fn hush(&mut self, later: Vec<u8>) {
        self.later = Some(later.into());
    }

    pub(super) fn put_between(&mut self, message: &Message) -> Result<(), Malformed> {
        self.outgoing.extend(message.encode()?);
        Ok(())
    }

    /// What was said since then goes.
    pub(super) fn speak(&mut self) {
        self.outgoing.append(&mut self.later.take().unwrap_or_default());
    }

    /// What waits.
    pub(super) fn unsaid(&self) -> Vec<u8> {
        self.later.iter().flatten().copied().collect()
    }

    /// What is said of streams is never too long.
    pub(super) fn say_of_stream(&mut self, message: &Message) {
        let _ = self.say(message);
    }

    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        while !self.outgoing.is_empty() {
            let (first, _) = self.outgoing.as_slices();
            match rustix::io::write(&self.file, first) {
                Ok(count) => drop(self.outgoing.drain(..count.min(self.outgoing.len()))),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // What it said last is still to be read, then its end.
                Err(Errno::PIPE | Errno::CONNRESET) => self.outgoing.clear(),
                Err(err) => return Err(Broken::Port(err.into())),
            }
        }
        Ok(())
    }

    /// Takes in what has arrived.
    pub(super) fn fill(&mut self) -> Result<(), Broken> {
        let mut bytes = vec![0; PIECE];
        match rustix::io::read(&self.file, &mut bytes) {
            Ok(0) | Err(Errno::CONNRESET) => Err(Broken::Gone),
            Ok(count) => {
                self.decoder.feed(bytes.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(err) => Err(Broken::Port(err.into())),
        }
    }

    /// As [`Port::fill`], where nobody may be at the other end for a while.
    pub(super) fn fill_patiently(&mut self) -> Result<(), Broken> {
        let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))
            .map_err(|err| Broken::Port(err.into()))?;
        match self.fill() {
            Err(Broken::Gone) => {
                std::thread::sleep(PAUSE);
                Ok(())
            }
            other => other,
        }
    }

    /// Waits until everything is on its way.
    pub(super) fn drain(&mut self) -> Result<(), Broken> {
        while !self.is_flushed() {
            let mut polled = [PollFd::new(&self.file, PollFlags::OUT)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))
                .map_err(|err| Broken::Port(err.into()))?;
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Option<Message>, Malformed> {
        self.decoder.next()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.outgoing.len() + self.later.as_ref().map_or(0, VecDeque::len)
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
