//! A sandbox that stands for a while without its program, so that files can be copied: its root, its disk and the guest,
//! nothing else. What is written down of it stays as it was.

use super::{Keeper, plan};
use crate::store::Sandbox;
use airlock_protocol::{
    control::Refusal,
    spec::{Limits, Restart, Spec},
    state::State,
};
use std::rc::Rc;

/// The sandbox as it is for a visit: the same files, and nothing that a program would need.
pub(super) fn without_program(spec: Spec) -> Spec {
    // How its disk is bounded is a part of its files.
    let limits = Limits { disk: spec.limits.disk, ..Limits::default() };
    Spec {
        limits,
        // Its files are those of the namespaces around its machine.
        backend: Default::default(),
        provided: Vec::new(),
        home_files: Vec::new(),
        restart: Restart::No,
        health: None,
        keep: true,
        policy: Default::default(),
        script: None,
        secrets: Vec::new(),
        publish: Vec::new(),
        egress: Default::default(),
        approvals: Default::default(),
        ..spec
    }
}

/// What is written down of it.
pub(super) fn state(sandbox: &Sandbox) -> Result<State, Refusal> {
    sandbox.state().map_err(|err| {
        plan::refusal(125, "the state of this sandbox cannot be read", Some(&plan::chain(&err)), None)
    })
}

/// Ends a visit: what is left inside goes.
pub async fn leave(keeper: &Rc<Keeper>) {
    let _ = keeper.clear().await;
    keeper.wall.get().into_iter().for_each(|wall| wall.close());
    if let Err(err) = keeper.gate.close() {
        super::note(&plan::chain(&err));
    }
}
