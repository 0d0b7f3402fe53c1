//! Root file systems.
//!
//! - [`host`]: the host's own directories as the root of a sandbox
//! - [`trust`]: where the programs of a root look for certificates they trust

pub mod host;
pub mod trust;
