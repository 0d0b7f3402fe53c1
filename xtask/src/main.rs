//! Tasks of this repository that are no part of the product: `cargo xtask TASK`.
//!
//! | task | what |
//! |---|---|
//! | `check` | everything that can be judged without running the product; `layers` and `sizes` are parts of it |
//! | `test` | installs what the tests need, then all tests: as root, as a user with id ranges, as a user without |
//! | `fuzz` | hostile bytes for everything that reads them, for so long |
//! | `internet` | runs a command inside the virtual internet of the tests |
//! | `dist` | one static binary per architecture, with checksums |
//! | `host2` | the limits once more, in a virtual machine with control groups version 2 only and systemd |
//! | `promises` | the figures of SPECIFICATION.md, measured beside the peers |

mod check;
mod dist;
mod fuzz;
mod host2;
mod promises;
mod system;
mod test;
mod workspace;

use anyhow::{Result, bail};
use std::process::ExitCode;

/// A task: its name, what it does, and the function that does it with the arguments after the name.
type Task = (&'static str, &'static str, fn(Vec<String>) -> Result<()>);

const TASKS: [Task; 9] = [
    ("check", "format, lints, layers, sizes, links and choke points", check::run),
    ("layers", "a crate uses only rows below its own (ARCHITECTURE.md)", check::layers::run),
    ("sizes", "no file is longer than 500 lines without its tests", check::sizes::run),
    ("test", "install what the tests need and run them: [--backend B] [--as KIND] [FILTER…]", test::run),
    ("internet", "run a command inside the virtual internet of the tests: COMMAND…", test::run_inside),
    ("fuzz", "hostile bytes for everything that reads them: [--seconds N] [NAME…]", fuzz::run),
    ("dist", "one static binary per architecture, with checksums", dist::run),
    ("host2", "the limits on a second host, with control groups version 2 only: [--facts]", host2::run),
    ("promises", "measure airlock beside its peers: [--rounds N] [--only NAME] [--strict]", promises::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let linked = dist::called_as_linker(&args);
    let mut args = args.into_iter();
    match linked.unwrap_or_else(|| perform(args.next().as_deref(), args.collect())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(name: Option<&str>, args: Vec<String>) -> Result<()> {
    match name {
        // The two ends of what `promises` measures, executed by it.
        Some("way-server") => return promises::serve(args),
        Some("way-client") => return promises::time(args),
        _ => {}
    }
    let Some((_, _, run)) = TASKS.iter().find(|(task, _, _)| Some(*task) == name) else {
        for (task, what, _) in TASKS {
            eprintln!("  cargo xtask {task:9} {what}");
        }
        bail!("{} is not a task", name.unwrap_or("nothing"));
    };
    run(args)
}

/// The names of all tasks, for the documents that mention them.
fn names() -> Vec<&'static str> {
    TASKS.iter().map(|(name, _, _)| *name).collect()
}
