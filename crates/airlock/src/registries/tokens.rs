//! What this host's package clients log in with, and the files inside that a client reads it from.
//!
//! Tokens become secrets of the registry's own host. A client that logs in over plain HTTP has none: a secret goes over TLS only.

use super::{Settings, believed, cargo, destination, files_in, npm, pip};
use crate::spec::Host;
use airlock_gate::host::Target;
use airlock_protocol::{
    policy::{Policy, Verdict},
    secret::{From, Place, Secret, Use},
};
use std::path::Path;

/// Makes a file's text with a placeholder in it.
pub(super) type Render = Box<dyn Fn(&str) -> String>;

/// What one client logs in with at one registry.
pub(crate) struct Token {
    /// The secret, without its placeholder.
    pub(crate) secret: Secret,
    pub(crate) value: String,
    /// Where inside it is read from.
    pub(crate) path: &'static str,
    /// What stands there.
    pub(crate) render: Render,
}

/// A token as a client's settings have it.
pub(super) struct Found {
    /// Where in them.
    pub(super) key: String,
    /// The registry's URL.
    pub(super) url: String,
    pub(super) value: String,
    pub(super) path: &'static str,
    pub(super) render: Render,
}

/// Tokens for the registries that `policy` lets through by a group's name.
pub(crate) fn tokens(host: &Host, policy: &Policy) -> Vec<Token> {
    let mut tokens = Vec::new();
    for group in ["npm", "pypi", "crates"] {
        let from = format!("group {group}");
        let rules =
            policy.rules.iter().filter(|rule| rule.origin.from == from && rule.verdict != Verdict::Deny);
        let allowed: Vec<&str> = rules.flat_map(|rule| &rule.hosts).map(String::as_str).collect();
        if allowed.is_empty() {
            continue;
        }
        for found in found(host, group) {
            let Some(name) = host_of(&found.url).filter(|name| allowed.contains(&name.as_str())) else {
                continue;
            };
            let number = tokens.len();
            tokens.push(secret(group, number, name, found));
        }
    }
    tokens
}

/// What the clients of these tokens have to know besides, as files inside: which registries there are. No token is in them.
pub(crate) fn settings_inside(host: &Host, tokens: &[Token]) -> Vec<(&'static str, String)> {
    let read = |path: &Path| believed(path, &host.directory);
    let settings = Settings { variables: &host.variables, read: &read, list: &files_in };
    let has = |group: &str| {
        tokens
            .iter()
            .any(|token| matches!(&token.secret.from, From::Client { group: own, .. } if own == group))
    };
    let mut files = Vec::new();
    if has("npm") {
        files.push((".npmrc", npm::settings_inside(&settings)));
    }
    if has("pypi") {
        files.push((".config/pip/pip.conf", pip::settings_inside(&settings)));
    }
    if has("crates") {
        files.push((".cargo/config.toml", cargo::settings_inside(&settings)));
    }
    files.retain(|(_, text)| !text.is_empty());
    files
}

/// A URL without the name and password in it.
pub(super) fn without_login(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{behind}")
}

/// The token that the settings of `group`'s client have at `key` now.
pub(crate) fn token(host: &Host, group: &str, key: &str) -> Option<String> {
    found(host, group).into_iter().find(|found| found.key == key).map(|found| found.value)
}

fn found(host: &Host, group: &str) -> Vec<Found> {
    let read = |path: &Path| believed(path, &host.directory);
    let settings = Settings { variables: &host.variables, read: &read, list: &files_in };
    let mut found = match group {
        "npm" => npm::tokens(&settings),
        "pypi" => pip::tokens(&settings),
        "crates" => cargo::tokens(&settings),
        _ => Vec::new(),
    };
    found.retain(|found| airlock_gate::secrets::check(&found.value).is_ok());
    found
}

/// The name of a URL that is protected by TLS.
fn host_of(url: &str) -> Option<String> {
    let bare = url.rsplit_once('+').map_or(url, |(_, url)| url);
    match (bare.starts_with("https://"), destination(url)?.target) {
        (true, Target::Name(name)) => Some(name.to_string()),
        _ => None,
    }
}

fn secret(group: &str, number: usize, host: String, found: Found) -> Token {
    let secret = Secret {
        name: format!("{}_TOKEN_{}", group.to_uppercase(), number.saturating_add(1)),
        from: From::Client { group: group.to_owned(), key: found.key },
        placeholder: String::new(),
        hosts: vec![host],
        methods: Vec::new(),
        paths: Vec::new(),
        places: vec![Place::Header, Place::Basic],
        use_as: Use::Plain,
    };
    Token { secret, value: found.value, path: found.path, render: found.render }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::policy::{Origin, Ports, Rule};
    use std::collections::BTreeMap;

    fn host_with(home: &Path) -> Host {
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
            std::fs::write(home.join(name), text).unwrap();
        };
        write(
            ".npmrc",
            "registry=https://npm.example.com/\n//npm.example.com/:_authToken=npm_0123456789\n\
             //other.example.com/:_authToken=npm_9876543210\n",
        );
        write(
            ".config/pip/pip.conf",
            "[global]\nindex-url = https://ann:pass%20word@pip.example.com/simple\n\
             extra-index-url = http://ann:plain-http@pip.example.com/\n",
        );
        write(".cargo/config.toml", "[registries.acme]\nindex = \"sparse+https://crates.example.com/\"\n");
        write(".cargo/credentials.toml", "[registries.acme]\ntoken = \"cio0123456789\"\n");
        let variables = BTreeMap::from([("HOME".to_owned(), home.display().to_string())]);
        Host { directory: "/srv/project".into(), variables, ..Host::default() }
    }

    fn rule(group: &str, host: &str) -> Rule {
        let origin = Origin { from: format!("group {group}"), line: 0 };
        Rule::new(Verdict::Allow, vec![host.into()], vec![Ports::one(443)], origin)
    }

    /// Rules that allow the registry of each client.
    fn all_allowed() -> Policy {
        let named =
            [("npm", "npm.example.com"), ("pypi", "pip.example.com"), ("crates", "crates.example.com")];
        let rules = named.map(|(group, host)| rule(group, host)).into();
        Policy { rules, ..Policy::default() }
    }

    #[test]
    fn tokens_of_allowed_registries_become_secrets_of_their_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let host = host_with(&folder.path().canonicalize().unwrap());

        let tokens = tokens(&host, &all_allowed());

        let told: Vec<String> = tokens
            .iter()
            .map(|Token { secret, value, path, render }| {
                format!("{} {} {value} {path}: {}", secret.name, secret.hosts.join(","), render("HERE"))
            })
            .collect();
        let expected = [
            "NPM_TOKEN_1 npm.example.com npm_0123456789 .npmrc: //npm.example.com/:_authToken=HERE\n",
            "PYPI_TOKEN_2 pip.example.com pass word .netrc: machine pip.example.com login ann password HERE\n",
            "CRATES_TOKEN_3 crates.example.com cio0123456789 .cargo/credentials.toml: [registries.acme]\ntoken = \"HERE\"\n",
        ];
        assert_eq!(told, expected);
        for found in &tokens {
            let From::Client { group, key } = &found.secret.from else { panic!("{:?}", found.secret.from) };
            assert_eq!(token(&host, group, key).as_deref(), Some(&*found.value));
        }
    }

    #[test]
    fn clients_inside_know_the_registries_and_no_login() {
        let folder = tempfile::tempdir().unwrap();
        let host = host_with(&folder.path().canonicalize().unwrap());

        let tokens = tokens(&host, &all_allowed());

        let expected = [
            (".npmrc", "registry=https://npm.example.com/\n"),
            (
                ".config/pip/pip.conf",
                "[global]\nindex-url = https://pip.example.com/simple\nextra-index-url = http://pip.example.com/\n",
            ),
            (
                ".cargo/config.toml",
                "[registries.acme]\nindex = \"sparse+https://crates.example.com/\"\ncredential-provider = \"cargo:token\"\n",
            ),
        ];
        assert_eq!(settings_inside(&host, &tokens), expected.map(|(path, text)| (path, text.to_owned())));
        assert_eq!(settings_inside(&host, &[]), []);
        assert_eq!(without_login("https://a:b@c@host/x@y"), "https://host/x@y");
    }

    #[test]
    fn no_token_is_read_for_a_group_that_is_not_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let host = host_with(&folder.path().canonicalize().unwrap());
        assert_eq!(tokens(&host, &Policy::default()).len(), 0);
        let elsewhere = Policy { rules: vec![rule("npm", "mirror.example.com")], ..Policy::default() };
        assert_eq!(tokens(&host, &elsewhere).len(), 0);
    }
}
