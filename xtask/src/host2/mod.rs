//! The second host: a virtual machine with nothing but control groups version 2, systemd and login sessions, in which
//! the limits are tested. The machine that runs the tests may have version 1; users mostly have this.
//!
//! `cargo xtask host2` makes the machine's disk (once, then cached), boots it under software emulation, logs in the
//! users of [`cases`], runs their cases and prints one line for each. `cargo xtask host2 --facts` leaves the product
//! out and shows only that the machine is what it is meant to be.

mod cases;
mod expect;
mod image;
mod machine;
mod process;
mod report;
mod suite;

use anyhow::{Context as _, Result, bail};
use cases::Case;
use report::{Finished, Report};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Runs the suite on the second host. Fails if a case fails, does not run, or the machine cannot be made.
///
/// The only argument is `--facts`: run no case that needs the product.
pub(crate) fn run(args: Vec<String>) -> Result<()> {
    let cases = chosen_cases(args)?;
    if !cfg!(target_arch = "x86_64") {
        bail!("the second host is an x86_64 machine: run this on one");
    }
    let started = Instant::now();
    let home = home()?;
    fs::create_dir_all(&home).with_context(|| format!("could not make {}", home.display()))?;
    let _turn = take_turn(&home)?;

    let disk = image::cached_or_built(&home)?;
    let suite = suite::pack(&home, &cases)?;
    progress(started, "booting the second host (software emulation)");
    let report = machine::run(&disk, &suite, &home.join("console.log"), &cases)?;
    conclude(&report, &home, started)
}

/// One line to the person waiting.
fn progress(since: Instant, what: &str) {
    eprintln!("host2: {:>4} s  {what}", since.elapsed().as_secs());
}

fn chosen_cases(args: Vec<String>) -> Result<Vec<Case>> {
    let mut cases = cases::facts();
    let mut with_product = true;
    for arg in args {
        match arg.as_str() {
            "--facts" => with_product = false,
            other => bail!("unknown argument {other}; usage: cargo xtask host2 [--facts]"),
        }
    }
    if with_product {
        cases.extend(cases::kernel());
        cases.extend(cases::product());
    }
    Ok(cases)
}

fn home() -> Result<PathBuf> {
    let text =
        process::output_of(Command::new(cargo()).args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).context("could not read cargo's metadata")?;
    let target = metadata.get("target_directory").and_then(serde_json::Value::as_str);
    Ok(Path::new(target.context("cargo named no target directory")?).join("host2"))
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// Two runs at once would build into the same directory: the second waits.
fn take_turn(home: &Path) -> Result<File> {
    let path = home.join("lock");
    let file = File::create(&path).with_context(|| format!("could not make {}", path.display()))?;
    file.lock().with_context(|| format!("could not lock {}", path.display()))?;
    Ok(file)
}

fn conclude(report: &Report, home: &Path, started: Instant) -> Result<()> {
    let failures = report.failures();
    let ok = report.finished.iter().filter(|case| case.verdict.is_ok()).count();
    println!("host2: {ok} ok, {} failed, {} s in all", failures.len(), started.elapsed().as_secs());
    if failures.is_empty() {
        return Ok(());
    }
    for failure in &failures {
        eprintln!("  {failure}");
    }
    let console = home.join("console.log");
    eprintln!("the last lines of the second host's console ({}):\n{}", console.display(), end_of(&console));
    bail!("{} cases failed on the second host", failures.len())
}

/// What matters of a machine that did not boot; nothing of a log that cannot be read.
fn end_of(log: &Path) -> String {
    let text =
        fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).replace('\x1b', "")).unwrap_or_default();
    let lines: Vec<_> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    indented(lines.get(lines.len().saturating_sub(40)..).unwrap_or_default())
}

/// Prints a case as soon as it has ended; what it said, only if it failed.
fn print(case: &Finished) {
    let seconds = case.took.as_secs_f64();
    let (user, name) = (case.user, case.name);
    match &case.verdict {
        Ok(()) => println!("ok      {user}: {name} ({seconds:.1} s)"),
        Err(why) => println!("FAILED  {user}: {name} ({seconds:.1} s): {why}\n{}", indented(&case.said)),
    }
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("        {line}\n")).collect()
}
