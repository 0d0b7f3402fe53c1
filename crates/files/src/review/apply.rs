//! Writing changes to the host.
//!
//! First what is gone is removed, deepest first; then what is new or different is put there, from the top. Contents are on
//! disk before they take their place. Whatever interrupts it, every path is either as it was or as it shall be.

use super::{
    Error,
    act::{Acts, Ended, Ready},
    change::{Change, Kind, Seen, Verb},
    journal::{Journal, Journals, Record},
    known::Mark,
    place::{self, Owner},
    recover::Interrupted,
    tree::Tree,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Files made ready before their contents are had on disk together.
const TOGETHER: usize = 64;
/// From this many on, the whole file system is synced instead of each file.
const MANY: usize = 8;

/// What an apply did.
#[derive(Debug, Default)]
pub struct Applied {
    /// Changes that are on the host now.
    pub done: Vec<Change>,
    /// Directories that were to go and are not empty.
    pub kept: Vec<PathBuf>,
    /// Why it ended early. What was done can be undone, and applying again goes on.
    pub stopped: Option<Error>,
}

impl Journals {
    /// Ends whatever an interrupted apply left half done. To be called before changes are looked for.
    pub fn recover(&mut self, tree: &Tree) -> Result<(), Error> {
        match self.resume(tree)? {
            Interrupted::Undo => Err(Error::HalfUndone),
            Interrupted::Nothing | Interrupted::Apply(_) => Ok(()),
        }
    }

    /// Writes these changes. New files belong to `owner`, where that is not whoever writes.
    pub fn apply(&mut self, tree: &Tree, changes: &[Change], owner: Owner) -> Result<Applied, Error> {
        let journal = match self.resume(tree)? {
            Interrupted::Apply(journal) => journal,
            Interrupted::Undo => return Err(Error::HalfUndone),
            Interrupted::Nothing => self.begin()?,
        };
        let acts = Acts { tree, journal, owner, prefix: prefix()? };
        let mut apply = Apply {
            acts,
            applied: Applied::default(),
            ready: Vec::new(),
            parents: BTreeSet::new(),
            marks: Vec::new(),
        };
        let run = apply.run(changes);
        let Apply { acts, mut applied, parents, marks, .. } = apply;
        marks.into_iter().for_each(|(path, mark)| self.known.note(&path, mark));
        self.note_parents(tree, &parents);
        let mut journal = acts.journal;
        match run {
            Ok(()) if applied.done.is_empty() => journal_away(journal)?,
            Ok(()) => journal.write(&Record::Finished)?,
            Err(err) => applied.stopped = Some(err),
        }
        self.save_known()?;
        Ok(applied)
    }

    /// A directory in which something was made or removed carries our stamp.
    pub(super) fn note_parents(&mut self, tree: &Tree, parents: &BTreeSet<PathBuf>) {
        for parent in parents {
            let opened = place::open_directory(tree.host(), parent);
            if let Ok(stat) = opened.and_then(rustix::fs::fstat) {
                self.known.note(parent, Mark::of(&Seen::new(&stat, 0)));
            }
        }
    }
}

/// An apply that did nothing leaves nothing, unless it goes on with an earlier one.
fn journal_away(mut journal: Journal) -> Result<(), Error> {
    match journal.number() {
        0 => journal.remove(),
        _ => journal.write(&Record::Finished),
    }
}

struct Apply<'a> {
    acts: Acts<'a>,
    applied: Applied,
    ready: Vec<(Change, Ready)>,
    parents: BTreeSet<PathBuf>,
    marks: Vec<(PathBuf, Mark)>,
}

impl Apply<'_> {
    fn run(&mut self, changes: &[Change]) -> Result<(), Error> {
        for change in changes.iter().rev() {
            if let (Some(was), None) = (&change.was, &change.is) {
                let ended = self.acts.remove(change, was)?;
                self.note(change, &ended);
            }
        }
        for change in changes {
            let outcome = self.put(change);
            if outcome.is_err() {
                self.abandon();
                return outcome;
            }
        }
        let outcome = self.flush();
        self.abandon();
        outcome
    }

    fn put(&mut self, change: &Change) -> Result<(), Error> {
        let Some(is) = &change.is else { return Ok(()) };
        match (&change.was, change.verb()) {
            (Some(was), Verb::Mode) => {
                let ended = self.acts.change_mode(change, was, is)?;
                self.note(change, &ended);
                Ok(())
            }
            _ => {
                let ready = self.acts.prepare(change, is)?;
                self.ready.push((change.clone(), ready));
                // What is put into a directory needs it.
                match is.kind == Kind::Directory || self.ready.len() >= TOGETHER {
                    true => self.flush(),
                    false => Ok(()),
                }
            }
        }
    }

    /// Has everything that stands ready on disk, then in its place.
    fn flush(&mut self) -> Result<(), Error> {
        let files = self.ready.iter().filter(|(change, _)| change.kind() == Kind::File).count();
        if files >= MANY {
            rustix::fs::syncfs(self.acts.tree.host()).map_err(Error::on("sync", Path::new(".")))?;
        } else {
            for (change, ready) in &self.ready {
                ready.sync().map_err(super::act::failed("sync", &change.path))?;
            }
        }
        if files > 0 {
            self.acts.journal.sync()?;
        }
        while !self.ready.is_empty() {
            let (change, ready) = self.ready.remove(0);
            let ended = self.acts.commit(&ready)?;
            self.note(&change, &ended);
        }
        Ok(())
    }

    /// What stood ready when something failed is taken away.
    fn abandon(&mut self) {
        for (_, ready) in std::mem::take(&mut self.ready) {
            let _ = self.acts.drop_ready(&ready);
        }
    }

    fn note(&mut self, change: &Change, ended: &Ended) {
        match ended {
            Ended::Kept => self.applied.kept.push(change.path.clone()),
            Ended::Done(mark) => {
                self.marks.extend(mark.map(|mark| (change.path.clone(), mark)));
                self.parents.extend(change.path.parent().map(Path::to_owned));
                self.applied.done.push(change.clone());
            }
        }
    }
}

/// A name that no project has, and that tells whose it is.
fn prefix() -> Result<String, Error> {
    let mut random = [0u8; 8];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(Error::on("make a name in", Path::new(".")))?;
    Ok(format!(".airlock-{}", data_encoding::HEXLOWER.encode(&random)))
}

impl Applied {
    /// How many files are on the host now.
    pub fn files(&self) -> usize {
        let counts = |change: &&Change| change.kind() != Kind::Directory && change.verb() != Verb::MovedAway;
        self.done.iter().filter(counts).count()
    }
}
