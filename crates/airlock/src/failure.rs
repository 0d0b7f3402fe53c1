//! What a person is told when something could not be done: what, why, and what to do next.
//!
//! ```text
//! error: no sandbox "web"
//!   fix:  `airlock ls --all` lists them
//! ```

use crate::clean::clean_line;
use airlock_doors::control::client;
use airlock_engine::{plan::chain, store};
use airlock_images::store as images;
use airlock_protocol::control::Refusal;
use std::{
    error::Error,
    fmt::{self, Write},
    io,
};

/// A command that ends with `code`, and the words for it. Without words nothing is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) what: String,
    pub(crate) why: Option<String>,
    pub(crate) fix: Option<String>,
    pub(crate) excerpt: Option<Excerpt>,
}

/// The line of a file that an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excerpt {
    /// Counted from 1.
    pub(crate) line: usize,
    /// Characters from the beginning of the line, counted from 1.
    pub(crate) column: usize,
    /// The line itself.
    pub(crate) text: String,
}

/// What a verb ends with: the exit code, or why it failed.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    /// We failed (125).
    pub(crate) fn new(what: impl Into<String>) -> Failure {
        Failure { code: 125, what: what.into(), why: None, fix: None, excerpt: None }
    }

    /// We failed, and an error says why.
    pub(crate) fn because(what: impl Into<String>, cause: &dyn Error) -> Failure {
        Failure { why: Some(chain(cause)), ..Failure::new(what) }
    }

    pub(crate) fn code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }

    pub(crate) fn why(self, why: impl Into<String>) -> Failure {
        Failure { why: Some(why.into()), ..self }
    }

    pub(crate) fn fix(self, fix: impl Into<String>) -> Failure {
        Failure { fix: Some(fix.into()), ..self }
    }

    /// Shows the line of a file below the first sentence.
    pub(crate) fn excerpt(self, excerpt: Excerpt) -> Failure {
        Failure { excerpt: Some(excerpt), ..self }
    }

    /// Words of this failure, with `error:` in `mark` (an escape sequence, or nothing).
    pub(crate) fn words(&self, mark: &str) -> String {
        if self.what.is_empty() {
            return String::new();
        }
        let end = if mark.is_empty() { "" } else { "\x1b[0m" };
        let mut text = format!("{mark}error:{end} {}\n", clean_line(&self.what));
        if let Some(excerpt) = &self.excerpt {
            text.push_str(&excerpt.words());
        }
        for (label, words) in [("why", &self.why), ("fix", &self.fix)] {
            if let Some(words) = words {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  {label}:  {}", clean_line(words));
            }
        }
        text
    }
}

impl Excerpt {
    /// ```text
    ///    |
    ///  2 | memory = "lots"
    ///    |          ^
    /// ```
    fn words(&self) -> String {
        // Characters that a terminal would obey are shown as none, but take their place: the caret stays right.
        let shown: String =
            self.text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let margin = self.line.to_string().len().max(2);
        let caret = " ".repeat(self.column.saturating_sub(1).min(200));
        format!(
            "{:margin$} |\n{:>margin$} | {}\n{:margin$} | {caret}^\n",
            "",
            self.line,
            clean_line(&shown),
            ""
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(""))
    }
}

impl From<store::Error> for Failure {
    fn from(err: store::Error) -> Failure {
        let why = err.source().map(chain);
        Failure { code: err.exit_code(), fix: err.fix(), why, ..Failure::new(err.to_string()) }
    }
}

impl From<images::Error> for Failure {
    fn from(err: images::Error) -> Failure {
        let why = err.source().map(chain);
        Failure { code: err.exit_code(), fix: err.fix(), why, ..Failure::new(err.to_string()) }
    }
}

impl From<client::Error> for Failure {
    fn from(err: client::Error) -> Failure {
        match err {
            client::Error::Store(err) => err.into(),
            client::Error::NotRunning { ref id } => {
                Failure { code: 1, ..Failure::new(err.to_string()) }.fix(format!("airlock start {id}"))
            }
            _ => Failure { why: err.source().map(chain), ..Failure::new(err.to_string()) },
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure { code: refusal.code, why: refusal.why, fix: refusal.fix, ..Failure::new(refusal.what) }
    }
}

/// Output that could not be written. A reader that has seen enough (`| head`) is nothing to talk about.
impl From<io::Error> for Failure {
    fn from(err: io::Error) -> Failure {
        match err.kind() {
            io::ErrorKind::BrokenPipe => Failure::new("").code(141),
            _ => Failure::because("could not write the output", &err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_what_why_and_fix() {
        let failure = Failure::new("this sandbox cannot be sealed")
            .why("user namespaces are off")
            .fix("airlock doctor");
        assert_eq!(
            failure.to_string(),
            "error: this sandbox cannot be sealed\n  why:  user namespaces are off\n  fix:  airlock doctor\n"
        );
    }

    #[test]
    fn words_from_elsewhere_cannot_move_the_cursor() {
        let failure = Failure::new("bad \x1b[2Jthing\nerror: fake").why("a\rb");
        assert_eq!(failure.to_string(), "error: bad thing error: fake\n  why:  a b\n");
    }

    #[test]
    fn a_cause_is_told_without_bare_numbers() {
        let cause = io::Error::from_raw_os_error(2);
        assert_eq!(Failure::because("x", &cause).why.as_deref(), Some("No such file or directory"));
    }

    #[test]
    fn a_reader_that_left_is_met_with_silence() {
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).to_string(), "");
    }
}
