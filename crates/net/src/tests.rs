//! What the tests of this crate share.

use airlock_gate::{Setup, ledger::Ledger};
use airlock_protocol::{SandboxId, policy::Policy};
use std::{path::Path, time::Duration};

/// What a gate with these rules is made of; its ledger lies in `folder`. It opens nothing and has no secrets.
pub(crate) fn setup(folder: &Path, policy: Policy) -> Setup {
    let sandbox = SandboxId::from_random([1; 6]);
    Setup {
        ledger: Ledger::open(folder, sandbox.clone(), false).unwrap(),
        sandbox,
        name: "web".to_owned(),
        policy,
        ask_timeout: Duration::from_secs(60),
        published: Vec::new(),
        can_open: false,
        secrets: Default::default(),
    }
}
