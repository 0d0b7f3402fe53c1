//! What a rule still allows: its rate, its bytes, its bandwidth, and the bandwidth of the sandbox.

use std::time::Duration;

/// The budget is spent: the flow ends, and this is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rule's budget of bytes is spent")]
pub struct Spent;

/// What flows of one rule share. Clones share it too.
#[derive(Debug, Clone, Default)]
pub struct Meter {}

impl Meter {
    /// Whether nothing has to be counted.
    pub fn is_unbounded(&self) -> bool {
        true
    }

    /// Counts bytes that are about to move, and tells how long to wait before they do.
    pub fn take(&self, _bytes: u64) -> Result<Duration, Spent> {
        Ok(Duration::ZERO)
    }
}
