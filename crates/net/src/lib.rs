//! Connections across the wall. The only crate that dials.

pub mod dns;
pub mod egress;
pub mod names;
pub mod resolver;
