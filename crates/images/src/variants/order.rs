//! In which order packages are unpacked and set up, as `apt-get --simulate install` tells it. Pure.

use thiserror::Error;

/// A run of packages that are unpacked, or set up, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Their files are laid out.
    Unpack(Vec<String>),
    /// Their scripts run.
    Configure(Vec<String>),
}

/// Why nothing can be made of what it said.
#[derive(Debug, Error)]
pub enum Error {
    /// A line without a package.
    #[error("the package client said {line:?}, which names no package")]
    Line {
        /// The line, cut.
        line: String,
    },
    /// No package at all.
    #[error("the package client would install nothing")]
    Nothing,
}

/// Most packages of one image.
const MOST: usize = 20_000;

/// Whether a word can be a package's name (Debian policy 5.6.1), with its architecture behind it or not.
pub fn is_name(word: &str) -> bool {
    let (name, architecture) = word.split_once(':').unwrap_or((word, "any"));
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() >= 2
        && name.len() <= 128
        && name.bytes().next().is_some_and(is_plain)
        && name.bytes().all(|byte| is_plain(byte) || b"+.-".contains(&byte))
        && !architecture.is_empty()
        && architecture.bytes().all(|byte| is_plain(byte) || byte == b'-')
}

/// Reads what a simulated installation said.
pub fn turns(said: &str) -> Result<Vec<Turn>, Error> {
    let mut turns: Vec<Turn> = Vec::new();
    for line in said.lines().take(2 * MOST) {
        let mut words = line.split_ascii_whitespace();
        let kind = words.next();
        if !matches!(kind, Some("Inst" | "Conf")) {
            continue;
        }
        let named = words.next().filter(|name| is_name(name));
        let name = named.ok_or_else(|| Error::Line { line: line.chars().take(80).collect() })?.to_owned();
        match (kind, turns.last_mut()) {
            (Some("Inst"), Some(Turn::Unpack(names))) | (Some("Conf"), Some(Turn::Configure(names))) => {
                names.push(name);
            }
            (Some("Inst"), _) => turns.push(Turn::Unpack(vec![name])),
            _ => turns.push(Turn::Configure(vec![name])),
        }
    }
    if unpacked(&turns).next().is_none() {
        return Err(Error::Nothing);
    }
    Ok(turns)
}

/// Every package that is unpacked, in order.
pub fn unpacked(turns: &[Turn]) -> impl Iterator<Item = &str> {
    let names = turns.iter().flat_map(|turn| match turn {
        Turn::Unpack(names) => names.as_slice(),
        Turn::Configure(_) => &[],
    });
    names.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_of_one_kind_are_taken_together() {
        let said = "Reading package lists...\n\
            Inst gcc-12-base (12.2.0-14 Debian:12.15/oldstable [amd64])\n\
            Conf gcc-12-base (12.2.0-14 Debian:12.15/oldstable [amd64])\n\
            Inst libc6 (2.36-9 Debian:12.15/oldstable [amd64]) []\n\
            Inst libgcc-s1 (12.2.0-14 Debian:12.15/oldstable [amd64])\n\
            Conf libgcc-s1 (12.2.0-14 Debian:12.15/oldstable [amd64])\n\
            Conf libc6 (2.36-9 Debian:12.15/oldstable [amd64])\n";

        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            turns(said).unwrap(),
            [
                Turn::Unpack(names(&["gcc-12-base"])),
                Turn::Configure(names(&["gcc-12-base"])),
                Turn::Unpack(names(&["libc6", "libgcc-s1"])),
                Turn::Configure(names(&["libgcc-s1", "libc6"])),
            ]
        );
    }

    #[test]
    fn nothing_that_a_shell_would_read_is_a_name() {
        assert!(["libc6", "g++", "python3.11", "libc6:amd64"].into_iter().all(is_name));
        assert!(
            !["a", "-x", "a b", "a$b", "a;b", "a/b", "*", "libc6:", "libc6:a/b", "ä1"]
                .into_iter()
                .any(is_name)
        );
        assert!(matches!(turns("Inst $(reboot) (1)"), Err(Error::Line { .. })));
        assert!(matches!(turns("Inst"), Err(Error::Line { .. })));
        assert!(matches!(turns("all is up to date\n"), Err(Error::Nothing)));
    }

    proptest! {
        #[test]
        fn whatever_it_says_only_names_come_out(said in "(?s)((Inst|Conf|x) ?[ -~]{0,20}\n){0,20}") {
            if let Ok(turns) = turns(&said) {
                for turn in turns {
                    let (Turn::Unpack(names) | Turn::Configure(names)) = turn;
                    prop_assert!(names.iter().all(|name| is_name(name)));
                }
            }
        }
    }
}
