//! What a rule says about hosts: one name, the names under a name, every name, or a range of addresses.

use crate::{
    address::{BadCidr, Cidr},
    host::{BadHost, HostName, Target},
};
use std::{fmt, str::FromStr};

/// One host of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pattern {
    /// `api.example.com`
    Name(HostName),
    /// `*.example.com`: every name under it, however deep, and not itself.
    Under(HostName),
    /// `*`: every name, and no address.
    EveryName,
    /// `192.0.2.7`, `192.0.2.0/24`: address literals; a name never matches, wherever it leads.
    Addresses(Cidr),
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// Not a name.
    #[error(transparent)]
    Host(#[from] BadHost),
    /// Not a range.
    #[error(transparent)]
    Cidr(#[from] BadCidr),
    /// `*.com`
    #[error(
        "a wildcard needs at least two labels behind it: `*.{0}` would be every name of everybody under {0}"
    )]
    Wide(String),
    /// `a*.example.com`, `*example.com`, `a.*.com`
    #[error("`*` stands alone, or before the first dot for whole labels")]
    Star,
    /// A URL.
    #[error("a rule names hosts, not URLs")]
    Url(String),
    /// A port behind the host.
    #[error("ports stand in a key of their own")]
    Port(String, u16),
}

impl Pattern {
    /// Whether it names `target`.
    pub fn matches(&self, target: &Target) -> bool {
        match (self, target) {
            (Pattern::Name(own), Target::Name(name)) => own == name,
            (Pattern::Under(suffix), Target::Name(name)) => name.is_under(suffix),
            (Pattern::EveryName, Target::Name(_)) => true,
            (Pattern::Addresses(range), Target::Address(address)) => range.contains(address.to_canonical()),
            _ => false,
        }
    }

    /// Whether it names everything that `other` names.
    pub fn covers(&self, other: &Pattern) -> bool {
        match (self, other) {
            (Pattern::EveryName, Pattern::Name(_) | Pattern::Under(_) | Pattern::EveryName) => true,
            (Pattern::Under(suffix), Pattern::Name(name)) => name.is_under(suffix),
            (Pattern::Under(suffix), Pattern::Under(inner)) => inner == suffix || inner.is_under(suffix),
            (Pattern::Name(own), Pattern::Name(name)) => own == name,
            (Pattern::Addresses(range), Pattern::Addresses(inner)) => range.covers(inner),
            _ => false,
        }
    }

    /// Every pattern that covers it, but itself.
    pub(crate) fn wider(&self) -> impl Iterator<Item = Pattern> {
        let (name, range) = match self {
            Pattern::Name(name) | Pattern::Under(name) => (Some(name), None),
            Pattern::EveryName => (None, None),
            Pattern::Addresses(range) => (None, Some(*range)),
        };
        let every = name.map(|_| Pattern::EveryName);
        let under = name.into_iter().flat_map(HostName::parent_names).map(Pattern::Under);
        let ranges = range.into_iter().flat_map(|range| {
            (0..range.prefix()).map(move |prefix| Pattern::Addresses(Cidr::holding(range.network(), prefix)))
        });
        under.chain(every).chain(ranges)
    }

    /// Whether it is the name of the host's own loopback.
    pub fn is_host_airlock(&self) -> bool {
        matches!(self, Pattern::Name(name) if name.is_host_airlock())
    }

    /// Whether something has both names. Of two patterns that meet, one covers the other.
    pub fn meets(&self, other: &Pattern) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl BadPattern {
    /// What to write instead, where we can tell.
    pub fn fix(&self) -> String {
        match self {
            BadPattern::Cidr(BadCidr::HostBits(range)) => format!("write {range}"),
            BadPattern::Cidr(BadCidr::Mapped) => "write the IPv4 address or range itself".to_string(),
            BadPattern::Cidr(_) => "write an address such as 192.0.2.7 or a range such as 192.0.2.0/24".to_string(),
            BadPattern::Wide(_) => "write *.example.com, or name the hosts one by one".to_string(),
            BadPattern::Star => "write *.example.com for the names under example.com, or * for every name".to_string(),
            BadPattern::Url(host) => format!("write {host}"),
            BadPattern::Port(host, port) => format!("write {host}, and ports = [{port}] below it"),
            BadPattern::Host(BadHost::Number) => "write an IPv4 address as four numbers, such as 192.0.2.7".to_string(),
            BadPattern::Host(_) => {
                "write a name such as api.example.com, a wildcard such as *.example.com, an address or a range".to_string()
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Pattern, BadPattern> {
        if text == "*" {
            return Ok(Pattern::EveryName);
        }
        if let Some((_, rest)) = text.split_once("://") {
            let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
            return Err(BadPattern::Url(host.to_string()));
        }
        if let Some(suffix) = text.strip_prefix("*.") {
            return wildcard(suffix);
        }
        if text.contains('*') {
            return Err(BadPattern::Star);
        }
        if text.contains('/') || text.starts_with('[') && text.ends_with(']') {
            return Ok(Pattern::Addresses(text.parse()?));
        }
        match text.parse() {
            Ok(range) => return Ok(Pattern::Addresses(range)),
            Err(BadCidr::Mapped) => return Err(BadCidr::Mapped.into()),
            Err(_) => {}
        }
        if let Ok((host, Some(port))) = crate::host::split_port(text) {
            return Err(BadPattern::Port(host.to_string(), port));
        }
        Ok(Pattern::Name(text.parse()?))
    }
}

fn wildcard(suffix: &str) -> Result<Pattern, BadPattern> {
    if suffix.contains('*') {
        return Err(BadPattern::Star);
    }
    if let Ok((host, Some(port))) = crate::host::split_port(suffix) {
        return Err(BadPattern::Port(format!("*.{host}"), port));
    }
    let suffix: HostName = suffix.parse()?;
    if suffix.labels().count() < 2 {
        return Err(BadPattern::Wide(suffix.to_string()));
    }
    Ok(Pattern::Under(suffix))
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Name(name) => name.fmt(f),
            Pattern::Under(suffix) => write!(f, "*.{suffix}"),
            Pattern::EveryName => f.write_str("*"),
            Pattern::Addresses(range) => range.fmt(f),
        }
    }
}
