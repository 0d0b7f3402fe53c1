//! The control groups of one sandbox.
//!
//! ```no_run
//! use airlock_linux::cgroup::{Group, Limits, layout};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let group = Group::create(&layout()?, "7f3a", &Limits { pids: Some(64), ..Limits::default() }, &[])?;
//! println!("recorded for later: {:?}", group.paths());
//! group.remove()?;
//! # Ok(()) }
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;

use super::cannot::{Cannot, Reason};
use super::layout::{Controller, Layout, Place, Version};
use super::leftovers::remove_empty_parents;
use super::make::make;
use super::seat::{self, Seat, wait_until};
use super::settings::{Need, settings};

/// How much a sandbox may use; `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Thousandths of one processor; at least 1 is taken.
    pub cpu_millis: Option<u64>,
    /// Processes and threads together.
    pub pids: Option<u64>,
}

/// What went wrong with a control group.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A limit that was asked for cannot be enforced; [`Cannot::fix`] says what to do.
    #[error(transparent)]
    Cannot(#[from] Cannot),
    /// The id is not usable as the name of a directory.
    #[error("{id:?} cannot name a control group")]
    Name {
        /// The id as given.
        id: String,
    },
    /// The directory could not be made.
    #[error("could not make control group {path}")]
    Make {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Other processes keep a delegated group from handing controllers down.
    #[error("could not hand down controllers in {path}")]
    HandDown {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A value was refused.
    #[error("could not write {value} to {path}")]
    Set {
        /// Which file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A process could not be moved in.
    #[error("could not move process {pid} into {path}")]
    Admit {
        /// Which process.
        pid: i32,
        /// Which group.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The processes could not be stopped, resumed or ended.
    #[error("could not {action} the processes in {path}")]
    Command {
        /// `freeze`, `thaw` or `kill`.
        action: &'static str,
        /// Which group.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The directory could not be removed.
    #[error("could not remove control group {path}")]
    Remove {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// The directories of one sandbox. Dropping it leaves them in place: [`Group::remove`] ends them.
#[derive(Debug)]
pub struct Group {
    held: Vec<Held>,
    /// Where to freeze on version 1: made when it is first asked for, since each further hierarchy costs.
    freezer: Result<PathBuf, Cannot>,
    paths: Vec<PathBuf>,
}

#[derive(Debug)]
struct Held {
    version: Version,
    controllers: Vec<Controller>,
    path: PathBuf,
    seat: Seat,
}

impl Group {
    /// Makes the groups for all controllers that `limits` need and those `wanted` besides, and sets the limits. Nothing stays
    /// behind on failure.
    ///
    /// # Errors
    /// [`Error::Cannot`] if one of them cannot be enforced here: a limit is never dropped in silence.
    pub fn create(layout: &Layout, id: &str, limits: &Limits, wanted: &[Controller]) -> Result<Self, Error> {
        if !is_name(id) {
            return Err(Error::Name { id: id.to_owned() });
        }
        let placed = by_place(layout, &needed(limits, wanted))?;
        let freezer = freezer_path(layout, id);
        let mut group = Self { held: Vec::new(), paths: freezer.iter().cloned().collect(), freezer };
        for (version, place, controllers) in placed {
            let path = path_in(place, id);
            let made = make(place, &path, &controllers).and_then(|seat| {
                let held = Held { version, controllers, path, seat };
                let set = held.set(limits);
                group.held.push(held);
                set
            });
            if let Err(failed) = made {
                // Only what was made here: a group of the same name that was there before is another sandbox's.
                let _ = remove_all(group.held.iter().map(|held| &held.path));
                return Err(failed);
            }
        }
        group.paths.extend(group.held.iter().map(|held| held.path.clone()));
        Ok(group)
    }

    /// The directories that [`Group::create`] would make: written down first, they can be cleared whatever happens.
    ///
    /// # Errors
    /// As [`Group::create`].
    pub fn paths_for(
        layout: &Layout,
        id: &str,
        limits: &Limits,
        wanted: &[Controller],
    ) -> Result<Vec<PathBuf>, Error> {
        let placed = by_place(layout, &needed(limits, wanted))?;
        let made = placed.iter().map(|(_, place, _)| path_in(place, id));
        Ok(freezer_path(layout, id).into_iter().chain(made).collect())
    }

    /// Every directory that exists or may come to exist for this sandbox, for [`super::remove_leftovers`].
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Moves an existing process (all its threads) into every group. Slow on an idle machine (about 10 ms for the first move).
    /// On version 1 an ordinary user can only move processes that still have the user's own uid.
    ///
    /// # Errors
    /// [`Error::Admit`] if the kernel refuses; the process may then be in some of the groups.
    pub fn admit(&self, pid: Pid) -> Result<(), Error> {
        let raw = pid.as_raw_nonzero().get();
        self.held.iter().try_for_each(|held| {
            let failed = |source| Error::Admit { pid: raw, path: held.path.clone(), source };
            held.seat.write("cgroup.procs", &raw.to_string()).map_err(failed)
        })
    }

    /// One descriptor per version 1 group. A single-threaded child that writes the byte `0` into each has moved itself there at
    /// almost no cost. It should do so first of all: before it changes ids (older kernels look at the writer's) and before it makes
    /// a control group namespace (whose root is then the sandbox's own group). The descriptors close on exec.
    ///
    /// # Errors
    /// [`Error::Set`] if one cannot be opened.
    pub fn entries(&self) -> Result<Vec<OwnedFd>, Error> {
        let v1 = self.held.iter().filter(|held| held.version == Version::V1);
        v1.map(|held| held.seat.open_for_write("tasks").map_err(|source| held.refused("tasks", "0", source)))
            .collect()
    }

    /// The version 2 group, for `CLONE_INTO_CGROUP`: the child is born in it.
    #[must_use]
    pub fn clone_into_fd(&self) -> Option<BorrowedFd<'_>> {
        self.held.iter().find(|held| held.version == Version::V2).map(|held| held.seat.fd().as_fd())
    }

    /// How many processes the kernel has killed because the sandbox was over its memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        self.ask(Controller::Memory, |held| {
            held.seat.keyed(held.pick("memory.oom_control", "memory.events"), "oom_kill")
        })
        .unwrap_or(0)
    }

    /// The most bytes ever in use at once (version 2: since Linux 5.19).
    #[must_use]
    pub fn memory_peak(&self) -> Option<u64> {
        self.ask(Controller::Memory, |held| {
            held.seat.number(held.pick("memory.max_usage_in_bytes", "memory.peak"))
        })
    }

    /// Processor time used so far. Version 1 tells it only where `cpuacct` is mounted together with `cpu`.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        self.held.iter().find_map(|held| match held.version {
            Version::V1 => held.seat.number("cpuacct.usage").map(Duration::from_nanos),
            Version::V2 => held.seat.keyed("cpu.stat", "usage_usec").map(Duration::from_micros),
        })
    }

    /// Stops every process and returns when all stand still.
    ///
    /// # Errors
    /// [`Error::Cannot`] if this host cannot freeze for us, else [`Error::Command`].
    pub fn freeze(&self) -> Result<(), Error> {
        let (path, outcome) = match self.frozen_by_v2() {
            Some(held) => (&held.path, freeze_v2(&held.seat, "1")),
            None => {
                let path = self.freezer.as_ref().map_err(Cannot::clone)?;
                (path, self.freeze_v1(path))
            }
        };
        outcome.map_err(|source| Error::Command { action: "freeze", path: path.clone(), source })
    }

    /// Lets every process run again. Not an error if nothing was frozen.
    ///
    /// # Errors
    /// [`Error::Command`] if the kernel refuses.
    pub fn thaw(&self) -> Result<(), Error> {
        let (path, outcome) = match (self.frozen_by_v2(), &self.freezer) {
            (Some(held), _) => (&held.path, freeze_v2(&held.seat, "0")),
            (None, Ok(path)) => (path, thaw_v1(path)),
            (None, Err(_)) => return Ok(()),
        };
        outcome.map_err(|source| Error::Command { action: "thaw", path: path.clone(), source })
    }

    /// Kills every process, frozen ones too, and returns when all are gone.
    ///
    /// # Errors
    /// [`Error::Command`] if one does not end.
    pub fn kill_all(&self) -> Result<(), Error> {
        // Frozen processes of version 1 do not die: the freezer comes first, it thaws what it has killed.
        let frozen = self.freezer.iter().filter_map(|path| Some((path, Seat::open(path).ok()?)));
        for (path, seat) in frozen {
            seat.kill_all().map_err(|source| Error::Command {
                action: "kill",
                path: path.clone(),
                source,
            })?;
        }
        self.held.iter().try_for_each(|held| {
            held.seat.kill_all().map_err(|source| Error::Command {
                action: "kill",
                path: held.path.clone(),
                source,
            })
        })
    }

    /// Kills what is left and removes every directory.
    ///
    /// # Errors
    /// [`Error::Remove`] for the first one that stays.
    pub fn remove(self) -> Result<(), Error> {
        remove_all(self.paths.iter())
    }

    fn ask(&self, controller: Controller, read: impl Fn(&Held) -> Option<u64>) -> Option<u64> {
        self.held.iter().find(|held| held.controllers.contains(&controller)).and_then(read)
    }

    fn frozen_by_v2(&self) -> Option<&Held> {
        self.held.iter().find(|held| held.version == Version::V2)
    }

    /// Version 1: a frozen group is made and every process moved into it, where it stops at once; what a process not yet moved
    /// forks meanwhile is found by looking again.
    fn freeze_v1(&self, path: &Path) -> io::Result<()> {
        let freezer = match Seat::create(path) {
            Err(there) if there.kind() == io::ErrorKind::AlreadyExists => Seat::open(path)?,
            other => other?,
        };
        freezer.write("freezer.state", "FROZEN")?;
        wait_until(None, || {
            let inside = freezer.pids()?;
            let mut all = std::collections::BTreeSet::new();
            for held in &self.held {
                all.extend(held.seat.pids()?);
            }
            let outside: Vec<i32> = all.difference(&inside).copied().collect();
            for pid in &outside {
                match freezer.write("cgroup.procs", &pid.to_string()) {
                    Err(refused) if refused.raw_os_error() != Some(Errno::SRCH.raw_os_error()) => {
                        return Err(refused);
                    }
                    _ => {}
                }
            }
            Ok(outside.is_empty() && freezer.read("freezer.state")?.trim() == "FROZEN")
        })
    }
}

impl Held {
    fn pick(&self, v1: &'static str, v2: &'static str) -> &'static str {
        match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        }
    }

    fn refused(&self, file: &str, value: &str, source: io::Error) -> Error {
        Error::Set { path: self.path.join(file), value: value.to_owned(), source }
    }

    fn set(&self, limits: &Limits) -> Result<(), Error> {
        settings(self.version, &self.controllers, limits).into_iter().try_for_each(|setting| {
            match self.seat.write(setting.file, &setting.value) {
                // Without swap accounting the file is missing; the bound on memory itself still holds.
                Err(missing)
                    if setting.need == Need::WherePresent && missing.kind() == io::ErrorKind::NotFound =>
                {
                    Ok(())
                }
                other => other.map_err(|source| self.refused(setting.file, &setting.value, source)),
            }
        })
    }
}

/// Short, plain names only: they become directories.
fn is_name(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=64).contains(&id.len()) && id.bytes().all(is_plain) && id != "keeper"
}

fn needed(limits: &Limits, wanted: &[Controller]) -> Vec<Controller> {
    let asked = [
        (Controller::Memory, limits.memory.is_some()),
        (Controller::Pids, limits.pids.is_some()),
        (Controller::Cpu, limits.cpu_millis.is_some()),
    ];
    let mut needed: Vec<Controller> =
        asked.into_iter().filter(|(_, is_asked)| *is_asked).map(|(controller, _)| controller).collect();
    needed.extend(wanted.iter().copied());
    needed.sort_unstable();
    needed.dedup();
    needed
}

type Placed<'a> = (Version, &'a Place, Vec<Controller>);

/// Controllers that share a hierarchy share a directory. Freezing on version 1 is left for later.
fn by_place<'a>(layout: &'a Layout, needed: &[Controller]) -> Result<Vec<Placed<'a>>, Cannot> {
    let mut placed: Vec<Placed<'a>> = Vec::new();
    for &controller in needed {
        let (version, place) = layout.place_of(controller)?;
        if (controller, version) == (Controller::Freezer, Version::V1) {
            continue;
        }
        match placed.iter_mut().find(|(_, known, _)| *known == place) {
            Some((_, _, controllers)) => controllers.push(controller),
            None => placed.push((version, place, vec![controller])),
        }
    }
    Ok(placed)
}

/// Only version 1 freezes in a hierarchy of its own; version 2 does it in the group the processes are in anyway.
fn freezer_path(layout: &Layout, id: &str) -> Result<PathBuf, Cannot> {
    let (version, place) = layout.place_of(Controller::Freezer)?;
    match version {
        Version::V1 => Ok(path_in(place, id)),
        Version::V2 => Err(layout.cannot(Controller::Freezer, Reason::Absent)),
    }
}

fn path_in(place: &Place, id: &str) -> PathBuf {
    match place {
        Place::Beside(dir) | Place::Delegated(dir) => dir.join(format!("airlock-{id}")),
        Place::Given(dir) => dir.join(id),
        Place::Root(mount) => mount.join("airlock").join(id),
        Place::Closed(_) => PathBuf::new(),
    }
}

fn freeze_v2(seat: &Seat, state: &str) -> io::Result<()> {
    let events = rustix::fs::openat(
        seat.fd(),
        "cgroup.events",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    seat.write("cgroup.freeze", state)?;
    let wanted = state.parse().ok();
    wait_until(Some(&events), || {
        let mut text = [0_u8; 256];
        let length = rustix::io::pread(&events, &mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned();
        Ok(seat::keyed(&text, "frozen") == wanted)
    })
}

fn thaw_v1(path: &Path) -> io::Result<()> {
    match Seat::open(path) {
        Ok(freezer) => freezer.write("freezer.state", "THAWED"),
        Err(never) if never.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(other) => Err(other),
    }
}

fn remove_all<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<(), Error> {
    let mut outcome = Ok(());
    for path in paths {
        let removed = seat::remove(path).map_err(|source| Error::Remove { path: path.clone(), source });
        remove_empty_parents(path);
        outcome = outcome.and(removed);
    }
    outcome
}
