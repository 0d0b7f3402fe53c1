//! Bodies as they come off a wire: of HTTP/1, and of streams of HTTP/2.

use super::{
    body::Cut,
    line::{Answer, Switched},
    turns::Said,
};
use crate::tls;
use http::{HeaderMap, header::CONTENT_LENGTH};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A body that somebody sends us.
pub(crate) enum Came {
    /// As the library of HTTP/1 has it.
    Message(Incoming),
    /// A program's that speaks HTTP/1.
    Said(Said),
    /// The answer of a server that speaks HTTP/1.1.
    Answer(Box<Answer>),
    /// A stream of HTTP/2.
    Stream(Stream),
}

/// A stream of HTTP/2 that is read.
pub(crate) struct Stream {
    stream: h2::RecvStream,
    /// How many bytes are to come, where that was announced. The library refuses any other number.
    left: Option<u64>,
    is_data_over: bool,
    /// Whether it is an answer's: a server that wants no more of a request says so behind its whole answer (RFC 9113, 8.1).
    is_answer: bool,
}

impl From<Incoming> for Came {
    fn from(incoming: Incoming) -> Came {
        Came::Message(incoming)
    }
}

impl From<Answer> for Came {
    fn from(answer: Answer) -> Came {
        Came::Answer(Box::new(answer))
    }
}

impl Came {
    /// The body of a request with these headers.
    pub(super) fn of_request(headers: &HeaderMap, stream: h2::RecvStream) -> Came {
        Came::of_stream(headers, stream, false)
    }

    /// The body of an answer with these headers.
    pub(super) fn of_answer(headers: &HeaderMap, stream: h2::RecvStream) -> Came {
        Came::of_stream(headers, stream, true)
    }

    fn of_stream(headers: &HeaderMap, stream: h2::RecvStream, is_answer: bool) -> Came {
        let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let left = if stream.is_end_stream() { Some(0) } else { announced };
        Came::Stream(Stream { stream, left, is_data_over: false, is_answer })
    }

    /// What goes on behind an answer that ends HTTP.
    pub(super) fn into_switched(self) -> Option<Switched<tls::Stream>> {
        match self {
            Came::Answer(answer) => answer.into_switched(),
            Came::Message(_) | Came::Said(_) | Came::Stream(_) => None,
        }
    }
}

impl Stream {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if !self.is_data_over {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Whoever does not take more does not ask for more, and then the window stays shut.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    self.left = self.left.map(|left| left.saturating_sub(bytes));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(err)) => return Poll::Ready(self.end(&err)),
                None => self.is_data_over = true,
            }
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
            Err(err) => Poll::Ready(self.end(&err)),
        }
    }

    /// A stream that is reset is not whole, but for an answer of which nothing is missing.
    fn end(&self, err: &h2::Error) -> Option<Result<Frame<Bytes>, Cut>> {
        let is_whole = self.is_answer && err.reason() == Some(h2::Reason::NO_ERROR) && err.is_remote();
        match is_whole && self.left.is_none_or(|left| left == 0) {
            true => None,
            false => Some(Err(Cut)),
        }
    }
}

impl Body for Came {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Came::Message(incoming) => Pin::new(incoming).poll_frame(cx).map_err(|_| Cut),
            Came::Said(said) => said.poll_frame(cx),
            Came::Answer(answer) => answer.poll_frame(cx),
            Came::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Came::Message(incoming) => incoming.is_end_stream(),
            Came::Said(said) => said.left() == Some(0),
            Came::Answer(answer) => answer.is_over(),
            Came::Stream(stream) => stream.stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Came::Message(incoming) => incoming.size_hint(),
            Came::Said(said) => said.left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Came::Answer(answer) => answer.left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Came::Stream(stream) => stream.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
