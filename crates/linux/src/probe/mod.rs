//! What this kernel and this host allow, found out without changing anything.
//!
//! - [`switches`]: settings that can be read
//! - [`programs`]: programs of the host a sandbox needs
//! - [`devices`]: device nodes that can be opened
//! - [`place`]: the file system a directory lies on
//! - [`nesting`]: whether this is a container, and how deep
//! - [`trial`]: building most of a sandbox in a child that is gone afterwards
//!
//! ```
//! use airlock_linux::probe::switches::Switches;
//! let switches = Switches::read();
//! if switches.max_user_namespaces == Some(0) {
//!     println!("user namespaces are switched off");
//! }
//! ```

pub mod devices;
pub mod nesting;
pub mod place;
pub mod programs;
mod steps;
pub mod switches;
pub mod trial;

use std::io;

/// What the kernel said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It works.
    Yes,
    /// It does not.
    No(No),
    /// It could not be asked, because something before it failed.
    Unasked,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct No {
    /// The error number, 0 where there is none.
    pub errno: i32,
    /// In words.
    pub said: String,
}

impl Answer {
    /// Whether it works.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        *self == Answer::Yes
    }

    /// The refusal, if it is one.
    #[must_use]
    pub fn no(&self) -> Option<&No> {
        match self {
            Answer::No(no) => Some(no),
            Answer::Yes | Answer::Unasked => None,
        }
    }
}

impl No {
    /// Whether the kernel has it but does not let this process.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        [libc::EPERM, libc::EACCES].contains(&self.errno)
    }

    /// Whether it is not there at all.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        [libc::ENOENT, libc::ENXIO, libc::ENODEV].contains(&self.errno)
    }
}

impl<T> From<io::Result<T>> for Answer {
    fn from(result: io::Result<T>) -> Answer {
        match result {
            Ok(_) => Answer::Yes,
            Err(err) => Answer::No(No::from(&err)),
        }
    }
}

impl From<&io::Error> for No {
    fn from(err: &io::Error) -> No {
        let text = err.to_string();
        // Without the number that the standard library appends.
        let said = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
        No { errno: err.raw_os_error().unwrap_or(0), said }
    }
}
