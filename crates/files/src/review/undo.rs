//! Taking the last apply back: every path is again what it was, content, mode and time.

use super::{
    Error,
    act::{duplicate, failed, parent_of},
    change::{Kind, Seen},
    journal::{Journal, Journals, Old, OldKind, Record, What},
    known::{Known, Mark},
    place,
    recover::{Act, acts},
    tree::Tree,
};
use rustix::{
    fs::{Mode, mkdirat},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

/// What an undo did.
#[derive(Debug, Default)]
pub struct Undone {
    /// Paths that are again what they were.
    pub done: Vec<PathBuf>,
    /// Directories that the apply made and that are not empty.
    pub kept: Vec<PathBuf>,
}

/// What is done about paths that changed since they were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Nothing is undone at all.
    Refuse,
    /// They are replaced too.
    Replace,
}

impl Journals {
    /// Takes the last apply back; `None` if there is none.
    pub fn undo(&mut self, tree: &Tree, since: Since) -> Result<Option<Undone>, Error> {
        let Some((mut journal, records)) = self.last()? else { return Ok(None) };
        self.settle(tree, &mut journal, &records)?;
        let Some((mut journal, records)) = self.last()? else { return Ok(None) };
        let mut pending = acts(&records);
        pending.retain(|act| act.done.is_some() && !act.is_undone);
        if since == Since::Refuse {
            check(tree, &pending, &self.known)?;
        }
        let mut undone = Undone::default();
        let mut times = Vec::new();
        let mut parents = BTreeSet::new();
        for act in pending.iter().rev() {
            let (parent, name) = parent_of(tree, &act.path)?;
            match take_back(&journal, act, &parent, &name) {
                Ok(()) => undone.done.push(act.path.clone()),
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                    undone.kept.push(act.path.clone());
                }
                Err(err) => {
                    self.save_known()?;
                    return Err(err);
                }
            }
            journal.write(&Record::Undone { act: act.number })?;
            if let Ok(Some(seen)) = place::seen(parent.as_fd(), &name) {
                self.known.note(&act.path, Mark::of(&seen));
                let was = act.old.as_ref().filter(|old| old.kind == OldKind::Directory);
                times.extend(was.map(|old| (act.path.clone(), old.mtime)));
            }
            parents.extend(act.path.parent().map(PathBuf::from));
        }
        // What was put into directories has stamped them.
        for (path, mtime) in times {
            if let Ok(directory) = place::open_directory(tree.host(), &path) {
                place::set_mtime(directory.as_fd(), mtime).map_err(failed("set the time of", &path))?;
                parents.insert(path);
            }
        }
        self.note_parents(tree, &parents);
        self.save_known()?;
        journal.remove()?;
        Ok(Some(undone))
    }
}

/// Refuses what somebody else changed since. Of several acts on a path the last one counts.
fn check(tree: &Tree, pending: &[Act], known: &Known) -> Result<(), Error> {
    let mut seen_paths = BTreeSet::new();
    let mut changed = Vec::new();
    for act in pending.iter().rev().filter(|act| seen_paths.insert(&act.path)) {
        let stands = match parent_of(tree, &act.path) {
            Ok((parent, name)) => {
                place::seen(parent.as_fd(), &name).map_err(Error::on("look at", &act.path))?
            }
            // A directory above it went with the apply, and comes back before it.
            Err(_) => None,
        };
        // An undo of a later apply may have put it back.
        let is_known = stands.as_ref().is_some_and(|seen| known.has(&act.path, seen));
        if !is_known && !is_ours(act, stands.as_ref()) {
            changed.push(act.path.clone());
        }
    }
    match changed.is_empty() {
        true => Ok(()),
        false => Err(Error::Changed { paths: changed }),
    }
}

fn is_ours(act: &Act, stands: Option<&Seen>) -> bool {
    if is_back(act, stands) {
        return true;
    }
    match (act.what, stands) {
        (What::Remove, None) => true,
        (What::Remove, Some(_)) | (What::Put | What::Mode, None) => false,
        (What::Put | What::Mode, Some(seen)) => {
            let mark = act.done.flatten();
            let is_same = |mark: Mark| {
                mark.inode == seen.inode && (seen.kind == Kind::Directory || mark == Mark::of(seen))
            };
            mark.is_some_and(is_same)
        }
    }
}

/// Whether the old state stands there already: an undo was interrupted just after it.
fn is_back(act: &Act, stands: Option<&Seen>) -> bool {
    match (&act.old, stands) {
        (Some(old), Some(seen)) => match old.kind {
            OldKind::Directory => {
                seen.kind == Kind::Directory && (act.what != What::Mode || seen.mode == old.mode)
            }
            _ => old.looks_like(seen),
        },
        (None, None) => true,
        _ => false,
    }
}

fn take_back(journal: &Journal, act: &Act, parent: &OwnedFd, name: &OsStr) -> Result<(), Error> {
    let on = |errno| Error::on("restore", &act.path)(errno);
    match (act.what, &act.old) {
        (What::Mode, Some(old)) => place::set_mode(parent.as_fd(), name, old.mode).map_err(on),
        (What::Mode, None) => Ok(()),
        (What::Put, None) => clear(parent, name).map_err(on),
        (What::Remove, None) => Ok(()),
        (What::Put | What::Remove, Some(old)) if old.kind == OldKind::Directory => {
            make_directory(parent, name, act, old).map_err(on)
        }
        (What::Put | What::Remove, Some(_)) => {
            let temporary = OsString::from(&act.temporary);
            let stands = place::seen(parent.as_fd(), name).map_err(on)?;
            let beside = place::seen(parent.as_fd(), &temporary).map_err(on)?;
            let is_kept = std::fs::symlink_metadata(journal.saved(act.number)).is_ok();
            if !is_kept && beside.is_none() && is_back(act, stands.as_ref()) {
                return Ok(());
            }
            bring(journal, act, parent, &temporary)?;
            super::interruption();
            if let Some(seen) = place::seen(parent.as_fd(), name).map_err(on)?
                && seen.kind == Kind::Directory
            {
                place::remove_directory(parent.as_fd(), name).map_err(on)?;
            }
            rustix::fs::renameat(parent, &temporary, parent, name).map_err(on)
        }
    }
}

/// Removes what was put where nothing was.
fn clear(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match place::seen(parent.as_fd(), name)? {
        Some(seen) if seen.kind == Kind::Directory => place::remove_directory(parent.as_fd(), name),
        Some(_) => place::unlink(parent.as_fd(), name),
        None => Ok(()),
    }
}

fn make_directory(parent: &OwnedFd, name: &OsStr, act: &Act, old: &Old) -> Result<(), Errno> {
    let temporary = OsStr::new(&act.temporary);
    let _ = place::remove_directory(parent.as_fd(), temporary);
    if let Some(seen) = place::seen(parent.as_fd(), name)? {
        if seen.kind == Kind::Directory {
            return place::set_mode(parent.as_fd(), name, old.mode);
        }
        mkdirat(parent, temporary, Mode::from_raw_mode(old.mode))?;
        place::exchange(parent.as_fd(), temporary, name)?;
        place::unlink(parent.as_fd(), temporary)?;
    } else {
        mkdirat(parent, name, Mode::from_raw_mode(old.mode))?;
    }
    if let Some((user, group)) = old.owner {
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        let _ =
            rustix::fs::chownat(parent, name, Some(user), Some(group), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    }
    place::set_mode(parent.as_fd(), name, old.mode)
}

/// Brings what was replaced back from the journal, under a temporary name. An undo that was interrupted here has done so
/// already.
fn bring(journal: &Journal, act: &Act, parent: &OwnedFd, temporary: &OsStr) -> Result<(), Error> {
    let folder = journal.open_folder()?;
    let kept = OsString::from(act.number.to_string());
    let stands = |name: &OsStr| matches!(place::seen(parent.as_fd(), name), Ok(Some(_)));
    let moved = match rustix::fs::renameat(&folder, &kept, parent, temporary) {
        Err(Errno::XDEV) => duplicate((&folder, &kept), (parent, temporary)),
        Err(Errno::NOENT) if stands(temporary) => Ok(()),
        other => other.map_err(Into::into),
    };
    moved.map_err(failed("restore", &act.path))
}
