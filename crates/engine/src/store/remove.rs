//! Deleting a sandbox's folder, whatever its program left there.

use super::{Error, Lock, Sandbox, failed};
use airlock_files::remove::{Blocked, remove_tree, remove_with};
use airlock_gate::ledger::archive::archive;
use airlock_linux::idmap::{Extent, IdMap, Writer};
use airlock_protocol::{
    Name,
    state::{IdExtent, State},
};
use std::{
    io,
    path::{Path, PathBuf},
};

impl Sandbox {
    /// Deletes the sandbox: first it stops being listed and its name is free, then its files go.
    ///
    /// The lock is held to the end, so nothing can start it meanwhile. What cannot be deleted stays out of sight
    /// under `sandboxes/.gone-<id>` for the next [`super::Store::sweep`].
    pub fn remove(self, lock: Lock) -> Result<(), Error> {
        let name = self.state().ok().map(|state| state.name);
        let removed = self.retire(name.as_ref()).and_then(Gone::delete);
        drop(lock);
        removed
    }

    /// Takes the sandbox out of sight and frees its name, where it has one: cheap. Its files go with [`Gone::delete`].
    pub fn retire(&self, name: Option<&Name>) -> Result<Gone, Error> {
        if let Some(name) = name {
            // What crossed the wall outlives the sandbox.
            archive(self.folder(), &self.store().ledgers(), self.id(), name)
                .map_err(failed("archive the ledger of", self.folder()))?;
        }
        self.free_name(name)?;
        let path = self.folder().with_file_name(format!(".gone-{}", self.id()));
        std::fs::rename(self.folder(), &path).map_err(failed("retire", self.folder()))?;
        Ok(Gone { path })
    }

    /// Frees the name that points here. A sandbox that was never finished does not know its own: look for it.
    fn free_name(&self, name: Option<&Name>) -> Result<(), Error> {
        if let Some(name) = name {
            return self.free_link(&self.store().name_link(name.as_str()));
        }
        let names = self.store().home().join("names");
        let entries = std::fs::read_dir(&names).map_err(failed("read", &names))?;
        entries.flatten().try_for_each(|entry| self.free_link(&entry.path()))
    }

    fn free_link(&self, link: &Path) -> Result<(), Error> {
        match std::fs::read_link(link) {
            Ok(target) if target == Path::new(self.id().as_str()) => {
                std::fs::remove_file(link).map_err(failed("remove", link))
            }
            _ => Ok(()),
        }
    }
}

/// A sandbox that is no longer listed and whose files are still there.
#[derive(Debug)]
pub struct Gone {
    path: PathBuf,
}

impl Gone {
    /// One found again by its path.
    pub(super) fn at(path: PathBuf) -> Gone {
        Gone { path }
    }

    /// Deletes its files, what the sandbox wrote first: `state.json` tells whose files they may be. Those of the
    /// sandbox's own ids are deleted by a process that has these ids, for which this process must have one thread.
    ///
    /// Two may do it at once, a keeper and a prune: what the other was quicker with is no failure.
    pub fn delete(self) -> Result<(), Error> {
        let mut removed = self.try_delete();
        for _ in 0..MOST_TRIES {
            match &removed {
                Err(Blocked::Io { source, .. }) if is_by_another(source.kind()) => {
                    removed = self.try_delete()
                }
                _ => break,
            }
        }
        removed.map_err(|source| Error::Remove { path: self.path, source })
    }

    fn try_delete(&self) -> Result<(), Blocked> {
        let disk = self.path.join("disk");
        let emptied = match remove_tree(&disk) {
            Err(Blocked::Foreign { name }) => match self.ids() {
                Some(ids) => remove_with(&disk, &ids),
                None => Err(Blocked::Foreign { name }),
            },
            other => other,
        };
        emptied.and_then(|()| remove_tree(&self.path))
    }

    fn ids(&self) -> Option<IdMap> {
        let text = std::fs::read(self.path.join("state.json")).ok()?;
        let state: State = serde_json::from_slice(&text).ok()?;
        let extents = |extents: &[IdExtent]| -> Vec<Extent> {
            let extent = |e: &IdExtent| Extent { inside: e.inside, outside: e.outside, count: e.count };
            extents.iter().map(extent).collect()
        };
        let (users, groups) = (extents(&state.id_map), extents(&state.group_map));
        (users.len() > 1).then_some(IdMap { users, groups, writer: Writer::Programs })
    }
}

/// How often a deletion is tried again while another is at the same files.
const MOST_TRIES: usize = 100;

fn is_by_another(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty)
}
