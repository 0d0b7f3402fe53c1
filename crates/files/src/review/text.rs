//! The two texts of a change, and the lines in which they differ (pure but for reading the files).

use super::{
    Error,
    change::{Change, Changes, Kind, Seen},
    tree::Tree,
};
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};
use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    time::{Duration, Instant},
};

/// Larger files are summarised.
const LARGEST: u64 = 4 << 20;
/// A zero byte among the first ones makes a file binary, as git has it.
const LOOKED_AT: usize = 8000;
/// After this a coarser answer is given.
const LONGEST_SEARCH: Duration = Duration::from_millis(250);
/// Unchanged lines around those that differ.
const CONTEXT: usize = 3;

/// What a change is about, to be shown: one side each, or both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) was: Option<&'a Seen>,
    pub(super) is: Option<&'a Seen>,
}

/// The contents of a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// No contents differ.
    Nothing,
    /// Two texts; one that is not there is empty.
    Text { old: Vec<u8>, new: Vec<u8> },
    /// Not text.
    Binary,
    /// Too large to be compared line by line.
    Large,
}

/// Lines that differ, with some around them. Indices count from 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    pub(super) old: std::ops::Range<usize>,
    pub(super) new: std::ops::Range<usize>,
    pub(super) lines: Vec<Line>,
}

/// One line of a hunk: which one of the old or the new text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Same(usize),
    Removed(usize),
    Added(usize),
}

impl Changes {
    /// How many lines were added and removed, of all files that are text.
    pub fn lines(&self) -> (u64, u64) {
        let mut sum = (0, 0);
        for change in &self.list {
            let (added, removed) = self.lines_of(change).unwrap_or((0, 0));
            sum = (sum.0 + added, sum.1 + removed);
        }
        sum
    }

    /// How many lines of one change were added and removed; `None` where it is no text.
    pub fn lines_of(&self, change: &Change) -> Option<(u64, u64)> {
        if change.renamed_from.is_some() || change.renamed_to.is_some() {
            return Some((0, 0));
        }
        let mut sum = (0, 0);
        for part in parts(change) {
            match body(&self.tree, &change.path, part).ok()? {
                Body::Nothing => {}
                Body::Text { old, new } => {
                    let (added, removed) = count(&operations(&split(&old), &split(&new)));
                    sum = (sum.0 + added, sum.1 + removed);
                }
                Body::Binary | Body::Large => return None,
            }
        }
        Some(sum)
    }
}

/// Something that became something else is told as gone and new.
pub(super) fn parts(change: &Change) -> Vec<Part<'_>> {
    let (was, is) = (change.was.as_ref(), change.is.as_ref());
    match (was, is) {
        (Some(before), Some(after)) if before.kind != after.kind => {
            vec![Part { was, is: None }, Part { was: None, is }]
        }
        _ => vec![Part { was, is }],
    }
}

/// Reads both sides, each once and never more than [`LARGEST`].
pub(super) fn body(tree: &Tree, path: &Path, part: Part<'_>) -> Result<Body, Error> {
    let kind = part.is.or(part.was).map_or(Kind::Special, |seen| seen.kind);
    let failed = |source| Error::Io { tried: "read", path: path.to_owned(), source };
    match kind {
        Kind::Directory | Kind::Special => Ok(Body::Nothing),
        Kind::Link => {
            let old = part.was.map(|_| tree.link_on_host(path)).transpose()?.unwrap_or_default();
            let new = part.is.map(|seen| tree.link_inside(path, seen)).transpose()?.unwrap_or_default();
            Ok(Body::Text { old, new })
        }
        Kind::File => {
            let old = part.was.map(|_| tree.open_host(path)).transpose()?;
            let new = part.is.map(|seen| tree.open_inside(path, seen)).transpose()?;
            let old = old.map(read).transpose().map_err(failed)?.unwrap_or(Some(Vec::new()));
            let new = new.map(read).transpose().map_err(failed)?.unwrap_or(Some(Vec::new()));
            Ok(match (old, new) {
                (Some(old), Some(new)) if is_binary(&old) || is_binary(&new) => Body::Binary,
                (Some(old), Some(new)) if old == new => Body::Nothing,
                (Some(old), Some(new)) => Body::Text { old, new },
                _ => Body::Large,
            })
        }
    }
}

/// `None` if there is more than anyone reads.
fn read(file: File) -> io::Result<Option<Vec<u8>>> {
    let expected = usize::try_from(file.metadata()?.len().min(LARGEST)).unwrap_or(0);
    let mut bytes = Vec::with_capacity(expected + 1);
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok((u64::try_from(bytes.len()).unwrap_or(u64::MAX) <= LARGEST).then_some(bytes))
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0)
}

/// Lines with their ends.
pub(super) fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// What was done to the lines.
pub(super) fn operations(old: &[&[u8]], new: &[&[u8]]) -> Vec<DiffOp> {
    let deadline = Instant::now().checked_add(LONGEST_SEARCH);
    capture_diff_slices_deadline(Algorithm::Myers, old, new, deadline)
}

/// Lines added and removed.
pub(super) fn count(operations: &[DiffOp]) -> (u64, u64) {
    let mut sum = (0, 0);
    for operation in operations.iter().filter(|operation| operation.tag() != DiffTag::Equal) {
        let length = |range: std::ops::Range<usize>| u64::try_from(range.len()).unwrap_or(0);
        sum = (sum.0 + length(operation.new_range()), sum.1 + length(operation.old_range()));
    }
    sum
}

/// Lines that differ, in groups.
pub(super) fn hunks(operations: Vec<DiffOp>) -> Vec<Hunk> {
    group_diff_ops(operations, CONTEXT).iter().filter_map(|group| hunk(group)).collect()
}

fn hunk(group: &[DiffOp]) -> Option<Hunk> {
    let (first, last) = (group.first()?, group.last()?);
    let mut lines = Vec::new();
    for operation in group {
        let (tag, old, new) = operation.as_tag_tuple();
        match tag {
            DiffTag::Equal => lines.extend(old.map(Line::Same)),
            DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                lines.extend(old.map(Line::Removed));
                lines.extend(new.map(Line::Added));
            }
        }
    }
    Some(Hunk {
        old: first.old_range().start..last.old_range().end,
        new: first.new_range().start..last.new_range().end,
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a patch with these hunks makes of the old text.
    fn patched(old: &[&[u8]], new: &[&[u8]], hunks: &[Hunk]) -> Vec<u8> {
        let mut text = Vec::new();
        let mut at = 0;
        for hunk in hunks {
            text.extend(old[at..hunk.old.start].concat());
            for line in &hunk.lines {
                match line {
                    Line::Same(index) => text.extend(old[*index]),
                    Line::Added(index) => text.extend(new[*index]),
                    Line::Removed(_) => {}
                }
            }
            at = hunk.old.end;
        }
        text.extend(old[at..].concat());
        text
    }

    proptest! {
        #[test]
        fn hunks_make_the_new_text_of_the_old(old in "[ab\n]{0,80}", new in "[ab\n]{0,80}") {
            let (before, after) = (split(old.as_bytes()), split(new.as_bytes()));
            let hunks = hunks(operations(&before, &after));
            prop_assert_eq!(patched(&before, &after, &hunks), new.as_bytes());
        }
    }
}
