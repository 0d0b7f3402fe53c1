//! What a person types about the wall and sees of it, without a sandbox: configuration, trust, files of rules.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

/// A home, a state directory and a project of a person's own.
struct Person {
    folder: tempfile::TempDir,
}

/// How a command ended.
struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Person {
    fn new() -> Person {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(folder.path().join("project/sub")).unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        fs::set_permissions(folder.path().join("state"), fs::Permissions::from_mode(0o700)).unwrap();
        Person { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn types(&self, words: &[&str]) -> Said {
        let output = Command::new(env!("CARGO_BIN_EXE_airlock"))
            .args(words)
            .env_clear()
            .env("HOME", self.path("."))
            .env("AIRLOCK_HOME", self.path("state"))
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.path("project/sub"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Said {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

#[test]
fn a_projects_file_stops_a_run_until_it_is_trusted_and_when_it_changes() {
    let person = Person::new();
    person.write("project/airlock.toml", "pids = 100000\n");
    let file = person.path("project/airlock.toml").display().to_string();

    let refused = person.types(&["run", "--", "true"]);
    assert_eq!(refused.code, 125);
    assert!(refused.stderr.starts_with(&format!("error: {file} is not trusted\n")), "{}", refused.stderr);
    assert!(refused.stderr.contains("fix:  airlock trust"), "{}", refused.stderr);

    let nobody = person.types(&["trust"]);
    assert_eq!((nobody.code, nobody.stdout.contains("    pids = 100000")), (4, true));
    assert_eq!(person.types(&["trust", "--yes"]).code, 0);
    assert!(person.types(&["trust", "--list"]).stdout.contains("as trusted"));
    assert!(person.types(&["config", "show"]).stdout.contains("pids"));

    person.write("project/airlock.toml", "pids = 100000\nmemory = \"64G\"\n");
    let changed = person.types(&["run", "--", "true"]);
    assert!(
        changed.code == 125 && changed.stderr.contains("has changed since you trusted it"),
        "{}",
        changed.stderr
    );
    assert!(person.types(&["trust"]).stdout.contains("+ memory = \"64G\""));

    fs::remove_file(person.path("project/airlock.toml")).unwrap();
    let gone = person.types(&["run", "--", "true"]);
    assert!(gone.code == 125 && gone.stderr.contains("is gone, and you had trusted it"), "{}", gone.stderr);
    assert_eq!(person.types(&["trust", "--remove"]).code, 0);
    assert_eq!(person.types(&["trust", "--remove"]).code, 1);
}

#[test]
fn a_mistake_in_a_file_is_shown_with_its_line_and_a_caret() {
    let person = Person::new();
    person.write("project/sub/x.toml", "[[rule]]\nallow = \"*.com\"\n");
    let said = person.types(&["run", "--policy", "x.toml", "--", "true"]);
    assert_eq!(said.code, 2);
    let expected = "   |\n 2 | allow = \"*.com\"\n   |         ^\n";
    assert!(
        said.stderr.starts_with("error: x.toml:2:9: ") && said.stderr.contains(expected),
        "{}",
        said.stderr
    );
    assert_eq!(person.types(&["policy", "test", "x.toml"]).code, 1);
}

#[test]
fn rules_are_explained_with_their_line_and_an_exit_code() {
    let person = Person::new();
    let rules = "[[rule]]\nallow = \"api.example.com\"\n\n[[rule]]\nask = \"*.example.com\"\nports = [443]\n";
    person.write("project/sub/rules.toml", rules);
    let explain = |url: &str| {
        let said = person.types(&["policy", "explain", "--policy", "rules.toml", url]);
        (said.code, said.stdout.lines().next().unwrap_or_default().to_owned())
    };
    let allowed = "api.example.com:443: allow by allow api.example.com (rules.toml:1)";
    assert_eq!(explain("https://api.example.com/v1"), (0, allowed.to_owned()));
    assert_eq!(explain("x.example.com:443").0, 1);
    assert_eq!(explain("https://example.org").0, 4);
    assert_eq!(explain("https://a b").0, 2);

    let as_wanted = ["policy", "test", "rules.toml", "https://api.example.com", "!https://example.org"];
    assert_eq!(person.types(&as_wanted).code, 0);
    assert_eq!(person.types(&["policy", "test", "rules.toml", "https://example.org"]).code, 1);
    let json = person.types(&["policy", "explain", "--json", "--policy", "rules.toml", "x.example.com"]);
    let facts: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((facts["verdict"].as_str(), facts["line"].as_u64()), (Some("ask"), Some(4)));
}

#[test]
fn two_sets_of_rules_are_compared() {
    let person = Person::new();
    person.write("project/sub/a.toml", "[[rule]]\nallow = \"a.example.com\"\n");
    person.write("project/sub/b.toml", "[[rule]]\nallow = \"b.example.com\"\n");
    let said = person.types(&["policy", "diff", "a.toml", "b.toml"]);
    let expected = "- allow a.example.com on ports 80 and 443 (a.toml:1)\n+ allow b.example.com on ports 80 and 443 (b.toml:1)\n";
    assert_eq!((said.code, said.stdout.as_str()), (0, expected));
    assert_eq!(person.types(&["policy", "diff", "--exit-code", "a.toml", "b.toml"]).code, 1);
    assert_eq!(person.types(&["policy", "diff", "--exit-code", "a.toml", "a.toml"]).code, 0);
}

#[test]
fn a_registry_comes_from_the_clients_own_settings_and_never_from_the_project() {
    let person = Person::new();
    let silent = person.types(&["policy", "groups", "npm"]);
    assert_eq!(silent.code, 1);
    assert!(silent.stderr.contains("npm config set registry"), "{}", silent.stderr);

    person.write("project/sub/.npmrc", "registry=https://evil.example/\n");
    assert_eq!(person.types(&["policy", "groups", "npm"]).code, 1);
    person.write(".npmrc", "registry=https://token:secret@npm.example.com:8443/\n");
    let told = person.types(&["policy", "groups", "npm"]);
    assert_eq!((told.code, told.stdout.lines().nth(1)), (0, Some("npm.example.com:8443")));
    assert!(!told.stdout.contains("secret"));
}

#[test]
fn the_host_network_is_refused_with_what_serves_instead() {
    let said = Person::new().types(&["run", "--network", "host", "--", "true"]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("--allow") && said.stderr.contains("--publish"), "{}", said.stderr);
}

#[test]
fn nothing_waits_where_nothing_runs() {
    let person = Person::new();
    let said = person.types(&["approvals", "--json"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, ""));
    assert_eq!(person.types(&["approve"]).code, 3);
    assert_eq!(person.types(&["ledger"]).code, 3);
}
