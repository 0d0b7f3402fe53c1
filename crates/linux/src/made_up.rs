//! Files that the kernel makes up while they are read, such as those of `/proc`.
//!
//! ```
//! let status = airlock_linux::made_up::read("/proc/self/status")?;
//! assert!(status.starts_with(b"Name:"));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    fs::File,
    io::{self, Read as _},
};

/// Larger than most of them.
const USUAL: usize = 1 << 14;

/// Reads one whole, in few pieces: it does not say how long it will be, and each piece is made up anew.
///
/// # Errors
/// If it cannot be opened or read.
pub fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL);
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}
