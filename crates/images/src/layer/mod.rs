//! Layers of images: unpacked into trees that overlays are built upon, and packed of what a sandbox changed.
//!
//! A layer is unpacked by a process that has the ids its files are to belong to and nothing else of this user's
//! ([`begin`]). What comes is hostile: see [`airlock_files::layers::unpack`] for what is refused and what is contained.
//! Several can be unpacked at once; each tells when it is done by a descriptor.
//!
//! - [`unpack`]: the work itself
//! - [`pack`]: a layer of a tree
//! - [`decoded`]: a layer is read, decompressed and hashed while what came of it is written

mod decoded;
mod pack;
mod unpack;

pub use airlock_files::layers::{
    compression::Compression,
    pack::{Below, Form},
    unpack::Told,
};
pub use pack::{Packed, pack};
pub(crate) use unpack::TRASH;
pub use unpack::{Error, TREE, Work, begin, remove, unpack};

use airlock_linux::idmap::IdMap;

/// Whose the files of unpacked layers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// A name for them, which can be that of a file.
    pub key: String,
    /// The ids themselves.
    pub map: IdMap,
}

/// What was left out of a layer, or changed, for a person to read.
pub fn words(told: &Told) -> Vec<String> {
    let mut words = Vec::new();
    let mut say = |count: u64, one: &str, many: &str, what: &str| match count {
        0 => {}
        1 => words.push(format!("1 {one} {what}")),
        count => words.push(format!("{count} {many} {what}")),
    };
    say(told.devices, "device node", "device nodes", "left out: a sandbox has its own");
    say(
        told.foreign,
        "file",
        "files",
        "of ids that a sandbox does not have: root's now, without set-id bits",
    );
    say(told.attributes, "extended attribute", "extended attributes", "left out");
    words
}

#[cfg(test)]
mod tests;
