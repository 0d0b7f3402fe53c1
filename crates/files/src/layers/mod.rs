//! Trees that a sandbox wrote, read and made by us: copied, packed into a portable form and unpacked.
//!
//! What is read here is hostile. No symbolic link is followed, no other file system entered; depth costs neither stack nor
//! descriptors. All of it is meant to run in a process that has the sandbox's ids and nothing else.
//!
//! - [`walk`]: one tree, entry by entry
//! - [`copy`]: the same tree again, with whiteouts, hard links, holes and attributes
//! - [`mod@archive`]: tar archives, read entry by entry
//! - [`compression`]: how layers are compressed
//! - [`pack`]: an OCI layer of it
//! - [`merge`]: several trees, one upon the other
//! - [`unpack`]: a tree of OCI layers
//! - [`layout`]: an OCI layout in one file

pub mod archive;
pub mod compression;
pub mod copy;
pub mod layout;
pub mod merge;
pub mod pack;
mod tree;
pub mod unpack;
pub mod walk;

use std::io;

/// What could not be done with a tree.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {name:?}")]
pub struct Error {
    action: &'static str,
    name: String,
    #[source]
    source: io::Error,
}

/// Names the step an error happened in.
fn failed<E: Into<io::Error>>(action: &'static str, name: &[u8]) -> impl FnOnce(E) -> Error {
    let name: String = String::from_utf8_lossy(name).chars().take(LONGEST_TOLD).collect();
    move |source| Error { action, name, source: source.into() }
}

/// Of a name that a sandbox chose, so much is told.
const LONGEST_TOLD: usize = 200;
