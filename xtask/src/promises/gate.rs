//! One decision of the gate with a thousand rules, its record in the ledger included.

use super::{
    Field,
    contender::{Figure, output},
    ours::As,
};
use anyhow::{Context as _, Result};
use std::process::Command;

/// Microseconds, the median of what the gate's own measurement prints.
pub(crate) fn measure(_: &Field, _: usize) -> Vec<Figure> {
    let median = ask().map_err(|why| format!("skipped: {why:#}"));
    vec![Figure { measure: "gate", name: As::Root.name().into(), unit: "us", median }]
}

fn ask() -> Result<f64> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--release", "--package", "airlock-gate", "--lib"]);
    cargo.args(["asking_with_a_thousand_rules_is_measured", "--", "--ignored", "--nocapture"]);
    let said = output(&mut cargo)?;
    median(&said).map(|nanoseconds| nanoseconds / 1e3).context("the measurement printed no figure")
}

/// The nanoseconds in `… median 3000 ns, …`.
fn median(said: &str) -> Option<f64> {
    said.split_once("median ")?.1.split_once(" ns")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_read_from_what_the_measurement_prints() {
        let said = "running 1 test\nGate::ask, 1,000 rules: best 2400 ns, median 3000 ns, worst 4700 ns\n.";
        assert_eq!(median(said), Some(3000.0));
        assert_eq!(median("running 0 tests"), None);
    }
}
