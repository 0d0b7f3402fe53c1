//! Layers unpacked into trees: one for each map of ids, shared by all sandboxes that have it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use airlock_files::remove::{Blocked, remove_tree, remove_with};
use airlock_linux::idmap::{Extent, IdMap, Writer};
use airlock_protocol::state::IdExtent;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{Error, Hold, Store, error::failed, fresh, incoming::is_at};
use crate::{
    digest::Digest,
    layer::{Ids, TRASH, TREE, Told},
};

/// What asking for a layer's tree leads to.
#[derive(Debug)]
pub enum Begun {
    /// It is here.
    There(PathBuf),
    /// Somebody else is at it: ask again.
    Busy,
    /// It is for us to make.
    Ours(Making),
}

/// Whether another process is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// As long as it takes.
    Yes,
    /// Not at all.
    No,
}

/// A layer's tree that is being made. Dropped before it is finished, it is deleted by whoever wants it next.
#[derive(Debug)]
pub struct Making {
    pub(super) hold: Hold,
    folder: PathBuf,
    done: PathBuf,
    pub(super) made: Made,
    _lock: File,
}

/// `layer.json`: what a tree is, and whose its files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The digest of the uncompressed archive.
    pub diff_id: Digest,
    /// Users inside and outside.
    pub users: Vec<IdExtent>,
    /// Groups inside and outside.
    pub groups: Vec<IdExtent>,
    /// Whether the map is written by `newuidmap`.
    pub by_programs: bool,
    /// Bytes of its files.
    #[serde(default)]
    pub bytes: u64,
    /// How many entries it has.
    #[serde(default)]
    pub entries: u64,
}

impl Store {
    /// The tree of a layer for these ids, if it is here: a lower directory for overlayfs.
    pub fn layer(&self, diff: &Digest, ids: &Ids) -> Option<PathBuf> {
        let tree = self.layers().join(diff.hex()).join(&ids.key).join(TREE);
        tree.is_dir().then_some(tree)
    }

    /// What is known of every tree of a layer.
    pub(super) fn trees(&self, diff: &Digest) -> Vec<(PathBuf, Made)> {
        let Ok(entries) = fs::read_dir(self.layers().join(diff.hex())) else { return Vec::new() };
        let folders = entries.flatten().map(|entry| entry.path());
        folders
            .filter(|folder| !is_hidden(folder))
            .filter_map(|folder| Some((folder.clone(), read_made(&folder)?)))
            .collect()
    }
}

impl Hold {
    /// The right to make the tree of a layer for these ids, unless it is here. With [`Wait::Yes`] another process that
    /// makes it is waited for: who does that must not be making another.
    pub fn begin_layer(&self, diff: &Digest, ids: &Ids, wait: Wait) -> Result<Begun, Error> {
        let layer = self.layers().join(diff.hex());
        let (folder, done) = (layer.join(format!(".making-{}", ids.key)), layer.join(&ids.key));
        make(&layer)?;
        let how = match wait {
            Wait::Yes => FlockOperation::LockExclusive,
            Wait::No => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            if let Some(tree) = self.layer(diff, ids) {
                return Ok(Begun::There(tree));
            }
            make(&folder)?;
            let Ok(lock) = File::open(&folder) else { continue };
            match rustix::io::retry_on_intr(|| flock(&lock, how)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Begun::Busy),
                Err(errno) => return Err(failed("lock", &folder)(errno.into())),
            }
            // Whoever had the lock before may have finished it, or thrown it away.
            if !is_at(&lock, &folder) {
                continue;
            }
            if folder.join("layer.json").exists() {
                // It was killed in the middle.
                delete(&hide_in(&folder, &self.layers())?)?;
                continue;
            }
            let made = Made::of(*diff, &ids.map);
            // Who deletes it after a power cut must know whose its files are.
            write(&folder, &made)?.sync_all().map_err(failed("wait for the disk of", &folder))?;
            return Ok(Begun::Ours(Making { hold: self.clone(), folder, done, made, _lock: lock }));
        }
    }
}

impl Making {
    /// Where it is made: the tree goes into `tree` below it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Puts it in its place, whole.
    pub fn finish(mut self, told: Told) -> Result<PathBuf, Error> {
        (self.made.bytes, self.made.entries) = (told.bytes, told.entries);
        write(&self.folder, &self.made)?;
        fs::rename(&self.folder, &self.done).map_err(failed("finish", &self.folder))?;
        Ok(self.done.join(TREE))
    }
}

impl Made {
    fn of(diff_id: Digest, map: &IdMap) -> Self {
        let extents = |extents: &[Extent]| -> Vec<IdExtent> {
            let told = |extent: &Extent| IdExtent {
                inside: extent.inside,
                outside: extent.outside,
                count: extent.count,
            };
            extents.iter().map(told).collect()
        };
        Self {
            diff_id,
            users: extents(&map.users),
            groups: extents(&map.groups),
            by_programs: map.writer == Writer::Programs,
            bytes: 0,
            entries: 0,
        }
    }

    fn map(&self) -> IdMap {
        let extents = |extents: &[IdExtent]| -> Vec<Extent> {
            let meant = |extent: &IdExtent| Extent {
                inside: extent.inside,
                outside: extent.outside,
                count: extent.count,
            };
            extents.iter().map(meant).collect()
        };
        IdMap { users: extents(&self.users), groups: extents(&self.groups), writer: Writer::Programs }
    }
}

/// Takes a tree out of sight, so that nobody begins to use it: it gets a name that nobody looks for, in `folder`.
pub(super) fn hide_in(tree: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let hidden = folder.join(fresh("gone").map_err(failed("name", tree))?);
    fs::rename(tree, &hidden).map_err(failed("retire", tree))?;
    Ok(hidden)
}

/// Deletes a tree that is out of sight, with the ids its files have. For those this process must have one thread.
pub(super) fn delete(hidden: &Path) -> Result<(), Error> {
    let deleted = match read_made(hidden) {
        Some(made) => [TREE, TRASH].iter().try_for_each(|part| delete_part(&hidden.join(part), &made)),
        None => Ok(()),
    };
    match deleted.and_then(|()| remove_tree(hidden)) {
        // Another may delete the same tree, and be quicker.
        Err(_) if !hidden.exists() => Ok(()),
        Err(source) => Err(Error::Remove { path: hidden.to_owned(), source }),
        Ok(()) => Ok(()),
    }
}

fn delete_part(part: &Path, made: &Made) -> Result<(), Blocked> {
    match remove_tree(part) {
        Err(Blocked::Foreign { .. }) if made.by_programs => remove_with(part, &made.map()),
        other => other,
    }
}

pub(super) fn is_hidden(folder: &Path) -> bool {
    folder.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."))
}

pub(super) fn read_made(folder: &Path) -> Option<Made> {
    serde_json::from_slice(&fs::read(folder.join("layer.json")).ok()?).ok()
}

fn write(folder: &Path, made: &Made) -> Result<File, Error> {
    let path = folder.join("layer.json");
    let text = serde_json::to_vec(made).map_err(|source| Error::Unreadable { path: path.clone(), source })?;
    let written = File::create(&path).and_then(|mut file| file.write_all(&text).map(|()| file));
    written.map_err(failed("write", &path))
}

fn make(folder: &Path) -> Result<(), Error> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => Err(failed("make", folder)(err)),
        _ => Ok(()),
    }
}
