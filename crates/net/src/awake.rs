//! The keeper stays awake for a moment while short exchanges follow each other closely.
//!
//! To sleep and be woken takes longer than to move a short piece, on a virtual machine several times as long. So after a
//! short piece, or a new connection, the sockets are looked at again and again for [`AWAKE`] before the thread sleeps. Where
//! nothing came in that time, it is not tried again before [`PAUSE`] more pieces were moved: whoever talks to somebody far
//! away costs next to nothing. Where many flows live, there is always something to do, and the processor is left to others.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::yield_now};

/// How long it is waited for the next piece.
const AWAKE: Duration = Duration::from_micros(100);
/// So many pieces are moved after one that was waited for in vain.
const PAUSE: u64 = 64;
/// With more flows than these nobody is waited for.
const FEW: usize = 4;

/// Whether it is worth staying awake.
#[derive(Debug, Default)]
pub(crate) struct Awake {
    /// Pieces that were moved.
    moved: Cell<u64>,
    /// Nothing is waited for before so many were.
    again_at: Cell<u64>,
    is_asleep: Cell<bool>,
    wake: Notify,
}

impl Awake {
    /// A short piece was moved, or a connection came.
    pub(crate) fn stir(&self) {
        let moved = self.moved.get().wrapping_add(1);
        self.moved.set(moved);
        if self.is_asleep.get() && moved >= self.again_at.get() {
            self.is_asleep.set(false);
            self.wake.notify_one();
        }
    }

    /// Keeps this thread awake when it is worth it, until dropped; `flows` tells how many live.
    pub(crate) async fn stay(&self, flows: impl Fn() -> usize) {
        loop {
            self.is_asleep.set(true);
            self.wake.notified().await;
            while flows() <= FEW && self.comes_soon().await {}
            self.again_at.set(self.moved.get().saturating_add(PAUSE));
        }
    }

    /// Looks for the next piece for a while.
    async fn comes_soon(&self) -> bool {
        let (seen, until) = (self.moved.get(), Instant::now() + AWAKE);
        while self.moved.get() == seen {
            if Instant::now() >= until {
                return false;
            }
            // The sockets are looked at, without waiting, before this goes on.
            yield_now().await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    #[test]
    fn who_was_waited_for_in_vain_is_not_waited_for_again_soon() {
        let awake = Awake::default();
        let mut staying = pin!(awake.stay(|| 1));
        let mut poll = || staying.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(), Poll::Pending);
        assert!(awake.is_asleep.get());

        awake.stir();
        assert!(!awake.is_asleep.get());
        while !awake.is_asleep.get() {
            assert_eq!(poll(), Poll::Pending);
        }

        for _ in 1..PAUSE {
            awake.stir();
            assert!(awake.is_asleep.get());
        }
        awake.stir();
        assert!(!awake.is_asleep.get(), "after a while it is tried again");
    }

    #[test]
    fn nobody_is_waited_for_among_many() {
        let awake = Awake::default();
        let mut staying = pin!(awake.stay(|| FEW + 1));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(staying.as_mut().poll(&mut context), Poll::Pending);

        awake.stir();

        assert_eq!(staying.as_mut().poll(&mut context), Poll::Pending);
        assert!(awake.is_asleep.get());
    }
}
