//! Every type that crosses a process boundary, and its frames. No I/O.
//!
//! | module | crosses between |
//! |---|---|
//! | [`frame`] | the bytes under all of them |
//! | [`spec`] | a person (or an SDK) and the engine: what was asked for |
//! | [`state`] | a keeper and whoever reads the state directory |
//! | [`control`] | a client and a keeper |
//! | [`guest`] | a keeper and PID 1 inside its sandbox |
//! | [`log`] | a keeper and `airlock logs` |

pub mod control;
pub mod frame;
pub mod guest;
pub mod id;
pub mod log;
pub mod size;
pub mod spec;
pub mod state;

pub use id::{Name, SandboxId};
