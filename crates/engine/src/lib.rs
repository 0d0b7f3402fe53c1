//! What happens: plans, sandboxes, sessions, the Backend seam.

pub mod plan;
pub mod store;
