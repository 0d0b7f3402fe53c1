//! Being the keeper of a sandbox that is only visited: it stands until the visitor is done, and no program of it runs.

use crate::{
    failure::{Failure, Outcome},
    keep::{GUEST, say},
};
use airlock_backends::namespaces::Namespaces;
use airlock_doors::control::server;
use airlock_engine::{
    keeper::{
        self, Keeper, Tasks,
        birth::{self, Born, Keep, Wish},
        visit,
    },
    store::{Lock, Sandbox},
};
use airlock_protocol::control::{Begin, Refusal, Reply};
use std::{io, os::fd::OwnedFd, rc::Rc};

/// Owns the sandbox until the visitor is done.
pub(crate) fn keep(sandbox: &Sandbox, lock: Lock, socket: OwnedFd, begin: &Begin) -> Outcome {
    let born = match build(sandbox, begin) {
        Ok(born) => born,
        Err(refusal) => {
            let code = refusal.code;
            let _ = say(&socket, &Reply::Refused(refusal));
            return Ok(code);
        }
    };
    let failed = |err: io::Error| Failure::because(format!("could not visit sandbox {}", sandbox.id()), &err);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let local = tokio::task::LocalSet::new();
    let visited = local.block_on(&runtime, stand(born, socket));
    drop(local);
    drop(runtime);
    match Rc::try_unwrap(visited.map_err(failed)?) {
        Ok(keeper) => birth::bury(keeper, &Namespaces, lock, Keep::Yes),
        Err(_) => keeper::note("something still holds the sandbox"),
    }
    Ok(0)
}

fn build(sandbox: &Sandbox, begin: &Begin) -> Result<Born, Refusal> {
    keeper::forbid_memory_images().map_err(|err| Refusal {
        code: 125,
        what: "memory images of the keeper cannot be forbidden".to_owned(),
        why: Some(err.to_string()),
        fix: None,
    })?;
    let wish = Wish { spec: birth::spec_of(sandbox)?, passed: &[], begin };
    birth::build(sandbox, &Namespaces, &GUEST, wish)
}

async fn stand(born: Born, socket: OwnedFd) -> io::Result<Rc<Keeper>> {
    let mut tasks = Tasks::new();
    let awake = born.wake(Vec::new(), &mut tasks)?;
    // The visitor speaks only after this.
    say(&socket, &Reply::Done)?;
    server::serve_visitor(awake.keeper.clone(), socket).await;
    visit::leave(&awake.keeper).await;
    tasks.shutdown().await;
    Ok(awake.keeper)
}
