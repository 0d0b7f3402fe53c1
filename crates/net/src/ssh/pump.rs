//! Bytes between the program's channel and the server's, within what each side lets the other send.
//!
//! What one side has sent and the other does not take yet is held here, and so much that it is let send: [`WINDOW`] at most.

use super::{
    Broken,
    far::Far,
    near::{self, Asked},
    talk::{Both, Step, Talk},
    wire::{Flag, Reader, Writer},
};
use airlock_gate::meter::{Meter, Spent};
use std::{collections::VecDeque, time::Duration};
use tokio::{
    task::coop,
    time::{Instant, sleep_until, timeout},
};

const WINDOW_ADJUST: u8 = 93;
const DATA: u8 = 94;
const EXTENDED_DATA: u8 = 95;
const EOF: u8 = 96;
const CLOSE: u8 = 97;
/// What a side may send before we have passed it on.
const WINDOW: u32 = 1 << 20;
/// The longest piece.
const PIECE: u32 = 32 * 1024;
/// So much may wait in front of a slow end.
const AHEAD: usize = 256 * 1024;
/// `SSH_EXTENDED_DATA_STDERR`
const ERRORS: u32 = 1;
/// Our number for the only channel.
const OURS: u32 = 0;
/// For the last words.
const FAREWELL: Duration = Duration::from_secs(5);

/// The only channel of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Their number for it.
    pub(super) theirs: u32,
    /// How much we may send.
    pub(super) window: u32,
    /// How much at once.
    most: u32,
    /// How much they may send.
    granted: u32,
    /// What was passed on and they were not told of yet.
    owed: u32,
}

impl Channel {
    /// As the other side opened or confirmed it.
    pub(super) fn new(theirs: u32, window: u32, most: u32) -> Channel {
        Channel { theirs, window, most: most.clamp(1, PIECE), granted: WINDOW, owed: 0 }
    }

    /// Opens one.
    pub(super) fn open() -> Vec<u8> {
        Writer::new(near::CHANNEL_OPEN).string(b"session").number(OURS).number(WINDOW).number(PIECE).done()
    }

    pub(super) fn confirm(theirs: u32) -> Vec<u8> {
        Writer::new(near::OPEN_CONFIRMATION).number(theirs).number(OURS).number(WINDOW).number(PIECE).done()
    }

    pub(super) fn errors(theirs: u32, bytes: &[u8]) -> Vec<u8> {
        Writer::new(EXTENDED_DATA).number(theirs).number(ERRORS).string(bytes).done()
    }

    pub(super) fn status(theirs: u32, status: u32) -> Vec<u8> {
        let writer = Writer::new(near::CHANNEL_REQUEST).number(theirs).string(b"exit-status");
        writer.flag(Flag::No).number(status).done()
    }

    pub(super) fn end(theirs: u32) -> Vec<u8> {
        Writer::new(EOF).number(theirs).done()
    }

    pub(super) fn close(theirs: u32) -> Vec<u8> {
        Writer::new(CLOSE).number(theirs).done()
    }

    /// They let us send more.
    pub(super) fn widen(&mut self, more: u32) -> Result<(), Broken> {
        self.window = self.window.checked_add(more).ok_or(Broken::Flood)?;
        Ok(())
    }

    /// They sent something.
    fn came(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let count = u32::try_from(bytes.len()).map_err(|_| Broken::Flood)?;
        self.granted = self.granted.checked_sub(count).ok_or(Broken::Flood)?;
        Ok(())
    }

    /// It was passed on: they may send as much again. Told in large steps.
    fn passed(&mut self, count: u32) -> Option<Vec<u8>> {
        self.owed = self.owed.saturating_add(count);
        if self.owed < WINDOW / 4 {
            return None;
        }
        let owed = std::mem::take(&mut self.owed);
        self.granted = self.granted.saturating_add(owed);
        Some(Writer::new(WINDOW_ADJUST).number(self.theirs).number(owed).done())
    }
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The command did.
    Closed,
    /// The rule's bytes are spent.
    Spent,
    /// One side is gone.
    Broken(Broken),
}

/// Something that one side does.
enum Event {
    Data(Stream, Vec<u8>),
    Window(u32),
    Eof,
    Close,
    Status(u32),
    /// Answered already.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Plain,
    Errors,
}

/// One side.
struct End<S> {
    talk: Talk<S>,
    channel: Channel,
}

/// What goes in one direction.
#[derive(Default)]
struct Way {
    pieces: VecDeque<(Stream, Vec<u8>)>,
    /// Nothing comes after them.
    is_over: bool,
    /// And that was said.
    is_said: bool,
    /// The first piece may not go before.
    due: Option<Instant>,
    is_paid: bool,
}

/// Both sides.
pub(crate) struct Between<N, F> {
    near: End<N>,
    far: End<F>,
    up: Way,
    down: Way,
    status: Option<u32>,
    is_closed: bool,
    meter: Meter,
}

/// Bytes that went on.
pub(crate) trait Counted {
    /// To the server.
    fn sent(&self, bytes: usize);
    /// To the program.
    fn received(&self, bytes: usize);
}

impl<N: Both, F: Both> Between<N, F> {
    /// The server runs what the program asked for.
    pub(crate) fn new(mut asked: Asked<N>, far: Far<F>, meter: Meter) -> Result<Between<N, F>, Broken> {
        asked.accept()?;
        let Asked { talk, channel, .. } = asked;
        Ok(Between {
            near: End { talk, channel },
            far: End { talk: far.talk, channel: far.channel },
            up: Way::default(),
            down: Way::default(),
            status: None,
            is_closed: false,
            meter,
        })
    }

    /// Until the command has ended and the program knows.
    pub(crate) async fn carry(&mut self, counted: &impl Counted) -> Ended {
        match self.run(counted).await {
            Ok(()) => {}
            Err(Stopped::Spent) => return Ended::Spent,
            Err(Stopped::Broken(broken)) => return Ended::Broken(broken),
        }
        let _ = timeout(FAREWELL, self.farewell()).await;
        Ended::Closed
    }

    async fn run(&mut self, counted: &impl Counted) -> Result<(), Stopped> {
        loop {
            let due = self.shift(counted)?;
            if self.is_closed && self.down.pieces.is_empty() {
                return Ok(());
            }
            let later = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let (is_near, step) = tokio::select! {
                step = self.near.talk.step() => (true, step?),
                step = self.far.talk.step() => (false, step?),
                () = later => continue,
            };
            let Step::Message(message) = step else { continue };
            coop::consume_budget().await;
            match is_near {
                true => self.near_said(&message)?,
                false => self.far_said(&message)?,
            }
        }
    }

    fn near_said(&mut self, message: &[u8]) -> Result<(), Broken> {
        match self.near.event(message)? {
            Event::Data(Stream::Plain, bytes) => self.up.push(Stream::Plain, bytes),
            Event::Data(Stream::Errors, _) => Err(Broken::Early),
            Event::Window(more) => self.near.channel.widen(more),
            Event::Eof => {
                self.up.is_over = true;
                Ok(())
            }
            // The program has had enough.
            Event::Close => Err(Broken::Disconnected),
            Event::Status(_) | Event::Nothing => Ok(()),
        }
    }

    fn far_said(&mut self, message: &[u8]) -> Result<(), Broken> {
        match self.far.event(message)? {
            Event::Data(stream, bytes) => return self.down.push(stream, bytes),
            Event::Window(more) => self.far.channel.widen(more)?,
            Event::Eof => self.down.is_over = true,
            Event::Close => self.is_closed = true,
            Event::Status(status) => self.status = Some(status),
            Event::Nothing => {}
        }
        Ok(())
    }

    /// Passes on what may be; when more may, if that is a matter of time.
    fn shift(&mut self, counted: &impl Counted) -> Result<Option<Instant>, Stopped> {
        let Between { near, far, up, down, meter, .. } = self;
        let sent = up.shift(near, far, meter, &|bytes| counted.sent(bytes))?;
        let received = down.shift(far, near, meter, &|bytes| counted.received(bytes))?;
        Ok(sent.into_iter().chain(received).min())
    }

    /// How the command ended; then both sides are done.
    async fn farewell(&mut self) -> Result<(), Broken> {
        let theirs = self.near.channel.theirs;
        self.near.talk.send(Channel::status(theirs, self.status.unwrap_or(NO_STATUS)))?;
        if !self.down.is_said {
            self.near.talk.send(Channel::end(theirs))?;
        }
        self.near.talk.send(Channel::close(theirs))?;
        self.far.talk.send(Channel::close(self.far.channel.theirs))?;
        let _ = self.far.talk.flush().await;
        self.far.talk.close().await;
        self.near.talk.flush().await?;
        // The program ends the connection when it has read that.
        while self.near.talk.step().await.is_ok() {}
        Ok(())
    }
}

/// For a command that was killed, or ended without a word.
const NO_STATUS: u32 = 255;

enum Stopped {
    Spent,
    Broken(Broken),
}

impl From<Broken> for Stopped {
    fn from(broken: Broken) -> Stopped {
        Stopped::Broken(broken)
    }
}

impl From<Spent> for Stopped {
    fn from(_: Spent) -> Stopped {
        Stopped::Spent
    }
}

impl<S: Both> End<S> {
    fn event(&mut self, message: &[u8]) -> Result<Event, Broken> {
        let mut reader = Reader::new(message);
        let kind = reader.byte()?;
        match kind {
            near::GLOBAL_REQUEST => {
                if let Some(answer) = near::refused_globally(reader)? {
                    self.talk.send(answer)?;
                }
                return Ok(Event::Nothing);
            }
            near::CHANNEL_OPEN => {
                reader.string()?;
                self.talk.send(near::refused_channel(reader.number()?))?;
                return Ok(Event::Nothing);
            }
            WINDOW_ADJUST | DATA | EXTENDED_DATA | EOF | CLOSE | near::CHANNEL_REQUEST => {}
            _ => {
                self.talk.machine.not_understood()?;
                return Ok(Event::Nothing);
            }
        }
        if reader.number()? != OURS {
            return Err(Broken::Early);
        }
        match kind {
            WINDOW_ADJUST => Ok(Event::Window(reader.number()?)),
            DATA => self.came(Stream::Plain, reader.string()?),
            EXTENDED_DATA if reader.number()? == ERRORS => self.came(Stream::Errors, reader.string()?),
            EOF => Ok(Event::Eof),
            CLOSE => Ok(Event::Close),
            near::CHANNEL_REQUEST => self.requested(reader),
            _ => Err(Broken::Early),
        }
    }

    fn came(&mut self, stream: Stream, bytes: &[u8]) -> Result<Event, Broken> {
        self.channel.came(bytes)?;
        Ok(Event::Data(stream, bytes.to_vec()))
    }

    fn requested(&mut self, mut reader: Reader<'_>) -> Result<Event, Broken> {
        let (kind, wants_answer) = (reader.string()?, reader.flag()?);
        if wants_answer {
            self.talk.send(Writer::new(near::CHANNEL_FAILURE).number(self.channel.theirs).done())?;
        }
        match kind {
            b"exit-status" => Ok(Event::Status(reader.number()?)),
            _ => Ok(Event::Nothing),
        }
    }
}

impl Way {
    fn push(&mut self, stream: Stream, bytes: Vec<u8>) -> Result<(), Broken> {
        if self.is_over {
            return Err(Broken::Early);
        }
        if !bytes.is_empty() {
            self.pieces.push_back((stream, bytes));
        }
        Ok(())
    }

    fn shift<A: Both, B: Both>(
        &mut self,
        from: &mut End<A>,
        to: &mut End<B>,
        meter: &Meter,
        count: &dyn Fn(usize),
    ) -> Result<Option<Instant>, Stopped> {
        while let Some((stream, piece)) = self.pieces.front_mut() {
            let most = to.channel.window.min(to.channel.most);
            let most = u64::from(most).min(if meter.is_unbounded() { u64::MAX } else { meter.piece() });
            let length = usize::try_from(most).unwrap_or(usize::MAX).min(piece.len());
            if length == 0 || to.talk.waiting() > AHEAD {
                return Ok(None);
            }
            if !self.is_paid && !meter.is_unbounded() {
                let wait = meter.take(u64::try_from(length).unwrap_or(u64::MAX))?;
                self.due = (!wait.is_zero()).then(|| Instant::now() + wait);
                self.is_paid = true;
            }
            if let Some(due) = self.due.filter(|due| *due > Instant::now()) {
                return Ok(Some(due));
            }
            let bytes: Vec<u8> = piece.drain(..length).collect();
            let (stream, is_empty) = (*stream, piece.is_empty());
            if is_empty {
                self.pieces.pop_front();
            }
            (self.due, self.is_paid) = (None, false);
            let counted = u32::try_from(length).map_err(|_| Broken::Flood)?;
            to.channel.window = to.channel.window.saturating_sub(counted);
            to.talk.send(match stream {
                Stream::Plain => Writer::new(DATA).number(to.channel.theirs).string(&bytes).done(),
                Stream::Errors => Channel::errors(to.channel.theirs, &bytes),
            })?;
            count(length);
            if let Some(more) = from.channel.passed(counted) {
                from.talk.send(more)?;
            }
        }
        if self.is_over && !self.is_said {
            self.is_said = true;
            to.talk.send(Channel::end(to.channel.theirs))?;
        }
        Ok(None)
    }
}
