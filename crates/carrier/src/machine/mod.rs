//! The end in the machine: `/init`.

#[cfg_attr(not(test), expect(dead_code, reason = "nobody mounts them yet"))]
mod files;

use std::io;

/// Runs until the guest has ended.
pub(crate) fn run() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
