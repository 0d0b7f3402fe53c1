//! `airlock wait`: until a sandbox's program has ended.

use super::{find, print_json};
use crate::{
    args::WaitArgs,
    failure::{Failure, Outcome},
    home,
};
use airlock_doors::control::client::{Client, Error};
use airlock_engine::store::Sandbox;
use airlock_protocol::{
    control::{Reply, Request},
    state::{Cause, Exit},
};
use std::io::Write;

/// Prints the exit code of each, in the order they were named.
pub(crate) fn wait(args: &WaitArgs) -> Outcome {
    let store = home::store()?;
    for selector in &args.sandboxes {
        let sandbox = find(&store, selector)?;
        let exit = exit_of(&sandbox)?;
        match args.json {
            true => print_json(&serde_json::json!({ "id": sandbox.id(), "exit": exit }))?,
            false => writeln!(std::io::stdout(), "{}", exit.code)?,
        }
    }
    Ok(0)
}

fn exit_of(sandbox: &Sandbox) -> Result<Exit, Failure> {
    let state = sandbox.repaired_state()?;
    if let (false, Some(exit)) = (state.status.is_live(), state.exit) {
        return Ok(exit);
    }
    let answer = Client::connect(sandbox).and_then(|mut client| client.ask(&Request::Wait));
    match answer {
        Ok(Reply::Ended(exit)) => Ok(exit),
        Ok(Reply::Refused(refusal)) => Err(refusal.into()),
        Ok(_) | Err(Error::Closed | Error::NotRunning { .. }) => after_the_keeper(sandbox),
        Err(err) => Err(err.into()),
    }
}

/// The keeper ended before it could tell: what it wrote last, or that it died. One that was not to be kept is gone.
fn after_the_keeper(sandbox: &Sandbox) -> Result<Exit, Failure> {
    let at = airlock_engine::store::now();
    let died = Exit { code: 137, cause: Cause::KeeperDied, at };
    match sandbox.repaired_state() {
        Ok(state) => Ok(state.exit.unwrap_or(died)),
        Err(_) => {
            Err(Failure::new(format!("sandbox {} is gone, and its exit code with it", sandbox.id())).code(3))
        }
    }
}
