//! What the flows of one sandbox share: the buffer they are read through, and pipes.

use super::pipe::Pipe;
use crate::awake::Awake;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// One read brings at most this.
const BUFFER: usize = 64 * 1024;

/// One read brings at most this while much is waiting for ends that do not read.
const SMALL: usize = 8 * 1024;

/// How much waits before reads get small.
const MUCH: usize = 8 * 1024 * 1024;

/// More than this is not held back for looking at.
const HELD_MAX: usize = 16 * 1024 * 1024;

/// Pipes in use at once. An ordinary user may have 64 of a megabyte (`pipe-user-pages-soft`), for all sandboxes.
const PIPES: usize = 16;

/// Pipes that lie ready.
const SPARE: usize = 4;

/// Shared by the flows of one sandbox. Its size does not grow with their number.
#[derive(Debug)]
pub struct Pool {
    buffer: RefCell<Box<[u8]>>,
    /// Bytes that flows have taken and could not yet pass on, and those kept for looking at.
    waiting: Rc<Cell<usize>>,
    spare: RefCell<Vec<Pipe>>,
    pipes: Cell<usize>,
    /// Told of short pieces.
    pub(crate) awake: Awake,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new()
    }
}

impl Pool {
    /// An empty one.
    pub fn new() -> Pool {
        Pool {
            buffer: RefCell::new(vec![0; BUFFER].into_boxed_slice()),
            waiting: Rc::default(),
            spare: RefCell::new(Vec::new()),
            pipes: Cell::new(0),
            awake: Awake::default(),
        }
    }

    /// Bytes that were taken from one end of a flow and wait for the other.
    pub fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Pipes in use now.
    pub fn pipes(&self) -> usize {
        self.pipes.get()
    }

    /// Gives the buffer for one read, which must not wait.
    pub(crate) fn with_buffer<T>(&self, read: impl FnOnce(&mut [u8]) -> T) -> T {
        let size = if self.waiting.get() > MUCH { SMALL } else { BUFFER };
        let mut buffer = self.buffer.borrow_mut();
        read(buffer.get_mut(..size).unwrap_or_default())
    }

    pub(crate) fn hold(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_add(bytes));
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(bytes));
    }

    /// Counts what somebody else keeps of a flow.
    pub(crate) fn weight(&self) -> Weight {
        Weight { waiting: Rc::clone(&self.waiting), bytes: 0 }
    }

    /// Whether so much waits that nothing more may be held back for looking at.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.get() > HELD_MAX
    }

    /// An empty pipe, or none: the flow is then copied.
    pub(super) fn pipe(&self) -> Option<Pipe> {
        if self.pipes.get() >= PIPES {
            return None;
        }
        let pipe = self.spare.borrow_mut().pop().or_else(|| Pipe::new().ok())?;
        self.pipes.set(self.pipes.get() + 1);
        Some(pipe)
    }

    /// Takes a pipe back.
    pub(super) fn give_back(&self, pipe: Pipe) {
        self.pipes.set(self.pipes.get().saturating_sub(1));
        let mut spare = self.spare.borrow_mut();
        if pipe.is_empty() && spare.len() < SPARE {
            spare.push(pipe);
        }
    }
}

/// Bytes that count as waiting until it is dropped.
#[derive(Debug)]
pub(crate) struct Weight {
    waiting: Rc<Cell<usize>>,
    bytes: usize,
}

impl Weight {
    /// So many it is now.
    pub(crate) fn set(&mut self, bytes: usize) {
        let others = self.waiting.get().saturating_sub(self.bytes);
        self.waiting.set(others.saturating_add(bytes));
        self.bytes = bytes;
    }

    /// As [`Pool::is_full`].
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.get() > HELD_MAX
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.set(0);
    }
}
