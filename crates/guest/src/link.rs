//! Frames and descriptors to and from the keeper.

use airlock_linux::{fd, spawn::GUEST_LINK};
use airlock_protocol::{
    frame::{Decoder, Frame},
    guest::{FromGuest, ToGuest},
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// The stream to the keeper.
pub(crate) struct Link {
    socket: OwnedFd,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
}

/// A request with the descriptors that came with it.
pub(crate) struct Asked {
    pub(crate) request: ToGuest,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Link {
    pub(crate) fn inherit() -> io::Result<Link> {
        let socket = fd::inherited(GUEST_LINK)?;
        Ok(Link { socket, decoder: Decoder::default(), descriptors: VecDeque::new() })
    }

    /// Reads what has arrived. `false` means the keeper is gone.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        let mut bytes = [0u8; 16 * 1024];
        let mut descriptors = Vec::new();
        let count = fd::receive_with_fds(self.socket.as_fd(), &mut bytes, &mut descriptors)?;
        self.descriptors.extend(descriptors);
        self.decoder.feed(bytes.get(..count).unwrap_or_default());
        Ok(count > 0)
    }

    /// The next whole request.
    pub(crate) fn next(&mut self) -> io::Result<Option<Asked>> {
        let Some(frame) = self.decoder.next().map_err(io::Error::other)? else { return Ok(None) };
        let request = frame.parse().map_err(io::Error::other)?;
        let count = usize::from(frame.descriptors).min(self.descriptors.len());
        Ok(Some(Asked { request, descriptors: self.descriptors.drain(..count).collect() }))
    }

    pub(crate) fn say(&self, what: &FromGuest) -> io::Result<()> {
        let frame = Frame::message(what, 0).map_err(io::Error::other)?;
        fd::send_all(self.socket.as_fd(), &frame.encode(), &[])
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
