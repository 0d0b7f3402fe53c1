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
    /// The tests that failed.
    failed: Vec<String>,
}

/// So many failures may be the machine's; more are not looked at again.
const MOST_REPEATED: usize = 3;

/// Runs the tests that `command` makes, and the few that failed once more, alone: the suites drive real kernels, terminals
/// and clocks, and a busy machine can starve one of them. A test that passes only then is told of as `flaky`, at the end
/// too. The command gets further arguments for the test binary.
pub(crate) fn run_twice(name: &str, command: impl Fn(&[&str]) -> Command) -> Result<Outcome> {
    let mut outcome = run_and_note(name, &mut command(&[]))?;
    if outcome.passed || outcome.failed.is_empty() || outcome.failed.len() > MOST_REPEATED {
        return Ok(outcome);
    }
    let mut args = vec!["--exact", "--test-threads=1"];
    args.extend(outcome.failed.iter().map(String::as_str));
    let again = run_and_note(&format!("{name}, what failed once more"), &mut command(&args))?;
    outcome.passed = again.passed;
    let how = if again.passed { "passed when it ran alone" } else { "failed again" };
    let told: Vec<String> =
        outcome.failed.iter().map(|test| format!("flaky: {test} failed, then {how}")).collect();
    outcome.closing.extend(told);
    Ok(outcome)
}

/// Runs it to its end. A failing test is an outcome, not an error.
fn run_and_note(name: &str, command: &mut Command) -> Result<Outcome> {
    println!("\ntest: {name}");
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("could not run {}", words(command)))?;
    let (mut closing, mut failed) = (Vec::new(), Vec::new());
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines) {
        let line = line.with_context(|| format!("could not read the output of {name}"))?;
        println!("{line}");
        failed.extend(failed_test(&line).map(str::to_owned));
        if is_closing(&line) {
            closing.push(line);
        }
    }
    let status = child.wait().with_context(|| format!("could not wait for {name}"))?;
    Ok(Outcome { name: name.to_owned(), passed: status.success(), closing, failed })
}

/// The sum of a test binary that held tests, and the name of each failed test.
fn is_closing(line: &str) -> bool {
    let sum = line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed; 0 ignored;");
    sum || failed_test(line).is_some() || line.starts_with("skipped: ")
}

fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
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
    fn what_fails_once_is_repeated_alone_and_told_of() {
        let folder = tempfile();
        let script = "[ -e mark ] && exit 0; touch mark; echo 'test a::b ... FAILED'; exit 1";
        let outcome = run_twice("sh", |args| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).args(args).current_dir(&folder);
            command
        });
        std::fs::remove_dir_all(&folder).unwrap();

        let outcome = outcome.unwrap();
        assert!(outcome.passed);
        assert_eq!(outcome.closing.last().unwrap(), "flaky: a::b failed, then passed when it ran alone");
    }

    #[test]
    fn what_fails_again_has_failed() {
        let outcome = run_twice("sh", |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo 'test a::b ... FAILED'; exit 1"]);
            command
        });
        assert!(!outcome.unwrap().passed);
    }

    fn tempfile() -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("airlock-suites-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_failing_command_is_an_outcome() {
        let outcome = run_and_note("sh", Command::new("sh").args(["-c", "echo test x ... FAILED; exit 1"]));

        let outcome = outcome.unwrap();
        assert_eq!((outcome.passed, outcome.closing), (false, vec!["test x ... FAILED".to_owned()]));
    }
}
