//! A request on its way to a server of HTTP/1.1: its head, and its body as it comes.

use super::super::body::Body;
use crate::tls::Stream;
use bytes::{Buf as _, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING},
    request,
};
use hyper::body::{Body as _, Bytes};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::AsyncWrite;

/// For most heads.
const HEAD: usize = 512;

/// What is left of it.
pub(super) struct Sends {
    /// Not written yet.
    out: BytesMut,
    /// None once everything of it is in `out`.
    body: Option<Body>,
    how: How,
    is_flushed: bool,
}

/// How the server is told where the body ends.
#[derive(Debug, PartialEq, Eq)]
enum How {
    /// So many bytes are left.
    Length(u64),
    /// With the trailers that were announced.
    Chunks(Vec<HeaderName>),
}

impl Sends {
    /// Nothing is written yet.
    pub(super) fn new(mut head: request::Parts, body: Body) -> Sends {
        let how = match body.is_end_stream() {
            true => {
                head.headers.remove(TRANSFER_ENCODING);
                None
            }
            false => frame(&mut head, body.size_hint().exact()),
        };
        let mut out = BytesMut::with_capacity(HEAD);
        write_head(&mut out, &head);
        let body = Some(body).filter(|_| how.is_some());
        Sends { out, body, how: how.unwrap_or(How::Length(0)), is_flushed: false }
    }

    /// Writes what can be written; ready when everything was.
    pub(super) fn poll(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while !self.out.is_empty() {
                self.is_flushed = false;
                let written = ready!(Pin::new(&mut *stream).poll_write(cx, &self.out))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.out.advance(written);
            }
            let Some(body) = &mut self.body else { return self.poll_flush(stream, cx) };
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => {
                    ready!(self.poll_flush(stream, cx))?;
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.put(&data)?;
                        if self.body.as_ref().is_some_and(hyper::body::Body::is_end_stream) {
                            self.end(None)?;
                        }
                    }
                    Err(frame) => self.end(frame.into_trailers().ok().as_ref())?,
                },
                Poll::Ready(None) => self.end(None)?,
                Poll::Ready(Some(Err(cut))) => return Poll::Ready(Err(io::Error::other(cut))),
            }
        }
    }

    fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn put(&mut self, data: &Bytes) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        match &mut self.how {
            How::Length(left) => {
                *left = left.checked_sub(length).ok_or(io::ErrorKind::InvalidData)?;
                self.out.extend_from_slice(data);
            }
            How::Chunks(_) => {
                self.out.extend_from_slice(format!("{length:x}\r\n").as_bytes());
                self.out.extend_from_slice(data);
                self.out.extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }

    /// The body is whole, or it is not what was announced.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        self.body = None;
        match &self.how {
            How::Length(0) => Ok(()),
            How::Length(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            How::Chunks(announced) => {
                self.out.extend_from_slice(b"0\r\n");
                let trailers = trailers.into_iter().flatten();
                for (name, value) in trailers.filter(|(name, _)| announced.contains(name)) {
                    write_header(&mut self.out, name, value);
                }
                self.out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

/// Has the head say how long its body is; none where no body is sent: what has no length is none of a `GET`.
fn frame(head: &mut request::Parts, length: Option<u64>) -> Option<How> {
    let headers = &mut head.headers;
    headers.remove(TRANSFER_ENCODING);
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(announced) = announced {
        return Some(How::Length(announced));
    }
    headers.remove(CONTENT_LENGTH);
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        return Some(How::Length(length));
    }
    if matches!(head.method, Method::GET | Method::HEAD | Method::CONNECT) {
        return None;
    }
    headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    let names = headers.get_all(TRAILER).iter().filter_map(|value| value.to_str().ok());
    let names = names.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    Some(How::Chunks(names.collect()))
}

fn write_head(out: &mut BytesMut, head: &request::Parts) {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.extend_from_slice(b" ");
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in &head.headers {
        write_header(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

fn write_header(out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn framed(method: &str, headers: &[(&str, &str)], length: Option<u64>) -> (String, Option<How>) {
        let mut request = Request::builder().method(method).uri("/a?b");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        let how = frame(&mut head, length);
        let mut out = BytesMut::new();
        write_head(&mut out, &head);
        (String::from_utf8(out.to_vec()).unwrap(), how)
    }

    #[test]
    fn a_server_is_told_in_one_way_where_a_body_ends() {
        let (head, how) = framed("POST", &[("content-length", "3")], None);
        assert_eq!(
            (head.as_str(), how),
            ("POST /a?b HTTP/1.1\r\ncontent-length: 3\r\n\r\n", Some(How::Length(3)))
        );
        let (head, how) = framed("POST", &[], Some(4));
        assert_eq!(
            (head.as_str(), how),
            ("POST /a?b HTTP/1.1\r\ncontent-length: 4\r\n\r\n", Some(How::Length(4)))
        );
        let (head, how) = framed("POST", &[("trailer", "x-sum, y")], None);
        let names = vec!["x-sum".parse().unwrap(), "y".parse().unwrap()];
        assert_eq!(
            (head.as_str(), how),
            (
                "POST /a?b HTTP/1.1\r\ntrailer: x-sum, y\r\ntransfer-encoding: chunked\r\n\r\n",
                Some(How::Chunks(names))
            )
        );
        let (head, how) = framed("GET", &[], None);
        assert_eq!((head.as_str(), how), ("GET /a?b HTTP/1.1\r\n\r\n", None));
    }

    #[test]
    fn a_body_that_is_longer_or_shorter_than_announced_does_not_pass() {
        let sends = |how| Sends { out: BytesMut::new(), body: None, how, is_flushed: true };
        assert!(sends(How::Length(3)).put(&Bytes::from_static(b"four")).is_err());
        assert!(sends(How::Length(3)).end(None).is_err());
        let mut chunks = sends(How::Chunks(vec!["x".parse().unwrap()]));
        chunks.put(&Bytes::from_static(b"hello world, hello")).unwrap();
        let trailers = HeaderMap::from_iter([
            ("x".parse::<HeaderName>().unwrap(), HeaderValue::from_static("1")),
            ("unsaid".parse().unwrap(), HeaderValue::from_static("2")),
        ]);
        chunks.end(Some(&trailers)).unwrap();
        assert_eq!(&chunks.out[..], b"12\r\nhello world, hello\r\n0\r\nx: 1\r\n\r\n");
    }
}
