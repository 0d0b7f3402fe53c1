//! A message of HTTP/1.1 on its way, a request to a server or an answer to a program: its head, and its body as it comes.

use super::{
    body::{Body, Cut},
    framing,
};
use bytes::{Buf as _, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING},
    request, response,
};
use hyper::{
    body::{Body as HttpBody, Bytes},
    ext::ReasonPhrase,
};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::AsyncWrite;

/// For most heads.
const HEAD: usize = 512;
/// Shorter pieces are copied behind what goes before them.
const SHORT: usize = 4096;

/// What is left of it.
pub(super) struct Sends<B = Body> {
    /// Not written yet.
    out: BytesMut,
    /// A long piece, to be written behind that.
    long: Bytes,
    /// None once everything of it is in `out` and `long`.
    body: Option<B>,
    how: How,
    is_flushed: bool,
}

/// How it is told where the body ends.
#[derive(Debug, PartialEq, Eq)]
enum How {
    /// So many bytes are left.
    Length(u64),
    /// With the trailers that were announced.
    Chunks(Vec<HeaderName>),
    /// With the connection.
    Rest,
}

/// What is known of a request when its answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// Its version.
    pub(super) version: Version,
    /// Whether it is a `HEAD`.
    pub(super) is_head: bool,
    /// Whether the program wants trailers.
    pub(super) takes_trailers: bool,
    /// Whether another request may follow it on its connection.
    pub(super) keeps: bool,
}

impl<B: HttpBody<Data = Bytes, Error = Cut> + Unpin> Sends<B> {
    /// A request of which nothing is written yet.
    pub(super) fn request(mut head: request::Parts, body: B) -> Sends<B> {
        let how = match body.is_end_stream() {
            true => {
                head.headers.remove(TRANSFER_ENCODING);
                None
            }
            false => frame(&mut head, body.size_hint().exact()),
        };
        let mut out = BytesMut::with_capacity(HEAD);
        write_head(&mut out, &head);
        Sends::of(out, body, how)
    }

    /// The answer to a request, of which nothing is written yet; and whether another may follow it.
    pub(super) fn answer(mut head: response::Parts, body: B, asked: Asked) -> (Sends<B>, bool) {
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let (how, keeps) = frame_answer(&mut head, length, asked);
        let mut out = BytesMut::with_capacity(HEAD);
        write_answer(&mut out, &head, asked.version);
        (Sends::of(out, body, how), keeps)
    }

    fn of(out: BytesMut, body: B, how: Option<How>) -> Sends<B> {
        let body = Some(body).filter(|_| how.is_some());
        Sends { out, long: Bytes::new(), body, how: how.unwrap_or(How::Length(0)), is_flushed: false }
    }

    /// Writes what can be written; ready when everything was.
    pub(super) fn poll(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            // Most bodies are short, and go with their heads. Nothing is put behind a long piece before all of it is written.
            if !self.long.is_empty() || self.out.len() >= SHORT || self.body.is_none() {
                ready!(self.poll_out(stream, cx))?;
            }
            let Some(body) = &mut self.body else { return self.poll_flush(stream, cx) };
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => {
                    ready!(self.poll_out(stream, cx))?;
                    ready!(self.poll_flush(stream, cx))?;
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.put(data)?;
                        if self.body.as_ref().is_some_and(HttpBody::is_end_stream) {
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

    fn poll_out(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.out.is_empty() || !self.long.is_empty() {
            self.is_flushed = false;
            let stream = Pin::new(&mut *stream);
            let written = match self.long.is_empty() {
                true => ready!(stream.poll_write(cx, &self.out))?,
                false => {
                    let pieces = [IoSlice::new(&self.out), IoSlice::new(&self.long)];
                    ready!(stream.poll_write_vectored(cx, &pieces))?
                }
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let short = written.min(self.out.len());
            self.out.advance(short);
            self.long.advance((written - short).min(self.long.len()));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Puts a piece behind everything else. There is no long one.
    fn put(&mut self, data: Bytes) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        match &mut self.how {
            How::Length(left) => *left = left.checked_sub(length).ok_or(io::ErrorKind::InvalidData)?,
            How::Rest => {}
            How::Chunks(_) => {
                self.out.extend_from_slice(format!("{length:x}\r\n").as_bytes());
                self.out.extend_from_slice(&data);
                self.out.extend_from_slice(b"\r\n");
                return Ok(());
            }
        }
        match data.len() < SHORT {
            true => self.out.extend_from_slice(&data),
            false => self.long = data,
        }
        Ok(())
    }

    /// The body is whole, or it is not what was announced.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        self.body = None;
        match &self.how {
            How::Length(0) | How::Rest => Ok(()),
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
    if let Some(length) = length_of(headers, length) {
        return Some(How::Length(length));
    }
    if matches!(head.method, Method::GET | Method::HEAD | Method::CONNECT) {
        return None;
    }
    Some(chunks(headers))
}

/// The same of an answer (RFC 9112, 6.3); and whether another may follow it on its connection.
fn frame_answer(head: &mut response::Parts, length: Option<u64>, asked: Asked) -> (Option<How>, bool) {
    let headers = &mut head.headers;
    headers.remove(TRANSFER_ENCODING);
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return (None, false);
    }
    let how = if head.status.is_informational() || head.status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
        None
    } else if asked.is_head || head.status == StatusCode::NOT_MODIFIED {
        None
    } else if let Some(length) = length_of(headers, length) {
        Some(How::Length(length))
    } else if asked.version != Version::HTTP_11 {
        Some(How::Rest)
    } else if asked.takes_trailers {
        Some(chunks(headers))
    } else {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        Some(How::Chunks(Vec::new()))
    };
    let says_close = framing::listed(headers).any(|word| word.eq_ignore_ascii_case("close"));
    let keeps = asked.keeps && !says_close && how != Some(How::Rest);
    match (keeps, asked.version) {
        (false, _) => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
        (true, Version::HTTP_11) => {}
        (true, _) => drop(headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"))),
    }
    (how, keeps)
}

/// The length that was announced, or that is known: the head says it then.
fn length_of(headers: &mut HeaderMap, known: Option<u64>) -> Option<u64> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some() {
        return announced;
    }
    headers.remove(CONTENT_LENGTH);
    if let Some(length) = known {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    known
}

fn chunks(headers: &mut HeaderMap) -> How {
    headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    let names = headers.get_all(TRAILER).iter().filter_map(|value| value.to_str().ok());
    let names = names.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    How::Chunks(names.collect())
}

fn write_head(out: &mut BytesMut, head: &request::Parts) {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.extend_from_slice(b" ");
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_headers(out, &head.headers);
}

fn write_answer(out: &mut BytesMut, head: &response::Parts, version: Version) {
    out.extend_from_slice(if version == Version::HTTP_11 { b"HTTP/1.1 " } else { b"HTTP/1.0 " });
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    let usual = head.status.canonical_reason().unwrap_or_default().as_bytes();
    out.extend_from_slice(head.extensions.get::<ReasonPhrase>().map_or(usual, ReasonPhrase::as_bytes));
    out.extend_from_slice(b"\r\n");
    write_headers(out, &head.headers);
}

fn write_headers(out: &mut BytesMut, headers: &HeaderMap) {
    for (name, value) in headers {
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
    use http::{Request, Response};
    use hyper::body::Frame;
    use proptest::prelude::*;
    use std::{collections::VecDeque, task::Waker};

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
        let sends = |how| Sends::<Body> {
            out: BytesMut::new(),
            long: Bytes::new(),
            body: None,
            how,
            is_flushed: true,
        };
        assert!(sends(How::Length(3)).put(Bytes::from_static(b"four")).is_err());
        assert!(sends(How::Length(3)).end(None).is_err());
        let mut chunks = sends(How::Chunks(vec!["x".parse().unwrap()]));
        chunks.put(Bytes::from_static(b"hello world, hello")).unwrap();
        let trailers = HeaderMap::from_iter([
            ("x".parse::<HeaderName>().unwrap(), HeaderValue::from_static("1")),
            ("unsaid".parse().unwrap(), HeaderValue::from_static("2")),
        ]);
        chunks.end(Some(&trailers)).unwrap();
        assert_eq!(&chunks.out[..], b"12\r\nhello world, hello\r\n0\r\nx: 1\r\n\r\n");
    }

    fn answered(status: u16, headers: &[(&str, &str)], length: Option<u64>, asked: Asked) -> (String, bool) {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (mut head, ()) = response.body(()).unwrap().into_parts();
        let (_, keeps) = frame_answer(&mut head, length, asked);
        let mut out = BytesMut::new();
        write_answer(&mut out, &head, asked.version);
        (String::from_utf8(out.to_vec()).unwrap(), keeps)
    }

    #[test]
    fn a_program_is_told_in_one_way_where_an_answer_ends() {
        let one = Asked { version: Version::HTTP_11, is_head: false, takes_trailers: false, keeps: true };
        let old = Asked { version: Version::HTTP_10, ..one };
        let close = Asked { keeps: false, ..one };
        let head = Asked { is_head: true, ..one };
        for (status, headers, length, asked, text, keeps) in [
            (
                200,
                &[("content-length", "2")][..],
                Some(2),
                one,
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n",
                true,
            ),
            (200, &[], Some(3), one, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", true),
            (200, &[], None, one, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", true),
            (200, &[], None, old, "HTTP/1.0 200 OK\r\nconnection: close\r\n\r\n", false),
            (
                200,
                &[],
                Some(0),
                old,
                "HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n",
                true,
            ),
            (
                204,
                &[("content-length", "2")],
                None,
                close,
                "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
                false,
            ),
            (
                200,
                &[("content-length", "9")],
                Some(0),
                head,
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
                true,
            ),
            (304, &[("etag", "x")], Some(0), one, "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n", true),
            (
                101,
                &[("upgrade", "websocket")],
                Some(0),
                one,
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
                false,
            ),
        ] {
            assert_eq!(answered(status, headers, length, asked), (text.to_owned(), keeps));
        }
    }

    /// Frames, and moments in which there is none yet.
    struct Pieces(VecDeque<Option<Bytes>>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = Cut;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
            match self.0.pop_front() {
                Some(Some(piece)) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                Some(None) => Poll::Pending,
                None => Poll::Ready(None),
            }
        }
    }

    /// Takes so much at a time; nothing where that is nothing, once.
    struct Slow {
        takes: VecDeque<usize>,
        taken: Vec<u8>,
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let most = self.takes.pop_front().unwrap_or(usize::MAX);
            if most == 0 {
                return Poll::Pending;
            }
            let now = bytes.len().min(most);
            self.taken.extend_from_slice(&bytes[..now]);
            Poll::Ready(Ok(now))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            self.poll_write(cx, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    proptest! {
        #[test]
        fn a_slow_reader_gets_every_byte_in_its_place(
            sizes in proptest::collection::vec(proptest::option::of(1usize..20_000), 0..8),
            takes in proptest::collection::vec(prop_oneof![Just(0usize), 1usize..6_000], 0..60),
        ) {
            let mut next = 0u8;
            let pieces: VecDeque<Option<Bytes>> = sizes.iter().map(|size| size.map(|size| (0..size).map(|_| {
                next = next.wrapping_mul(31).wrapping_add(7);
                next
            }).collect())).collect();
            let body: Vec<u8> = pieces.iter().flatten().flatten().copied().collect();
            let asked = Asked { version: Version::HTTP_10, is_head: false, takes_trailers: false, keeps: true };
            for length in [Some(body.len().to_string()), None] {
                let mut response = Response::builder();
                if let Some(length) = &length {
                    response = response.header(CONTENT_LENGTH, length);
                }
                let (head, ()) = response.body(()).unwrap().into_parts();
                let (mut sends, _) = Sends::answer(head, Pieces(pieces.clone()), asked);
                let mut slow = Slow { takes: takes.iter().copied().collect(), taken: Vec::new() };
                let mut context = Context::from_waker(Waker::noop());
                let polls = (0..200).find(|_| sends.poll(&mut slow, &mut context).is_ready());
                prop_assert!(polls.is_some());
                let text = slow.taken.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                prop_assert_eq!(&slow.taken[text..], &body[..]);
            }
        }
    }
}
