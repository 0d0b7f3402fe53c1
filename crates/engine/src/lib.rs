//! What happens: plans, sandboxes, sessions, the Backend seam.
//!
//! - [`store`]: the state directory, the truth about every sandbox
//! - [`plan`]: from what was asked for to what was checked
//! - [`backend`]: the seam to the places that run it
//! - [`images`]: images as sandboxes use them
//! - [`inside`]: a process that changes the mounts of a sandbox that runs
//! - [`keeper`]: the process that owns one sandbox
//! - [`review`]: what a sandbox changed in its copy of the workspace
//! - [`snapshots`]: files that several sandboxes share, kept, and carried elsewhere
//! - [`doctor`]: what this host can do

pub mod backend;
pub mod doctor;
pub mod images;
pub mod inside;
pub mod keeper;
pub mod plan;
pub mod review;
pub mod snapshots;
pub mod store;

pub use backend::{Backend, Begun, Confine, Launched, Loopback, Monitor, Porter};
pub use plan::Plan;
