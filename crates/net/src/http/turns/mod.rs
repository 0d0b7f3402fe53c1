//! The program's side where it speaks HTTP/1: one request at a time, read and answered by the task of its connection
//! ([ADR 49](../../../../../docs/adr/0049-http1-from-programs.md)).
//!
//! Everything is read through [`Strict`], so that what comes here can be read in one way only. Nothing is read ahead of a
//! request that is under way but what came with it, and a connection that waits for the next holds no memory for it.
//!
//! | module | what |
//! |---|---|
//! | `head` | the head of a request, read (pure) |
//! | `talk` | the connection, its requests' bodies, and its end |

mod head;
mod talk;

pub(crate) use talk::Said;

use super::{
    Session,
    body::Cut,
    came::Came,
    early::Told,
    exchange::{self, Back},
    far::Origin,
    framing,
    line::Switched,
    sends::{Asked, Sends},
    strict::Strict,
    upgrade,
};
use crate::tls::Stream;
use head::Head;
use http::{Request, StatusCode, Version};
use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
};
use talk::{Talk, Writes};
use tokio::{io::AsyncWrite as _, sync::oneshot};

/// Carries requests until the program has no more.
pub(super) async fn serve(session: &Rc<Session>, origin: &Rc<Origin>, stream: Stream) -> io::Result<()> {
    let stream = Strict::new(stream);
    let (switch, hints) = (stream.switch(), stream.hints());
    let talk = Talk::new(stream);
    while let Some(head) = poll_fn(|cx| talk.borrow_mut().poll_head(cx)).await? {
        let Head { parts, asked, .. } = head;
        hints.begin();
        let may_switch = framing::may_switch(&parts);
        let (onward, upgrade) = may_switch.then(oneshot::channel).unzip();
        let back = Back {
            told: (parts.version == Version::HTTP_11).then(|| Told::Http1(hints.clone())),
            upgrade: upgrade.map(upgrade::Near::Turns),
        };
        let request = Request::from_parts(parts, Came::Said(Said::of(&talk)));
        let mut answer = pin!(exchange::exchange(session, origin, request, back));
        let answer = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            // It may have gone, and need no answer.
            Poll::Pending => talk.borrow_mut().poll_gone(cx).map(Err),
        });
        let answer = answer.await?;
        hints.end();
        let is_switched =
            answer.as_ref().is_ok_and(|answer| answer.status() == StatusCode::SWITCHING_PROTOCOLS);
        if may_switch {
            switch.answered(is_switched);
        }
        let (head, body) = answer.map_err(|Cut| io::ErrorKind::ConnectionAborted)?.into_parts();
        let keeps = talk.borrow_mut().answers() && asked.keeps;
        let (mut sends, keeps) = Sends::answer(head, body, Asked { keeps, ..asked });
        poll_fn(|cx| match sends.poll(&mut Writes(&talk), cx) {
            Poll::Pending => talk.borrow_mut().poll_gone(cx).map(Err),
            sent => sent,
        })
        .await?;
        drop(sends);
        if is_switched {
            if let (Some(onward), Some((stream, first))) = (onward, talk.borrow_mut().take()) {
                // Whoever was to go on may have gone.
                let _ = onward.send(Switched { first, stream });
            }
            return Ok(());
        }
        if !keeps || !poll_fn(|cx| Poll::Ready(talk.borrow_mut().is_finished(cx))).await {
            break;
        }
    }
    poll_fn(|cx| Pin::new(&mut Writes(&talk)).poll_shutdown(cx)).await
}
