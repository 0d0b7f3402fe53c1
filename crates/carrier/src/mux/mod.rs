//! Many streams and messages over one port, alike at both ends.
//!
//! Each turn of the loop gives every stream that is ready one piece of the port, beginning behind the one that was served
//! last; messages wait for no more than what the port has taken already. What is held is bounded: a window for each
//! stream in either direction, and one message.
//!
//! - `endpoint`: descriptors
//! - `stream`: one stream
//! - `port`: the bytes between both ends

mod endpoint;
mod port;
mod stream;
#[cfg(test)]
mod tests;

use airlock_protocol::carry::{Malformed, Message};
use port::Port;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};
use stream::Stream;

pub(crate) use endpoint::{Endpoint, Owner};
pub(crate) use stream::{Standing, Ways};

/// The streams of one end and its port.
pub(crate) struct Mux {
    port: Port,
    streams: BTreeMap<u32, Stream>,
    /// Who was served last.
    last: u32,
    /// Whether more than the last message has arrived already.
    has_more: bool,
}

/// What the other end may not do. Nothing it says counts after it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    /// A stream that was never opened, or is over.
    #[error("it speaks of a stream that is not there")]
    Unknown,
    /// Something of a direction that is not there, or has ended.
    #[error("it speaks of a stream that is closed")]
    Closed,
    /// More than was allowed.
    #[error("it sends or takes more of a stream than was agreed")]
    Credit,
    /// A message that does not belong here.
    #[error("it says what is not its part to say")]
    Unexpected,
    /// No message at all.
    #[error("it makes no sense")]
    Malformed(#[source] Malformed),
}

/// Why a port is of no further use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The other end is gone.
    #[error("the other end is gone")]
    Gone,
    /// The other end breaks the rules.
    #[error("the other end breaks the rules")]
    Rules(#[source] Violation),
    /// The kernel refuses.
    #[error("the port cannot be used")]
    Port(#[source] io::Error),
}

/// What a turn waits for besides.
pub(crate) struct Waiting<'a> {
    /// Descriptors of the caller.
    pub(crate) others: Vec<(BorrowedFd<'a>, PollFlags)>,
    /// Whether messages are taken in.
    pub(crate) listens: bool,
    /// How long at most.
    pub(crate) timeout: Option<Duration>,
}

/// What happened in a turn.
pub(crate) struct Turn {
    /// What the caller's descriptors are ready for, in their order.
    pub(crate) others: Vec<PollFlags>,
    /// What the other end said that concerns the caller. It may open a stream of which is spoken next, so nothing behind
    /// it is heard before the next turn.
    pub(crate) message: Option<Message>,
}

impl Mux {
    /// Takes the port, which from now on never waits.
    pub(crate) fn new(port: OwnedFd) -> io::Result<Mux> {
        Ok(Mux { port: Port::new(port)?, streams: BTreeMap::new(), last: 0, has_more: false })
    }

    /// A new stream; both ends open it before either says anything of it.
    pub(crate) fn open(&mut self, number: u32, endpoint: Endpoint, ways: Ways) -> Result<(), Violation> {
        if self.streams.contains_key(&number) {
            return Err(Violation::Unexpected);
        }
        self.streams.insert(number, Stream::new(number, endpoint, ways));
        Ok(())
    }

    /// The descriptor of a stream, while there is one.
    pub(crate) fn descriptor(&self, number: u32) -> Option<BorrowedFd<'_>> {
        self.streams.get(&number)?.descriptor()
    }

    /// Queues a message.
    pub(crate) fn say(&mut self, message: &Message) -> io::Result<()> {
        self.port.say(message).map_err(io::Error::other)
    }

    /// Nothing is said from now on but what is [put between](Mux::put_between); `later` is said first of what waits.
    pub(crate) fn hush(&mut self, later: Vec<u8>) {
        self.port.hush(later);
    }

    /// Says something before everything that waits.
    pub(crate) fn put_between(&mut self, message: &Message) -> io::Result<()> {
        self.port.put_between(message).map_err(io::Error::other)
    }

    /// What waits is said, and everything else again.
    pub(crate) fn speak(&mut self) {
        self.port.speak();
    }

    /// How everything stands: the streams, and what waits to be said.
    pub(crate) fn standing(&self) -> (Vec<Standing>, Vec<u8>) {
        (self.streams.values().map(Stream::standing).collect(), self.port.unsaid())
    }

    /// Goes on with a stream of another one.
    pub(crate) fn resume(&mut self, standing: Standing, endpoint: Endpoint) -> Result<(), Violation> {
        if self.streams.contains_key(&standing.number()) {
            return Err(Violation::Unexpected);
        }
        self.streams.insert(standing.number(), Stream::resumed(standing, endpoint));
        Ok(())
    }

    /// Waits until everything that was said is on its way. Streams rest meanwhile.
    pub(crate) fn drain(&mut self) -> Result<(), Broken> {
        self.port.drain()
    }

    /// Waits for one message, whoever is at the other end and whenever. Streams rest meanwhile.
    pub(crate) fn await_message(&mut self) -> Result<Message, Broken> {
        loop {
            match self.port.next().map_err(|err| Broken::Rules(Violation::Malformed(err)))? {
                Some(message) => return Ok(message),
                None => self.port.fill_patiently()?,
            }
        }
    }

    /// Whether the port has room for more; who goes on without it holds more and more.
    pub(crate) fn has_room(&self) -> bool {
        self.port.has_room()
    }

    /// Whether everything that was said is on its way.
    pub(crate) fn is_flushed(&self) -> bool {
        self.port.is_flushed()
    }

    /// Somebody waits until what is in these streams now has been sent.
    pub(crate) fn mark_sending(&mut self, streams: &[u32]) {
        self.marked(streams).for_each(Stream::mark_sending);
    }

    /// Somebody waits until what has come in these streams has been written.
    pub(crate) fn mark_receiving(&mut self, streams: &[u32]) {
        self.marked(streams).for_each(Stream::mark_receiving);
    }

    /// Whether that has not happened yet.
    pub(crate) fn is_marked(&self, streams: &[u32]) -> bool {
        streams.iter().filter_map(|number| self.streams.get(number)).any(Stream::is_marked)
    }

    fn marked<'a>(&'a mut self, streams: &'a [u32]) -> impl Iterator<Item = &'a mut Stream> {
        self.streams.iter_mut().filter(|(number, _)| streams.contains(number)).map(|(_, stream)| stream)
    }

    /// Waits for something to happen, and does what can be done of it.
    pub(crate) fn turn(&mut self, waiting: Waiting<'_>) -> Result<Turn, Broken> {
        let listens = waiting.listens;
        let ready = self.wait(waiting).map_err(Broken::Port)?;
        if ready.port.intersects(PollFlags::OUT) {
            self.port.flush()?;
        }
        let arrived = ready.port.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        if arrived && !self.has_more {
            self.port.fill()?;
        }
        let message = match listens && (arrived || self.has_more) {
            true => self.listen()?,
            false => None,
        };
        self.serve(&ready.streams);
        self.port.flush()?;
        Ok(Turn { others: ready.others, message })
    }

    fn wait(&self, waiting: Waiting<'_>) -> io::Result<Ready> {
        let has_room = self.has_room();
        let tried = self.streams.iter().filter(|(_, stream)| has_room && stream.is_to_be_tried());
        let mut streams: Vec<(u32, PollFlags)> = tried.map(|(number, _)| (*number, PollFlags::IN)).collect();
        let mut polled: Vec<PollFd<'_>> = Vec::new();
        let mut numbers = Vec::new();
        polled.push(PollFd::from_borrowed_fd(self.port.as_fd(), self.port.interest(waiting.listens)));
        let others = waiting.others.len();
        polled.extend(waiting.others.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
        for (number, stream) in &self.streams {
            let Some((fd, flags)) = stream.interest(has_room) else { continue };
            polled.push(PollFd::from_borrowed_fd(fd, flags));
            numbers.push(*number);
        }
        let is_busy = !streams.is_empty() || (self.has_more && waiting.listens);
        let timeout = if is_busy { Some(Duration::ZERO) } else { waiting.timeout };
        let timeout =
            timeout.map(|timeout| Timespec::try_from(timeout).map_err(io::Error::other)).transpose()?;
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            // Nothing is known to be ready; the next turn asks anew.
            Err(rustix::io::Errno::INTR) => polled.iter_mut().for_each(PollFd::clear_revents),
            Err(err) => return Err(err.into()),
        }
        let mut flags = polled.iter().map(PollFd::revents);
        let port = flags.next().unwrap_or(PollFlags::empty());
        let others = flags.by_ref().take(others).collect();
        streams.extend(numbers.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()));
        Ok(Ready { port, others, streams })
    }

    /// Takes in what the other end said, up to what concerns the caller.
    fn listen(&mut self) -> Result<Option<Message>, Broken> {
        while let Some(message) = self.port.next().map_err(|err| Broken::Rules(Violation::Malformed(err)))? {
            if let Some(message) = self.heard(message).map_err(Broken::Rules)? {
                self.has_more = true;
                return Ok(Some(message));
            }
        }
        self.has_more = false;
        Ok(None)
    }

    fn heard(&mut self, message: Message) -> Result<Option<Message>, Violation> {
        let number = match &message {
            Message::Data { stream, .. }
            | Message::Credit { stream, .. }
            | Message::End { stream }
            | Message::HangUp { stream } => *stream,
            _ => return Ok(Some(message)),
        };
        let stream = self.streams.get_mut(&number).ok_or(Violation::Unknown)?;
        let port = &mut self.port;
        stream.heard(message, &mut |answer| port.say_of_stream(&answer))?;
        if stream.is_over() {
            self.streams.remove(&number);
        }
        Ok(None)
    }

    /// One piece for each that is ready, as long as the port has room.
    fn serve(&mut self, ready: &[(u32, PollFlags)]) {
        let first = ready.iter().position(|(number, _)| *number > self.last).unwrap_or(0);
        let (before, behind) = ready.split_at_checked(first).unwrap_or((&[], ready));
        for (number, flags) in behind.iter().chain(before) {
            let Some(stream) = self.streams.get_mut(number) else { continue };
            let mut flags = *flags;
            if !self.port.has_room() {
                flags.remove(PollFlags::IN);
            } else if flags.contains(PollFlags::IN) {
                self.last = *number;
            }
            let port = &mut self.port;
            stream.ready(flags, &mut |said| port.say_of_stream(&said));
            if stream.is_over() {
                self.streams.remove(number);
            }
        }
    }

    /// Bytes that are held for streams and for the port.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.port.held() + self.streams.values().map(Stream::held).sum::<usize>()
    }
}

struct Ready {
    port: PollFlags,
    others: Vec<PollFlags>,
    streams: Vec<(u32, PollFlags)>,
}
