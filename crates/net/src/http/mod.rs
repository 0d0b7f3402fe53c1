//! HTTP inside opened connections: read into types, judged, written anew.

pub(crate) mod filter;
