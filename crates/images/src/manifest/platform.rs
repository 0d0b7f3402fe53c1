//! What a program runs on: an operating system and a processor.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Other;

/// A platform, with Go's names for systems and processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The processor: `amd64`, `arm64`.
    pub architecture: String,
    /// The system: `linux`.
    pub os: String,
    /// Which of the processors: `v8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Other,
}

/// Why a text is no platform.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no platform: linux/amd64 and linux/arm64/v8 are ones")]
pub struct ParsePlatformError(String);

impl Platform {
    /// What this program runs on.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: None,
            other: Other::new(),
        }
    }

    /// Whether this platform runs programs of another, and how close it is: larger is closer. A variant runs on itself and
    /// on higher ones, and what has no variant runs on all.
    pub fn runs(&self, program: &Self) -> Option<u32> {
        if self.os != program.os || self.architecture != program.architecture {
            return None;
        }
        match (self.level(), program.level()) {
            (ours, theirs) if ours == theirs => Some(u32::MAX),
            (_, None) => Some(0),
            (None, Some(theirs)) => (self.variant.is_none() && theirs <= 1).then_some(1),
            (Some(ours), Some(theirs)) => (theirs <= ours).then_some(theirs),
        }
    }

    /// The number of the variant; `arm64` without one is `v8`.
    fn level(&self) -> Option<u32> {
        match &self.variant {
            Some(variant) => variant.strip_prefix('v').and_then(|number| number.parse().ok()),
            None => (self.architecture == "arm64").then_some(8),
        }
    }
}

impl FromStr for Platform {
    type Err = ParsePlatformError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_word = |word: &&str| {
            let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
            !word.is_empty() && word.len() <= 40 && word.bytes().all(is_inside)
        };
        let refused = || ParsePlatformError(text.chars().take(60).flat_map(char::escape_default).collect());
        let parts: Vec<&str> = text.split('/').take(4).collect();
        let (os, architecture, variant) = match parts.as_slice() {
            _ if !parts.iter().all(is_word) => return Err(refused()),
            [os, architecture] => (*os, *architecture, None),
            [os, architecture, variant] => (*os, *architecture, Some((*variant).to_owned())),
            _ => return Err(refused()),
        };
        let architecture = match architecture {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Ok(Self { architecture: architecture.to_owned(), os: os.to_owned(), variant, other: Other::new() })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(out, "/{variant}"),
            None => Ok(()),
        }
    }
}
