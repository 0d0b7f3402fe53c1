//! The end on the host: PID 1 of the sandbox's namespaces.

use std::io;

/// Runs until the keeper or the machine is gone.
pub(crate) fn run() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
