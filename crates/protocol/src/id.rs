//! Identifiers of sandboxes.
//!
//! ```
//! use airlock_protocol::{Name, SandboxId};
//! let id: SandboxId = "3f9a0c2e7b14".parse()?;
//! assert_eq!(id.as_str(), "3f9a0c2e7b14");
//! assert!("../etc".parse::<SandboxId>().is_err());
//! assert!("my-project_2".parse::<Name>().is_ok());
//! # Ok::<(), airlock_protocol::id::Invalid>(())
//! ```

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Twelve lower-case hexadecimal digits; also the name of the sandbox's directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// What a person calls a sandbox: a letter or digit, then letters, digits, `-`, `_`, `.`; at most 63 long.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// A text that is not an identifier of this kind.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a sandbox {kind}: {rule}")]
pub struct Invalid {
    kind: &'static str,
    rule: &'static str,
    text: String,
}

impl SandboxId {
    /// Number of digits.
    pub const LEN: usize = 12;

    /// The id made of six random bytes.
    pub fn from_random(bytes: [u8; 6]) -> SandboxId {
        SandboxId(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Name {
    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<SandboxId, Invalid> {
        let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == SandboxId::LEN && text.bytes().all(digits) {
            return Ok(SandboxId(text.to_owned()));
        }
        Err(Invalid { kind: "id", rule: "it has twelve digits 0-9a-f", text: shortened(text) })
    }
}

impl FromStr for Name {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Name, Invalid> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if starts && text.len() <= 63 && text.bytes().all(plain) {
            return Ok(Name(text.to_owned()));
        }
        let rule = "a letter or digit, then letters, digits, '-', '_' and '.', at most 63 characters";
        Err(Invalid { kind: "name", rule, text: shortened(text) })
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

macro_rules! text_form {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $type {
            type Error = Invalid;
            fn try_from(text: String) -> Result<Self, Invalid> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.0
            }
        }
    };
}
text_form!(SandboxId);
text_form!(Name);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_parses_back() {
        let id = SandboxId::from_random([0, 1, 0xab, 0xff, 9, 16]);
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
    }

    #[test]
    fn names_that_could_be_paths_or_options_are_refused() {
        for bad in ["", ".", "..", "-x", "a/b", "a b", "ä", &"a".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}
