//! Files that the kernel reads and writes by itself, since it knows which file of this host is behind (FUSE passthrough,
//! Linux 6.9; it takes files from host root only).
//!
//! All that have a file open use it in the same way: the kernel does not mix the two. So the first of them decides.

use crate::provider::{Handle, Node, Provider};
use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Makes files known to the kernel which it may read and write by itself.
pub trait Backing: Send + Sync {
    /// Gives the kernel's number of the file.
    fn open(&self, file: OwnedFd) -> std::io::Result<u32>;

    /// The kernel needs the number no more.
    fn close(&self, number: u32);
}

/// Which open files the kernel reads and writes by itself.
pub(super) struct Backed {
    backing: Box<dyn Backing>,
    is_enabled: AtomicBool,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    nodes: HashMap<Node, Known>,
    handles: HashMap<Handle, Node>,
}

struct Known {
    /// The kernel's number; none where we read and write for it.
    number: Option<u32>,
    opens: u64,
}

impl Backed {
    pub(super) fn new(backing: Box<dyn Backing>) -> Backed {
        Backed { backing, is_enabled: AtomicBool::new(false), open: Mutex::default() }
    }

    /// The kernel can.
    pub(super) fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    /// The kernel's number of the file behind a handle that was just opened: the same for all that have the node open.
    pub(super) fn open(&self, node: Node, handle: Handle, provider: &dyn Provider) -> Option<u32> {
        if !self.is_enabled.load(Ordering::Relaxed) {
            return None;
        }
        let mut open = self.lock();
        let number = match open.nodes.get_mut(&node) {
            Some(known) => {
                known.opens += 1;
                known.number
            }
            None => {
                let number = provider.backing(handle).and_then(|file| self.make_known(file, &open));
                open.nodes.insert(node, Known { number, opens: 1 });
                number
            }
        };
        open.handles.insert(handle, node);
        number
    }

    #[cfg(test)]
    pub(super) fn is_used(&self) -> bool {
        self.lock().nodes.values().any(|known| known.number.is_some())
    }

    fn make_known(&self, file: OwnedFd, open: &Open) -> Option<u32> {
        let number = self.backing.open(file).ok();
        if number.is_none() && open.nodes.is_empty() {
            // It will not take the next one either: it wants another user, or another file system below.
            self.is_enabled.store(false, Ordering::Relaxed);
        }
        number
    }

    pub(super) fn release(&self, handle: Handle) {
        let mut open = self.lock();
        let Some(node) = open.handles.remove(&handle) else { return };
        let Some(known) = open.nodes.get_mut(&node) else { return };
        known.opens = known.opens.saturating_sub(1);
        if known.opens > 0 {
            return;
        }
        let number = open.nodes.remove(&node).and_then(|known| known.number);
        number.into_iter().for_each(|number| self.backing.close(number));
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
