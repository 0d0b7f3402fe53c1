//! Signatures in files: those kept in the store, and a person's own.

use super::{
    MOST_SIGNATURES,
    payload::{Line, Signature},
};
use crate::{digest::Digest, store::Store};
use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// Longest file that is read.
const LONGEST: u64 = 4 << 20;

/// Keeps what was found good for a digest, so that it can be checked again without its registry.
pub fn keep(store: &Store, digest: &Digest, signatures: &[Signature]) -> io::Result<()> {
    let path = path(store, digest);
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    let mut all = read(store, digest);
    all.extend(signatures.iter().filter(|new| !all.contains(new)).cloned().collect::<Vec<_>>());
    let mut text = String::new();
    for signature in all.iter().rev().take(MOST_SIGNATURES) {
        text.push_str(&serde_json::to_string(&signature.to_line())?);
        text.push('\n');
    }
    let whole = folder.join(format!(".new-{}-{}", digest.hex(), std::process::id()));
    fs::File::create(&whole)?.write_all(text.as_bytes())?;
    fs::rename(&whole, &path)
}

/// What is kept for a digest.
pub(super) fn read(store: &Store, digest: &Digest) -> Vec<Signature> {
    read_file(&path(store, digest)).unwrap_or_default()
}

/// The signatures of a file: a line each, as `cosign download signature` prints them.
pub fn read_file(path: &Path) -> io::Result<Vec<Signature>> {
    let mut text = String::new();
    fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(MOST_SIGNATURES);
    let read = |line: &str| serde_json::from_str::<Line>(line).ok().as_ref().and_then(Signature::from_line);
    let found: Option<Vec<Signature>> = lines.map(read).collect();
    found.ok_or_else(|| {
        let why = "a line of it is no signature as `cosign download signature` prints it";
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

fn path(store: &Store, digest: &Digest) -> PathBuf {
    store.signatures().join(format!("{}.json", digest.hex()))
}
