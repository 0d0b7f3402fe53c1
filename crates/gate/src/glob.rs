//! Patterns of paths: `*` stands for any characters but `/`, `**` for any characters, `\*` for a star.
//!
//! ```
//! let glob: airlock_gate::glob::Glob = "/repos/*/issues/**".parse()?;
//! assert!(glob.matches("/repos/acme/issues/7/comments"));
//! assert!(!glob.matches("/repos/acme/web/issues/7"));
//! # Ok::<(), airlock_gate::glob::BadGlob>(())
//! ```

use std::{fmt, str::FromStr};

/// Longest pattern.
const LONGEST: usize = 1024;

/// A pattern of paths. Bytes are compared as they are; who matches normalises first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    /// What stands before the first star, and behind the last.
    head: Box<[u8]>,
    tail: Box<[u8]>,
    /// From the first star to the last; empty where there is none.
    middle: Box<[Part]>,
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// It is empty or too long.
    #[error("a pattern has 1 to {LONGEST} characters")]
    Length,
    /// `***`
    #[error("a pattern has `*` or `**`, not more stars in a row")]
    Stars,
    /// `\x`
    #[error("a backslash stands before a star or another backslash, to mean just that")]
    Escape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// `*`
    Within,
    /// `**`
    Across,
}

impl Glob {
    /// Whether all of `path` fits. Takes time in proportion to the lengths of both, whatever they hold.
    pub fn matches(&self, path: &str) -> bool {
        let Some(rest) = path.as_bytes().strip_prefix(&*self.head) else { return false };
        if self.middle.is_empty() {
            return rest.is_empty();
        }
        let Some(rest) = rest.strip_suffix(&*self.tail) else { return false };
        match &*self.middle {
            [Part::Across] => true,
            [Part::Within] => !rest.contains(&b'/'),
            parts => fits(parts, rest),
        }
    }

    /// Whether everything that `other` matches is known to match this one too; where it is hard to tell, no.
    pub fn covers(&self, other: &Glob) -> bool {
        if self == other {
            return true;
        }
        match (&*self.middle, &*other.middle) {
            // All that begins so.
            ([Part::Across], _) if self.tail.is_empty() => other.head.starts_with(&self.head),
            (_, []) => std::str::from_utf8(&other.head).is_ok_and(|path| self.matches(path)),
            _ => false,
        }
    }

    /// What every path begins with that it matches.
    pub(crate) fn beginning(&self) -> &[u8] {
        &self.head
    }

    /// The one path it matches, if it has no star.
    pub fn literal(&self) -> Option<String> {
        self.middle.is_empty().then(|| String::from_utf8(self.head.to_vec()).ok())?
    }

    /// The pattern that matches `path` and nothing else.
    pub fn exact(path: &str) -> Result<Glob, BadGlob> {
        path.replace('\\', "\\\\").replace('*', "\\*").parse()
    }
}

/// Whether all of `path` fits `parts`, read once from left to right.
fn fits(parts: &[Part], path: &[u8]) -> bool {
    // `here[i]`: what was read so far fits the first i parts.
    let mut here = vec![false; parts.len() + 1];
    let mut next = Vec::with_capacity(here.len());
    if let Some(start) = here.first_mut() {
        *start = true;
    }
    skip_stars(parts, &mut here);
    for byte in path {
        next.clear();
        next.push(false);
        next.extend(parts.iter().zip(here.windows(2)).map(|(part, pair)| match (part, pair) {
            (Part::Byte(own), [before, _]) => *before && own == byte,
            (Part::Within, [_, at]) => *at && *byte != b'/',
            (Part::Across, [_, at]) => *at,
            _ => false,
        }));
        skip_stars(parts, &mut next);
        std::mem::swap(&mut here, &mut next);
    }
    here.last().copied().unwrap_or(false)
}

/// A star may stand for nothing.
fn skip_stars(parts: &[Part], reached: &mut [bool]) {
    let mut before = false;
    let parts = std::iter::once(None).chain(parts.iter().map(Some));
    for (part, reached) in parts.zip(reached) {
        *reached |= before && matches!(part, Some(Part::Within | Part::Across));
        before = *reached;
    }
}

fn parts(text: &str) -> Result<Vec<Part>, BadGlob> {
    let mut parts = Vec::new();
    let mut is_escaped = false;
    for byte in text.bytes() {
        match (byte, parts.last_mut()) {
            (byte, _) if is_escaped => {
                if !matches!(byte, b'*' | b'\\') {
                    return Err(BadGlob::Escape);
                }
                parts.push(Part::Byte(byte));
                is_escaped = false;
            }
            (b'\\', _) => is_escaped = true,
            (b'*', Some(star @ Part::Within)) => *star = Part::Across,
            (b'*', Some(Part::Across)) => return Err(BadGlob::Stars),
            (b'*', _) => parts.push(Part::Within),
            (byte, _) => parts.push(Part::Byte(byte)),
        }
    }
    if is_escaped { Err(BadGlob::Escape) } else { Ok(parts) }
}

/// The bytes at one end, before the first star.
fn bytes<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<u8> {
    let byte = |part: &Part| if let Part::Byte(byte) = part { Some(*byte) } else { None };
    parts.map_while(byte).collect()
}

impl FromStr for Glob {
    type Err = BadGlob;

    fn from_str(text: &str) -> Result<Glob, BadGlob> {
        if text.is_empty() || text.len() > LONGEST {
            return Err(BadGlob::Length);
        }
        let parts = parts(text)?;
        let head = bytes(parts.iter());
        let rest = parts.get(head.len()..).unwrap_or_default();
        let mut tail = bytes(rest.iter().rev());
        let middle = rest.get(..rest.len() - tail.len()).unwrap_or_default();
        tail.reverse();
        Ok(Glob { text: text.to_string(), head: head.into(), tail: tail.into(), middle: middle.into() })
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(glob: &str, path: &str) -> bool {
        glob.parse::<Glob>().unwrap().matches(path)
    }

    #[test]
    fn one_star_stays_within_a_segment() {
        assert!(matches("/repos/acme/*", "/repos/acme/web"));
        assert!(matches("/repos/acme/*", "/repos/acme/"));
        assert!(!matches("/repos/acme/*", "/repos/acme/web/issues"));
        assert!(matches("/a*c", "/abbc"));
        assert!(!matches("/a*c", "/ab/c"));
    }

    #[test]
    fn two_stars_cross_segments() {
        assert!(matches("/repos/acme/**", "/repos/acme/web/issues"));
        assert!(!matches("/repos/acme/**", "/repos/acme-evil/web"));
        assert!(!matches("/repos/acme/**", "/repos/acme"));
        assert!(matches("/**/raw", "/a/b/raw"));
        assert!(matches("**", ""));
    }

    #[test]
    fn a_pattern_matches_the_whole_path() {
        assert!(!matches("/a", "/ab"));
        assert!(!matches("/a", "x/a"));
        assert!(!matches("/A", "/a"));
        assert_eq!("".parse::<Glob>(), Err(BadGlob::Length));
        assert_eq!("/***".parse::<Glob>(), Err(BadGlob::Stars));
    }

    #[test]
    fn many_stars_take_no_longer_than_their_number() {
        let glob: Glob = "*a".repeat(300).parse().unwrap();
        assert!(!glob.matches(&"a".repeat(299)));
        assert!(glob.matches(&"a".repeat(1000)));
    }

    /// The meaning of a pattern, without regard to time.
    fn naive(parts: &[Part], path: &[u8]) -> bool {
        match parts {
            [] => path.is_empty(),
            [Part::Byte(own), rest @ ..] => path.first() == Some(own) && naive(rest, &path[1..]),
            [star, rest @ ..] => {
                let run = path.iter().take_while(|byte| *star == Part::Across || **byte != b'/').count();
                (0..=run).any(|taken| naive(rest, &path[taken..]))
            }
        }
    }

    proptest! {
        #[test]
        fn it_matches_what_the_pattern_means(glob in "[ab/*]{1,8}", path in "[ab/]{0,8}") {
            if let Ok(glob) = glob.parse::<Glob>() {
                prop_assert_eq!(glob.matches(&path), naive(&parts(&glob.text).unwrap(), path.as_bytes()));
            }
        }

        #[test]
        fn a_pattern_without_stars_matches_itself(path in "[^*\\\\]{1,40}") {
            prop_assert!(matches(&path, &path));
        }

        #[test]
        fn an_exact_pattern_matches_its_path_alone(path in "[ab*/\\\\]{1,8}", other in "[ab*/\\\\]{1,8}") {
            let exact = Glob::exact(&path).unwrap();
            prop_assert!(exact.matches(&path));
            prop_assert_eq!(exact.matches(&other), path == other);
        }

        #[test]
        fn what_is_covered_matches_both(wide in "[ab/*]{1,6}", narrow in "[ab/*]{1,6}", path in "[ab/]{0,8}") {
            if let (Ok(wide), Ok(narrow)) = (wide.parse::<Glob>(), narrow.parse::<Glob>()) {
                prop_assert!(!wide.covers(&narrow) || !narrow.matches(&path) || wide.matches(&path));
            }
        }

        #[test]
        fn any_pattern_and_path_are_taken(glob in ".{0,60}", path in ".{0,60}") {
            if let Ok(glob) = glob.parse::<Glob>() {
                let _ = glob.matches(&path);
            }
        }
    }
}
