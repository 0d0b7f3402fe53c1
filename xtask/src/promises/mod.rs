//! `cargo xtask promises`: what SPECIFICATION.md promises about time and memory, measured beside the peers from
//! Debian's packages. Rounds are interleaved, so that a busy moment of the machine hits all alike; figures are
//! medians, and only the ratios carry over to another machine.
//!
//! `--rounds N` (50), `--only start|exec|idle|many|way|gate|opened|files|fork|served|images|machine`, `--strict` (a goal that is missed or not measured is an error),
//! `--binary FILE` (an airlock that was built before, in place of the one that is given out).

mod contender;
mod dockerd;
mod exec;
mod files;
mod fork;
mod gate;
mod goals;
mod idle;
mod images;
mod machine;
mod many;
mod oci;
mod opened;
mod ours;
mod report;
mod served;
mod start;
mod way;

use crate::system::{self, Package, Scratch};
use anyhow::{Context as _, Result, bail};
use contender::Figure;
use dockerd::Dockerd;
use oci::Bundle;
use ours::{As, Ours, Person};
use std::path::{Path, PathBuf};
pub(crate) use way::{serve, time};

/// The peers. What is missing is measured as `skipped`.
const PEERS: [Package; 16] = [
    Package { name: "qemu-system-x86", program: "qemu-system-x86_64", reason: "peer, and runs machines" },
    Package { name: "bubblewrap", program: "bwrap", reason: "peer" },
    Package { name: "crun", program: "crun", reason: "peer" },
    Package { name: "runc", program: "runc", reason: "peer" },
    Package { name: "docker.io", program: "dockerd", reason: "peer" },
    Package { name: "passt", program: "pasta", reason: "peer" },
    Package { name: "nginx-light", program: "nginx", reason: "a web server behind the wall" },
    Package { name: "haproxy", program: "haproxy", reason: "peer" },
    Package { name: "squid-openssl", program: "squid", reason: "peer" },
    Package { name: "nftables", program: "nft", reason: "leads connections to the peers" },
    Package { name: "podman", program: "podman", reason: "peer" },
    Package { name: "docker-registry", program: "docker-registry", reason: "images to pull" },
    Package { name: "skopeo", program: "skopeo", reason: "puts an image into the registry" },
    Package { name: "bindfs", program: "bindfs", reason: "peer" },
    Package { name: "wrk", program: "wrk", reason: "times requests" },
    Package {
        name: "busybox-static",
        program: "busybox",
        reason: "root file system of the peers that want one",
    },
];

/// What was asked for.
struct Options {
    rounds: usize,
    only: Option<String>,
    on_miss: OnMiss,
    binary: Option<PathBuf>,
}

/// What a missed goal means for the exit code.
#[derive(PartialEq)]
enum OnMiss {
    Tell,
    Fail,
}

/// Everything that is measured, ready to run.
struct Field {
    bundle: Result<Bundle>,
    docker: Result<Dockerd>,
    ours: [Result<Ours>; 3],
    /// The user that peers run as.
    user: Result<Person>,
    /// The last, since fields are dropped in order: dockerd must have ended when its directory goes.
    _scratch: [Scratch; 3],
}

/// The measurements, by the word of `--only`.
const MEASURES: [(&str, Measure); 12] = [
    ("start", start::measure),
    ("exec", exec::measure),
    ("idle", idle::measure),
    ("many", many::measure),
    ("way", way::measure),
    ("gate", gate::measure),
    ("opened", opened::measure),
    ("files", files::measure),
    ("fork", fork::measure),
    ("served", served::measure),
    ("images", images::measure),
    ("machine", machine::measure),
];

/// Takes the number of rounds, gives one figure per contender.
type Measure = fn(&Field, usize) -> Vec<Figure>;

/// Measures, prints a table and the goals, and writes `target/promises.json`.
pub(crate) fn run(args: Vec<String>) -> Result<()> {
    let options = options(args)?;
    if !system::is_root() {
        bail!("the peers and the test users need root: run this as root");
    }
    if let Err(why) = system::install(&PEERS) {
        println!("{why:#}");
    }
    let field = prepare(options.binary.as_deref())?;
    let mut figures = Vec::new();
    for (name, measure) in MEASURES {
        if options.only.as_deref().is_none_or(|only| only == name) {
            println!("measuring {name}, {} rounds", options.rounds);
            figures.extend(measure(&field, options.rounds));
        }
    }
    drop(field);
    let verdicts = goals::judge(&figures);
    report::print(&figures, &verdicts);
    report::write(&figures, &verdicts, options.rounds)?;
    let unmet = verdicts.iter().filter(|verdict| verdict.met != Some(true)).count();
    if options.on_miss == OnMiss::Fail && unmet > 0 {
        bail!("{unmet} goals are not met");
    }
    Ok(())
}

fn options(args: Vec<String>) -> Result<Options> {
    let mut options = Options { rounds: 50, only: None, on_miss: OnMiss::Tell, binary: None };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => options.rounds = args.next().context("--rounds wants a number")?.parse()?,
            "--only" => options.only = Some(args.next().context("--only wants a measurement")?),
            "--binary" => options.binary = Some(args.next().context("--binary wants a file")?.into()),
            "--strict" => options.on_miss = OnMiss::Fail,
            other => {
                bail!("unknown argument {other}; known are --rounds N, --only NAME, --binary FILE, --strict")
            }
        }
    }
    let known = |only: &String| MEASURES.iter().any(|(name, _)| name == only);
    if let Some(only) = options.only.as_ref().filter(|only| !known(only)) {
        bail!(
            "there is no measurement {only}; there are start, exec, idle, many, way, gate, opened, files, fork, served, images, machine"
        );
    }
    if options.rounds == 0 {
        bail!("--rounds wants at least 1");
    }
    Ok(options)
}

fn prepare(built: Option<&Path>) -> Result<Field> {
    let scratch = Scratch::new("promises")?;
    let bundle = Bundle::new(&scratch);
    let docker = match &bundle {
        Ok(bundle) => Dockerd::start(&scratch, bundle),
        Err(_) => Err(anyhow::anyhow!("there is no root file system for it")),
    };
    let binary = ours::binary(&scratch, built);
    // Nobody's state may lie in what sandboxes show of the host, such as /var: root's lies in root's home, as by default.
    let home = std::env::home_dir().context("this user has no home directory")?;
    let at_home = Scratch::below(&home, "promises")?;
    let of_users = Scratch::below(Path::new("/srv"), "promises")?;
    let places = [(As::Root, &at_home), (As::WithRanges, &of_users), (As::Single, &of_users)];
    let ours = places.map(|(who, place)| Ours::new(place, &binary, who));
    let user = Person::new(&scratch, As::Single);
    Ok(Field { bundle, docker, ours, user, _scratch: [scratch, at_home, of_users] })
}
