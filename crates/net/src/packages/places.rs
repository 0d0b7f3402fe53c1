//! The registries of a policy.

use super::{
    asked::{Asked, asked},
    rules::Rules,
};
use airlock_gate::host::{Destination, Target};
use airlock_protocol::policy::{self, RegistryKind};

/// A registry, ready to be compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which clients it serves.
    pub(crate) kind: RegistryKind,
    /// Its host.
    pub(crate) target: Target,
    /// Its port.
    pub(crate) port: u16,
    /// Whether it is reached by TLS.
    pub(crate) is_tls: bool,
    /// The path of its index, without a slash at the end.
    pub(crate) base: String,
}

/// What a policy says of packages, made ready.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Which versions may be fetched.
    pub(crate) rules: Rules,
    /// The longest path first.
    places: Vec<Place>,
}

impl Settings {
    /// Of a policy.
    pub(crate) fn new(packages: &policy::Packages) -> Settings {
        let rules = Rules::new(packages);
        let mut places: Vec<Place> = match rules.is_idle() {
            true => Vec::new(),
            false => packages.registries.iter().filter_map(Place::of).collect(),
        };
        places.sort_by_key(|place| std::cmp::Reverse(place.base.len()));
        Settings { rules, places }
    }

    /// Whether packages come from there.
    pub(crate) fn is_registry(&self, target: &Target, port: u16) -> bool {
        self.at(target, port).next().is_some()
    }

    /// What a path asks of the registries there: of several the one below whose index it is, else the first that knows it.
    pub(crate) fn asked(&self, target: &Target, port: u16, path: &str) -> Option<(Place, Asked)> {
        let all = || self.at(target, port).map(|place| (place.clone(), asked(place.kind, &place.base, path)));
        let is_known = |(_, asked): &(Place, Asked)| !matches!(asked, Asked::Other | Asked::Unknown);
        let is_below =
            |place: &Place| path.strip_prefix(place.base.as_str()).is_some_and(|rest| rest.starts_with('/'));
        all()
            .find(|found| is_below(&found.0) && is_known(found))
            .or_else(|| all().find(is_known))
            .or_else(|| all().find(|(_, asked)| *asked == Asked::Unknown))
            .or_else(|| all().next())
    }

    /// Registries are where their URLs say, and at the same host's usual ports.
    fn at(&self, target: &Target, port: u16) -> impl Iterator<Item = &Place> {
        let is_usual = |port: u16| port == 80 || port == 443;
        self.places.iter().filter(move |place| {
            place.target == *target && (place.port == port || (is_usual(place.port) && is_usual(port)))
        })
    }
}

impl Place {
    fn of(registry: &policy::Registry) -> Option<Place> {
        let (scheme, rest) = registry.url.split_once("://")?;
        let is_tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
        let destination: Destination = format!("{scheme}://{authority}").parse().ok()?;
        let base = if path.is_empty() { String::new() } else { format!("/{path}") };
        let port = destination.port_or_https();
        Some(Place { kind: registry.kind, target: destination.target, port, is_tls, base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(urls: &[(RegistryKind, &str)]) -> Settings {
        let registries =
            urls.iter().map(|(kind, url)| policy::Registry { kind: *kind, url: (*url).to_owned() });
        Settings::new(&policy::Packages { registries: registries.collect(), ..Default::default() })
    }

    #[test]
    fn registries_of_one_host_are_told_apart_by_their_paths() {
        let settings = settings(&[
            (RegistryKind::Npm, "https://r.example/npm/"),
            (RegistryKind::Pypi, "https://r.example/pypi/simple"),
        ]);
        let r: Target = "r.example".parse().unwrap();
        let kind = |path: &str| match settings.asked(&r, 443, path) {
            Some((_, Asked::Index(package) | Asked::Artefact(package, _))) => {
                Some((package.kind, package.name))
            }
            _ => None,
        };

        assert_eq!(kind("/npm/simple"), Some((RegistryKind::Npm, "simple".into())));
        assert_eq!(kind("/npm/a/-/a-1.0.0.tgz"), Some((RegistryKind::Npm, "a".into())));
        assert_eq!(kind("/pypi/simple/npm/"), Some((RegistryKind::Pypi, "npm".into())));
        assert_eq!(kind("/files/a-1.0-py3-none-any.whl"), Some((RegistryKind::Pypi, "a".into())));
        assert_eq!(settings.asked(&r, 443, "/files/odd.tgz").unwrap().1, Asked::Unknown);
        assert_eq!(settings.asked(&r, 443, "/health").unwrap().1, Asked::Other);
        assert!(settings.asked(&r, 8443, "/npm/a").is_none() && settings.is_registry(&r, 80));
        assert!(!settings.is_registry(&"other.example".parse().unwrap(), 443));
    }

    #[test]
    fn nothing_is_looked_at_where_nothing_could_be_refused() {
        let registries = vec![policy::Registry { kind: RegistryKind::Npm, url: "https://r.example".into() }];
        let off = policy::Packages { registries, min_age: Some(0), ..Default::default() };
        assert!(!Settings::new(&off).is_registry(&"r.example".parse().unwrap(), 443));
    }
}
