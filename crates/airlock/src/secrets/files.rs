//! Credential files that programs read, with placeholders in them. Pure.

use super::{clouds, wanted::Wanted};
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
    /// `pip.conf`.
    Pip,
    /// `credentials.toml` of cargo; in its `config.toml` stands which registry that is for.
    Cargo,
    /// Google's default credentials.
    Google,
    /// What `az` and Azure's libraries read.
    Azure,
}

/// Cargo's settings, beside its credentials.
const CARGO_CONFIG: &str = ".cargo/config.toml";

impl Kind {
    /// As a person writes them.
    pub(crate) const WORDS: [&str; 9] =
        ["netrc", "gh", "npm", "docker", "aws", "pip", "cargo", "google", "azure"];

    /// The one a person means.
    pub(crate) fn of(word: &str) -> Option<Kind> {
        Some(match word {
            "netrc" => Kind::Netrc,
            "gh" => Kind::Gh,
            "npm" => Kind::Npm,
            "docker" => Kind::Docker,
            "aws" => Kind::Aws,
            "pip" => Kind::Pip,
            "cargo" => Kind::Cargo,
            "google" => Kind::Google,
            "azure" => Kind::Azure,
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
            Kind::Pip => ".config/pip/pip.conf",
            Kind::Cargo => ".cargo/credentials.toml",
            Kind::Google => clouds::GOOGLE,
            Kind::Azure => clouds::AZURE[0],
        }
    }
}

/// The files that these secrets are read from inside.
pub(super) fn render(all: &[Wanted]) -> Vec<HomeFile> {
    let mut files = Vec::new();
    for wanted in all {
        for kind in wanted.files.iter().filter(|kind| ![Kind::Docker, Kind::Pip].contains(*kind)) {
            if *kind == Kind::Cargo {
                append_unless_said(&mut files, kind.path(), &cargo_tokens(wanted));
                append_unless_said(&mut files, CARGO_CONFIG, &cargo_registries(wanted));
            } else {
                append(&mut files, kind.path(), &text(*kind, wanted, all));
            }
        }
    }
    append(&mut files, Kind::Pip.path(), &pip(all));
    let docker = docker(all);
    if !docker.is_empty() {
        append(&mut files, Kind::Docker.path(), &format!("{}\n", json!({ "auths": docker })));
    }
    let first = |kind: Kind| all.iter().find(|wanted| wanted.files.contains(&kind));
    if let Some(google) = first(Kind::Google) {
        append(&mut files, clouds::GOOGLE, &clouds::google(google, all));
    }
    for (path, text) in first(Kind::Azure)
        .and_then(clouds::azure)
        .into_iter()
        .flat_map(|texts| clouds::AZURE.into_iter().zip(texts))
    {
        append(&mut files, path, &text);
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

/// The same, without the sections that the file has already: of one that is there twice, programs take either the last or none.
pub(super) fn append_unless_said(files: &mut Vec<HomeFile>, path: &str, text: &str) {
    let said: Vec<String> = files
        .iter()
        .filter(|file| file.path == path)
        .flat_map(|file| file.text.lines().filter(|line| line.starts_with('[')))
        .map(str::to_owned)
        .collect();
    let mut is_new = true;
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') {
            is_new = !said.iter().any(|own| own == line.trim_end());
        }
        if is_new {
            append(files, path, line);
        }
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
        Kind::Docker | Kind::Pip | Kind::Cargo | Kind::Google | Kind::Azure => String::new(),
    }
}

/// One file for all of pip's indexes: the first is the one it asks, the others are asked besides.
fn pip(all: &[Wanted]) -> String {
    let mut urls = Vec::new();
    for wanted in all.iter().filter(|wanted| wanted.files.contains(&Kind::Pip)) {
        let login = format!("{}:{}", in_url(user(wanted)), in_url(&wanted.secret.placeholder));
        urls.extend(
            hosts(wanted)
                .iter()
                .map(|host| format!("https://{login}@{host}{}", index_path(wanted, "/simple"))),
        );
    }
    let Some((first, others)) = urls.split_first() else { return String::new() };
    let others: String = others.iter().map(|url| format!("    {url}\n")).collect();
    let others = if others.is_empty() { others } else { format!("extra-index-url =\n{others}") };
    format!("[global]\nindex-url = {first}\n{others}")
}

/// Where an index begins: where the secret's first path does, up to what may be anything.
fn index_path<'w>(wanted: &'w Wanted, usual: &'w str) -> &'w str {
    let Some(path) = wanted.secret.paths.first() else { return usual };
    let fixed = path.find(['*', '?', '[', '{']).map_or(Some(path.as_str()), |at| path.get(..at));
    let directory = fixed.and_then(|fixed| fixed.rsplit_once('/')).map(|(directory, _)| directory);
    directory
        .filter(|directory| {
            directory.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\%".contains(&byte))
        })
        .unwrap_or(usual)
}

/// As it stands in the part of a URL that names a user (RFC 3986, 2.3).
fn in_url(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// Which registries a secret is for, as cargo's settings call them, each with its host.
fn registries_of(wanted: &Wanted) -> Vec<(String, &str)> {
    let mut found: Vec<(String, &str)> = Vec::new();
    for host in hosts(wanted) {
        let section = match host {
            "crates.io" | "index.crates.io" | "static.crates.io" => "registry".to_owned(),
            host => {
                let name = wanted.user.as_deref().filter(|_| found.is_empty()).unwrap_or(host);
                let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                format!("registries.{}", name.replace(|letter| !is_plain(letter), "-"))
            }
        };
        if !found.iter().any(|(other, _)| *other == section) {
            found.push((section, host));
        }
    }
    found
}

fn cargo_tokens(wanted: &Wanted) -> String {
    let token = |(section, _)| format!("[{section}]\ntoken = \"{}\"\n", wanted.secret.placeholder);
    registries_of(wanted).into_iter().map(token).collect()
}

fn cargo_registries(wanted: &Wanted) -> String {
    let others = registries_of(wanted).into_iter().filter(|(section, _)| section != "registry");
    let each = others.map(|(section, host)| {
        // A registry that wants a token for its index is asked only by who is told to (RFC 3139).
        let provider = "credential-provider = \"cargo:token\"";
        format!("[{section}]\nindex = \"sparse+https://{host}{}/\"\n{provider}\n", index_path(wanted, ""))
    });
    each.collect()
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
    fn clients_of_packages_find_their_registries() {
        let mut acme = wanted("P", &["pip.example.com", "two.example.com"], &[Kind::Pip]);
        acme.secret.placeholder = "1//PLACE=".into();
        let mut named = wanted("Q", &["three.example.com"], &[Kind::Pip]);
        named.secret.paths = vec!["/api/pypi/acme/simple/**".into()];
        named.user = None;
        let registry = wanted("C", &["crates.example.com", "other.example.com"], &[Kind::Cargo]);
        let files =
            render(&[acme, named, registry, wanted("I", &["crates.io", "index.crates.io"], &[Kind::Cargo])]);

        let text: String = files.iter().map(|file| format!("== {}\n{}", file.path, file.text)).collect();
        let expected = "\
== .cargo/credentials.toml
[registries.ann]
token = \"PLACEHOLDER_C\"
[registries.other-example-com]
token = \"PLACEHOLDER_C\"
[registry]
token = \"PLACEHOLDER_I\"
== .cargo/config.toml
[registries.ann]
index = \"sparse+https://crates.example.com/\"
credential-provider = \"cargo:token\"
[registries.other-example-com]
index = \"sparse+https://other.example.com/\"
credential-provider = \"cargo:token\"
== .config/pip/pip.conf
[global]
index-url = https://ann:1%2F%2FPLACE%3D@pip.example.com/simple
extra-index-url =
    https://ann:1%2F%2FPLACE%3D@two.example.com/simple
    https://token:PLACEHOLDER_Q@three.example.com/api/pypi/acme/simple
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_a_file_says_already_is_not_said_again() {
        let mut files = vec![HomeFile { path: "p".into(), text: "[global]\nindex-url = a\n".into() }];
        append_unless_said(&mut files, "p", "[global]\nindex-url = b\n[other]\n");
        append_unless_said(&mut files, "q", "[global]\n");

        let text: String = files.iter().map(|file| format!("{}: {}", file.path, file.text)).collect();
        assert_eq!(text, "p: [global]\nindex-url = a\n[other]\nq: [global]\n");
    }

    #[test]
    fn every_word_is_a_kind() {
        assert!(Kind::WORDS.iter().all(|word| Kind::of(word).is_some()));
    }
}
