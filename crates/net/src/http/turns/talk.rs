//! A program's connection: heads, and bodies as whoever sends them on asks for them.

use super::{
    super::{
        body::Cut,
        line::reply::{self, Follows},
        pieces::{Next, Pieces},
        raw,
        strict::Strict,
    },
    head::{self, Head},
};
use crate::tls::Stream;
use bytes::BytesMut;
use hyper::body::{Bytes, Frame};
use std::{
    cell::RefCell,
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// Read at once where a head is expected, and of a body.
const LITTLE: usize = 4 * 1024;
const MUCH: usize = 64 * 1024;
/// Bytes of a body that nobody wanted, and that are thrown away so that the connection can go on.
const UNWANTED: usize = 64 * 1024;
/// What a program is told that waits.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The connection. Shared by the body of the request under way and whoever answers it.
pub(super) struct Talk {
    /// Gone once it is no HTTP any more.
    stream: Option<Strict<Stream>>,
    /// What was read and not looked at.
    buffer: BytesMut,
    /// Of the request under way.
    pieces: Pieces,
    /// Counts requests.
    number: u64,
    /// Whether the program waits to be told that it may go on.
    waits: bool,
    /// What is left to be told.
    telling: &'static [u8],
}

impl Talk {
    /// Nothing was said on it yet.
    pub(super) fn new(stream: Strict<Stream>) -> Rc<RefCell<Talk>> {
        Rc::new(RefCell::new(Talk {
            stream: Some(stream),
            buffer: BytesMut::new(),
            pieces: Pieces::new(Follows::Length(0)),
            number: 0,
            waits: false,
            telling: &[],
        }))
    }

    /// The head of the next request; none where the program has ended.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Head>>> {
        let mut seen = 0;
        loop {
            if let Some(end) = reply::end(&self.buffer, seen) {
                let bytes = self.buffer.split_to(end).freeze();
                let head = head::read(&bytes).unwrap_or_else(head::refused);
                self.pieces = Pieces::new(head.follows);
                self.number = self.number.wrapping_add(1);
                self.waits = head.waits;
                return Poll::Ready(Ok(Some(head)));
            }
            seen = self.buffer.len();
            // What is longer is refused before it comes here, and the words for that are few.
            if seen > raw::LONGEST_HEAD {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            if ready!(self.poll_little(cx))? == 0 {
                let is_whole = self.buffer.is_empty();
                return Poll::Ready(if is_whole {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                });
            }
        }
    }

    /// Ready when the program has gone in the middle of a request of which everything was read.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if let Err(err) = self.poll_hints(cx) {
            return Poll::Ready(err);
        }
        while self.pieces.is_over() && self.buffer.is_empty() {
            match ready!(self.poll_little(cx)) {
                Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(err) => return Poll::Ready(err),
            }
        }
        Poll::Pending
    }

    /// Writes what came before the answer.
    fn poll_hints(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.stream.as_mut().filter(|stream| stream.has_hints()) {
            Some(stream) => match Pin::new(stream).poll_flush(cx) {
                Poll::Ready(flushed) => flushed,
                Poll::Pending => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// The request under way has an answer: nobody is told to go on any more. Whether another may follow.
    pub(super) fn answers(&mut self) -> bool {
        let waits = std::mem::take(&mut self.waits);
        if waits {
            // It may send its body all the same, or not: nobody can tell what follows.
            self.pieces = Pieces::new(Follows::Rest);
            self.number = self.number.wrapping_add(1);
        }
        !waits
    }

    /// Whether the request under way was read to its end, or as good as that; then the next may follow.
    pub(super) fn is_finished(&mut self, cx: &mut Context<'_>) -> bool {
        // Nobody reads it any more.
        self.number = self.number.wrapping_add(1);
        if self.pieces.ends_with_connection() {
            return false;
        }
        let mut thrown = 0;
        while thrown < UNWANTED {
            match self.pieces.next(&mut self.buffer) {
                Ok(Next::Over) => return true,
                Ok(Next::Trailers(_)) => {}
                Ok(Next::Data(data)) => thrown += data.len(),
                Ok(Next::More) if matches!(self.poll_much(cx), Poll::Ready(Ok(1..))) => {}
                Ok(Next::More) | Err(_) => return false,
            }
        }
        false
    }

    /// The connection, which is no HTTP any more, and what was read of it.
    pub(super) fn take(&mut self) -> Option<(Strict<Stream>, Bytes)> {
        Some((self.stream.take()?, self.buffer.split().freeze()))
    }

    /// The next piece of the body.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if std::mem::take(&mut self.waits) && self.buffer.is_empty() {
            self.telling = CONTINUE;
        }
        loop {
            match self.pieces.next(&mut self.buffer) {
                Ok(Next::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Next::Trailers(trailers)) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Ok(Next::Over) => return Poll::Ready(None),
                Ok(Next::More) => {
                    let told = self.poll_tell(cx);
                    let more = match told {
                        Poll::Ready(Err(_)) => return Poll::Ready(Some(Err(Cut))),
                        Poll::Ready(Ok(())) | Poll::Pending => ready!(self.poll_much(cx)),
                    };
                    if !matches!(more, Ok(1..)) {
                        return Poll::Ready(Some(Err(Cut)));
                    }
                }
                Err(_) => return Poll::Ready(Some(Err(Cut))),
            }
        }
    }

    /// Tells a program that waits to go on.
    fn poll_tell(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.telling.is_empty()) else {
            return Poll::Ready(Ok(()));
        };
        while !self.telling.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, self.telling))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.telling = self.telling.get(written..).unwrap_or_default();
        }
        Pin::new(stream).poll_flush(cx)
    }

    /// Reads where little is expected: no memory is held meanwhile.
    fn poll_little(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(0)) };
        let mut bytes = [MaybeUninit::uninit(); LITTLE];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(stream).poll_read(cx, &mut read))?;
        self.buffer.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    fn poll_much(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(0)) };
        if self.buffer.capacity() - self.buffer.len() < LITTLE {
            self.buffer.reserve(MUCH);
        }
        pin!(stream.read_buf(&mut self.buffer)).poll(cx)
    }
}

/// The body of a request.
pub(crate) struct Said {
    talk: Rc<RefCell<Talk>>,
    number: u64,
}

impl Said {
    /// Of the request under way.
    pub(super) fn of(talk: &Rc<RefCell<Talk>>) -> Said {
        Said { talk: Rc::clone(talk), number: talk.borrow().number }
    }

    /// How many bytes are left, where that is known.
    pub(in crate::http) fn left(&self) -> Option<u64> {
        let talk = self.talk.borrow();
        if talk.number == self.number { talk.pieces.left() } else { Some(0) }
    }

    /// The next piece; nothing of a request that is over.
    pub(in crate::http) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let mut talk = self.talk.borrow_mut();
        match talk.number == self.number {
            true => talk.poll_frame(cx),
            false => Poll::Ready(Some(Err(Cut))),
        }
    }
}

/// Writes to the connection, which bodies may be read from in between.
pub(super) struct Writes<'a>(pub(super) &'a RefCell<Talk>);

impl Writes<'_> {
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut Strict<Stream>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut talk = self.0.borrow_mut();
        ready!(talk.poll_tell(cx))?;
        match &mut talk.stream {
            Some(stream) => work(Pin::new(stream), cx),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Writes<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream, cx| stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}
