//! Making the directory of a sandbox in each kind of place.
//!
//! Version 2 has two rules that version 1 has not: controllers are handed down from group to group, and a group other than
//! the root that hands them down may hold no process itself (cgroups(7), "no internal processes").

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::group::Error;
use super::layout::{Controller, Place};
use super::seat::Seat;

/// The leaf into which the processes of a delegated version 2 group move.
pub(super) const LEAF: &str = "airlock-keeper";

/// How often a shared directory that another keeper removes under us is made again.
const TRIES: usize = 16;

/// Makes the directory, which must not exist, with `controllers` switched on.
pub(super) fn make(place: &Place, path: &Path, controllers: &[Controller]) -> Result<Seat, Error> {
    match place {
        Place::Beside(_) | Place::Given(_) | Place::Closed(_) => {
            Seat::create(path).map_err(|source| Error::Make { path: path.to_path_buf(), source })
        }
        Place::Delegated(base) => {
            empty(base)?;
            hand_down(base, controllers)?;
            Seat::create(path).map_err(|source| Error::Make { path: path.to_path_buf(), source })
        }
        Place::Root(mount) => make_below_root(mount, path, controllers),
    }
}

/// The shared directory goes with its last sandbox, which may be this very moment: then once more.
fn make_below_root(mount: &Path, path: &Path, controllers: &[Controller]) -> Result<Seat, Error> {
    let shared = mount.join("airlock");
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..TRIES {
        hand_down(mount, controllers)?;
        let made = match std::fs::create_dir(&shared) {
            Err(there) if there.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        made.map_err(|source| Error::Make { path: shared.clone(), source })?;
        match hand_down(&shared, controllers) {
            Err(Error::HandDown { source, .. }) if is_gone(&source) => {
                last = source;
                continue;
            }
            other => other?,
        }
        match Seat::create(path) {
            Err(gone) if is_gone(&gone) => last = gone,
            other => return other.map_err(|source| Error::Make { path: path.to_path_buf(), source }),
        }
    }
    Err(Error::Make { path: path.to_path_buf(), source: last })
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

/// Moves every process of a delegated group (the keeper, the command line that started it) into the leaf. The kernel refuses to
/// hand memory down while one is left; pids and cpu it hands down, and then lets no process into the groups below.
fn empty(base: &Path) -> Result<(), Error> {
    let failed = |source| Error::HandDown { path: base.to_path_buf(), source };
    let seat = Seat::open(base).map_err(failed)?;
    for _ in 0..TRIES {
        if seat.pids().map_err(failed)?.is_empty() {
            return Ok(());
        }
        match vacate(&seat, base) {
            // Another keeper has just removed the leaf, which was empty.
            Err(gone) if is_gone(&gone) => {}
            other => other.map_err(failed)?,
        }
    }
    Err(failed(Errno::BUSY.into()))
}

fn vacate(seat: &Seat, dir: &Path) -> io::Result<()> {
    let path = dir.join(LEAF);
    let leaf = match Seat::create(&path) {
        Err(there) if there.kind() == io::ErrorKind::AlreadyExists => Seat::open(&path)?,
        other => other?,
    };
    for pid in seat.pids()? {
        match leaf.write("cgroup.procs", &pid.to_string()) {
            // It ended meanwhile.
            Err(gone) if gone.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Switches controllers on for the groups below `dir`.
fn hand_down(dir: &Path, controllers: &[Controller]) -> Result<(), Error> {
    let failed = |source| Error::HandDown { path: dir.to_path_buf(), source };
    let seat = Seat::open(dir).map_err(failed)?;
    let on = seat.read("cgroup.subtree_control").map_err(failed)?;
    match missing(&on, controllers) {
        Some(wanted) => seat.write("cgroup.subtree_control", &wanted).map_err(failed),
        None => Ok(()),
    }
}

/// What to write so that all of `controllers` are on; `None` if they are.
fn missing(on: &str, controllers: &[Controller]) -> Option<String> {
    let off = |name: &&str| !on.split_whitespace().any(|word| word == *name);
    let names = controllers.iter().filter_map(|controller| match controller {
        Controller::Memory => Some("memory"),
        Controller::Pids => Some("pids"),
        Controller::Cpu => Some("cpu"),
        Controller::Freezer => None,
    });
    let wanted: Vec<String> = names.filter(off).map(|name| format!("+{name}")).collect();
    (!wanted.is_empty()).then(|| wanted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_off_is_switched_on() {
        let both = [Controller::Memory, Controller::Pids, Controller::Freezer];

        assert_eq!(missing("cpuset cpu memory\n", &both).as_deref(), Some("+pids"));
        assert_eq!(missing("", &both).as_deref(), Some("+memory +pids"));
        assert_eq!(missing("memory pids", &both), None);
    }
}
