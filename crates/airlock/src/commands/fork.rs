//! `airlock fork`: further sandboxes that go on from the files of one.

use super::{lifecycle, print_json, snapshot};
use crate::{
    args::ForkArgs,
    failure::{Failure, Outcome},
    home, root,
    say::Voice,
};
use airlock_engine::{
    snapshots::fork::{self, Naming},
    store::Sandbox,
};
use std::io::Write as _;

pub(crate) fn fork(args: &ForkArgs) -> Outcome {
    let store = home::store()?;
    // The image of what is forked stays until those that are made name it.
    let hold = root::hold_any(&store)?;
    let (guard, mut origin) = match args.memory {
        true => snapshot::origin_with_memory(&store, &args.source, Voice::Normal)?,
        false => snapshot::origin(&store, &args.source, Voice::Normal)?,
    };
    let naming = match &args.name {
        Some(name) if args.number == 1 => Naming::Exactly(name.clone()),
        Some(name) => Naming::After(name.clone()),
        None => Naming::After(origin.spec.name.clone()),
    };
    if !args.command.is_empty() {
        origin.spec.command.clone_from(&args.command);
        // Its programs are others.
        origin.memory = None;
    }
    let mut made = Vec::new();
    for _ in 0..args.number {
        made.push(fork::fork(&guard, &origin, &naming)?);
    }
    drop((guard, hold));
    if args.start {
        made.iter().try_for_each(lifecycle::start_one)?;
    }
    made.iter().try_for_each(|sandbox| tell(args, sandbox))?;
    Ok(0)
}

fn tell(args: &ForkArgs, sandbox: &Sandbox) -> Result<(), Failure> {
    match args.json {
        true => print_json(&serde_json::json!({ "id": sandbox.id(), "name": sandbox.state()?.name })),
        false => Ok(writeln!(std::io::stdout(), "{}", sandbox.id())?),
    }
}
