//! `cargo xtask fuzz [--seconds N] [NAME…]`: hostile bytes for everything that reads them, each for so long.
//!
//! The targets are tests (`fuzz` in `crates/net`), which have a few thousand inputs when all tests run.

use crate::workspace::{cargo, succeed};
use anyhow::{Context as _, Result};

/// For each target.
const SECONDS: u64 = 60;

/// Runs the targets whose names hold one of the words, one after the other; all of them where there is none.
pub(crate) fn run(args: Vec<String>) -> Result<()> {
    let (mut seconds, mut words) = (SECONDS, Vec::new());
    let mut args = args.into_iter();
    while let Some(word) = args.next() {
        match word.as_str() {
            "--seconds" => {
                let given = args.next().context("--seconds needs a number")?;
                seconds = given.parse().context("--seconds needs a number")?;
            }
            _ => words.push(word),
        }
    }
    if words.is_empty() {
        words.push("fuzz::".to_owned());
    }
    let mut tests =
        cargo(&["test", "--package", "airlock-net", "--lib", "--", "--nocapture", "--test-threads=1"]);
    succeed(tests.args(words).env("AIRLOCK_FUZZ_SECONDS", seconds.to_string()))
}
