//! `airlock discard`: what a sandbox changed is thrown away.

use crate::{
    args::DiscardArgs,
    commands::{find, print_json, review},
    failure::{Failure, Outcome},
    home,
};
use airlock_engine::store::Sandbox;
use std::io::{self, IsTerminal as _, Write as _};

pub(crate) fn discard(args: &DiscardArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let state = sandbox.repaired_state()?;
    if state.status.is_live() {
        return Err(Failure::new(format!("sandbox {} is running", state.name))
            .code(1)
            .why("its program sees the changes, and the kernel does not expect them to go")
            .fix(format!("airlock stop {}, then discard", state.name)));
    }
    let opened = review::open(&sandbox)?;
    let paths = review::paths(&args.paths, opened.workspace())?;
    let mut changes = opened.changes()?;
    changes.keep_below(&paths);
    if !args.yes && !changes.is_empty() && !agrees(changes.files())? {
        return Ok(1);
    }
    let discarded = opened.discard(&sandbox, &paths)?;
    // One that nobody asked to keep was only there for its changes; what was applied can still be undone.
    let is_over = !sandbox.spec()?.keep && !opened.can_undo() && opened.changes()?.is_empty();
    drop(opened);
    let is_removed = is_over && remove(sandbox)?;
    if args.json {
        print_json(&serde_json::json!({ "files": discarded.files, "removed": is_removed }))?;
        return Ok(0);
    }
    let files = if discarded.files == 1 { "file" } else { "files" };
    let and = if is_removed { "; the sandbox is gone" } else { "" };
    writeln!(io::stdout(), "discarded changes of {} {files}{and}", discarded.files)?;
    Ok(0)
}

fn remove(sandbox: Sandbox) -> Result<bool, Failure> {
    match sandbox.try_lock()? {
        Some(lock) => Ok(sandbox.remove(lock).map(|()| true)?),
        None => Ok(false),
    }
}

fn agrees(files: usize) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing was discarded: nobody is there to say yes")
            .code(2)
            .why("standard input is not a terminal")
            .fix("airlock discard --yes"));
    }
    let mut stderr = io::stderr();
    write!(
        stderr,
        "throw away the changes of {files} {}? [y/N] ",
        if files == 1 { "file" } else { "files" }
    )?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|err| Failure::because("could not read the answer", &err))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
