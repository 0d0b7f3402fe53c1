//! The bytes of a file. Zeros become holes.

use crate::layers::archive::{Entry, Reader, refused};
use rustix::fs::{fstatvfs, ftruncate};
use std::{
    fs::File,
    io::{self, BufRead},
    os::unix::fs::FileExt as _,
};

/// As many zeros, at a multiple of it, become a hole.
const HOLE: usize = 64 << 10;
const HOLE_BYTES: u64 = 64 << 10;
/// What is read at once may end or begin within a hole.
const SMALLEST: usize = 4 << 10;
/// How often the room on the disk is looked at.
const LOOK: u64 = 64 << 20;

/// Writes what the archive has of a file, which is empty.
pub(super) fn write<R: BufRead>(reader: &mut Reader<R>, entry: &Entry, file: &File) -> io::Result<()> {
    let mut end = 0;
    let mut looked = 0;
    for (offset, length) in &entry.pieces {
        let mut at = *offset;
        let mut left = *length;
        while left > 0 {
            let bytes = reader.bytes()?;
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let Some(bytes) = bytes.get(..most).filter(|bytes| !bytes.is_empty()) else {
                return Err(refused("it ends in the middle"));
            };
            end = write_some(file, bytes, at)?.unwrap_or(end);
            let count = u64::try_from(most).unwrap_or(left);
            at = at.checked_add(count).ok_or_else(|| refused("its size is no size"))?;
            left -= count;
            reader.pass(most);
            if at.saturating_sub(looked) > LOOK {
                looked = at;
                refuse_full(file)?;
            }
        }
    }
    if end < entry.size {
        ftruncate(file, entry.size)?;
    }
    Ok(())
}

/// Writes all but zeros. Gives where what was written ends, if anything was.
fn write_some(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<Option<u64>> {
    let mut end = None;
    while !bytes.is_empty() {
        let (full, zeros) = run(bytes, at);
        let (full, rest) = bytes.split_at_checked(full).unwrap_or((bytes, &[]));
        file.write_all_at(full, at)?;
        at += u64::try_from(full.len()).unwrap_or(0);
        end = if full.is_empty() { end } else { Some(at) };
        at += u64::try_from(zeros).unwrap_or(0);
        bytes = rest.get(zeros..).unwrap_or_default();
    }
    Ok(end)
}

/// How many bytes are to be written before the next hole, and how long that is.
fn run(bytes: &[u8], at: u64) -> (usize, usize) {
    let over = usize::try_from(at % HOLE_BYTES).unwrap_or(0);
    let (first, rest) = bytes.split_at_checked(HOLE - over).unwrap_or((bytes, &[]));
    let (mut full, mut zeros) = (0, 0);
    for chunk in std::iter::once(first).chain(rest.chunks(HOLE)) {
        match is_hole(chunk) {
            true => zeros += chunk.len(),
            false if zeros > 0 => break,
            false => full += chunk.len(),
        }
    }
    (full, zeros)
}

fn is_hole(chunk: &[u8]) -> bool {
    chunk.len() >= SMALLEST && chunk.iter().all(|byte| *byte == 0)
}

/// A disk is never filled to its end: others need it too.
fn refuse_full(file: &File) -> io::Result<()> {
    let found = fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    match bytes(found.f_bavail) < airlock_linux::disk::reserve(bytes(found.f_blocks)) {
        true => Err(io::Error::from(io::ErrorKind::StorageFull)),
        false => Ok(()),
    }
}
