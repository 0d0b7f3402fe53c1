//! Which changes may reach the host: what is protected stays, and what changed on the host meanwhile stops everything.

use super::{
    change::{Change, Changes, Kind, Seen},
    known::Known,
    tree::{Tree, look, open_below},
};
use crate::paths::Lists;
use rustix::fs::OFlags;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

/// What is known to judge by.
#[derive(Debug)]
pub struct Judge<'a> {
    /// What is protected.
    pub lists: &'a Lists,
    /// When the sandbox got its copy, in nanoseconds of the clock that file systems stamp with.
    pub since: i64,
    /// What earlier applies and undos wrote.
    pub known: &'a Known,
}

/// What becomes of each change.
#[derive(Debug, Default)]
pub struct Verdict {
    /// May be written.
    pub free: Vec<Change>,
    /// Protected, or not to be had without something that is.
    pub protected: Vec<Change>,
    /// Changed on the host since the sandbox got its copy.
    pub conflicts: Vec<PathBuf>,
    /// Git's own list of files, which git on the host has made anew: the host's stays.
    pub stale: Vec<Change>,
}

/// Whether protected paths are written too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protected {
    /// They are held back.
    HeldBack,
    /// They are written like the others.
    Included,
}

impl Judge<'_> {
    /// Judges every change.
    pub fn judge(&self, changes: &Changes, protected: Protected) -> Verdict {
        let mut held = BTreeSet::new();
        if protected == Protected::HeldBack {
            let is_held = |change: &&Change| self.is_protected(&changes.tree, change);
            held.extend(changes.list.iter().filter(is_held).map(|change| change.path.clone()));
        }
        let mut verdict = Verdict::default();
        for change in &changes.list {
            if is_bound(change, &held) {
                verdict.protected.push(change.clone());
                continue;
            }
            if self.is_conflict(&changes.tree, change) {
                if is_index_alone(changes, &change.path) {
                    verdict.stale.push(change.clone());
                    continue;
                }
                verdict.conflicts.push(change.path.clone());
            }
            verdict.free.push(change.clone());
        }
        verdict
    }

    /// Whether the host would execute or obey it.
    pub fn is_protected(&self, tree: &Tree, change: &Change) -> bool {
        let is_directory =
            |seen: &Option<Seen>| seen.as_ref().is_none_or(|seen| seen.kind == Kind::Directory);
        self.lists.is_protected(&change.path)
            || (self.lists.names_git(&change.path)
                && !(is_directory(&change.was) && is_directory(&change.is)))
            || is_of_bare_repository(tree, &change.path)
    }

    /// Whether the host's file changed since the sandbox got its copy.
    pub fn is_conflict(&self, tree: &Tree, change: &Change) -> bool {
        let is_later = |seen: &Seen| nanoseconds(seen.ctime) > self.since;
        match (&change.was, &change.is) {
            (Some(was), Some(is)) if was.kind == Kind::Directory && is.kind == Kind::Directory => {
                // What is made or removed in a directory stamps both times; only a change of its own stamps one.
                is_later(was) && was.ctime != was.mtime && !self.known.has(&change.path, was)
            }
            (Some(was), _) if was.kind == Kind::Directory => false,
            (Some(was), _) => is_later(was) && !self.known.has(&change.path, was),
            // It was made of a file that the host no longer has; or it was renamed inside.
            (None, _) if change.has_origin && change.renamed_from.is_none() => {
                nearest_parent(tree, &change.path)
                    .is_none_or(|(path, parent)| is_later(&parent) && !self.known.has(&path, &parent))
            }
            (None, _) => false,
        }
    }
}

/// Git's list of files (`.git/index`) where no branch changed. Every `git status` on either side may write it anew, so that a
/// conflict about it says nothing.
fn is_index_alone(changes: &Changes, path: &Path) -> bool {
    let Some(git) = path.parent().filter(|git| git.ends_with(".git")) else { return false };
    let branches = [git.join("HEAD"), git.join("refs"), git.join("packed-refs")];
    path.file_name() == Some(OsStr::new("index"))
        && !changes.list.iter().any(|change| branches.iter().any(|branch| change.path.starts_with(branch)))
}

/// A path at, below or above one that is held back. Above only where it would go with it.
fn is_bound(change: &Change, held: &BTreeSet<PathBuf>) -> bool {
    if change.path.ancestors().any(|above| held.contains(above)) {
        return true;
    }
    let stays_directory = change.is.as_ref().is_some_and(|is| is.kind == Kind::Directory);
    let was_directory = change.was.as_ref().is_some_and(|was| was.kind == Kind::Directory);
    let mut below = held.range(change.path.clone()..);
    was_directory && !stays_directory && below.next().is_some_and(|path| path.starts_with(&change.path))
}

/// A directory that git takes for a repository without being called `.git`: its settings and hooks are obeyed in it.
fn is_of_bare_repository(tree: &Tree, path: &Path) -> bool {
    let obeyed = ["config", "hooks", "config.worktree", "commondir"];
    path.ancestors().any(|part| {
        let is_obeyed = part.file_name().and_then(OsStr::to_str).is_some_and(|name| {
            let name = name.to_lowercase();
            obeyed.contains(&name.as_str())
        });
        is_obeyed && part.parent().is_some_and(|directory| is_bare_repository(tree, directory))
    })
}

fn is_bare_repository(tree: &Tree, directory: &Path) -> bool {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let sides: Vec<_> = std::iter::once(tree.host())
        .chain(tree.layers().iter().map(|layer| layer.as_fd()))
        .filter_map(|side| {
            open_below(side, directory.as_os_str(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).ok()
        })
        .collect();
    ["HEAD", "objects", "refs"]
        .iter()
        .all(|name| sides.iter().any(|side| matches!(look(side.as_fd(), OsStr::new(name)), Ok(Some(_)))))
}

fn nearest_parent(tree: &Tree, path: &Path) -> Option<(PathBuf, Seen)> {
    path.ancestors().skip(1).find_map(|parent| {
        let name = if parent.as_os_str().is_empty() { OsStr::new(".") } else { parent.as_os_str() };
        let opened =
            open_below(tree.host(), name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).ok()?;
        let stat = rustix::fs::fstat(&opened).ok()?;
        Some((parent.to_owned(), Seen::new(&stat, 0)))
    })
}

fn nanoseconds((seconds, nanoseconds): (i64, u32)) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds))
}
