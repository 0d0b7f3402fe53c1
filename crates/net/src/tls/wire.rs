//! A socket as TLS and HTTP read it: in large pieces, counted.
//!
//! What is read ahead is in a buffer that goes back as soon as it is empty, so an idle connection holds none.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// One read brings at most this. TLS by itself reads four kilobytes at a time.
const AHEAD: usize = 64 * 1024;
/// Buffers that lie ready.
const SPARE: usize = 8;

thread_local! {
    static BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// What went over a socket, and how it is to end.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    read: AtomicU64,
    written: AtomicU64,
    is_reset: AtomicBool,
}

impl Counts {
    /// Bytes that came.
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes that went.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether the other end will see a reset when the socket is dropped.
    pub(crate) fn resets(&self, resets: bool) {
        self.is_reset.store(resets, Ordering::Relaxed);
    }
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Gone only once it is given away.
    socket: Option<TcpStream>,
    ahead: Option<Box<[u8]>>,
    /// What of `ahead` has not been taken yet.
    left: std::ops::Range<usize>,
    counts: Arc<Counts>,
}

impl Wire {
    /// Nothing was read of it yet.
    pub(crate) fn new(socket: TcpStream) -> Wire {
        Wire { socket: Some(socket), ahead: None, left: 0..0, counts: Arc::default() }
    }

    /// Puts back what was read of it; it comes first.
    pub(crate) fn unread(&mut self, mut bytes: Vec<u8>) {
        if let Some(ahead) = self.ahead.take() {
            bytes.extend_from_slice(ahead.get(self.left.clone()).unwrap_or_default());
            give_back(ahead);
        }
        self.left = 0..bytes.len();
        self.ahead = (!bytes.is_empty()).then(|| bytes.into_boxed_slice());
    }

    /// What goes over it.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// The socket, where everything that was read of it has been taken.
    pub(crate) fn into_socket(mut self) -> Option<TcpStream> {
        if self.ahead.is_some() {
            return None;
        }
        self.socket.take()
    }

    fn socket(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.socket.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn take_ahead(&mut self, into: &mut ReadBuf<'_>) {
        let Some(ahead) = &self.ahead else { return };
        let rest = ahead.get(self.left.clone()).unwrap_or_default();
        let piece = rest.get(..rest.len().min(into.remaining())).unwrap_or_default();
        into.put_slice(piece);
        self.left.start += piece.len();
        if self.left.is_empty() {
            self.ahead.take().into_iter().for_each(give_back);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ahead.take().into_iter().for_each(give_back);
        if let Some(socket) = self.socket.as_ref().filter(|_| self.counts.is_reset.load(Ordering::Relaxed)) {
            // A socket that is gone already needs no reset.
            let _ = socket.set_zero_linger();
        }
    }
}

fn buffer() -> Box<[u8]> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; AHEAD].into_boxed_slice())
}

fn give_back(buffer: Box<[u8]>) {
    BUFFERS.with_borrow_mut(|spare| {
        if buffer.len() == AHEAD && spare.len() < SPARE {
            spare.push(buffer);
        }
    });
}

fn count(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_none() {
            if into.remaining() >= AHEAD {
                let before = into.filled().len();
                ready!(this.socket()?.poll_read(cx, into))?;
                count(&this.counts.read, into.filled().len() - before);
                return Poll::Ready(Ok(()));
            }
            let mut ahead = buffer();
            let mut piece = ReadBuf::new(&mut ahead);
            let read = this.socket()?.poll_read(cx, &mut piece);
            let length = piece.filled().len();
            if !matches!(read, Poll::Ready(Ok(()))) || length == 0 {
                give_back(ahead);
                return read;
            }
            count(&this.counts.read, length);
            this.left = 0..length;
            this.ahead = Some(ahead);
        }
        this.take_ahead(into);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(this.socket()?.poll_write(cx, bytes))?;
        count(&this.counts.written, written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(this.socket()?.poll_write_vectored(cx, pieces))?;
        count(&this.counts.written, written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket()?.poll_shutdown(cx)
    }
}
