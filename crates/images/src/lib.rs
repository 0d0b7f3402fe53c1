//! Root file systems.

pub mod host;
