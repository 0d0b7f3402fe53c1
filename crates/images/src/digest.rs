//! Names of content: SHA-256, written as images write it.
//!
//! ```
//! use airlock_images::digest::Digest;
//!
//! let digest = Digest::of(b"");
//! assert_eq!(digest.to_string(), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
//! assert_eq!("sha256:12".parse::<Digest>().ok(), None);
//! ```

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// The SHA-256 of some content. Nothing else names content here: an image that uses another algorithm is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Why a text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no digest: sha256: and 64 hexadecimal digits are expected")]
pub struct ParseDigestError(String);

/// What the digest of a stream is taken with.
#[derive(Debug, Clone, Default)]
pub struct Hasher {
    hash: Sha256,
    bytes: u64,
}

/// How many hexadecimal digits a digest has.
pub const DIGITS: usize = 64;

/// How much of a wrong digest an error repeats.
const SHOWN: usize = 100;

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest with these 64 hexadecimal digits, in lower case.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(digits.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// Its 64 hexadecimal digits: the name of its file in a store.
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// Its first twelve digits, as people see ids.
    pub fn short(&self) -> String {
        self.hex().chars().take(12).collect()
    }

    /// Whether this is what `bytes` have for a digest.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        *self == Self::of(bytes)
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:");
        digits.and_then(Self::from_hex).ok_or_else(|| {
            let shown = text.chars().take(SHOWN).flat_map(char::escape_default).collect();
            ParseDigestError(shown)
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Hasher {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// How many bytes it has taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of all of them.
    pub fn finish(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_digest_is_written_as_it_is_read() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let digest: Digest = text.parse().unwrap();
        assert_eq!(digest.to_string(), text);
        assert_eq!(serde_json::to_string(&digest).unwrap(), format!("{text:?}"));
        assert_eq!(digest.short(), "e3b0c44298fc");
    }

    #[test]
    fn other_algorithms_lengths_cases_and_paths_are_no_digests() {
        let good = Digest::of(b"").hex();
        let bad = [
            String::new(),
            good.clone(),
            format!("sha512:{good}"),
            format!("sha256:{}", good.to_uppercase()),
            format!("sha256:{good}0"),
            format!("sha256:{}", &good[1..]),
            format!("sha256:../{}", &good[3..]),
            format!("sha256:{good}\n"),
        ];
        for text in bad {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrong_digest_reaches_no_terminal_with_control_characters() {
        let error = "sha256:\u{1b}[2J".parse::<Digest>().unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,90}") {
            if let Ok(digest) = text.parse::<Digest>() {
                prop_assert_eq!(digest.to_string(), text);
            }
        }

        #[test]
        fn a_stream_in_pieces_has_the_digest_of_the_whole(pieces in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut hasher = Hasher::new();
            for piece in &pieces {
                hasher.update(piece);
            }
            let whole = pieces.concat();
            prop_assert_eq!(hasher.bytes(), whole.len() as u64);
            prop_assert_eq!(hasher.finish(), Digest::of(&whole));
        }
    }
}
