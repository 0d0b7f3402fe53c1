//! A connection that speaks SSH: the machine, and the stream it reads and writes.

use super::{
    Broken,
    exchange::{Machine, Side},
};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Read at once.
const PIECE: usize = 32 * 1024;

/// What a stream has to be.
pub(crate) trait Both: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Both for S {}

/// One connection.
pub(crate) struct Talk<S> {
    stream: S,
    pub(super) machine: Machine,
    buffer: Box<[u8]>,
}

/// What came of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A message.
    Message(Vec<u8>),
    /// All that was to be said is said.
    Said,
}

impl<S: Both> Talk<S> {
    /// Nothing is said yet.
    pub(crate) fn new(stream: S, side: Side) -> Result<Talk<S>, Broken> {
        Ok(Talk { stream, machine: Machine::new(side)?, buffer: vec![0; PIECE].into_boxed_slice() })
    }

    /// Says something, later.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> Result<(), Broken> {
        self.machine.send(message)
    }

    /// How much waits to be said.
    pub(crate) fn waiting(&self) -> usize {
        self.machine.output.len()
    }

    /// Until a message is there, or all is said. Dropped before, nothing is lost.
    pub(crate) async fn step(&mut self) -> Result<Step, Broken> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// The next message.
    pub(crate) async fn message(&mut self) -> Result<Vec<u8>, Broken> {
        loop {
            if let Step::Message(message) = self.step().await? {
                return Ok(message);
            }
        }
    }

    /// Says what is left to say.
    pub(crate) async fn flush(&mut self) -> Result<(), Broken> {
        poll_fn(|cx| match self.poll_write(cx) {
            Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
            Poll::Ready(Err(err)) => Poll::Ready(Err(err)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Ends it, for good.
    pub(crate) async fn close(&mut self) {
        // Who does not read the end of it is gone.
        let _ = poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Broken>> {
        loop {
            if let Some(message) = self.machine.next()? {
                return Poll::Ready(Ok(Step::Message(message)));
            }
            match self.poll_write(cx) {
                Poll::Ready(Ok(Wrote::Something)) => return Poll::Ready(Ok(Step::Said)),
                Poll::Ready(Err(err)) => return Poll::Ready(Err(err)),
                Poll::Ready(Ok(Wrote::Nothing)) | Poll::Pending => {}
            }
            let mut read = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    self.machine.input.extend_from_slice(read.filled());
                }
                Poll::Ready(_) => return Poll::Ready(Err(Broken::Lost)),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<Wrote, Broken>> {
        let output = &mut self.machine.output;
        if output.is_empty() {
            return Poll::Ready(Ok(Wrote::Nothing));
        }
        let mut written = 0;
        while let Some(left) = output.get(written..).filter(|left| !left.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, left) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Broken::Lost)),
                Poll::Ready(Ok(count)) => written += count,
                Poll::Pending => {
                    output.drain(..written);
                    return Poll::Pending;
                }
            }
        }
        output.clear();
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Ready(Err(_)) => Poll::Ready(Err(Broken::Lost)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(Wrote::Something)),
        }
    }
}

enum Wrote {
    Nothing,
    Something,
}
