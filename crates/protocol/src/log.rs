//! One record of `log.jsonl`: what the program wrote, when, and on which stream.

use serde::{Deserialize, Serialize};

/// A piece of output, at most one line long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it was read (RFC 3339, UTC).
    pub time: String,
    /// Where it was written.
    pub stream: Output,
    /// The bytes, unpaired ones replaced by U+FFFD.
    pub text: String,
}

/// The stream a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal, where both are one.
    Terminal,
}
