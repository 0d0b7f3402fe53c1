//! Where things are in a registry: its server, and paths there (OCI distribution, "Endpoints"). Pure.

use super::Error;
use crate::{digest::Digest, reference::Reference};
use airlock_net::errand::{Scheme, Site};

/// A repository of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// As names have it.
    pub(super) registry: String,
    pub(super) site: Site,
    pub(super) repository: String,
}

impl Place {
    /// Where an image of this name is. `insecure` names registries that are spoken to without TLS.
    pub(super) fn of(reference: &Reference, insecure: &[String]) -> Result<Place, Error> {
        let Some(registry) = &reference.registry else {
            return Err(Error::NoRegistry { name: reference.to_string() });
        };
        let scheme = match insecure.iter().any(|known| known.eq_ignore_ascii_case(registry)) {
            true => Scheme::Http,
            false => Scheme::Https,
        };
        let wrong = |source| Error::Address { registry: registry.clone(), source };
        let site = Site::new(scheme, registry).map_err(wrong)?;
        Ok(Place { registry: registry.clone(), site, repository: reference.repository.clone() })
    }

    /// Where a manifest is, by tag or digest. Both are as their grammar has them, so nothing needs to be escaped.
    pub(super) fn manifest(&self, name: &str) -> String {
        format!("/v2/{}/manifests/{name}", self.repository)
    }

    pub(super) fn blob(&self, digest: &Digest) -> String {
        format!("/v2/{}/blobs/{digest}", self.repository)
    }

    pub(super) fn uploads(&self) -> String {
        format!("/v2/{}/blobs/uploads/", self.repository)
    }

    /// Where an upload begins that only takes over what another repository has.
    pub(super) fn mount(&self, digest: &Digest, from: &str) -> String {
        format!("{}?mount={digest}&from={}", self.uploads(), escaped(from))
    }

    pub(super) fn tags(&self) -> String {
        format!("/v2/{}/tags/list?n=100", self.repository)
    }
}

/// Where a `Location` leads: another server, or a path of the same one.
pub(super) fn resolve(site: &Site, path: &str, location: &str) -> Option<(Site, String)> {
    let location = location.trim();
    if !location.bytes().all(|byte| byte.is_ascii_graphic()) || location.len() > 8 * 1024 {
        return None;
    }
    if let Some(rest) = location.strip_prefix("//") {
        return Site::of_url(&format!("{}://{rest}", site.scheme.as_str())).ok();
    }
    if location.starts_with('/') {
        let path = location.split('#').next().unwrap_or_default();
        return Some((site.clone(), path.to_owned()));
    }
    if let Ok(found) = Site::of_url(location) {
        return Some(found);
    }
    if location.is_empty() || location.split(['/', '?', '#']).next().is_some_and(|head| head.contains(':')) {
        return None;
    }
    let folder = path.split('?').next().unwrap_or_default().rsplit_once('/').map_or("", |(folder, _)| folder);
    Some((site.clone(), format!("{folder}/{}", location.split('#').next().unwrap_or_default())))
}

/// Whether what was sent to one server may be sent on to another, without what lets one in.
pub(super) fn may_lead(from: &Site, to: &Site) -> Result<(), &'static str> {
    if from.scheme == Scheme::Https && to.scheme == Scheme::Http {
        return Err("it leads from TLS to plain HTTP");
    }
    if to.is_here() && !from.is_here() {
        return Err("it leads to this machine itself");
    }
    Ok(())
}

/// A path with one thing more to ask.
pub(super) fn with_query(path: &str, name: &str, value: &str) -> String {
    let joint = if path.contains('?') { '&' } else { '?' };
    format!("{path}{joint}{name}={}", escaped(value))
}

/// As a part of a query.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b',' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(name: &str, insecure: &[&str]) -> Place {
        let insecure: Vec<String> = insecure.iter().map(|name| (*name).to_owned()).collect();
        Place::of(&name.parse().unwrap(), &insecure).unwrap()
    }

    #[test]
    fn plain_http_is_spoken_only_where_told() {
        let told = place("registry.example:5000/a/b:1", &["registry.example:5000"]);
        assert_eq!((told.site.scheme, told.site.port), (Scheme::Http, 5000));
        for other in [&["registry.example"][..], &["other.example:5000"], &[]] {
            assert_eq!(place("registry.example:5000/a/b:1", other).site.scheme, Scheme::Https);
        }
        assert_eq!(place("localhost/a", &[]).site.scheme, Scheme::Https);
    }

    #[test]
    fn a_short_name_has_no_place() {
        let error = Place::of(&"busybox".parse().unwrap(), &[]).unwrap_err();
        assert!(matches!(error, Error::NoRegistry { .. }));
    }

    #[test]
    fn paths_are_those_of_the_specification() {
        let place = place("registry.example/a/b", &[]);
        let digest = Digest::of(b"");
        assert_eq!(place.manifest("latest"), "/v2/a/b/manifests/latest");
        assert_eq!(place.blob(&digest), format!("/v2/a/b/blobs/{digest}"));
        assert_eq!(place.mount(&digest, "c&d"), format!("/v2/a/b/blobs/uploads/?mount={digest}&from=c%26d"));
    }

    #[test]
    fn a_location_is_found_in_all_its_forms() {
        let site = Site::new(Scheme::Https, "a.example").unwrap();
        let cases = [
            ("https://b.example:5000/x?y=1", Some("b.example:5000 /x?y=1")),
            ("//b.example/x", Some("b.example /x")),
            ("/v2/x#z", Some("a.example /v2/x")),
            ("next?n=1", Some("a.example /v2/a/next?n=1")),
            ("", None),
            ("ftp://b.example/x", None),
            ("https://user:pw@b.example/x", None),
            ("/a b", None),
        ];
        for (location, expected) in cases {
            let found = resolve(&site, "/v2/a/b?c=/d", location).map(|(site, path)| format!("{site} {path}"));
            assert_eq!(found.as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn tls_is_not_left_and_this_machine_not_entered() {
        let site = |url: &str| url.parse::<Site>().unwrap();
        assert!(may_lead(&site("https://a.example"), &site("https://b.example")).is_ok());
        assert!(may_lead(&site("http://127.0.0.1:1"), &site("http://127.0.0.1:2")).is_ok());
        assert!(may_lead(&site("https://a.example"), &site("http://a.example")).is_err());
        assert!(may_lead(&site("http://a.example"), &site("http://127.0.0.1:2375")).is_err());
        assert!(may_lead(&site("https://a.example"), &site("https://localhost")).is_err());
    }

    proptest! {
        #[test]
        fn no_location_panics(path in "/[a-z/?]{0,20}", location in "\\PC{0,60}") {
            let site = Site::new(Scheme::Https, "a.example").unwrap();
            if let Some((_, path)) = resolve(&site, &path, &location) {
                prop_assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }

        #[test]
        fn what_is_escaped_stands_alone(text in "\\PC{0,40}") {
            let all = escaped(&text);
            prop_assert!(!all.contains(['&', '=', '#', '?', ' ', '+']) && all.is_ascii());
        }
    }
}
