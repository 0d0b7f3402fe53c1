//! What a machine's kernel knows of its files, so that a copy of the machine goes on with it: numbers of nodes and of open files,
//! and the names they stand for.
//!
//! A file that has no name any more, or has another kind at its name, is lost to the copy: whoever uses it is told that
//! it is stale. Locks are not carried over.

use super::{Open, Real, lock};
use crate::provider::types::{Handle, Kind, Node, Result};
use rustix::fs::OFlags;
use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, atomic::Ordering},
};

/// A node: its number, its parent's, its name there, its kind (bits of a mode), how often it was looked up, and whether nothing in it
/// is shown.
pub type KnownNode = (u64, u64, Vec<u8>, u32, u64, bool);
/// An open file: its number, its node's, and its flags.
pub type KnownOpen = (u64, u64, u32);

/// Everything a kernel knows of what is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Nodes, but for the root.
    pub nodes: Vec<KnownNode>,
    /// Open files and directories.
    pub open: Vec<KnownOpen>,
    /// The last numbers that were given to a node and to an open file.
    pub last: (u64, u64),
}

/// Flags of an open file that count.
const KEPT: OFlags = OFlags::RWMODE.union(OFlags::APPEND);

impl Real {
    /// What the kernel that is served knows now.
    pub fn known(&self) -> Known {
        // Who may not act finds no name, and knows nothing.
        let _ = self.reach.act();
        let open = lock(&self.open);
        let mut open: Vec<KnownOpen> = open
            .iter()
            .map(|(handle, open)| match open {
                Open::File(file, node) => {
                    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::RDONLY) & KEPT;
                    (handle.0, node.0, flags.bits())
                }
                Open::Directory(_, node) | Open::Sealed(node) => (handle.0, node.0, 0),
            })
            .collect();
        open.sort_unstable();
        let (nodes, last) = lock(&self.nodes).known();
        Known { nodes, open, last: (last, self.next.load(Ordering::Relaxed)) }
    }

    /// As [`Real::whole`], for a kernel that knows this already.
    pub fn resumed(root: OwnedFd, known: &Known) -> Result<Real> {
        let real = Real::whole(root)?;
        real.reach.act()?;
        lock(&real.nodes).adopt(&known.nodes, known.last.0)?;
        real.next.store(known.last.1, Ordering::Relaxed);
        for (handle, node, flags) in known.open.iter().take(real.most_open) {
            if let Ok(open) = real.reopened(Node(*node), OFlags::from_bits_retain(*flags) & KEPT) {
                lock(&real.nodes).pin(Node(*node));
                lock(&real.open).insert(Handle(*handle), open);
            }
        }
        Ok(real)
    }

    fn reopened(&self, node: Node, flags: OFlags) -> Result<Open> {
        let place = self.place(node)?;
        let (kind, is_sealed) = {
            let nodes = lock(&self.nodes);
            (nodes.kind(node)?, nodes.is_sealed(node))
        };
        Ok(match kind {
            _ if is_sealed => Open::Sealed(node),
            Kind::Directory => {
                let directory = self.reopen(place.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
                Open::Directory(Arc::new(Mutex::new(directory)), node)
            }
            _ => Open::File(Arc::new(self.reopen(place.as_fd(), flags)?), node),
        })
    }
}
