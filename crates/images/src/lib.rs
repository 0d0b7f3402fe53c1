//! Root file systems.
//!
//! - [`host`]: the host's own directories as the root of a sandbox
//! - [`merged`]: small files of a stack of trees
//! - [`trust`]: where the programs of a root look for certificates they trust
//! - [`digest`], [`mod@reference`], [`manifest`]: how images and their parts are named and described

pub mod digest;
pub mod host;
pub mod manifest;
pub mod merged;
pub mod reference;
pub mod trust;
