//! The last moments of a connection. A program that is answered while it still sends, because its request was denied, must be able to
//! read the answer: a connection that is closed with bytes unread is reset, and the answer may be lost with it (RFC 9112, 9.6).

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

/// What still comes is read and thrown away, so long and so much.
const TIME: Duration = Duration::from_secs(1);
const MOST: usize = 16 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 8 << 10;

/// A connection on which everything was said.
#[derive(Debug)]
pub(super) struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl Linger {
    pub(super) fn new() -> Linger {
        Linger { until: Box::pin(sleep(TIME)), left: MOST }
    }

    /// Ready when the program has closed too, or has had time enough.
    pub(super) fn poll(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        use std::future::Future as _;
        let mut bytes = [0u8; PIECE];
        while self.left > 0 && self.until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match std::task::ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buffer.filled().len());
                }
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncWriteExt as _, duplex};

    #[tokio::test(start_paused = true)]
    async fn what_is_still_sent_is_taken_until_the_program_closes_or_time_is_up() {
        let (mut near, mut program) = duplex(64);
        let sends = async move {
            program.write_all(&[0; 100_000]).await.unwrap();
            program
        };
        let mut linger = Linger::new();
        let (program, ()) = tokio::join!(sends, async {
            poll_fn(|context| linger.poll(&mut near, context)).await;
        });
        drop(program);

        let began = tokio::time::Instant::now();
        let (mut near, _silent) = duplex(64);
        let mut linger = Linger::new();
        poll_fn(|context| linger.poll(&mut near, context)).await;
        assert_eq!(began.elapsed(), TIME);
    }
}
