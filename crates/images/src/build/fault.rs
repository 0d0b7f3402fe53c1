//! What is wrong with a Dockerfile, and where.

/// One thing that is wrong, with the line it stands on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}\n  {line} | {text}")]
pub struct Fault {
    /// The line of the file, from 1.
    pub line: usize,
    /// The line itself.
    pub text: String,
    /// Why it cannot be.
    pub why: String,
}

/// Most characters of a line that an error repeats.
const SHOWN: usize = 200;

impl Fault {
    /// Something is wrong at `line`, which says `text`.
    pub fn new(line: usize, text: &str, why: impl Into<String>) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let mut shown: String =
            first.chars().take(SHOWN).map(|char| if char.is_control() { ' ' } else { char }).collect();
        if first.chars().nth(SHOWN).is_some() {
            shown.push('…');
        }
        Self { line, text: shown, why: why.into() }
    }
}
