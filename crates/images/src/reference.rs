//! Names of images, in the grammar that docker reads: `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`.
//!
//! A first part with a dot, a colon or a capital letter, or `localhost`, is a registry. A name without one has none: which
//! registry it is pulled from is a setting, not a matter of grammar.
//!
//! ```
//! use airlock_images::reference::Reference;
//!
//! let name: Reference = "registry.test:5000/team/tool:1.2".parse()?;
//! assert_eq!(name.registry.as_deref(), Some("registry.test:5000"));
//! assert_eq!(name.repository, "team/tool");
//! let short: Reference = "busybox".parse()?;
//! assert_eq!(short.with_default_tag().to_string(), "busybox:latest");
//! # Ok::<(), airlock_images::reference::ParseReferenceError>(())
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::digest::{self, Digest};

/// The name of an image. What is in it obeys the grammar, so it may stand in addresses and files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The host, and perhaps the port, of the registry; none in a short name.
    pub registry: Option<String>,
    /// The path in the registry.
    pub repository: String,
    /// The tag after the colon.
    pub tag: Option<String>,
    /// The manifest that is meant, whatever the tag says.
    pub digest: Option<Digest>,
}

/// Why a text is no name of an image.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is no name of an image: {why}")]
pub struct ParseReferenceError {
    text: String,
    why: Why,
}

/// The tag of a name that has none.
pub const DEFAULT_TAG: &str = "latest";

/// The longest name without tag and digest, and the longest tag.
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;

/// How much of a wrong name an error repeats.
const SHOWN: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
enum Why {
    #[error("it is empty")]
    Empty,
    #[error("it has more than 255 characters before its tag")]
    Long,
    #[error("its registry is no host name with an optional port")]
    Registry,
    #[error("its repository must be in lower case")]
    Capitals,
    #[error(
        "parts of its repository are small letters and digits, with single `.` or `_`, `__` or hyphens between them"
    )]
    Repository,
    #[error("its tag is at most 128 letters, digits, `_`, `.` and `-`, and begins with none of the last two")]
    Tag,
    #[error("its digest is not sha256: and 64 hexadecimal digits")]
    Digest,
    #[error("64 hexadecimal digits are an id")]
    Id,
}

impl Reference {
    /// The name without tag and digest.
    pub fn name(&self) -> String {
        match &self.registry {
            Some(registry) => format!("{registry}/{}", self.repository),
            None => self.repository.clone(),
        }
    }

    /// The same with the tag `latest`, if it has neither tag nor digest.
    #[must_use]
    pub fn with_default_tag(mut self) -> Self {
        if self.tag.is_none() && self.digest.is_none() {
            self.tag = Some(DEFAULT_TAG.to_owned());
        }
        self
    }

    /// The same name and tag without a digest; with the tag `latest` if it has none: what a record can be tagged with.
    #[must_use]
    pub fn as_tag(&self) -> Self {
        Self { digest: None, ..self.clone() }.with_default_tag()
    }

    /// The repository with this digest, without a tag.
    #[must_use]
    pub fn at(&self, digest: Digest) -> Self {
        Self { tag: None, digest: Some(digest), ..self.clone() }
    }
}

impl FromStr for Reference {
    type Err = ParseReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|why| {
            let text = text.chars().take(SHOWN).flat_map(char::escape_default).collect();
            ParseReferenceError { text, why }
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(registry) = &self.registry {
            write!(out, "{registry}/")?;
        }
        out.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(out, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(out, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// After github.com/distribution/reference, `regexp.go` and `normalize.go`.
fn parse(text: &str) -> Result<Reference, Why> {
    if text.is_empty() {
        return Err(Why::Empty);
    }
    if Digest::from_hex(text).is_some() {
        return Err(Why::Id);
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| Why::Digest)?)),
        None => (text, None),
    };
    let (name, tag) = split_tag(rest);
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(Why::Tag);
    }
    if name.len() > LONGEST_NAME {
        return Err(Why::Long);
    }
    let (registry, repository) = split_registry(name);
    if registry.is_some_and(|registry| !is_registry(registry)) {
        return Err(Why::Registry);
    }
    if !repository.split('/').all(is_part) {
        let has_capitals = repository.to_ascii_lowercase().split('/').all(is_part);
        return Err(if has_capitals { Why::Capitals } else { Why::Repository });
    }
    Ok(Reference {
        registry: registry.map(str::to_owned),
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        digest,
    })
}

/// A colon after the last slash begins a tag; before it, a port.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (text, None),
    }
}

fn split_registry(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest)) if looks_like_registry(first) => (Some(first), rest),
        _ => (None, name),
    }
}

fn looks_like_registry(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.chars().any(|letter| letter.is_ascii_uppercase())
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, after)) => {
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            return after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    port.is_none_or(is_port) && host.split('.').all(is_label)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port != 0)
}

fn is_label(text: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_inside) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_inside = |byte: u8| is_word(byte) || byte == b'.' || byte == b'-';
    text.len() <= LONGEST_TAG && text.bytes().next().is_some_and(is_word) && text.bytes().all(is_inside)
}

/// One part of a repository: `[a-z0-9]+` and between them one of `.`, `_`, `__` or any number of `-`.
fn is_part(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_between = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
    let mut ends = [text.bytes().next(), text.bytes().last()].into_iter();
    if !ends.all(|end| end.is_some_and(is_word))
        || !text.bytes().all(|byte| is_word(byte) || is_between(byte))
    {
        return false;
    }
    let separators = text.split(|letter: char| letter.is_ascii_alphanumeric());
    separators.filter(|separator| !separator.is_empty()).all(is_separator)
}

fn is_separator(text: &str) -> bool {
    matches!(text, "." | "_" | "__") || text.bytes().all(|byte| byte == b'-')
}

/// Whether a text can be the beginning of an id: hexadecimal digits, perhaps after `sha256:`.
pub fn is_beginning_of_id(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    !digits.is_empty() && digits.len() <= digest::DIGITS && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (Option<String>, String, Option<String>, bool) {
        let name: Reference = text.parse().unwrap();
        assert_eq!(name.to_string(), text);
        (name.registry, name.repository, name.tag, name.digest.is_some())
    }

    fn whole(registry: &str, repository: &str, tag: &str) -> (Option<String>, String, Option<String>, bool) {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (given(registry), repository.to_owned(), given(tag), false)
    }

    #[test]
    fn a_first_part_with_dot_colon_capital_or_localhost_is_a_registry() {
        assert_eq!(parts("busybox"), whole("", "busybox", ""));
        assert_eq!(parts("team/tool:1.2"), whole("", "team/tool", "1.2"));
        assert_eq!(parts("registry.test/tool"), whole("registry.test", "tool", ""));
        assert_eq!(parts("registry:5000/tool:a"), whole("registry:5000", "tool", "a"));
        assert_eq!(parts("localhost/a/b/c"), whole("localhost", "a/b/c", ""));
        assert_eq!(parts("HOST/tool"), whole("HOST", "tool", ""));
        assert_eq!(parts("[::1]:5000/tool"), whole("[::1]:5000", "tool", ""));
        assert_eq!(parts("a__b-d---e/f_g.h:_1"), whole("", "a__b-d---e/f_g.h", "_1"));
        assert_eq!(parts("localhost:80"), whole("", "localhost", "80"));
    }

    #[test]
    fn a_digest_comes_last_and_a_tag_may_stand_before_it() {
        let digest = Digest::of(b"x");
        let name: Reference = format!("r.test/a:1@{digest}").parse().unwrap();
        assert_eq!((name.tag.as_deref(), name.digest), (Some("1"), Some(digest)));
        assert_eq!(name.with_default_tag().to_string(), format!("r.test/a:1@{digest}"));
        let name: Reference = format!("a@{digest}").parse().unwrap();
        assert_eq!(name.as_tag().to_string(), "a:latest");
        assert_eq!(name.with_default_tag().to_string(), format!("a@{digest}"));
    }

    #[test]
    fn what_docker_refuses_is_refused() {
        let bad = [
            "",
            ":tag",
            "@sha256:1",
            "A",
            "a/B",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:-x",
            "a:.x",
            "a..b",
            "a___b",
            "a._b",
            "-a",
            "a-",
            "a b",
            "a\n",
            "../a",
            "a/../b",
            "ä",
            "a:ä",
            "-r.test/a",
            "r..test/a",
            "r.test:0/a",
            "r.test:x/a",
            "r.test:+1/a",
            "[::g]/a",
            "a@b",
            "a@sha256:ff",
            "localhost:99999/a",
            "http://r.test/a",
            "a:b:c",
        ];
        for text in bad {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
        assert!(Digest::of(b"").hex().parse::<Reference>().is_err());
        assert!("a".repeat(255).parse::<Reference>().is_ok());
        assert!("a".repeat(256).parse::<Reference>().is_err());
        assert!(format!("a:{}", "t".repeat(129)).parse::<Reference>().is_err());
    }

    #[test]
    fn a_name_in_capitals_is_told_why() {
        let error = "BusyBox".parse::<Reference>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`BusyBox` is no name of an image: its repository must be in lower case"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_it_is_written_or_refused(text in "[a-cA-C0-9./:@_\\[\\]-]{0,40}") {
            if let Ok(name) = text.parse::<Reference>() {
                prop_assert_eq!(name.to_string(), text);
                prop_assert!(!name.repository.split('/').any(|part| part.is_empty() || part == ".." || part == "."));
            }
        }

        #[test]
        fn what_the_grammar_makes_is_read(
            registry in proptest::option::of("[a-z]{1,5}(\\.[a-z0-9]{1,5}){1,2}(:[1-9][0-9]{0,3})?"),
            repository in "[a-z0-9]{1,6}((_|__|-{1,3})[a-z0-9]{1,4}){0,2}(/[a-z0-9]{1,6}){0,2}",
            tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}"),
            content in proptest::option::of(any::<u8>()),
        ) {
            let digest = content.map(|byte| Digest::of(&[byte]));
            let name = Reference { registry, repository, tag, digest };
            prop_assert_eq!(name.to_string().parse::<Reference>(), Ok(name));
        }
    }
}
