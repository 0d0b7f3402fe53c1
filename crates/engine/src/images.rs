//! Images as sandboxes use them: which are needed, and where their layers lie.

use crate::{
    plan::{chain, refusal},
    snapshots,
    store::{self, Store},
};
use airlock_protocol::{SandboxId, control::Refusal, spec::Spec};
use std::{collections::BTreeSet, fs, io};

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

fn image_of(spec: Spec) -> Option<String> {
    spec.image.map(|image| image.id)
}

fn refused(err: &store::Error) -> Refusal {
    refusal(err.exit_code(), &chain(err), None, err.fix().as_deref())
}
