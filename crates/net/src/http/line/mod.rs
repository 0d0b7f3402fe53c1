//! A connection to a server that speaks HTTP/1.1: one request at a time, moved by whoever waits for its answer.
//!
//! There is no task behind it and no channel in between: the same task reads the program's request, writes it here, reads the
//! answer here and writes that to the program ([ADR 46](../../../../../docs/adr/0046-http1-to-servers.md)). When the body of the
//! answer has come to its end, the connection goes back to where it was taken from; whatever is not as it should be ends it.
//!
//! | module | what |
//! |---|---|
//! | `reply` | the head of an answer, read (pure) |

pub(super) mod reply;

use super::{
    body::{Body, Cut},
    calls::Unanswered,
    far::{Kept, Origin, Past},
    flow::Flow,
    link::Link,
    pieces::{Next, Pieces},
    sends::Sends,
};
use crate::tls::Stream;
use bytes::BytesMut;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::{Bytes, Frame};
use reply::Reply;
use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// Read at once, at first and when much comes.
const LITTLE: usize = 4 * 1024;
const MUCH: usize = 64 * 1024;
/// Heads before an answer that are read.
const MOST_HINTS: usize = 64;

/// A connection that takes one more request.
pub(super) struct Line {
    /// Gone once it is no HTTP any more.
    stream: Option<Stream>,
    /// What was read and not looked at.
    buffer: BytesMut,
    /// How much is read at once.
    piece: usize,
    link: Rc<Link>,
}

impl Line {
    /// One that nothing was said on.
    pub(super) fn new(stream: Stream, link: &Rc<Link>) -> Line {
        Line { stream: Some(stream), buffer: BytesMut::new(), piece: LITTLE, link: Rc::clone(link) }
    }

    /// What is known of it.
    pub(super) fn link(&self) -> &Rc<Link> {
        &self.link
    }

    /// Whether it takes no more requests: the server has closed it, or says something that nobody asked for.
    pub(super) fn is_closed(&mut self) -> bool {
        self.poll_closed(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// The same, waited for.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = self.stream.as_mut().filter(|_| self.buffer.is_empty()) else {
            return Poll::Ready(());
        };
        let mut byte = [0];
        if ready!(Pin::new(stream).poll_read(cx, &mut ReadBuf::new(&mut byte))).is_err() {
            self.link.lose();
        }
        self.stream = None;
        Poll::Ready(())
    }

    /// Sends a request and waits for the head of its answer. `hint` gets what comes before that.
    pub(super) async fn call(
        self,
        request: Request<Body>,
        mut hint: impl FnMut(StatusCode, HeaderMap),
    ) -> Result<Response<Answer>, Unanswered> {
        let (head, body) = request.into_parts();
        let method = head.method.clone();
        let sends = Some(Sends::request(head, body));
        let mut calls = Calls { line: self, sends, is_cut: false, seen: 0, hints: 0 };
        let answered = poll_fn(|cx| {
            loop {
                let reply = match ready!(calls.poll_reply(&method, cx)) {
                    Ok(reply) => reply,
                    Err(why) => return Poll::Ready(Err(why)),
                };
                if !reply.head.status.is_informational()
                    || reply.head.status == StatusCode::SWITCHING_PROTOCOLS
                {
                    return Poll::Ready(Ok(reply));
                }
                hint(reply.head.status, reply.head.headers);
            }
        });
        match answered.await {
            Ok(reply) => Ok(calls.answered(reply)),
            Err(why) => {
                calls.line.link.lose();
                Err(Unanswered { request: None, why })
            }
        }
    }

    /// Reads more; how much.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(0)) };
        // What was handed out is still in use while the next piece is read, so memory is taken for several at once.
        if self.buffer.capacity() - self.buffer.len() < self.piece / 4 {
            self.buffer.reserve(self.piece);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        let read = ready!(pin!(stream.read_buf(&mut self.buffer)).poll(cx))?;
        if read >= room.min(LITTLE) {
            self.piece = MUCH;
        }
        Poll::Ready(Ok(read))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.link.ended();
    }
}

/// A request that has no answer yet.
struct Calls {
    line: Line,
    sends: Option<Sends>,
    /// Whether a part of it was never sent: the server waits for that, whatever it has answered.
    is_cut: bool,
    /// Of what was read, so much has no end of a head.
    seen: usize,
    hints: usize,
}

impl Calls {
    /// Sends on, and reads the next head.
    fn poll_reply(&mut self, method: &Method, cx: &mut Context<'_>) -> Poll<Result<Reply, String>> {
        let unsent = send(&mut self.sends, &mut self.line, cx).err();
        self.is_cut |= unsent.is_some();
        loop {
            match self.read(method) {
                Ok(Some(reply)) => return Poll::Ready(Ok(reply)),
                Ok(None) => {}
                Err(why) => return Poll::Ready(Err(why.to_owned())),
            }
            let read = match self.line.poll_more(cx) {
                // A server that takes no more may have said why before.
                Poll::Pending => match unsent {
                    Some(err) => return Poll::Ready(Err(err.to_string())),
                    None => return Poll::Pending,
                },
                Poll::Ready(read) => read,
            };
            match read {
                Ok(0) => return Poll::Ready(Err("the connection was closed".to_owned())),
                Ok(_) => {}
                Err(err) => return Poll::Ready(Err(err.to_string())),
            }
        }
    }

    /// The next head, if it is whole.
    fn read(&mut self, method: &Method) -> Result<Option<Reply>, &'static str> {
        let buffer = &mut self.line.buffer;
        let looked_at = buffer.get(..buffer.len().min(reply::LONGEST)).unwrap_or_default();
        let Some(end) = reply::end(looked_at, self.seen) else {
            self.seen = buffer.len();
            return if buffer.len() >= reply::LONGEST { Err("its head is too long") } else { Ok(None) };
        };
        let reply = reply::read(&buffer.split_to(end).freeze(), method)?;
        self.seen = 0;
        self.hints += 1;
        if self.hints > MOST_HINTS { Err("too much comes before its answer") } else { Ok(Some(reply)) }
    }

    fn answered(self, reply: Reply) -> Response<Answer> {
        let Reply { head, follows, keeps } = reply;
        let Calls { line, sends, is_cut, .. } = self;
        let keeps = keeps && !is_cut;
        let answer = Answer { line: Some(line), sends, pieces: Pieces::new(follows), keeps, home: None };
        Response::from_parts(head, answer)
    }
}

/// Sends on what is left of a request; nothing is left where that fails.
fn send(sends: &mut Option<Sends>, line: &mut Line, cx: &mut Context<'_>) -> io::Result<()> {
    let (Some(going), Some(stream)) = (sends.as_mut(), line.stream.as_mut()) else { return Ok(()) };
    match going.poll(stream, cx) {
        Poll::Pending => Ok(()),
        Poll::Ready(sent) => {
            *sends = None;
            sent
        }
    }
}

/// The body of an answer.
pub(crate) struct Answer {
    /// Gone when it is over.
    line: Option<Line>,
    /// What is left of the request.
    sends: Option<Sends>,
    pieces: Pieces,
    keeps: bool,
    home: Option<Home>,
}

/// Where a connection goes when its answer is over.
struct Home {
    origin: Rc<Origin>,
    flow: Rc<Flow>,
}

impl Answer {
    /// Its connection may take requests for `origin` again.
    pub(super) fn returns_to(&mut self, origin: &Rc<Origin>, flow: &Rc<Flow>) {
        self.home = Some(Home { origin: Rc::clone(origin), flow: Rc::clone(flow) });
        self.settle();
    }

    /// What goes on behind an answer that ends HTTP.
    pub(super) fn into_switched(mut self) -> Option<Switched<Stream>> {
        let mut line = self.line.take()?;
        let first = line.buffer.split().freeze();
        Some(Switched { first, stream: line.stream.take()? })
    }

    /// Whether nothing of it is left.
    pub(super) fn is_over(&self) -> bool {
        self.pieces.is_over()
    }

    /// How many bytes are left, where that is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.pieces.left()
    }

    /// The next piece.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let next = loop {
            let Some(line) = &mut self.line else { return Poll::Ready(None) };
            if send(&mut self.sends, line, cx).is_err() {
                self.keeps = false;
            }
            match self.pieces.next(&mut line.buffer) {
                Ok(Next::Data(data)) => break Some(Ok(Frame::data(data))),
                Ok(Next::Trailers(trailers)) => break Some(Ok(Frame::trailers(trailers))),
                Ok(Next::Over) => break None,
                Ok(Next::More) => match ready!(line.poll_more(cx)) {
                    Ok(1..) => {}
                    Ok(0) if self.pieces.ends_with_connection() => {
                        self.pieces.end();
                        break None;
                    }
                    Ok(0) | Err(_) => break Some(Err(self.cut())),
                },
                Err(_) => break Some(Err(self.cut())),
            }
        };
        self.settle();
        Poll::Ready(next)
    }

    /// It is not whole, and never will be.
    fn cut(&mut self) -> Cut {
        self.keeps = false;
        self.pieces.end();
        if let Some(line) = &self.line {
            line.link.lose();
        }
        Cut
    }

    /// Where it is over, its connection goes home, or ends.
    fn settle(&mut self) {
        if !self.pieces.is_over() {
            return;
        }
        let is_clean = self.keeps && self.sends.is_none();
        let Some(mut line) = self.line.take_if(|_| !is_clean || self.home.is_some()) else { return };
        if let Some(Home { origin, flow }) = self.home.take().filter(|_| is_clean && line.buffer.is_empty()) {
            line.piece = LITTLE;
            if line.buffer.capacity() > MUCH {
                line.buffer = BytesMut::new();
            }
            origin.give_back(Kept { line, flow, past: Past::Used });
        }
    }
}

/// A connection that is no HTTP any more.
pub(super) struct Switched<S> {
    /// What was read of it already.
    pub(super) first: Bytes,
    pub(super) stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Switched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, into);
        }
        let now = this.first.split_to(this.first.len().min(into.remaining()));
        into.put_slice(&now);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Switched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
