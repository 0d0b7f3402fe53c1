//! Files across the wall.
//!
//! | module | holds |
//! |---|---|
//! | [`paths`] | which paths of a workspace are protected or hidden (pure) |
//! | [`review`] | what a sandbox changed in its copy of the workspace: changes, diff, apply, undo |
//! | [`layers`] | trees that a sandbox wrote: copied, packed and unpacked |
//! | [`remove`] | a tree is deleted, whatever is in it |
//! | [`provider`] | what serves a programmable mount: memory, a directory of the host, and what is built of others |
//! | [`fuse`] | the kernel's file system protocol, served for a provider |
//! | [`within`] | work on a sandbox's files, in a process that has its ids and nothing else |

pub mod fuse;
#[cfg(feature = "trees")]
pub mod layers;
pub mod paths;
pub mod provider;
pub mod remove;
#[cfg(feature = "trees")]
pub mod review;
#[cfg(feature = "trees")]
pub mod within;
