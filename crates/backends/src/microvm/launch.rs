//! The keeper's side: the namespaces of a sandbox, the carrier in the guest's place, and the monitor beside it.

use super::{
    disk::{self, Disks},
    firecracker,
    kernel::{Error, Kernel},
    memory::Saved,
    monitor::{Monitor, Program},
    qemu::{self, Cables, INITRAMFS, KERNEL},
    warm::{self, How},
};
use crate::namespaces::{
    Namespaces,
    child::Beside,
    launch::{self, unsealed},
    neighbour::{self, Neighbour},
    outer::{self, Behind},
};
use airlock_engine::{
    Backend, Begun, Confine, Launched, Monitor as Orderable, Plan,
    plan::{Caller, Identity, chain, refusal},
};
use airlock_linux::{
    cell::Means,
    fd,
    net::machine as tap,
    seccomp::{Nested, SetId},
};
use airlock_protocol::{
    carry::{self, NOT_READY, Orders, READY},
    control::Refusal,
    spec, state,
};
use std::{
    cell::RefCell,
    ffi::CString,
    fs::{self, File},
    io::{self, PipeReader, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
};

/// Runs sandboxes in machines with a kernel of their own.
#[derive(Debug)]
pub struct Microvm {
    home: PathBuf,
    kernel: Kernel,
    /// The file of it that the monitor loads.
    image: PathBuf,
    archive: (PathBuf, String),
    monitor: Monitor,
    started: RefCell<Option<Started>>,
    /// Why the last start was not a warm one.
    cold: RefCell<Option<String>>,
}

/// What the keeper hears of a machine that starts.
#[derive(Debug)]
struct Started {
    /// The carrier's word.
    ready: PipeReader,
    /// The monitor's, until it is executed.
    talk: OwnedFd,
    /// Where the kernel and the monitor write.
    output: PathBuf,
    is_sealed: bool,
    /// Whether it goes on from its own memory.
    resumes: bool,
}

/// The monitor's ends of everything that it is connected with.
struct Wires {
    ports: [OwnedFd; 2],
    orders: OwnedFd,
    disks: Option<disk::Opened>,
    talk: OwnedFd,
    output: OwnedFd,
}

/// What a machine goes on from.
struct GoesOn {
    /// Its memory; it boots where there is none.
    memory: Option<OwnedFd>,
    /// What the carrier knew of it then, where programs ran in it.
    known: Option<OwnedFd>,
}

/// What a person asked for in place of the usual.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    /// A kernel.
    pub kernel: Option<&'a Path>,
    /// A monitor.
    pub monitor: Option<&'a spec::Monitor>,
}

/// What is put into a machine.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'a> {
    /// `/init`.
    pub carrier: &'a [u8],
    /// PID 1 of the programs.
    pub guest: &'a [u8],
}

const FETCH: &str = "airlock prefetch --backend microvm";

impl Microvm {
    /// Looks for everything that a machine needs.
    pub fn prepare(home: &Path, asked: Asked<'_>, programs: Programs<'_>) -> Result<Microvm, Refusal> {
        let what = "there is nothing to run a machine with";
        if std::env::consts::ARCH != "x86_64" {
            return Err(refusal(
                5,
                what,
                Some("machines are made for x86-64 only"),
                Some("--backend namespaces"),
            ));
        }
        let kernel = match asked.kernel {
            Some(path) => Kernel::own(path),
            None => Kernel::usual(home),
        };
        let monitor = Monitor::choose(home, asked.monitor, kernel.as_ref().ok())
            .map_err(|unfit| refusal(5, what, Some(&unfit.to_string()), Some(unfit.fix())))?;
        let kernel = kernel.map_err(|err| no_kernel(&err))?;
        let image = match &monitor.program {
            Program::Qemu => kernel.image.clone(),
            Program::Firecracker(_) => kernel.unpacked(home).map_err(|err| no_kernel(&err))?,
        };
        let archive =
            kernel.archive(home, programs.carrier, programs.guest).map_err(|err| no_kernel(&err))?;
        Ok(Microvm {
            home: home.to_owned(),
            kernel,
            image,
            archive,
            monitor,
            started: RefCell::default(),
            cold: RefCell::default(),
        })
    }

    /// Boots and saves a machine of this size, unless one is saved already.
    pub fn warm_up(&self, memory: u64) -> io::Result<()> {
        self.make_warm(&self.bare(memory, 1, Disks::None), How::Again)
    }

    /// Only QEMU's machines are saved.
    fn make_warm(&self, machine: &qemu::Machine, how: How) -> io::Result<()> {
        match self.monitor.program {
            Program::Qemu => warm::make(&self.home, machine, self.names(), how),
            Program::Firecracker(_) => Ok(()),
        }
    }

    /// What tells machines of this size from others: QEMU's version, and what they boot into.
    fn names(&self) -> (&str, &str) {
        (&self.monitor.version, &self.archive.1)
    }

    /// The machine of a sandbox before it is connected with anything; disks that it has are empty.
    fn blank(&self, plan: &Plan) -> qemu::Machine {
        let disks = disk::wanted(plan).map_or(Disks::None, |_| Disks::Blank);
        self.bare(memory(plan), processors(plan), disks)
    }

    /// A machine of this size that is connected with nothing.
    fn bare(&self, memory: u64, processors: u64, disks: Disks) -> qemu::Machine {
        let text = |path: &Path| path.display().to_string();
        qemu::Machine {
            memory,
            processors,
            by: self.monitor.by(),
            boot: (text(&self.image), text(&self.archive.0)),
            cables: Cables::Nothing { orders: 0 },
            disks,
        }
    }

    /// What tells this machine from others that could not go on from its memory.
    fn key(&self, plan: &Plan) -> String {
        let (version, boot) = self.names();
        warm::key(&self.blank(plan), version, boot)
    }

    /// What a sandbox goes on from: its own memory, where it was saved; else that of a machine like it, freshly booted.
    fn goes_on_from(&self, plan: &Plan) -> Result<GoesOn, Refusal> {
        let own = Saved::of(&plan.disk);
        if own.memory.exists() {
            return own
                .open(&self.key(plan))
                .map(|(memory, known)| GoesOn { memory: Some(memory), known: Some(known) });
        }
        if self.monitor.program != Program::Qemu {
            return Ok(GoesOn { memory: None, known: None });
        }
        let (version, boot) = self.names();
        // Where there is none it boots, which is slow: whoever looks at it is told why.
        let (memory, why) = match warm::find(&self.home, &self.blank(plan), version, boot) {
            Ok(memory) => (Some(memory), None),
            Err(why) => (None, Some(why)),
        };
        self.cold.replace(why);
        Ok(GoesOn { memory, known: None })
    }

    fn neighbour(&self, plan: &Plan, wires: Wires, saved: Option<OwnedFd>) -> io::Result<Neighbour> {
        match &self.monitor.program {
            Program::Qemu => Ok(self.qemu(plan, wires, saved)),
            Program::Firecracker(program) => self.firecracker(plan, program, wires),
        }
    }

    /// It makes its own sockets and finds its TAP by itself; the carrier starts it.
    fn firecracker(&self, plan: &Plan, program: &Path, wires: Wires) -> io::Result<Neighbour> {
        let machine = firecracker::Machine { memory: memory(plan), processors: processors(plan) };
        let Wires { ports, talk, output, .. } = wires;
        let mut files = self.boot_files();
        files.extend([
            (carry::STARTER.into(), plan.guest.clone()),
            (firecracker::MONITOR.into(), program.to_owned()),
        ]);
        Ok(Neighbour {
            command: words_of(firecracker::command(machine)?),
            shown: qemu::SHOWN.map(PathBuf::from).to_vec(),
            files,
            devices: firecracker::DEVICES.map(PathBuf::from).to_vec(),
            descriptors: ports.into(),
            // It has no file to write to but its memory; what it says is bounded by the carrier.
            largest: memory(plan),
            means: Means::Own,
            output,
            talk,
        })
    }

    /// The kernel, and what it boots into, by the names that a monitor knows them by.
    fn boot_files(&self) -> Vec<(PathBuf, PathBuf)> {
        vec![(KERNEL.into(), self.image.clone()), (INITRAMFS.into(), self.archive.0.clone())]
    }

    fn qemu(&self, plan: &Plan, wires: Wires, saved: Option<OwnedFd>) -> Neighbour {
        let Wires { ports, orders, disks, talk, output } = wires;
        let mut descriptors = Vec::new();
        let mut number = |descriptor: OwnedFd| {
            descriptors.push(descriptor);
            i32::try_from(descriptors.len()).unwrap_or(i32::MAX).saturating_add(2)
        };
        let [link, files] = ports.map(&mut number);
        let orders = number(orders);
        let largest = disks.as_ref().map_or(0, |disks| disks.bytes);
        let disks = disks
            .map_or(Disks::None, |disks| Disks::These { image: number(disks.image), own: number(disks.own) });
        let saved = saved.map(&mut number);
        // The keeper sends it, so that it comes behind the others.
        let tap = i32::try_from(descriptors.len()).unwrap_or(i32::MAX).saturating_add(3);
        let cables = Cables::Sandbox { link, files, orders, saved, tap: Some(tap) };
        let boot = (KERNEL.to_owned(), INITRAMFS.to_owned());
        let machine = qemu::Machine { boot, cables, ..self.bare(memory(plan), processors(plan), disks) };
        Neighbour {
            command: words_of(qemu::command(&machine)),
            shown: qemu::SHOWN.map(PathBuf::from).to_vec(),
            files: self.boot_files(),
            devices: machine.by.devices(),
            descriptors,
            largest,
            means: Means::Handed,
            output,
            talk,
        }
    }

    /// The disks of a machine that has some.
    fn disks(&self, plan: &Plan) -> Result<Option<disk::Opened>, Refusal> {
        if self.monitor.program != Program::Qemu && disk::wanted(plan).is_some() {
            let why = "Firecracker opens disks by itself, and its cell holds no file that it may write";
            let fix = "--monitor qemu; or --disk SIZE,watched, or none";
            return Err(refusal(2, "this machine cannot have disks of its own", Some(why), Some(fix)));
        }
        disk::open(&self.home, plan)
    }

    fn start(
        &self,
        plan: &Plan,
        begun: Begun,
        confine: &Confine<'_>,
    ) -> io::Result<Result<Launched, Refusal>> {
        let GoesOn { memory, known } = match self.goes_on_from(plan) {
            Ok(from) => from,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let ((link, link_port), (files, files_port)) = (fd::pair()?, fd::pair()?);
        let (ready, outcome) = io::pipe()?;
        let (orders, mut told) = io::pipe()?;
        let (resumes, ports_are_sent) = (known.is_some(), self.monitor.program != Program::Qemu);
        let said = Orders { machine: machine(plan), resumes, ports_are_sent };
        told.write_all(&serde_json::to_vec(&said)?)?;
        drop(told);
        let (talk, monitor_talk) = fd::pair()?;
        let (socket, monitor_orders) = fd::pair()?;
        let output = plan.disk.with_file_name("machine.log");
        let file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&output)?;
        let disks = match self.disks(plan) {
            Ok(disks) => disks,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let ports = [link_port, files_port];
        let wires = Wires { ports, orders: monitor_orders, disks, talk: monitor_talk, output: file.into() };
        let neighbour = self.neighbour(plan, wires, memory)?;
        let descriptors = [link, files, outcome.into(), orders.into()].into_iter().chain(known).collect();
        let beside = Beside { descriptors, neighbour: Some(neighbour) };
        let mut launched = match launch::launch(plan, begun, confine, beside) {
            Ok(launched) => launched,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut tap = launched.seat.as_mut().and_then(|seat| seat.tap.take());
        match self.monitor.program {
            Program::Qemu => launched.monitor = Some(Orderable { socket, key: self.key(plan) }),
            Program::Firecracker(_) => tap.take().map_or(Ok(()), tap::leave)?,
        }
        let tap: Vec<BorrowedFd<'_>> = tap.iter().map(AsFd::as_fd).collect();
        // Where it has ended already, it has said why.
        let _ = fd::send_all(talk.as_fd(), &[neighbour::GO], &tap);
        self.started.replace(Some(Started { ready, talk, output, is_sealed: false, resumes }));
        Ok(Ok(launched))
    }
}

impl Backend for Microvm {
    fn begin(&self, caller: &Caller, identity: &Identity) -> Result<Begun, Refusal> {
        outer::begin(identity, Behind::Machine).map_err(|failed| unsealed(caller, &chain(&failed)))
    }

    fn launch(&self, plan: &Plan, begun: Begun, confine: Confine<'_>) -> Result<Launched, Refusal> {
        self.start(plan, begun, &confine).map_err(|err| not_started(&err.to_string()))?
    }

    fn seal(&self, plan: &Plan, launched: &Launched) -> Result<(), Refusal> {
        let mut started = self.started.borrow_mut();
        match started.as_mut() {
            Some(started) if !started.is_sealed => {
                Namespaces.seal(plan, launched)?;
                started.is_sealed = true;
                let ready = started.ready.try_clone().map_err(|err| not_started(&err.to_string()))?;
                launched.sealing.replace(Some(ready.into()));
                Ok(())
            }
            started => {
                launched.sealing.take();
                let Some(started) = started else { return Ok(()) };
                let outcome = hear(started);
                match (started.resumes, outcome) {
                    (true, Ok(())) => Saved::of(&plan.disk).forget(),
                    (false, Ok(())) => {}
                    (true, Err(why)) => return Err(Saved::of(&plan.disk).not_resumed(&why)),
                    (false, Err(why)) => {
                        return Err(self.farewell(plan, launched).unwrap_or_else(|| not_started(&why)));
                    }
                }
                Ok(())
            }
        }
    }

    fn farewell(&self, plan: &Plan, launched: &Launched) -> Option<Refusal> {
        Namespaces.farewell(plan, launched)
    }

    fn machine(&self) -> Option<state::Machine> {
        Some(state::Machine {
            monitor: self.monitor.name(),
            kernel: format!("Linux {}", self.kernel.version),
            emulated: self.monitor.emulated.clone(),
            cold: self.cold.borrow().clone(),
        })
    }

    fn furnish(&self, plan: &Plan, disk: BorrowedFd<'_>) -> io::Result<()> {
        Namespaces.furnish(plan, disk)
    }

    fn help_next(&self, plan: &Plan) -> io::Result<()> {
        self.make_warm(&self.blank(plan), How::Once)
    }
}

fn words_of(command: Vec<String>) -> Vec<CString> {
    command.into_iter().filter_map(|word| CString::new(word).ok()).collect()
}

fn memory(plan: &Plan) -> u64 {
    plan.bounds.memory.value
}

fn processors(plan: &Plan) -> u64 {
    plan.bounds.cpu_millis.unwrap_or(1000).div_ceil(1000)
}

/// What the machine has to know.
fn machine(plan: &Plan) -> carry::Machine {
    carry::Machine {
        hostname: plan.hostname.clone(),
        capabilities: plan.caps.names().map(str::to_owned).collect(),
        nested: plan.nested == Nested::Yes,
        set_id: plan.set_id == SetId::Allowed,
        processes: plan.bounds.pids.value,
        shared_memory: plan.bounds.memory.value / 2,
        user: plan.user.uid,
        disks: disk::orders(plan),
    }
}

/// The carrier's last word before its machine runs; where it has none, what others said.
fn hear(started: &mut Started) -> Result<(), String> {
    let mut said = Vec::new();
    let _ = started.ready.by_ref().take(LONGEST).read_to_end(&mut said);
    match said.as_slice() {
        [READY] => Ok(()),
        [NOT_READY, why @ ..] => Err(words(why) + &last_words(started)),
        _ => Err("the machine ended before it was ready".to_owned() + &last_words(started)),
    }
}

const LONGEST: u64 = 4096;

/// Why the monitor was not executed, or the end of what it and the kernel wrote.
fn last_words(started: &Started) -> String {
    let mut said = [0u8; 1024];
    let _ = fd::set_nonblocking(started.talk.as_fd());
    let count = fd::receive_with_fds(started.talk.as_fd(), &mut said, &mut Vec::new()).unwrap_or(0);
    if let Some([neighbour::FAILED, why @ ..]) = said.get(..count) {
        return format!(" ({})", words(why));
    }
    let written = fs::read(&started.output).unwrap_or_default();
    let written = words(&written);
    match written.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!(" (it said last: {})", line.trim()),
        None => String::new(),
    }
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|letter| !letter.is_control() || *letter == '\n').collect()
}

fn not_started(why: &str) -> Refusal {
    refusal(125, "this machine cannot start", Some(why), Some(fix_of(why)))
}

/// What helps, by what was said. A machine that ended has told more in its log.
fn fix_of(why: &str) -> &'static str {
    let any = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if any(&["Cannot allocate memory", "cannot set up guest memory", "signal 9"]) {
        "less --memory, or more of it on this host"
    } else if any(&["not ready within"]) {
        "try again when the host is less busy; with more --cpus it is ready sooner"
    } else if any(&[
        "load the module",
        "find the port",
        "Kernel panic",
        "mount the served files",
        "set up the network",
    ]) {
        "airlock prefetch --backend microvm gets a kernel that has all; docs/microvm.md tells what an own one (--kernel) needs"
    } else if any(&["kvm", "KVM"]) {
        "airlock doctor tells how KVM is; Firecracker opens /dev/kvm as nobody (chmod 666 /dev/kvm), QEMU emulates a processor where nobody may open it"
    } else if any(&["execute the monitor"]) {
        "all must be able to read and execute the monitor's file (chmod 755)"
    } else if any(&["network-interfaces"]) {
        "Firecracker opens /dev/net/tun as nobody: chmod 666 /dev/net/tun; or --monitor qemu"
    } else {
        "machine.log in the sandbox's folder has what the kernel and its monitor said; airlock doctor tells what machines need"
    }
}

fn no_kernel(err: &Error) -> Refusal {
    let what = "there is no kernel that a machine could boot";
    refusal(5, what, Some(&chain(err)), Some(FETCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cannot_start_a_machine_is_told_what_helps_against_the_cause() {
        let fix = |why: &str| not_started(why).fix.unwrap_or_default();
        assert!(fix("the machine's monitor was ended by signal 9").contains("--memory"));
        assert!(fix("the machine was not ready within 120 s").contains("less busy"));
        assert!(fix("the machine gave up: could not load the module fuse.ko: x").contains("prefetch"));
        assert!(fix("it said last: failed to initialize kvm: Permission denied").contains("/dev/kvm"));
        assert!(fix("the machine's monitor ended with 1").contains("machine.log"));
    }
}
