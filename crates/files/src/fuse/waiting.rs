//! Who waits for a lock. Nobody is woken by the host's kernel here: whoever serves tries again, in the order they came.

use crate::provider::{Handle, Lock, Result};
use rustix::io::Errno;
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Most that wait at once.
const MOST_WAITING: usize = 1024;
/// Interruptions that are remembered in case they came before what they interrupt: few threads read at once.
const MOST_EARLY: usize = 64;

/// The end of a waiting: the number of the request, and how it ended.
pub type Granted = (u64, Result<()>);

/// All that wait on one mount.
#[derive(Default)]
pub(super) struct Waiting {
    inner: Mutex<Inner>,
    count: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    all: Vec<(u64, Handle, Lock)>,
    early: VecDeque<u64>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Takes a lock, or waits for it; says how it ended if it did.
    pub(super) fn begin(
        &self,
        unique: u64,
        (handle, lock): (Handle, Lock),
        take: impl Fn(Handle, &Lock) -> Result<()>,
    ) -> Option<Result<()>> {
        let mut inner = self.lock();
        if let Some(place) = inner.early.iter().position(|early| *early == unique) {
            inner.early.remove(place);
            return Some(Err(Errno::INTR));
        }
        match take(handle, &lock) {
            Err(Errno::AGAIN) if inner.all.len() >= MOST_WAITING => Some(Err(Errno::NOLCK)),
            Err(Errno::AGAIN) => {
                inner.all.push((unique, handle, lock));
                self.count.store(inner.all.len(), Ordering::Relaxed);
                None
            }
            other => Some(other),
        }
    }

    /// A request is wanted no more; says whether it waited.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut inner = self.lock();
        let Some(place) = inner.all.iter().position(|(waiting, ..)| *waiting == unique) else {
            if inner.early.len() >= MOST_EARLY {
                inner.early.pop_front();
            }
            inner.early.push_back(unique);
            return false;
        };
        inner.all.remove(place);
        self.count.store(inner.all.len(), Ordering::Relaxed);
        true
    }

    /// Tries again for all.
    pub(super) fn granted(&self, take: impl Fn(Handle, &Lock) -> Result<()>) -> Vec<Granted> {
        let mut inner = self.lock();
        let mut granted = Vec::new();
        inner.all.retain(|(unique, handle, lock)| match take(*handle, lock) {
            Err(Errno::AGAIN) => true,
            ended => {
                granted.push((*unique, ended));
                false
            }
        });
        self.count.store(inner.all.len(), Ordering::Relaxed);
        granted
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{LockKind, Locked};

    fn lock(owner: u64) -> (Handle, Lock) {
        (Handle(owner), Lock { owner, what: Locked::Whole, kind: Some(LockKind::Exclusive) })
    }

    #[test]
    fn who_came_first_is_granted_first_and_who_is_interrupted_never() {
        let waiting = Waiting::default();
        for unique in 1..=3 {
            assert_eq!(waiting.begin(unique, lock(unique), |_, _| Err(Errno::AGAIN)), None);
        }
        assert!(waiting.interrupt(2));

        let free = std::cell::Cell::new(true);
        let take = |_: Handle, _: &Lock| if free.replace(false) { Ok(()) } else { Err(Errno::AGAIN) };
        assert_eq!(waiting.granted(take), [(1, Ok(()))]);
        free.set(true);
        assert_eq!(waiting.granted(take), [(3, Ok(()))]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn an_interruption_that_overtakes_its_request_still_counts() {
        let waiting = Waiting::default();
        assert!(!waiting.interrupt(7));
        assert_eq!(waiting.begin(7, lock(7), |_, _| Ok(())), Some(Err(Errno::INTR)));
        assert_eq!(waiting.begin(8, lock(8), |_, _| Ok(())), Some(Ok(())));
    }

    #[test]
    fn so_many_may_wait_and_no_more() {
        let waiting = Waiting::default();
        let busy = |_: Handle, _: &Lock| Err(Errno::AGAIN);
        assert!((0..1024).all(|unique| waiting.begin(unique, lock(unique), busy).is_none()));
        assert_eq!(waiting.begin(2000, lock(2000), busy), Some(Err(Errno::NOLCK)));
    }
}
