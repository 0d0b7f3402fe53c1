//! Places to run, one folder each, all behind `engine::Backend`.

pub mod microvm;
pub mod namespaces;
