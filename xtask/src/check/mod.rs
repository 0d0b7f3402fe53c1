//! `cargo xtask check`: whatever can be judged without running the product. Every part runs, also after a failure,
//! and all failures are listed at the end.

mod choke;
pub(crate) mod layers;
mod links;
pub(crate) mod sizes;
mod source;

use crate::workspace::{cargo, succeed};
use anyhow::{Result, bail};

/// A part of the check: its name and what does it.
type Part = (&'static str, fn() -> Result<()>);

const PARTS: [Part; 6] = [
    ("format", || succeed(&mut cargo(&["fmt", "--all", "--check"]))),
    ("lints", || {
        succeed(&mut cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    }),
    ("layers", || layers::run(Vec::new())),
    ("sizes", || sizes::run(Vec::new())),
    ("links", links::check),
    ("choke points", choke::check),
];

/// Runs every part; fails if one failed.
pub(crate) fn run(_: Vec<String>) -> Result<()> {
    let mut failed = Vec::new();
    for (name, part) in PARTS {
        match part() {
            Ok(()) => println!("check: {name}: ok"),
            Err(why) => {
                println!("check: {name}: {why:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("check failed: {}", failed.join(", "));
    }
    Ok(())
}

/// One error out of many complaints, one a line; none is fine.
fn complain(complaints: &[String]) -> Result<()> {
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("{} wrong\n  {}", complaints.len(), complaints.join("\n  "))
}
