//! What POSIX and Linux promise of a file system, tried in a directory, as a program inside a sandbox sees it.
//!
//! The suite's own binary is shown in a sandbox and runs [`run`] there; each check has a directory of its own and gives
//! nothing or the first thing that was not as promised. Which checks a kind of file system is known to fail, its suite says.

mod content;
mod links;
mod names;

use std::{fs, path::Path};

/// A check: what it is called, and what it does in an empty directory.
pub type Check = (&'static str, fn(&Path) -> Outcome);

/// Nothing, or what was wrong.
pub type Outcome = Result<(), String>;

/// Every check.
pub fn checks() -> Vec<Check> {
    [names::CHECKS, links::CHECKS, content::CHECKS].concat()
}

/// Runs every check below a directory; gives the name of each that failed, and why.
pub fn run(directory: &Path) -> Vec<(&'static str, String)> {
    let mut failed = Vec::new();
    for (name, check) in checks() {
        let own = directory.join(name);
        let outcome = match fs::create_dir(&own) {
            Ok(()) => check(&own),
            Err(err) => Err(format!("no directory for it: {err}")),
        };
        if let Err(why) = outcome {
            failed.push((name, why));
        }
    }
    failed
}

/// What was expected, and what came.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

/// A call that must work.
fn works<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|err| format!("{what}: {err}"))
}

/// A call that must fail with one of these.
fn fails<T>(what: &str, result: std::io::Result<T>, errors: &[rustix::io::Errno]) -> Outcome {
    match result {
        Ok(_) => Err(format!("{what}: worked")),
        Err(err) if errors.iter().any(|errno| Some(errno.raw_os_error()) == err.raw_os_error()) => Ok(()),
        Err(err) => Err(format!("{what}: {err}")),
    }
}
