//! Connections across the wall. The only crate that dials.

pub mod relay;
pub mod sniff;
