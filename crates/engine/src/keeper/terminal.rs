//! A terminal of the sandbox and who watches it.

use super::{Tasks, log::Log, watched};
use airlock_linux::pty;
use airlock_protocol::{log::Output, spec::WindowSize};
use std::{cell::RefCell, io, os::fd::OwnedFd, rc::Rc};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
};

/// Most bytes kept for the first viewer.
const EARLY: usize = 256 * 1024;

/// The keeper's end of a terminal.
#[derive(Debug)]
pub struct Terminal {
    master: AsyncFd<OwnedFd>,
    viewers: RefCell<Vec<mpsc::Sender<Vec<u8>>>>,
    /// What was shown before anybody watched: a program may write before its client knows that it runs.
    early: RefCell<Option<Vec<u8>>>,
}

impl Terminal {
    /// Reads the terminal for the log and its viewers until every program has let go of it.
    pub(super) fn run(
        master: OwnedFd,
        log: Rc<Log>,
        tasks: &mut Tasks,
    ) -> io::Result<(Rc<Terminal>, watch::Receiver<()>)> {
        let master = watched(master, Interest::READABLE | Interest::WRITABLE)?;
        let terminal =
            Rc::new(Terminal { master, viewers: RefCell::default(), early: RefCell::new(Some(Vec::new())) });
        let (alive, done) = watch::channel(());
        let read = terminal.clone();
        tasks.spawn_local(async move {
            read.read(&log).await;
            log.finish(Output::Terminal);
            read.viewers.borrow_mut().clear();
            drop(alive);
        });
        Ok((terminal, done))
    }

    /// What the terminal shows from now on; the first viewer is also given what it showed before. A viewer slower than its queue holds the terminal back.
    pub fn watch(&self) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel(16);
        if let Some(early) = self.early.take().filter(|early| !early.is_empty()) {
            // The queue is new and has room.
            let _ = sender.try_send(early);
        }
        self.viewers.borrow_mut().push(sender);
        receiver
    }

    /// Types into it.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = self
                .master
                .async_io(Interest::WRITABLE, |master| Ok(rustix::io::write(master, rest)?))
                .await?;
            rest = rest.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Tells it its size.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        pty::resize(self.master.get_ref(), size.rows, size.columns)
    }

    async fn read(&self, log: &Log) {
        let mut bytes = vec![0u8; 32 * 1024];
        loop {
            let count = self
                .master
                .async_io(Interest::READABLE, |master| Ok(rustix::io::read(master, &mut bytes)?))
                .await;
            let Ok(count @ 1..) = count else { return };
            let piece = bytes.get(..count).unwrap_or_default();
            log.write(Output::Terminal, piece);
            if let Some(early) = self.early.borrow_mut().as_mut() {
                let room = EARLY.saturating_sub(early.len());
                early.extend_from_slice(piece.get(..count.min(room)).unwrap_or_default());
            }
            let viewers = self.viewers.borrow().clone();
            for viewer in viewers {
                let _ = viewer.send(piece.to_vec()).await;
            }
            self.viewers.borrow_mut().retain(|viewer| !viewer.is_closed());
        }
    }
}
