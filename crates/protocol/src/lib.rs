//! Every type that crosses a process boundary, and its frames. No I/O.
//!
//! | module | crosses between |
//! |---|---|
//! | [`frame`] | the bytes under all of them |
//! | [`spec`] | a person (or an SDK) and the engine: what was asked for |
//! | [`state`] | a keeper and whoever reads the state directory |
//! | [`control`] | a client and a keeper |
//! | [`guest`] | a keeper and PID 1 inside its sandbox |
//! | [`carry`] | the two ends of a carrier, one on the host and one in a machine |
//! | [`copy`] | a client, a keeper and a guest: files in and out |
//! | [`log`] | a keeper and `airlock logs` |
//! | [`policy`] | a person and the gate: what may cross the wall |
//! | [`files`] | a person and the engine: volumes, programmable mounts, protected paths |
//! | [`secret`] | a person and the gate: what requests may carry, and a program never sees |
//! | [`script`] | a keeper and the program that runs its script |
//! | [`approval`] | a keeper and the person who is asked |
//! | [`ledger`] | a keeper and whoever reads what crossed |
//! | [`event`] | a keeper and whoever watches |

pub mod approval;
pub mod carry;
pub mod control;
pub mod copy;
pub mod event;
pub mod files;
pub mod fingerprint;
pub mod frame;
pub mod guest;
pub mod id;
pub mod ledger;
pub mod log;
pub mod policy;
pub mod script;
pub mod secret;
pub mod size;
pub mod spec;
pub mod state;

pub use id::{Name, SandboxId};
