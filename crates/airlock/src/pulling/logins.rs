//! What lets one into registries: Docker's `config.json` and the helpers that it names.

use airlock_images::registry::Login;
use data_encoding::BASE64;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Longest file, and most that a helper prints.
const LONGEST: u64 = 4 << 20;
/// What a helper calls a user who is none: its secret is a token.
const TOKEN: &str = "<token>";
/// What helpers say where they know nothing (docker-credential-helpers, `credentials/error.go`).
const UNKNOWN: &str = "credentials not found";

/// `config.json`, as far as it is about registries.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Docker {
    #[serde(default)]
    auths: BTreeMap<String, Known>,
    #[serde(default)]
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct Known {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    identitytoken: Option<String>,
    #[serde(default)]
    registrytoken: Option<String>,
}

/// What this host knows of a registry, if anything.
pub(super) fn login(registry: &str) -> Result<Option<Login>, String> {
    let Some(path) = path() else { return Ok(None) };
    let text = match read(&path) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(format!("{}: {}", path.display(), err.kind())),
    };
    find(registry, &text, ask).map_err(|why| format!("{}: {why}", path.display()))
}

fn path() -> Option<PathBuf> {
    let named = std::env::var_os("DOCKER_CONFIG").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = named.or_else(|| Some(std::env::home_dir()?.join(".docker")))?;
    Some(folder.join("config.json"))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// What a file knows of a registry. `ask` asks a helper of this name.
fn find(
    registry: &str,
    text: &str,
    ask: impl Fn(&str, &str) -> Result<Option<Login>, String>,
) -> Result<Option<Login>, String> {
    let docker: Docker = serde_json::from_str(text).map_err(|err| format!("it is not understood: {err}"))?;
    let helper = docker.cred_helpers.iter().find(|(name, _)| is_of(name, registry)).map(|(_, helper)| helper);
    if let Some(helper) = helper.or(docker.creds_store.as_ref()).filter(|helper| !helper.is_empty())
        && let Some(login) = ask(helper, registry)?
    {
        return Ok(Some(login));
    }
    let known = docker.auths.iter().find(|(name, _)| is_of(name, registry));
    known.map_or(Ok(None), |(_, known)| known.login())
}

/// Whether a name of a registry in the file is this one. Old files have it as a URL.
fn is_of(name: &str, registry: &str) -> bool {
    let name = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    let host = name.split('/').next().unwrap_or_default();
    host.eq_ignore_ascii_case(registry)
}

impl Known {
    fn login(&self) -> Result<Option<Login>, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = given(&self.registrytoken) {
            return Ok(Some(Login::Token(token)));
        }
        if let Some(token) = given(&self.identitytoken) {
            return Ok(Some(Login::Identity(token)));
        }
        if let (Some(user), Some(password)) = (given(&self.username), given(&self.password)) {
            return Ok(Some(Login::Password { user, password }));
        }
        let Some(auth) = given(&self.auth) else { return Ok(None) };
        let decoded =
            BASE64.decode(auth.trim().as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = pair.ok_or("an auth in it is not user:password in base 64")?;
        let password = password.trim_end_matches('\0');
        Ok(Some(Login::Password { user: user.to_owned(), password: password.to_owned() }))
    }
}

/// Asks `docker-credential-NAME` (docker-credential-helpers, "get").
fn ask(helper: &str, registry: &str) -> Result<Option<Login>, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !helper.bytes().all(is_name) {
        return Err(format!("{helper:?} is no name of a helper"));
    }
    let program = format!("docker-credential-{helper}");
    let failed = |err: io::Error| format!("{program} cannot be run: {}", err.kind());
    let mut command = Command::new(&program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read says so by its end.
        let _ = stdin.write_all(registry.as_bytes());
    }
    let mut printed = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = stdout.take(LONGEST).read_to_string(&mut printed);
    }
    let ended = child.wait().map_err(failed)?;
    match ended.success() {
        true => printed_login(&printed).ok_or_else(|| format!("{program} printed something else")),
        false if printed.contains(UNKNOWN) => Ok(None),
        false => Err(format!("{program} failed")),
    }
}

/// What a helper prints; nothing where it knows no user.
fn printed_login(text: &str) -> Option<Option<Login>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Printed {
        username: String,
        secret: String,
    }
    let Printed { username, secret } = serde_json::from_str(text).ok()?;
    Some(match username.as_str() {
        "" => None,
        TOKEN => Some(Login::Identity(secret)),
        _ => Some(Login::Password { user: username, password: secret }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nobody(_: &str, _: &str) -> Result<Option<Login>, String> {
        Ok(None)
    }

    fn password(user: &str, password: &str) -> Option<Login> {
        Some(Login::Password { user: user.to_owned(), password: password.to_owned() })
    }

    #[test]
    fn a_password_in_the_file_is_found_by_its_registry() {
        let text = r#"{"auths": {
            "https://a.example:5000/v1/": {"auth": "bWU6cDp3"},
            "b.example": {"username": "you", "password": "x"},
            "c.example": {"auth": "", "identitytoken": "t"},
            "d.example": {"registrytoken": "r"},
            "e.example": {}
        }}"#;
        let found = |registry: &str| find(registry, text, nobody).unwrap();
        assert_eq!(found("a.example:5000"), password("me", "p:w"));
        assert_eq!(found("B.example"), password("you", "x"));
        assert_eq!(found("c.example"), Some(Login::Identity("t".into())));
        assert_eq!(found("d.example"), Some(Login::Token("r".into())));
        for nothing in ["e.example", "a.example", "example"] {
            assert_eq!(found(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_helper_is_asked_before_the_file() {
        let text = r#"{"credsStore": "all", "credHelpers": {"a.example": "one"}, "auths": {"c.example": {"auth": "bWU6cHc="}}}"#;
        let asked = |helper: &str, registry: &str| match registry {
            "c.example" => Ok(None),
            _ => Ok(password(helper, registry)),
        };
        assert_eq!(find("a.example", text, asked).unwrap(), password("one", "a.example"));
        assert_eq!(find("b.example", text, asked).unwrap(), password("all", "b.example"));
        assert_eq!(find("c.example", text, asked).unwrap(), password("me", "pw"));
    }

    #[test]
    fn a_helper_may_give_a_token_or_nothing() {
        let token = printed_login(r#"{"ServerURL":"x","Username":"<token>","Secret":"t"}"#);
        assert_eq!(token, Some(Some(Login::Identity("t".into()))));
        assert_eq!(printed_login(r#"{"Username":"","Secret":""}"#), Some(None));
        assert_eq!(printed_login("oops"), None);
        assert!(ask("../evil", "a.example").is_err());
    }

    proptest! {
        #[test]
        fn no_file_panics(text in "\\PC{0,100}", auth in "\\PC{0,40}") {
            let _ = find("a.example", &text, nobody);
            let file = serde_json::json!({ "auths": { "a.example": { "auth": auth } } }).to_string();
            let _ = find("a.example", &file, nobody);
        }
    }
}
