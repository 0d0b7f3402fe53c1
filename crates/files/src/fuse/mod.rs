//! The kernel's file system protocol, served for a provider.
//!
//! Messages are pure bytes ([`decode`], [`Reply`]), a [`Session`] answers them one at a time, and a [`Server`] reads them
//! from a device of the kernel's, or from a stream that somebody carries them over (a virtual machine's), on threads of its
//! own.
//!
//! ```no_run
//! use airlock_files::{fuse::Server, provider::{Caller, Memory}};
//! # fn mounted() -> std::os::fd::OwnedFd { unimplemented!() }
//! let server = Server::start(mounted(), std::sync::Arc::new(Memory::new(64 << 20, Caller::default())))?;
//! server.stop();
//! # Ok::<(), std::io::Error>(())
//! ```

mod backed;
mod channel;
mod decode;
mod pace;
mod reply;
mod request;
mod server;
mod session;
mod waiting;
mod wire;

pub use backed::Backing;
pub use channel::Inlet;
pub use decode::decode;
pub use reply::{ANSWER_HEAD, Reply};
pub use request::{HEAD, Head, Locking, Malformed, Request};
pub use server::{BUFFER, Server};
pub use session::{MOST_WRITTEN, Outcome, Session};
pub use waiting::Granted;
