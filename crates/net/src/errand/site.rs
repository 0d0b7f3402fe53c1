//! Who is asked: a scheme, a host and a port. Pure.

use airlock_gate::host::{Destination, Target};
use std::{fmt, str::FromStr};

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    /// Inside TLS or not.
    pub scheme: Scheme,
    /// A name or an address, as it stands in a URL but without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Inside TLS or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Not.
    Http,
    /// Inside.
    Https,
}

/// No server is meant by a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSite {
    /// Neither `http://` nor `https://`.
    #[error("it begins neither with https:// nor with http://")]
    Scheme,
    /// No host is there, or none that can be dialled.
    #[error("{0}")]
    Host(#[from] airlock_gate::host::BadHost),
    /// A user or a password stand in it.
    #[error("it holds a user or a password")]
    Credentials,
}

impl Scheme {
    /// Where servers listen that say nothing else.
    pub fn port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }

    /// As a URL begins.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

impl Site {
    /// `HOST[:PORT]` with a scheme.
    pub fn new(scheme: Scheme, authority: &str) -> Result<Site, BadSite> {
        if authority.contains('@') {
            return Err(BadSite::Credentials);
        }
        let destination: Destination = authority.parse()?;
        let host = match &destination.target {
            Target::Name(name) => name.as_str().to_owned(),
            Target::Address(address) => address.to_string(),
        };
        Ok(Site { scheme, host, port: destination.port.unwrap_or(scheme.port()) })
    }

    /// Splits a URL into its server, and path and query.
    pub fn of_url(url: &str) -> Result<(Site, String), BadSite> {
        let (scheme, rest) = match (url.split_at_checked(8), url.split_at_checked(7)) {
            (Some((head, rest)), _) if head.eq_ignore_ascii_case("https://") => (Scheme::Https, rest),
            (_, Some((head, rest))) if head.eq_ignore_ascii_case("http://") => (Scheme::Http, rest),
            _ => return Err(BadSite::Scheme),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok((Site::new(scheme, authority)?, path))
    }

    /// As it stands in a `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.port() { host } else { format!("{host}:{}", self.port) }
    }

    /// Whether it is this machine.
    pub fn is_here(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for Site {
    type Err = BadSite;

    fn from_str(text: &str) -> Result<Site, BadSite> {
        Site::of_url(text).map(|(site, _)| site)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_url_is_a_server_and_a_path() {
        let cases = [
            ("https://a.example/v2/?x=1#y", "https a.example 443 /v2/?x=1"),
            ("HTTP://A.example:5000", "http a.example 5000 /"),
            ("http://[2001:db8::1]?q", "http 2001:db8::1 80 /?q"),
            ("https://127.0.0.1:443/x", "https 127.0.0.1 443 /x"),
        ];
        for (url, expected) in cases {
            let (site, path) = Site::of_url(url).unwrap();
            let shown = format!("{} {} {} {path}", site.scheme.as_str(), site.host, site.port);
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn what_cannot_be_dialled_is_no_server() {
        for url in
            ["ftp://a.example/", "a.example", "https:///x", "https://0x7f.1/", "https://me:pw@a.example/"]
        {
            assert!(Site::of_url(url).is_err(), "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_a_server_reads_back(text in "(https?://)?[\\PC]{0,40}") {
            if let Ok((site, path)) = Site::of_url(&text) {
                prop_assert!(path.starts_with('/'));
                let again = Site::new(site.scheme, &site.authority());
                prop_assert_eq!(again, Ok(site));
            }
        }
    }
}
