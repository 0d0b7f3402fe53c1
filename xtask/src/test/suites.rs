//! Runs a test command, shows its output as it comes, and keeps what a person wants to see again at the end.

use crate::workspace::words;
use anyhow::{Context as _, Result};
use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

/// How one run of tests ended.
pub(crate) struct Outcome {
    /// What ran, and as whom.
    pub(crate) name: String,
    /// Whether every test passed.
    pub(crate) passed: bool,
    /// The lines that sum it up.
    pub(crate) closing: Vec<String>,
}

/// Runs it to its end. A failing test is an outcome, not an error.
pub(crate) fn run_and_note(name: &str, command: &mut Command) -> Result<Outcome> {
    println!("\ntest: {name}");
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("could not run {}", words(command)))?;
    let mut closing = Vec::new();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines) {
        let line = line.with_context(|| format!("could not read the output of {name}"))?;
        println!("{line}");
        if is_closing(&line) {
            closing.push(line);
        }
    }
    let status = child.wait().with_context(|| format!("could not wait for {name}"))?;
    Ok(Outcome { name: name.to_owned(), passed: status.success(), closing })
}

/// The sum of a test binary that held tests, and the name of each failed test.
fn is_closing(line: &str) -> bool {
    let sum = line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed; 0 ignored;");
    let failed = line.starts_with("test ") && line.ends_with("... FAILED");
    sum || failed || line.starts_with("skipped: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_failures_and_skips_are_shown_again() {
        assert!(is_closing("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"));
        assert!(is_closing("test a_fork_bomb_is_held ... FAILED"));
        assert!(is_closing("skipped: no loop device"));
        assert!(!is_closing("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"));
        assert!(!is_closing("test a_fork_bomb_is_held ... ok"));
    }

    #[test]
    fn a_failing_command_is_an_outcome() {
        let outcome = run_and_note("sh", Command::new("sh").args(["-c", "echo test x ... FAILED; exit 1"]));

        let outcome = outcome.unwrap();
        assert_eq!((outcome.passed, outcome.closing), (false, vec!["test x ... FAILED".to_owned()]));
    }
}
