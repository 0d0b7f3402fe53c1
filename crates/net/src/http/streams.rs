//! HTTP/2 with the library below hyper's, which alone can tell and hear what comes before an answer. Here: the program's side,
//! and bodies on their way out.

use super::{
    Session,
    body::Body,
    came::Came,
    early::{Heads, Told},
    exchange::{self, Back},
    far::Origin,
    near,
};
use crate::tls::Stream;
use h2::{
    Reason, RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use http::{HeaderValue, Request, Response, header::CONTENT_LENGTH};
use hyper::body::{Body as _, Bytes, Frame};
use std::{
    future::poll_fn,
    pin::pin,
    rc::Rc,
    task::{Context, Poll},
};

/// Of one stream, written and not sent.
pub(super) const SEND_BUFFER: usize = 400 * 1024;

/// Carries requests until the program has no more.
pub(super) async fn serve(
    session: &Rc<Session>,
    origin: &Rc<Origin>,
    stream: Stream,
) -> Result<(), h2::Error> {
    let mut builder = Builder::new();
    builder
        .initial_window_size(near::STREAM_WINDOW)
        .initial_connection_window_size(near::CONNECTION_WINDOW)
        .max_frame_size(near::FRAME)
        .max_concurrent_streams(near::STREAMS)
        .max_header_list_size(u32::try_from(near::HEAD).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER);
    let mut connection = builder.handshake::<_, Bytes>(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let (session, origin) = (Rc::clone(session), Rc::clone(origin));
        let tasks = session.tasks.clone();
        tasks.start(async move { answer(&session, &origin, request, respond).await });
    }
    Ok(())
}

/// One request; its answer is written here.
async fn answer(
    session: &Rc<Session>,
    origin: &Rc<Origin>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, stream) = request.into_parts();
    let heads = Heads::default();
    let back = Back { told: Some(Told::Http2(heads.clone())), ..Back::default() };
    let came = Came::of_request(&head.headers, stream);
    let mut asked = pin!(exchange::exchange(session, origin, Request::from_parts(head, came), back));
    let answered = poll_fn(|cx| {
        let answered = asked.as_mut().poll(cx);
        for (status, headers) in heads.take() {
            let mut hint = Response::new(());
            (*hint.status_mut(), *hint.headers_mut()) = (status, headers);
            // One that cannot be sent is missed by nobody.
            let _ = respond.send_informational(hint);
        }
        match answered {
            Poll::Ready(answered) => Poll::Ready(Some(answered)),
            // The program has lost interest.
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        }
    })
    .await;
    let Some(answered) = answered else { return };
    let Ok(response) = answered else { return respond.send_reset(Reason::INTERNAL_ERROR) };
    let (mut head, body) = response.into_parts();
    let is_over = body.is_end_stream();
    if let Some(length) = body.size_hint().exact().filter(|_| !is_over) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    match respond.send_response(Response::from_parts(head, ()), is_over) {
        Ok(to) if !is_over => pour(to, body).await,
        Ok(_) => {}
        Err(_) => respond.send_reset(Reason::INTERNAL_ERROR),
    }
}

/// Sends a body as fast as the other side takes it.
pub(super) async fn pour(mut to: SendStream<Bytes>, body: Body) {
    let mut body = pin!(body);
    loop {
        // No more of it is asked for than there is room.
        to.reserve_capacity(1);
        if poll_fn(|cx| room(&mut to, cx)).await.is_none() {
            return;
        }
        let next = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Ready(next) => Poll::Ready(Some(next)),
            Poll::Pending => to.poll_reset(cx).map(|_| None),
        });
        let Some(next) = next.await else { return };
        let sent = match next.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                let is_over = body.is_end_stream();
                let sent = to.send_data(data, is_over);
                if !is_over && sent.is_ok() {
                    continue;
                }
                sent
            }
            Some(Ok(Err(other))) => match other.into_trailers() {
                Ok(trailers) => to.send_trailers(trailers),
                Err(_) => continue,
            },
            Some(Err(_)) => return to.send_reset(Reason::INTERNAL_ERROR),
            None => to.send_data(Bytes::new(), true),
        };
        // Whoever does not want it any more has said so.
        return drop(sent);
    }
}

/// Ready when something can be sent; none when the other side wants no more.
fn room(to: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<Option<()>> {
    loop {
        if to.capacity() > 0 {
            return match to.poll_reset(cx) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => Poll::Ready(Some(())),
            };
        }
        match to.poll_capacity(cx) {
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
            Poll::Pending => return to.poll_reset(cx).map(|_| None),
        }
    }
}
