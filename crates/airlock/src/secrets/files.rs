//! Credential files that programs read, with placeholders in them. Pure.

use super::wanted::Wanted;
use airlock_gate::pattern::Pattern;
use airlock_protocol::{secret::Use, spec::HomeFile};
use serde_json::json;

/// A credential file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `.netrc`: curl, git, pip, go.
    Netrc,
    /// `hosts.yml` of `gh`.
    Gh,
    /// `.npmrc`.
    Npm,
    /// `config.json` of docker.
    Docker,
    /// `credentials` of AWS.
    Aws,
}

impl Kind {
    /// As a person writes them.
    pub(crate) const WORDS: [&str; 5] = ["netrc", "gh", "npm", "docker", "aws"];

    /// The one a person means.
    pub(crate) fn of(word: &str) -> Option<Kind> {
        Some(match word {
            "netrc" => Kind::Netrc,
            "gh" => Kind::Gh,
            "npm" => Kind::Npm,
            "docker" => Kind::Docker,
            "aws" => Kind::Aws,
            _ => return None,
        })
    }

    fn path(self) -> &'static str {
        match self {
            Kind::Netrc => ".netrc",
            Kind::Gh => ".config/gh/hosts.yml",
            Kind::Npm => ".npmrc",
            Kind::Docker => ".docker/config.json",
            Kind::Aws => ".aws/credentials",
        }
    }
}

/// The files that these secrets are read from inside.
pub(super) fn render(all: &[Wanted]) -> Vec<HomeFile> {
    let mut files = Vec::new();
    for wanted in all {
        for kind in wanted.files.iter().filter(|kind| **kind != Kind::Docker) {
            append(&mut files, kind.path(), &text(*kind, wanted, all));
        }
    }
    let docker = docker(all);
    if !docker.is_empty() {
        append(&mut files, Kind::Docker.path(), &format!("{}\n", json!({ "auths": docker })));
    }
    files.retain(|file| !file.text.is_empty());
    files
}

/// Puts text behind what a file has already.
pub(super) fn append(files: &mut Vec<HomeFile>, path: &str, text: &str) {
    match files.iter_mut().find(|file| file.path == path) {
        Some(file) => file.text.push_str(text),
        None => files.push(HomeFile { path: path.to_owned(), text: text.to_owned() }),
    }
}

fn text(kind: Kind, wanted: &Wanted, all: &[Wanted]) -> String {
    let placeholder = &wanted.secret.placeholder;
    let user = user(wanted);
    let each =
        |line: &dyn Fn(&str) -> String| hosts(wanted).iter().map(|host| line(host)).collect::<String>();
    match kind {
        Kind::Netrc => each(&|host| format!("machine {host} login {user} password {placeholder}\n")),
        Kind::Npm => each(&|host| format!("//{host}/:_authToken={placeholder}\n")),
        Kind::Gh => sites(wanted)
            .iter()
            .map(|site| format!("{site}:\n    oauth_token: {placeholder}\n    git_protocol: https\n"))
            .collect(),
        Kind::Aws => match access_key(wanted, all) {
            Some(id) => {
                format!(
                    "[default]\naws_access_key_id = {id}\naws_secret_access_key = {placeholder}\n{}",
                    session(all)
                )
            }
            None => String::new(),
        },
        Kind::Docker => String::new(),
    }
}

/// Single hosts: a file cannot name a whole domain.
fn hosts(wanted: &Wanted) -> Vec<&str> {
    let is_name = |host: &&String| matches!(host.parse(), Ok(Pattern::Name(_)));
    wanted.secret.hosts.iter().filter(is_name).map(String::as_str).collect()
}

/// `gh` knows a site by its own name, not by that of its API.
fn sites(wanted: &Wanted) -> Vec<&str> {
    let mut sites: Vec<&str> = Vec::new();
    for host in hosts(wanted) {
        let site = host.strip_prefix("api.").unwrap_or(host);
        let is_api = host.starts_with("api.");
        if is_api && !sites.contains(&site) {
            sites.push(site);
        }
    }
    if sites.is_empty() { hosts(wanted) } else { sites }
}

fn access_key<'a>(wanted: &'a Wanted, all: &'a [Wanted]) -> Option<&'a str> {
    let Use::AwsKey { access_key } = &wanted.secret.use_as else { return None };
    let other = all.iter().find(|other| other.secret.name == *access_key);
    Some(other.map_or(access_key.as_str(), |other| other.secret.placeholder.as_str()))
}

fn session(all: &[Wanted]) -> String {
    let token = all.iter().find(|other| other.secret.name == "AWS_SESSION_TOKEN");
    token.map(|token| format!("aws_session_token = {}\n", token.secret.placeholder)).unwrap_or_default()
}

fn docker(all: &[Wanted]) -> serde_json::Map<String, serde_json::Value> {
    let mut auths = serde_json::Map::new();
    for wanted in all.iter().filter(|wanted| wanted.files.contains(&Kind::Docker)) {
        let login = format!("{}:{}", user(wanted), wanted.secret.placeholder);
        for host in hosts(wanted) {
            auths.insert(host.to_owned(), json!({ "auth": data_encoding::BASE64.encode(login.as_bytes()) }));
        }
    }
    auths
}

fn user(wanted: &Wanted) -> &str {
    wanted.user.as_deref().unwrap_or("token")
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::secret::{From, Place, Secret};

    fn wanted(name: &str, hosts: &[&str], files: &[Kind]) -> Wanted {
        let secret = Secret {
            name: name.into(),
            from: From::Env(name.into()),
            placeholder: format!("PLACEHOLDER_{name}"),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            methods: vec![],
            paths: vec![],
            places: vec![Place::Header],
            use_as: Use::Plain,
        };
        Wanted { secret, also: vec![], files: files.to_vec(), user: Some("ann".into()), opens: true }
    }

    #[test]
    fn each_program_finds_its_file_with_placeholders_only() {
        let mut aws = wanted("S", &["*.amazonaws.com"], &[Kind::Aws]);
        aws.secret.use_as = Use::AwsKey { access_key: "K".into() };
        let all = [
            wanted("G", &["api.example.com", "example.com"], &[Kind::Gh, Kind::Netrc]),
            wanted("N", &["npm.example.com"], &[Kind::Npm, Kind::Netrc, Kind::Docker]),
            wanted("K", &["*.amazonaws.com"], &[]),
            aws,
        ];
        let files = render(&all);
        let text: String = files.iter().map(|file| format!("== {}\n{}", file.path, file.text)).collect();
        let expected = "\
== .config/gh/hosts.yml
example.com:
    oauth_token: PLACEHOLDER_G
    git_protocol: https
== .netrc
machine api.example.com login ann password PLACEHOLDER_G
machine example.com login ann password PLACEHOLDER_G
machine npm.example.com login ann password PLACEHOLDER_N
== .npmrc
//npm.example.com/:_authToken=PLACEHOLDER_N
== .aws/credentials
[default]
aws_access_key_id = PLACEHOLDER_K
aws_secret_access_key = PLACEHOLDER_S
== .docker/config.json
{\"auths\":{\"npm.example.com\":{\"auth\":\"YW5uOlBMQUNFSE9MREVSX04=\"}}}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_word_is_a_kind() {
        assert!(Kind::WORDS.iter().all(|word| Kind::of(word).is_some()));
    }
}
