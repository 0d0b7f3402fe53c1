//! Patterns of paths: `*` stands for any characters but `/`, `**` for any characters.
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
    parts: Vec<Part>,
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// It is empty or too long.
    #[error("a path pattern has 1 to {LONGEST} characters")]
    Length,
    /// `***`
    #[error("a path pattern has `*` or `**`, not more stars in a row")]
    Stars,
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
        // `here[i]`: what was read so far fits the first i parts.
        let mut here = vec![false; self.parts.len() + 1];
        if let Some(start) = here.first_mut() {
            *start = true;
        }
        self.skip_stars(&mut here);
        for byte in path.bytes() {
            let mut next = vec![false];
            for (part, pair) in self.parts.iter().zip(here.windows(2)) {
                let [before, at] = pair else { continue };
                next.push(match part {
                    Part::Byte(own) => *before && *own == byte,
                    Part::Within => *at && byte != b'/',
                    Part::Across => *at,
                });
            }
            self.skip_stars(&mut next);
            here = next;
        }
        here.last().copied().unwrap_or(false)
    }

    /// A star may stand for nothing.
    fn skip_stars(&self, reached: &mut [bool]) {
        let mut before = false;
        let parts = std::iter::once(None).chain(self.parts.iter().map(Some));
        for (part, reached) in parts.zip(reached) {
            *reached |= before && matches!(part, Some(Part::Within | Part::Across));
            before = *reached;
        }
    }
}

impl FromStr for Glob {
    type Err = BadGlob;

    fn from_str(text: &str) -> Result<Glob, BadGlob> {
        if text.is_empty() || text.len() > LONGEST {
            return Err(BadGlob::Length);
        }
        let mut parts = Vec::new();
        for byte in text.bytes() {
            match (byte, parts.last_mut()) {
                (b'*', Some(star @ Part::Within)) => *star = Part::Across,
                (b'*', Some(Part::Across)) => return Err(BadGlob::Stars),
                (b'*', _) => parts.push(Part::Within),
                (byte, _) => parts.push(Part::Byte(byte)),
            }
        }
        Ok(Glob { text: text.to_string(), parts })
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
                prop_assert_eq!(glob.matches(&path), naive(&glob.parts, path.as_bytes()));
            }
        }

        #[test]
        fn a_pattern_without_stars_matches_itself(path in "[^*]{1,40}") {
            prop_assert!(matches(&path, &path));
        }

        #[test]
        fn any_pattern_and_path_are_taken(glob in ".{0,60}", path in ".{0,60}") {
            if let Ok(glob) = glob.parse::<Glob>() {
                let _ = glob.matches(&path);
            }
        }
    }
}
