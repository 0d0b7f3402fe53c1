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
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// The number of the request to write.
const WRITE: u32 = 16;
/// How often it is looked whether programs write on and on.
const MOST_ROUNDS: u32 = 64;

/// Files that the other end of a port serves.
pub(crate) struct Files {
    mount: OwnedFd,
    writes: Arc<Writes>,
}

impl Files {
    /// Mounts what the other end of `port` serves, and carries messages from now on.
    pub(crate) fn mount(port: OwnedFd) -> io::Result<Files> {
        let device = Arc::new(fuse::open_device()?);
        let mount = fuse::mount(device.as_fd(), (0, 0))?;
        let (port, writes) = (Arc::new(port), Arc::<Writes>::default());
        let ends = (device.clone(), port.clone(), writes.clone());
        start("files-ask", move || carry_requests(ends.0.as_fd(), ends.1.as_fd(), &ends.2))?;
        let ends = (device, port, writes.clone());
        start("files-answer", move || carry_answers(ends.1.as_fd(), ends.0.as_fd(), &ends.2))?;
        Ok(Files { mount, writes })
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
            let before = self.writes.seen();
            rustix::fs::fstatfs(&root)?;
            if self.writes.are_answered() && self.writes.seen() == before {
                return Ok(());
            }
            self.writes.wait();
        }
        Ok(())
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(64 << 10).spawn(work).map(drop)
}

/// Until the mount or the port is gone.
fn carry_requests(device: BorrowedFd<'_>, port: BorrowedFd<'_>, writes: &Writes) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match rustix::io::read(device, &mut *buffer) {
            Ok(count) if count >= HEAD => count,
            // It was taken back before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            _ => return,
        };
        let message = buffer.get(..count).unwrap_or_default();
        if number(message, 4) == Some(WRITE) {
            writes.began(unique(message));
        }
        if write_all(port, message).is_err() {
            return;
        }
    }
}

/// Until the port or the mount is gone.
fn carry_answers(port: BorrowedFd<'_>, device: BorrowedFd<'_>, writes: &Writes) {
    let (mut inlet, mut buffer) = (Inlet::new(ANSWER_HEAD), vec![0; BUFFER]);
    while let Some(length) = inlet.next(&mut buffer, |into| rustix::io::read(port, into)) {
        let message = buffer.get(..length).unwrap_or_default();
        match rustix::io::write(device, message) {
            Err(Errno::NODEV | Errno::PERM) => break,
            // Whoever asked is gone.
            _ => writes.ended(unique(message)),
        }
    }
    writes.give_up();
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

/// Requests to write that are not answered.
#[derive(Default)]
struct Writes {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    pending: HashSet<u64>,
    seen: u64,
    is_over: bool,
}

impl Writes {
    fn began(&self, unique: u64) {
        let mut inner = self.lock();
        inner.pending.insert(unique);
        inner.seen += 1;
    }

    fn ended(&self, unique: u64) {
        let mut inner = self.lock();
        if inner.pending.remove(&unique) && inner.pending.is_empty() {
            self.changed.notify_all();
        }
    }

    /// Nothing will be answered any more.
    fn give_up(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn seen(&self) -> u64 {
        self.lock().seen
    }

    fn are_answered(&self) -> bool {
        self.lock().pending.is_empty()
    }

    fn wait(&self) {
        let wait = |inner: &mut Inner| !inner.pending.is_empty() && !inner.is_over;
        drop(self.changed.wait_while(self.lock(), wait));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
