//! Comparing contents.

use super::{
    Error,
    change::{Kind, Seen},
    tree::Tree,
};
use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Above this, the same size and the same time of change are taken for the same content.
const TOO_LARGE_TO_READ: u64 = 16 << 20;
const BLOCK: usize = 64 << 10;

/// Whether two things of the same kind hold the same.
pub(super) fn is_same(tree: &Tree, path: &Path, was: &Seen, is: &Seen) -> Result<bool, Error> {
    match was.kind {
        Kind::Directory => Ok(true),
        Kind::Special => Ok(false),
        Kind::Link => Ok(tree.link_on_host(path)? == tree.link_inside(path, is)?),
        Kind::File if was.size != is.size => Ok(false),
        Kind::File if was.size > TOO_LARGE_TO_READ && was.mtime == is.mtime => Ok(true),
        Kind::File => {
            let (host, inside) = (tree.open_host(path)?, tree.open_inside(path, is)?);
            are_same(host, inside).map_err(|source| Error::Io {
                tried: "read",
                path: path.to_owned(),
                source,
            })
        }
    }
}

fn are_same(mut one: File, mut other: File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0u8; BLOCK], vec![0u8; BLOCK]);
    loop {
        let (some, more) = (fill(&mut one, &mut left)?, fill(&mut other, &mut right)?);
        if some != more {
            return Ok(false);
        }
        if some.is_empty() {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
pub(super) fn fill<'a>(file: &mut File, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(buffer.get(..filled).unwrap_or_default())
}
