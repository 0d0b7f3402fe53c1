//! `.dockerignore`: which paths of a context stay out. Pure and total.
//!
//! A pattern fits a path or one of its directories; the last pattern that fits decides, and `!` takes a path back in.

use super::glob::{self, Pattern};

/// Most patterns of a file.
const PATTERNS: usize = 10_000;

/// Why an ignore file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// A line is no pattern.
    #[error("line {0}: {1}")]
    Pattern(usize, #[source] glob::Bad),
    /// `!` alone.
    #[error("line {0}: `!` needs a pattern")]
    Alone(usize),
    /// Too many.
    #[error("more than {PATTERNS} patterns")]
    Many,
}

/// What stays out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    rules: Vec<Rule>,
    /// Whether anything is taken back in: then an ignored directory must be looked into.
    has_exceptions: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    keeps: bool,
}

impl Ignore {
    /// Reads an ignore file.
    pub fn parse(text: &str) -> Result<Self, Bad> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
        Self::of(lines.map(|(at, line)| (at + 1, line)))
    }

    /// Of patterns as flags give them.
    pub fn of_patterns(patterns: &[String]) -> Result<Self, Bad> {
        Self::of(patterns.iter().enumerate().map(|(at, pattern)| (at + 1, pattern.as_str())))
    }

    fn of<'t>(lines: impl Iterator<Item = (usize, &'t str)>) -> Result<Self, Bad> {
        let mut made = Self::default();
        for (number, line) in lines {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let (keeps, pattern) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest.trim()));
            if pattern.is_empty() {
                return Err(Bad::Alone(number));
            }
            let pattern = Pattern::of_ignore(&cleaned(pattern)).map_err(|bad| Bad::Pattern(number, bad))?;
            made.has_exceptions |= keeps;
            made.rules.push(Rule { pattern, keeps });
            if made.rules.len() > PATTERNS {
                return Err(Bad::Many);
            }
        }
        Ok(made)
    }

    /// Whether `path`, relative and without dots, stays out.
    pub fn ignores(&self, path: &str) -> bool {
        let parents: Vec<&str> = path.match_indices('/').filter_map(|(at, _)| path.get(..at)).collect();
        let fits = |rule: &Rule| {
            rule.pattern.matches(path) || parents.iter().any(|parent| rule.pattern.matches(parent))
        };
        self.rules.iter().rev().find(|rule| fits(rule)).is_some_and(|rule| !rule.keeps)
    }

    /// Whether an ignored directory need not be looked into.
    pub fn is_final(&self) -> bool {
        !self.has_exceptions
    }
}

/// The pattern relative to the context: no slash at either end, no `.` and `..`.
fn cleaned(pattern: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in pattern.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ignored(file: &str, path: &str) -> bool {
        Ignore::parse(file).unwrap().ignores(path)
    }

    #[test]
    fn patterns_fit_paths_and_what_is_below() {
        for (file, path, wanted) in [
            ("a", "a", true),
            ("a", "a/b/c", true),
            ("/a/", "a/b", true),
            ("a", "b/a", false),
            ("*/a", "b/a", true),
            ("**/a", "a", true),
            ("**/a", "x/y/a", true),
            ("*.md", "x.md", true),
            ("*.md", "d/x.md", false),
            ("**/*.md", "d/x.md", true),
            ("*.md\n!README.md", "README.md", false),
            ("*.md\n!README.md", "x.md", true),
            ("!README.md\n*.md", "README.md", true),
            ("d\n!d/keep", "d/keep", false),
            ("d\n!d/keep", "d/other", true),
            ("# comment\n\n  a  ", "a", true),
            ("a?", "ab", true),
            ("./a/../b", "b", true),
            ("*\n!src", "src/x", false),
            ("*\n!src", "other", true),
        ] {
            assert_eq!(ignored(file, path), wanted, "{file:?} {path}");
        }
    }

    #[test]
    fn a_bad_pattern_is_told_with_its_line() {
        assert_eq!(Ignore::parse("ok\n[").unwrap_err(), Bad::Pattern(2, glob::Bad::Class));
        assert_eq!(Ignore::parse("!").unwrap_err(), Bad::Alone(1));
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(file in "[a-c*?!#/.\\[\\]\n]{0,60}", path in "[a-c/]{0,20}") {
            if let Ok(read) = Ignore::parse(&file) {
                let _ = read.ignores(&path);
            }
        }
    }
}
