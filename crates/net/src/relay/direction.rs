//! One direction of a flow.

use super::{Look, Pool, Seen, pipe::Pipe};
use airlock_gate::meter::Meter;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use std::{
    cell::Cell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::tcp::{ReadHalf, WriteHalf},
    time::Sleep,
};

/// Whether bytes are copied or spliced is decided anew after so many pieces, or so many bytes.
const PIECES: u32 = 64;
const BYTES: usize = 1 << 20;

/// Most bytes of a piece that may have to wait.
const WAITING: usize = 16 * 1024;

/// After so many bytes at a stretch the other flows have their turn.
const TURN: usize = 4 << 20;

/// Why a direction came to nothing.
#[derive(Debug)]
pub(super) enum Broken {
    /// One of its ends is gone.
    Lost,
    /// It was looked at and refused.
    Refused(String),
    /// The rule's bytes are spent.
    Spent,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Broken {
        Broken::Lost
    }
}

/// Bytes from one end to the other.
pub(super) struct Direction<'a> {
    pool: &'a Pool,
    /// Bytes the sink has had.
    moved: &'a Cell<u64>,
    meter: &'a Meter,
    /// Until then `pending` waits for the meter.
    wait: Option<Pin<Box<Sleep>>>,
    /// Bytes of `pending` that the meter was not asked about.
    uncounted: usize,
    /// Taken from the source, not yet given to the sink.
    pending: Vec<u8>,
    /// How much of `pending` the sink has.
    given: usize,
    look: Option<Look>,
    /// Whether `pending` waits for a look at more.
    holds: bool,
    /// Whether bytes go through a pipe.
    long: bool,
    pipe: Option<Pipe>,
    /// Pieces and bytes since it was last decided whether to splice.
    pieces: u32,
    bytes: usize,
    /// Whether the source has ended.
    ended: bool,
    /// Whether the first read is tried before anybody was told that there is something.
    pub(super) is_eager: bool,
    /// Whether the other direction has ended: then both sockets are closed next, and the sink need not be told before.
    pub(super) is_last: bool,
}

impl<'a> Direction<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        (moved, meter): (&'a Cell<u64>, &'a Meter),
        first: Vec<u8>,
        look: Option<Look>,
    ) -> Direction<'a> {
        pool.hold(first.len());
        Direction {
            pool,
            moved,
            meter,
            wait: None,
            uncounted: first.len(),
            pending: first,
            given: 0,
            look,
            holds: false,
            long: false,
            pipe: None,
            pieces: 0,
            bytes: 0,
            ended: false,
            is_eager: false,
            is_last: false,
        }
    }

    /// Moves bytes until the source has ended, and tells the sink, unless it is closed next.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut ReadHalf<'_>,
        sink: &mut WriteHalf<'_>,
    ) -> Poll<Result<(), Broken>> {
        let mut turn = 0;
        loop {
            let uncounted = std::mem::take(&mut self.uncounted);
            self.count_in(uncounted)?;
            ready!(self.poll_wait(cx));
            ready!(self.poll_flush(cx, sink))?;
            if self.ended {
                if !self.is_last {
                    // The sink may be gone by now; the other direction will find out.
                    let _ = Pin::new(sink).poll_shutdown(cx);
                }
                return Poll::Ready(Ok(()));
            }
            if turn >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let piece = if self.long && self.take_pipe() {
                ready!(self.poll_splice(cx, source))?
            } else {
                self.drop_pipe();
                ready!(self.poll_copy(cx, source, sink))?
            };
            turn += piece;
            self.decide(piece);
        }
    }

    /// Asks the meter about bytes that are about to go on; what they have to wait for is kept.
    fn count_in(&mut self, bytes: usize) -> Result<(), Broken> {
        if bytes == 0 || self.meter.is_unbounded() {
            return Ok(());
        }
        let wait = self.meter.take(u64::try_from(bytes).unwrap_or(u64::MAX)).map_err(|_| Broken::Spent)?;
        self.wait = (!wait.is_zero()).then(|| Box::pin(tokio::time::sleep(wait)));
        Ok(())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        Poll::Ready(())
    }

    /// Gives the sink what was taken before.
    fn poll_flush(&mut self, cx: &mut Context<'_>, sink: &mut WriteHalf<'_>) -> Poll<io::Result<()>> {
        while !self.holds && self.given < self.pending.len() {
            let rest = self.pending.get(self.given..).unwrap_or_default();
            let written = ready!(poll_write(cx, sink, rest))?;
            self.given += written;
            count(self.moved, written);
        }
        if !self.holds && !self.pending.is_empty() {
            self.pool.release(self.pending.len());
            self.pending = Vec::new();
            self.given = 0;
        }
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            let sink = sink.as_ref();
            ready!(sink.poll_write_ready(cx))?;
            match sink.try_io(Interest::WRITABLE, || pipe.drain(sink)) {
                Ok(written) => count(self.moved, written),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Poll::Ready(Err(err)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads one piece through the shared buffer and writes it as far as the sink takes it.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut ReadHalf<'_>,
        sink: &mut WriteHalf<'_>,
    ) -> Poll<Result<usize, Broken>> {
        self.pool.with_buffer(|buffer| {
            let most = self.most().min(buffer.len());
            let buffer = buffer.get_mut(..most).unwrap_or_default();
            let read = ready!(self.poll_read(cx, source, buffer))?;
            let piece = buffer.get(..read).unwrap_or_default();
            if piece.is_empty() {
                return Poll::Ready(self.end());
            }
            self.pool.awake.stir();
            self.count_in(piece.len())?;
            let Some(mut rest) = self.inspect(piece)? else { return Poll::Ready(Ok(piece.len())) };
            if self.wait.is_some() {
                self.keep(rest);
                return Poll::Ready(Ok(piece.len()));
            }
            while !rest.is_empty() {
                match poll_write(cx, sink, rest)? {
                    Poll::Ready(written) => {
                        count(self.moved, written);
                        rest = rest.get(written..).unwrap_or_default();
                    }
                    Poll::Pending => {
                        self.keep(rest);
                        break;
                    }
                }
            }
            Poll::Ready(Ok(piece.len()))
        })
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut ReadHalf<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if std::mem::take(&mut self.is_eager) {
            match recv(source.as_ref(), &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {}
                read => return Poll::Ready(Ok(read?.0)),
            }
        }
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(source).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Most bytes to read at once.
    fn most(&self) -> usize {
        match self.meter.is_unbounded() {
            true => usize::MAX,
            false => usize::try_from(self.meter.piece()).unwrap_or(WAITING).min(WAITING),
        }
    }

    fn end(&mut self) -> Result<usize, Broken> {
        if self.holds {
            return Err(Broken::Refused("it ends inside its ClientHello".to_owned()));
        }
        self.ended = true;
        Ok(0)
    }

    /// What of `piece` may be written at once; none where it was put with what waits.
    fn inspect<'b>(&mut self, piece: &'b [u8]) -> Result<Option<&'b [u8]>, Broken> {
        let Some(look) = &mut self.look else { return Ok(Some(piece)) };
        let seen = look(piece);
        match seen {
            Seen::Refuse(why) => return Err(Broken::Refused(why)),
            Seen::Hold if self.pool.is_full() => {
                return Err(Broken::Refused("too much waits to be looked at".to_owned()));
            }
            Seen::Over => self.look = None,
            Seen::Hold | Seen::Pass => {}
        }
        let held = std::mem::replace(&mut self.holds, seen == Seen::Hold);
        if self.holds || held {
            self.keep(piece);
            return Ok(None);
        }
        Ok(Some(piece))
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.pool.hold(bytes.len());
        self.pending.extend_from_slice(bytes);
    }

    /// Whether there is a pipe to go through. Only for bytes that nobody looks at or counts.
    fn take_pipe(&mut self) -> bool {
        if !self.meter.is_unbounded() {
            return false;
        }
        if self.pipe.is_none() && self.look.is_none() {
            self.pipe = self.pool.pipe();
        }
        self.pipe.is_some()
    }

    /// Takes one piece into the pipe. An idle flow holds no pipe.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut ReadHalf<'_>,
    ) -> Poll<Result<usize, Broken>> {
        let source = source.as_ref();
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Ok(0)) };
        loop {
            if source.poll_read_ready(cx)?.is_pending() {
                self.drop_pipe();
                return Poll::Pending;
            }
            match source.try_io(Interest::READABLE, || pipe.fill(source)) {
                Ok(0) => {
                    self.drop_pipe();
                    return Poll::Ready(self.end());
                }
                Ok(piece) => return Poll::Ready(Ok(piece)),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Poll::Ready(Err(err.into())),
            }
        }
    }

    fn drop_pipe(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pool.give_back(pipe);
        }
    }

    /// Long pieces are spliced, short ones copied: a megabyte in at most [`PIECES`] pieces counts as long.
    fn decide(&mut self, piece: usize) {
        self.pieces += 1;
        self.bytes += piece;
        if self.bytes >= BYTES || self.pieces >= PIECES {
            self.long = self.bytes >= BYTES;
            self.pieces = 0;
            self.bytes = 0;
        }
    }
}

impl Drop for Direction<'_> {
    fn drop(&mut self) {
        self.pool.release(self.pending.len());
        self.drop_pipe();
    }
}

/// Writes at once what the kernel takes, and only else waits to be told: of a socket just made nobody knows yet that it can be
/// written to.
fn poll_write(cx: &mut Context<'_>, sink: &mut WriteHalf<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    match send(sink.as_ref(), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Err(Errno::AGAIN) => Pin::new(sink).poll_write(cx, bytes),
        written => Poll::Ready(Ok(written?)),
    }
}

fn count(moved: &Cell<u64>, bytes: usize) {
    moved.set(moved.get().saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX)));
}
