//! What a sandbox left in its copy of the workspace: told at the end of a run, and in the way of its removal.

use crate::failure::Failure;
use airlock_engine::{
    review,
    snapshots::workspace,
    store::{self, Sandbox},
};
use airlock_protocol::{
    control::Refusal,
    spec::{DiskBy, Spec, Workspace},
};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;

/// What a sandbox's copy holds that the host has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// So many files; of text, the lines that came and went.
    Files { count: usize, lines: Option<(u64, u64)> },
    /// Something that cannot be told.
    Something,
}

/// Lines are counted of so many files at most: nobody waits for more.
const MOST_COUNTED: usize = 5_000;

impl Left {
    pub(crate) fn is_nothing(self) -> bool {
        self == Left::Nothing
    }

    /// For `--json`.
    pub(crate) fn facts(self) -> Value {
        match self {
            Left::Nothing => json!({ "files": 0, "added": 0, "removed": 0 }),
            Left::Files { count, lines } => {
                let (added, removed) = lines.unzip();
                json!({ "files": count, "added": added, "removed": removed })
            }
            Left::Something => json!({ "files": null, "added": null, "removed": null }),
        }
    }

    /// The end of a run in a line.
    pub(crate) fn words(self, name: &str) -> Option<String> {
        let what = match self {
            Left::Nothing => return None,
            Left::Files { count, lines } => {
                let files = if count == 1 { "file" } else { "files" };
                let lines =
                    lines.map(|(added, removed)| format!(" (+{added} -{removed})")).unwrap_or_default();
                format!("{count} {files} changed{lines}")
            }
            Left::Something => "files were changed".to_owned(),
        };
        Some(format!("{what}; review with `airlock diff {name}`, keep with `airlock apply {name}`"))
    }
}

/// Looks at the copy of a sandbox that does not run, or is about to end.
pub(crate) fn left(sandbox: &Sandbox, spec: &Spec) -> Left {
    if !matches!(spec.workspace, Workspace::Cow { .. }) {
        return Left::Nothing;
    }
    match spec.limits.disk.map(|disk| disk.by) {
        // It was in memory.
        Some(DiskBy::Tmpfs) => return Left::Nothing,
        // Its keeper has it mounted to its end.
        Some(DiskBy::Kernel) => drop(sandbox.lock()),
        Some(DiskBy::Watched | DiskBy::Machine) | None => {
            let layer = std::fs::File::open(sandbox.workspace_layer());
            if layer.map_or(true, |layer| store::is_empty(layer.as_fd())) {
                // Layers below it may hold changes too; those that cannot be looked at may.
                let is_lost = workspace::would_be_lost(sandbox).unwrap_or(true);
                return if is_lost { Left::Something } else { Left::Nothing };
            }
        }
    }
    count(sandbox).unwrap_or(Left::Something)
}

fn count(sandbox: &Sandbox) -> Result<Left, Refusal> {
    let changes = review::open(sandbox)?.changes()?;
    if changes.is_empty() {
        return Ok(Left::Nothing);
    }
    let count = changes.files();
    Ok(Left::Files { count, lines: (count <= MOST_COUNTED).then(|| changes.lines()) })
}

/// Refuses to remove changes that nobody has decided about. One that runs is not removed at all.
pub(crate) fn refuse_to_lose(sandbox: &Sandbox) -> Result<(), Failure> {
    // One without a spec never ran.
    let Ok(spec) = sandbox.spec() else { return Ok(()) };
    if sandbox.repaired_state().is_ok_and(|state| state.status.is_live()) {
        return Ok(());
    }
    if left(sandbox, &spec).is_nothing() {
        return Ok(());
    }
    let name = &spec.name;
    Err(Failure::new(format!("sandbox {name} holds changes that were not applied"))
        .code(1)
        .why("its copy of the workspace differs from the host, and would be gone")
        .fix(format!("airlock diff {name} shows them, airlock apply {name} keeps them; --force loses them")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_is_told_in_one_line() {
        let words = |left: Left| left.words("web").unwrap_or_default();
        assert_eq!(words(Left::Nothing), "");
        assert_eq!(
            words(Left::Files { count: 3, lines: Some((41, 7)) }),
            "3 files changed (+41 -7); review with `airlock diff web`, keep with `airlock apply web`"
        );
        assert!(words(Left::Files { count: 1, lines: None }).starts_with("1 file changed; review"));
        assert_eq!(
            Left::Files { count: 1, lines: Some((2, 0)) }.facts(),
            json!({"files": 1, "added": 2, "removed": 0})
        );
    }
}
