//! Patterns of paths, as Go's `filepath.Match` and Docker's ignore files read them. Pure and total: each takes time in
//! proportion to the lengths of both, whatever they hold.

/// Most bytes of a pattern.
const LONGEST: usize = 4096;

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// `[` without `]`, or nothing in it.
    #[error("`[` in a pattern has no `]`, or nothing in it")]
    Class,
    /// A backslash at the end.
    #[error("a pattern ends with a backslash")]
    Escape,
    /// Too long.
    #[error("a pattern has at most {LONGEST} bytes")]
    Length,
}

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Char(char),
    /// `?`
    One,
    /// `[a-z]`, `[^a]`
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    /// `*`
    Within,
    /// `**`
    Across,
    /// `**/`: nothing, or whole directories
    Directories,
}

/// Whether `text` has characters that mean something in a pattern.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

impl Pattern {
    /// A pattern of `filepath.Match`: `*`, `?`, `[…]` and `\x`, none of which fits a slash.
    pub fn of_go(text: &str) -> Result<Self, Bad> {
        parse(text, Stars::Single)
    }

    /// A pattern of an ignore file: as in Go, and `**`, which fits slashes.
    pub fn of_ignore(text: &str) -> Result<Self, Bad> {
        parse(text, Stars::Double)
    }

    /// Whether all of `path` fits.
    pub fn matches(&self, path: &str) -> bool {
        let path: Vec<char> = path.chars().collect();
        let mut at = vec![false; path.len() + 1];
        if let Some(first) = at.first_mut() {
            *first = true;
        }
        for part in &self.0 {
            at = step(part, &path, &at);
            if !at.contains(&true) {
                return false;
            }
        }
        at.last().copied().unwrap_or(false)
    }
}

/// Whether all of `text` fits a pattern of the shell: `*` and `?` fit anything, a slash too.
pub fn shell(pattern: &str, text: &str) -> bool {
    let mut parts = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        parts.push(match char {
            '*' => Part::Across,
            '?' => Part::Class { ranges: Vec::new(), negated: true },
            '\\' => Part::Char(chars.next().unwrap_or('\\')),
            char => Part::Char(char),
        });
    }
    Pattern(parts).matches(text)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stars {
    Single,
    Double,
}

fn parse(text: &str, stars: Stars) -> Result<Pattern, Bad> {
    if text.len() > LONGEST {
        return Err(Bad::Length);
    }
    let mut parts = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        parts.push(match char {
            '*' if stars == Stars::Double && chars.next_if_eq(&'*').is_some() => {
                if chars.next_if_eq(&'/').is_some() { Part::Directories } else { Part::Across }
            }
            '*' => Part::Within,
            '?' => Part::One,
            '[' => class(&mut chars)?,
            '\\' => Part::Char(chars.next().ok_or(Bad::Escape)?),
            char => Part::Char(char),
        });
    }
    Ok(Pattern(parts))
}

fn class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Part, Bad> {
    let negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        if !ranges.is_empty() && chars.next_if_eq(&']').is_some() {
            return Ok(Part::Class { ranges, negated });
        }
        let low = member(chars)?;
        let high = if chars.next_if_eq(&'-').is_some() { member(chars)? } else { low };
        ranges.push((low, high));
    }
}

fn member(chars: &mut impl Iterator<Item = char>) -> Result<char, Bad> {
    match chars.next() {
        None | Some(']' | '-') => Err(Bad::Class),
        Some('\\') => chars.next().ok_or(Bad::Class),
        Some(char) => Ok(char),
    }
}

/// Where a match may stand behind `part`, if it may stand at `before`.
fn step(part: &Part, path: &[char], before: &[bool]) -> Vec<bool> {
    let mut after = vec![false; before.len()];
    let mut open = false;
    for (at, may) in before.iter().enumerate() {
        let next = path.get(at);
        match part {
            Part::Within | Part::Across | Part::Directories => {
                let is_start = *may;
                open |= is_start;
                let stands = match part {
                    Part::Directories => is_start || (open && at > 0 && path.get(at - 1) == Some(&'/')),
                    _ => open,
                };
                if let Some(slot) = after.get_mut(at) {
                    *slot = stands;
                }
                if *part == Part::Within && next == Some(&'/') {
                    open = false;
                }
            }
            _ if *may && next.is_some_and(|char| fits(part, *char)) => {
                if let Some(slot) = after.get_mut(at + 1) {
                    *slot = true;
                }
            }
            _ => {}
        }
    }
    after
}

fn fits(part: &Part, char: char) -> bool {
    match part {
        Part::Char(wanted) => *wanted == char,
        Part::One => char != '/',
        // An empty class is the shell's question mark.
        Part::Class { ranges, negated } if ranges.is_empty() => *negated,
        Part::Class { ranges, negated } => {
            char != '/' && ranges.iter().any(|(low, high)| (*low..=*high).contains(&char)) != *negated
        }
        Part::Within | Part::Across | Part::Directories => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_fit_as_in_go() {
        for (pattern, text, wanted) in [
            ("abc", "abc", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "ab/c", false),
            ("a*/b", "abc/b", true),
            ("a*b*c*d*e*/f", "axbxcxdxe/f", true),
            ("a*b*c*d*e*/f", "axbxcxdxexxx/fff", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[^c]", "abc", false),
            ("ab[^b-d]", "abe", true),
            ("a\\*b", "a*b", true),
            ("a?b", "a/b", false),
            ("a[^a]b", "a☺b", true),
            ("[\\]a]", "]", true),
            ("*x", "xxx", true),
        ] {
            assert_eq!(Pattern::of_go(pattern).unwrap().matches(text), wanted, "{pattern} {text}");
        }
        for bad in ["[]a]", "[", "[^", "[a-", "a[", "[-x]", "a\\"] {
            assert!(Pattern::of_go(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn two_stars_fit_directories() {
        for (pattern, text, wanted) in [
            ("**", "a/b", true),
            ("**/c", "c", true),
            ("**/c", "a/b/c", true),
            ("**/c", "a/bc", false),
            ("a/**", "a/b/c", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/b/d/c", true),
            ("**/*.go", "x/y.go", true),
        ] {
            assert_eq!(Pattern::of_ignore(pattern).unwrap().matches(text), wanted, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_fits_or_not(pattern in "[a-c*?\\[\\]^\\\\/-]{0,30}", text in "[a-c/]{0,30}") {
            for parsed in [Pattern::of_go(&pattern), Pattern::of_ignore(&pattern)].into_iter().flatten() {
                let _ = parsed.matches(&text);
            }
            let _ = shell(&pattern, &text);
        }

        #[test]
        fn a_text_fits_itself(text in "[a-z/.]{0,30}") {
            prop_assert!(Pattern::of_go(&text).unwrap().matches(&text));
        }
    }
}
