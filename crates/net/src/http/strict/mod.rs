//! A stream of HTTP/1 from the sandbox of which the parser sees only what can be read in one way.
//!
//! A head goes on when it is whole and [`raw`](super::raw) found nothing in it. In the place of one that is refused the
//! parser gets a request with the method [`REFUSED`], which no client can send, and the reason in a header;
//! [`framing::check`](super::framing::check) turns it into the 400 that the program gets, behind the answers of the
//! requests before it. Nothing follows.
//!
//! Behind a request that may end HTTP (`CONNECT`, an upgrade) nothing goes on until [`Switch::answered`] is called, so that
//! no byte is taken for what it is not:
//!
//! ```ignore
//! let stream = Strict::new(stream);
//! let switch = stream.switch();
//! // … when the service has the answer, before it hands it to hyper:
//! if framing::may_switch(&head) {
//!     switch.answered(answer.status() == 101);
//! }
//! ```

mod hints;
mod linger;

pub(crate) use hints::Hints;

use super::{
    Bad,
    raw::{Follower, Look},
};
use linger::Linger;
use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The method of a request that stands for a refused one.
pub(super) const REFUSED: &str = "AIRLOCK-REFUSED";
/// Its header: the status, a space, and why.
pub(super) const WHY: &str = "airlock-refused";

/// The stream.
#[derive(Debug)]
pub(crate) struct Strict<S> {
    stream: S,
    follower: Follower,
    /// What goes on before anything else.
    ready: Vec<u8>,
    /// What was read and not looked at.
    unseen: Vec<u8>,
    end: End,
    switch: Switch,
    hints: Hints,
    /// Of hints that are being written.
    hint: Vec<u8>,
    /// Whether everything that was written before has gone on.
    is_flushed: bool,
    /// Everything was said.
    linger: Option<Linger>,
}

/// Tells the stream that a request was answered which may have ended HTTP.
#[derive(Debug, Clone, Default)]
pub(crate) struct Switch(Arc<Mutex<Answer>>);

#[derive(Debug, Default)]
struct Answer {
    is_switched: Option<bool>,
    waits: Option<Waker>,
}

/// Whether there is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    /// The parser has a request in the place of a refused one, and closes when it is answered. It must not think that the
    /// program has gone before.
    Refused,
    /// The parser is told that the body is bad.
    Failed(&'static str),
    /// Nothing more is read.
    Over,
}

impl<S> Strict<S> {
    /// Follows a stream from its first byte.
    pub(crate) fn new(stream: S) -> Strict<S> {
        Strict {
            stream,
            follower: Follower::default(),
            ready: Vec::new(),
            unseen: Vec::new(),
            end: End::No,
            switch: Switch::default(),
            hints: Hints::default(),
            hint: Vec::new(),
            is_flushed: true,
            linger: None,
        }
    }

    /// What tells it of answers.
    pub(crate) fn switch(&self) -> Switch {
        self.switch.clone()
    }

    /// What takes heads that come before an answer.
    pub(crate) fn hints(&self) -> Hints {
        self.hints.clone()
    }

    /// Whether something that comes before an answer waits to be written.
    pub(super) fn has_hints(&self) -> bool {
        !self.hint.is_empty() || !self.hints.is_empty()
    }

    /// The stream, and what was read of it and not handed on.
    pub(crate) fn into_inner(self) -> (S, Vec<u8>) {
        let mut left = self.ready;
        left.extend(self.unseen);
        (self.stream, left)
    }

    /// Looks at bytes that were just read. The first so many of them may stay where they are; all others that may go on
    /// are in `ready`.
    fn sort(&mut self, bytes: &[u8]) -> usize {
        let (mut in_place, mut rest) = (0, bytes);
        while !rest.is_empty() && self.end == End::No {
            let taken = match self.follower.look(rest) {
                Look::Pass(taken) if self.ready.is_empty() => {
                    in_place += taken;
                    taken
                }
                Look::Pass(taken) => {
                    self.ready.extend_from_slice(rest.get(..taken).unwrap_or(rest));
                    taken
                }
                Look::Hold => rest.len(),
                Look::Head(taken, head) => {
                    self.ready.extend(head);
                    taken
                }
                Look::Wait => {
                    self.unseen.extend_from_slice(rest);
                    break;
                }
                Look::Bad(bad) => {
                    self.ready.extend(stand_in(&bad));
                    self.end = End::Refused;
                    break;
                }
                Look::BadBody(why) => {
                    self.end = End::Failed(why);
                    break;
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        in_place
    }

    /// Looks again at what waited for an answer.
    fn sort_unseen(&mut self, context: &Context<'_>) -> Poll<()> {
        let Some(is_switched) = self.switch.take(context) else { return Poll::Pending };
        self.follower.answered(is_switched);
        let unseen = std::mem::take(&mut self.unseen);
        let in_place = self.sort(&unseen);
        let mut ready = unseen;
        ready.truncate(in_place);
        ready.append(&mut self.ready);
        self.ready = ready;
        Poll::Ready(())
    }

    fn hand_out(&mut self, buffer: &mut ReadBuf<'_>) {
        let now = self.ready.len().min(buffer.remaining());
        buffer.put_slice(self.ready.get(..now).unwrap_or_default());
        self.ready.drain(..now);
        if self.ready.is_empty() {
            self.ready = Vec::new();
        }
    }
}

impl Switch {
    /// A request of which [`may_switch`](super::framing::may_switch) is true was answered, which is told once. `is_switched`: with 101, or as `CONNECT` wants it, so that HTTP is over.
    pub(crate) fn answered(&self, is_switched: bool) {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answer.is_switched = Some(is_switched);
        if let Some(waits) = answer.waits.take() {
            waits.wake();
        }
    }

    /// The answer since the last call, or a note of who waits for it.
    fn take(&self, context: &Context<'_>) -> Option<bool> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = answer.is_switched.take();
        if taken.is_none() {
            answer.waits = Some(context.waker().clone());
        }
        taken
    }
}

/// The request that the parser gets in the place of a refused one.
fn stand_in(bad: &Bad) -> Vec<u8> {
    let Bad { status, why, .. } = bad;
    format!("{REFUSED} / HTTP/1.1\r\n{WHY}: {status} {why}\r\nconnection: close\r\n\r\n").into_bytes()
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.ready.is_empty() {
                this.hand_out(buffer);
                return Poll::Ready(Ok(()));
            }
            match this.end {
                End::No => (),
                End::Refused => return Poll::Pending,
                End::Failed(why) => {
                    this.end = End::Over;
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                End::Over => return Poll::Ready(Ok(())),
            }
            if this.follower.is_waiting() {
                std::task::ready!(this.sort_unseen(context));
                continue;
            }
            let before = buffer.filled().len();
            std::task::ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let read = buffer.filled().get(before..).unwrap_or_default();
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let in_place = this.sort(read);
            buffer.set_filled(before + in_place);
            if in_place > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Strict<S> {
    /// Writes hints where they can stand: before the first byte of an answer, and behind the last of the one before it. The
    /// parser's side flushes when it has nothing more to write.
    fn poll_hints(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.hint.is_empty() && !self.hints.is_empty() {
            match self.is_flushed {
                true => self.hint = self.hints.take(),
                false => self.hints.too_late(),
            }
        }
        while !self.hint.is_empty() {
            let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, &self.hint))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.hint.drain(..written.min(self.hint.len()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Strict<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_hints(context))?;
        self.is_flushed = false;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_hints(context))?;
        self.is_flushed = false;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        std::task::ready!(Pin::new(&mut this.stream).poll_flush(context))?;
        this.is_flushed = true;
        if this.hint.is_empty() && this.hints.is_empty() {
            return Poll::Ready(Ok(()));
        }
        std::task::ready!(this.poll_hints(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            std::task::ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        this.linger.get_or_insert_with(Linger::new).poll(&mut this.stream, context).map(Ok)
    }
}

#[cfg(test)]
mod tests;
