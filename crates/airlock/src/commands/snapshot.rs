//! `airlock snapshot`: a sandbox's files as they are now, kept; and what forks and exports begin with.

use super::{find, lifecycle, list::age, print_json, remove};
use crate::{
    args::{ListSnapshotsArgs, RemoveSnapshotsArgs, SnapshotArgs, SnapshotVerb},
    failure::{Failure, Outcome},
    home, place,
    progress::Progress,
    say::{Voice, terminal_width},
    table::Table,
};
use airlock_doors::control::client::Client;
use airlock_engine::{
    snapshots::{Guard, fork::Origin, kept, kept::Snapshot, memory::Memory, take},
    store::{self, Error, Sandbox, Store},
};
use airlock_protocol::control::{Reply, Request};
use std::{
    io::Write as _,
    os::fd::{AsFd as _, OwnedFd},
};

pub(crate) fn perform(args: &SnapshotArgs) -> Outcome {
    match &args.verb {
        None => make(args),
        Some(SnapshotVerb::Ls(args)) => list(args),
        Some(SnapshotVerb::Inspect(args)) => inspect(&args.snapshot),
        Some(SnapshotVerb::Rm(args)) => rm(args),
    }
}

fn make(args: &SnapshotArgs) -> Outcome {
    let store = home::store()?;
    let sandbox = find(&store, &args.sandbox)?;
    let (guard, origin) = match args.memory {
        true => with_memory(&sandbox, Voice::Normal)?,
        false => of_sandbox(&sandbox, Voice::Normal)?,
    };
    let name = match &args.name {
        Some(name) => name.clone(),
        None => free_name(&store, &origin)?,
    };
    let snapshot = kept::keep(
        &guard,
        Snapshot {
            id: sandbox.id().clone(),
            name,
            created_at: store::now(),
            sandbox: sandbox.id().clone(),
            copied_since: origin.copied_since,
            chain: origin.chain,
            spec: origin.spec,
            memory: false,
        },
        origin.memory.as_ref(),
    )?;
    match args.json {
        true => print_json(&facts(&snapshot))?,
        false => writeln!(std::io::stdout(), "{}", snapshot.name)?,
    }
    Ok(0)
}

/// `web-snapshot`, `web-snapshot-2`, …
fn free_name(store: &Store, origin: &Origin) -> Result<airlock_protocol::Name, Failure> {
    let taken = kept::list(store)?;
    let source: String = origin.spec.name.as_str().chars().take(40).collect();
    let names = (1..).map(|number| match number {
        1 => format!("{source}-snapshot"),
        number => format!("{source}-snapshot-{number}"),
    });
    let mut free = names.filter(|name| !taken.iter().any(|snapshot| snapshot.name.as_str() == name));
    let name = free.next().unwrap_or_default();
    name.parse().map_err(|err| Failure::because("could not name the snapshot", &err).fix("--name NAME"))
}

fn list(args: &ListSnapshotsArgs) -> Outcome {
    let snapshots = kept::list(&home::store()?)?;
    if args.json {
        snapshots.iter().try_for_each(|snapshot| print_json(&facts(snapshot)))?;
        return Ok(0);
    }
    let mut stdout = std::io::stdout().lock();
    if args.quiet {
        snapshots.iter().try_for_each(|snapshot| writeln!(stdout, "{}", snapshot.id))?;
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = Table::new(["NAME", "ID", "CREATED", "OF"]);
    for snapshot in &snapshots {
        table.row([
            snapshot.name.to_string(),
            snapshot.id.to_string(),
            age(&snapshot.created_at, now).map_or_else(String::new, |age| format!("{age} ago")),
            format!("{} ({})", snapshot.spec.name, snapshot.sandbox),
        ]);
    }
    Ok(stdout.write_all(table.text(terminal_width()).as_bytes()).map(|()| 0)?)
}

fn inspect(selector: &str) -> Outcome {
    let snapshot = find_snapshot(&home::store()?, selector)?;
    print_json(&snapshot)?;
    Ok(0)
}

fn rm(args: &RemoveSnapshotsArgs) -> Outcome {
    let store = home::store()?;
    let found: Vec<Snapshot> =
        args.snapshots.iter().map(|selector| find_snapshot(&store, selector)).collect::<Result<_, _>>()?;
    let guard = Guard::take(&store)?;
    found.iter().try_for_each(|snapshot| kept::remove(&guard, snapshot))?;
    drop(guard);
    remove::collect(&store)?;
    Ok(0)
}

fn facts(snapshot: &Snapshot) -> serde_json::Value {
    serde_json::json!({
        "id": snapshot.id, "name": snapshot.name, "created_at": snapshot.created_at, "sandbox": snapshot.sandbox,
        "sandbox_name": snapshot.spec.name, "layers": snapshot.chain.layers,
        "memory": snapshot.memory,
    })
}

fn find_snapshot(store: &Store, selector: &str) -> Result<Snapshot, Failure> {
    let missing =
        || Failure::new(format!("no snapshot {selector:?}")).code(3).fix("`airlock snapshot ls` lists them");
    kept::find(store, selector)?.ok_or_else(missing)
}

/// What a sandbox or a snapshot is, for those who go on from it. Its layers stay as long as the guard does.
pub(super) fn origin(store: &Store, selector: &str, voice: Voice) -> Result<(Guard, Origin), Failure> {
    let sandbox = match store.find(selector) {
        Ok(sandbox) => Some(sandbox),
        Err(Error::NoSuch { .. } | Error::NoneYet) => None,
        Err(err) => return Err(err.into()),
    };
    let is_exact = |sandbox: &Sandbox| {
        sandbox.id().as_str() == selector
            || sandbox.state().is_ok_and(|state| state.name.as_str() == selector)
    };
    if let Some(sandbox) = sandbox.as_ref().filter(|sandbox| is_exact(sandbox)) {
        return of_sandbox(sandbox, voice);
    }
    // Under the guard, so that it is not removed meanwhile.
    let guard = Guard::take(store)?;
    match (kept::find(store, selector)?, sandbox) {
        (Some(snapshot), _) => {
            let memory = kept::memory(store, &snapshot);
            let Snapshot { spec, chain, copied_since, .. } = snapshot;
            Ok((guard, Origin { spec, chain, copied_since, memory }))
        }
        (None, Some(sandbox)) => {
            drop(guard);
            of_sandbox(&sandbox, voice)
        }
        (None, None) => Err(Failure::new(format!("no sandbox or snapshot {selector:?}"))
            .code(3)
            .fix("`airlock ls --all` and `airlock snapshot ls` list them")),
    }
}

/// The same, with the memory of a machine that runs, or of a snapshot that has one.
pub(super) fn origin_with_memory(
    store: &Store,
    selector: &str,
    voice: Voice,
) -> Result<(Guard, Origin), Failure> {
    match store.find(selector) {
        Ok(sandbox) => with_memory(&sandbox, voice),
        Err(Error::NoSuch { .. } | Error::NoneYet) => {
            let (guard, origin) = origin(store, selector, voice)?;
            match origin.memory {
                Some(_) => Ok((guard, origin)),
                None => Err(Failure::new(format!("the snapshot {selector:?} has no memory"))
                    .code(1)
                    .fix("airlock snapshot SANDBOX --memory makes one that has")),
            }
        }
        Err(err) => Err(err.into()),
    }
}

/// Turns what a sandbox wrote into a layer: in an instant where it stands still, by a copy where it runs.
pub(super) fn of_sandbox(sandbox: &Sandbox, voice: Voice) -> Result<(Guard, Origin), Failure> {
    let store = sandbox.store();
    let mut progress = Progress::new("copied", voice);
    let mut add = |bytes| progress.add(bytes);
    if lifecycle::is_live(sandbox)? {
        let mut keeper = Client::connect(sandbox)?;
        if let Reply::Refused(refusal) = keeper.ask(&Request::Hold)? {
            return Err(refusal.into());
        }
        let making = held_disk(sandbox).and_then(|disk| Ok(take::copied(sandbox, disk, &mut add)?));
        // It goes on from here.
        drop(keeper);
        let making = making?;
        let guard = Guard::take(store)?;
        let mut origin = known_of(sandbox)?;
        take::push(&mut origin.chain, making.finish(&guard)?);
        return Ok((guard, origin));
    }
    let lock = lifecycle::free_lock(sandbox)?;
    let guard = Guard::take(store)?;
    if take::settle(sandbox, &lock, &guard)?.is_some() {
        let origin = known_of(sandbox)?;
        return Ok((guard, origin));
    }
    drop(guard);
    let making = take::copied(sandbox, None, &mut add)?;
    let guard = Guard::take(store)?;
    let mut origin = known_of(sandbox)?;
    take::push(&mut origin.chain, making.finish(&guard)?);
    Ok((guard, origin))
}

/// What a sandbox wrote, and the memory of its machine at the same moment.
pub(super) fn with_memory(sandbox: &Sandbox, voice: Voice) -> Result<(Guard, Origin), Failure> {
    if !lifecycle::is_live(sandbox)? {
        return Err(Failure::new("the memory of this sandbox cannot be saved")
            .code(1)
            .why("it does not run")
            .fix("without --memory its files are kept"));
    }
    let store = sandbox.store();
    let mut progress = Progress::new("copied", voice);
    let memory = Memory::begin(store)?;
    let mut keeper = Client::connect(sandbox)?;
    let known = memory.create_known()?;
    let (key, monitor) = match keeper.ask_with_descriptors(&Request::Rest, &[known.as_fd()])? {
        (Reply::Resting { key }, Some(monitor)) => (key, monitor),
        (Reply::Refused(refusal), _) => return Err(refusal.into()),
        _ => return Err(Failure::new("the sandbox's keeper gave no answer that can be understood")),
    };
    let file = memory.create()?;
    let saved = place::save_memory(monitor, file.into());
    let saved = saved.and_then(|()| held_disk(sandbox));
    let making = saved.and_then(|disk| Ok(take::copied(sandbox, disk, &mut |bytes| progress.add(bytes))?));
    // It goes on from here.
    drop(keeper);
    let making = making?;
    memory.finish(&key)?;
    let guard = Guard::take(store)?;
    let mut origin = known_of(sandbox)?;
    take::push(&mut origin.chain, making.finish(&guard)?);
    origin.memory = Some(memory);
    Ok((guard, origin))
}

/// The bounded disk of a sandbox that runs, from its keeper.
pub(super) fn held_disk(sandbox: &Sandbox) -> Result<Option<OwnedFd>, Failure> {
    if !take::has_kernels_disk(&sandbox.spec()?) {
        return Ok(None);
    }
    match Client::connect(sandbox)?.ask_for_descriptor(&Request::Disk)? {
        (Reply::Layer, Some(disk)) => Ok(Some(disk)),
        (Reply::Refused(refusal), _) => Err(refusal.into()),
        _ => Err(Failure::new("the sandbox's keeper gave no answer that can be understood")),
    }
}

fn known_of(sandbox: &Sandbox) -> Result<Origin, Failure> {
    let copied_since = sandbox.state()?.copied_since;
    Ok(Origin { spec: sandbox.spec()?, chain: sandbox.chain()?, copied_since, memory: None })
}
