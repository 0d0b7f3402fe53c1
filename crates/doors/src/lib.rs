//! Client protocols: translators without state.

pub mod control;
