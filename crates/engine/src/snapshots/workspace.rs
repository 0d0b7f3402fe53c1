//! What a sandbox changed in its workspace, where some of it lies in layers that it shares with others.

use super::{
    layers::{self, Guard},
    refused,
    take::open_dir,
};
use crate::{
    plan::{chain, refusal},
    store::{self, Sandbox, UPPER, WORKSPACE},
};
use airlock_protocol::control::Refusal;
use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

/// What its layers have of the workspace, topmost first; what lies on its own disk is above them.
pub fn layers(sandbox: &Sandbox) -> Result<Vec<OwnedFd>, Refusal> {
    let found = layers::layers_of(sandbox)?;
    let mut parts = Vec::new();
    for layer in found.iter().filter(|layer| layer.counts_for_workspace) {
        match open_dir(&layer.disk.join(WORKSPACE).join(UPPER)) {
            Ok(part) => parts.push(part),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => {
                let what = "what this sandbox changed cannot be looked at";
                return Err(refusal(125, what, Some(&chain(&err)), None));
            }
        }
    }
    Ok(parts)
}

/// Whether changes lie in layers that nobody but this sandbox has, so that they would go with it.
pub fn would_be_lost(sandbox: &Sandbox) -> Result<bool, Refusal> {
    if sandbox.chain().map_err(|err| refused(&err))?.workspace == 0 {
        return Ok(false);
    }
    let _guard = Guard::take(sandbox.store())?;
    let others = layers::named_by_others(sandbox)?;
    let found = layers::layers_of(sandbox)?;
    let own = found.iter().filter(|layer| layer.counts_for_workspace && !others.contains(&layer.id));
    for layer in own {
        match open_dir(&layer.disk.join(WORKSPACE).join(UPPER)) {
            Ok(part) if store::is_empty(part.as_fd()) => {}
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// From now on none of its changes lie in layers: they were discarded. The caller holds the sandbox's lock.
pub fn forget(sandbox: &Sandbox) -> Result<(), Refusal> {
    let _guard = Guard::take(sandbox.store())?;
    let mut chain = sandbox.chain().map_err(|err| refused(&err))?;
    if chain.workspace > 0 {
        chain.workspace = 0;
        sandbox.write_chain(&chain).map_err(|err| refused(&err))?;
    }
    Ok(())
}
