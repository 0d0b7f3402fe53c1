//! What a sandbox changed in its workspace, where some of it lies in layers that it shares with others.

use super::{
    layers::{self, Guard},
    refused,
    take::open_dir,
    within,
};
use crate::{
    plan::{chain, refusal},
    store::{self, Blocked, Lock, Sandbox},
};
use airlock_files::layers::merge::Merging;
use airlock_linux::idmap::{IdMap, Writer};
use airlock_protocol::control::Refusal;
use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// Where the changes lie on a disk.
const PART: &str = "workspace/upper";
const WHAT: &str = "what this sandbox changed cannot be looked at";

/// Whether some of its changes lie in layers.
pub fn is_layered(sandbox: &Sandbox) -> Result<bool, Refusal> {
    Ok(!shared(sandbox)?.is_empty())
}

/// All changes as one tree, of which `upper` is the topmost layer. It is made anew each time and holds further names of the same
/// files: nobody may write to it. Without layers it is `upper` itself.
pub fn merged(sandbox: &Sandbox, upper: Option<OwnedFd>) -> Result<Option<OwnedFd>, Refusal> {
    let failed = |err: io::Error| refusal(125, WHAT, Some(&chain(&err)), None);
    let mut layers = shared(sandbox)?;
    if layers.is_empty() {
        return Ok(upper);
    }
    layers.extend(upper);
    let state = sandbox.state().map_err(|err| refused(&err))?;
    let ids = match state.id_map.is_empty() {
        // It never ran, so that its layers tell.
        true => layers::layers_of(sandbox)?.into_iter().next().map(|layer| layer.ids),
        false => Some(layers::ids_of(&state.id_map, &state.group_map)),
    };
    let ids = ids.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let place = sandbox.folder().join("merged");
    clear(&place, &ids).map_err(|err| refusal(125, WHAT, Some(&chain(&err)), None))?;
    for path in [place.clone(), place.join("tree"), place.join("trash")] {
        layers::make(&path)?;
    }
    let (tree, trash) =
        (open_dir(&place.join("tree")).map_err(failed)?, open_dir(&place.join("trash")).map_err(failed)?);
    let work = || merge(&layers, &tree, &trash).map_err(|err| chain(&err));
    match ids.writer {
        // Each layer has ids of its own there.
        Writer::Direct => work().map_err(|why| refusal(125, WHAT, Some(&why), None))?,
        Writer::Programs | Writer::SingleId => within::run(&ids, &mut |_| {}, |_| work())
            .map_err(|err| refusal(125, WHAT, Some(&chain(&err)), None))?,
    }
    Ok(Some(tree))
}

/// From now on none of its changes lie in layers: they were discarded. The sandbox does not run.
pub fn forget(sandbox: &Sandbox, _lock: &Lock) -> Result<(), Refusal> {
    let _guard = Guard::take(sandbox.store())?;
    let mut chain = sandbox.chain().map_err(|err| refused(&err))?;
    if chain.workspace > 0 {
        chain.workspace = 0;
        sandbox.write_chain(&chain).map_err(|err| refused(&err))?;
    }
    Ok(())
}

/// What layers have of the workspace, the lowest first.
fn shared(sandbox: &Sandbox) -> Result<Vec<OwnedFd>, Refusal> {
    let layers = layers::layers_of(sandbox)?;
    let counting = layers.iter().filter(|layer| layer.counts_for_workspace).rev();
    let parts = counting.map(|layer| match open_dir(&layer.disk.join(PART)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|err| refusal(125, WHAT, Some(&chain(&err)), None)),
    });
    Ok(parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn merge(layers: &[OwnedFd], tree: &OwnedFd, trash: &OwnedFd) -> io::Result<()> {
    let mut merging = Merging::new(tree.as_fd(), trash.as_fd())?;
    layers.iter().try_for_each(|layer| merging.lay(layer.as_fd()).map_err(io::Error::other))
}

fn clear(place: &Path, ids: &IdMap) -> Result<(), Blocked> {
    match store::remove_tree(place) {
        Err(Blocked::Foreign { .. }) if ids.users.len() > 1 => {
            for name in ["tree", "trash"] {
                store::remove_with(&place.join(name), ids)?;
            }
            store::remove_tree(place)
        }
        other => other,
    }
}
