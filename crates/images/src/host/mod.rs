//! The `host` image: the host's own system directories as the root of a sandbox, with everything hidden that is nobody
//! else's business.
//!
//! This module decides what is shown; mounting it is done elsewhere. Hidden are: what others may not read on the host (for
//! [`Reader::User`]: of that, what this user could), a list of credential files, sockets, pipes and devices, people's home
//! directories, and what the caller names. A full scan is made once per host; its result is a layer of overlay whiteouts
//! on disk that every start uses after a quick look, and that [`recheck`] renews when nobody waits. What becomes private
//! on the host while a sandbox runs is hidden from the sandboxes that start after the next re-check, not from that one.
//!
//! ```no_run
//! use airlock_images::host::{Hide, Reader, View, open, recheck};
//! let view = View::of_this_host("/var/lib/airlock/host", Reader::Root, vec!["/var/lib/airlock".into()]);
//! let image = open(&view, &mut |progress| eprintln!("{} files", progress.seen))?;
//! for tree in &image.trees {
//!     match &tree.hide {
//!         Hide::Nothing => println!("bind {}", tree.source.display()),
//!         Hide::Layer(layer) => println!("overlay {}:{}", layer.display(), tree.source.display()),
//!         Hide::Masks(masks) => println!("bind {} with {} masks", tree.source.display(), masks.len()),
//!     }
//! }
//! if image.is_recheck_due {
//!     recheck(&view)?;
//! }
//! # Ok::<(), airlock_images::host::Error>(())
//! ```

mod credentials;
pub mod etc;
mod index;
mod judge;
mod layer;
mod look;
mod mounts;
mod scan;
mod secrets;
mod store;
#[cfg(test)]
mod tests;
pub mod users;

use index::{Hidden, Index};
use look::{Drift, Host};
use rustix::fd::OwnedFd;
use scan::Scan;
use secrets::Rules;
use std::{
    io,
    path::{Path, PathBuf},
};
use store::{Generation, Store, Writer};
use thiserror::Error;

/// Who reads the host's files for the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reader {
    /// Host root, whose files are shown to root inside by an idmapped mount: nothing but the layer keeps a 0600 file from it.
    Root,
    /// An ordinary user: what this user cannot read needs no hiding.
    User {
        /// The user's id.
        uid: u32,
        /// Every group of the user, the main one included.
        groups: Vec<u32>,
    },
}

/// Which host is shown to whom, and where the layer is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The root directory whose `usr`, `etc`, … are shown; an absolute path without symbolic links.
    pub root: PathBuf,
    /// The directory that holds the layers: `$AIRLOCK_HOME/host`. Only its owner may write there.
    pub cache: PathBuf,
    /// For whom.
    pub reader: Reader,
    /// Absolute paths that are hidden besides, such as `$AIRLOCK_HOME`. Always the same for one cache: others mean another
    /// scan.
    pub hidden: Vec<PathBuf>,
}

/// One directory of the host that is shown, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Where it appears inside: `/usr`.
    pub host: PathBuf,
    /// The directory on the host that is shown there: the same path unless [`View::root`] is another root.
    pub source: PathBuf,
    /// What keeps hidden entries out of it.
    pub hide: Hide,
}

/// How the hidden entries of a tree are kept out of sight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hide {
    /// There are none. For [`Reader::User`] only said of the package manager's directories: elsewhere a socket that is made
    /// later must not be reachable, so there an empty layer makes an overlay of it.
    Nothing,
    /// By an overlay with this directory above the host's: `lowerdir=<layer>:<source>`. Its directories have the owners
    /// and modes of the host's ([`Reader::Root`]; idmap it as the source) or belong to the user ([`Reader::User`]).
    Layer(PathBuf),
    /// Only for [`Reader::User`], where other mounts lie below the tree: in a user namespace the kernel refuses an overlay
    /// over such a directory (EINVAL) and a bind that is not recursive. Bind it recursively and read-only, then cover
    /// each of these.
    Masks(Vec<Mask>),
}

/// An entry to be covered by an empty one of the same kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mask {
    /// Where it is inside.
    pub path: PathBuf,
    /// What must lie on top.
    pub by: Cover,
}

/// What covers a masked entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cover {
    /// An empty read-only directory.
    Directory,
    /// An empty read-only file (a bind of `/dev/null` does).
    File,
}

/// A symbolic link at the top of the root: `/bin` to `usr/bin`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Where it is inside.
    pub path: PathBuf,
    /// What it says, unchanged.
    pub target: PathBuf,
}

/// What a sandbox may show of the host; by default nothing. While this value lives its layers stay on disk.
#[derive(Debug, Default)]
pub struct HostImage {
    /// The shown directories, parents before the mounts below them.
    pub trees: Vec<Tree>,
    /// The links to make.
    pub links: Vec<Link>,
    /// Directories of the trees (`/var/tmp`) that were not scanned and are there as mount points only: each must be
    /// covered by a directory of the sandbox's own.
    pub covered: Vec<PathBuf>,
    /// Whether the last full scan is so old that [`recheck`] should be called when nobody waits for this sandbox.
    pub is_recheck_due: bool,
    lock: Option<OwnedFd>,
}

/// How far a full scan has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Entries looked at.
    pub seen: u64,
    /// Entries to be hidden so far.
    pub hidden: u64,
}

/// What a re-check did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The host was scanned and the layer is right.
    Nothing,
    /// The host was scanned and there is a new layer, for the sandboxes that start from now on.
    Layer,
    /// Another process scans or has just scanned the host.
    NotDue,
}

/// Why there is no `host` image. Without a whole layer nothing of the host is shown.
#[derive(Debug, Error)]
pub enum Error {
    /// A directory of the host could not be read.
    #[error("could not read {path} of the host to find what must be hidden in it")]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The layer could not be made.
    #[error(
        "could not make {path} of the layer that hides the host's private files: the state directory must be writable and not full"
    )]
    Make {
        /// The path, in the cache directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The bounds of a scan were passed.
    #[error(
        "too many private files below {path} of the host to hide them one by one: make the directory unreadable to others, and it is hidden whole"
    )]
    TooMuch {
        /// The directory.
        path: PathBuf,
    },
}

/// A full scan older than this many seconds is due to be repeated in the background.
pub const RECHECK_AFTER: i64 = 60;

impl View {
    /// The view of the machine's own root.
    pub fn of_this_host(cache: impl Into<PathBuf>, reader: Reader, hidden: Vec<PathBuf>) -> Self {
        Self { root: "/".into(), cache: cache.into(), reader, hidden }
    }
}

impl HostImage {
    /// The lock that keeps the layers on disk while any process has it open: hand it to whoever outlives this value.
    pub fn lock(&self) -> Option<&OwnedFd> {
        self.lock.as_ref()
    }
}

/// Opens the image: by a quick look if the last scan still holds, else by a scan now, which is reported to `progress`.
///
/// Noticed at every start: another boot, other mounts, other top-level directories, and new, removed or renamed entries
/// below `/etc`. After ten minutes without a scan a start also scans `/etc`, `/opt` and `/var` anew (about 10 ms) unless
/// they are very large. Other changes are found by [`recheck`].
pub fn open(view: &View, progress: &mut dyn FnMut(Progress)) -> Result<HostImage, Error> {
    let host = Host::look(view)?;
    let store = Store::at(&view.cache, &view.reader)?;
    if let Some(generation) = store.current()?
        && host.compare(&generation.index) == Drift::None
    {
        return Ok(image(view, &host, generation));
    }
    let writer = store.write()?;
    // Another keeper may have done the work while this one waited.
    let host = Host::look(view)?;
    let old = store.current()?;
    let drift = old.as_ref().map_or(Drift::All, |old| host.compare(&old.index));
    let old = match (old, drift) {
        (Some(done), Drift::None) => return Ok(image(view, &host, done)),
        (old, _) => old,
    };
    let index = match (&old, drift) {
        (Some(old), Drift::Etc) => scan_part(view, &host, Part::Etc, &old.index, progress)?,
        (Some(old), Drift::NotPackaged) => scan_part(view, &host, Part::NotPackaged, &old.index, progress)?,
        (Some(_), Drift::None | Drift::All) | (None, _) => scan_all(view, &host, progress)?,
    };
    let (generation, _) = publish(view, &host, &writer, old, index)?;
    Ok(image(view, &host, generation))
}

/// Scans the host again if the last full scan is older than [`RECHECK_AFTER`], and makes a new layer if what must be
/// hidden has changed. Running sandboxes keep theirs. Never waits for another process.
pub fn recheck(view: &View) -> Result<Changed, Error> {
    let store = Store::at(&view.cache, &view.reader)?;
    let Some(writer) = store.try_write()? else { return Ok(Changed::NotDue) };
    let host = Host::look(view)?;
    let old = store.current()?;
    if old.as_ref().is_some_and(|old| !is_due(&old.index)) {
        return Ok(Changed::NotDue);
    }
    let index = scan_all(view, &host, &mut |_| {})?;
    publish(view, &host, &writer, old, index).map(|(_, changed)| changed)
}

fn is_due(index: &Index) -> bool {
    // A clock that was set back must not keep an old scan young.
    !(0..RECHECK_AFTER).contains(&scan::now().saturating_sub(index.checked))
}

/// The trees that a scan is about; the others are taken from the scan before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Etc,
    /// All but `/usr`, `/bin`, `/sbin` and `/lib*`, where hardly anything but the package manager writes.
    NotPackaged,
    All,
}

impl Part {
    fn has(self, path: &Path) -> bool {
        let is_packaged = !["etc", "opt", "var"].iter().any(|top| path.starts_with(top));
        match self {
            Self::Etc => path.starts_with("etc"),
            Self::NotPackaged => !is_packaged,
            Self::All => true,
        }
    }
}

fn scan_all(view: &View, host: &Host, progress: &mut dyn FnMut(Progress)) -> Result<Index, Error> {
    let old = Index { key: host.key.clone(), homes: host.homes(), ..Index::default() };
    scan_part(view, host, Part::All, &old, progress)
}

/// Scans the trees of `part` and takes the rest from `old`.
fn scan_part(
    view: &View,
    host: &Host,
    part: Part,
    old: &Index,
    progress: &mut dyn FnMut(Progress),
) -> Result<Index, Error> {
    let homes = host.homes();
    if homes != old.homes && part != Part::All {
        return scan_all(view, host, progress);
    }
    let mut index = Index { homes, mounts: host.mounts.clone(), ..old.clone() };
    let rules = rules(view, &index.homes);
    let mut scan = Scan::new(&host.root, &view.reader, &rules, progress);
    let began = scan.began;
    let (packaged, not_packaged): (Vec<_>, Vec<_>) =
        trees(host).into_iter().partition(|tree| !Part::NotPackaged.has(tree));
    for tree in not_packaged.iter().filter(|tree| part.has(tree)) {
        scan.tree(tree)?;
    }
    if part != Part::Etc {
        (index.looked, index.entries) = (began, scan.seen);
    }
    for tree in packaged.iter().filter(|tree| part.has(tree)) {
        scan.tree(tree)?;
    }
    if part == Part::All {
        index.checked = began;
    }
    merge(&mut index, scan.found, part);
    if matches!(view.reader, Reader::User { .. }) {
        // A socket that a program makes later can be reached through a bind but not through an overlay.
        index.plain.retain(|tree| !Part::NotPackaged.has(tree));
    }
    Ok(index)
}

/// Puts what a scan of `part` found in the place of what `index` says of it.
fn merge(index: &mut Index, mut found: scan::Found, part: Part) {
    index.trees.retain(|tree| !part.has(tree));
    index.covered.retain(|covered| !part.has(covered));
    index.watched.retain(|stamp| !part.has(&stamp.path));
    index.hidden.retain(|hidden| !part.has(&hidden.path));
    index.trees.append(&mut found.trees);
    index.covered.append(&mut found.covered);
    index.watched.append(&mut found.watched);
    index.hidden.append(&mut found.hidden);
    forget_trees_out_of_sight(index);
    index.settle();
}

fn rules(view: &View, homes: &[PathBuf]) -> Rules {
    let mut hidden: Vec<PathBuf> = homes.to_vec();
    for path in &view.hidden {
        // The path as written and where it leads: either may lie in a tree.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let inside = [path, &real].into_iter().filter_map(|path| path.strip_prefix(&view.root).ok());
        hidden.extend(inside.map(Path::to_owned));
    }
    Rules::new(&hidden)
}

/// The trees to scan: top-level directories and local mounts, parents first. A top-level directory on another machine's
/// file system is none.
fn trees(host: &Host) -> Vec<PathBuf> {
    let is_far = |path: &Path| host.mounts.iter().any(|mount| mount.at == path && !mount.is_local);
    let tops = host.tops.iter().filter(|path| !is_far(path)).cloned();
    let local = host.mounts.iter().filter(|mount| mount.is_local).map(|mount| mount.at.clone());
    let mut trees: Vec<PathBuf> = tops.chain(local).collect();
    trees.sort();
    trees.dedup();
    trees
}

/// A mount below a hidden directory is no tree, and neither is one below a mount that is not shown.
fn forget_trees_out_of_sight(index: &mut Index) {
    index.hidden.sort();
    let far: Vec<PathBuf> = index
        .mounts
        .iter()
        .filter(|mount| !index.trees.contains(&mount.at))
        .map(|mount| mount.at.clone())
        .collect();
    let is_gone = |path: &Path| {
        let parent = path.parent().unwrap_or(Path::new(""));
        index.is_out_of_sight(parent) || far.iter().any(|far| parent.starts_with(far))
    };
    let (gone, kept): (Vec<PathBuf>, Vec<PathBuf>) =
        index.trees.iter().cloned().partition(|tree| is_gone(tree));
    index.trees = kept;
    index.hidden.retain(|hidden| !gone.iter().any(|tree| hidden.path.starts_with(tree)));
    index.covered.retain(|covered| !gone.iter().any(|tree| covered.starts_with(tree)));
    index.watched.retain(|stamp| !gone.iter().any(|tree| stamp.path.starts_with(tree)));
}

fn publish(
    view: &View,
    host: &Host,
    writer: &Writer<'_>,
    old: Option<Generation>,
    index: Index,
) -> Result<(Generation, Changed), Error> {
    match old {
        Some(old) if old.index.key == index.key && old.index.shows_the_same_as(&index) => {
            writer.refresh(&old, &index)?;
            Ok((Generation { index, ..old }, Changed::Nothing))
        }
        old => {
            // Nobody else may use it any more, so that it can be removed.
            drop(old);
            Ok((writer.publish(&host.root, &index, &view.reader)?, Changed::Layer))
        }
    }
}

fn image(view: &View, host: &Host, generation: Generation) -> HostImage {
    let Generation { path, lock, index } = generation;
    let trees = index.trees.iter().enumerate().map(|(number, tree)| {
        let has_mounts_below =
            host.mounts.iter().any(|mount| mount.at != *tree && mount.at.starts_with(tree));
        let hide = if has_mounts_below && matches!(view.reader, Reader::User { .. }) {
            Hide::Masks(masks(host, &index, number))
        } else if index.plain.contains(tree) {
            Hide::Nothing
        } else {
            Hide::Layer(path.join(layer::place(number)))
        };
        Tree { host: Path::new("/").join(tree), source: host.root_path.join(tree), hide }
    });
    let covered = index.covered.iter().map(|covered| Path::new("/").join(covered)).collect();
    HostImage {
        trees: trees.collect(),
        links: host.links.clone(),
        covered,
        is_recheck_due: is_due(&index),
        lock: Some(lock),
    }
}

/// What must be covered in a recursive bind of the tree: its hidden entries, and the mounts in it that are not shown.
fn masks(host: &Host, index: &Index, number: usize) -> Vec<Mask> {
    let is_here = |path: &Path| index.tree_of(path).is_some_and(|(tree, _)| tree == number);
    let by = |is_directory: bool| if is_directory { Cover::Directory } else { Cover::File };
    let hidden = index.hidden.iter().filter(|hidden| is_here(&hidden.path));
    let hidden = hidden
        .map(|Hidden { path, is_directory }| Mask { path: Path::new("/").join(path), by: by(*is_directory) });
    let unshown = host.mounts.iter().filter(|mount| {
        is_here(&mount.at) && !index.trees.contains(&mount.at) && !index.is_out_of_sight(&mount.at)
    });
    let unshown = unshown.map(|mount| {
        let is_directory =
            host.root_path.join(&mount.at).symlink_metadata().map_or(true, |found| found.is_dir());
        Mask { path: Path::new("/").join(&mount.at), by: by(is_directory) }
    });
    let mut masks: Vec<Mask> = hidden.chain(unshown).collect();
    masks.sort();
    // Below a covered entry there is nothing left to cover. A path sorts right before those below it.
    masks.dedup_by(|below, above| below.path.starts_with(&above.path));
    masks
}
