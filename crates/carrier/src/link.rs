//! Frames and descriptors, to the keeper at one end and to the guest at the other. Never waits.

use airlock_linux::fd;
use airlock_protocol::frame::{Decoder, Frame, Malformed};
use rustix::event::PollFlags;
use serde::Serialize;
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// A socket that carries frames of `protocol::guest`.
pub(crate) struct Link {
    socket: OwnedFd,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    pending: usize,
}

/// A frame on its way, and the descriptors that go with its first byte.
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// Whether somebody is at the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// It is there.
    There,
    /// It is gone.
    Gone,
}

/// While so much waits for a slow reader, nothing more is taken in for it.
const ROOM: usize = 256 * 1024;

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Link> {
        fd::set_nonblocking(socket.as_fd())?;
        let (descriptors, outgoing) = (VecDeque::new(), VecDeque::new());
        Ok(Link { socket, decoder: Decoder::default(), descriptors, outgoing, pending: 0 })
    }

    /// What to wait for.
    pub(crate) fn interest(&self, listens: bool) -> PollFlags {
        let out = if self.outgoing.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        if listens { out | PollFlags::IN } else { out }
    }

    /// Whether what is said does not have to wait.
    pub(crate) fn has_room(&self) -> bool {
        self.pending < ROOM
    }

    /// Takes in what has arrived.
    pub(crate) fn fill(&mut self) -> io::Result<Peer> {
        let mut bytes = vec![0u8; 16 * 1024];
        let mut descriptors = Vec::new();
        match fd::receive_with_fds(self.socket.as_fd(), &mut bytes, &mut descriptors) {
            Ok(0) => Ok(Peer::Gone),
            Ok(count) => {
                self.descriptors.extend(descriptors);
                self.decoder.feed(bytes.get(..count).unwrap_or_default());
                Ok(Peer::There)
            }
            Err(err) => later(err),
        }
    }

    /// The next whole frame, with what came beside it.
    pub(crate) fn next(&mut self) -> Result<Option<(Frame, Vec<OwnedFd>)>, Malformed> {
        let Some(frame) = self.decoder.next()? else { return Ok(None) };
        let count = usize::from(frame.descriptors).min(self.descriptors.len());
        Ok(Some((frame, self.descriptors.drain(..count).collect())))
    }

    /// Queues a message.
    pub(crate) fn say<T: Serialize>(&mut self, message: &T, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let count = u8::try_from(descriptors.len()).map_err(io::Error::other)?;
        let bytes = Frame::message(message, count).map_err(io::Error::other)?.encode();
        self.pending += bytes.len();
        self.outgoing.push_back(Outgoing { bytes, sent: 0, descriptors });
        Ok(())
    }

    /// Sends what can be sent.
    pub(crate) fn flush(&mut self) -> io::Result<Peer> {
        while let Some(first) = self.outgoing.front_mut() {
            let rest = first.bytes.get(first.sent..).unwrap_or_default();
            let descriptors: Vec<BorrowedFd<'_>> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match fd::send_with_fds(self.socket.as_fd(), rest, &descriptors) {
                Ok(count) => {
                    first.descriptors = Vec::new();
                    first.sent += count;
                    self.pending = self.pending.saturating_sub(count);
                }
                Err(err) => return later(err),
            }
            if first.sent >= first.bytes.len() {
                self.outgoing.pop_front();
            }
        }
        Ok(Peer::There)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn later(err: io::Error) -> io::Result<Peer> {
    match err.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Peer::There),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(Peer::Gone),
        _ => Err(err),
    }
}
