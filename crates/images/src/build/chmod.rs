//! `--chmod`: a mode in octal, or changes in the words of chmod(1). Pure and total.
//!
//! ```
//! use airlock_images::build::chmod::Chmod;
//!
//! let words: Chmod = "u+x,go-w".parse().unwrap();
//! assert_eq!(words.applied(0o666, false), 0o744);
//! ```

use std::str::FromStr;

/// What becomes of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chmod {
    /// It is this.
    Octal(u32),
    /// It is changed, one after the other.
    Words(Vec<Change>),
}

/// One change: for whom, how, and which bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Bits of `ugo` that are concerned, such as `0o4700` for the owner's.
    who: u32,
    how: How,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// These bits; `X` where somebody may execute it already, or it is a directory.
    Bits { bits: u32, if_executable: bool },
    /// What these have now: the shift of their bits.
    Same(u32),
}

/// Why a text is no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--chmod takes an octal mode, or words such as u=rwX,go-w, not `{0}`")]
pub struct Bad(String);

/// What a change without `u`, `g`, `o` or `a` leaves alone, as in a builder that runs with the usual mask.
const MASK: u32 = 0o022;
const EVERYBODY: u32 = 0o7777;

impl FromStr for Chmod {
    type Err = Bad;

    fn from_str(text: &str) -> Result<Chmod, Bad> {
        let bad = || Bad(text.to_owned());
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= EVERYBODY);
            return mode.map(Chmod::Octal).ok_or_else(bad);
        }
        let mut changes = Vec::new();
        for clause in text.split(',') {
            changes.extend(clause_of(clause).ok_or_else(bad)?);
        }
        Ok(Chmod::Words(changes))
    }
}

impl Chmod {
    /// The mode of what has `mode` now.
    pub fn applied(&self, mode: u32, is_directory: bool) -> u32 {
        match self {
            Chmod::Octal(mode) => *mode,
            Chmod::Words(changes) => {
                changes.iter().fold(mode, |mode, change| change.applied(mode, is_directory))
            }
        }
    }
}

impl Change {
    fn applied(&self, mode: u32, is_directory: bool) -> u32 {
        let bits = match self.what {
            What::Bits { bits, if_executable } => {
                let execute = if_executable && (is_directory || mode & 0o111 != 0);
                bits | if execute { 0o111 } else { 0 }
            }
            What::Same(shift) => ((mode >> shift) & 0o7) * 0o111,
        };
        let bits = bits & self.who;
        match self.how {
            How::Add => mode | bits,
            How::Remove => mode & !bits,
            // As chmod(1) does it, a directory keeps its set-id bits unless they are named.
            How::Set if is_directory => (mode & !(self.who & 0o1777)) | bits,
            How::Set => (mode & !self.who) | bits,
        }
    }
}

/// `[ugoa]*([-+=][rwxXst]*|[-+=][ugo])+`
fn clause_of(clause: &str) -> Option<Vec<Change>> {
    let end = clause.find(['+', '-', '='])?;
    let (whom, mut rest) = clause.split_at(end);
    let mut who = if whom.is_empty() { EVERYBODY & !MASK } else { 0 };
    for letter in whom.chars() {
        who |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => EVERYBODY,
            _ => return None,
        };
    }
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let mut letters = rest.chars();
        let how = match letters.next()? {
            '+' => How::Add,
            '-' => How::Remove,
            '=' => How::Set,
            _ => return None,
        };
        let rest_of = letters.as_str();
        let end = rest_of.find(['+', '-', '=']).unwrap_or(rest_of.len());
        let (bits, after) = rest_of.split_at(end);
        changes.push(Change { who, how, what: what_of(bits)? });
        rest = after;
    }
    Some(changes)
}

fn what_of(letters: &str) -> Option<What> {
    match letters {
        "u" => return Some(What::Same(6)),
        "g" => return Some(What::Same(3)),
        "o" => return Some(What::Same(0)),
        _ => {}
    }
    let (mut bits, mut if_executable) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            'X' => if_executable = true,
            's' => bits |= 0o6000,
            't' => bits |= 0o1000,
            _ => return None,
        }
    }
    Some(What::Bits { bits, if_executable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_mean_what_chmod_takes_them_for() {
        for (text, mode, is_directory, wanted) in [
            ("755", 0o600, false, 0o755),
            ("0640", 0o777, true, 0o640),
            ("u+x", 0o644, false, 0o744),
            ("u+x,go-w", 0o666, false, 0o744),
            ("a=r", 0o777, false, 0o444),
            ("u=rwX,go=rX", 0o600, false, 0o644),
            ("u=rwX,go=rX", 0o700, false, 0o755),
            ("u=rwX,go=rX", 0o600, true, 0o755),
            ("go=u", 0o740, false, 0o777),
            ("g=u-w", 0o740, false, 0o750),
            ("u+s", 0o755, false, 0o4755),
            ("g+s", 0o755, true, 0o2755),
            ("+t", 0o777, true, 0o1777),
            ("+w", 0o444, false, 0o644),
            ("+x", 0o644, false, 0o755),
            ("o=", 0o777, false, 0o770),
            ("u=rwx", 0o2755, true, 0o2755),
        ] {
            assert_eq!(
                text.parse::<Chmod>().unwrap().applied(mode, is_directory),
                wanted,
                "{text} of {mode:o}"
            );
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "8", "77777", "u", "x+u", "u+q", "u+x,", "rwx", "u!x", "u+ug"] {
            assert_eq!(text.parse::<Chmod>(), Err(Bad(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_mode_or_not(text in "[ugoarwxXst+=,7-]{0,12}", mode in 0u32..0o10000) {
            if let Ok(chmod) = text.parse::<Chmod>() {
                prop_assert!(chmod.applied(mode, false) <= EVERYBODY && chmod.applied(mode, true) <= EVERYBODY);
            }
        }
    }
}
