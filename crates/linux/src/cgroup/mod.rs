//! Limits by control groups: version 2, version 1 and hosts that mix them, as root or in a delegated part.
//!
//! [`layout`] says what this host offers to this process, [`Layout::can`] whether a limit can be enforced and, if not, the fix.
//! [`Group::create`] makes the directories of one sandbox; its paths are known before anything runs, so that after a
//! kill -9 of the keeper anyone may clear them with [`remove_leftovers`].
//!
//! How the first process gets in decides what the start costs. Moving *another* process waits for a grace period of the
//! kernel (9 to 11 ms on an idle machine, per start). A thread that moves *itself* on version 1 costs 0.03 ms, and on version 2
//! a process can be born inside. So use [`Group::entries`] (the child writes `0` into each) and [`Group::clone_into_fd`];
//! [`Group::admit`] is for processes that exist already.
//!
//! ```no_run
//! use airlock_linux::cgroup::{Controller, Group, Limits, layout};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limits = Limits { memory: Some(512 << 20), pids: Some(256), ..Limits::default() };
//! let group = Group::create(&layout()?, "7f3a", &limits, &[Controller::Memory])?;
//! group.admit(rustix::process::getpid())?;
//! println!("killed for memory: {}", group.oom_kills());
//! # Ok(()) }
//! ```

mod cannot;
mod group;
mod layout;
mod leftovers;
mod make;
mod scope;
mod seat;
mod settings;
#[cfg(test)]
mod tests;

pub use cannot::{Cannot, Reason};
pub use group::{Error, Group, Limits};
pub use layout::{Controller, Hierarchy, Layout, Place, Version, layout, parse};
pub use leftovers::{RemoveLeftovers, remove_leftovers};
pub use scope::{UserManager, systemd_scope, user_manager};
