//! The keeper's side: the namespaces of a sandbox, the carrier in the guest's place, and the monitor beside it.

use super::{
    disk::{self, Disks},
    kernel::{Error, Kernel},
    monitor::Monitor,
    qemu::{self, Cables, INITRAMFS, KERNEL},
    warm,
};
use crate::namespaces::{
    Namespaces,
    child::Beside,
    launch::{self, unsealed},
    neighbour::{self, Neighbour},
    outer::{self, Behind},
};
use airlock_engine::{
    Backend, Begun, Confine, Launched, Plan,
    plan::{Caller, Identity, chain, refusal},
};
use airlock_linux::{
    fd,
    seccomp::{Nested, SetId},
};
use airlock_protocol::{
    carry::{self, NOT_READY, READY},
    control::Refusal,
    state,
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
    archive: (PathBuf, String),
    monitor: Monitor,
    started: RefCell<Option<Started>>,
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
}

/// What the monitor of a machine holds.
struct Held {
    ports: [OwnedFd; 2],
    disks: Option<disk::Opened>,
}

/// What is put into a machine.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'a> {
    /// `/init`.
    pub carrier: &'a [u8],
    /// PID 1 of the programs.
    pub guest: &'a [u8],
}

/// Of the host's files the monitor sees its program, its libraries and its firmware.
const SHOWN: [&str; 6] = ["/usr", "/lib", "/lib64", "/lib32", "/libx32", "/etc/ld.so.cache"];
const FETCH: &str = "airlock prefetch --backend microvm";

impl Microvm {
    /// Looks for everything that a machine needs.
    pub fn prepare(home: &Path, own: Option<&Path>, programs: Programs<'_>) -> Result<Microvm, Refusal> {
        let what = "there is nothing to run a machine with";
        if std::env::consts::ARCH != "x86_64" {
            return Err(refusal(
                5,
                what,
                Some("machines are made for x86-64 only"),
                Some("--backend namespaces"),
            ));
        }
        let monitor = Monitor::find(home).ok_or_else(|| {
            let why = format!("there is no {}", qemu::PROGRAM);
            refusal(5, what, Some(&why), Some("apt-get install qemu-system-x86"))
        })?;
        let kernel = match own {
            Some(path) => Kernel::own(path),
            None => Kernel::usual(home),
        };
        let kernel = kernel.map_err(|err| no_kernel(&err))?;
        let archive =
            kernel.archive(home, programs.carrier, programs.guest).map_err(|err| no_kernel(&err))?;
        Ok(Microvm { home: home.to_owned(), kernel, archive, monitor, started: RefCell::default() })
    }

    /// Boots and saves a machine of this size, unless one is saved already.
    pub fn warm_up(&self, memory: u64) -> io::Result<()> {
        self.saved(memory, 1, Disks::None).map(drop)
    }

    fn saved(&self, memory: u64, processors: u64, disks: Disks) -> io::Result<OwnedFd> {
        let text = |path: &Path| path.display().to_string();
        let machine = qemu::Machine {
            memory,
            processors,
            by: self.monitor.by(),
            boot: (text(&self.kernel.image), text(&self.archive.0)),
            cables: Cables::Nothing { orders: 0 },
            disks,
        };
        warm::open(&self.home, &machine, &self.monitor.version, &self.archive.1)
    }

    fn neighbour(&self, plan: &Plan, held: Held, talk: OwnedFd, output: OwnedFd) -> Neighbour {
        let memory = plan.bounds.memory.value;
        let processors = plan.bounds.cpu_millis.unwrap_or(1000).div_ceil(1000);
        // A start that cannot be warm is slow.
        let blank = held.disks.as_ref().map_or(Disks::None, |_| Disks::Blank);
        let saved = self.saved(memory, processors, blank).ok();
        let mut descriptors = Vec::new();
        let mut number = |descriptor: OwnedFd| {
            descriptors.push(descriptor);
            i32::try_from(descriptors.len()).unwrap_or(i32::MAX).saturating_add(2)
        };
        let [link, files] = held.ports.map(&mut number);
        let largest = held.disks.as_ref().map_or(0, |disks| disks.bytes);
        let disks = held
            .disks
            .map_or(Disks::None, |disks| Disks::These { image: number(disks.image), own: number(disks.own) });
        let saved = saved.map(&mut number);
        // The keeper sends it, so that it comes behind the others.
        let tap = i32::try_from(descriptors.len()).unwrap_or(i32::MAX).saturating_add(3);
        let cables = Cables::Sandbox { link, files, tap: Some(tap), saved };
        let by = self.monitor.by();
        let boot = (KERNEL.to_owned(), INITRAMFS.to_owned());
        let words = qemu::command(&qemu::Machine { memory, processors, by, boot, cables, disks });
        let devices = match by {
            qemu::By::Kvm => vec![PathBuf::from("/dev/kvm")],
            qemu::By::Emulation { .. } => Vec::new(),
        };
        Neighbour {
            command: words.into_iter().filter_map(|word| CString::new(word).ok()).collect(),
            shown: SHOWN.map(PathBuf::from).to_vec(),
            files: vec![
                (KERNEL.into(), self.kernel.image.clone()),
                (INITRAMFS.into(), self.archive.0.clone()),
            ],
            devices,
            descriptors,
            largest,
            output,
            talk,
        }
    }

    fn start(
        &self,
        plan: &Plan,
        begun: Begun,
        confine: &Confine<'_>,
    ) -> io::Result<Result<Launched, Refusal>> {
        let ((link, link_port), (files, files_port)) = (fd::pair()?, fd::pair()?);
        let (ready, outcome) = io::pipe()?;
        let (orders, mut told) = io::pipe()?;
        told.write_all(&serde_json::to_vec(&machine(plan))?)?;
        drop(told);
        let (talk, monitor_talk) = fd::pair()?;
        let output = plan.disk.with_file_name("machine.log");
        let file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&output)?;
        let disks = match disk::open(&self.home, plan) {
            Ok(disks) => disks,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let held = Held { ports: [link_port, files_port], disks };
        let neighbour = self.neighbour(plan, held, monitor_talk, file.into());
        let descriptors = vec![link, files, outcome.into(), orders.into()];
        let beside = Beside { descriptors, neighbour: Some(neighbour) };
        let mut launched = match launch::launch(plan, begun, confine, beside) {
            Ok(launched) => launched,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let tap = launched.seat.as_mut().and_then(|seat| seat.tap.take());
        let tap: Vec<BorrowedFd<'_>> = tap.iter().map(AsFd::as_fd).collect();
        // Where it has ended already, it has said why.
        let _ = fd::send_all(talk.as_fd(), &[neighbour::GO], &tap);
        self.started.replace(Some(Started { ready, talk, output, is_sealed: false }));
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
                let outcome = started.map(hear).unwrap_or(Ok(()));
                outcome.map_err(|why| not_started(&why))
            }
        }
    }

    fn machine(&self) -> Option<state::Machine> {
        Some(state::Machine {
            monitor: format!("QEMU {}", self.monitor.version),
            kernel: format!("Linux {}", self.kernel.version),
            emulated: self.monitor.emulated.clone(),
        })
    }

    fn furnish(&self, plan: &Plan, disk: BorrowedFd<'_>) -> io::Result<()> {
        Namespaces.furnish(plan, disk)
    }
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
        ipv6: true,
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
    refusal(125, "this machine cannot start", Some(why), Some("airlock doctor"))
}

fn no_kernel(err: &Error) -> Refusal {
    let what = "there is no kernel that a machine could boot";
    refusal(5, what, Some(&chain(err)), Some(FETCH))
}
