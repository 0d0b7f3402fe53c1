//! Having everything written that programs wrote, beside the loop: it may take as long as the host's disk takes.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

/// A thread that has files written, and how far it has come.
pub(super) struct Settling {
    ask: mpsc::Sender<u64>,
    settled: Arc<AtomicU64>,
    told: io::PipeReader,
}

impl Settling {
    /// `settle` returns when everything that was written before is where it belongs.
    pub(super) fn start(settle: impl Fn() + Send + 'static) -> io::Result<Settling> {
        let (ask, asked) = mpsc::channel::<u64>();
        let (told, mut tell) = io::pipe()?;
        airlock_linux::fd::set_nonblocking(told.as_fd())?;
        let settled = Arc::new(AtomicU64::new(0));
        let done = settled.clone();
        let work = move || {
            while let Ok(first) = asked.recv() {
                // Who asks meanwhile needs another round; who asked before needs none of his own.
                let ticket = asked.try_iter().last().unwrap_or(first);
                settle();
                done.store(ticket, Ordering::Release);
                if tell.write_all(b".").is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("settling".to_owned()).spawn(work)?;
        Ok(Settling { ask, settled, told })
    }

    /// Asks for it; numbers rise.
    pub(super) fn ask(&self, ticket: u64) {
        // The thread lives as long as this does.
        let _ = self.ask.send(ticket);
    }

    /// Up to which number it has been done, where something has been since the last time.
    pub(super) fn settled(&self) -> Option<u64> {
        let mut bytes = [0; 64];
        matches!((&self.told).read(&mut bytes), Ok(1..)).then(|| self.settled.load(Ordering::Acquire))
    }
}

impl AsFd for Settling {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}
