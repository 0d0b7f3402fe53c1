//! Names and addresses that a connection is made to, parsed once.
//!
//! A [`HostName`] is lower-case labels of letters, digits and hyphens, with IDNA done and without a dot at its end. It is never an
//! address in disguise: what a C library would read as one (`0x7f.1`, `2130706433`, `1.2.3`) is refused.
//!
//! ```
//! use airlock_gate::host::{HostName, Target};
//! let name: HostName = "API.Example.com.".parse()?;
//! assert_eq!(name.as_str(), "api.example.com");
//! assert!(matches!("[2001:db8::1]".parse()?, Target::Address(_)));
//! assert!("0x7f.1".parse::<Target>().is_err());
//! # Ok::<(), airlock_gate::host::BadHost>(())
//! ```

use idna::{
    AsciiDenyList,
    uts46::{DnsLength, Hyphens, Uts46},
};
use std::{
    borrow::Borrow,
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
    sync::Arc,
};

/// The name under which a sandbox reaches named ports of the host's own loopback.
pub const HOST_AIRLOCK: &str = "host.airlock";

/// Longest name, as text without the dot at its end (RFC 1035, 2.3.4).
const LONGEST_NAME: usize = 253;
/// Longest label (RFC 1035, 2.3.4).
const LONGEST_LABEL: usize = 63;
/// Longest text that is looked at: a name in Unicode is longer than its labels on the wire.
const LONGEST_TEXT: usize = 1024;

/// One name, normalised. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Arc<str>);

/// What a connection is made to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A name.
    Name(HostName),
    /// An address literal; a v4-mapped one is the IPv4 address it maps.
    Address(IpAddr),
}

/// A target and a port, as a person writes them: `HOST:PORT`, `[2001:db8::1]:PORT`, `HOST`, or a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The name or address.
    pub target: Target,
    /// The port, where one was given or the scheme of a URL implies one.
    pub port: Option<u16>,
}

/// Why a text is neither a name nor an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHost {
    /// Nothing is there.
    #[error("it is empty")]
    Empty,
    /// The name or one label is too long.
    #[error("a name has at most {LONGEST_NAME} characters, a label at most {LONGEST_LABEL}")]
    TooLong,
    /// Two dots in a row, or one at the beginning.
    #[error("a label is empty")]
    EmptyLabel,
    /// A character that no host name has.
    #[error("a host name has no {0:?}")]
    Character(char),
    /// A hyphen at either end of a label.
    #[error("a label neither begins nor ends with a hyphen")]
    Hyphen,
    /// It does not survive IDNA.
    #[error("it is not a valid internationalised name")]
    Idna,
    /// It reads as an address to some programs and as a name to others.
    #[error("its last label is a number, so that some programs would read it as an address")]
    Number,
    /// Brackets around something else than an IPv6 address, or a scope.
    #[error("it is not an IPv6 address")]
    Address,
    /// The part behind the colon is no port.
    #[error("a port is a number from 1 to 65535")]
    Port,
    /// A URL with a user in it, or of a scheme whose port is not known.
    #[error(
        "a URL here is SCHEME://HOST[:PORT][/PATH], with a port unless the scheme is http, https, ws, wss, ssh or git"
    )]
    Url,
}

impl HostName {
    /// The name as text, without a dot at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its labels, from the left.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }

    /// The names it lies under, the longest first: `b.example.com` and `example.com` and `com` for `a.b.example.com`.
    pub fn parents(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.match_indices('.').filter_map(|(dot, _)| self.0.get(dot + 1..))
    }

    /// As [`HostName::parents`], as names.
    pub(crate) fn parent_names(&self) -> impl Iterator<Item = HostName> {
        self.parents().map(|parent| HostName(parent.into()))
    }

    /// Whether it lies under `suffix`, on label borders, and is not `suffix` itself.
    pub fn is_under(&self, suffix: &HostName) -> bool {
        self.0.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }

    /// Whether it is [`HOST_AIRLOCK`].
    pub fn is_host_airlock(&self) -> bool {
        &*self.0 == HOST_AIRLOCK
    }
}

impl FromStr for HostName {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<HostName, BadHost> {
        if text.len() > LONGEST_TEXT {
            return Err(BadHost::TooLong);
        }
        let bare = text.strip_suffix('.').unwrap_or(text);
        if bare.is_empty() {
            return Err(BadHost::Empty);
        }
        if let Some(bad) = bare.chars().find(|c| c.is_ascii() && !is_name_character(*c)) {
            return Err(BadHost::Character(bad));
        }
        if is_plain(bare) {
            check_labels(bare)?;
            return Ok(HostName(bare.into()));
        }
        let mapped = Uts46::new()
            .to_ascii(bare.as_bytes(), AsciiDenyList::STD3, Hyphens::CheckFirstLast, DnsLength::Ignore)
            .map_err(|_| BadHost::Idna)?;
        // The mapping may end in a dot of its own (U+3002), and leaves nothing where it removed all.
        let mapped = mapped.strip_suffix('.').unwrap_or(&mapped);
        check_labels(mapped)?;
        Ok(HostName(mapped.into()))
    }
}

impl Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Target {
    /// The name, where it is one.
    pub fn name(&self) -> Option<&HostName> {
        match self {
            Target::Name(name) => Some(name),
            Target::Address(_) => None,
        }
    }
}

impl From<IpAddr> for Target {
    fn from(address: IpAddr) -> Target {
        Target::Address(address.to_canonical())
    }
}

impl From<HostName> for Target {
    fn from(name: HostName) -> Target {
        Target::Name(name)
    }
}

impl FromStr for Target {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Target, BadHost> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(BadHost::Address)?;
            return inner
                .parse::<Ipv6Addr>()
                .map(|address| IpAddr::V6(address).into())
                .map_err(|_| BadHost::Address);
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(address.into()),
            Err(_) => text.parse().map(Target::Name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Name(name) => name.fmt(f),
            Target::Address(address) => address.fmt(f),
        }
    }
}

impl Destination {
    /// The port, or 443.
    pub fn port_or_https(&self) -> u16 {
        self.port.unwrap_or(443)
    }
}

impl FromStr for Destination {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Destination, BadHost> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return authority(text);
        };
        let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        if host.contains('@') {
            return Err(BadHost::Url);
        }
        let mut destination = authority(host)?;
        if destination.port.is_none() {
            destination.port = Some(port_of(scheme).ok_or(BadHost::Url)?);
        }
        Ok(destination)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.port) {
            (target, None) => target.fmt(f),
            (Target::Address(IpAddr::V6(address)), Some(port)) => write!(f, "[{address}]:{port}"),
            (target, Some(port)) => write!(f, "{target}:{port}"),
        }
    }
}

/// Takes a port from the end of a text: `("db.example.com", Some(5432))`. A bare IPv6 address has none.
pub(crate) fn split_port(text: &str) -> Result<(&str, Option<u16>), BadHost> {
    let end = text.rfind(']').unwrap_or(0);
    let Some(colon) = text.get(end..).and_then(|rest| rest.find(':')).map(|at| at + end) else {
        return Ok((text, None));
    };
    let (host, rest) = text.split_at_checked(colon).unwrap_or((text, ""));
    let port = rest.strip_prefix(':').unwrap_or(rest);
    if end == 0 && port.contains(':') {
        return Ok((text, None));
    }
    Ok((host, Some(parse_port(port)?)))
}

/// A port as people write it: digits only, not 0.
pub(crate) fn parse_port(text: &str) -> Result<u16, BadHost> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadHost::Port);
    }
    match text.parse() {
        Ok(0) | Err(_) => Err(BadHost::Port),
        Ok(port) => Ok(port),
    }
}

fn authority(text: &str) -> Result<Destination, BadHost> {
    let (host, port) = split_port(text)?;
    Ok(Destination { target: host.parse()?, port })
}

fn port_of(scheme: &str) -> Option<u16> {
    Some(match scheme {
        "https" | "wss" => 443,
        "http" | "ws" => 80,
        "ssh" => 22,
        "git" => 9418,
        _ => return None,
    })
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '.'
}

/// Whether a name needs no IDNA: lower case, and no label that claims to be encoded.
fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.')
        && !text.split('.').any(|label| label.starts_with("xn--"))
}

/// The last look at every name, whichever way it came.
fn check_labels(name: &str) -> Result<(), BadHost> {
    if name.is_empty() {
        return Err(BadHost::Empty);
    }
    if name.len() > LONGEST_NAME {
        return Err(BadHost::TooLong);
    }
    let mut last = "";
    for label in name.split('.') {
        if label.is_empty() {
            return Err(BadHost::EmptyLabel);
        }
        if label.len() > LONGEST_LABEL {
            return Err(BadHost::TooLong);
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(BadHost::Hyphen);
        }
        if let Some(bad) =
            label.chars().find(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-'))
        {
            return Err(BadHost::Character(bad));
        }
        last = label;
    }
    if is_number(last) { Err(BadHost::Number) } else { Ok(()) }
}

/// Whether `inet_aton` would take a label for a number, or nearly so: digits, or `0x` and what follows.
fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
        || label.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> String {
        text.parse::<HostName>().map_or_else(|err| format!("{err:?}"), |name| name.to_string())
    }

    #[test]
    fn case_a_trailing_dot_and_idna_make_no_difference() {
        for text in [
            "Bücher.Example",
            "BÜCHER.example.",
            "xn--bcher-kva.example",
            "XN--BCHER-KVA.EXAMPLE",
            "bücher。example",
        ] {
            assert_eq!(name(text), "xn--bcher-kva.example", "{text}");
        }
    }

    #[test]
    fn what_looks_like_an_address_is_no_name() {
        for text in [
            "0x7f.1",
            "2130706433",
            "0177.0.0.1",
            "1.2.3",
            "127.1",
            "0x7f000001",
            "a.0x",
            "１２７.１",
            "1.2.3.4.",
            "256.1.1.1",
            "a.1",
        ] {
            assert_eq!(name(text), "Number", "{text}");
        }
        assert_eq!(name("0x7f.example"), "0x7f.example");
        assert_eq!(name("1.2.3.example"), "1.2.3.example");
    }

    #[test]
    fn a_name_has_only_letters_digits_and_hyphens() {
        for (text, bad) in [
            ("evil.test\0.allowed.test", '\0'),
            ("a%2e.test", '%'),
            ("u@a.test", '@'),
            ("a.test#", '#'),
            ("a .test", ' '),
            ("a_b.test", '_'),
            ("a.test/", '/'),
            ("a:1", ':'),
            ("a\n", '\n'),
            ("*.a.test", '*'),
        ] {
            assert_eq!(text.parse::<HostName>(), Err(BadHost::Character(bad)), "{text:?}");
        }
        for text in ["a\u{2100}.test", "xn--allowed-.test", "xn--a.test", "xn--.test", "a\u{200d}b.test"] {
            assert_eq!(name(text), "Idna", "{text:?}");
        }
        assert_eq!(name("-a.test"), "Hyphen");
        assert_eq!(name("a-.test"), "Hyphen");
        assert_eq!(name("r3---sn-x.example"), "r3---sn-x.example");
    }

    #[test]
    fn labels_and_names_have_a_greatest_length() {
        let label = "a".repeat(63);
        assert_eq!(name(&label), label);
        assert_eq!(name(&"a".repeat(64)), "TooLong");
        let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(name(&longest), longest);
        assert_eq!(name(&format!("{longest}a")), "TooLong");
        for text in ["", ".", "..", "a..b", ".a", "a..", "\u{ad}"] {
            assert!(text.parse::<HostName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_target_is_a_strict_address_or_a_name() {
        let address = |text: &str| Target::Address(text.parse().unwrap());
        assert_eq!("192.0.2.7".parse(), Ok(address("192.0.2.7")));
        assert_eq!("[2001:db8::1]".parse(), Ok(address("2001:db8::1")));
        assert_eq!("2001:db8::1".parse(), Ok(address("2001:db8::1")));
        assert_eq!("::ffff:192.0.2.7".parse(), Ok(address("192.0.2.7")));
        for text in [
            "[::1",
            "[192.0.2.7]",
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "192.0.2.07",
            "192.0.2",
            "[a.test]",
            "",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_destination_is_a_url_or_a_host_with_a_port() {
        let shown = |text: &str| {
            text.parse::<Destination>().map_or_else(|err| format!("{err:?}"), |it| it.to_string())
        };
        for (text, wanted) in [
            ("a.test", "a.test"),
            ("a.test:22", "a.test:22"),
            ("https://A.test/x?y#z", "a.test:443"),
            ("http://a.test", "a.test:80"),
            ("http://a.test:8080/", "a.test:8080"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("https://[2001:db8::1]/", "[2001:db8::1]:443"),
            ("2001:db8::1", "2001:db8::1"),
            ("postgres://a.test:5432/x", "a.test:5432"),
            ("postgres://a.test/x", "Url"),
            ("https://u:p@a.test/", "Url"),
            ("a.test:0", "Port"),
            ("a.test:65536", "Port"),
            ("a.test:+1", "Port"),
            ("a.test:", "Port"),
            ("https://a.test\\@b.test/", "Url"),
        ] {
            assert_eq!(shown(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_name_is_under_another_on_label_borders_only() {
        let under =
            |name: &str, suffix: &str| name.parse::<HostName>().unwrap().is_under(&suffix.parse().unwrap());
        assert!(under("a.b.example.com", "example.com"));
        assert!(!under("example.com", "example.com"));
        assert!(!under("badexample.com", "example.com"));
        assert!(!under("example.com.evil.test", "example.com"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_a_name_is_read_as_itself(text in ".{0,300}") {
            if let Ok(name) = text.parse::<HostName>() {
                prop_assert_eq!(&name.as_str().parse::<HostName>().unwrap(), &name);
                prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
                prop_assert!(name.labels().all(|label| (1..=63).contains(&label.len())));
                prop_assert!(name.as_str().parse::<IpAddr>().is_err());
            }
            let _ = text.parse::<Destination>();
        }

        #[test]
        fn ascii_names_keep_their_labels(text in "[a-z0-9.-]{1,80}") {
            if let Ok(name) = text.parse::<HostName>() {
                prop_assert_eq!(name.as_str(), text.strip_suffix('.').unwrap_or(&text));
            }
        }

        #[test]
        fn a_destination_is_read_back(text in "[a-z]{1,5}(\\.[a-z]{1,5}){0,3}:[1-9][0-9]{0,3}") {
            prop_assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
    }
}
