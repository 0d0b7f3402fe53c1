//! Ids inside and outside.
//!
//! As host root a sandbox's ids are shifted to a range nobody else has; an ordinary user has ranges from
//! `/etc/subuid` (written by `newuidmap`), or only the one id that is their own.
//!
//! ```
//! use airlock_linux::idmap::{Extent, subordinate};
//! assert_eq!(subordinate("root:1:2\nann:100000:65536\n1000:300000:10\n", "ann", 1000), [(100000, 65536), (300000, 10)]);
//! ```

use crate::clone::{self, Dumpable, Ending, Namespaces};
use rustix::process::Pid;
use std::{
    fmt::Write as _,
    fs, io,
    os::fd::{BorrowedFd, OwnedFd},
    process::{self, Command, Stdio},
};

/// `count` ids from `inside` are those from `outside` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// The ids of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap {
    /// Users.
    pub users: Vec<Extent>,
    /// Groups.
    pub groups: Vec<Extent>,
    /// Who may write it.
    pub writer: Writer,
}

/// Who writes a map into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// This process has the power itself.
    Direct,
    /// The set-user-id programs `newuidmap` and `newgidmap`.
    Programs,
    /// An ordinary user mapping only their own id; supplementary groups cannot be dropped.
    SingleId,
}

/// A map that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("could not write {file}")]
    Write {
        /// Which file.
        file: String,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// The program could not be run.
    #[error("could not run {program}")]
    Run {
        /// Which.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program refused.
    #[error("{program} refused the ids of this sandbox: {said}")]
    Refused {
        /// Which.
        program: &'static str,
        /// Its own words.
        said: String,
    },
}

impl IdMap {
    /// The id outside of one inside.
    pub fn user_outside(&self, inside: u32) -> Option<u32> {
        outside(&self.users, inside)
    }

    /// The group outside of one inside.
    pub fn group_outside(&self, inside: u32) -> Option<u32> {
        outside(&self.groups, inside)
    }

    /// From the first group inside to the last.
    pub fn group_range(&self) -> std::ops::RangeInclusive<u32> {
        let last = |extent: &Extent| extent.inside.saturating_add(extent.count.saturating_sub(1));
        let first = self.groups.iter().map(|extent| extent.inside).min().unwrap_or(0);
        first..=self.groups.iter().map(last).max().unwrap_or(first)
    }

    /// Gives a process of a new user namespace its ids.
    pub fn write(&self, pid: Pid) -> Result<(), Error> {
        self.begin(pid, None)?.finish()
    }

    /// As [`IdMap::write`], but does not wait for the two programs where they are needed. `done` is closed when the ids
    /// are written, or will never be.
    pub fn begin(&self, pid: Pid, done: Option<OwnedFd>) -> Result<Writing, Error> {
        match self.writer {
            Writer::Direct => self.write_files(pid).map(|()| Writing::default()),
            Writer::Programs => self.run_programs(pid, done),
            Writer::SingleId => {
                write_file(pid, "setgroups", "deny")?;
                self.write_files(pid).map(|()| Writing::default())
            }
        }
    }

    /// A user namespace inside this one that has these ids, with nobody in it.
    /// A process stood for it until its ids were written.
    pub fn namespace(&self) -> Result<(OwnedFd, Ending), Error> {
        let failed = |source| Error::Write { file: "a user namespace".into(), source };
        let stand_in = clone::stand_in_user_namespace().map_err(failed)?;
        self.write(stand_in.pid)?;
        Ok((open_user_namespace(stand_in.pid).map_err(failed)?, stand_in.end()))
    }

    /// The map of a namespace inside this one that has the same ids: the kernel wants the same extents. Root of this
    /// one has the power to write it.
    pub fn repeated(&self) -> IdMap {
        let same = |extents: &[Extent]| {
            extents.iter().map(|extent| Extent { outside: extent.inside, ..*extent }).collect()
        };
        let writer = match self.writer {
            Writer::Programs => Writer::Direct,
            other => other,
        };
        IdMap { users: same(&self.users), groups: same(&self.groups), writer }
    }

    fn write_files(&self, pid: Pid) -> Result<(), Error> {
        write_file(pid, "uid_map", &lines(&self.users))?;
        write_file(pid, "gid_map", &lines(&self.groups))
    }

    /// Both at once: each costs more than a millisecond.
    fn run_programs(&self, pid: Pid, done: Option<OwnedFd>) -> Result<Writing, Error> {
        let start = |program: &'static str, extents: &[Extent], done: Option<OwnedFd>| {
            let mut command = Command::new(program);
            command.arg(pid.as_raw_nonzero().to_string());
            for extent in extents {
                command.args([extent.inside, extent.outside, extent.count].map(|id| id.to_string()));
            }
            let done = done.map_or_else(Stdio::null, Stdio::from);
            command.stdin(Stdio::null()).stdout(done).stderr(Stdio::piped());
            command.spawn().map_err(|source| Error::Run { program, source })
        };
        let (users, groups) = ("newuidmap", "newgidmap");
        let copy = done.as_ref().map(OwnedFd::try_clone).transpose();
        let copy = copy.map_err(|source| Error::Run { program: users, source })?;
        let first = start(users, &self.users, copy)?;
        let second = start(groups, &self.groups, done)?;
        Ok(Writing { programs: vec![(users, first), (groups, second)] })
    }
}

/// Ids that are being written.
#[derive(Debug, Default)]
#[must_use]
pub struct Writing {
    programs: Vec<(&'static str, process::Child)>,
}

impl Writing {
    /// Whether nothing is left to wait for.
    pub fn is_done(&self) -> bool {
        self.programs.is_empty()
    }

    /// Waits until they are written.
    pub fn finish(self) -> Result<(), Error> {
        for (program, child) in self.programs {
            let output = child.wait_with_output().map_err(|source| Error::Run { program, source })?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(Error::Refused { program, said });
            }
        }
        Ok(())
    }
}

/// The ranges of a user in the text of `/etc/subuid` or `/etc/subgid`. Lines that are not entries are passed over.
pub fn subordinate(text: &str, name: &str, id: u32) -> Vec<(u32, u32)> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        if owner != name && owner.parse() != Ok(id) {
            return None;
        }
        let start: u32 = fields.next()?.trim().parse().ok()?;
        let count: u32 = fields.next()?.trim().parse().ok()?;
        start.checked_add(count)?;
        (count > 0).then_some((start, count))
    };
    text.lines().filter_map(entry).collect()
}

/// A user namespace that has `extent` as its only mapping for users and groups, for an id-mapped mount.
/// Needs the power to write such maps (host root).
pub fn namespace_with(users: Extent, groups: Extent) -> Result<OwnedFd, Error> {
    IdMap { users: vec![users], groups: vec![groups], writer: Writer::Direct }
        .namespace()
        .map(|(namespace, _)| namespace)
}

/// Makes a user namespace inside this one, with the same ids and nobody in it: only a process outside it may write them.
/// The limit on processes of this process becomes that of the namespace.
pub fn inner(ids: &IdMap) -> io::Result<OwnedFd> {
    clone::set_dumpable(Dumpable::Yes)?;
    let (inner, ending) = ids.repeated().namespace().map_err(io::Error::other)?;
    drop(ending);
    Ok(inner)
}

/// Enters a user namespace that [`inner`] made and a mount namespace of its own, with every power in them: nobody there can
/// undo a mount that was made outside.
pub fn enter_inner(inner: BorrowedFd<'_>) -> io::Result<()> {
    clone::enter_user_namespace(inner)?;
    clone::unshare(Namespaces::MOUNT)?;
    clone::set_dumpable(Dumpable::No)
}

/// The user namespace a process is in.
pub fn open_user_namespace(pid: Pid) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero()))?.into())
}

fn outside(extents: &[Extent], inside: u32) -> Option<u32> {
    let holds = |extent: &&Extent| inside >= extent.inside && inside - extent.inside < extent.count;
    extents.iter().find(holds).and_then(|extent| extent.outside.checked_add(inside - extent.inside))
}

fn lines(extents: &[Extent]) -> String {
    let mut text = String::new();
    for extent in extents {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {} {}", extent.inside, extent.outside, extent.count);
    }
    text
}

fn write_file(pid: Pid, name: &str, text: &str) -> Result<(), Error> {
    let file = format!("/proc/{}/{name}", pid.as_raw_nonzero());
    fs::write(&file, text).map_err(|source| Error::Write { file, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_inside_id_is_found_in_its_extent() {
        let map = IdMap {
            users: vec![
                Extent { inside: 0, outside: 1000, count: 1 },
                Extent { inside: 1, outside: 100_000, count: 10 },
            ],
            groups: vec![],
            writer: Writer::Direct,
        };
        let found: Vec<_> = [0, 1, 10, 11].map(|id| map.user_outside(id)).into();
        assert_eq!(found, [Some(1000), Some(100_000), Some(100_009), None]);
    }

    proptest! {
        #[test]
        fn no_text_panics_the_subid_reader(text in "[a-z0-9:\n ]{0,80}") {
            for (start, count) in subordinate(&text, "a", 1) {
                prop_assert!(start.checked_add(count).is_some());
            }
        }
    }
}
