//! `airlock doctor` on the host the tests run on: as root, as an ordinary user, and where something is wrong.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;
use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// `nobody`, who has no home and no ranges.
const NOBODY: u32 = 65_534;

struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    /// A place that everybody can reach, with a state directory below it.
    fn new() -> Host {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // A link where one can be made: a file that has just been written may still be busy in another test's fork.
        let (built, here) = (env!("CARGO_BIN_EXE_airlock"), folder.path().join("airlock"));
        fs::hard_link(built, &here).or_else(|_| fs::copy(built, &here).map(|_| ())).unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        fs::set_permissions(folder.path().join("home"), fs::Permissions::from_mode(0o700)).unwrap();
        Host { folder }
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("airlock")
    }

    fn doctor(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command
            .arg("doctor")
            .args(words)
            .env("AIRLOCK_HOME", self.home())
            .env_remove("SUDO_UID")
            .current_dir("/");
        command
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A test that cannot run here; a failure if the tests are strict.
fn skip(why: &str) {
    assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "{why}");
    eprintln!("skipped: {why}");
}

fn lines(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn entries(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

/// What every report has, whatever the host is like.
fn check(host: &Host, output: &Output) {
    let lines = lines(output);
    let (summary, findings) = lines.split_last().unwrap();
    assert_eq!(summary["name"], "summary");
    assert!(
        findings.iter().all(|line| ["ok", "missing", "degraded"].contains(&line["status"].as_str().unwrap()))
    );
    let is_stopped = findings.iter().any(|line| line["stops_run"] == true);
    assert_eq!(output.status.code(), Some(if is_stopped { 5 } else { 0 }), "{lines:#?}");
    assert_eq!(entries(&host.home()), 0, "something was left behind");
    if is_stopped {
        skip(summary["says"].as_str().unwrap());
    }
}

#[test]
fn doctor_looks_at_the_host_and_leaves_nothing_behind() {
    let host = Host::new();

    let output = host.doctor(&["--json"]).output().unwrap();

    check(&host, &output);
}

#[test]
fn doctor_looks_at_the_host_for_an_ordinary_user() {
    if !is_root() {
        return skip("only root can become another user");
    }
    let host = Host::new();
    chown(host.home(), Some(NOBODY), Some(NOBODY)).unwrap();

    let output = host.doctor(&["--json"]).uid(NOBODY).gid(NOBODY).output().unwrap();

    check(&host, &output);
    let ids = lines(&output).into_iter().find(|line| line["name"] == "ids").unwrap();
    assert_eq!(ids["status"], "degraded");
}

#[test]
fn a_state_directory_on_an_overlay_is_refused() {
    if !is_root() {
        return skip("only root can mount");
    }
    let host = Host::new();
    let script = format!(
        "cd {} && mkdir t && mount -t tmpfs t t && mkdir t/l t/u t/w && \
         mount -t overlay o -o lowerdir=t/l,upperdir=t/u,workdir=t/w home && chmod 700 home && exec ./airlock doctor",
        host.folder.path().display()
    );

    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .env("AIRLOCK_HOME", host.home())
        .output()
        .unwrap();

    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("is on overlay, which cannot hold the layers of an overlay"), "{text}");
    assert_eq!(text.lines().last(), Some("airlock cannot run here: overlay"));
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn a_fix_is_applied_only_after_a_yes() {
    let host = Host::new();
    let mode = || fs::metadata(host.home()).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(host.home(), fs::Permissions::from_mode(0o755)).unwrap();

    let refused = host.doctor(&["--fix", "state"]).stdin(std::process::Stdio::null()).output().unwrap();

    assert_eq!((refused.status.code(), mode()), (Some(2), 0o755));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("run    chmod 700 "));

    let applied = host.doctor(&["--fix", "state", "--yes"]).output().unwrap();

    assert_eq!((applied.status.code(), mode()), (Some(0), 0o700));
}

#[test]
fn a_fix_for_the_system_sends_an_ordinary_user_to_sudo() {
    if !is_root() {
        return skip("only root can become another user");
    }
    let host = Host::new();
    chown(host.home(), Some(NOBODY), Some(NOBODY)).unwrap();

    let output = host.doctor(&["--fix", "ids", "--yes"]).uid(NOBODY).gid(NOBODY).output().unwrap();

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: this fix needs root\n  fix:  sudo airlock doctor --fix ids\n"
    );
}

#[test]
fn an_unknown_name_is_wrong_usage() {
    let output = Host::new().doctor(&["--fix", "nothing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
