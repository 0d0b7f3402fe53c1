//! Bytes between the two ends of one flow, both ways, until both have ended.
//!
//! | what one end does | what the other sees |
//! |---|---|
//! | ends its direction | that direction ends; the other lives on |
//! | resets | a reset |
//! | does not read | it can soon not write |
//!
//! Short exchanges are read and written through one buffer that all flows share, so a flow that has nothing under way
//! holds none. A direction that moves a megabyte in long pieces goes on through a pipe of the [`Pool`] without its bytes
//! coming to us ([`splice(2)`](https://man7.org/linux/man-pages/man2/splice.2.html)), until the pieces get short again.
//!
//! Where a rule or the sandbox has a bandwidth or a budget of bytes, every piece is copied and counted before it goes on; one
//! that has to wait is all that its direction holds.

mod direction;
mod pipe;
mod pool;
#[cfg(test)]
mod tests;

pub use pool::Pool;
pub(crate) use pool::Weight;

use airlock_gate::meter::Meter;
use direction::{Broken, Direction};
use rustix::net::sockopt;
use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Sleep, sleep},
};

/// The far end of a flow that has lived so long is probed when it is silent; shorter ones need no preparations for that.
const LIVES: Duration = Duration::from_secs(10);

/// Looks at what the near end says before it goes on, until it has seen enough.
pub type Look = Box<dyn FnMut(&[u8]) -> Seen>;

/// What became of bytes that were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// They wait with those before them.
    Hold,
    /// They may go; show the next ones too.
    Pass,
    /// They may go; nothing more need be shown.
    Over,
    /// They may not; the flow ends.
    Refuse(String),
}

/// How a flow ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Both ends ended it.
    Closed,
    /// One of them reset it, or could not be reached any more; so is the other.
    Reset,
    /// What the near end said was refused.
    Refused(String),
    /// The rule's bytes are spent.
    Spent,
}

/// Bytes that arrived at the other end.
#[derive(Debug, Default)]
pub struct Moved {
    /// From the near end to the far end.
    pub sent: Cell<u64>,
    /// From the far end to the near end.
    pub received: Cell<u64>,
    /// What may still move, and how fast.
    pub meter: Meter,
}

impl Moved {
    /// Nothing yet, and as much as `meter` lets pass.
    pub fn within(meter: Meter) -> Moved {
        Moved { meter, ..Moved::default() }
    }
}

/// The two ends of a flow.
#[derive(Debug)]
pub struct Ends {
    /// Who opened it.
    pub near: TcpStream,
    /// Whom it was opened to.
    pub far: TcpStream,
}

impl Ends {
    /// Moves bytes until both directions have ended. `first` came from the near end and goes ahead; `look` is shown what
    /// comes after it. Dropped before the end, the sockets are as they were. The end whose direction is the last to end is told so
    /// by dropping them.
    ///
    /// After any other end than [`End::Closed`] both sockets are reset when they are dropped.
    pub async fn relay(&mut self, pool: &Pool, moved: &Moved, first: Vec<u8>, look: Option<Look>) -> End {
        let mut up = Direction::new(pool, (&moved.sent, &moved.meter), first, look);
        // What was accepted has often brought its first bytes; a server mostly waits to be spoken to.
        up.is_eager = true;
        let mut down = Direction::new(pool, (&moved.received, &moved.meter), Vec::new(), None);
        let end = match self.run(&mut up, &mut down).await {
            Ok(()) => return End::Closed,
            Err(Broken::Lost) => End::Reset,
            Err(Broken::Refused(why)) => End::Refused(why),
            Err(Broken::Spent) => End::Spent,
        };
        self.reset();
        end
    }

    /// Both ends see a reset once the sockets are dropped.
    pub fn reset(&self) {
        // A socket that is gone already needs no reset.
        let _ = self.near.set_zero_linger();
        let _ = self.far.set_zero_linger();
    }

    async fn run(&mut self, up: &mut Direction<'_>, down: &mut Direction<'_>) -> Result<(), Broken> {
        let (mut near_read, mut near_write) = self.near.split();
        let (mut far_read, mut far_write) = self.far.split();
        let mut probes = Probes(Some(pin!(sleep(LIVES))));
        let first = poll_fn(|cx| {
            if let Poll::Ready(ended) = up.poll(cx, &mut near_read, &mut far_write) {
                return Poll::Ready(ended.map(|()| Half::Up));
            }
            if let Poll::Ready(ended) = down.poll(cx, &mut far_read, &mut near_write) {
                return Poll::Ready(ended.map(|()| Half::Down));
            }
            probes.prepare(cx, far_read.as_ref());
            Poll::Pending
        });
        // An end that has said all it will can still reset, and the direction that is left would not notice.
        match first.await? {
            Half::Up => {
                down.is_last = true;
                let rest = poll_fn(|cx| {
                    probes.prepare(cx, far_read.as_ref());
                    down.poll(cx, &mut far_read, &mut near_write)
                });
                unless_lost(near_read.as_ref(), rest).await
            }
            Half::Down => {
                up.is_last = true;
                let rest = poll_fn(|cx| {
                    probes.prepare(cx, far_write.as_ref());
                    up.poll(cx, &mut near_read, &mut far_write)
                });
                unless_lost(far_read.as_ref(), rest).await
            }
        }
    }
}

enum Half {
    Up,
    Down,
}

/// A program's own probes end at our socket, so the far end is probed by us: one that vanished is a reset in the end.
pub(crate) fn keep_alive(far: &TcpStream) {
    // Where the kernel refuses, the flow lives as long as the program wants.
    let _ = sockopt::set_tcp_keepidle(far, Duration::from_secs(60));
    let _ = sockopt::set_tcp_keepintvl(far, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepcnt(far, 4);
    let _ = sockopt::set_socket_keepalive(far, true);
}

/// Has the far end probed once the flow has lived for a while.
struct Probes<'a>(Option<Pin<&'a mut Sleep>>);

impl Probes<'_> {
    fn prepare(&mut self, cx: &mut Context<'_>, far: &TcpStream) {
        if let Some(wait) = &mut self.0
            && wait.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
            keep_alive(far);
        }
    }
}

/// Waits for `rest`, or for `silent` to be reset.
async fn unless_lost(
    silent: &TcpStream,
    rest: impl Future<Output = Result<(), Broken>>,
) -> Result<(), Broken> {
    tokio::select! {
        biased;
        ended = rest => ended,
        _ = silent.ready(Interest::ERROR) => Err(Broken::Lost),
    }
}
