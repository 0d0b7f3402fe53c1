//! What a sandbox's root is made of: the host's own system, or read-only trees with the sandbox's changes on top.

use super::{Caller, chain, ids, places, refusal};
use crate::{
    images,
    snapshots::layers,
    store::{Sandbox, Store},
};
use airlock_images::merged::Stack;
use airlock_protocol::{
    control::Refusal,
    guest::User,
    spec::{Image, Spec},
};
use std::path::{Path, PathBuf};

/// What lies below everything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The host's own directories.
    Host,
    /// These trees, topmost first.
    Layers(Vec<Lower>),
}

/// A read-only tree of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lower {
    /// Where it lies.
    pub tree: PathBuf,
    /// Whose its files are, as host root sees it.
    pub owners: Owners,
}

/// Whose the files of a tree are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Of the range of images.
    Images,
    /// Whose they are inside: those of a directory that somebody unpacked as root.
    Host,
}

/// Accounts of a root file system: the texts of its passwd and group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Users.
    pub passwd: String,
    /// Groups.
    pub group: String,
}

/// A passwd or group that is larger is nobody's list of accounts.
const LARGEST_ACCOUNTS: u64 = 1 << 20;

/// Whether a spec wants another root than the host's own system.
pub fn is_layered(spec: &Spec) -> bool {
    spec.image.is_some() || spec.rootfs.is_some()
}

/// The trees below the root of a sandbox, with these ids inside.
pub fn of(spec: &Spec, store: &Store, caller: &Caller, user: &User) -> Result<Base, Refusal> {
    if let Some(path) = &spec.rootfs {
        let tree = places::rootfs(path, caller, store.home())?;
        return Ok(Base::Layers(vec![Lower { tree, owners: Owners::Host }]));
    }
    let Some(image) = &spec.image else { return Ok(Base::Host) };
    let key = ids::of_images(caller, user).key;
    let mut lower = Vec::new();
    for layer in image.layers.iter().rev() {
        let tree = images::tree(store, layer, &key).filter(|tree| tree.exists());
        let tree = tree.ok_or_else(|| lost(&image.name))?;
        lower.push(Lower { tree, owners: Owners::Images });
    }
    Ok(Base::Layers(lower))
}

/// The accounts inside, as the sandbox has them now.
pub fn accounts(spec: &Spec, sandbox: &Sandbox, caller: &Caller) -> Result<Accounts, Refusal> {
    let mut trees = vec![sandbox.disk().join("root")];
    trees.extend(layers::layers_of(sandbox)?.iter().map(|layer| layer.disk.join("root")));
    trees.extend(lower(spec, sandbox.store(), caller)?);
    read_accounts(&trees)
}

/// The accounts of an image, before there is a sandbox.
pub fn accounts_of(image: &Image, store: &Store, caller: &Caller) -> Result<Accounts, Refusal> {
    read_accounts(&readable(image, store, caller)?)
}

/// Trees of the image that can be read: which ids their files have is all the same.
fn lower(spec: &Spec, store: &Store, caller: &Caller) -> Result<Vec<PathBuf>, Refusal> {
    if let Some(path) = &spec.rootfs {
        return Ok(vec![places::rootfs(path, caller, store.home())?]);
    }
    spec.image.as_ref().map_or(Ok(Vec::new()), |image| readable(image, store, caller))
}

fn readable(image: &Image, store: &Store, caller: &Caller) -> Result<Vec<PathBuf>, Refusal> {
    let key = ids::of_images(caller, &User { uid: 0, gid: 0, groups: Vec::new() }).key;
    let tree = |layer: &String| {
        images::tree(store, layer, &key)
            .filter(|tree| tree.exists())
            .or_else(|| images::any_tree(store, layer))
            .ok_or_else(|| lost(&image.name))
    };
    image.layers.iter().rev().map(tree).collect()
}

fn read_accounts(trees: &[PathBuf]) -> Result<Accounts, Refusal> {
    let what = "the accounts of this image cannot be read";
    let stack = Stack::open(trees).map_err(|err| refusal(125, what, Some(&chain(&err)), None))?;
    let read = |path: &str| match stack.read(Path::new(path), LARGEST_ACCOUNTS) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()),
        // Who may not read it knows only numbers.
        Err(err) if err.kind() == std::io::ErrorKind::PermissionDenied => Ok(String::new()),
        Err(err) => Err(refusal(
            125,
            what,
            Some(&chain(&err)),
            Some("name the user as UID:GID, in an image with a smaller file"),
        )),
    };
    Ok(Accounts { passwd: read("/etc/passwd")?, group: read("/etc/group")? })
}

fn lost(name: &str) -> Refusal {
    let why = "a layer of it is not unpacked for the ids that sandboxes of this user have now";
    let fix = format!("airlock run --image {name} unpacks it again");
    refusal(125, &format!("the image {name} of this sandbox is not complete"), Some(why), Some(&fix))
}
