//! Limits, asked for and by default.

use super::{Caller, refusal};
use airlock_protocol::{
    control::Refusal,
    size,
    spec::{Disk, DiskBy, Limits, Place},
};
use std::{fs, time::Duration};

/// What a sandbox may use. Each value is there whether it was asked for or not; `requested` tells which must hold
/// and which are only wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of memory.
    pub memory: Bound,
    /// What a machine takes besides, which counts too.
    pub besides: Besides,
    /// Thousandths of a CPU; none by default.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids: Bound,
    /// Open files of one process.
    pub nofile: Bound,
    /// Bytes on disk; none by default.
    pub disk: Option<Disk>,
    /// Time until the program is ended.
    pub timeout: Option<Duration>,
}

/// What runs beside the programs of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Besides {
    /// Bytes of memory.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Its value.
    pub value: u64,
    /// Whether it was asked for, so that the sandbox must not start without it.
    pub requested: bool,
}

/// Bytes of log kept for each sandbox.
pub const LOG_BYTES: u64 = 16 << 20;
const PIDS: u64 = 4_096;
const NOFILE: u64 = 65_536;
const LEAST_MEMORY: u64 = 4 << 20;
/// Memory of a machine that nobody gives another size.
pub const MACHINE_MEMORY: u64 = 512 << 20;
/// A kernel and the files that are served to it need as much.
const LEAST_MACHINE_MEMORY: u64 = 128 << 20;
/// Of the monitor and of whoever serves files: the code of an emulated processor alone may take 64 MB.
const MACHINE: Besides = Besides { memory: 256 << 20, pids: 128 };
const LEAST_DISK: u64 = 4 << 20;
const LEAST_MACHINE_DISK: u64 = airlock_linux::disk::SMALLEST_OF_MACHINE;

/// Bytes of memory, processes and open files of a sandbox that nobody bounds otherwise.
pub fn usual() -> (u64, u64, u64) {
    (default_memory(host_memory()), PIDS, NOFILE.min(own_nofile()))
}

/// Fills in defaults and refuses what makes no sense.
pub fn resolve(limits: &Limits, caller: &Caller, place: Place) -> Result<Bounds, Refusal> {
    let too_small = |what: &str, least: u64| {
        let why = format!("nothing runs with less than {}", size::show(least));
        refusal(125, &format!("{what} is too small"), Some(&why), None)
    };
    let least = match place {
        Place::Namespaces => LEAST_MEMORY,
        Place::Microvm => LEAST_MACHINE_MEMORY,
    };
    if limits.memory.is_some_and(|bytes| bytes < least) {
        return Err(too_small("--memory", least));
    }
    if limits.disk.is_some_and(|disk| disk.bytes < LEAST_DISK) {
        return Err(too_small("--disk", LEAST_DISK));
    }
    if limits.disk.is_some_and(|disk| disk.by == DiskBy::Machine && disk.bytes < LEAST_MACHINE_DISK) {
        return Err(too_small("--disk", LEAST_MACHINE_DISK));
    }
    if [limits.pids, limits.nofile, limits.cpu_millis].contains(&Some(0)) || limits.timeout_ms == Some(0) {
        return Err(refusal(
            125,
            "a limit of 0 leaves nothing to run with",
            None,
            Some("leave the flag out"),
        ));
    }
    if let Some(Disk { by: DiskBy::Kernel, bytes }) = limits.disk
        && !caller.is_root()
    {
        let size = size::show(bytes);
        let why = "only host root may bound a disk in the kernel";
        let fix = format!(
            "--disk {size},tmpfs (counts as memory, gone at stop) or --disk {size},watched (the keeper looks several times a second)"
        );
        return Err(refusal(
            125,
            "this disk limit cannot be enforced for an ordinary user",
            Some(why),
            Some(&fix),
        ));
    }
    let bound = |asked: Option<u64>, default: u64| Bound {
        value: asked.unwrap_or(default),
        requested: asked.is_some(),
    };
    let (memory, pids, nofile) = usual();
    let (memory, besides) = match place {
        Place::Namespaces => (memory, Besides::default()),
        Place::Microvm => (MACHINE_MEMORY, MACHINE),
    };
    Ok(Bounds {
        memory: bound(limits.memory, memory),
        besides,
        cpu_millis: limits.cpu_millis,
        pids: bound(limits.pids, pids),
        nofile: bound(limits.nofile, nofile),
        disk: limits.disk,
        timeout: limits.timeout_ms.map(Duration::from_millis),
    })
}

/// Most of the host's memory, but never so much that the host itself has less than a tenth or 512 MB.
fn default_memory(host: u64) -> u64 {
    let spare = (host / 10).max(512 << 20);
    host.saturating_sub(spare).max(host / 2)
}

fn host_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    });
    kilobytes.unwrap_or(2 << 20).saturating_mul(1024)
}

fn own_nofile() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_leaves_memory_to_the_host() {
        assert_eq!(default_memory(10 << 30), 9 << 30);
        assert_eq!(default_memory(1 << 30), 512 << 20);
    }
}
