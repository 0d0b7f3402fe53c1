//! Globs over paths: `*` and `?` stop at `/`, `**` stands for any number of directories.
//!
//! One without `/` is meant at any depth; one with `/` begins at the workspace.

use super::fold::fold;

/// A glob, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`: any number of directories.
    Any,
    /// One name, with `*` and `?` in it.
    Name(Vec<u8>),
}

/// A glob that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a pattern of paths: {why}")]
pub struct BadPattern {
    /// As it was written.
    pub pattern: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Longest pattern.
const LONGEST: usize = 1024;

impl Glob {
    /// One that is compared with folded names.
    pub(super) fn folded(text: &str) -> Result<Glob, BadPattern> {
        let Glob(parts) = Glob::exact(text)?;
        let fold_part = |part| match part {
            Part::Name(name) => Part::Name(fold_pattern(&name)),
            Part::Any => Part::Any,
        };
        Ok(Glob(parts.into_iter().map(fold_part).collect()))
    }

    /// One that is compared with names as they are.
    pub(super) fn exact(text: &str) -> Result<Glob, BadPattern> {
        let bad = |why| BadPattern { pattern: text.to_owned(), why };
        let anchored = text.strip_prefix('/').unwrap_or(text);
        let plain = anchored.strip_suffix('/').unwrap_or(anchored);
        if plain.is_empty() {
            return Err(bad("it is empty"));
        }
        if plain.len() > LONGEST {
            return Err(bad("it is too long"));
        }
        if plain.contains('\0') {
            return Err(bad("no path holds a zero byte"));
        }
        let mut parts = Vec::new();
        if !text.starts_with('/') && !plain.contains('/') {
            parts.push(Part::Any);
        }
        for part in plain.split('/') {
            parts.push(match part {
                "" => return Err(bad("it has an empty part (`//`)")),
                "." | ".." => return Err(bad("`.` and `..` are no names")),
                "**" => Part::Any,
                name => Part::Name(name.as_bytes().to_vec()),
            });
        }
        Ok(Glob(parts))
    }

    /// The last name of what it means, where there is just one.
    pub(super) fn last_name(&self) -> Option<&[u8]> {
        match self.0.last() {
            Some(Part::Name(name)) if !name.iter().any(|byte| b"*?".contains(byte)) => Some(name),
            _ => None,
        }
    }

    /// Whether its last name can be this one.
    pub(super) fn matches_last(&self, name: &[u8]) -> bool {
        match self.0.last() {
            Some(Part::Name(pattern)) => matches_name(pattern, name),
            Some(Part::Any) | None => true,
        }
    }

    /// Whether it means this path.
    pub(super) fn matches(&self, names: &[Vec<u8>]) -> bool {
        self.reached(names).last().copied().unwrap_or(false)
    }

    /// Whether it means this path or a directory above it.
    pub(super) fn matches_a_beginning_of(&self, names: &[Vec<u8>]) -> bool {
        self.reached(names).iter().skip(1).any(|reached| *reached)
    }

    /// For each number of leading names, whether the whole glob means just these.
    fn reached(&self, names: &[Vec<u8>]) -> Vec<bool> {
        let mut reached = vec![false; names.len() + 1];
        if let Some(first) = reached.first_mut() {
            *first = true;
        }
        for part in &self.0 {
            reached = match part {
                Part::Any => spread(&reached),
                Part::Name(pattern) => step(&reached, names, pattern),
            };
        }
        reached
    }
}

/// After `**`: everything from the first place reached on.
fn spread(reached: &[bool]) -> Vec<bool> {
    reached
        .iter()
        .scan(false, |any, here| {
            *any |= *here;
            Some(*any)
        })
        .collect()
}

/// After a name: one further where it matches.
fn step(reached: &[bool], names: &[Vec<u8>], pattern: &[u8]) -> Vec<bool> {
    let further = reached.iter().zip(names).map(|(here, name)| *here && matches_name(pattern, name));
    std::iter::once(false).chain(further).collect()
}

/// `*` and `?` in one name. Never backtracks further than to the last `*`.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(at) {
        match pattern.get(of) {
            Some(b'*') => {
                star = Some((of + 1, at));
                of += 1;
            }
            Some(b'?') => (at, of) = (at + char_length(*byte), of + 1),
            Some(same) if same == byte => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                (at, of) = (from + 1, after);
            }
        }
    }
    pattern.get(of..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// How many bytes a character takes that begins with this one.
fn char_length(first: u8) -> usize {
    match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    }
}

/// Folds a name with `*` in it: a dot or space before `*` is not at the end.
fn fold_pattern(name: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(name);
    match text.contains(['*', '?']) {
        true => text
            .chars()
            .flat_map(char::to_uppercase)
            .flat_map(char::to_lowercase)
            .collect::<String>()
            .into_bytes(),
        false => fold(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(glob: &str, path: &str) -> bool {
        let names: Vec<Vec<u8>> = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
        Glob::exact(glob).unwrap().matches(&names)
    }

    #[test]
    fn a_star_stops_at_a_slash_and_two_do_not() {
        assert!(matches("a/*.sh", "a/b.sh"));
        assert!(!matches("a/*.sh", "a/b/c.sh"));
        assert!(matches("a/**/*.sh", "a/b/c/d.sh"));
        assert!(matches("a/**/*.sh", "a/d.sh"));
        assert!(matches("**", "a/b"));
        assert!(matches("a?c", "x/aéc"));
    }

    #[test]
    fn one_without_a_slash_is_meant_at_any_depth() {
        assert!(matches("Makefile", "a/b/Makefile"));
        assert!(!matches("/Makefile", "a/Makefile"));
        assert!(!matches("b/Makefile", "a/b/Makefile"));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for bad in ["", "/", "a//b", "../x", "a/./b", "a\0b", &"x".repeat(2000)] {
            assert!(Glob::exact(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_plain_name_means_itself(name in "[a-z.]{1,12}") {
            prop_assume!(name != "." && name != "..");
            prop_assert!(matches(&name, &name));
            let wide = format!("*{name}*");
            prop_assert!(matches(&wide, &name));
        }

        #[test]
        fn many_stars_are_no_work(stars in 1usize..60, length in 0usize..255) {
            let glob = "a*".repeat(stars) + "b";
            prop_assert!(!matches(&glob, &("a".repeat(length) + "c")));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}", path in "\\PC{0,60}") {
            if let Ok(glob) = Glob::folded(&text) {
                let names: Vec<Vec<u8>> = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
                let _ = glob.matches_a_beginning_of(&names);
            }
        }
    }
}
