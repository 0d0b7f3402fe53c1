//! What a sandbox left in its copy of the workspace: told at the end of a run, and in the way of its removal.

use crate::failure::Failure;
use airlock_engine::{
    snapshots::workspace,
    store::{self, Sandbox},
};
use airlock_protocol::spec::Workspace;
use std::os::fd::AsFd as _;

/// What a sandbox's copy holds that the host has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// Something; how much could not be told.
    Something,
}

impl Left {
    pub(crate) fn is_nothing(self) -> bool {
        self == Left::Nothing
    }

    /// For `--json`.
    pub(crate) fn facts(self) -> serde_json::Value {
        match self {
            Left::Nothing => serde_json::json!({ "files": 0 }),
            Left::Something => serde_json::json!({ "files": null }),
        }
    }

    /// The end of a run in a line.
    pub(crate) fn words(self, name: &str) -> Option<String> {
        let review = format!("review with `airlock diff {name}`, keep with `airlock apply {name}`");
        match self {
            Left::Nothing => None,
            Left::Something => Some(format!("files were changed; {review}")),
        }
    }
}

/// Looks at the copy of a sandbox that does not run.
pub(crate) fn left(sandbox: &Sandbox) -> Left {
    let is_copied = sandbox.spec().is_ok_and(|spec| matches!(spec.workspace, Workspace::Cow { .. }));
    let layer = std::fs::File::open(sandbox.workspace_layer());
    match layer {
        Ok(layer) if is_copied && !store::is_empty(layer.as_fd()) => Left::Something,
        // What cannot be looked at may hold something.
        _ if is_copied && workspace::would_be_lost(sandbox).unwrap_or(true) => Left::Something,
        _ => Left::Nothing,
    }
}

/// Refuses to remove changes that nobody has seen.
pub(crate) fn refuse_to_lose(sandbox: &Sandbox) -> Result<(), Failure> {
    if left(sandbox).is_nothing() {
        return Ok(());
    }
    let name = sandbox.state().map_or_else(|_| sandbox.id().to_string(), |state| state.name.to_string());
    Err(Failure::new(format!("sandbox {name} holds changes that were not applied"))
        .code(1)
        .why("its copy of the workspace differs from the host, and would be gone")
        .fix(format!("airlock diff {name} shows them, airlock apply {name} keeps them; --force loses them")))
}
