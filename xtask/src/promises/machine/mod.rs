//! Machines with a kernel of their own: from the command to the first byte that a program writes, cold and warm, beside a bare QEMU that
//! boots the same kernel into a busybox; and files through the link beside virtio-fs under the same kernel.
//!
//! All times are this host's: a processor that is emulated counts badly.

mod bare;

use super::{
    Field,
    contender::{Figure, median, output},
    ours::{As, Ours},
    served::WORKS,
    start::present,
};
use anyhow::{Context as _, Result, bail};
use bare::Bare;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Instant,
};

/// From the command until a program writes, with nothing saved.
pub(crate) const BOOT: &str = "vm boot";
/// The same from a machine that was saved.
pub(crate) const WARM: &str = "vm warm";
/// The same where this host's processor runs it.
pub(crate) const KVM: &str = "vm kvm";
/// The bare one, as it stands in tables.
pub(crate) const BARE: &str = "qemu -M microvm, busybox";
/// Ours without anything saved, beside the warm one.
pub(crate) const COLD: &str = "airlock, root, nothing saved";
/// The peer for files.
pub(crate) const VIRTIO_FS: &str = "virtio-fs (virtiofsd)";
/// What is timed of files, and what the program calls it.
pub(crate) const WORK: [(&str, &str); 6] = [
    ("vm write", "write"),
    ("vm read", "read"),
    ("vm create", "create"),
    ("vm stat", "stat"),
    ("vm open", "open"),
    ("vm unlink", "unlink"),
];
/// Each round boots three machines and more.
const MOST_ROUNDS: usize = 5;
/// Seconds that one of them may take: what hangs is ended, and told as what it is.
const MOST_SECONDS: &str = "120";

/// 16 MB in one file, then 300 files of 100 bytes; says the name of each part when it is done.
fn timing() -> String {
    format!("files, megabytes = 300, 16\n{WORKS}{TOLD}")
}

const TOLD: &str = r#"
print("begin", flush=True)
for name, act in works:
    act()
    print(name, flush=True)
os.unlink("large")
"#;

/// Milliseconds by the name of what took them.
type Took = BTreeMap<String, f64>;

/// Times all of it as root.
pub(crate) fn measure(field: &Field, rounds: usize) -> Vec<Figure> {
    let [root, ..] = &field.ours;
    let machine = present(root).and_then(Machine::prepare);
    let bare = machine
        .as_ref()
        .map_err(|why| anyhow::anyhow!("{why:#}"))
        .and_then(|machine| Bare::prepare(&machine.state, machine.emulated.is_some()));
    let mut lanes: Vec<Lane<'_>> = vec![
        Lane::new("bare", || bare.as_ref().map_err(told).and_then(Bare::first_byte)),
        Lane::new("cold", || {
            machine.as_ref().map_err(told).and_then(|machine| machine.first_byte(Start::Cold))
        }),
        Lane::new("warm", || {
            machine.as_ref().map_err(told).and_then(|machine| machine.first_byte(Start::Warm))
        }),
        Lane::new("link", || machine.as_ref().map_err(told).and_then(Machine::files)),
        Lane::new("virtio-fs", || bare.as_ref().map_err(told).and_then(|bare| bare.files(&timing()))),
    ];
    for _ in 0..rounds.min(MOST_ROUNDS) {
        lanes.iter_mut().for_each(Lane::run);
    }
    let [bare_lane, cold, warm, link, peer] = lanes.as_slice() else { return Vec::new() };
    let emulated = machine.as_ref().ok().and_then(|machine| machine.emulated.clone());
    let mut figures = vec![
        bare_lane.figure(BOOT, BARE, FIRST),
        cold.figure(BOOT, As::Root.name(), FIRST),
        cold.figure(WARM, COLD, FIRST),
        warm.figure(WARM, As::Root.name(), FIRST),
        match emulated {
            None => warm.figure(KVM, As::Root.name(), FIRST),
            Some(why) => figure(KVM, As::Root.name(), Err(format!("skipped: {why}"))),
        },
    ];
    for (measure, key) in WORK {
        figures.push(peer.figure(measure, VIRTIO_FS, key));
        figures.push(link.figure(measure, As::Root.name(), key));
    }
    figures
}

/// The name of what takes until the first byte.
const FIRST: &str = "first";

fn told(why: &anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{why:#}")
}

/// One who is timed again and again.
struct Lane<'a> {
    name: &'static str,
    once: Box<dyn Fn() -> Result<Took> + 'a>,
    samples: Vec<Took>,
    broken: Option<String>,
}

impl<'a> Lane<'a> {
    fn new(name: &'static str, once: impl Fn() -> Result<Took> + 'a) -> Lane<'a> {
        Lane { name, once: Box::new(once), samples: Vec::new(), broken: None }
    }

    fn run(&mut self) {
        if self.broken.is_some() {
            return;
        }
        match (self.once)() {
            Ok(took) => self.samples.push(took),
            Err(why) => {
                eprintln!("{}: {why:#}", self.name);
                self.broken = Some(format!("{why:#}"));
            }
        }
    }

    fn figure(&self, measure: &'static str, name: &str, key: &str) -> Figure {
        let values = self.samples.iter().filter_map(|took| took.get(key).copied()).collect();
        let broken = self.broken.clone().unwrap_or_else(|| "it said nothing of it".to_owned());
        figure(measure, name, median(values).ok_or_else(|| format!("skipped: {broken}")))
    }
}

fn figure(measure: &'static str, name: &str, median: Result<f64, String>) -> Figure {
    Figure { measure, name: name.to_owned(), unit: "ms", median }
}

enum Start {
    Cold,
    Warm,
}

/// Ours.
struct Machine {
    ours: Ours,
    state: std::path::PathBuf,
    /// Why this host's processor does not run it.
    emulated: Option<String>,
}

impl Machine {
    fn prepare(ours: &Ours) -> Result<Machine> {
        output(&mut bounded(ours.airlock("prefetch").args(["--backend", "microvm", "--quiet"])))?;
        let ours = ours.clone();
        let machine = Machine { state: ours.state().join("machines"), emulated: None, ours };
        let id = output(&mut bounded(machine.run("-d").args(["--", "sleep", "1000"])))?;
        let state = output(machine.ours.airlock("get").args([id.trim(), "--json"]))?;
        output(machine.ours.airlock("rm").args(["--force", id.trim()]))?;
        let state: serde_json::Value = serde_json::from_str(&state).context("get --json printed no JSON")?;
        let found = state.get("machine").or_else(|| state.get("state")?.get("machine"));
        let emulated = found.context("the sandbox is no machine")?.get("emulated");
        let emulated = emulated.and_then(serde_json::Value::as_str).map(str::to_owned);
        Ok(Machine { emulated, ..machine })
    }

    fn run(&self, flag: &str) -> Command {
        let mut command = self.ours.airlock("run");
        command.args([flag, "--backend", "microvm", "--workspace", "none", "--workdir", "/tmp"]);
        command
    }

    /// Until a static program inside has written something.
    fn first_byte(&self, start: Start) -> Result<Took> {
        let (warm, aside) = (self.state.join("warm"), self.state.join("warm.aside"));
        if let Start::Cold = start {
            // Nothing can be saved where there is a file in the directory's place, and what cannot be saved is booted.
            fs::rename(&warm, &aside).context("could not put the saved machines aside")?;
            fs::write(&warm, "").context("could not keep machines from being saved")?;
        }
        let took = first_byte(self.run("-q").args(["--", "busybox", "echo", "x"]));
        if let Start::Cold = start {
            fs::remove_file(&warm)
                .and_then(|()| fs::rename(&aside, &warm))
                .context("could not put them back")?;
        }
        took
    }

    fn files(&self) -> Result<Took> {
        let place = self.ours.workspace().join("machine-files");
        fs::create_dir_all(&place).context("could not make a directory")?;
        let mount = format!("{}:/m", place.display());
        steps(self.run("-q").args(["--mount", &mount, "--", "python3", "-c", &timing(), "/m"]))
    }
}

/// The same command, ended when its time is up.
fn bounded(command: &Command) -> Command {
    let mut bounded = Command::new("timeout");
    bounded.args(["--kill-after=5", MOST_SECONDS]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    bounded.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    bounded
}

/// How a bounded command has ended, in words.
fn ending(status: ExitStatus) -> String {
    match status.code() {
        Some(TIME_IS_UP) => format!("it was ended after {MOST_SECONDS} s"),
        _ => format!("it ended with {status}"),
    }
}

/// What `timeout` says of a command it has ended.
const TIME_IS_UP: i32 = 124;

/// Runs a command and times its first byte. It ends by itself.
fn first_byte(command: &Command) -> Result<Took> {
    let begin = Instant::now();
    let mut child =
        bounded(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut byte = [0];
    let read = child.stdout.as_mut().context("it has no output")?.read_exact(&mut byte);
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let status = child.wait()?;
    if !status.success() {
        bail!(ending(status));
    }
    read.context("it wrote nothing")?;
    Ok(Took::from([(FIRST.to_owned(), took)]))
}

/// Runs a command and times the lines it writes, each from the one before, beginning with `begin`.
fn steps(command: &Command) -> Result<Took> {
    let mut child =
        bounded(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (mut took, mut last) = (Took::new(), None);
    for line in BufReader::new(child.stdout.take().context("it has no output")?).lines() {
        let (line, now) = (line?, Instant::now());
        match last {
            None if line.trim() == "begin" => last = Some(now),
            None => {}
            Some(before) => {
                took.insert(line.trim().to_owned(), now.duration_since(before).as_secs_f64() * 1e3);
                last = Some(now);
            }
        }
    }
    let status = child.wait()?;
    if !status.success() || took.len() < WORK.len() {
        bail!("{} after {} of {} parts", ending(status), took.len(), WORK.len());
    }
    Ok(took)
}
