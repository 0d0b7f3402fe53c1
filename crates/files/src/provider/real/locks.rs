//! Locks that meet those of the host's programs.
//!
//! A lock of the whole file belongs to an open file, which is one here too. A lock of bytes belongs to a process and a file:
//! each such pair has an open file of its own, which is locked in its name and closed when the process closes the file.

use super::{Open, Real, lock};
use crate::provider::types::{Handle, Lock, LockKind, LockRange, Locked, Node, Result};
use airlock_linux::lock as ranges;
use rustix::{
    fs::{FlockOperation, OFlags},
    io::Errno,
};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

/// Most pairs of a process and a file that have locks at once.
const MOST_LOCKED: usize = 1024;

/// Open files that are locked, by file and owner.
#[derive(Default)]
pub(super) struct Locks(HashMap<(Node, u64), Arc<OwnedFd>>);

impl Locks {
    /// The owner's locks of a file go.
    pub(super) fn forget(&mut self, node: Node, owner: u64) {
        self.0.remove(&(node, owner));
    }

    /// Nobody has the file open.
    pub(super) fn closed(&mut self, node: Node) {
        self.0.retain(|(locked, _), _| *locked != node);
    }
}

impl Real {
    pub(super) fn lock(&self, handle: Handle, wanted: &Lock) -> Result<()> {
        let range = match wanted.what {
            Locked::Whole => return self.lock_whole(handle, wanted.kind),
            Locked::Range(range) => range,
        };
        let node = self.locked_node(handle)?;
        let Some(kind) = wanted.kind else {
            let known = lock(&self.locks).0.get(&(node, wanted.owner)).cloned();
            let Some(file) = known else { return Ok(()) };
            if range == LockRange::ALL {
                lock(&self.locks).forget(node, wanted.owner);
                return Ok(());
            }
            return ranges::set(file.as_fd(), range, None).map_err(number);
        };
        let file = self.lockable(node, wanted.owner, kind)?;
        ranges::set(file.as_fd(), range, Some(kind)).map_err(number)
    }

    pub(super) fn in_the_way(&self, handle: Handle, wanted: &Lock) -> Result<Option<(LockRange, LockKind)>> {
        let (Locked::Range(range), Some(kind)) = (wanted.what, wanted.kind) else { return Ok(None) };
        let file = self.lockable(self.locked_node(handle)?, wanted.owner, kind)?;
        ranges::in_the_way(file.as_fd(), range, kind).map_err(number)
    }

    fn lock_whole(&self, handle: Handle, kind: Option<LockKind>) -> Result<()> {
        let operation = match kind {
            None => FlockOperation::NonBlockingUnlock,
            Some(LockKind::Shared) => FlockOperation::NonBlockingLockShared,
            Some(LockKind::Exclusive) => FlockOperation::NonBlockingLockExclusive,
        };
        rustix::fs::flock(&*self.file(handle)?, operation)
    }

    fn locked_node(&self, handle: Handle) -> Result<Node> {
        match lock(&self.open).get(&handle) {
            Some(Open::File(_, node)) => Ok(*node),
            _ => Err(Errno::BADF),
        }
    }

    /// The open file that stands for an owner, opened if there is none. The kernel has seen to it that the owner may read
    /// or write what it locks.
    fn lockable(&self, node: Node, owner: u64, kind: LockKind) -> Result<Arc<OwnedFd>> {
        if let Some(known) = lock(&self.locks).0.get(&(node, owner)) {
            return Ok(known.clone());
        }
        let place = self.place(node)?;
        let only = match kind {
            LockKind::Shared => OFlags::RDONLY,
            LockKind::Exclusive => OFlags::WRONLY,
        };
        let opened = self.reopen(place.as_fd(), OFlags::RDWR);
        let file = Arc::new(opened.or_else(|_| self.reopen(place.as_fd(), only))?);
        let mut locks = lock(&self.locks);
        if locks.0.len() >= MOST_LOCKED {
            return Err(Errno::NOLCK);
        }
        Ok(locks.0.entry((node, owner)).or_insert(file).clone())
    }
}

fn number(err: io::Error) -> Errno {
    Errno::from_io_error(&err).unwrap_or(Errno::NOLCK)
}
