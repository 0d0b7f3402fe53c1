//! The goals, as data, and whether the figures meet them.

use super::{
    contender::Figure,
    exec::NSENTER,
    files,
    fork::FORK,
    images::{self, DOCKER_PULL, PODMAN_PULL},
    machine::{self, VIRTIO_FS},
    many::CROWDS,
    opened::{self, HAPROXY, MITMPROXY, SQUID},
    ours::As,
    served::{self, BINDFS},
    start::{BWRAP, BWRAP_USER, DOCKER},
    way::{DIRECT, HELD, PASTA, POURED},
};

/// A goal: what is measured of us, against whom, and where the border is.
struct Goal {
    measure: &'static str,
    ours: As,
    against: Option<&'static str>,
    border: Border,
}

enum Border {
    AtMost(f64),
    AtLeast(f64),
}

/// Whether a goal is met.
pub(crate) struct Verdict {
    /// The goal in words.
    pub(crate) goal: String,
    /// The ratio to the peer, or the figure itself where there is no peer.
    pub(crate) measured: Option<f64>,
    /// Nothing if it could not be measured.
    pub(crate) met: Option<bool>,
}

const fn goal(measure: &'static str, ours: As, against: Option<&'static str>, border: Border) -> Goal {
    Goal { measure, ours, against, border }
}

const GOALS: [Goal; 63] = [
    goal("start", As::Root, Some(BWRAP), Border::AtMost(1.5)),
    goal("start", As::Single, Some(BWRAP_USER), Border::AtMost(1.5)),
    goal("start", As::WithRanges, Some(BWRAP_USER), Border::AtMost(2.0)),
    goal("start", As::Root, Some(DOCKER), Border::AtMost(0.04)),
    goal("exec", As::Root, Some(NSENTER), Border::AtMost(1.5)),
    goal("idle", As::Root, None, Border::AtMost(5.0)),
    goal("idle", As::WithRanges, None, Border::AtMost(5.0)),
    goal("idle", As::Single, None, Border::AtMost(5.0)),
    goal(CROWDS[0].0, As::Root, Some(BWRAP), Border::AtLeast(0.5)),
    goal(CROWDS[1].0, As::Root, Some(BWRAP), Border::AtLeast(0.5)),
    goal("stream", As::Root, Some(DIRECT), Border::AtLeast(0.6)),
    goal("kept", As::Root, Some(DIRECT), Border::AtMost(1.5)),
    goal("connect", As::Root, Some(DIRECT), Border::AtMost(2.6)),
    goal("connects", As::Root, Some(PASTA), Border::AtLeast(1.2)),
    goal(HELD, As::Root, None, Border::AtMost(40.0)),
    goal(POURED, As::Root, None, Border::AtMost(40.0)),
    goal("gate", As::Root, None, Border::AtMost(5.0)),
    goal(opened::REQUESTS, As::Root, Some(HAPROXY), Border::AtLeast(1.0)),
    goal(opened::REQUESTS, As::Root, Some(SQUID), Border::AtLeast(2.5)),
    goal(opened::REQUESTS, As::Root, Some(MITMPROXY), Border::AtLeast(20.0)),
    goal(opened::STREAM, As::Root, Some(HAPROXY), Border::AtLeast(1.0)),
    goal(opened::STREAM, As::Root, Some(SQUID), Border::AtLeast(2.5)),
    goal(opened::KEPT, As::Root, Some(DIRECT), Border::AtMost(2.5)),
    goal(opened::FULL, As::Root, Some(DIRECT), Border::AtMost(1.3)),
    goal(opened::NEW, As::Root, Some(DIRECT), Border::AtMost(1.3)),
    goal(opened::SCRUBBED, As::Root, Some(opened::PLAIN), Border::AtLeast(0.85)),
    goal(opened::IDLE, As::Root, None, Border::AtMost(60.0)),
    goal(opened::POURED, As::Root, None, Border::AtMost(60.0)),
    goal(files::WORK[0].0, As::Root, Some(files::BARE), Border::AtMost(1.1)),
    goal(files::WORK[1].0, As::Root, Some(files::BARE), Border::AtMost(1.1)),
    goal(files::WORK[2].0, As::Root, Some(files::BARE), Border::AtMost(1.1)),
    goal(files::WORK[3].0, As::Root, Some(files::BARE), Border::AtMost(1.1)),
    goal(files::WORK[4].0, As::Root, Some(files::BARE), Border::AtMost(1.1)),
    goal(served::WORK[0].0, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[1].0, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[2].0, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[3].0, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[4].0, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[5].0, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[0].1, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[1].1, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[2].1, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[3].1, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[4].1, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(served::WORK[5].1, As::Root, Some(BINDFS), Border::AtMost(1.0)),
    goal(files::DIFF, As::Root, None, Border::AtMost(1000.0)),
    goal(files::DIFF, As::Single, None, Border::AtMost(1000.0)),
    goal(FORK, As::Root, None, Border::AtMost(100.0)),
    goal(FORK, As::WithRanges, None, Border::AtMost(100.0)),
    goal(FORK, As::Single, None, Border::AtMost(100.0)),
    goal(images::PULL, As::Root, Some(DOCKER_PULL), Border::AtMost(0.7)),
    goal(images::PULL, As::Root, Some(PODMAN_PULL), Border::AtMost(0.7)),
    goal(images::START, As::Root, Some(images::HOST), Border::AtMost(1.2)),
    goal(images::REBUILD, As::Root, None, Border::AtMost(300.0)),
    goal(machine::BOOT, As::Root, Some(machine::BARE), Border::AtMost(1.3)),
    goal(machine::WARM, As::Root, Some(machine::COLD), Border::AtMost(0.3)),
    goal(machine::KVM, As::Root, None, Border::AtMost(500.0)),
    goal(machine::WORK[0].0, As::Root, Some(VIRTIO_FS), Border::AtMost(2.0)),
    goal(machine::WORK[1].0, As::Root, Some(VIRTIO_FS), Border::AtMost(2.0)),
    goal(machine::WORK[2].0, As::Root, Some(VIRTIO_FS), Border::AtMost(2.0)),
    goal(machine::WORK[3].0, As::Root, Some(VIRTIO_FS), Border::AtMost(2.0)),
    goal(machine::WORK[4].0, As::Root, Some(VIRTIO_FS), Border::AtMost(2.0)),
    goal(machine::WORK[5].0, As::Root, Some(VIRTIO_FS), Border::AtMost(2.0)),
];

/// One verdict for each goal whose measurement was made.
pub(crate) fn judge(figures: &[Figure]) -> Vec<Verdict> {
    let made = |goal: &&Goal| figures.iter().any(|figure| figure.measure == goal.measure);
    GOALS.iter().filter(made).map(|goal| verdict(goal, figures)).collect()
}

fn verdict(goal: &Goal, figures: &[Figure]) -> Verdict {
    let found = |name: &str| {
        let figure = figures.iter().find(|figure| figure.measure == goal.measure && figure.name == name)?;
        figure.median.as_ref().ok().copied()
    };
    let measured = match goal.against {
        Some(peer) => found(goal.ours.name()).zip(found(peer)).map(|(ours, peer)| ours / peer),
        None => found(goal.ours.name()),
    };
    let met = measured.map(|measured| match goal.border {
        Border::AtMost(most) => measured <= most,
        Border::AtLeast(least) => measured >= least,
    });
    Verdict { goal: words(goal), measured, met }
}

fn words(goal: &Goal) -> String {
    let border = match goal.border {
        Border::AtMost(most) => format!("≤ {most}"),
        Border::AtLeast(least) => format!("≥ {least}"),
    };
    match goal.against {
        Some(peer) => format!("{}: {} {border} x {peer}", goal.measure, goal.ours.name()),
        None if goal.measure == "gate" => format!("Gate::ask with 1,000 rules {border} us"),
        None if goal.measure == files::DIFF => {
            format!("diff of 20,000 files: {} {border} ms", goal.ours.name())
        }
        None if goal.measure == FORK => format!("fork of 1 GB: {} {border} ms", goal.ours.name()),
        None if goal.measure == machine::KVM => format!("{}: {} {border} ms", goal.measure, goal.ours.name()),
        None if goal.measure == images::REBUILD => format!("rebuild: {} {border} ms", goal.ours.name()),
        None => format!("{}: {} {border} MB", goal.measure, goal.ours.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, median: Result<f64, String>) -> Figure {
        Figure { measure: "start", name: name.into(), unit: "ms", median }
    }

    #[test]
    fn a_ratio_over_the_border_is_over_and_a_skipped_peer_is_no_verdict() {
        let figures = [
            figure(As::Root.name(), Ok(9.0)),
            figure(As::Single.name(), Ok(5.0)),
            figure(BWRAP, Ok(5.0)),
            figure(BWRAP_USER, Ok(5.0)),
            figure(DOCKER, Err("skipped".into())),
        ];

        let verdicts: Vec<_> = judge(&figures).into_iter().map(|v| (v.goal, v.measured, v.met)).collect();

        assert_eq!(
            verdicts,
            [
                ("start: airlock, root ≤ 1.5 x bubblewrap, root".into(), Some(1.8), Some(false)),
                (
                    "start: airlock, user with a single id ≤ 1.5 x bubblewrap, user".into(),
                    Some(1.0),
                    Some(true)
                ),
                ("start: airlock, user with id ranges ≤ 2 x bubblewrap, user".into(), None, None),
                ("start: airlock, root ≤ 0.04 x docker run --network none".into(), None, None),
            ]
        );
    }
}
