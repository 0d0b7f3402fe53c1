//! Where in a person's text something is wrong, and how that is shown.

use std::{fmt, ops::Range};

/// Longest part of a line that is shown.
const SHOWN: usize = 120;

/// A text a person wrote: a file, or the value of a flag.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file, or the flag (`--allow`).
    pub name: &'a str,
    /// All of it.
    pub text: &'a str,
}

/// Something in a policy that cannot be taken as it stands.
///
/// ```text
/// airlock.toml:12:9: `*.com` is not a host a rule can name
///    12 | allow = "*.com"
///       |         ^^^^^^^
///   why:  a wildcard needs at least two labels behind it
///   fix:  write *.example.com
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPolicy {
    /// The file, or the flag.
    pub file: Box<str>,
    /// Counted from 1; 0 where there is no line to show (a flag, a policy that came over a socket).
    pub line: u32,
    /// Characters from the beginning of the line, counted from 1.
    pub column: u32,
    /// How many characters are meant, at least 1.
    pub width: u32,
    /// The line itself, without control characters.
    pub line_text: Box<str>,
    /// What is wrong.
    pub what: Box<str>,
    /// Why it is.
    pub why: Box<str>,
    /// What to do.
    pub fix: Box<str>,
}

impl BadPolicy {
    /// Something wrong that has no place in a text.
    pub fn nowhere(file: &str, what: impl Into<String>) -> BadPolicy {
        BadPolicy {
            file: file.into(),
            line: 0,
            column: 0,
            width: 1,
            line_text: "".into(),
            what: what.into().into(),
            why: "".into(),
            fix: "".into(),
        }
    }

    /// With the reason.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> BadPolicy {
        BadPolicy { why: why.into().into(), ..self }
    }

    /// With what to do.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> BadPolicy {
        BadPolicy { fix: fix.into().into(), ..self }
    }

    /// Place and fault in one line: `airlock.toml:12:9: …`.
    pub fn headline(&self) -> String {
        match self.line {
            0 => format!("{}: {}", self.file, self.what),
            line => format!("{}:{line}:{}: {}", self.file, self.column, self.what),
        }
    }

    /// The line with a caret below it; nothing where there is no line.
    pub fn excerpt(&self) -> String {
        if self.line == 0 {
            return String::new();
        }
        let number = self.line.to_string();
        let edge = " ".repeat(number.len().max(4));
        let column = usize::try_from(self.column).unwrap_or(1).max(1);
        let skipped = column.saturating_sub(SHOWN / 2);
        let skipped = if self.line_text.chars().count() <= SHOWN { 0 } else { skipped };
        let shown: String = self.line_text.chars().skip(skipped).take(SHOWN).collect();
        let left = column - 1 - skipped.min(column - 1);
        let room = shown.chars().count().saturating_sub(left).max(1);
        let carets = usize::try_from(self.width).unwrap_or(1).clamp(1, room);
        format!("{number:>4} | {shown}\n{edge} | {}{}\n", " ".repeat(left), "^".repeat(carets))
    }
}

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.headline(), self.excerpt())?;
        for (label, words) in [("why", &self.why), ("fix", &self.fix)] {
            if !words.is_empty() {
                writeln!(f, "  {label}:  {words}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for BadPolicy {}

impl<'a> Source<'a> {
    /// A text and what it is called.
    pub fn new(name: &'a str, text: &'a str) -> Source<'a> {
        Source { name, text }
    }

    /// Something wrong at these bytes of the text.
    pub fn bad(&self, at: Range<usize>, what: impl Into<String>) -> BadPolicy {
        let (line, column, start) = self.place(at.start);
        let rest = self.text.get(start..).unwrap_or("");
        let line_text = rest.lines().next().unwrap_or("");
        let meant = self.text.get(at).unwrap_or("").lines().next().unwrap_or("").chars().count();
        BadPolicy {
            line,
            column,
            width: u32::try_from(meant).unwrap_or(1).max(1),
            line_text: line_text.chars().take(8 * SHOWN).map(visible).collect(),
            ..BadPolicy::nowhere(self.name, what)
        }
    }

    /// The line of a byte, counted from 1.
    pub fn line(&self, at: usize) -> u32 {
        self.place(at).0
    }

    /// Line and column, counted from 1, and the byte at which the line begins.
    fn place(&self, at: usize) -> (u32, u32, usize) {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = self.text.get(..at).unwrap_or("");
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let lines = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.get(start..).unwrap_or("").chars().count() + 1;
        (u32::try_from(lines).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX), start)
    }
}

/// A character as it may stand on a terminal, one column wide.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}') =>
        {
            '\u{fffd}'
        }
        c => c,
    }
}
