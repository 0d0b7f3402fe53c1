//! What the kernel refused, for the ledger.
//!
//! The kernel tells of some refusals (a hundred a second, so that a flood costs nobody anything) and counts all of them.
//! What was told is recorded at once; what was only counted is one record a second. So the ledger knows the number.

use super::Wall;
use airlock_linux::net::seat::{Protocol, Refusals, Rules};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};

/// How long after a refusal the kernel's count is read.
const WINDOW: Duration = Duration::from_secs(1);

/// What the kernel tells, and how much of its count the gate knows of.
#[derive(Debug)]
pub(super) struct Refused {
    told: Refusals,
    known: u64,
}

impl Refused {
    /// Those from now on: what was refused before was a trial.
    pub(super) fn since_now(socket: OwnedFd, rules: &Rules) -> io::Result<Refused> {
        Ok(Refused { told: Refusals::new(socket), known: rules.refused()? })
    }
}

impl Wall {
    /// Tells the gate of every refusal that it does not know of. For the end, when nothing runs inside any more.
    pub fn close(&self) {
        self.count_refused();
    }

    /// Passes on what the kernel told; how many those are.
    fn hear_refused(&self) -> u64 {
        let mut heard = 0;
        // An error is one of this moment: what is lost by it was counted.
        while let Ok(Some(refused)) = self.next_refused() {
            heard += 1;
            let target = self.target(refused.destination.ip());
            self.gate.refused(&target, refused.destination.port(), word(refused.protocol));
        }
        let known = &mut self.refused.borrow_mut().known;
        *known = known.saturating_add(heard);
        heard
    }

    fn next_refused(&self) -> io::Result<Option<airlock_linux::net::seat::Refused>> {
        self.refused.borrow_mut().told.next()
    }

    /// Passes on what the kernel told and what it only counted; how many those are.
    fn count_refused(&self) -> u64 {
        // The count first: what is told meanwhile is known by the next one.
        let counted = self.rules.borrow().refused();
        let heard = self.hear_refused();
        let Ok(counted) = counted else { return heard };
        let untold = counted.saturating_sub(self.refused.borrow().known);
        self.refused.borrow_mut().known += untold;
        self.gate.refused_untold(untold);
        heard.saturating_add(untold)
    }
}

/// Records refusals until it is dropped. Sleeps while there are none.
pub(super) async fn follow(told: AsyncFd<Told>) {
    let mut count_at = None;
    loop {
        let is_time = async {
            match count_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let heard = tokio::select! {
            ready = told.readable() => {
                let Ok(mut ready) = ready else { return };
                let heard = told.get_ref().0.hear_refused();
                ready.clear_ready();
                heard
            }
            () = is_time => {
                count_at = None;
                told.get_ref().0.count_refused()
            }
        };
        if heard > 0 {
            count_at.get_or_insert_with(|| Instant::now() + WINDOW);
        }
    }
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Icmp => "icmp",
        Protocol::Other => "other",
    }
}

/// The kernel's refusals, for the runtime to watch.
pub(super) struct Told(Rc<Wall>);

#[expect(
    deprecated,
    reason = "the danger is a type whose descriptor changes under the runtime; that of refusals does not"
)]
pub(super) fn watched(wall: &Rc<Wall>) -> io::Result<AsyncFd<Told>> {
    AsyncFd::with_interest(Told(Rc::clone(wall)), Interest::READABLE)
}

impl AsRawFd for Told {
    fn as_raw_fd(&self) -> RawFd {
        self.0.refused.borrow().told.as_fd().as_raw_fd()
    }
}
