//! One mount: requests go to the provider, answers come back. No I/O of its own.

use super::{
    backed::{Backed, Backing},
    decode::decode,
    reply::Reply,
    request::{Head, Locking, Malformed, Request},
    waiting::{Granted, Waiting},
    wire::Put,
};
use crate::provider::{Caching, Caller, Handle, Kind, Listed, Lock, Name, New, Node, Provider, Result, Want};
use rustix::io::Errno;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Most bytes of one write.
pub const MOST_WRITTEN: u32 = 1 << 20;
/// Most bytes of one answer's body.
const MOST_READ: u32 = 1 << 20;
/// Most bytes of all entries of one listing.
const MOST_LISTED: usize = 128 << 10;
/// Most bytes read ahead: more than the kernel's 128 KiB, since every request costs two switches of process.
const READ_AHEAD: u32 = 1 << 20;
/// Requests that the kernel may have under way by itself.
const BACKGROUND: u16 = 64;

/// What of the kernel's abilities is used (include/uapi/linux/fuse.h).
mod ability {
    pub(super) const ALWAYS: u64 = ASYNC_READ
        | ATOMIC_TRUNCATE
        | BIG_WRITES
        | LIST_PLUS
        | LIST_PLUS_AUTO
        | PARALLEL_DIRECTORIES
        | ABORT_ERROR
        | MAX_PAGES
        | DROP_SET_ID
        | EXTENDED
        | ASYNC_DIRECT;
    pub(super) const ALONE: u64 = WRITE_BACK;
    pub(super) const NAMES: u64 = CACHE_LINKS;
    pub(super) const SHARED: u64 = AUTO_INVALIDATE;
    pub(super) const LOCKS: u64 = RANGE_LOCKS | WHOLE_LOCKS;
    const ASYNC_READ: u64 = 1;
    const RANGE_LOCKS: u64 = 1 << 1;
    const WHOLE_LOCKS: u64 = 1 << 10;
    const ATOMIC_TRUNCATE: u64 = 1 << 3;
    const BIG_WRITES: u64 = 1 << 5;
    const AUTO_INVALIDATE: u64 = 1 << 12;
    const LIST_PLUS: u64 = 1 << 13;
    const LIST_PLUS_AUTO: u64 = 1 << 14;
    const ASYNC_DIRECT: u64 = 1 << 15;
    const WRITE_BACK: u64 = 1 << 16;
    const PARALLEL_DIRECTORIES: u64 = 1 << 18;
    const ABORT_ERROR: u64 = 1 << 21;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    const CACHE_LINKS: u64 = 1 << 23;
    const DROP_SET_ID: u64 = 1 << 28;
    const EXTENDED: u64 = 1 << 30;
    pub(super) const PASSTHROUGH: u64 = 1 << 37;
    pub(super) const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// Where a listing goes on behind `.` and behind `..`: numbers that no file system gives.
const DOT: u64 = 0x7fff_fffe_a1a1_0001;
const DOTS: u64 = 0x7fff_fffe_a1a1_0002;
/// The inode number of a directory that nobody asked for.
const UNKNOWN: u64 = 0xffff_ffff;

/// The kernel may keep what it read of the file before.
const KEEP_CACHE: u32 = 1 << 1;
/// The kernel may keep a directory's entries.
const CACHE_DIRECTORY: u32 = 1 << 3;
/// The kernel reads and writes the file behind by itself.
const PASSTHROUGH: u32 = 1 << 7;

/// What is done with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is sent.
    Send,
    /// It is sent, and locks that others wait for may be free: see [`Session::granted`].
    SendAndGrant,
    /// There is none.
    Silent,
    /// There is none yet: a lock is waited for, until [`Session::granted`] or an interruption tells.
    Later,
    /// There is none, and nothing more to serve.
    End,
}

/// One mount.
pub struct Session {
    provider: Arc<dyn Provider>,
    caching: Caching,
    backed: Option<Backed>,
    waiting: Waiting,
    begun: OnceLock<()>,
    patience: Duration,
}

impl Session {
    /// Serves `provider`; files behind it are made known by `backing`, where that is possible. A request unanswered for
    /// twice the `patience` ends the connection, where the kernel can.
    pub fn new(
        provider: Arc<dyn Provider>,
        backing: Option<Box<dyn Backing>>,
        patience: Duration,
    ) -> Session {
        let caching = provider.caching();
        Session {
            provider,
            caching,
            backed: backing.map(Backed::new),
            waiting: Waiting::default(),
            begun: OnceLock::new(),
            patience,
        }
    }

    /// The kernel has begun with another session, and goes on with this one.
    #[must_use]
    pub fn resumed(self) -> Session {
        let _ = self.begun.set(());
        self
    }

    /// Answers one message.
    pub fn answer(&self, message: &[u8], reply: &mut Reply) -> Outcome {
        reply.begin();
        let (head, request) = match decode(message) {
            Ok(read) => read,
            Err(Malformed::Head) => return Outcome::End,
            Err(Malformed::Body(head, err)) => {
                reply.end(head.unique, Err(err));
                return Outcome::Send;
            }
        };
        match request {
            Request::Forget(nodes) => {
                nodes.iter().for_each(|(node, times)| self.provider.forget(*node, *times));
                return Outcome::Silent;
            }
            Request::Interrupt(unique) if self.waiting.interrupt(unique) => {
                reply.end(unique, Err(Errno::INTR));
                return Outcome::Send;
            }
            Request::Interrupt(_) => return Outcome::Silent,
            Request::Destroy => return Outcome::End,
            Request::Lock { handle, lock, how: Locking::Wait } if self.provider.keeps_locks() => {
                return self.wait(head.unique, (handle, lock), reply);
            }
            _ => {}
        }
        let frees = matches!(request, Request::Lock { .. } | Request::Flush(..) | Request::Release(_));
        let outcome = self.perform(&head, request, reply);
        reply.end(head.unique, outcome);
        if frees && !self.waiting.is_empty() { Outcome::SendAndGrant } else { Outcome::Send }
    }

    /// Whether the kernel reads and writes a file by itself now.
    #[cfg(test)]
    pub(super) fn is_passing_through(&self) -> bool {
        self.backed.as_ref().is_some_and(Backed::is_used)
    }

    /// Whether somebody waits for a lock.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The answers to those whose waiting for a lock is over. To be asked now and then while somebody waits: nobody tells
    /// when a program of the host gives a lock back.
    pub fn granted(&self) -> Vec<Granted> {
        self.waiting.granted(|handle, lock| self.provider.set_lock(handle, lock))
    }

    fn wait(&self, unique: u64, (handle, lock): (Handle, Lock), reply: &mut Reply) -> Outcome {
        match self.waiting.begin(unique, (handle, lock), |handle, lock| self.provider.set_lock(handle, lock))
        {
            None => Outcome::Later,
            Some(outcome) => {
                reply.end(unique, outcome);
                Outcome::SendAndGrant
            }
        }
    }

    fn perform(&self, head: &Head, request: Request<'_>, reply: &mut Reply) -> Result<()> {
        if let Request::Init { version, read_ahead, flags } = request {
            return self.init(version, read_ahead, flags, reply);
        }
        if self.begun.get().is_none() {
            return Err(Errno::IO);
        }
        match request {
            Request::Lookup(_)
            | Request::Symlink { .. }
            | Request::Make { .. }
            | Request::Remove(..)
            | Request::Rename { .. }
            | Request::Link(..)
            | Request::Create { .. } => self.names(head, request, reply),
            Request::OpenDirectory | Request::List { .. } | Request::ReleaseDirectory(_) => {
                self.directories(head, &request, reply)
            }
            Request::SetAttribute { .. }
            | Request::Attribute { .. }
            | Request::AttributeNames { .. }
            | Request::RemoveAttribute(_) => self.extended(head, &request, reply),
            Request::Lock { .. } | Request::Flush(..) => self.locks(&request, reply),
            other => self.files(head, other, reply),
        }
    }

    fn names(&self, head: &Head, request: Request<'_>, reply: &mut Reply) -> Result<()> {
        let (node, caller) = (head.node, Caller { user: head.user, group: head.group });
        let entry = match request {
            Request::Lookup(name) => match self.provider.lookup(node, name) {
                Err(Errno::NOENT) if self.caching.alone || self.caching.names => {
                    reply.no_entry(self.caching.valid);
                    return Ok(());
                }
                other => other?,
            },
            Request::Symlink { name, target } => {
                self.provider.make(node, name, New::Link { target }, caller)?
            }
            Request::Make { name, kind, mode } => {
                self.provider.make(node, name, New::Plain { kind, mode }, caller)?
            }
            Request::Link(target, name) => self.provider.link(target, node, name)?,
            Request::Remove(name, what) => return self.provider.remove(node, name, what),
            Request::Rename { from, to, how } => return self.provider.rename((node, from), to, how),
            Request::Create { name, mode, want } => {
                let want = self.readable(want);
                let (entry, handle) = self.provider.create((node, name), mode, want, caller)?;
                reply.entry(&entry, self.caching.valid);
                self.opened(entry.node, handle, reply);
                return Ok(());
            }
            _ => return Err(Errno::NOSYS),
        };
        reply.entry(&entry, self.caching.valid);
        Ok(())
    }

    fn files(&self, head: &Head, request: Request<'_>, reply: &mut Reply) -> Result<()> {
        let node = head.node;
        match request {
            Request::Attributes => {
                reply.attributes(&self.provider.attributes(node)?, self.caching.valid);
            }
            Request::Change(handle, change) => {
                reply.attributes(&self.provider.change(node, handle, &change)?, self.caching.valid);
            }
            Request::Readlink => reply.body().extend(self.provider.readlink(node)?),
            Request::Open(want) => {
                let want = self.readable(want);
                let handle = self.provider.open(node, want)?;
                self.opened(node, handle, reply);
            }
            Request::Read { handle, offset, size } => {
                let size = usize::try_from(size.min(MOST_READ)).unwrap_or(0);
                self.provider.read(handle, offset, size, reply.body())?;
            }
            Request::Write { handle, offset, bytes } => {
                let written = self.provider.write(handle, offset, bytes)?;
                reply.count(u32::try_from(written).unwrap_or(u32::MAX));
            }
            Request::Release(handle) => {
                self.provider.release(handle);
                self.backed.iter().for_each(|backed| backed.release(handle));
            }
            Request::Sync(handle) => self.provider.sync(handle)?,
            Request::SyncDirectory => {}
            Request::Room => reply.room(&self.provider.room_at(head.node)?),
            Request::Allocate { handle, how, offset, length } => {
                self.provider.allocate(handle, how, offset, length)?;
            }
            Request::Seek { handle, offset, what } => {
                reply.number(self.provider.seek(handle, offset, what)?);
            }
            Request::Copy { from, to, length } => {
                let copied = self.provider.copy(from, to, length)?;
                reply.count(u32::try_from(copied).unwrap_or(u32::MAX));
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn directories(&self, head: &Head, request: &Request<'_>, reply: &mut Reply) -> Result<()> {
        match *request {
            Request::OpenDirectory => {
                let handle = self.provider.open_directory(head.node)?;
                let flags = if self.caching.alone { KEEP_CACHE | CACHE_DIRECTORY } else { 0 };
                reply.opened(handle.0, flags, 0);
                Ok(())
            }
            Request::List { handle, from, size, plus } => {
                let most = usize::try_from(size).unwrap_or(0).min(MOST_LISTED);
                let from = self.list_own(from, most, plus, reply);
                match plus {
                    true => self.list_plus(head.node, (handle, from), most, reply),
                    false => self.provider.list(handle, from, &mut |listed| reply.listed(&listed, most)),
                }
            }
            Request::ReleaseDirectory(handle) => {
                self.provider.release_directory(handle);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// `.` and `..`, which no provider lists; gives where the provider goes on.
    fn list_own(&self, from: u64, most: usize, plus: bool, reply: &mut Reply) -> u64 {
        let own = [(&b"."[..], DOT), (b"..", DOTS)];
        let skipped = match from {
            0 => 0,
            DOT => 1,
            DOTS => 2,
            other => return other,
        };
        for (name, next) in own.into_iter().skip(skipped) {
            let listed = Listed { name, inode: UNKNOWN, kind: Kind::Directory, next };
            match plus {
                false => drop(reply.listed(&listed, most)),
                true if reply.has_room_for(&listed, most) => reply.listed_plus(&listed, None, Duration::ZERO),
                true => {}
            }
        }
        0
    }

    /// The entries are taken first: a provider may hold a lock while it lists, which a lookup needs.
    fn list_plus(
        &self,
        directory: Node,
        (handle, from): (Handle, u64),
        most: usize,
        reply: &mut Reply,
    ) -> Result<()> {
        let mut room = most;
        let mut taken: Vec<(Vec<u8>, Listed<'static>)> = Vec::new();
        self.provider.list(handle, from, &mut |listed| {
            let size = 128 + 24 + listed.name.len().next_multiple_of(8);
            let fits = size <= room;
            if fits {
                room -= size;
                let Listed { inode, kind, next, .. } = listed;
                taken.push((listed.name.to_vec(), Listed { name: b"", inode, kind, next }));
            }
            fits
        })?;
        for (name, listed) in &taken {
            let listed = Listed { name, ..*listed };
            if !reply.has_room_for(&listed, most) {
                break;
            }
            let entry = Name::new(name).and_then(|name| self.provider.lookup(directory, name)).ok();
            let inode = entry.as_ref().map_or(listed.inode, |entry| entry.attributes.inode);
            let listed = Listed { inode, ..listed };
            reply.listed_plus(&listed, entry.as_ref(), self.caching.valid);
        }
        Ok(())
    }

    fn extended(&self, head: &Head, request: &Request<'_>, reply: &mut Reply) -> Result<()> {
        let answer = |size: u32, value: Vec<u8>, reply: &mut Reply| match u32::try_from(value.len()) {
            Ok(length) if size == 0 => {
                reply.count(length);
                Ok(())
            }
            Ok(length) if length <= size => {
                reply.body().extend(value);
                Ok(())
            }
            _ => Err(Errno::RANGE),
        };
        match *request {
            Request::Attribute { name, size } => {
                answer(size, self.provider.attribute(head.node, name)?, reply)
            }
            Request::AttributeNames { size } => {
                let names = self.provider.attribute_names(head.node)?;
                let joined = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
                answer(size, joined, reply)
            }
            Request::SetAttribute { name, value, how } => {
                self.provider.set_attribute(head.node, name, value, how)
            }
            Request::RemoveAttribute(name) => self.provider.remove_attribute(head.node, name),
            _ => Err(Errno::NOSYS),
        }
    }

    fn locks(&self, request: &Request<'_>, reply: &mut Reply) -> Result<()> {
        match *request {
            _ if !self.provider.keeps_locks() => return Err(Errno::NOSYS),
            Request::Flush(handle, owner) => self.provider.unlock(handle, owner),
            Request::Lock { handle, lock, how: Locking::Find } => {
                reply.locked(self.provider.locked(handle, &lock)?);
            }
            Request::Lock { handle, lock, .. } => self.provider.set_lock(handle, &lock)?,
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// Where writes wait in the kernel's pages, it reads through files that are open for writing only.
    fn readable(&self, want: Want) -> Want {
        Want { read: want.read || self.caching.alone, append: want.append && !self.caching.alone, ..want }
    }

    fn opened(&self, node: Node, handle: Handle, reply: &mut Reply) {
        let is_known = self.caching.alone || self.provider.is_unchanged(handle);
        let keep = if is_known { KEEP_CACHE } else { 0 };
        let number = self.backed.as_ref().and_then(|backed| backed.open(node, handle, &*self.provider));
        match number {
            Some(number) => reply.opened(handle.0, PASSTHROUGH, number),
            None => reply.opened(handle.0, keep, 0),
        }
    }

    fn init(&self, (major, minor): (u32, u32), read_ahead: u32, flags: u64, reply: &mut Reply) -> Result<()> {
        if major != 7 || minor < 31 || self.begun.set(()).is_err() {
            return Err(Errno::PROTO);
        }
        let mut wanted = ability::ALWAYS;
        wanted |= if self.caching.alone { ability::ALONE } else { ability::SHARED };
        wanted |= if self.caching.alone || self.caching.names { ability::NAMES } else { 0 };
        if self.backed.is_some() && !self.caching.alone {
            wanted |= ability::PASSTHROUGH;
        }
        // A lock may be waited for as long as somebody holds it, which the kernel's time-out would end the mount for.
        wanted |= if self.provider.keeps_locks() { ability::LOCKS } else { ability::REQUEST_TIMEOUT };
        let used = wanted & flags;
        let has = |ability: u64| used & ability != 0;
        if has(ability::PASSTHROUGH) {
            self.backed.iter().for_each(Backed::enable);
        }
        let timeout = u16::try_from(self.patience.as_secs().saturating_mul(2)).unwrap_or(u16::MAX);
        let [low, high] =
            [used & u64::from(u32::MAX), used >> 32].map(|half| u32::try_from(half).unwrap_or(0));
        let body = reply.body();
        for number in [7, minor.min(41), read_ahead.min(READ_AHEAD), low] {
            body.put32(number);
        }
        body.put16(BACKGROUND);
        body.put16(BACKGROUND / 4 * 3);
        body.put32(MOST_WRITTEN);
        body.put32(1);
        body.put16(if has(ability::MAX_PAGES) { 256 } else { 0 });
        body.put16(0);
        body.put32(high);
        body.put32(u32::from(has(ability::PASSTHROUGH)));
        body.put16(if has(ability::REQUEST_TIMEOUT) { timeout } else { 0 });
        body.resize(body.len() + 22, 0);
        Ok(())
    }
}
