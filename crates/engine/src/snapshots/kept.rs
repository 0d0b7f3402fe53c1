//! Snapshots: layers that somebody wants to keep, with the spec of the sandbox they come from.

use super::{
    layers::{Chain, Guard, entries, make},
    memory::Memory,
    refused,
};
use crate::{
    plan::refusal,
    store::{self, Store},
};
use airlock_protocol::{Name, SandboxId, control::Refusal, spec::Spec};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// One snapshot, as `snapshot.json` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its id.
    pub id: SandboxId,
    /// Its name.
    pub name: Name,
    /// When it was made (RFC 3339, UTC).
    pub created_at: String,
    /// The sandbox it is of, which may be gone.
    pub sandbox: SandboxId,
    /// Since when its workspace was copied on write, as its state told it.
    #[serde(default)]
    pub copied_since: Option<i64>,
    /// Its layers.
    pub chain: Chain,
    /// How the sandbox was asked for.
    pub spec: Spec,
    /// Whether the memory of its machine is in it.
    #[serde(default)]
    pub memory: bool,
}

const TOLD: &str = "snapshot.json";

/// Keeps layers, which the guard has kept from going, and the memory of a machine where there is one.
pub fn keep(guard: &Guard, mut snapshot: Snapshot, memory: Option<&Memory>) -> Result<Snapshot, Refusal> {
    let folder = folder(guard.store());
    make(&folder)?;
    if let Some(other) = list(guard.store())?.iter().find(|other| other.name == snapshot.name) {
        let what = format!("the name {} is taken by snapshot {}", other.name, other.id);
        let fix = format!("choose another --name, or remove the old one: airlock snapshot rm {}", other.name);
        return Err(refusal(125, &what, None, Some(&fix)));
    }
    snapshot.id = store::random_id().map_err(|err| refused(&err))?;
    let path = folder.join(snapshot.id.as_str());
    make(&path)?;
    snapshot.memory = memory.is_some();
    memory.map_or(Ok(()), |memory| memory.share(&path)).map_err(|err| refused(&err))?;
    store::write(&path, TOLD, &snapshot).map_err(|err| refused(&err))?;
    Ok(snapshot)
}

/// All of them, oldest first.
pub fn list(store: &Store) -> Result<Vec<Snapshot>, Refusal> {
    let folder = folder(store);
    let mut snapshots = Vec::new();
    for name in entries(&folder)? {
        if name.parse::<SandboxId>().is_err() {
            continue;
        }
        match store::read::<Snapshot>(&folder.join(&name).join(TOLD)) {
            Ok(snapshot) => snapshots.push(snapshot),
            // Its maker was killed before it stood.
            Err(store::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(err) => return Err(refused(&err)),
        }
    }
    snapshots.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
    Ok(snapshots)
}

/// The one meant by a name, an id, or an unambiguous beginning of either.
pub fn find(store: &Store, selector: &str) -> Result<Option<Snapshot>, Refusal> {
    let snapshots = list(store)?;
    let exact = |snapshot: &&Snapshot| snapshot.name.as_str() == selector || snapshot.id.as_str() == selector;
    if let Some(found) = snapshots.iter().find(exact) {
        return Ok(Some(found.clone()));
    }
    let begins = |snapshot: &&Snapshot| {
        snapshot.name.as_str().starts_with(selector) || snapshot.id.as_str().starts_with(selector)
    };
    let found: Vec<&Snapshot> = snapshots.iter().filter(begins).filter(|_| !selector.is_empty()).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).clone())),
        several => {
            let labels: Vec<String> =
                several.iter().map(|one| format!("{} ({})", one.name, one.id)).collect();
            let what = format!("{selector:?} could be {}", labels.join(", "));
            Err(refusal(3, &what, None, Some("type more of it")))
        }
    }
}

/// The memory that is in it.
pub fn memory(store: &Store, snapshot: &Snapshot) -> Option<Memory> {
    Memory::in_folder(&folder(store).join(snapshot.id.as_str())).filter(|_| snapshot.memory)
}

/// Removes one. Layers that nobody else names go with the next [`super::layers::collect`].
pub fn remove(guard: &Guard, snapshot: &Snapshot) -> Result<(), Refusal> {
    let path = folder(guard.store()).join(snapshot.id.as_str());
    let gone = |path: &Path| -> std::io::Result<()> {
        fs::remove_file(path.join(TOLD))?;
        fs::remove_dir_all(path)
    };
    gone(&path).map_err(|err| refused(&store::failed("remove", &path)(err)))
}

pub(super) fn folder(store: &Store) -> PathBuf {
    store.home().join("snapshots")
}
