//! Threads that read requests from the kernel and answer them.
//!
//! One thread waits at a time, and whoever has read lets the next one; while requests follow closely, whoever has answered
//! tries for a moment to read the next one without waiting. There is one thread as long as answers are quick;
//! more come when one is slow and keeps others waiting. A watching thread answers in place of one that takes too long (`EIO`); when too many hang,
//! the connection ends, and every program that waits for it goes on with an error.

use super::{
    backed::Backing,
    channel::Channel,
    decode::decode,
    reply::Reply,
    request::Head,
    session::{MOST_WRITTEN, Outcome, Session},
};
use crate::provider::Provider;
use airlock_linux::fuse;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a provider may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often somebody looks for answers that take too long.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often somebody looks for locks that programs of the host gave back, while one is waited for.
const LOOK_FOR_LOCKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// From here on an answer is slow, and one more thread is worth its memory.
const SLOW: Duration = Duration::from_millis(1);
/// Most threads that serve a device.
const MOST_THREADS: usize = 4;
/// Threads that serve a stream from the beginning: what comes over one is slow now and then.
const STREAM_THREADS: usize = 2;
/// Most threads that serve a stream. A machine has no other way to its files.
const MOST_STREAM_THREADS: usize = 16;
/// Most threads that hang.
const MOST_HUNG: usize = 8;
/// What the kernel wants room for.
pub const BUFFER: usize = MOST_WRITTEN as usize + (64 << 10);
/// In a slot: nothing is being answered.
const IDLE: u64 = 0;
/// In a slot: somebody else answered.
const GIVEN_UP: u64 = u64::MAX;

/// A mount that is being served.
pub struct Server {
    shared: Arc<Shared>,
}

/// Dropping the server ends the connection.
impl Drop for Server {
    fn drop(&mut self) {
        self.shared.end();
    }
}

struct Shared {
    channel: Mutex<Option<Arc<Channel>>>,
    ended: OwnedFd,
    /// Somebody waits for a lock now.
    waits: OwnedFd,
    session: Session,
    slots: Mutex<Vec<Arc<Slot>>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    hung: AtomicUsize,
    most_threads: usize,
    patience: Duration,
    begun: Instant,
}

/// What one thread is at.
#[derive(Default)]
struct Slot {
    unique: AtomicU64,
    since: AtomicU64,
}

impl Server {
    /// Serves the mount whose device this is.
    pub fn start(device: OwnedFd, provider: Arc<dyn Provider>) -> io::Result<Server> {
        Server::with_patience(device, provider, PATIENCE)
    }

    /// As [`Server::start`], for providers that are to be given up sooner or later.
    pub fn with_patience(
        device: OwnedFd,
        provider: Arc<dyn Provider>,
        patience: Duration,
    ) -> io::Result<Server> {
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let channel = Arc::new(Channel::device(device, event()?)?);
        let backing = Kernel(Arc::downgrade(&channel));
        let session = Session::new(provider, Some(Box::new(backing)), patience);
        let shared = Shared::new(channel, session, patience, MOST_THREADS)?;
        shared.add_thread()?;
        shared.add_watcher()?;
        Ok(Server { shared })
    }

    /// Serves whoever sends messages on a stream socket, back to back. A message that cannot be one ends the connection.
    /// The file mask of the whole process becomes 0. Nobody answers in place of a provider that takes long: it is as slow
    /// as the files are.
    pub fn start_on_stream(socket: OwnedFd, provider: Arc<dyn Provider>) -> io::Result<Server> {
        Server::on_stream(socket, Session::new(provider, None, Duration::MAX))
    }

    /// As [`Server::start_on_stream`], for a kernel that another server has served before.
    pub fn resume_on_stream(socket: OwnedFd, provider: Arc<dyn Provider>) -> io::Result<Server> {
        Server::on_stream(socket, Session::new(provider, None, Duration::MAX).resumed())
    }

    fn on_stream(socket: OwnedFd, session: Session) -> io::Result<Server> {
        let channel = Arc::new(Channel::stream(socket));
        let shared = Shared::new(channel, session, Duration::MAX, MOST_STREAM_THREADS)?;
        for _ in 0..STREAM_THREADS {
            shared.add_thread()?;
        }
        shared.add_watcher()?;
        Ok(Server { shared })
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.shared.channel).is_none()
    }

    /// Ends the connection and waits for the threads, but for those that hang.
    pub fn stop(self) {
        self.shared.end();
        let limit = Instant::now() + Duration::from_secs(1);
        let mut threads = std::mem::take(&mut *lock(&self.shared.threads));
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        threads.retain(thread::JoinHandle::is_finished);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn new(
        channel: Arc<Channel>,
        session: Session,
        patience: Duration,
        most_threads: usize,
    ) -> io::Result<Arc<Shared>> {
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Arc::new(Shared {
            channel: Mutex::new(Some(channel)),
            ended: event()?,
            waits: event()?,
            session,
            slots: Mutex::default(),
            threads: Mutex::default(),
            hung: AtomicUsize::new(0),
            most_threads,
            patience,
            begun: Instant::now(),
        }))
    }

    fn channel(&self) -> Option<Arc<Channel>> {
        lock(&self.channel).clone()
    }

    fn end(&self) {
        if let Some(channel) = lock(&self.channel).take() {
            channel.end();
        }
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
    }

    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let slot = Arc::new(Slot::default());
        lock(&self.slots).push(slot.clone());
        let shared = self.clone();
        self.start("files", move || shared.work(&slot))
    }

    fn add_watcher(self: &Arc<Self>) -> io::Result<()> {
        let shared = self.clone();
        self.start("files-watch", move || shared.watch())
    }

    fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(work)?;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    fn work(self: Arc<Self>, slot: &Arc<Slot>) {
        if self.channel().is_none_or(|channel| channel.enter().is_err()) {
            return self.end();
        }
        let (mut buffer, mut reply) = (vec![0u8; BUFFER], Reply::default());
        // Who hangs does not keep the connection open.
        while let Some(message) = self.channel().and_then(|channel| channel.next(&mut buffer)) {
            let began = Instant::now();
            let unique = decode(message).map_or(IDLE, |(Head { unique, .. }, _)| unique);
            slot.since.store(self.millis(), Ordering::Relaxed);
            slot.unique.store(unique, Ordering::Release);
            let outcome = self.session.answer(message, &mut reply);
            if slot.unique.swap(IDLE, Ordering::AcqRel) == GIVEN_UP {
                // The kernel has its answer, and another thread does this one's work.
                self.hung.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            match (outcome, self.channel()) {
                (Outcome::End, _) | (_, None) => break,
                (Outcome::Silent, _) => {}
                (Outcome::Later, _) => drop(rustix::io::write(&self.waits, &1u64.to_ne_bytes())),
                (Outcome::Send, Some(channel)) => channel.send(reply.bytes()),
                (Outcome::SendAndGrant, Some(channel)) => {
                    channel.send(reply.bytes());
                    self.grant();
                }
            }
            if began.elapsed() > SLOW {
                self.help_out();
            }
        }
        self.end();
    }

    /// One more thread after a slow answer, if others were kept waiting by it: threads that stand by take turns, which
    /// costs a program that does one thing after another more than it gains.
    fn help_out(self: &Arc<Self>) {
        let is_asked = self.channel().is_some_and(|channel| channel.is_asked());
        if is_asked && lock(&self.slots).len() < self.most_threads {
            let _ = self.add_thread();
        }
    }

    fn watch(self: Arc<Self>) {
        while self.channel().is_some() {
            let look = if self.session.has_waiting() { &LOOK_FOR_LOCKS } else { &LOOK };
            let mut ready =
                [PollFd::new(&self.ended, PollFlags::IN), PollFd::new(&self.waits, PollFlags::IN)];
            let _ = rustix::event::poll(&mut ready, Some(look));
            let _ = rustix::io::read(&self.waits, &mut [0u8; 8]);
            self.grant();
            let now = self.millis();
            let mut slots = lock(&self.slots);
            let busy = |slot: &Arc<Slot>| slot.unique.load(Ordering::Acquire) != IDLE;
            let is_stuck = !slots.is_empty() && slots.iter().all(busy);
            slots.retain(|slot| !self.give_up(slot, now));
            let count = slots.len();
            drop(slots);
            if self.hung.load(Ordering::Relaxed) > MOST_HUNG {
                return self.end();
            }
            if (is_stuck || count == 0) && count < self.most_threads && self.add_thread().is_err() {
                return self.end();
            }
        }
    }

    /// Answers those whose waiting for a lock is over.
    fn grant(&self) {
        let mut reply = Reply::default();
        for (unique, outcome) in self.session.granted() {
            reply.begin();
            reply.end(unique, outcome);
            self.channel().iter().for_each(|channel| channel.send(reply.bytes()));
        }
    }

    /// Answers in place of a thread that takes too long; says whether it does.
    fn give_up(&self, slot: &Slot, now: u64) -> bool {
        let unique = slot.unique.load(Ordering::Acquire);
        let waited = Duration::from_millis(now.saturating_sub(slot.since.load(Ordering::Relaxed)));
        if unique == IDLE || waited <= self.patience {
            return false;
        }
        let taken = slot.unique.compare_exchange(unique, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            return false;
        }
        self.hung.fetch_add(1, Ordering::Relaxed);
        let mut reply = Reply::default();
        reply.begin();
        reply.end(unique, Err(Errno::IO));
        self.channel().iter().for_each(|channel| channel.send(reply.bytes()));
        true
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The kernel's own table of files behind a mount.
struct Kernel(Weak<Channel>);

impl Backing for Kernel {
    fn open(&self, file: OwnedFd) -> io::Result<u32> {
        let channel = self.0.upgrade();
        let device = channel.as_ref().and_then(|channel| channel.as_device());
        fuse::open_backing(device.ok_or(io::ErrorKind::NotConnected)?, file.as_fd())
    }

    fn close(&self, number: u32) {
        if let Some(device) = self.0.upgrade().as_ref().and_then(|channel| channel.as_device()) {
            let _ = fuse::close_backing(device, number);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fuse::{request::HEAD, wire::Put},
        provider::{Caller, Handle, Memory, Name, Node, Readonly, Result, Take},
    };
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::sync::mpsc;

    /// A socket that keeps messages apart stands for the kernel's device.
    fn served(provider: Arc<dyn Provider>) -> (Server, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (device, kernel) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let server = Server::with_patience(device, provider, Duration::from_millis(100)).unwrap();
        let mut init = Vec::new();
        for number in [7, 41, 1 << 17, 0] {
            init.put32(number);
        }
        assert_eq!(ask(&kernel, 26, 1, &init).0, 0);
        (server, kernel)
    }

    /// A stream to a machine.
    fn served_on_stream(provider: Arc<dyn Provider>) -> (Server, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (socket, machine) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let server = Server::start_on_stream(socket, provider).unwrap();
        let mut init = Vec::new();
        for number in [7, 41, 1 << 17, 0] {
            init.put32(number);
        }
        assert_eq!(ask(&machine, 26, 1, &init).0, 0);
        (server, machine)
    }

    fn send(kernel: &OwnedFd, operation: u32, unique: u64, body: &[u8]) {
        let mut message = Vec::new();
        message.put32(u32::try_from(HEAD + body.len()).unwrap());
        message.put32(operation);
        message.put64(unique);
        message.put64(1);
        message.resize(HEAD, 0);
        message.extend_from_slice(body);
        rustix::io::write(kernel, &message).unwrap();
    }

    fn ask(kernel: &OwnedFd, operation: u32, unique: u64, body: &[u8]) -> (i32, u64) {
        send(kernel, operation, unique, body);
        hear(kernel)
    }

    /// Error and number of the next answer.
    fn hear(kernel: &OwnedFd) -> (i32, u64) {
        let mut answer = [0; 4096];
        let count = rustix::io::read(kernel, &mut answer).unwrap();
        assert!(count >= 16, "the connection ended");
        let error = i32::from_ne_bytes(answer[4..8].try_into().unwrap());
        (error, u64::from_ne_bytes(answer[8..16].try_into().unwrap()))
    }

    /// Its root's attributes never come; everything else does.
    struct Hanging {
        of: Readonly,
        until: Mutex<mpsc::Receiver<()>>,
    }

    impl Provider for Hanging {
        fn caching(&self) -> crate::provider::Caching {
            self.of.caching()
        }
        fn lookup(&self, parent: Node, name: Name<'_>) -> Result<crate::provider::Entry> {
            self.of.lookup(parent, name)
        }
        fn forget(&self, _: Node, _: u64) {}
        fn attributes(&self, node: Node) -> Result<crate::provider::Attributes> {
            let _ = lock(&self.until).recv();
            self.of.attributes(node)
        }
        fn change(
            &self,
            _: Node,
            _: Option<Handle>,
            _: &crate::provider::Change,
        ) -> Result<crate::provider::Attributes> {
            Err(Errno::ROFS)
        }
        fn readlink(&self, node: Node) -> Result<Vec<u8>> {
            self.of.readlink(node)
        }
        fn make(
            &self,
            _: Node,
            _: Name<'_>,
            _: crate::provider::New<'_>,
            _: Caller,
        ) -> Result<crate::provider::Entry> {
            Err(Errno::ROFS)
        }
        fn remove(&self, _: Node, _: Name<'_>, _: crate::provider::Remove) -> Result<()> {
            Err(Errno::ROFS)
        }
        fn rename(&self, _: (Node, Name<'_>), _: (Node, Name<'_>), _: crate::provider::Rename) -> Result<()> {
            Err(Errno::ROFS)
        }
        fn link(&self, _: Node, _: Node, _: Name<'_>) -> Result<crate::provider::Entry> {
            Err(Errno::ROFS)
        }
        fn open(&self, node: Node, want: crate::provider::Want) -> Result<Handle> {
            self.of.open(node, want)
        }
        fn create(
            &self,
            _: (Node, Name<'_>),
            _: u32,
            _: crate::provider::Want,
            _: Caller,
        ) -> Result<(crate::provider::Entry, Handle)> {
            Err(Errno::ROFS)
        }
        fn read(&self, handle: Handle, offset: u64, size: usize, into: &mut Vec<u8>) -> Result<()> {
            self.of.read(handle, offset, size, into)
        }
        fn write(&self, _: Handle, _: u64, _: &[u8]) -> Result<usize> {
            Err(Errno::ROFS)
        }
        fn sync(&self, _: Handle) -> Result<()> {
            Ok(())
        }
        fn release(&self, _: Handle) {}
        fn open_directory(&self, node: Node) -> Result<Handle> {
            self.of.open_directory(node)
        }
        fn list(&self, handle: Handle, from: u64, take: &mut Take<'_>) -> Result<()> {
            self.of.list(handle, from, take)
        }
        fn release_directory(&self, _: Handle) {}
        fn room(&self) -> Result<crate::provider::Room> {
            self.of.room()
        }
    }

    fn hanging() -> (Arc<Hanging>, mpsc::Sender<()>) {
        let (hold, until) = mpsc::channel();
        let of = Readonly::new(Arc::new(Memory::new(1 << 20, Caller::default())));
        (Arc::new(Hanging { of, until: Mutex::new(until) }), hold)
    }

    #[test]
    fn a_provider_that_hangs_gives_an_error_and_the_others_are_served() {
        let (provider, hold) = hanging();
        let (server, kernel) = served(provider);

        send(&kernel, 3, 2, &[0; 16]);
        assert_eq!(hear(&kernel), (-Errno::IO.raw_os_error(), 2));
        assert_eq!(ask(&kernel, 17, 3, &[]), (0, 3));

        drop(hold);
        server.stop();
    }

    #[test]
    fn over_a_stream_one_slow_answer_does_not_hold_up_the_others() {
        let (provider, hold) = hanging();
        let (server, machine) = served_on_stream(provider);

        send(&machine, 3, 2, &[0; 16]);
        assert_eq!(ask(&machine, 17, 3, &[]), (0, 3));
        drop(hold);
        assert_eq!(hear(&machine), (0, 2));

        server.stop();
    }

    #[test]
    fn over_a_stream_a_length_that_is_none_ends_the_connection() {
        for length in [0u32, 7, 39, u32::MAX] {
            let (server, machine) = served_on_stream(Arc::new(Memory::new(1 << 20, Caller::default())));
            rustix::io::write(&machine, &[&length.to_ne_bytes()[..], &[0; 60]].concat()).unwrap();
            assert_eq!(rustix::io::read(&machine, &mut [0; 16]).unwrap_or(0), 0);
            server.stop();
        }
    }

    #[test]
    fn a_server_of_a_stream_that_stops_ends_the_connection() {
        let (server, machine) = served_on_stream(Arc::new(Memory::new(1 << 20, Caller::default())));
        assert_eq!(ask(&machine, 17, 2, &[]), (0, 2));
        server.stop();
        assert_eq!(rustix::io::read(&machine, &mut [0; 16]).unwrap_or(0), 0);
    }

    proptest::proptest! {
        /// What a kernel that is somebody else's may send, in whole messages.
        #[test]
        fn no_requests_harm_a_whole_root(
            requests in proptest::collection::vec((1..52u32, 0..8u64, proptest::collection::vec(0..6u8, 0..120)), 0..100),
        ) {
            let (behind, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            std::os::unix::fs::symlink(outside.path(), behind.path().join("\u{1}")).unwrap();
            let root = OwnedFd::from(std::fs::File::open(behind.path()).unwrap());
            let provider = Arc::new(crate::provider::Real::whole(root).unwrap());
            let (session, mut reply) = (Session::new(provider, None, Duration::MAX), Reply::default());
            let init = [7u32, 41, 1 << 17, 0].map(u32::to_ne_bytes).concat();
            let first = (26, 1, init);
            for (operation, node, body) in std::iter::once(first).chain(requests) {
                let mut message = Vec::new();
                message.put32(u32::try_from(HEAD + body.len()).unwrap());
                message.put32(operation);
                message.put64(9);
                message.put64(node);
                message.resize(HEAD, 0);
                message.extend_from_slice(&body);
                let _ = session.answer(&message, &mut reply);
                proptest::prop_assert!(reply.bytes().len() <= BUFFER);
            }
            proptest::prop_assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn when_too_many_hang_the_connection_ends() {
        let (provider, hold) = hanging();
        let (server, kernel) = served(provider);

        for unique in 2..40 {
            send(&kernel, 3, unique, &[0; 16]);
        }
        let mut answer = [0; 64];
        while rustix::io::read(&kernel, &mut answer).is_ok_and(|count| count > 0) {}

        assert!(server.has_ended());
        drop(hold);
        server.stop();
    }

    #[test]
    fn a_server_that_stops_ends_the_connection_and_its_threads() {
        let (server, kernel) = served(Arc::new(Memory::new(1 << 20, Caller::default())));
        assert_eq!(ask(&kernel, 17, 2, &[]), (0, 2));
        server.stop();
        assert_eq!(rustix::io::read(&kernel, &mut [0; 16]).unwrap_or(0), 0);
    }

    /// A mount of this kernel, attached nowhere, with a directory behind it. Nothing where this process may not have one.
    fn mounted(behind: &std::path::Path) -> Option<(Server, OwnedFd)> {
        let device = fuse::open_device().ok()?;
        let mount = fuse::mount(device.as_fd(), (0, 0)).ok()?;
        let root = OwnedFd::from(std::fs::File::open(behind).unwrap());
        let owner = crate::provider::Owner { host: (0, 0), inside: Caller::default() };
        let provider = Arc::new(crate::provider::Real::new(root, owner).unwrap());
        Some((Server::start(device, provider).unwrap(), mount))
    }

    #[test]
    fn as_host_root_the_kernel_reads_and_writes_files_of_a_directory_by_itself() {
        let behind = tempfile::tempdir().unwrap();
        std::fs::write(behind.path().join("a"), "before").unwrap();
        let Some((server, mount)) = mounted(behind.path()) else {
            println!("skipped: this process may not serve a mount");
            return;
        };
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&mount, "a", flags, rustix::fs::Mode::empty()).unwrap();

        let file = open();
        if !server.shared.session.is_passing_through() {
            println!("skipped: this kernel does not pass files through, or not for this user");
            return server.stop();
        }
        let mut text = [0; 6];
        let count = rustix::io::pread(&file, &mut text, 0).unwrap();
        let written = rustix::io::pwrite(&file, b"AFTER", 6).unwrap();

        assert_eq!((count, &text, written), (6, b"before", 5));
        assert_eq!(std::fs::read_to_string(behind.path().join("a")).unwrap(), "beforeAFTER");
        let again = open();
        assert!(server.shared.session.is_passing_through());
        drop((file, again));
        server.stop();
    }
}
