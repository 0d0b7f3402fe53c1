//! The client side of a control connection. It never needs a runtime: a command starts in well under a millisecond.
//!
//! [`Client::ask`] sends and waits. A loop that also watches a terminal and signals uses [`Client::queue`] with
//! [`Client::flush`], and [`Client::read_ready`] with [`Client::next`], around its own `poll`.
//!
//! ```no_run
//! # use airlock_doors::control::client::{Client, Error}; use airlock_engine::store::Sandbox;
//! # fn show(sandbox: &Sandbox) -> Result<(), Error> {
//! use airlock_protocol::control::{Reply, Request};
//! let mut keeper = Client::connect(sandbox)?;
//! if let Reply::State(state) = keeper.ask(&Request::Get)? {
//!     println!("{}", state.status.word());
//! }
//! # Ok(())
//! # }
//! ```

use airlock_engine::store::{self, Sandbox};
use airlock_linux::fd;
use airlock_protocol::{
    control::{Begin, Reply, Request, TERMINAL},
    frame::{Decoder, Frame, Kind, Malformed},
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// Bytes asked of the kernel at a time.
const PIECE: usize = 64 * 1024;

/// A connection to one keeper.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    decoder: Decoder,
    outgoing: Vec<u8>,
    /// Descriptors that came, for whoever asked for one.
    descriptors: Vec<OwnedFd>,
}

/// What came from a keeper.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A message.
    Reply(Reply),
    /// Bytes of the terminal.
    Data(Vec<u8>),
}

/// Why a keeper could not be talked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens: no keeper runs for this sandbox.
    #[error("sandbox {id} is not running")]
    NotRunning {
        /// Which.
        id: String,
    },
    /// The connection could not be made.
    #[error("could not reach the keeper of sandbox {id}")]
    Connect {
        /// Which.
        id: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The state directory did not cooperate.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The keeper ended before it answered.
    #[error("the keeper ended before it answered")]
    Closed,
    /// Reading or writing failed.
    #[error("the connection to the keeper failed")]
    Io(#[from] io::Error),
    /// The keeper is of another version, or what came is not from a keeper.
    #[error("the keeper and this command do not understand each other")]
    Malformed(#[from] Malformed),
}

impl Client {
    /// Connects to the keeper of a sandbox.
    pub fn connect(sandbox: &Sandbox) -> Result<Client, Error> {
        let path = sandbox.control_path()?;
        let id = sandbox.id().to_string();
        match UnixStream::connect(path.path()) {
            Ok(socket) => Ok(Client::from_fd(socket.into())?),
            Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Err(Error::NotRunning { id })
            }
            Err(source) => Err(Error::Connect { id, source }),
        }
    }

    /// A connection that exists already: our end of the pair a keeper was started with.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Client> {
        fd::set_nonblocking(socket.as_fd())?;
        Ok(Client { socket, decoder: Decoder::default(), outgoing: Vec::new(), descriptors: Vec::new() })
    }

    /// The first message on the connection a keeper was started with.
    pub fn begin(&mut self, begin: &Begin, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.send_frame(&Frame::message(begin, count(fds))?, fds)
    }

    /// Sends a request with descriptors travelling along, and waits until all of it is sent.
    pub fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.send_frame(&Frame::message(request, count(fds))?, fds)
    }

    /// Waits for the next frame.
    pub fn receive(&mut self) -> Result<Received, Error> {
        loop {
            if let Some(received) = self.next()? {
                return Ok(received);
            }
            self.wait(PollFlags::IN)?;
            self.read_ready()?;
        }
    }

    /// Sends a request and waits for the message that answers it; terminal bytes are dropped.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, Error> {
        self.send(request, &[])?;
        self.answer()
    }

    /// Sends a request with descriptors travelling along, which is answered with one, and waits for both.
    pub fn ask_with_descriptors(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Option<OwnedFd>), Error> {
        self.descriptors.clear();
        self.send(request, fds)?;
        let reply = self.answer()?;
        Ok((reply, self.descriptors.pop()))
    }

    fn answer(&mut self) -> Result<Reply, Error> {
        loop {
            if let Received::Reply(reply) = self.receive()? {
                return Ok(reply);
            }
        }
    }

    /// Sends a request that is answered with a descriptor, and waits for both.
    pub fn ask_for_descriptor(&mut self, request: &Request) -> Result<(Reply, Option<OwnedFd>), Error> {
        self.ask_with_descriptors(request, &[])
    }

    /// Puts a request into the queue; [`Client::flush`] sends it.
    pub fn queue(&mut self, request: &Request) -> Result<(), Error> {
        self.outgoing.extend_from_slice(&Frame::message(request, 0)?.encode());
        Ok(())
    }

    /// Puts terminal bytes into the queue.
    pub fn queue_data(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            self.outgoing.extend_from_slice(&Frame::data(TERMINAL, piece).encode());
        }
    }

    /// Bytes that wait to be sent.
    pub fn queued(&self) -> usize {
        self.outgoing.len()
    }

    /// Sends as much of the queue as goes without waiting. A keeper that is gone is noticed when reading, after what
    /// it still had to say.
    pub fn flush(&mut self) -> Result<(), Error> {
        while !self.outgoing.is_empty() {
            match fd::send_with_fds(self.socket.as_fd(), &self.outgoing, &[]) {
                Ok(sent) => drop(self.outgoing.drain(..sent.min(self.outgoing.len()))),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(err) if is_gone(&err) => self.outgoing.clear(),
                Err(err) => tolerate(err)?,
            }
        }
        Ok(())
    }

    /// Reads what has arrived. [`Error::Closed`] once the keeper is gone and everything it sent was taken.
    pub fn read_ready(&mut self) -> Result<(), Error> {
        let mut buffer = vec![0u8; PIECE];
        let mut came = Vec::new();
        match fd::receive_with_fds(self.socket.as_fd(), &mut buffer, &mut came) {
            Ok(0) => Err(Error::Closed),
            Ok(count) => {
                // Only the newest is ever wanted; others close here.
                if let Some(newest) = came.pop() {
                    self.descriptors = vec![newest];
                }
                self.decoder.feed(buffer.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(err) => tolerate(err),
        }
    }

    /// The next whole frame that was read, if any.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and more may arrive after None")]
    pub fn next(&mut self) -> Result<Option<Received>, Error> {
        let Some(frame) = self.decoder.next()? else { return Ok(None) };
        Ok(Some(match frame.kind {
            Kind::Message => Received::Reply(frame.parse()?),
            Kind::Data => Received::Data(frame.body),
        }))
    }

    fn send_frame(&mut self, frame: &Frame, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.flush_all()?;
        let bytes = frame.encode();
        loop {
            match fd::send_with_fds(self.socket.as_fd(), &bytes, fds) {
                Ok(sent) => {
                    self.outgoing.extend_from_slice(bytes.get(sent..).unwrap_or_default());
                    return self.flush_all();
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(err) if is_gone(&err) => return Ok(()),
                Err(err) => tolerate(err)?,
            }
        }
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        loop {
            self.flush()?;
            if self.outgoing.is_empty() {
                return Ok(());
            }
            self.wait(PollFlags::OUT)?;
        }
    }

    fn wait(&self, what: PollFlags) -> Result<(), Error> {
        let mut watched = [PollFd::new(&self.socket, what)];
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::Io(errno.into())),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn count(fds: &[BorrowedFd<'_>]) -> u8 {
    u8::try_from(fds.len()).unwrap_or(u8::MAX)
}

fn is_gone(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn tolerate(err: io::Error) -> Result<(), Error> {
    match err.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ if is_gone(&err) => Err(Error::Closed),
        _ => Err(Error::Io(err)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::spec::WindowSize;
    use std::io::{Read, Write};

    fn connected() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Client::from_fd(ours.into()).unwrap(), theirs)
    }

    fn frame(reply: &Reply) -> Vec<u8> {
        Frame::message(reply, 0).unwrap().encode()
    }

    #[test]
    fn an_answer_is_found_behind_terminal_bytes() {
        let (mut client, mut keeper) = connected();
        keeper.write_all(&Frame::data(TERMINAL, b"noise").encode()).unwrap();
        keeper.write_all(&frame(&Reply::Started { pid: 2 })).unwrap();

        assert_eq!(client.ask(&Request::Get).unwrap(), Reply::Started { pid: 2 });
    }

    #[test]
    fn descriptors_travel_with_the_message() {
        let (mut client, keeper) = connected();
        let (mut read, write) = io::pipe().unwrap();

        client.send(&Request::Wait, &[write.as_fd()]).unwrap();
        drop(write);

        let (mut bytes, mut fds) = (vec![0; 100], Vec::new());
        let count = fd::receive_with_fds(keeper.as_fd(), &mut bytes, &mut fds).unwrap();
        assert_eq!(bytes[5], 1, "the header counts them");
        assert_eq!((count, fds.len()), (Frame::message(&Request::Wait, 1).unwrap().encode().len(), 1));
        drop(fds);
        assert_eq!(read.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn a_descriptor_comes_with_its_answer_and_no_older_one() {
        let (mut client, keeper) = connected();
        let (read, write) = io::pipe().unwrap();
        for descriptors in [&[read.as_fd()][..], &[write.as_fd()], &[]] {
            fd::send_all(keeper.as_fd(), &frame(&Reply::Layer), descriptors).unwrap();
            let (reply, descriptor) = client.ask_for_descriptor(&Request::Layer).unwrap();
            assert_eq!((reply, descriptor.is_some()), (Reply::Layer, !descriptors.is_empty()));
        }
    }

    #[test]
    fn what_was_sent_before_the_end_is_still_received() {
        let (mut client, mut keeper) = connected();
        keeper.write_all(&frame(&Reply::Done)).unwrap();
        drop(keeper);

        client.send(&Request::Get, &[]).unwrap();
        assert_eq!(client.receive().unwrap(), Received::Reply(Reply::Done));
        assert!(matches!(client.receive(), Err(Error::Closed)));
    }

    #[test]
    fn a_keeper_that_does_not_read_fills_the_queue_and_blocks_nothing() {
        let (mut client, mut keeper) = connected();
        let typed = vec![b'x'; 1 << 20];

        client.queue_data(&typed);
        client.queue(&Request::Resize(WindowSize { rows: 1, columns: 2 })).unwrap();
        client.flush().unwrap();
        assert!(client.queued() > 0);

        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            keeper.read_to_end(&mut all).unwrap();
            all
        });
        client.flush_all().unwrap();
        drop(client);
        assert!(reader.join().unwrap().len() > typed.len());
    }
}
