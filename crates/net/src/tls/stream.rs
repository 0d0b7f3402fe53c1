//! Either side of an opened connection: inside TLS or plain.

use super::wire::Wire;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{client, rustls::ProtocolVersion, server};

/// Bytes from and to one side.
pub(crate) enum Stream {
    /// No TLS.
    Plain(Wire),
    /// The sandbox's side.
    Near(Box<server::TlsStream<Wire>>),
    /// The server's side.
    Far(Box<client::TlsStream<Wire>>),
}

impl Stream {
    /// Whether HTTP/2 was agreed on.
    pub(crate) fn speaks_http2(&self) -> bool {
        let chosen = match self {
            Stream::Plain(_) => None,
            Stream::Near(tls) => tls.get_ref().1.alpn_protocol(),
            Stream::Far(tls) => tls.get_ref().1.alpn_protocol(),
        };
        chosen == Some(b"h2")
    }

    /// Whether it is inside TLS 1.2.
    pub(crate) fn is_tls12(&self) -> bool {
        let version = match self {
            Stream::Plain(_) => None,
            Stream::Near(tls) => tls.get_ref().1.protocol_version(),
            Stream::Far(tls) => tls.get_ref().1.protocol_version(),
        };
        version == Some(ProtocolVersion::TLSv1_2)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(wire) => Pin::new(wire).poll_read(cx, into),
            Stream::Near(tls) => Pin::new(tls).poll_read(cx, into),
            Stream::Far(tls) => Pin::new(tls).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(wire) => Pin::new(wire).poll_write(cx, bytes),
            Stream::Near(tls) => Pin::new(tls).poll_write(cx, bytes),
            Stream::Far(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(wire) => Pin::new(wire).poll_write_vectored(cx, pieces),
            Stream::Near(tls) => Pin::new(tls).poll_write_vectored(cx, pieces),
            Stream::Far(tls) => Pin::new(tls).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(wire) => Pin::new(wire).poll_flush(cx),
            Stream::Near(tls) => Pin::new(tls).poll_flush(cx),
            Stream::Far(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(wire) => Pin::new(wire).poll_shutdown(cx),
            Stream::Near(tls) => Pin::new(tls).poll_shutdown(cx),
            Stream::Far(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
