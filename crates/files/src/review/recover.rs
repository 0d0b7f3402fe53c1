//! After a kill or a power cut: finding out how far an apply or undo came, and leaving no act half done.

use super::{
    Error,
    act::{parent_of, save},
    change::{Kind, Seen},
    journal::{Journal, Journals, Old, OldKind, Record, What},
    known::{Mark, read_path},
    place,
    tree::Tree,
};
use rustix::io::Errno;
use std::{
    collections::HashMap,
    ffi::OsStr,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

/// What was interrupted.
#[derive(Debug)]
pub(super) enum Interrupted {
    /// Nothing: the last one is whole, or there is none.
    Nothing,
    /// An apply, none of whose acts is half done now.
    Apply(Journal),
    /// An undo.
    Undo,
}

/// One act of a journal, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) what: What,
    pub(super) temporary: String,
    pub(super) old: Option<Old>,
    pub(super) ready: Option<u64>,
    pub(super) done: Option<Option<Mark>>,
    pub(super) is_undone: bool,
}

impl Journals {
    /// Looks whether the last apply was interrupted, and brings its last acts to an end.
    pub(super) fn resume(&mut self, tree: &Tree) -> Result<Interrupted, Error> {
        let Some((mut journal, records)) = self.last()? else { return Ok(Interrupted::Nothing) };
        let acts = acts(&records);
        if acts.iter().any(|act| act.is_undone && act.done.is_some()) {
            return Ok(Interrupted::Undo);
        }
        if records.last() == Some(&Record::Finished) {
            return Ok(Interrupted::Nothing);
        }
        self.settle(tree, &mut journal, &records)?;
        Ok(Interrupted::Apply(journal))
    }

    /// Brings acts that were begun and not ended to an end.
    pub(super) fn settle(
        &mut self,
        tree: &Tree,
        journal: &mut Journal,
        records: &[Record],
    ) -> Result<(), Error> {
        if records.contains(&Record::Finished) {
            return Ok(());
        }
        let acts = acts(records);
        // What was done before the interruption was not noted yet.
        for act in acts.iter().filter(|act| !act.is_undone) {
            if let Some(Some(mark)) = act.done {
                self.known.note(&act.path, mark);
            }
        }
        for act in acts.iter().filter(|act| act.done.is_none() && !act.is_undone) {
            let parent = match parent_of(tree, &act.path) {
                Ok((parent, _)) => Some(parent),
                Err(_) => None,
            };
            let ended = match parent {
                Some(parent) => end(journal, act, &parent)?,
                None => None,
            };
            match ended {
                Some(mark) => {
                    if let Some(mark) = mark {
                        self.known.note(&act.path, mark);
                    }
                    journal.write(&Record::Done { act: act.number, mark })?;
                }
                None => journal.write(&Record::Undone { act: act.number })?,
            }
        }
        self.save_known()
    }
}

/// Ends one act. `None` if it was not done; else what stands there.
fn end(journal: &Journal, act: &Act, parent: &OwnedFd) -> Result<Option<Option<Mark>>, Error> {
    let name = act.path.file_name().unwrap_or_default();
    let temporary = OsStr::new(&act.temporary);
    let on = |errno| Error::on("recover", &act.path)(errno);
    let beside = place::seen(parent.as_fd(), temporary).map_err(on)?;
    let stands = place::seen(parent.as_fd(), name).map_err(on)?;
    let mark = stands.as_ref().map(Mark::of);
    match (act.what, beside) {
        (What::Mode, _) => Ok(Some(mark)),
        (What::Put, Some(beside)) if act.ready.is_none_or(|inode| inode == beside.inode) => {
            // It never took its place.
            take_away(parent, temporary, &beside).map_err(on)?;
            Ok(None)
        }
        (What::Put, Some(beside)) => {
            // It did, and what was replaced is not in the journal yet.
            if beside.kind == Kind::Directory {
                place::remove_directory(parent.as_fd(), temporary).map_err(on)?;
            } else {
                save(journal, act.number, parent, temporary)
                    .map_err(super::act::failed("keep", &act.path))?;
            }
            Ok(Some(mark))
        }
        (What::Put, None) => {
            let is_there = stands.is_some_and(|seen| act.ready == Some(seen.inode));
            Ok(is_there.then_some(mark))
        }
        (What::Remove, Some(_)) => {
            match place::rename_new((parent.as_fd(), temporary), (parent.as_fd(), name)) {
                Ok(()) => Ok(None),
                // Something new stands there: the old one is kept.
                Err(Errno::EXIST) => {
                    save(journal, act.number, parent, temporary)
                        .map_err(super::act::failed("keep", &act.path))?;
                    Ok(Some(None))
                }
                Err(errno) => Err(on(errno)),
            }
        }
        (What::Remove, None) => {
            let was_directory = act.old.as_ref().is_some_and(|old| old.kind == OldKind::Directory);
            let is_gone = match was_directory {
                true => stands.is_none(),
                false => std::fs::symlink_metadata(journal.saved(act.number)).is_ok(),
            };
            Ok(is_gone.then_some(None))
        }
    }
}

fn take_away(parent: &OwnedFd, name: &OsStr, seen: &Seen) -> Result<(), Errno> {
    match seen.kind {
        Kind::Directory => place::remove_directory(parent.as_fd(), name),
        _ => place::unlink(parent.as_fd(), name),
    }
}

/// What the records tell of each act, in their order.
pub(super) fn acts(records: &[Record]) -> Vec<Act> {
    let mut acts: Vec<Act> = Vec::new();
    let mut places: HashMap<u64, usize> = HashMap::new();
    for record in records {
        match record {
            Record::Begun { act, path, what, temporary, old } => {
                let Some(path) = read_path(path) else { continue };
                places.insert(*act, acts.len());
                acts.push(Act {
                    number: *act,
                    path,
                    what: *what,
                    temporary: temporary.clone(),
                    old: old.clone(),
                    ready: None,
                    done: None,
                    is_undone: false,
                });
            }
            Record::Ready { act, inode } => {
                if let Some(act) = places.get(act).and_then(|at| acts.get_mut(*at)) {
                    act.ready = Some(*inode);
                }
            }
            Record::Done { act, mark } => {
                if let Some(act) = places.get(act).and_then(|at| acts.get_mut(*at)) {
                    act.done = Some(*mark);
                }
            }
            Record::Undone { act } => {
                if let Some(act) = places.get(act).and_then(|at| acts.get_mut(*at)) {
                    act.is_undone = true;
                }
            }
            Record::Finished => {}
        }
    }
    acts
}
