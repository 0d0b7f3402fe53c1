//! Files in a workspace that is copied on write, beside a bare overlay that root mounts over the same project: unpacking
//! an archive, finding and reading 20,000 files, `git clone`, `git status`. The program takes its own times, so that
//! the start of a sandbox is not among them. And how long `airlock diff` takes when all 20,000 were changed.

use super::{
    Field,
    contender::{Figure, median, output, try_out},
    ours::{As, Ours},
    start::present,
};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// The bare overlay, as it stands in tables.
pub(crate) const BARE: &str = "overlay, mounted by root";
/// What is timed: the name of the measurement, and what the program calls it.
pub(crate) const WORK: [(&str, &str); 5] = [
    ("files unpacked", "unpack"),
    ("files found", "find"),
    ("files read", "read"),
    ("git clone", "clone"),
    ("git status", "status"),
];
/// How long the whole difference of 20,000 changed files takes to be told.
pub(crate) const DIFF: &str = "diff";
/// Changes each of them.
const CHANGE: &str = "for file in tree/*/*; do echo more >>$file; done";
/// Each round takes seconds.
const MOST_ROUNDS: usize = 7;

/// The project: 20,000 files in 200 directories, in git, and as an archive.
const MAKE: &str = r#"
import os, subprocess, sys
os.chdir(sys.argv[1])
for folder in range(200):
    os.makedirs(f"tree/{folder}", exist_ok=True)
    for file in range(100):
        open(f"tree/{folder}/{file}", "w").write(f"{folder} {file}\n" * 60)
run = lambda *words: subprocess.run(words, check=True, env=dict(os.environ, HOME="/nonexistent"), stdout=subprocess.DEVNULL)
git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "gc.auto=0")
run("tar", "cf", "tree.tar", "tree")
run("git", "init", "-q", ".")
run(*git, "add", "tree")
run(*git, "commit", "-q", "-m", "all")
run("git", "clone", "-q", "--bare", ".", "bare.git")
"#;

/// Does the work and prints what each part took, in milliseconds.
const TIME: &str = r#"
import json, os, subprocess, time
env = dict(os.environ, HOME="/nonexistent", GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
run = lambda *words: subprocess.run(words, check=True, env=env, stdout=subprocess.DEVNULL)
def read():
    for top, _, files in os.walk("tree"):
        for file in files:
            with open(f"{top}/{file}", "rb", buffering=0) as opened: opened.read()
def unpack():
    os.mkdir("unpacked")
    run("tar", "xf", "tree.tar", "-C", "unpacked", "--no-same-owner")
work = {
    "find": lambda: run("find", "tree", "-type", "f", "-size", "+1"),
    "read": read,
    "status": lambda: run("git", "status", "--short"),
    "clone": lambda: run("git", "clone", "-q", "--no-hardlinks", "bare.git", "cloned"),
    "unpack": unpack,
}
def once(act):
    begin = time.monotonic()
    act()
    return (time.monotonic() - begin) * 1000
# What changes nothing is done several times: one turn is short, and other things happen on a machine.
again = {"find": 5, "read": 3, "status": 5}
print(json.dumps({name: sorted(once(act) for _ in range(again.get(name, 1)))[again.get(name, 1) // 2] for name, act in work.items()}))
"#;

/// Times all of it for root, whose overlay is the same as the bare one but for ids, and for a user.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let [root, _, single] = &field.ours;
    let mut lanes = vec![
        (BARE, present(root).and_then(Lane::bare), Vec::new()),
        (As::Root.name(), present(root).and_then(Lane::ours), Vec::new()),
        (As::Single.name(), present(single).and_then(Lane::ours), Vec::new()),
    ];
    for round in 0..rounds.min(MOST_ROUNDS) {
        // Nobody always comes first, and nobody's work waits for what another left to be written.
        let turn = round % lanes.len();
        let (late, early) = lanes.split_at_mut(turn);
        for (name, lane, samples) in early.iter_mut().chain(late) {
            let _ = Command::new("sync").status();
            match lane.as_ref().map(Lane::time) {
                Ok(Ok(took)) => samples.push(took),
                Ok(Err(why)) => eprintln!("{name}: {why:#}"),
                Err(_) => {}
            }
        }
    }
    let diffs: Vec<Figure> = lanes.iter().filter_map(|(name, lane, _)| diff(name, lane, rounds)).collect();
    let figures = lanes.into_iter().flat_map(|(name, lane, samples)| {
        WORK.map(|(measure, key)| {
            let values = samples.iter().filter_map(|took| took.get(key)?.as_f64()).collect();
            let middle = match &lane {
                Ok(_) => median(values).ok_or_else(|| "skipped: it failed while it was measured".to_owned()),
                Err(why) => Err(format!("skipped: {why:#}")),
            };
            Figure { measure, name: name.to_owned(), unit: "ms", median: middle }
        })
    });
    figures.chain(diffs).collect()
}

/// The figure of `airlock diff`; the bare overlay has none.
fn diff(name: &str, lane: &Result<Lane>, rounds: usize) -> Option<Figure> {
    let median = match lane {
        Ok(Lane::Bare { .. }) => return None,
        Ok(Lane::Ours(ours)) => {
            time_diffs(ours, rounds.min(MOST_ROUNDS)).map_err(|why| format!("skipped: {why:#}"))
        }
        Err(why) => Err(format!("skipped: {why:#}")),
    };
    (name != BARE).then(|| Figure { measure: DIFF, name: name.to_owned(), unit: "ms", median })
}

fn time_diffs(ours: &Ours, rounds: usize) -> Result<f64> {
    let project = ours.workspace().join("project");
    let mut run = ours.airlock("run");
    run.args(["-q", "--name", "diff", "--", "sh", "-c", CHANGE]).current_dir(&project);
    output(&mut run)?;
    let samples: Result<Vec<f64>> = (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            let told = output(ours.airlock("diff").arg("diff").current_dir(&project))?;
            let took = begin.elapsed().as_secs_f64() * 1e3;
            let files = told.lines().filter(|line| line.starts_with("diff --git ")).count();
            anyhow::ensure!(files == 20_000, "airlock diff told of {files} files");
            Ok(took)
        })
        .collect();
    try_out(ours.airlock("rm").args(["--force", "diff"]))?;
    median(samples?).context("there were no rounds")
}

/// One who does the work, in a project of their own.
enum Lane {
    Bare { project: PathBuf, place: PathBuf },
    Ours(Box<Ours>),
}

impl Lane {
    fn bare(ours: &Ours) -> Result<Lane> {
        let project = ours.workspace().join("project");
        make(ours, &project)?;
        Ok(Lane::Bare { place: ours.workspace().with_file_name("bare-overlay"), project })
    }

    fn ours(ours: &Ours) -> Result<Lane> {
        make(ours, &ours.workspace().join("project"))?;
        Ok(Lane::Ours(Box::new(ours.clone())))
    }

    fn time(&self) -> Result<Value> {
        let said = match self {
            Lane::Bare { project, place } => bare(project, place)?,
            Lane::Ours(ours) => {
                let mut run = ours.airlock("run");
                run.args(["-q", "--name", "files", "--", "python3", "-c", TIME]);
                run.current_dir(ours.workspace().join("project"));
                let said = output(&mut run);
                // It stays for what it changed.
                try_out(ours.airlock("rm").args(["--force", "files"]))?;
                said?
            }
        };
        serde_json::from_str(&said).context("the program told no times")
    }
}

/// Makes the project once.
fn make(ours: &Ours, project: &Path) -> Result<()> {
    if project.join("bare.git").exists() {
        return Ok(());
    }
    let mut shell = ours.command("sh");
    shell.args(["-c", "mkdir -p \"$1\" && python3 -c \"$0\" \"$1\"", MAKE]).arg(project);
    try_out(&mut shell)
}

/// The same in an overlay without a sandbox around it.
fn bare(project: &Path, place: &Path) -> Result<String> {
    let parts = ["upper", "work", "merged"].map(|name| place.join(name));
    for part in &parts {
        fs::create_dir_all(part).with_context(|| format!("could not make {}", part.display()))?;
    }
    let [upper, work, merged] = &parts;
    let options =
        format!("lowerdir={},upperdir={},workdir={}", project.display(), upper.display(), work.display());
    try_out(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(merged))?;
    let said = output(Command::new("python3").args(["-c", TIME]).current_dir(merged));
    try_out(Command::new("umount").arg(merged))?;
    fs::remove_dir_all(place).with_context(|| format!("could not remove {}", place.display()))?;
    said
}
