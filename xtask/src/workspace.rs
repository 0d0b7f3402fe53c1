//! The workspace: where it is, what it consists of, and cargo in it.
//!
//! ```ignore
//! workspace::cargo(&["fmt", "--check"]).status()?;
//! for file in workspace::files("rs")? { … }
//! ```

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Directories that hold nothing a person wrote here.
const NOT_OURS: [&str; 4] = ["target", "dist", "node_modules", ".git"];

/// The directory of the workspace's Cargo.toml.
pub(crate) fn top() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Cargo at the top of the workspace, without what the cargo that runs this task said about this task.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args).current_dir(top());
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs a command with its output shown; an exit code other than 0 is an error.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("could not run {}", words(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", words(command));
    }
    Ok(())
}

/// The command as a person would type it.
pub(crate) fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// What `cargo metadata` says of the workspace's own packages.
pub(crate) fn metadata() -> Result<Value> {
    let output = cargo(&["metadata", "--format-version=1", "--no-deps"])
        .stderr(Stdio::inherit())
        .output()
        .context("could not run cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata did not print JSON")
}

/// Cargo's target directory.
pub(crate) fn target() -> Result<PathBuf> {
    let metadata = metadata()?;
    let path = metadata.get("target_directory").and_then(Value::as_str);
    path.map(PathBuf::from).context("cargo metadata names no target directory")
}

/// The executables that a cargo command with `--message-format=json` says it made: the target's name and the path.
pub(crate) fn executables(cargo: &mut Command) -> Result<Vec<(String, PathBuf)>> {
    let output =
        cargo.stderr(Stdio::inherit()).output().with_context(|| format!("could not run {}", words(cargo)))?;
    if !output.status.success() {
        bail!("{} failed ({})", words(cargo), output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|m| executable(&m))
        .collect())
}

fn executable(message: &Value) -> Option<(String, PathBuf)> {
    let name = message.pointer("/target/name")?.as_str()?;
    let path = message.get("executable")?.as_str()?;
    Some((name.to_owned(), PathBuf::from(path)))
}

/// Every file of the workspace with this extension, by its path from the top, in order.
pub(crate) fn files(extension: &str) -> Result<Vec<PathBuf>> {
    let top = top();
    let mut found = Vec::new();
    collect(&top, extension, &mut found)?;
    found.sort();
    Ok(found.into_iter().filter_map(|path| Some(path.strip_prefix(&top).ok()?.to_path_buf())).collect())
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if path.is_symlink() || NOT_OURS.contains(&name) {
            continue;
        }
        if path.is_dir() {
            collect(&path, extension, found)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    Ok(())
}

/// The text of a file, by its path from the top.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(top().join(path)).with_context(|| format!("could not read {}", path.display()))
}
