//! A layer of a tree.

use super::Compression;
use crate::{digest::Digest, manifest::media};
use airlock_files::layers::{
    Error,
    pack::{Form, pack as pack_tree},
};
use serde::{Deserialize, Serialize};
use std::{io::Write, os::fd::BorrowedFd};

/// What a tree became.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// The digest of the blob.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
    /// The digest of the archive in it.
    pub diff: Digest,
    /// Entries in it.
    pub entries: u64,
    /// Sockets, and files whose names mean something else in a layer: they are not in it.
    pub left_out: u64,
    /// What kind of blob it is.
    pub media_type: String,
}

/// Packs what is below `top`: files, and whiteouts in the way of overlays. In a process with the ids of its files, they
/// are those that the layer tells. The same tree gives the same bytes.
pub fn pack(
    top: BorrowedFd<'_>,
    form: Form<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Packed, Error> {
    let packed = pack_tree(top, form, out, progress)?;
    let digest = |digits: &str| Digest::from_hex(digits).unwrap_or_else(|| Digest::of(b""));
    Ok(Packed {
        digest: digest(&packed.digest),
        size: packed.size,
        diff: digest(&packed.diff_id),
        entries: packed.entries,
        left_out: packed.left_out,
        media_type: media_type(form.compression).to_owned(),
    })
}

fn media_type(compression: Compression) -> &'static str {
    match compression {
        Compression::Plain => media::OCI_LAYER,
        Compression::Gzip => media::OCI_LAYER_GZIP,
        Compression::Zstd => media::OCI_LAYER_ZSTD,
    }
}
