//! Connections across the wall. The only crate that dials.

pub mod sniff;
