//! A pipe that a flow's bytes pass through inside the kernel.

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Smaller pipes are not worth it.
const SIZE: usize = 1 << 20;

/// One pipe, and how much is in it.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    filled: usize,
}

impl Pipe {
    /// A pipe of a megabyte; an error where this user has too many already.
    pub(super) fn new() -> io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        fcntl_setpipe_size(&write, SIZE)?;
        Ok(Pipe { read, write, filled: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Takes what `source` has. To be called while the pipe is empty, so that "would block" can only mean the source.
    pub(super) fn fill(&mut self, source: impl AsFd) -> io::Result<usize> {
        let moved = splice(source, None, &self.write, None, SIZE, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?;
        self.filled += moved;
        Ok(moved)
    }

    /// Gives `sink` what it takes.
    pub(super) fn drain(&mut self, sink: impl AsFd) -> io::Result<usize> {
        let moved =
            splice(&self.read, None, sink, None, self.filled, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?;
        self.filled = self.filled.saturating_sub(moved);
        Ok(moved)
    }
}
