//! `airlock rm` and `airlock prune`: sandboxes and their disks go.

use super::{each, lifecycle, print_json};
use crate::{
    args::{PruneArgs, RemoveArgs},
    changes,
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, say_anyway, say_failure},
};
use airlock_engine::snapshots::layers;
use airlock_engine::store::{Error, Lock, Sandbox, Store, disk_usage};
use airlock_protocol::{control::Request, size};
use std::io::Write;

pub(crate) fn rm(args: &RemoveArgs) -> Outcome {
    let mut selectors = args.sandboxes.clone();
    if args.stopped {
        selectors.extend(at_rest(&home::store()?)?.iter().map(|sandbox| sandbox.id().to_string()));
    }
    each(&selectors, |sandbox| {
        if args.force && lifecycle::is_live(sandbox).unwrap_or(false) {
            end(sandbox)?;
        }
        remove(sandbox.clone(), Changes::of(args.force))
    })
    .and_then(|code| collect(&home::store()?).map(|_| code))
}

/// Deletes layers that only those had which are gone.
pub(super) fn collect(store: &Store) -> Result<usize, Failure> {
    let collected = layers::collect(store)?;
    match collected.failed.first() {
        None => Ok(collected.removed),
        Some(why) => Err(Failure::new("some files that were shared could not be deleted")
            .why(why.clone())
            .fix("airlock prune (tries again), or delete them as root")),
    }
}

pub(crate) fn prune(args: &PruneArgs) -> Outcome {
    let store = home::store()?;
    let (mut removed, mut kept, mut freed, mut failed) = (0usize, 0usize, 0u64, None);
    for sandbox in at_rest(&store)? {
        if !args.force && changes::refuse_to_lose(&sandbox).is_err() {
            kept += 1;
            continue;
        }
        let bytes = disk_usage(sandbox.folder());
        match remove(sandbox, Changes::Lost) {
            Ok(()) => {
                removed += 1;
                freed = freed.saturating_add(bytes);
            }
            Err(failure) => failed = Some(tell(failed, failure)),
        }
    }
    let swept = store.sweep()?;
    for err in swept.failed {
        failed = Some(tell(failed, err.into()));
    }
    if let Err(failure) = collect(&store) {
        failed = Some(tell(failed, failure));
    }
    match args.json {
        true => print_json(&serde_json::json!({
            "removed": removed, "left_overs_removed": swept.removed, "freed_bytes": freed, "kept": kept,
        }))?,
        false => writeln!(std::io::stdout(), "{}", summary(removed, swept.removed, freed))?,
    }
    if kept > 0 {
        say_anyway(Voice::Normal, &kept_words(kept));
    }
    failed.map_or(Ok(0), Err)
}

fn kept_words(kept: usize) -> String {
    let (sandboxes, hold) = if kept == 1 { ("sandbox", "holds") } else { ("sandboxes", "hold") };
    format!(
        "kept {kept} {sandboxes} that {hold} changes not applied: `airlock ls --all`, `airlock diff`; --force removes them too"
    )
}

/// What becomes of changes that were not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changes {
    /// They go with the sandbox.
    Lost,
    /// They keep it.
    Kept,
}

impl Changes {
    fn of(force: bool) -> Changes {
        if force { Changes::Lost } else { Changes::Kept }
    }
}

fn summary(removed: usize, leftovers: usize, freed: u64) -> String {
    let sandboxes = if removed == 1 { "sandbox" } else { "sandboxes" };
    let and = match leftovers {
        0 => String::new(),
        1 => " and 1 left-over".to_owned(),
        many => format!(" and {many} left-overs"),
    };
    format!("removed {removed} {sandboxes}{and}, freed {}", size::show(freed))
}

/// Failures but the last are told at once; the last is what the command ends with.
fn tell(before: Option<Failure>, now: Failure) -> Failure {
    if let Some(before) = before {
        say_failure(&before);
    }
    now
}

fn at_rest(store: &Store) -> Result<Vec<Sandbox>, Failure> {
    let entries = store.list()?.into_iter();
    Ok(entries.filter(|entry| !entry.state.status.is_live()).map(|entry| entry.sandbox).collect())
}

/// Kills the program and waits for its keeper to go.
fn end(sandbox: &Sandbox) -> Result<(), Failure> {
    match lifecycle::ask(sandbox, &Request::Stop { grace_ms: 0 }) {
        Err(failure) if lifecycle::is_live(sandbox).unwrap_or(false) => Err(failure),
        _ => Ok(()),
    }
}

/// Removes a sandbox that does not run. One that its keeper removed by itself meanwhile is removed too.
fn remove(sandbox: Sandbox, changes: Changes) -> Result<(), Failure> {
    if changes == Changes::Kept {
        changes::refuse_to_lose(&sandbox)?;
    }
    let Some(lock) = lock(&sandbox)? else { return Ok(()) };
    match sandbox.remove(lock) {
        Err(Error::Remove { path, source }) => {
            say(Voice::Normal, "the sandbox is gone; some of its files are not");
            Err(Failure::because(format!("could not delete all of {}", path.display()), &source)
                .fix("airlock prune (tries again), or delete it as root"))
        }
        other => Ok(other?),
    }
}

fn lock(sandbox: &Sandbox) -> Result<Option<Lock>, Failure> {
    match sandbox.try_lock() {
        Ok(Some(lock)) => return Ok(Some(lock)),
        Ok(None) => {}
        Err(_) if !sandbox.folder().exists() => return Ok(None),
        Err(err) => return Err(err.into()),
    }
    match sandbox.state() {
        Ok(state) if state.status.is_live() => Err(Error::Busy { id: sandbox.id().clone() }.into()),
        // Its keeper has written its last word and is about to end.
        Ok(_) => Ok(Some(sandbox.lock()?)),
        Err(_) if !sandbox.folder().exists() => Ok(None),
        Err(err) => Err(err.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pruned_is_told_in_one_line() {
        assert_eq!(summary(0, 0, 0), "removed 0 sandboxes, freed 0");
        assert_eq!(summary(1, 1, 1536), "removed 1 sandbox and 1 left-over, freed 1.5K");
        assert_eq!(summary(3, 2, 5 << 30), "removed 3 sandboxes and 2 left-overs, freed 5G");
    }
}
