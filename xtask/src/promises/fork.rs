//! How long it takes until two sandboxes go on from the files of a stopped one, which has a gigabyte of them.

use super::{
    Field,
    contender::{Figure, median, output},
    ours::{As, Ours},
};
use anyhow::Result;
use std::{process::Command, time::Instant};

/// The measurement's name.
pub(crate) const FORK: &str = "fork";

/// Each round writes a gigabyte for every user.
const MOST_ROUNDS: usize = 5;
/// A gigabyte in a thousand files.
const WRITE: &str =
    "mkdir /root/files && cd /root/files && for i in $(seq 1000); do head -c 1000000 /dev/zero >$i; done";

/// One figure for each user.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let who = [As::Root, As::WithRanges, As::Single];
    who.into_iter()
        .zip(&field.ours)
        .map(|(who, ours)| {
            let sampled = ours.as_ref().map_err(|why| format!("skipped: {why:#}")).and_then(|ours| {
                let samples: Result<Vec<f64>> =
                    (0..rounds.min(MOST_ROUNDS)).map(|_| time_one(ours)).collect();
                samples.map_err(|why| format!("skipped: {why:#}"))
            });
            let median =
                sampled.and_then(|samples| median(samples).ok_or_else(|| "skipped: no rounds".to_owned()));
            Figure { measure: FORK, name: who.name().to_owned(), unit: "ms", median }
        })
        .collect()
}

fn time_one(ours: &Ours) -> Result<f64> {
    let name = "fork-source";
    output(ours.airlock("run").args([
        "--keep",
        "--name",
        name,
        "--workspace",
        "none",
        "--",
        "sh",
        "-c",
        WRITE,
    ]))?;
    // Its keeper ends, and the disk is quiet, before the clock starts.
    output(ours.airlock("wait").arg(name))?;
    output(&mut Command::new("sync"))?;
    let begin = Instant::now();
    let forks = output(ours.airlock("fork").args([name, "-n", "2"]))?;
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let forks: Vec<&str> = forks.lines().collect();
    anyhow::ensure!(forks.len() == 2, "airlock fork made {} sandboxes", forks.len());
    output(ours.airlock("rm").arg("--force").arg(name).args(forks))?;
    Ok(took)
}
