//! The program's side: reads requests off one connection, in either version of HTTP.

use super::{Session, far::Origin, streams, turns};
use crate::tls::Stream;
use std::{rc::Rc, time::Duration};

/// Of a head.
pub(super) const HEAD: usize = 64 * 1024;
/// HTTP/2: what a program may send before we have passed it on.
pub(super) const STREAM_WINDOW: u32 = 1 << 20;
pub(super) const CONNECTION_WINDOW: u32 = 2 << 20;
/// HTTP/2: the longest frame.
pub(super) const FRAME: u32 = 64 * 1024;
/// HTTP/2: requests at a time.
pub(super) const STREAMS: u32 = 128;
/// How often it is looked whether anything happens.
const TICK: Duration = Duration::from_secs(30);
/// A connection without a request is kept for so many of those.
const IDLE: u32 = 20;
/// A head that has begun may take so many.
const LATE: u32 = 2;

/// How a near connection ended.
pub(super) enum End {
    /// As it should.
    Closed,
    /// It was lost, or what came was no HTTP.
    Broken,
}

/// Carries requests until the program has no more, or says nothing for too long.
pub(super) async fn serve(session: &Rc<Session>, origin: &Rc<Origin>, stream: Stream) -> End {
    let served = async {
        match session.is_http2.get() {
            true => streams::serve(session, origin, stream).await.is_ok(),
            false => turns::serve(session, origin, stream).await.is_ok(),
        }
    };
    let end = tokio::select! {
        biased;
        served = served => match served {
            true => End::Closed,
            false => End::Broken,
        },
        () = silence(session) => End::Closed,
        () = origin.watch() => End::Closed,
    };
    session.upgrades.all().await;
    end
}

/// Waits until nothing has been asked for a long time, or a head is not finished in time.
async fn silence(session: &Session) {
    let (mut idle, mut late) = (0, 0);
    // What had come when a request was last under way.
    let (mut heard, mut settled) = (session.heard.get(), session.near.read());
    while idle < IDLE && late < LATE {
        tokio::time::sleep(TICK).await;
        let read = session.near.read();
        if session.is_busy() || session.heard.get() != heard {
            heard = session.heard.get();
            (idle, late, settled) = (0, 0, read);
        } else if read != settled && !session.is_http2.get() {
            late += 1;
        } else {
            idle += 1;
        }
    }
}
