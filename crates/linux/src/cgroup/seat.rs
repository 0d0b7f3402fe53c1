//! One directory of one hierarchy, held by descriptor: its files, its processes, its end.
//!
//! Processes are killed by pid only while the group itself says they are in it, see [`Seat::kill_listed`].

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long the kernel may take to end or freeze what it was told to.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC`, linux/magic.h.
const MAGICS: [u64; 2] = [0x0027_e0eb, 0x6367_7270];
/// Groups below a sandbox's own, made from inside, deeper than this are left to an error.
const DEPTH: usize = 16;

/// A directory of a control group file system.
#[derive(Debug)]
pub(super) struct Seat {
    dir: OwnedFd,
}

impl Seat {
    /// Makes the directory, which must not exist, and opens it.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        mkdirat(CWD, path, Mode::from_raw_mode(0o755))?;
        Self::open(path)
    }

    /// Opens an existing directory; an error of kind `InvalidInput` if it is not on a control group file system.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::check(openat(CWD, path, DIRECTORY, Mode::empty())?)
    }

    fn check(dir: OwnedFd) -> io::Result<Self> {
        let magic = u64::try_from(rustix::fs::fstatfs(&dir)?.f_type).unwrap_or_default();
        if !MAGICS.contains(&magic) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a control group"));
        }
        Ok(Self { dir })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.dir
    }

    pub(super) fn has(&self, file: &str) -> bool {
        rustix::fs::accessat(&self.dir, file, rustix::fs::Access::EXISTS, AtFlags::empty()).is_ok()
    }

    pub(super) fn read(&self, file: &str) -> io::Result<String> {
        let mut opened =
            std::fs::File::from(openat(&self.dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        io::read_to_string(&mut opened)
    }

    /// A file that holds one number; `max` and what is missing are `None`.
    pub(super) fn number(&self, file: &str) -> Option<u64> {
        self.read(file).ok()?.trim().parse().ok()
    }

    /// The number behind `key` in a file of `key number` lines.
    pub(super) fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        keyed(&self.read(file).ok()?, key)
    }

    pub(super) fn open_for_write(&self, file: &str) -> io::Result<OwnedFd> {
        Ok(openat(&self.dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub(super) fn write(&self, file: &str, value: &str) -> io::Result<()> {
        std::fs::File::from(self.open_for_write(file)?).write_all(value.as_bytes())
    }

    /// The processes directly in this group, as seen from our PID namespace.
    pub(super) fn pids(&self) -> io::Result<BTreeSet<i32>> {
        match self.read("cgroup.procs") {
            Ok(text) => Ok(parse_pids(&text)),
            // The group went away under us.
            Err(gone) if gone.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(BTreeSet::new()),
            Err(other) => Err(other),
        }
    }

    /// Kills everything in this group and below it, and waits until it is gone.
    pub(super) fn kill_all(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.kill_round(DEPTH, deadline)?;
            if self.is_empty(DEPTH)? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn kill_round(&self, depth: usize, deadline: Instant) -> io::Result<()> {
        // One write kills the whole subtree, forks in flight included (version 2 since Linux 5.14).
        if self.write("cgroup.kill", "1").is_err() {
            for child in self.children(depth)? {
                child.kill_round(depth.saturating_sub(1), deadline)?;
            }
        }
        let dying = self.kill_listed()?;
        // Version 1 holds even killed processes until they are thawed.
        let _ = self.write("freezer.state", "THAWED");
        wait_for_exits(&dying, deadline)
    }

    /// Sends SIGKILL to each process listed. A pid may be given to another process at any moment, so it is pinned first
    /// and killed only if the group still lists it afterwards: then the pinned process is the one in the group.
    fn kill_listed(&self) -> io::Result<Vec<OwnedFd>> {
        let pin = |raw: i32| Some((raw, pidfd_open(Pid::from_raw(raw)?, PidfdFlags::empty()).ok()?));
        let pinned: Vec<(i32, OwnedFd)> = self.pids()?.into_iter().filter_map(pin).collect();
        if pinned.is_empty() {
            return Ok(Vec::new());
        }
        let still = self.pids()?;
        let dying = pinned.into_iter().filter(|(raw, _)| still.contains(raw)).map(|(_, pidfd)| pidfd);
        dying
            .map(|pidfd| match pidfd_send_signal(&pidfd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => Ok(pidfd),
                Err(refused) => Err(refused.into()),
            })
            .collect()
    }

    fn is_empty(&self, depth: usize) -> io::Result<bool> {
        if !self.pids()?.is_empty() {
            return Ok(false);
        }
        for child in self.children(depth)? {
            if !child.is_empty(depth.saturating_sub(1))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn children(&self, depth: usize) -> io::Result<Vec<Self>> {
        self.child_names()?
            .iter()
            .filter_map(|name| match openat(&self.dir, name, DIRECTORY, Mode::empty()) {
                Ok(_) if depth == 0 => Some(Err(io::ErrorKind::QuotaExceeded.into())),
                Ok(dir) => Some(Ok(Self { dir })),
                Err(Errno::NOENT) => None,
                Err(other) => Some(Err(other.into())),
            })
            .collect()
    }

    fn child_names(&self) -> io::Result<Vec<std::ffi::CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Removes the groups below this one, which must hold no process any more.
    pub(super) fn remove_children(&self, depth: usize) -> io::Result<()> {
        for name in self.child_names()? {
            if depth == 0 {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            match openat(&self.dir, &name, DIRECTORY, Mode::empty()) {
                Ok(dir) => Self { dir }.remove_children(depth.saturating_sub(1))?,
                Err(Errno::NOENT) => continue,
                Err(other) => return Err(other.into()),
            }
            retry_while_busy(|| unlinkat(&self.dir, &name, AtFlags::REMOVEDIR))?;
        }
        Ok(())
    }
}

/// Ends a group: kills what is in it, removes what is below it and the directory. One that is gone already is fine.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let seat = match Seat::open(path) {
        Ok(seat) => seat,
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(other) => return Err(other),
    };
    // The common case: nothing is in it any more, and one call does it.
    if unlinkat(CWD, path, AtFlags::REMOVEDIR).is_ok() {
        return Ok(());
    }
    seat.kill_all()?;
    seat.remove_children(DEPTH)?;
    match retry_while_busy(|| unlinkat(CWD, path, AtFlags::REMOVEDIR)) {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// The number behind `key` in `key number` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Pids of a `cgroup.procs`; 0 stands for a process that our PID namespace cannot see.
pub(super) fn parse_pids(text: &str) -> BTreeSet<i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect()
}

/// Waits until `done`, looking again after each change the kernel reports on `watched` or a short while.
pub(super) fn wait_until(
    watched: Option<&OwnedFd>,
    mut done: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    while !done()? {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut watch: Vec<PollFd<'_>> =
            watched.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::PRI)).collect();
        poll_for(&mut watch, pause)?;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(())
}

fn wait_for_exits(pidfds: &[OwnedFd], deadline: Instant) -> io::Result<()> {
    for pidfd in pidfds {
        let left = deadline.saturating_duration_since(Instant::now());
        poll_for(&mut [PollFd::new(pidfd, PollFlags::IN)], left)?;
    }
    Ok(())
}

fn poll_for(watch: &mut [PollFd<'_>], at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
    match poll(watch, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(other) => Err(other.into()),
    }
}

/// A process that has exited leaves its group a moment after its parent has heard of it.
fn retry_while_busy(mut remove: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(50);
    loop {
        match remove() {
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(pause),
            other => return other,
        }
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
