//! Programmable mounts beside a file system of libfuse that passes a directory on (bindfs): a large file written and read,
//! many small ones made, looked at, read and removed. The program takes its own times.

use super::{
    Field,
    contender::{Figure, median, output, try_out},
    ours::{As, Ours},
    start::present,
};
use crate::system::program;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The peer, as it stands in tables.
pub(crate) const BINDFS: &str = "bindfs (libfuse)";

/// What is timed of a mount in memory, of a served directory, and what the program calls it.
pub(crate) const WORK: [(&str, &str, &str); 6] = [
    ("memory write", "real write", "write"),
    ("memory read", "real read", "read"),
    ("memory create", "real create", "create"),
    ("memory stat", "real stat", "stat"),
    ("memory open", "real open", "open"),
    ("memory unlink", "real unlink", "unlink"),
];
/// Each round takes seconds.
const MOST_ROUNDS: usize = 7;

/// 256 MB in one file, then 5,000 files of 100 bytes; prints what each part took, in milliseconds.
fn timing() -> String {
    format!("files, megabytes = 5000, 256\n{WORKS}{TIMED}")
}

/// So many `megabytes` in one file, then so many `files` of 100 bytes, as parts with names. What was written is read again from
/// behind the mount, not from the kernel's memory of it.
pub(crate) const WORKS: &str = r#"
import json, os, sys, time
os.chdir(sys.argv[1])
block, names = bytes(1 << 20), [f"f{number}" for number in range(files)]
def write():
    with open("large", "wb", buffering=0) as file:
        for _ in range(megabytes): file.write(block)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
def read():
    with open("large", "rb", buffering=0) as file:
        while file.read(1 << 20): pass
def create():
    for name in names:
        with open(name, "wb", buffering=0) as file: file.write(block[:100])
def stat():
    for name in names: os.stat(name)
def opened():
    for name in names:
        with open(name, "rb", buffering=0) as file: file.read()
def unlink():
    for name in names: os.unlink(name)
works = [("write", write), ("read", read), ("create", create), ("stat", stat), ("open", opened), ("unlink", unlink)]
"#;

const TIMED: &str = r#"
took = {}
for name, act in works:
    begin = time.monotonic()
    act()
    took[name] = (time.monotonic() - begin) * 1000
os.unlink("large")
print(json.dumps(took))
"#;

/// Times all of it as root: the peer's figures stand beside both kinds of mount.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let [root, ..] = &field.ours;
    let mut lanes = [
        (present(root).and_then(Lane::bindfs), Vec::new()),
        (present(root).map(Lane::memory), Vec::new()),
        (present(root).and_then(Lane::real), Vec::new()),
    ];
    for round in 0..rounds.min(MOST_ROUNDS) {
        // Nobody always comes first, and nobody's work waits for what another left to be written.
        let turn = round % lanes.len();
        let (late, early) = lanes.split_at_mut(turn);
        for (lane, samples) in early.iter_mut().chain(late) {
            let _ = Command::new("sync").status();
            match lane.as_ref().map(Lane::time) {
                Ok(Ok(took)) => samples.push(took),
                Ok(Err(why)) => eprintln!("{why:#}"),
                Err(_) => {}
            }
        }
    }
    let [peer, memory, real] = &lanes;
    let figures = WORK.iter().flat_map(|(in_memory, served, key)| {
        [
            figure(in_memory, BINDFS, key, peer),
            figure(in_memory, As::Root.name(), key, memory),
            figure(served, BINDFS, key, peer),
            figure(served, As::Root.name(), key, real),
        ]
    });
    figures.collect()
}

fn figure(measure: &'static str, name: &str, key: &str, lane: &(Result<Lane>, Vec<Value>)) -> Figure {
    let (lane, samples) = lane;
    let values = samples.iter().filter_map(|took| took.get(key)?.as_f64()).collect();
    let middle = match lane {
        Ok(_) => median(values).ok_or_else(|| "skipped: it failed while it was measured".to_owned()),
        Err(why) => Err(format!("skipped: {why:#}")),
    };
    Figure { measure, name: name.to_owned(), unit: "ms", median: middle }
}

/// One who does the work.
enum Lane {
    Bindfs { program: PathBuf, behind: PathBuf, shown: PathBuf },
    Ours { ours: Box<Ours>, mount: String },
}

impl Lane {
    fn bindfs(ours: &Ours) -> Result<Lane> {
        let program = program("bindfs").context("there is no bindfs")?;
        let [behind, shown] = ["bindfs-behind", "bindfs"].map(|name| ours.workspace().join(name));
        fs::create_dir_all(&shown).context("could not make a directory")?;
        fs::create_dir_all(&behind).context("could not make a directory")?;
        Ok(Lane::Bindfs { program, behind, shown })
    }

    fn memory(ours: &Ours) -> Lane {
        Lane::Ours { ours: Box::new(ours.clone()), mount: "type=memory,dst=/m,size=600M".to_owned() }
    }

    fn real(ours: &Ours) -> Result<Lane> {
        let behind = ours.workspace().join("served");
        fs::create_dir_all(&behind).context("could not make a directory")?;
        let mount = format!("type=real,src={},dst=/m", behind.display());
        Ok(Lane::Ours { ours: Box::new(ours.clone()), mount })
    }

    fn time(&self) -> Result<Value> {
        let said = match self {
            Lane::Bindfs { program, behind, shown } => {
                try_out(Command::new(program).arg(behind).arg(shown))?;
                let said = timed(shown);
                try_out(Command::new("umount").arg(shown))?;
                said?
            }
            Lane::Ours { ours, mount } => {
                let flags = ["-q", "--workspace", "none", "--memory", "2G", "--mount", mount];
                output(ours.airlock("run").args(flags).args(["--", "python3", "-c", &timing(), "/m"]))?
            }
        };
        serde_json::from_str(&said).context("the program told no times")
    }
}

fn timed(place: &Path) -> Result<String> {
    output(Command::new("python3").args(["-c", &timing()]).arg(place))
}
