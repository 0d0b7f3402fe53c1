//! `kill`, `stop`, `start`, `restart`, `pause`, `resume`: what a keeper is asked, and starting a new one.

use super::each;
use crate::{
    args::{KillArgs, StopArgs},
    failure::{Failure, Outcome},
    home, keeper, secrets,
    session::{Ended, Session, no_signals},
    spec::Host,
    streams,
};
use airlock_doors::control::client::Client;
use airlock_engine::store::{Lock, Sandbox};
use airlock_protocol::{
    control::{Begin, Owner, Reply, Request},
    secret::Values,
    spec::Stream,
    state::Status,
};
use std::time::Duration;

pub(crate) fn kill(args: &KillArgs) -> Outcome {
    let request = Request::Signal { signal: args.signal };
    if !args.all {
        return each(&args.sandboxes, |sandbox| ask(sandbox, &request));
    }
    let entries = home::store()?.list()?;
    let live = entries.into_iter().filter(|entry| entry.state.status.is_live());
    let ids: Vec<String> = live.map(|entry| entry.state.id.to_string()).collect();
    each(&ids, |sandbox| match ask(sandbox, &request) {
        // It ended by itself meanwhile.
        Err(_) if !sandbox.repaired_state().is_ok_and(|state| state.status.is_live()) => Ok(()),
        other => other,
    })
}

pub(crate) fn stop(args: &StopArgs) -> Outcome {
    let request = Request::Stop { grace_ms: millis(args.time) };
    each(&args.sandboxes, |sandbox| match is_live(sandbox)? {
        true => ask(sandbox, &request),
        false => Ok(()),
    })
}

pub(crate) fn start(selectors: &[String]) -> Outcome {
    each(selectors, start_one)
}

pub(crate) fn restart(args: &StopArgs) -> Outcome {
    let request = Request::Restart { grace_ms: millis(args.time) };
    each(&args.sandboxes, |sandbox| match is_live(sandbox)? {
        true => ask(sandbox, &request),
        false => start_one(sandbox),
    })
}

pub(crate) fn pause(selectors: &[String]) -> Outcome {
    each(selectors, |sandbox| ask(sandbox, &Request::Pause))
}

pub(crate) fn resume(selectors: &[String]) -> Outcome {
    each(selectors, |sandbox| ask(sandbox, &Request::Resume))
}

/// Asks the keeper for one thing and takes its word that it was done.
pub(super) fn ask(sandbox: &Sandbox, request: &Request) -> Result<(), Failure> {
    // Where its keeper died, the state says so from now on, and so does the error below.
    let _ = sandbox.repaired_state();
    match Client::connect(sandbox)?.ask(request)? {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(()),
    }
}

pub(super) fn is_live(sandbox: &Sandbox) -> Result<bool, Failure> {
    Ok(sandbox.repaired_state()?.status.is_live())
}

/// Starts a new keeper for a sandbox that does not run. Its streams lead to the log: who made it is gone.
pub(super) fn start_one(sandbox: &Sandbox) -> Result<(), Failure> {
    let lock = free_lock(sandbox)?;
    let mut spec = sandbox.spec()?;
    if spec.stdio.streams().iter().any(|stream| matches!(stream, Stream::Passed | Stream::Terminal)) {
        spec.stdio = streams::detached();
    }
    // Before anything changes: a secret that is gone leaves the sandbox as it was.
    let values = match spec.secrets.is_empty() {
        true => Values::default(),
        false => secrets::values_anew(&spec.secrets, &Host::current()?)?,
    };
    spec.keep = true;
    sandbox.write_spec(&spec)?;
    let before = sandbox.state()?;
    let mut state = before.clone();
    state.status = Status::Creating;
    sandbox.write_state(&state)?;
    let mut client = keeper::start(sandbox, keeper::For::Program(&spec), lock)?;
    client.begin(&Begin { owner: Owner::Detached, values, ssh: home::ssh() }, &[])?;
    match Session::new(client, no_signals()?, None).wait_for_start() {
        Ok(()) => Ok(()),
        Err(Ended::Refused(refusal)) => Err(refusal.into()),
        Err(Ended::Sandbox(exit)) => Err(Failure::new(format!("sandbox {} ended at once", sandbox.id()))
            .code(exit.code)
            .why(super::run::exit_words(&exit))),
        Err(Ended::Program(_) | Ended::Unanswered | Ended::KeeperDied) => {
            Err(Failure::new(format!("the keeper of sandbox {} died", sandbox.id()))
                .fix(format!("look into {}", sandbox.keeper_log().display())))
        }
    }
}

/// The lock of a sandbox that does not run; a keeper that is about to end is waited for.
pub(super) fn free_lock(sandbox: &Sandbox) -> Result<Lock, Failure> {
    if let Some(lock) = sandbox.try_lock()? {
        sandbox.state()?;
        return Ok(lock);
    }
    let state = sandbox.state()?;
    if state.status.is_live() {
        let running =
            Failure::new(format!("sandbox {} is {} already", state.name, state.status.word())).code(1);
        return Err(running.fix(format!("airlock restart {}", state.name)));
    }
    Ok(sandbox.lock()?)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
