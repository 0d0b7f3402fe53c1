//! Whether to wait for the next message awake.
//!
//! A program that does one thing after another sends its next request as soon as it has its answer. Whoever sleeps
//! meanwhile is woken for each of them, which takes longer than most answers do, above all in a virtual machine. So where
//! requests follow closely, the device is read over and over for a moment first. A moment in vain is not repeated soon, so
//! that at most a few parts in a hundred of a processor are spent on a program that is slower than that.

use std::{
    hint,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long the next message is waited for awake.
const MOMENT: Duration = Duration::from_micros(100);
/// A message that came within this time of the last answer came soon; whoever reads it may have been woken for it first.
const SOON: Duration = Duration::from_micros(250);
/// Messages that are waited for asleep after a moment in vain.
const REST: u32 = 64;

/// Steps between two tries: the kernel needs the connection for itself now and then.
const BETWEEN: u32 = 16;

/// How messages come on one connection.
pub(super) struct Pace(Mutex<Beat>);

struct Beat {
    answered: Instant,
    came_soon: bool,
    rest: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace(Mutex::new(Beat { answered: Instant::now(), came_soon: false, rest: 0 }))
    }
}

impl Pace {
    /// Tries for a moment, if that is worth it.
    pub(super) fn soon<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.beat().is_quick() {
            return None;
        }
        let begun = Instant::now();
        while begun.elapsed() < MOMENT {
            if let Some(got) = attempt() {
                return Some(got);
            }
            // The processor is not given away: on a busy machine it would come back late. Where whoever is to
            // send the message waits for this very processor, the moment is in vain, and not repeated soon.
            (0..BETWEEN).for_each(|_| hint::spin_loop());
        }
        self.beat().was_in_vain();
        None
    }

    /// A message came.
    pub(super) fn came(&self) {
        let mut beat = self.beat();
        let after = beat.answered.elapsed();
        beat.came(after);
    }

    /// An answer was sent.
    pub(super) fn answered(&self) {
        self.beat().answered = Instant::now();
    }

    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    fn is_quick(&self) -> bool {
        self.came_soon && self.rest == 0
    }

    fn came(&mut self, after: Duration) {
        self.came_soon = after <= SOON;
        self.rest = self.rest.saturating_sub(1);
    }

    fn was_in_vain(&mut self) {
        self.rest = REST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_waited_for_awake_only_while_they_come_soon() {
        let mut beat = Beat { answered: Instant::now(), came_soon: false, rest: 0 };
        assert!(!beat.is_quick());

        beat.came(SOON);
        assert!(beat.is_quick());

        beat.came(SOON * 2);
        assert!(!beat.is_quick());
    }

    #[test]
    fn a_moment_in_vain_is_not_repeated_before_many_messages_came() {
        let mut beat = Beat { answered: Instant::now(), came_soon: true, rest: 0 };
        beat.was_in_vain();

        let slept = (0..1000).take_while(|_| {
            beat.came(Duration::ZERO);
            !beat.is_quick()
        });
        assert_eq!(slept.count(), 63);
    }

    #[test]
    fn what_is_never_there_is_tried_for_a_moment_and_then_left() {
        let pace = Pace::default();
        assert_eq!(pace.soon(|| Some(1)), None, "nothing came soon yet");
        pace.answered();
        pace.came();

        assert_eq!(pace.soon(|| None::<u8>), None);
        assert_eq!(pace.soon(|| Some(1)), None, "it was in vain just now");
    }
}
