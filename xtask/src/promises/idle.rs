//! Memory of a sandbox in which a program sleeps: the proportional share (PSS) of everything but the program.

use super::{
    Field,
    contender::{Figure, median},
    exec::Bubble,
    ours::{As, Idle, Ours},
    start::present,
};
use anyhow::{Context as _, Result};
use std::fs;

/// How many sleep at once; shared pages count once for all of them.
const SANDBOXES: usize = 20;

/// Reads the share of each, and gives the median per sandbox in megabytes. Rounds make no difference.
pub(crate) fn measure(field: &Field, _: usize) -> Vec<Figure> {
    let [root, with_ranges, single] = &field.ours;
    vec![
        figure("bubblewrap, root", bubbles()),
        figure(As::Root.name(), ours(root)),
        figure(As::WithRanges.name(), ours(with_ranges)),
        figure(As::Single.name(), ours(single)),
    ]
}

fn figure(name: &str, shares: Result<Vec<f64>>) -> Figure {
    let middle = shares.and_then(|shares| median(shares).context("nothing was read"));
    Figure {
        measure: "idle",
        name: name.into(),
        unit: "MB",
        median: middle.map_err(|why| format!("skipped: {why:#}")),
    }
}

fn ours(ours: &Result<Ours>) -> Result<Vec<f64>> {
    let ours = present(ours)?;
    let idle: Vec<Idle> = (0..SANDBOXES).map(|_| ours.start_idle()).collect::<Result<_>>()?;
    idle.iter().map(|sandbox| sandbox.pids()?.into_iter().map(share).sum()).collect()
}

/// Bubblewrap leaves two processes beside the program: the one outside and the first inside.
fn bubbles() -> Result<Vec<f64>> {
    let bubbles: Vec<Bubble> = (0..SANDBOXES).map(|_| Bubble::start()).collect::<Result<_>>()?;
    bubbles.iter().map(|bubble| Ok(share(bubble.outside())? + share(bubble.inside)?)).collect()
}

/// The proportional share of one process in megabytes.
pub(crate) fn share(pid: u64) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
    kilobytes(&text).map(|kb| f64::from(kb) / 1024.0).with_context(|| format!("{path} shows no Pss"))
}

fn kilobytes(rollup: &str) -> Option<u32> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_read_from_its_line() {
        let rollup =
            "55d0 rollup\nRss:            1234 kB\nPss:             321 kB\nPss_Dirty:        20 kB\n";

        assert_eq!(kilobytes(rollup), Some(321));
        assert_eq!(kilobytes("Rss: 1 kB\n"), None);
    }

    #[test]
    fn our_own_share_can_be_read() {
        assert!(share(u64::from(std::process::id())).unwrap() > 0.1);
    }
}
