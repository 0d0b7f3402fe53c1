//! Programs run for their effect or their output; a failure names the program and what it said.
//!
//! `process::output_of(Command::new("uname").arg("-r"))?`

use anyhow::{Context as _, Result, bail};
use std::process::{Command, Stdio};

/// Runs a program to its end, silently. What it printed is shown only in the error.
pub(super) fn succeed(command: &mut Command) -> Result<()> {
    output_of(command).map(drop)
}

/// Runs a program to its end and returns what it wrote to stdout.
pub(super) fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("could not start {program}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}):\n{stdout}{stderr}", output.status);
    }
    Ok(stdout)
}

/// Runs a program whose stderr is of interest to a person waiting (cargo), and returns its stdout.
pub(super) fn shown_output_of(command: &mut Command) -> Result<String> {
    output_of(command.stderr(Stdio::inherit()))
}

/// Whether a program of that name is on the search path.
pub(super) fn is_installed(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    let sbin = ["/usr/sbin".into(), "/sbin".into()];
    std::env::split_paths(&path).chain(sbin).any(|dir| dir.join(program).is_file())
}
