//! Layers: what a sandbox wrote until some moment, read-only from then on.

use super::refused;
use crate::{
    plan::{chain, ids, refusal},
    store::{self, Blocked, Sandbox, Store},
};
use airlock_linux::idmap::{IdMap, Writer};
use airlock_protocol::{SandboxId, control::Refusal, state::IdExtent};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Layers have the same kind of ids as sandboxes.
pub type LayerId = SandboxId;

/// The layers below one disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// Topmost first.
    pub layers: Vec<LayerId>,
    /// How many of them, from the top, count for the workspace: changes that were discarded are below those.
    #[serde(default)]
    pub workspace: usize,
}

/// One layer as a sandbox is built upon it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Which.
    pub id: LayerId,
    /// Its files: the parts of a disk.
    pub disk: PathBuf,
    /// The ids it was written with.
    pub ids: IdMap,
    /// Whether changes of the workspace in it count: they were not discarded since.
    pub counts_for_workspace: bool,
}

/// What `layer.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) created_at: String,
    pub(super) users: Vec<IdExtent>,
    pub(super) groups: Vec<IdExtent>,
}

/// Held while layers come, are named, and go.
#[derive(Debug)]
pub struct Guard {
    store: Store,
    _lock: OwnedFd,
}

/// Most layers below one disk: each costs a mount at every start and a look at every file that is not found above it.
pub const MOST: usize = 64;
const CHAIN: &str = "layers.json";
const TOLD: &str = "layer.json";
const GONE: &str = ".gone-";
const MAKING: &str = ".making-";

impl Sandbox {
    /// The layers below its disk.
    pub fn chain(&self) -> Result<Chain, store::Error> {
        match store::read(&self.folder().join(CHAIN)) {
            Err(store::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(Chain::default())
            }
            other => other,
        }
    }

    /// Replaces them. Only the holder of the sandbox's lock and of the [`Guard`] may call it.
    pub(super) fn write_chain(&self, chain: &Chain) -> Result<(), store::Error> {
        store::write(self.folder(), CHAIN, chain).map(drop)
    }
}

impl Guard {
    /// Waits for it.
    pub fn take(store: &Store) -> Result<Guard, Refusal> {
        let folder = folder(store);
        make(&folder)?;
        let path = folder.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let lock = lock.map_err(|err| refused(&store::failed("open", &path)(err.into())))?;
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))
            .map_err(|err| refused(&store::failed("lock", &path)(err.into())))?;
        Ok(Guard { store: store.clone(), _lock: lock })
    }

    /// The state directory.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A new layer without files, for a disk written with these ids.
    pub(super) fn add(&self, ids: &IdMap) -> Result<LayerId, Refusal> {
        let id = store::random_id().map_err(|err| refused(&err))?;
        let path = folder(&self.store).join(id.as_str());
        make(&path)?;
        tell(&path, ids)?;
        Ok(id)
    }
}

/// A layer that is being filled, by a copy or from an archive. What is not finished goes with the next [`collect`].
#[derive(Debug)]
pub struct Making {
    id: LayerId,
    path: PathBuf,
    store: Store,
    _lock: OwnedFd,
}

impl Making {
    /// An empty one for files of these ids.
    pub fn begin(store: &Store, ids: &IdMap) -> Result<Making, Refusal> {
        make(&folder(store))?;
        let id = store::random_id().map_err(|err| refused(&err))?;
        let path = folder(store).join(format!("{MAKING}{id}"));
        make(&path)?;
        let io = |err: std::io::Error| refused(&store::failed("make", &path)(err));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::empty()).map_err(|err| io(err.into()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|err| io(err.into()))?;
        tell(&path, ids)?;
        for name in ["disk", "links"] {
            let made = path.join(name);
            make(&made)?;
            if let (Writer::Direct, Some((user, group))) =
                (ids.writer, ids.user_outside(0).zip(ids.group_outside(0)))
            {
                std::os::unix::fs::chown(&made, Some(user), Some(group)).map_err(io)?;
            }
        }
        Ok(Making { id, path, store: store.clone(), _lock: lock })
    }

    /// Where its files go.
    pub fn disk(&self) -> PathBuf {
        self.path.join("disk")
    }

    /// Room beside it, for what is needed meanwhile.
    pub(super) fn links(&self) -> PathBuf {
        self.path.join("links")
    }

    /// Makes it a layer. It has to be named before the guard goes.
    pub fn finish(self, guard: &Guard) -> Result<LayerId, Refusal> {
        let links = self.links();
        if let Err(Blocked::Foreign { .. }) = store::remove_tree(&links)
            && let Ok(told) = told(&self.path)
        {
            let _ = store::remove_with(&links, &told.ids());
        }
        let path = folder(&guard.store).join(self.id.as_str());
        fs::rename(&self.path, &path).map_err(|err| refused(&store::failed("finish", &self.path)(err)))?;
        Ok(self.id.clone())
    }

    /// Deletes it again.
    pub fn abandon(self) {
        let _ = delete(&self.path);
        let _ = self.store;
    }
}

/// The layers below a sandbox's disk, as it is built upon them. One that was named and never filled is passed over.
pub fn layers_of(sandbox: &Sandbox) -> Result<Vec<Layer>, Refusal> {
    let chain = sandbox.chain().map_err(|err| refused(&err))?;
    open(sandbox.store(), &chain)
}

/// As [`layers_of`], of any chain.
pub fn open(store: &Store, chain: &Chain) -> Result<Vec<Layer>, Refusal> {
    let mut layers = Vec::new();
    for (number, id) in chain.layers.iter().enumerate() {
        let path = folder(store).join(id.as_str());
        let told = told(&path).map_err(|err| {
            let why = crate::plan::chain(&err);
            refusal(125, &format!("the layer {id} below this sandbox's disk is lost"), Some(&why), None)
        })?;
        let disk = path.join("disk");
        if disk.exists() {
            let counts_for_workspace = number < chain.workspace;
            layers.push(Layer { id: id.clone(), disk, ids: told.ids(), counts_for_workspace });
        }
    }
    Ok(layers)
}

/// Users and groups, inside and outside.
pub(super) type Ids = (Vec<IdExtent>, Vec<IdExtent>);

/// The ids of all sandboxes of an ordinary user, as the topmost layer tells them. Those of host root have none in common.
pub(super) fn ids_in_common(store: &Store, chain: &Chain) -> Result<Option<Ids>, store::Error> {
    match chain.layers.first() {
        Some(id) if !rustix::process::geteuid().is_root() => {
            let told = told(&folder(store).join(id.as_str()))?;
            Ok(Some((told.users, told.groups)))
        }
        _ => Ok(None),
    }
}

/// Refuses layers that were written with other ids than a sandbox of an ordinary user has now.
pub fn check_ids(layers: &[Layer], ids: &IdMap) -> Result<(), Refusal> {
    let is_other = |layer: &&Layer| (&layer.ids.users, &layer.ids.groups) != (&ids.users, &ids.groups);
    match layers.iter().find(is_other).filter(|_| ids.writer != Writer::Direct) {
        None => Ok(()),
        Some(layer) => Err(refusal(
            125,
            &format!("the layer {} below this sandbox's disk was written with other ids", layer.id),
            Some("your ranges in /etc/subuid and /etc/subgid, or the user inside, are not what they were"),
            Some("give back the ranges, or the --user"),
        )),
    }
}

/// What [`collect`] did.
#[derive(Debug, Default)]
pub struct Collected {
    /// Layers deleted.
    pub removed: usize,
    /// What could not be deleted.
    pub failed: Vec<String>,
}

/// Deletes layers that nobody names any more. Cheap where there are none.
pub fn collect(store: &Store) -> Result<Collected, Refusal> {
    let folder = folder(store);
    if !folder.exists() {
        return Ok(Collected::default());
    }
    let guard = Guard::take(store)?;
    let named = named(store)?;
    let mut gone = Vec::new();
    for name in entries(&folder)? {
        let path = folder.join(&name);
        if name.starts_with(GONE) || (name.starts_with(MAKING) && is_abandoned(&path)) {
            gone.push(path);
        } else if name.parse::<LayerId>().is_ok_and(|id| !named.contains(&id)) {
            let hidden = folder.join(format!("{GONE}{name}"));
            if fs::rename(&path, &hidden).is_ok() {
                gone.push(hidden);
            }
        }
    }
    drop(guard);
    let mut collected = Collected::default();
    for path in gone {
        match delete(&path) {
            Ok(()) => collected.removed += 1,
            Err(err) => collected.failed.push(format!("{}: {}", path.display(), chain(&err))),
        }
    }
    Ok(collected)
}

/// Every layer that a sandbox or a snapshot names. What cannot be read might name any: then nothing is said.
fn named(store: &Store) -> Result<BTreeSet<LayerId>, Refusal> {
    named_but_by(store, None)
}

/// Every layer that another sandbox or a snapshot names.
pub(super) fn named_by_others(sandbox: &Sandbox) -> Result<BTreeSet<LayerId>, Refusal> {
    named_but_by(sandbox.store(), Some(sandbox.id()))
}

fn named_but_by(store: &Store, but: Option<&SandboxId>) -> Result<BTreeSet<LayerId>, Refusal> {
    let mut named = BTreeSet::new();
    for name in entries(&store.sandboxes())? {
        let Ok(id) = name.parse::<SandboxId>() else { continue };
        if but == Some(&id) {
            continue;
        }
        named.extend(store.sandbox(&id).chain().map_err(|err| refused(&err))?.layers);
    }
    for snapshot in super::kept::list(store)? {
        named.extend(snapshot.chain.layers);
    }
    Ok(named)
}

fn is_abandoned(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Deletes a layer's files, those of other ids by a process that has them.
fn delete(path: &Path) -> Result<(), Blocked> {
    for name in ["disk", "links"] {
        let part = path.join(name);
        match store::remove_tree(&part) {
            Err(Blocked::Foreign { name }) => match told(path) {
                Ok(told) if told.users.len() > 1 => store::remove_with(&part, &told.ids())?,
                _ => return Err(Blocked::Foreign { name }),
            },
            other => other?,
        }
    }
    store::remove_tree(path)
}

impl Told {
    fn ids(&self) -> IdMap {
        ids::of_told(&self.users, &self.groups)
    }
}

fn told(path: &Path) -> Result<Told, store::Error> {
    store::read(&path.join(TOLD))
}

fn tell(path: &Path, ids: &IdMap) -> Result<(), Refusal> {
    let (users, groups) = (ids::told(&ids.users), ids::told(&ids.groups));
    let told = Told { created_at: store::now(), users, groups };
    store::write(path, TOLD, &told).map(drop).map_err(|err| refused(&err))
}

/// Where layers are kept.
pub(super) fn folder(store: &Store) -> PathBuf {
    store.home().join("layers")
}

/// A directory of ours, if it is not there.
pub(super) fn make(path: &Path) -> Result<(), Refusal> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(err) => Err(refused(&store::failed("make", path)(err.into()))),
    }
}

pub(super) fn entries(path: &Path) -> Result<Vec<String>, Refusal> {
    let read = match fs::read_dir(path) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|err| refused(&store::failed("read", path)(err)))?,
    };
    Ok(read.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}
