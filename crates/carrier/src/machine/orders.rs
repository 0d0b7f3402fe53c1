//! What the machine is for: the first message, and what follows from it outside the process that becomes the guest. Also what is the same
//! for all.

use super::{During as _, Failed};
use airlock_linux::net::machine::Families;
use airlock_protocol::carry::{Configure, Decoder, Machine, Message, Now};
use rustix::{
    event::{PollFd, PollFlags},
    fs::{Mode, OFlags},
    time::{ClockId, Timespec},
};
use std::{fs, io, ops::RangeInclusive, os::fd::OwnedFd, path::Path, time::Duration};

/// The machine's only network device.
const DEVICE: &str = "eth0";
/// Every group that a program can have: each may ping.
const GROUPS_OF_USERS: RangeInclusive<u32> = 0..=0x7fff_ffff;
/// Where control groups are mounted.
const GROUPS: &str = "/groups";
pub(super) const GROUP: &str = "/groups/inside";
/// Nobody is at the other end of a machine that has just been restored.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for the first message, which comes alone: the other end says nothing more before it is answered.
pub(super) fn wait(port: &OwnedFd) -> Result<Configure, Failed> {
    let step = "hear what the machine is for";
    let mut decoder = Decoder::default();
    let mut bytes = [0; 4096];
    loop {
        let mut polled = [PollFd::new(port, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None)).during(step)?;
        match rustix::io::read(port, &mut bytes) {
            Ok(0) | Err(rustix::io::Errno::AGAIN) => std::thread::sleep(PAUSE),
            Ok(count) => decoder.feed(bytes.get(..count).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err).during(step),
        }
        match decoder.next().map_err(io::Error::other).during(step)? {
            None => {}
            Some(Message::Configure(configure)) => return Ok(*configure),
            Some(_) => return Err(io::Error::from(io::ErrorKind::InvalidData)).during(step),
        }
    }
}

/// The time and random numbers that no other machine has.
pub(super) fn follow(configure: &Configure) -> Result<(), Failed> {
    let now = Now { seconds: configure.seconds, nanoseconds: configure.nanoseconds };
    set_clock(now).during("set the time")?;
    airlock_linux::random::seed(&configure.seed).during("seed the random numbers")
}

/// What time it is.
pub(super) fn set_clock(now: Now) -> io::Result<()> {
    let now = Timespec { tv_sec: now.seconds, tv_nsec: now.nanoseconds.into() };
    Ok(rustix::time::clock_settime(ClockId::Realtime, now)?)
}

/// The network that programs in namespaces have.
pub(super) fn network() -> Result<(), Failed> {
    airlock_linux::net::machine::set_up(DEVICE, Families::Both, &GROUPS_OF_USERS).during("set up the network")
}

/// The control group in which the guest is born.
pub(super) fn group() -> Result<OwnedFd, Failed> {
    let step = "make a control group";
    fs::write(Path::new(GROUPS).join("cgroup.subtree_control"), "+pids").during(step)?;
    fs::create_dir(GROUP).during(step)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(GROUP, flags, Mode::empty()).during(step)
}

/// Most processes that the guest and its programs may be.
pub(super) fn limit(machine: &Machine) -> Result<(), Failed> {
    let most = machine.processes.to_string();
    fs::write(Path::new(GROUP).join("pids.max"), most).during("limit the number of processes")
}

/// How many processes the kernel has ended for want of memory.
pub(super) fn ended_for_memory() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
