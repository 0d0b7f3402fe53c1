//! The files of the machine: its kernel's requests go to the port, and the answers come back.
//!
//! One thread carries requests, another one answers. So whoever waits until the port takes more never holds up the answers
//! for which the kernel waits.

#[cfg(test)]
mod tests;

use airlock_files::fuse::{ANSWER_HEAD, BUFFER, HEAD, Inlet};
use airlock_linux::fuse;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    collections::HashSet,
    io::{self, PipeReader},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// The number of the request to write.
const WRITE: u32 = 16;
/// Requests that have no answer, or none of their own: to forget one and several, to interrupt.
const UNANSWERED: [u32; 3] = [2, 42, 36];
/// How long requests may take to be answered when programs stand still.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between looks at a port whose other end is not there.
const PAUSE: Duration = Duration::from_millis(1);
/// How often it is looked whether programs write on and on.
const MOST_ROUNDS: u32 = 64;

/// Files that the other end of a port serves.
pub(crate) struct Files {
    mount: OwnedFd,
    traffic: Arc<Traffic>,
    over: PipeReader,
}

impl Files {
    /// Mounts what the other end of `port` serves, and carries messages from now on.
    pub(crate) fn mount(port: OwnedFd) -> io::Result<Files> {
        let device = Arc::new(fuse::open_device()?);
        let mount = fuse::mount(device.as_fd(), (0, 0))?;
        let (port, traffic) = (Arc::new(port), Arc::<Traffic>::default());
        let (over, lasts) = io::pipe()?;
        let ends = (device.clone(), port.clone(), traffic.clone());
        start("files-ask", move || carry_requests(ends.0.as_fd(), ends.1.as_fd(), &ends.2))?;
        let ends = (device, port, traffic.clone());
        start("files-answer", move || {
            carry_answers(ends.1.as_fd(), ends.0.as_fd(), &ends.2);
            drop(lasts);
        })?;
        Ok(Files { mount, traffic, over })
    }

    /// Readable when nothing is answered any more.
    pub(crate) fn over(&self) -> io::Result<PipeReader> {
        self.over.try_clone()
    }

    /// Everything that was asked is answered when this returns, and nothing more is asked until [`Files::rise`]. Programs stand
    /// still meanwhile. `false` where that takes too long.
    pub(crate) fn rest(&self) -> bool {
        self.traffic.rest(PATIENCE)
    }

    /// Undoes [`Files::rest`].
    pub(crate) fn rise(&self) {
        self.traffic.rise();
    }

    /// The mount, attached nowhere yet.
    pub(crate) fn tree(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Everything that programs have written until now is on the host when this returns. What they write meanwhile may be.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.mount, ".", flags, Mode::empty())?;
        rustix::fs::syncfs(&root)?;
        // The kernel does not wait for what it writes by itself. It asks in order: when a question is answered, whatever it
        // wanted to write before was seen here; and of what it holds back, each answer lets the next one go.
        for _ in 0..MOST_ROUNDS {
            let before = self.traffic.seen();
            rustix::fs::fstatfs(&root)?;
            if self.traffic.are_written() && self.traffic.seen() == before {
                return Ok(());
            }
            self.traffic.wait();
        }
        Ok(())
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(64 << 10).spawn(work).map(drop)
}

/// Until the mount or the port is gone.
fn carry_requests(device: BorrowedFd<'_>, port: BorrowedFd<'_>, traffic: &Traffic) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match rustix::io::read(device, &mut *buffer) {
            Ok(count) if count >= HEAD => count,
            // It was taken back before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            _ => return,
        };
        let message = buffer.get(..count).unwrap_or_default();
        traffic.begin(unique(message), number(message, 4).unwrap_or(0));
        let written = write_all(port, message);
        traffic.sent();
        if written.is_err() {
            return;
        }
    }
}

/// Until the port or the mount is gone.
fn carry_answers(port: BorrowedFd<'_>, device: BorrowedFd<'_>, traffic: &Traffic) {
    let (mut inlet, mut buffer) = (Inlet::new(ANSWER_HEAD), vec![0; BUFFER]);
    let read = |into: &mut [u8]| match rustix::io::read(port, into) {
        // A copy of this machine may find itself alone for a moment.
        Ok(0) if traffic.rests() => {
            thread::sleep(PAUSE);
            Err(Errno::INTR)
        }
        other => other,
    };
    while let Some(length) = inlet.next(&mut buffer, read) {
        let message = buffer.get(..length).unwrap_or_default();
        match rustix::io::write(device, message) {
            Err(Errno::NODEV | Errno::PERM) => break,
            // Whoever asked is gone.
            _ => traffic.answered(unique(message)),
        }
    }
    traffic.give_up();
}

fn write_all(port: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(port, bytes) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

fn number(message: &[u8], at: usize) -> Option<u32> {
    message.get(at..)?.first_chunk::<4>().map(|four| u32::from_ne_bytes(*four))
}

/// Which request a message is or answers.
fn unique(message: &[u8]) -> u64 {
    message.get(8..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |eight| u64::from_ne_bytes(*eight))
}

/// Requests that are on their way or not answered.
#[derive(Default)]
struct Traffic {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// To write, and all others.
    writes: HashSet<u64>,
    others: HashSet<u64>,
    /// How many there were to write.
    seen: u64,
    is_sending: bool,
    rests: bool,
    is_over: bool,
}

impl Traffic {
    /// A request is about to be sent; waits while nothing may be.
    fn begin(&self, unique: u64, what: u32) {
        let rests = |inner: &mut Inner| inner.rests && !inner.is_over;
        let mut inner = self.changed.wait_while(self.lock(), rests).unwrap_or_else(PoisonError::into_inner);
        inner.is_sending = true;
        match what {
            WRITE => {
                inner.writes.insert(unique);
                inner.seen += 1;
            }
            silent if UNANSWERED.contains(&silent) => {}
            _ => drop(inner.others.insert(unique)),
        }
    }

    fn sent(&self) {
        let mut inner = self.lock();
        inner.is_sending = false;
        if inner.rests {
            self.changed.notify_all();
        }
    }

    fn answered(&self, unique: u64) {
        let mut inner = self.lock();
        let was_last_write = inner.writes.remove(&unique) && inner.writes.is_empty();
        inner.others.remove(&unique);
        if was_last_write || inner.rests {
            self.changed.notify_all();
        }
    }

    fn rest(&self, patience: Duration) -> bool {
        let mut inner = self.lock();
        inner.rests = true;
        let is_busy = |inner: &mut Inner| {
            !inner.is_over && (inner.is_sending || !inner.writes.is_empty() || !inner.others.is_empty())
        };
        match self.changed.wait_timeout_while(inner, patience, is_busy) {
            Ok((inner, waited)) => !waited.timed_out() && !inner.is_over,
            Err(_) => false,
        }
    }

    fn rise(&self) {
        self.lock().rests = false;
        self.changed.notify_all();
    }

    fn rests(&self) -> bool {
        self.lock().rests
    }

    /// Nothing will be answered any more.
    fn give_up(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn seen(&self) -> u64 {
        self.lock().seen
    }

    fn are_written(&self) -> bool {
        self.lock().writes.is_empty()
    }

    /// Until what was to be written is.
    fn wait(&self) {
        let wait = |inner: &mut Inner| !inner.writes.is_empty() && !inner.is_over;
        drop(self.changed.wait_while(self.lock(), wait));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
