//! Deleting what nobody needs. It happens while nobody adds or is about to use anything: everything that is decided is
//! decided and taken out of sight under the exclusive lock, and the deleting itself comes after it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    Error, Record, Store,
    error::failed,
    layers::{delete, hide_in, is_hidden, read_made},
    lock::Lock,
    records::{Kind, Records},
};
use crate::{
    digest::Digest,
    manifest::{Config, Manifest},
};

/// Which images go, of those that no sandbox needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// None: only content that belongs to no image.
    None,
    /// These, if they have no name.
    These(&'a [Digest]),
    /// Those without a name.
    Dangling,
    /// All, and what is kept for builds.
    Unused,
}

/// What was deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Images, and the names they had.
    pub images: Vec<Record>,
    /// Blobs and unpacked layers.
    pub parts: u64,
    /// How many bytes that freed.
    pub bytes: u64,
}

/// How long a download that nobody goes on with is kept.
const RESUMED_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What is needed, and what goes.
struct Sweep<'a> {
    store: &'a Store,
    blobs: BTreeSet<String>,
    layers: BTreeSet<String>,
    signed: BTreeSet<String>,
    out_of_sight: Vec<PathBuf>,
    collected: Collected,
}

impl Store {
    /// Deletes images, and content that belongs to none. `in_use` tells the ids of images that sandboxes need; it is asked
    /// when nothing can change any more. Nothing is done, and `None` told, if others add images for longer than `patience`.
    ///
    /// Trees that belong to other ids are deleted by a process that has these ids, for which this one must have one thread.
    pub fn collect<E: From<Error>>(
        &self,
        which: Which<'_>,
        patience: Duration,
        in_use: impl FnOnce() -> Result<BTreeSet<Digest>, E>,
    ) -> Result<Option<Collected>, E> {
        let Some(lock) = Lock::exclusive_within(&self.folder().join("lock"), patience)? else {
            return Ok(None);
        };
        let in_use = in_use()?;
        let gone = self.change(|records| Ok(records.forget(which, &in_use)))?;
        let mut sweep = Sweep {
            store: self,
            blobs: BTreeSet::new(),
            layers: BTreeSet::new(),
            signed: BTreeSet::new(),
            out_of_sight: Vec::new(),
            collected: Collected { images: gone, ..Collected::default() },
        };
        sweep.mark(&self.records()?, &in_use)?;
        let swept = sweep
            .blobs()
            .and_then(|()| sweep.layers())
            .and_then(|()| sweep.signatures())
            .and_then(|()| sweep.unfinished(which));
        // From here on it is out of sight, and others may go on.
        drop(lock);
        let Sweep { out_of_sight, collected, .. } = sweep;
        let deleted = out_of_sight.iter().try_for_each(|hidden| delete(hidden));
        swept?;
        deleted?;
        Ok(Some(collected))
    }
}

impl Records {
    /// Drops the records that go, and returns them.
    fn forget(&mut self, which: Which<'_>, in_use: &BTreeSet<Digest>) -> Vec<Record> {
        let goes = |record: &Record| match which {
            Which::None => false,
            Which::These(ids) => ids.contains(&record.id) && record.names.is_empty(),
            Which::Dangling => record.names.is_empty() && record.kind == Kind::Image,
            Which::Unused => true,
        };
        let goes = |record: &Record| goes(record) && !in_use.contains(&record.id);
        let mut gone = Vec::new();
        self.images.retain(|_, record| {
            if !goes(record) {
                return true;
            }
            if which != Which::Unused && !record.keys.is_empty() {
                // A build may still find it.
                record.kind = Kind::Cache;
                return true;
            }
            gone.push(record.clone());
            false
        });
        gone
    }
}

impl Sweep<'_> {
    /// What is needed. A record whose parts cannot be read keeps what they name by being found no more: its blobs are gone
    /// already.
    fn mark(&mut self, records: &Records, in_use: &BTreeSet<Digest>) -> Result<(), Error> {
        for record in records.images.values() {
            self.blobs.insert(record.manifest.hex());
            let known = record.digests.iter().filter_map(|name| name.digest);
            self.signed.extend(known.chain([record.manifest]).map(|digest| digest.hex()));
            if let Some(manifest) = self.read::<Manifest>(&record.manifest)? {
                self.blobs.insert(manifest.config.digest.hex());
                self.blobs.extend(manifest.layers.iter().map(|layer| layer.digest.hex()));
            }
        }
        for id in records.images.keys().chain(in_use) {
            self.blobs.insert(id.hex());
            if let Some(config) = self.read::<Config>(id)? {
                self.layers.extend(config.rootfs.diff_ids.iter().map(Digest::hex));
            }
        }
        Ok(())
    }

    /// A part that is not there, or is not what its name says, needs nothing; one that cannot be read stops everything.
    fn read<T: serde::de::DeserializeOwned>(&self, digest: &Digest) -> Result<Option<T>, Error> {
        match self.store.read_json(digest) {
            Ok(part) => Ok(Some(part)),
            Err(Error::Missing(_) | Error::Differs { .. }) => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn blobs(&mut self) -> Result<(), Error> {
        for path in entries(&self.store.blobs())? {
            if !self.blobs.contains(&name(&path)) {
                self.remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Trees of layers that no image has, and what was not finished: while nothing is added, nobody is at it.
    fn layers(&mut self) -> Result<(), Error> {
        for layer in entries(&self.store.layers())? {
            if !layer.is_dir() {
                continue;
            }
            if is_hidden(&layer) {
                // Somebody was killed while deleting it, or is at it.
                self.out_of_sight.push(layer);
                continue;
            }
            let is_needed = self.layers.contains(&name(&layer));
            for tree in entries(&layer)? {
                if !is_needed || is_hidden(&tree) {
                    self.hide_tree(&tree)?;
                }
            }
            if !is_needed {
                // Only what is empty goes this way.
                let _ = fs::remove_dir(&layer);
            }
        }
        Ok(())
    }

    /// Signatures of images that are gone.
    fn signatures(&mut self) -> Result<(), Error> {
        let folder = self.store.signatures();
        if !folder.exists() {
            return Ok(());
        }
        for path in entries(&folder)? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !self.signed.contains(&stem) {
                self.remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn unfinished(&mut self, which: Which<'_>) -> Result<(), Error> {
        for path in entries(&self.store.folder().join("incoming"))? {
            let is_old = || {
                let changed = path.metadata().and_then(|found| found.modified()).ok();
                let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
                age.is_some_and(|age| age > RESUMED_FOR)
            };
            if is_hidden(&path) || which == Which::Unused || is_old() {
                self.remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn hide_tree(&mut self, tree: &Path) -> Result<(), Error> {
        let bytes = read_made(tree).map_or(0, |made| made.bytes);
        self.out_of_sight.push(hide_in(tree, &self.store.layers())?);
        self.collected.parts += 1;
        self.collected.bytes = self.collected.bytes.saturating_add(bytes);
        Ok(())
    }

    fn remove_file(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = path.symlink_metadata().map_or(0, |found| found.len());
        fs::remove_file(path).map_err(failed("delete", path))?;
        self.collected.parts += 1;
        self.collected.bytes = self.collected.bytes.saturating_add(bytes);
        Ok(())
    }
}

pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).map_err(failed("read", folder))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
