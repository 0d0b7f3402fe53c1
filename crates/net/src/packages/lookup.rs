//! What the keeper asks a registry itself, where an artefact does not tell its age.

use super::places::Place;
use crate::http::filter::Local;
use http::HeaderMap;
use std::time::Duration;

/// How long a registry may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Something to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Of which registry.
    pub(crate) place: Place,
    /// `GET` or `HEAD`.
    pub(crate) method: http::Method,
    /// Path and query, as sent.
    pub(crate) path: String,
    /// What is read.
    pub(crate) accept: &'static str,
    /// Most bytes of the answer.
    pub(crate) most: usize,
}

/// What was answered.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    /// The status.
    pub(crate) status: u16,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// The body, decoded.
    pub(crate) body: Vec<u8>,
}

/// Asks registries. Whoever does it asks the gate first, like any request.
pub(crate) trait Lookup {
    /// Asks; none where nobody answered in a usable way.
    fn ask<'a>(&'a self, ask: Ask) -> Local<'a, Option<Fetched>>;
}
