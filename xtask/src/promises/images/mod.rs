//! Images: pulling and unpacking half a gigabyte beside dockerd, podman and skopeo from one registry on loopback, starting from an
//! image beside starting from the host's own system, and building again what was built.

mod registry;

use super::{
    Field,
    contender::{Contender, Figure, median, output, race, try_out},
    dockerd::Dockerd,
    ours::{As, Ours},
    start::present,
};
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result};
use registry::Registry;
use std::{fs, path::Path, process::Command, time::Instant};

/// Pulled and unpacked.
pub(crate) const PULL: &str = "pull";
/// A start from an image that is there.
pub(crate) const START: &str = "start, image";
/// A build of which every step is known.
pub(crate) const REBUILD: &str = "rebuild";
/// Docker, as it stands in tables.
pub(crate) const DOCKER_PULL: &str = "docker pull";
/// Podman, as it stands in tables.
pub(crate) const PODMAN_PULL: &str = "podman pull";
/// A start from the host's own system, in the same race.
pub(crate) const HOST: &str = "airlock, root, host image";

/// Each pull takes seconds.
const MOST_PULLS: usize = 5;
/// The image made of the peers' root file system.
const SMALL: &str = "airlock-small";

/// Times all of it.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let mut figures = match Scratch::new("promises-images").and_then(|scratch| {
        let registry = Registry::start(&scratch)?;
        Ok(pulls(field, &scratch, &registry, rounds.min(MOST_PULLS)))
    }) {
        Ok(figures) => figures,
        Err(why) => vec![skipped(PULL, As::Root.name(), &why)],
    };
    figures.extend(starts(field, rounds));
    figures.push(rebuilds(field, rounds));
    figures
}

/// One who pulls: forgets what it has, then pulls against the clock.
struct Puller {
    forget: Vec<Command>,
    pull: Command,
}

impl Puller {
    fn time(&mut self) -> Result<f64> {
        for forget in &mut self.forget {
            // The first time there is nothing to forget.
            let _ = output(forget);
        }
        try_out(&mut Command::new("sync"))?;
        let begin = Instant::now();
        output(&mut self.pull)?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }
}

fn pulls(field: &Field, scratch: &Scratch, registry: &Registry, rounds: usize) -> Vec<Figure> {
    let pullers = [
        (As::Root.name(), present(&field.ours[0]).and_then(|ours| our_pull(ours, registry))),
        (As::WithRanges.name(), present(&field.ours[1]).and_then(|ours| our_pull(ours, registry))),
        (DOCKER_PULL, present(&field.docker).map(|docker| docker_pull(docker, registry))),
        (PODMAN_PULL, podman_pull(scratch, registry)),
    ];
    let mut lanes: Vec<_> =
        pullers.into_iter().map(|(name, puller)| (name, puller, Vec::new(), None)).collect();
    for _ in 0..rounds {
        for (name, puller, samples, broken) in &mut lanes {
            match puller.as_mut().map(Puller::time) {
                Ok(Ok(took)) => samples.push(took),
                Ok(Err(why)) => *broken = Some(format!("skipped: {name}: {why:#}")),
                Err(why) => *broken = Some(format!("skipped: {why:#}")),
            }
        }
    }
    let figures = lanes.into_iter().map(|(name, _, samples, broken): (_, _, Vec<f64>, Option<String>)| {
        let median = match broken {
            Some(why) => Err(why),
            None => median(samples).ok_or_else(|| "skipped: no rounds".to_owned()),
        };
        Figure { measure: PULL, name: name.to_owned(), unit: "ms", median }
    });
    figures.collect()
}

fn our_pull(ours: &Ours, registry: &Registry) -> Result<Puller> {
    ours.configure(&format!("[images]\ninsecure = [\"{}\"]\n", registry.address()))?;
    let image = registry.image();
    let mut pull = ours.airlock("images");
    pull.args(["pull", "-q", &image]);
    let mut remove = ours.airlock("images");
    remove.args(["rm", "--force", &image]);
    let mut prune = ours.airlock("images");
    prune.args(["prune", "--all"]);
    Ok(Puller { forget: vec![remove, prune], pull })
}

fn docker_pull(docker: &Dockerd, registry: &Registry) -> Puller {
    let image = registry.image();
    let mut pull = docker.docker();
    pull.args(["pull", "--quiet", &image]);
    let mut forget = docker.docker();
    forget.args(["rmi", "--force", &image]);
    Puller { forget: vec![forget], pull }
}

fn podman_pull(scratch: &Scratch, registry: &Registry) -> Result<Puller> {
    let podman = program("podman").context("there is no podman")?;
    let [root, run] = ["podman-root", "podman-run"].map(|name| scratch.folder(name));
    let (root, run) = (root?, run?);
    let command = |words: &[&str]| {
        let mut command = Command::new(&podman);
        command.arg("--root").arg(&root).arg("--runroot").arg(&run);
        command.args(["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"]).args(words);
        command
    };
    let image = registry.image();
    let pull = command(&["pull", "--quiet", "--tls-verify=false", &image]);
    let forget = command(&["rmi", "--force", &image]);
    Ok(Puller { forget: vec![forget], pull })
}

/// Starts from an image that is there, beside starts from the host's own system.
fn starts(field: &Field, rounds: usize) -> Vec<Figure> {
    let small = present(&field.ours[0]).and_then(|ours| {
        import(field, ours)?;
        Ok(ours)
    });
    let from_image = small.map(|ours| -> Box<dyn FnMut() -> Command> {
        let ours = ours.clone();
        Box::new(move || {
            let mut command = ours.airlock("run");
            command.args(["--pull", "never", "--image", SMALL, "--", "/bin/true"]);
            command
        })
    });
    let contenders = vec![
        Contender::from(HOST, present(&field.ours[0]).map(Ours::runs)),
        Contender::from(As::Root.name(), from_image),
    ];
    race(START, contenders, rounds, || field.ours.iter().flatten().for_each(Ours::settle))
}

/// An image of the peers' root file system.
fn import(field: &Field, ours: &Ours) -> Result<()> {
    let bundle = present(&field.bundle)?;
    let archive = ours.workspace().join("small.tar");
    try_out(Command::new("tar").arg("-C").arg(&bundle.root).arg("-cf").arg(&archive).arg("."))?;
    try_out(ours.airlock("images").arg("import").arg(&archive).arg(SMALL))
}

/// A build of which every step is known already, from its start to its end.
fn rebuilds(field: &Field, rounds: usize) -> Figure {
    let prepared = present(&field.ours[0]).and_then(|ours| {
        import(field, ours)?;
        let context = ours.workspace().join("context");
        fill(&context)?;
        Ok((ours.clone(), context))
    });
    match prepared {
        Err(why) => skipped(REBUILD, As::Root.name(), &why),
        Ok((ours, context)) => {
            let contender = Contender::new(As::Root.name(), move || {
                let mut command = ours.airlock("build");
                command.args(["-q", "-t", "airlock-built"]).arg(&context);
                command
            });
            let mut figures = race(REBUILD, vec![contender], rounds, || ());
            figures.pop().unwrap_or_else(|| Figure {
                measure: REBUILD,
                name: As::Root.name().to_owned(),
                unit: "ms",
                median: Err("skipped: no rounds".to_owned()),
            })
        }
    }
}

/// A context of a thousand files, and twelve steps.
fn fill(context: &Path) -> Result<()> {
    let tree = context.join("tree");
    fs::create_dir_all(&tree).with_context(|| format!("could not make {}", tree.display()))?;
    for number in 0..1_000 {
        let path = tree.join(number.to_string());
        fs::write(&path, format!("{number}\n").repeat(200))
            .with_context(|| format!("could not write {}", path.display()))?;
    }
    let mut text = format!("FROM {SMALL}\nCOPY tree /tree\nWORKDIR /work\n");
    for step in 0..8 {
        text.push_str(&format!("RUN echo {step} > /work/{step}\n"));
    }
    text.push_str("ENV A=b\nCMD [\"/bin/sh\"]\n");
    fs::write(context.join("Dockerfile"), text).context("could not write the Dockerfile")
}

fn skipped(measure: &'static str, name: &str, why: &anyhow::Error) -> Figure {
    Figure { measure, name: name.to_owned(), unit: "ms", median: Err(format!("skipped: {why:#}")) }
}
