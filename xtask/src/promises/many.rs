//! Many at once: so many are started in one go, and the rate is their number over the time until the last one ended.

use super::{
    Field,
    contender::{Contender, Figure},
    ours::{As, Ours},
    start::{BWRAP, bwraps, present, runtime},
};
use std::time::Instant;

/// The measurements: a name for tables and how many at once.
pub(crate) const CROWDS: [(&str, u32); 2] = [("50 at once", 50), ("200 at once", 200)];

/// The most rounds: each round is hundreds of sandboxes.
const ROUNDS: usize = 5;

/// The rate of each, per second.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    CROWDS.iter().flat_map(|(name, crowd)| race(field, name, *crowd, rounds.min(ROUNDS))).collect()
}

fn race(field: &Field, measure: &'static str, crowd: u32, rounds: usize) -> Vec<Figure> {
    let [root, with_ranges, single] = &field.ours;
    let contenders = [
        Contender::from(BWRAP, bwraps(None)),
        runtime(field, "crun"),
        Contender::from(As::Root.name(), present(root).map(Ours::runs)),
        Contender::from(As::WithRanges.name(), present(with_ranges).map(Ours::runs)),
        Contender::from(As::Single.name(), present(single).map(Ours::runs)),
    ];
    let mut lanes = contenders.map(|contender| (contender.warmed(), Vec::new()));
    for _ in 0..rounds {
        for (contender, samples) in &mut lanes {
            samples.extend(rate(contender, crowd));
            field.ours.iter().flatten().for_each(Ours::settle);
        }
    }
    lanes.into_iter().map(|(contender, samples)| contender.figure(measure, "per second", samples)).collect()
}

/// Nothing if one of them failed: a crowd of which some do not start is not faster for it.
fn rate(contender: &mut Contender, crowd: u32) -> Option<f64> {
    let begin = Instant::now();
    let running: Vec<_> = (0..crowd).map(|_| contender.spawn()).collect();
    let ended = running.into_iter().filter_map(|child| child.and_then(|mut child| Ok(child.wait()?)).ok());
    let ended = u32::try_from(ended.filter(|status| status.success()).count()).ok()?;
    let took = begin.elapsed().as_secs_f64();
    if ended < crowd && ended > 0 {
        println!("{}: {} of {crowd} at once failed", contender.name(), crowd - ended);
    }
    (ended == crowd).then(|| f64::from(crowd) / took)
}
