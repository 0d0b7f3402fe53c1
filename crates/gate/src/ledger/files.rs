//! The files of one ledger: `ledger.jsonl` is written, `ledger.1.jsonl` is the one before it, and so on.
//!
//! The oldest file stays for ever, so that nothing that comes later can drive out how it began. When there is no room, the
//! second oldest is dropped, and a gap is left behind the oldest.

use super::lines::{Hex, Lines, hash};
use rustix::fs::OFlags;
use serde::Deserialize;
use std::{
    fs::{self, File},
    io::{self, BufReader, ErrorKind, Read, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Numbers that are looked for when a ledger is read.
const MOST: usize = 16;

/// Where the end of a file is looked for first.
const TAIL: u64 = 128 * 1024;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of one file.
    pub(super) bytes: u64,
    /// Files, the current one and the oldest among them; at least three.
    pub(super) files: usize,
}

/// 64 MB: about 200,000 records.
pub(super) const BOUNDS: Bounds = Bounds { bytes: 16 * 1024 * 1024, files: 4 };

/// What a writer goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    /// The number of the last record.
    pub(super) seq: u64,
    /// The hash of the last line.
    pub(super) head: Hex,
    /// Bytes up to the last line end.
    pub(super) length: u64,
    /// Bytes after it.
    pub(super) torn: u64,
}

#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// The file of this number; 0 is the current one.
pub(super) fn path(folder: &Path, number: usize) -> PathBuf {
    match number {
        0 => folder.join("ledger.jsonl"),
        _ => folder.join(format!("ledger.{number}.jsonl")),
    }
}

/// Opens the current file for adding to it; made if it is missing.
pub(super) fn open_for_append(folder: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path(folder, 0))
}

/// Opens a file for reading; `None` if there is none.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) => Err(io::Error::new(ErrorKind::InvalidInput, "not a file")),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Every file that is younger than `known` (all without it), the oldest first.
///
/// They are opened from the youngest on: a rotation meanwhile can only show a file twice, which is noticed, and hides none.
pub(super) fn open_since(folder: &Path, known: Option<&File>) -> io::Result<Vec<(PathBuf, File)>> {
    // Where the known one was dropped meanwhile, the oldest is still there, and is not younger.
    let known_first = known.and_then(first_seq_of);
    let known = known.map(identity).transpose()?;
    let mut found: Vec<(PathBuf, File)> = Vec::new();
    for number in 0..MOST {
        let path = path(folder, number);
        let Some(file) = open(&path)? else { continue };
        let this = identity(&file)?;
        if Some(this) == known {
            break;
        }
        let seen = found.iter().map(|(_, other)| identity(other)).collect::<io::Result<Vec<_>>>()?;
        let is_older =
            known_first.is_some_and(|known| first_seq_of(&file).is_some_and(|first| first < known));
        if !seen.contains(&this) && !is_older {
            found.push((path, file));
        }
    }
    found.reverse();
    Ok(found)
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|of| (of.dev(), of.ino()))
}

/// Whether this folder has a ledger.
pub(super) fn are_in(folder: &Path) -> bool {
    (0..=1).any(|number| fs::symlink_metadata(path(folder, number)).is_ok())
}

/// The numbers that have a file, the youngest first.
pub(super) fn numbers(folder: &Path) -> impl Iterator<Item = usize> {
    (0..MOST).filter(move |number| fs::symlink_metadata(path(folder, *number)).is_ok())
}

/// Makes room for a new current file: every file but the oldest moves up by one; the second oldest is dropped if no number
/// is free.
pub(super) fn shift(folder: &Path, bounds: Bounds) -> io::Result<()> {
    let top = first_free(folder, bounds).unwrap_or(last(bounds) - 1);
    for number in (0..top).rev() {
        match fs::rename(path(folder, number), path(folder, number + 1)) {
            Err(err) if err.kind() != ErrorKind::NotFound => return Err(err),
            _ => {}
        }
    }
    Ok(())
}

/// Records that [`shift`] will drop, and the number of the first that it keeps: of the oldest file while none was dropped,
/// else of the one behind it (0 if it cannot be told).
pub(super) fn about_to_drop(folder: &Path, bounds: Bounds) -> (u64, u64) {
    let first = |number| first_seq(&path(folder, number));
    let last = last(bounds);
    if first(last).is_none() {
        return (0, (0..last).rev().find_map(first).unwrap_or(0));
    }
    let second = (0..last).rev().find_map(first);
    if first_free(folder, bounds).is_some() {
        return (0, second.unwrap_or(0));
    }
    match (second, (0..last - 1).rev().find_map(first)) {
        (Some(dropped), Some(kept)) => (kept.saturating_sub(dropped), kept),
        (_, kept) => (0, kept.unwrap_or(0)),
    }
}

/// The number of the oldest file, once there are so many.
fn last(bounds: Bounds) -> usize {
    bounds.files.saturating_sub(1).max(2)
}

fn first_free(folder: &Path, bounds: Bounds) -> Option<usize> {
    (1..=last(bounds)).find(|number| fs::symlink_metadata(path(folder, *number)).is_err())
}

fn first_seq(path: &Path) -> Option<u64> {
    first_seq_of(&open(path).ok()??)
}

fn first_seq_of(file: &File) -> Option<u64> {
    let line = Lines::new(BufReader::new(FromStart { file, at: 0 })).next_line().ok()??;
    seq_of(&line.text)
}

/// Reads a file without moving its offset.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn seq_of(line: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Numbered>(line).ok().map(|numbered| numbered.seq)
}

/// Where a ledger ends; `None` if it has no line yet.
pub(super) fn end(folder: &Path) -> io::Result<Option<End>> {
    // A sandbox that starts has none: one look, and not one for each number.
    if !has_any(folder)? {
        return Ok(None);
    }
    let mut torn = 0;
    for number in 0..MOST {
        let Some(mut file) = open(&path(folder, number))? else { continue };
        let found = end_of(&mut file)?;
        // Only the current file may be cut; one before it is over.
        let here = if number == 0 { found.torn } else { 0 };
        torn += here;
        if found.length > 0 {
            let length = if number == 0 { found.length } else { 0 };
            return Ok(Some(End { length, torn, ..found }));
        }
    }
    Ok((torn > 0).then(|| End { seq: 0, head: hash(b""), length: 0, torn }))
}

fn has_any(folder: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(folder) {
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        if entry?.file_name().as_encoded_bytes().starts_with(b"ledger.") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn end_of(file: &mut File) -> io::Result<End> {
    let size = file.metadata()?.len();
    let from = size.saturating_sub(TAIL);
    if from > 0
        && let Some(end) = scan(file, from)?
    {
        return Ok(end);
    }
    let whole = scan(file, 0)?;
    Ok(whole.unwrap_or(End { seq: 0, head: hash(b""), length: 0, torn: size }))
}

/// Reads on from an offset. `None` if no line is there, or no record among the lines of a part.
fn scan(file: &mut File, from: u64) -> io::Result<Option<End>> {
    file.seek(SeekFrom::Start(from))?;
    let size = file.metadata()?.len();
    let mut lines = Lines::new(BufReader::new(Read::take(&*file, size.saturating_sub(from))));
    if from > 0 {
        lines.next_line()?;
    }
    let (mut end, mut numbered) = (None, false);
    let mut seq = 0;
    while let Some(line) = lines.next_line()? {
        // A line that is no record counts as one: the chain goes on over it, and whoever verifies sees it.
        let found = seq_of(&line.text);
        numbered |= found.is_some();
        seq = found.unwrap_or(seq + 1);
        end = Some(line.hash);
    }
    let torn = lines.unfinished();
    let is_known = numbered || from == 0;
    Ok(end.filter(|_| is_known).map(|head| End { seq, head, length: size - torn, torn }))
}
