//! `[secrets.NAME]` of a file, and `NAME[@HOST,HOST…]` of a flag. Pure.
//!
//! ```toml
//! [secrets.GITHUB_TOKEN]
//! from = "env:GITHUB_TOKEN"
//! hosts = ["api.github.com"]
//! methods = ["GET"]
//! paths = ["/repos/acme/**"]
//! in = ["header", "basic"]
//! ```

use super::Kind;
use crate::{config::reader::Value, failure::Failure};
use airlock_gate::{glob::Glob, pattern::Pattern, providers};
use airlock_protocol::secret::{From, Grant, Place, Use};
use std::path::Path;

/// A secret as a flag names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) name: String,
    pub(crate) hosts: Vec<String>,
}

/// A secret as a file describes it. What is empty was not said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) from: Option<From>,
    pub(crate) hosts: Vec<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) paths: Vec<String>,
    pub(crate) places: Vec<Place>,
    pub(crate) use_as: Use,
    pub(crate) files: Vec<Kind>,
    pub(crate) user: Option<String>,
}

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The person's own.
    Own,
    /// A project's: what it says never runs a program of this host, nor reads a file of it.
    Project,
}

/// The keys of `[secrets.NAME]`.
pub(crate) const KEYS: [&str; 10] =
    ["from", "hosts", "methods", "paths", "in", "files", "user", "aws_access_key", "oauth", "use"];
const OAUTH_KEYS: [&str; 5] = ["token_url", "client_id", "client_secret", "grant", "scope"];

/// `NAME` or `NAME@HOST,HOST…`.
pub(crate) fn word(text: &str) -> Result<Word, String> {
    let (name, hosts) = text.split_once('@').map_or((text, None), |(name, hosts)| (name, Some(hosts)));
    let hosts = hosts.map(|hosts| hosts.split(',').map(host).collect::<Result<Vec<_>, _>>()).transpose()?;
    Ok(Word { name: secret_name(name)?, hosts: hosts.unwrap_or_default() })
}

/// Every secret of a `[secrets]` table, by name.
pub(crate) fn tables(value: &Value<'_, '_>, whose: Whose) -> Result<Vec<Table>, Failure> {
    let mut tables = Vec::new();
    for entry in value.entries(value.table()?) {
        let name = secret_name(entry.key()).map_err(|why| entry.wrong(why))?;
        tables.push(one(&entry, name, whose)?);
    }
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tables)
}

fn one(entry: &Value<'_, '_>, name: String, whose: Whose) -> Result<Table, Failure> {
    let mut table = Table { name, ..Table::default() };
    for value in entry.entries(entry.table()?) {
        match value.key() {
            "from" => table.from = Some(from(&value, whose)?),
            "hosts" => table.hosts = value.each(host)?,
            "methods" => table.methods = value.each(method)?,
            "paths" => table.paths = value.each(path)?,
            "in" => table.places = value.each(place)?,
            "files" => table.files = value.each(kind)?,
            "user" => table.user = Some(value.parsed(user)?),
            "aws_access_key" => table.use_as = Use::AwsKey { access_key: value.parsed(plain)? },
            "oauth" => table.use_as = oauth(&value)?,
            _ => return Err(value.unknown(&KEYS)),
        }
    }
    Ok(table)
}

/// A variable's name.
fn secret_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    match begins && text.bytes().all(is_plain) && text.len() <= 128 {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("{text:?} is not a secret's name: write a variable's name, such as GITHUB_TOKEN"))
        }
    }
}

fn from(value: &Value<'_, '_>, whose: Whose) -> Result<From, Failure> {
    let from = value.parsed(|text| {
        let unknown = || format!("{text:?} is no place a secret comes from: write env:NAME, file:PATH, command:LINE or keychain:SERVICE/ACCOUNT");
        let (kind, rest) = text.split_once(':').filter(|(_, rest)| !rest.trim().is_empty()).ok_or_else(unknown)?;
        Ok(match kind {
            "env" => From::Env(secret_name(rest)?),
            "file" if Path::new(rest).is_absolute() || rest.starts_with("~/") => From::File(rest.into()),
            "file" => return Err(format!("{rest:?} is not a file's path: write an absolute one, or ~/…")),
            "command" => From::Command(rest.to_owned()),
            "keychain" if rest.split_once('/').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty()) => {
                From::Keychain(rest.to_owned())
            }
            _ => return Err(unknown()),
        })
    })?;
    match (&from, whose) {
        (From::File(_) | From::Command(_), Whose::Project) => {
            let what = "a project's file reads no file and runs no program of this host";
            Err(value.wrong(what).fix("write this `from` under the same [secrets.NAME] in your own config.toml; the project's table needs none then"))
        }
        _ => Ok(from),
    }
}

fn host(text: &str) -> Result<String, String> {
    match text.trim().parse::<Pattern>() {
        Ok(Pattern::EveryName) => Err("a secret goes to named hosts only: write HOST or *.DOMAIN".to_owned()),
        Ok(pattern) => Ok(pattern.to_string()),
        Err(bad) => Err(format!("{text:?} is no host: {bad}")),
    }
}

fn method(text: &str) -> Result<String, String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        true => Ok(text.to_ascii_uppercase()),
        false => Err(format!("{text:?} is no method: write GET, POST …")),
    }
}

fn path(text: &str) -> Result<String, String> {
    text.parse::<Glob>().map(|_| text.to_owned()).map_err(|bad| bad.to_string())
}

fn place(text: &str) -> Result<Place, String> {
    let unknown = || format!("{text:?} is no place in a request: write header, basic, query or body");
    providers::place(text).ok_or_else(unknown)
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::of(text).ok_or_else(|| format!("{text:?} is no credential file: write {}", Kind::WORDS.join(", ")))
}

fn user(text: &str) -> Result<String, String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"':\\".contains(&byte)) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is no user's name")),
    }
}

fn plain(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn oauth(value: &Value<'_, '_>) -> Result<Use, Failure> {
    let (mut url, mut client, mut client_secret) = (None, None, None);
    let (mut grant, mut scope) = (Grant::default(), None);
    for entry in value.entries(value.table()?) {
        match entry.key() {
            "token_url" => url = Some(entry.parsed(token_url)?),
            "client_id" => client = Some(entry.parsed(plain)?),
            "client_secret" => client_secret = Some(entry.parsed(secret_name)?),
            "grant" => grant = entry.parsed(grant_of)?,
            "scope" => scope = Some(entry.parsed(plain)?),
            _ => return Err(entry.unknown(&OAUTH_KEYS)),
        }
    }
    let (Some(token_url), Some(client_id)) = (url, client) else {
        return Err(value.wrong("oauth needs token_url and client_id"));
    };
    if grant == Grant::ClientCredentials && client_secret.is_some() {
        return Err(value.wrong(
            "with grant = \"client_credentials\" the secret itself is the client's: leave out client_secret",
        ));
    }
    Ok(Use::OAuth { token_url, client_id, client_secret, grant, scope })
}

fn grant_of(text: &str) -> Result<Grant, String> {
    let known = [Grant::RefreshToken, Grant::ClientCredentials];
    let unknown = || format!("{text:?} is no grant: write {}", known.map(Grant::word).join(" or "));
    known.into_iter().find(|grant| grant.word() == text).ok_or_else(unknown)
}

fn token_url(text: &str) -> Result<String, String> {
    match text.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not where tokens are fetched: write https://HOST/PATH")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reader::Source;
    use proptest::prelude::*;

    fn parsed(text: &str, whose: Whose) -> Result<Vec<Table>, Failure> {
        let source = Source { name: "airlock.toml", text };
        let top = source.parse()?;
        let value = source.entries(&top).find(|value| value.key() == "secrets").unwrap();
        tables(&value, whose)
    }

    #[test]
    fn a_word_names_hosts_behind_an_at() {
        let hosts = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
        assert_eq!(word("A_1").unwrap(), Word { name: "A_1".into(), hosts: vec![] });
        let two = Word { name: "T".into(), hosts: hosts(&["a.example.com", "*.example.org"]) };
        assert_eq!(word("T@A.example.com,*.example.org").unwrap(), two);
        for bad in ["", "1A", "A B", "A=x", "A@", "A@*", "A@https://x", "A@x:443", "A@*.com", "A@a,,b"] {
            assert!(word(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_key_arrives() {
        let text = "[secrets.T]\nfrom = \"file:~/t\"\nhosts = \"a.example.com\"\nmethods = [\"get\"]\npaths = \"/v1/**\"\nin = [\"query\"]\n\
                    files = [\"netrc\"]\nuser = \"ann\"\n[secrets.T.oauth]\ntoken_url = \"https://a.example.com/token\"\nclient_id = \"x\"\n";
        let expected = Table {
            name: "T".into(),
            from: Some(From::File("~/t".into())),
            hosts: vec!["a.example.com".into()],
            methods: vec!["GET".into()],
            paths: vec!["/v1/**".into()],
            places: vec![Place::Query],
            use_as: Use::OAuth {
                token_url: "https://a.example.com/token".into(),
                client_id: "x".into(),
                client_secret: None,
                grant: Grant::RefreshToken,
                scope: None,
            },
            files: vec![Kind::Netrc],
            user: Some("ann".into()),
        };
        assert_eq!(parsed(text, Whose::Own).unwrap(), [expected]);
    }

    #[test]
    fn a_projects_file_runs_nothing_and_reads_no_file() {
        for from in ["command:cat /etc/shadow", "file:/etc/shadow", "file:~/.ssh/id_ed25519"] {
            let text = format!("[secrets.T]\nfrom = \"{from}\"\n");
            assert!(parsed(&text, Whose::Own).is_ok());
            let refused = parsed(&text, Whose::Project).unwrap_err();
            assert!(refused.what.contains("runs no program of this host"), "{refused}");
            assert!(refused.fix.is_some());
        }
        assert!(parsed("[secrets.T]\nfrom = \"keychain:github/ann\"\n", Whose::Project).is_ok());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (text, words) in [
            ("[secrets.T]\nform = \"env:T\"\n", "airlock.toml:2:1: there is no setting \"form\" here"),
            ("[secrets.T]\nfrom = \"T\"\n", "airlock.toml:2:8: \"T\" is no place a secret comes from"),
            ("[secrets.T]\nhosts = \"*\"\n", "airlock.toml:2:9: a secret goes to named hosts only"),
            ("[secrets.T]\nin = \"cookie\"\n", "airlock.toml:2:6: \"cookie\" is no place in a request"),
            ("[secrets.\"T T\"]\n", "airlock.toml:1:1: \"T T\" is not a secret's name"),
            (
                "[secrets.T]\noauth = { token_url = \"https://a.example.com/\", client_id = \"x\", grant = \"x\" }\n",
                "airlock.toml:2:74: \"x\" is no grant",
            ),
            ("[secrets.T]\nfiles = \"x\"\n", "airlock.toml:2:9: \"x\" is no credential file"),
        ] {
            let failure = parsed(text, Whose::Own).unwrap_err();
            assert!(failure.what.starts_with(words), "{failure}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = word(&text);
        }
    }
}
