//! Places to run, one folder each, all behind `engine::Backend`.

pub mod namespaces;
