//! One connection, moved along by whoever waits for it.

use super::content::Body;
use crate::tls::Stream;
use http::{Request, Response};
use http_body::Body as _;
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self, Connection, SendRequest},
};
use hyper_util::rt::TokioIo;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Poll, ready},
};

/// Most bytes that are read ahead, or that a head has.
const BUFFER: usize = 256 * 1024;

type Driver = Option<Pin<Box<Connection<TokioIo<Stream>, Body>>>>;

/// A connection.
pub(super) struct Line {
    sender: SendRequest<Body>,
    /// `None` once the connection has ended.
    driver: Driver,
}

impl Line {
    pub(super) async fn open(stream: Stream) -> hyper::Result<Line> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        Ok(Line { sender, driver: Some(Box::pin(connection)) })
    }

    pub(super) async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        drive(&mut self.driver, self.sender.send_request(request)).await
    }

    /// The next piece of an answer's content.
    pub(super) async fn piece(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        let next = poll_fn(|cx| {
            loop {
                match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(err)) => return Poll::Ready(Some(Err(err))),
                    // What comes behind the content says nothing to us.
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(piece) => return Poll::Ready(Some(Ok(piece))),
                        Err(_) => continue,
                    },
                }
            }
        });
        drive(&mut self.driver, next).await
    }

    /// Lets the connection see that its answer is over.
    pub(super) async fn settle(&mut self) {
        let driver = &mut self.driver;
        poll_fn(|cx| {
            if let Some(connection) = driver
                && connection.as_mut().poll(cx).is_ready()
            {
                *driver = None;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Whether it can be asked again.
    pub(super) fn is_open(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }
}

async fn drive<T>(driver: &mut Driver, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            let Some(connection) = driver.as_mut() else { return Poll::Pending };
            // What ended it is told to whoever waits for the answer.
            let _ = ready!(connection.as_mut().poll(cx));
            *driver = None;
        }
    })
    .await
}
