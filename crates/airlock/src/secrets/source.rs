//! The value of a secret, from where it is kept. No error text holds one.

use crate::{failure::Failure, registries, spec::Host};
use airlock_protocol::secret::{From, Secret};
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The most bytes a value is looked for in.
const MOST: u64 = 64 * 1024;
/// The program that asks the host's secret service.
const SECRET_TOOL: &str = "secret-tool";

/// This host as a source of values.
pub(crate) struct Sources<'a> {
    pub(crate) host: &'a Host,
    /// What the program inside can see of this host.
    pub(crate) workspace: Option<&'a Path>,
}

impl Sources<'_> {
    /// The value of a secret, without its last line end.
    pub(crate) fn value(&self, secret: &Secret) -> Result<String, Failure> {
        let name = &secret.name;
        let text = match &secret.from {
            From::Env(variable) => self.variable(variable).ok_or_else(|| unset(name, variable))?,
            From::File(path) => self.file(name, path)?,
            From::Command(line) => self.command(name, line)?,
            From::Keychain(place) => self.keychain(name, place)?,
            From::Client { group, key } => {
                registries::token(self.host, group, key).ok_or_else(|| unknown_to_client(name, group, key))?
            }
        };
        let text =
            text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
        match text.is_empty() {
            true => Err(empty(secret)),
            false => Ok(text.to_owned()),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.host.variables.get(name).filter(|value| !value.is_empty()).cloned()
    }

    fn file(&self, name: &str, path: &Path) -> Result<String, Failure> {
        let what = format!("the secret {name} cannot be read from {}", path.display());
        let failed = |err: io::Error| {
            Failure::because(what.clone(), &err)
                .code(2)
                .fix("name a file that holds the secret and nothing else")
        };
        let real = std::fs::canonicalize(self.at_home(path)).map_err(failed)?;
        if self.workspace.is_some_and(|workspace| real.starts_with(workspace)) {
            return Err(Failure::new(what)
                .code(2)
                .why("it lies in the workspace, where the program inside reads it too")
                .fix("keep it elsewhere"));
        }
        let file = File::open(&real).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(Failure::new(what).code(2).why("it is not a plain file"));
        }
        text(name, file)
    }

    /// `~/…` is below the home directory.
    fn at_home(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), self.variable("HOME")) {
            (Ok(below), Some(home)) => Path::new(&home).join(below),
            _ => path.to_owned(),
        }
    }

    fn command(&self, name: &str, line: &str) -> Result<String, Failure> {
        let fix = format!("try it in a shell: {line}");
        self.printed(name, Command::new("/bin/sh").arg("-c").arg(line), &fix)
    }

    fn keychain(&self, name: &str, place: &str) -> Result<String, Failure> {
        let (service, account) = place.split_once('/').unwrap_or((place, ""));
        let fix = format!("secret-tool store --label {name} service {service} username {account}");
        let mut tool = Command::new(SECRET_TOOL);
        tool.args(["lookup", "service", service, "username", account]);
        self.printed(name, &mut tool, &fix).map_err(|failure| match failure.why.as_deref() {
            Some("there is no such program") => failure
                .why(format!("this host has no {SECRET_TOOL}, which asks its secret service"))
                .fix("install libsecret's tools, or take another source: env:, file: or command:"),
            _ => failure,
        })
    }

    /// What a program prints. It runs where no sandboxed program writes.
    fn printed(&self, name: &str, command: &mut Command, fix: &str) -> Result<String, Failure> {
        let what = format!("the command that gives the secret {name} failed");
        let home =
            self.variable("HOME").filter(|home| Path::new(home).is_dir()).unwrap_or_else(|| "/".to_owned());
        let command = command.current_dir(home).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::new(what).code(2).why("there is no such program").fix(fix));
            }
            Err(err) => return Err(Failure::because(what, &err).code(2).fix(fix)),
        };
        let printed = child.stdout.take().map(|stdout| text(name, stdout)).transpose();
        let ended = child.wait().map_err(|err| Failure::because(what.clone(), &err).code(2))?;
        if !ended.success() {
            return Err(Failure::new(what).code(2).why(ended.to_string()).fix(fix));
        }
        printed.map(Option::unwrap_or_default)
    }
}

/// A text of bounded length.
fn text(name: &str, from: impl io::Read) -> Result<String, Failure> {
    let refused = |why: &str| {
        Failure::new(format!("the value of the secret {name} cannot be used")).code(2).why(why.to_owned())
    };
    let mut bytes = Vec::new();
    from.take(MOST + 1).read_to_end(&mut bytes).map_err(|err| refused(&err.kind().to_string()))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MOST) {
        return Err(refused("it has more than 64K bytes"));
    }
    String::from_utf8(bytes).map_err(|_| refused("it is not text in UTF-8"))
}

fn unset(name: &str, variable: &str) -> Failure {
    Failure::new(format!("the secret {name} has no value"))
        .code(2)
        .why(format!("the variable {variable} is not set here"))
        .fix(format!(
            "export {variable}=…, or say where it is kept: from = \"…\" under [secrets.{name}] in config.toml"
        ))
}

fn empty(secret: &Secret) -> Failure {
    Failure::new(format!("the secret {} has no value", secret.name))
        .code(2)
        .why(format!("{} gives nothing", secret.from))
        .fix("look at where it is kept")
}

fn unknown_to_client(name: &str, group: &str, key: &str) -> Failure {
    Failure::new(format!("the secret {name} has no value"))
        .code(2)
        .why(format!("the settings of this host's {group} have no {key} any more"))
        .fix("log in again with that client, or make the sandbox anew")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn host(variables: &[(&str, &str)]) -> Host {
        let variables: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Host { directory: "/srv/project".into(), variables, ..Host::default() }
    }

    fn value(host: &Host, from: From, workspace: Option<&Path>) -> Result<String, Failure> {
        let secret = Secret {
            name: "T".into(),
            from,
            placeholder: String::new(),
            hosts: vec![],
            methods: vec![],
            paths: vec![],
            places: vec![],
            use_as: airlock_protocol::secret::Use::Plain,
        };
        Sources { host, workspace }.value(&secret)
    }

    #[test]
    fn each_source_gives_its_value_without_the_last_line_end() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), "from-file\r\n").unwrap();
        let home = folder.path().display().to_string();
        let host = host(&[("HOME", &home), ("V", "from-env")]);

        assert_eq!(value(&host, From::Env("V".into()), None).unwrap(), "from-env");
        assert_eq!(value(&host, From::File("~/t".into()), None).unwrap(), "from-file");
        assert_eq!(value(&host, From::Command("cat t; pwd >&2".into()), None).unwrap(), "from-file");
    }

    #[test]
    fn a_file_that_the_program_can_read_too_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::write(folder.join("t"), "x").unwrap();
        let refused = value(&host(&[]), From::File(folder.join("t")), Some(&folder)).unwrap_err();
        assert!(refused.why.unwrap().contains("workspace"));
    }

    #[test]
    fn what_fails_says_so_without_what_was_printed() {
        let host = host(&[("HOME", "/"), ("EMPTY", "")]);
        for from in [
            From::Env("NONE".into()),
            From::Env("EMPTY".into()),
            From::File("/nowhere/t".into()),
            From::Command("echo hidden-value; exit 3".into()),
            From::Command("head -c 70000 /dev/zero | tr '\\0' x".into()),
            From::Command("printf '\\377'".into()),
            From::Command("true".into()),
        ] {
            let failure = value(&host, from.clone(), None).unwrap_err();
            assert_eq!(failure.code, 2);
            assert!(
                !failure.to_string().replace(&from.to_string(), "").contains("hidden-value;\n"),
                "{failure}"
            );
        }
    }
}
