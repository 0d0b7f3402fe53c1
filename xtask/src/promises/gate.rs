//! One decision of the gate with a thousand rules, its record in the ledger included.

use super::{
    Field,
    contender::{Figure, output},
    ours::As,
};
use anyhow::{Context as _, Result};
use std::process::Command;

/// Microseconds, the median of what the gate's own example prints.
pub(crate) fn measure(_: &Field, _: usize) -> Vec<Figure> {
    let median = ask().map_err(|why| format!("skipped: {why:#}"));
    vec![Figure { measure: "gate", name: As::Root.name().into(), unit: "us", median }]
}

fn ask() -> Result<f64> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--release", "--package", "airlock-gate", "--example", "ask"]);
    let said = output(&mut cargo)?;
    let last = said.lines().last().context("the example printed nothing")?;
    let nanoseconds: f64 =
        last.split_whitespace().next().context("the example printed no figure")?.parse()?;
    Ok(nanoseconds / 1e3)
}
