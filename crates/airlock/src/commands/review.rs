//! What diff, apply, undo and discard share: opening a sandbox's changes, and the paths a person names.

use crate::failure::Failure;
use airlock_doors::control::client::Client;
use airlock_engine::{review::Review, store::Sandbox};
use airlock_protocol::{
    control::{Reply, Request},
    spec::{DiskBy, Workspace},
};
use std::path::{Component, Path, PathBuf};

/// Opens a sandbox's changes. Where its disk is a file system of its own and it runs, its keeper hands the layer over.
pub(crate) fn open(sandbox: &Sandbox) -> Result<Review, Failure> {
    let spec = sandbox.spec()?;
    let by = spec.limits.disk.map(|disk| disk.by);
    let has_own_disk = matches!(by, Some(DiskBy::Kernel | DiskBy::Tmpfs));
    let is_copied = matches!(spec.workspace, Workspace::Cow { .. });
    let is_live = sandbox.repaired_state()?.status.is_live();
    if !(has_own_disk && is_copied && is_live) {
        return Ok(airlock_engine::review::open(sandbox)?);
    }
    match Client::connect(sandbox)?.ask_for_descriptor(&Request::Layer)? {
        (Reply::Layer, Some(layer)) => Ok(airlock_engine::review::open_with(sandbox, Some(layer))?),
        (Reply::Refused(refusal), _) => Err(refusal.into()),
        _ => Err(Failure::new("the sandbox's keeper gave no answer that can be understood")),
    }
}

/// Only the host's side, for undoing.
pub(super) fn open_host(sandbox: &Sandbox) -> Result<Review, Failure> {
    Ok(airlock_engine::review::open_host_only(sandbox)?)
}

/// The paths that were named, from the workspace. A relative one is meant from here, where that is in the workspace.
pub(super) fn paths(named: &[PathBuf], workspace: &Path) -> Result<Vec<PathBuf>, Failure> {
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(workspace));
    let from = here.unwrap_or_else(|| workspace.to_owned());
    named.iter().map(|path| below(&from.join(path), workspace)).collect()
}

fn below(path: &Path, workspace: &Path) -> Result<PathBuf, Failure> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain.strip_prefix(workspace).map(Path::to_owned).map_err(|_| {
        Failure::new(format!("{} is not in the workspace", path.display()))
            .code(2)
            .why(format!("the workspace of this sandbox is {}", workspace.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_workspace() {
        let workspace = Path::new("/home/ann/project");
        assert_eq!(below(Path::new("/home/ann/project/a/../b/./c"), workspace).unwrap(), Path::new("b/c"));
        assert_eq!(below(Path::new("/home/ann/project"), workspace).unwrap(), Path::new(""));
        assert_eq!(below(Path::new("/home/ann/project/../x"), workspace).unwrap_err().code, 2);
    }
}
