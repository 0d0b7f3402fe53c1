//! Connections across the wall. The only crate that dials.

pub mod flows;
mod greeting;
pub mod relay;
pub mod sniff;
pub mod webhook;
