//! Images as sandboxes use them: which are needed, and where their layers lie.

use crate::{
    plan::{chain, refusal},
    snapshots,
    store::{self, Store},
};
use airlock_images::digest::Digest;
use airlock_protocol::{SandboxId, control::Refusal, spec::Spec};
use std::{collections::BTreeSet, ffi::OsString, fs, io, path::PathBuf};

/// The ids of all images that a sandbox or a snapshot was made of. What cannot be read might need any, so that it is an error.
/// Whoever makes a sandbox holds the images until its spec is written.
pub fn in_use(store: &Store) -> Result<BTreeSet<String>, Refusal> {
    let mut used = BTreeSet::new();
    let folder = store.sandboxes();
    let entries = match fs::read_dir(&folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.map_err(|err| refused(&store::failed("read", &folder)(err)))?),
    };
    let names = entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for id in names.filter_map(|name| name.parse::<SandboxId>().ok()) {
        match store.sandbox(&id).spec() {
            Ok(spec) => used.extend(image_of(spec)),
            Err(store::Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(refused(&err)),
        }
    }
    used.extend(snapshots::kept::list(store)?.into_iter().filter_map(|snapshot| image_of(snapshot.spec)));
    Ok(used)
}

/// Where the tree of a layer lies that was unpacked for the ids that `key` tells; there only when it is whole. Nothing where the
/// layer is no digest.
pub fn tree(store: &Store, layer: &str, key: &str) -> Option<PathBuf> {
    Some(layer_folder(store, layer)?.join(key).join("tree"))
}

/// A tree of a layer, whatever ids it was unpacked for.
pub fn any_tree(store: &Store, layer: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(layer_folder(store, layer)?).ok()?;
    let is_whole = |name: &OsString| !name.as_encoded_bytes().starts_with(b".");
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name())).filter(is_whole);
    names
        .map(|name| layer_folder(store, layer).map(|folder| folder.join(name).join("tree")))
        .find_map(|tree| tree.filter(|tree| tree.exists()))
}

fn layer_folder(store: &Store, layer: &str) -> Option<PathBuf> {
    let digest: Digest = layer.parse().ok()?;
    Some(store.home().join("images/layers").join(digest.hex()))
}

fn image_of(spec: Spec) -> Option<String> {
    spec.image.map(|image| image.id)
}

fn refused(err: &store::Error) -> Refusal {
    refusal(err.exit_code(), &chain(err), None, err.fix().as_deref())
}
