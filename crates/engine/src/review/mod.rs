//! The changes of one sandbox: its project, its copy, and what is needed to bring one to the other.
//!
//! ```no_run
//! # use airlock_engine::{review, store::Sandbox}; use airlock_protocol::control::Refusal;
//! # fn show(sandbox: &Sandbox) -> Result<(), Refusal> {
//! let changes = review::open(sandbox)?.changes()?;
//! println!("{} files changed", changes.files());
//! # Ok(()) }
//! ```

mod discard;

pub use discard::Discarded;

use crate::{
    plan::{chain, ids::of_told, refusal},
    snapshots,
    store::{Lock, Sandbox, UPPER, WORKSPACE},
};
use airlock_files::{
    paths::Lists,
    review::{Changes, Error, Journals, Judge, Known, Reader, Tree},
};
use airlock_linux::{
    disk::{self, Limited},
    idmap::IdMap,
};
use airlock_protocol::{
    control::Refusal,
    spec::{DiskBy, Spec, Workspace},
    state::State,
};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

/// One sandbox's changes, opened.
#[derive(Debug)]
pub struct Review {
    tree: Tree,
    lists: Lists,
    since: i64,
    owner: Option<(u32, u32)>,
    workspace: PathBuf,
    folder: PathBuf,
    ids: Option<IdMap>,
    /// A disk that was mounted to look into it, and the lock that keeps others from using it.
    mounted: Option<(Limited, Lock)>,
    /// How many of its layers, the lowest, are shared with other sandboxes.
    shared: usize,
}

/// Opens what a sandbox changed, running or not. Where its disk is a file system of its own and it runs, only its keeper can
/// open that: see [`open_with`].
pub fn open(sandbox: &Sandbox) -> Result<Review, Refusal> {
    open_with(sandbox, None)
}

/// Only the host's side, for what needs no layer: undoing.
pub fn open_host_only(sandbox: &Sandbox) -> Result<Review, Refusal> {
    open_sides(sandbox, |_, _| Ok((None, None)))
}

/// As [`open`], with the layer as the keeper handed it over.
pub fn open_with(sandbox: &Sandbox, layer: Option<OwnedFd>) -> Result<Review, Refusal> {
    open_sides(sandbox, |spec, state| match layer {
        Some(layer) => Ok((Some(layer), None)),
        None => open_layer(sandbox, spec, state),
    })
}

fn open_sides(
    sandbox: &Sandbox,
    layer: impl FnOnce(&Spec, &State) -> Result<Opened, Refusal>,
) -> Result<Review, Refusal> {
    let (spec, state) = (sandbox.spec(), sandbox.repaired_state());
    let spec = spec.map_err(|err| unopened(&chain(&err), None))?;
    let state = state.map_err(|err| unopened(&chain(&err), None))?;
    let Workspace::Cow { path } = &spec.workspace else {
        let what = format!("sandbox {} has no copy of a workspace", state.name);
        let why = "its workspace is written directly, only read, or not there";
        return Err(refusal(1, &what, Some(why), Some("airlock run --workspace cow")));
    };
    let host = open_host(path)?;
    let stat = rustix::fs::fstat(&host).map_err(|err| unopened(&err.to_string(), None))?;
    let (layer, disk) = layer(&spec, &state)?;
    let below = snapshots::workspace::layers(sandbox)?;
    let shared = below.len();
    let ids = ids(&state);
    let reader = ids.clone().map_or_else(Reader::plain, Reader::with_ids);
    let lists = Lists::new(&spec.paths).map_err(|err| unopened(&err.to_string(), None))?;
    let is_root = rustix::process::geteuid().is_root();
    Ok(Review {
        tree: Tree::new(host, layer.into_iter().chain(below).collect(), reader),
        lists,
        since: state.copied_since.unwrap_or(0),
        owner: is_root.then_some((stat.st_uid, stat.st_gid)),
        workspace: path.clone(),
        folder: sandbox.folder().join("review"),
        ids,
        mounted: disk,
        shared,
    })
}

impl Review {
    /// Everything that differs now.
    pub fn changes(&self) -> Result<Changes, Refusal> {
        self.tree.changes().map_err(|err| refuse(&err))
    }

    /// The two sides.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The project.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Who owns what is written, where that is not whoever writes.
    pub fn owner(&self) -> Option<(u32, u32)> {
        self.owner
    }

    /// Who decides which changes may reach the host.
    pub fn judge<'a>(&'a self, journals: &'a Journals) -> Judge<'a> {
        self.judge_by(journals.known())
    }

    /// As [`Review::judge`], for whoever only looks.
    pub fn judge_by<'a>(&'a self, known: &'a Known) -> Judge<'a> {
        Judge { lists: &self.lists, since: self.since, known }
    }

    /// What of the host is the work of earlier applies and undos.
    pub fn known(&self) -> Result<Known, Error> {
        Known::of(&self.folder)
    }

    /// What was applied so far; locks out every other apply and undo.
    pub fn journals(&self) -> Result<Journals, Refusal> {
        let busy = || {
            let what = "another apply or undo of this sandbox is at work";
            refusal(1, what, None, Some("wait until it has ended"))
        };
        Journals::open(&self.folder).map_err(|err| refuse(&err))?.ok_or_else(busy)
    }

    /// Keeps the sandbox from being started while its layer changes. Refused while it runs.
    pub(crate) fn hold(&self, sandbox: &Sandbox) -> Result<Option<Lock>, Refusal> {
        if self.mounted.is_some() {
            return Ok(None);
        }
        let lock = sandbox.lock_of_ended().map_err(|err| unopened(&chain(&err), None))?;
        lock.map(Some).ok_or_else(|| {
            let what = "the changes of a sandbox that runs cannot be discarded";
            let why = "its program sees them, and the kernel does not expect them to go";
            refusal(1, what, Some(why), Some(&format!("airlock stop {}", sandbox.id())))
        })
    }

    /// Whether something was applied that can be undone.
    pub fn can_undo(&self) -> bool {
        self.folder.exists() && self.journals().is_ok_and(|journals| journals.depth().unwrap_or(1) > 0)
    }
}

/// What could not be found, shown or written, for a person.
pub fn refuse(err: &Error) -> Refusal {
    let text = chain(err);
    match err {
        Error::Changed { .. } => {
            let fix = "look at them, then add --force to replace them all the same";
            refusal(1, "files of the host changed meanwhile", Some(&text), Some(fix))
        }
        Error::HalfUndone => refusal(1, &text, None, Some("airlock undo ends it")),
        Error::TooMany { .. } => {
            let fix = "look inside: airlock exec SANDBOX, or discard them: airlock discard SANDBOX";
            refusal(125, "the changes are too many to be told", Some(&text), Some(fix))
        }
        Error::Io { .. } | Error::Journal { .. } => {
            refusal(125, "the changes of this sandbox cannot be read or written", Some(&text), None)
        }
    }
}

fn unopened(why: &str, fix: Option<&str>) -> Refusal {
    refusal(125, "the changes of this sandbox cannot be opened", Some(why), fix)
}

/// The project, if no part of its path is a link by now.
fn open_host(path: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve).map_err(|err| {
        let what = format!("the workspace {} cannot be opened", path.display());
        let why = std::io::Error::from(err).to_string();
        refusal(125, &what, Some(&why), Some("put it back where it was"))
    })
}

type Opened = (Option<OwnedFd>, Option<(Limited, Lock)>);

/// The sandbox's layer. One that never ran has none.
fn open_layer(sandbox: &Sandbox, spec: &Spec, state: &State) -> Result<Opened, Refusal> {
    let by = spec.limits.disk.map(|disk| disk.by);
    let is_live = state.status.is_live();
    match (by, spec.limits.disk) {
        (Some(DiskBy::Kernel), Some(wanted)) if !is_live => {
            let lock = sandbox.lock_of_ended().map_err(|err| unopened(&chain(&err), None))?;
            let lock = lock.ok_or_else(|| unopened("it is being started or removed", Some("try again")))?;
            let templates = sandbox.store().host().join("disks");
            let limited = disk::open_limited(sandbox.folder(), wanted.bytes, &templates)
                .map_err(|err| unopened(&chain(&err), err.fix().as_deref()))?;
            let layer = open_below(&limited.mount)?;
            Ok((layer, Some((limited, lock))))
        }
        (Some(DiskBy::Kernel | DiskBy::Tmpfs), _) if is_live => {
            Err(unopened("its disk is a file system of its own, which only its keeper can open", None))
        }
        (Some(DiskBy::Tmpfs), _) => {
            let what = "the changes of this sandbox are gone";
            let why = "its disk was in memory (--disk with tmpfs) and ended with it";
            Err(refusal(1, what, Some(why), Some("apply them while it runs, or use another --disk")))
        }
        _ => match rustix::fs::open(sandbox.disk(), PLACE, Mode::empty()) {
            Ok(disk) => Ok((open_below(&disk)?, None)),
            Err(rustix::io::Errno::NOENT) => Ok((None, None)),
            Err(err) => Err(unopened(&std::io::Error::from(err).to_string(), None)),
        },
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_below(disk: &OwnedFd) -> Result<Option<OwnedFd>, Refusal> {
    let path = Path::new(WORKSPACE).join(UPPER);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(disk.as_fd(), &path, PLACE, Mode::empty(), resolve) {
        Ok(layer) => Ok(Some(layer)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(err) => Err(unopened(&std::io::Error::from(err).to_string(), None)),
    }
}

/// The ids of an ordinary user's sandbox, with which everything it wrote can be read. Root needs none.
fn ids(state: &State) -> Option<IdMap> {
    if rustix::process::geteuid().is_root() || state.id_map.is_empty() {
        return None;
    }
    Some(of_told(&state.id_map, &state.group_map))
}
