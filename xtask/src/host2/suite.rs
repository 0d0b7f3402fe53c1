//! The second disk: the plan, the script of each case, the product and its black-box tests, freshly built. The machine
//! mounts it read-only at `/suite`.
//!
//! Test programs see `AIRLOCK_BIN`, the path of the product.

use super::{
    cases::Case,
    process::{shown_output_of, succeed},
};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Makes the disk for these cases; builds the product only if one of them uses it.
pub(super) fn pack(home: &Path, cases: &[Case]) -> Result<PathBuf> {
    let staging = home.join("suite");
    make_empty(&staging)?;
    put(&staging.join("run.sh"), include_str!("guest/run.sh"))?;
    put(&staging.join("plan"), &plan(cases))?;
    for case in cases {
        let name = format!("cases/{}.{}", case.user, case.name);
        put(&staging.join(name), case.script)?;
    }
    if cases.iter().any(|case| case.script.contains("airlock ")) {
        put_product(&staging)?;
    }
    for (package, dir) in TESTED {
        if cases.iter().any(|case| case.script.contains(dir)) {
            put_tests(package, &staging.join(dir))?;
        }
    }
    make_disk(&staging, home.join("suite.ext4"))
}

/// Packages whose test programs go in, and the directory in which a case finds them.
const TESTED: [(&str, &str); 2] = [("airlock-linux", "tests/linux"), ("airlock-tests", "tests/black-box")];

/// One line for each case: user, name, seconds.
fn plan(cases: &[Case]) -> String {
    cases.iter().fold(String::new(), |mut plan, case| {
        // Writing to a String cannot fail.
        let _ = writeln!(plan, "{} {} {}", case.user, case.name, case.seconds);
        plan
    })
}

fn put_product(staging: &Path) -> Result<()> {
    let built = cargo(&["build", "-p", "airlock", "--bin", "airlock"])?;
    let product = built.last().context("cargo built no airlock program")?;
    copy(product, &staging.join("bin/airlock"))
}

fn put_tests(package: &str, dir: &Path) -> Result<()> {
    let programs = cargo(&["test", "-p", package, "--no-run"])?;
    ensure!(!programs.is_empty(), "cargo built no test program of {package}");
    for (number, program) in programs.iter().enumerate() {
        copy(program, &dir.join(number.to_string()))?;
    }
    Ok(())
}

/// Builds, and returns the programs that came out.
fn cargo(args: &[&str]) -> Result<Vec<PathBuf>> {
    let mut cargo = Command::new(super::cargo());
    let messages = shown_output_of(cargo.args(args).arg("--message-format=json-render-diagnostics"))?;
    Ok(messages.lines().filter_map(executable).collect())
}

/// The program that a line of cargo's JSON announces.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    message.get("executable")?.as_str().map(PathBuf::from)
}

fn make_disk(staging: &Path, disk: PathBuf) -> Result<PathBuf> {
    let mut mkfs = Command::new("mkfs.ext4");
    // Owned by root inside, whoever runs this. Sparse, so generous.
    mkfs.args([
        "-q",
        "-F",
        "-L",
        "suite",
        "-O",
        "^has_journal",
        "-E",
        "root_owner=0:0,lazy_itable_init=1",
        "-d",
    ]);
    remove_file(&disk)?;
    succeed(mkfs.arg(staging).arg(&disk).arg("2G"))?;
    Ok(disk)
}

fn make_empty(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", dir.display()))?;
        }
        _ => {}
    }
    for part in ["bin", "cases", "tests/linux", "tests/black-box"] {
        fs::create_dir_all(dir.join(part)).with_context(|| format!("could not make {}", dir.display()))?;
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn put(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("could not write {}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("could not copy {}", from.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host2::cases;

    #[test]
    fn the_plan_has_three_words_a_line() {
        let cases = cases::facts();
        let plan = plan(&cases);
        assert_eq!(plan.lines().count(), cases.len());
        assert!(plan.lines().all(|line| line.split(' ').count() == 3));
    }

    #[test]
    fn only_messages_with_a_program_name_one() {
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":"/x/y"}"#), Some("/x/y".into()));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable("Compiling"), None);
    }
}
