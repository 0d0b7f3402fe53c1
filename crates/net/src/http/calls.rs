//! The server's side where it speaks HTTP/2: requests are streams of one connection.

use super::{body::Body, came::Came, link::Link, streams, tasks::Tasks};
use crate::tls::Stream;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONTENT_LENGTH};
use hyper::body::{Body as _, Bytes};
use std::{cell::Cell, future::poll_fn, pin::Pin, rc::Rc, task::Context};

/// Sends requests over one connection. Clones do so over the same.
#[derive(Clone)]
pub(super) struct Caller {
    sender: SendRequest<Bytes>,
    link: Rc<Link>,
    /// Whether the server takes no more.
    is_full: Rc<Cell<bool>>,
    tasks: Tasks,
}

/// Why a request has no answer.
pub(super) struct Unanswered {
    /// The request, if the server did not get any of it.
    pub(super) request: Option<Box<Request<Body>>>,
    pub(super) why: String,
}

/// How a connection is begun.
pub(super) struct Begins {
    pub(super) stream_window: u32,
    pub(super) connection_window: u32,
    pub(super) frame: u32,
    pub(super) head: usize,
}

impl Begins {
    /// Greets the server. The connection moves bytes while it is polled.
    pub(super) async fn greet(
        self,
        stream: Stream,
    ) -> Result<(SendRequest<Bytes>, Connection<Stream, Bytes>), h2::Error> {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_frame_size(self.frame)
            .max_header_list_size(u32::try_from(self.head).unwrap_or(u32::MAX))
            .max_send_buffer_size(streams::SEND_BUFFER);
        builder.handshake(stream).await
    }
}

impl Caller {
    /// Over this connection, which `link` is about.
    pub(super) fn new(sender: SendRequest<Bytes>, link: &Rc<Link>, tasks: &Tasks) -> Caller {
        Caller { sender, link: Rc::clone(link), is_full: Rc::default(), tasks: tasks.clone() }
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_full.get() || self.link.is_over()
    }

    /// Waits until a request can be sent; whether that comes to be.
    pub(super) async fn ready(&mut self) -> Result<(), h2::Error> {
        let ready = poll_fn(|cx| self.sender.poll_ready(cx)).await;
        if ready.is_err() {
            self.is_full.set(true);
        }
        ready
    }

    /// Sends a request and waits for the head of its answer. `hint` gets what comes before that.
    pub(super) async fn call(
        &mut self,
        request: Request<Body>,
        mut hint: impl FnMut(StatusCode, HeaderMap),
    ) -> Result<Response<Came>, Unanswered> {
        if let Err(err) = self.ready().await {
            return Err(Unanswered { request: Some(Box::new(request)), why: err.to_string() });
        }
        let (mut head, body) = request.into_parts();
        let is_over = body.is_end_stream();
        if let Some(length) = body.size_hint().exact().filter(|_| !is_over) {
            head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
        let (mut answer, to) = match self.sender.send_request(Request::from_parts(head.clone(), ()), is_over)
        {
            Ok(sent) => sent,
            Err(err) => {
                self.is_full.set(true);
                let request = Some(Box::new(Request::from_parts(head, body)));
                return Err(Unanswered { request, why: err.to_string() });
            }
        };
        if !is_over {
            self.tasks.start(streams::pour(to, body));
        }
        let answered = poll_fn(|cx| {
            while let Some((status, headers)) = early(&mut answer, cx) {
                hint(status, headers);
            }
            Pin::new(&mut answer).poll(cx)
        });
        match answered.await {
            Ok(response) => {
                let (head, stream) = response.into_parts();
                let came = Came::of_answer(&head.headers, stream);
                Ok(Response::from_parts(head, came))
            }
            Err(err) => Err(Unanswered { request: None, why: err.to_string() }),
        }
    }
}

/// The next head that comes before the answer, if it is there.
fn early(answer: &mut ResponseFuture, cx: &mut Context<'_>) -> Option<(StatusCode, HeaderMap)> {
    match answer.poll_informational(cx) {
        std::task::Poll::Ready(Some(Ok(response))) => {
            let (head, ()) = response.into_parts();
            Some((head.status, head.headers))
        }
        _ => None,
    }
}
