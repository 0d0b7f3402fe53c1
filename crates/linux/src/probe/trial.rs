//! Builds most of a sandbox in a child that is gone afterwards, in the order and by the calls a real one is built by,
//! and tells what the kernel said to each step.
//!
//! ```no_run
//! use airlock_linux::{idmap::{Extent, IdMap, Writer}, probe::trial::{self, Step, Wanted}};
//! let own = |outside| vec![Extent { inside: 0, outside, count: 1 }];
//! let ids = IdMap { users: own(1000), groups: own(1000), writer: Writer::SingleId };
//! let trial = trial::run(&Wanted { place: "/home/ada".as_ref(), ids: &ids, shown: &[] });
//! println!("overlay: {:?}", trial.answer(Step::Overlay));
//! ```

use super::{Answer, No, steps};
use crate::{
    clone::{self, Child, Namespaces, Side},
    idmap::{IdMap, Writer},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, kill_process_group, setpgid},
};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// What a real sandbox does too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A user namespace alone.
    User,
    /// User, mount, PID, network, IPC and UTS namespaces in one call.
    Namespaces,
    /// The ids inside are written.
    Ids,
    /// Trees of the host are shown with shifted ids (host root only).
    Shift,
    /// The child becomes root inside.
    Root,
    /// Its mounts are cut off from the host's.
    Mounts,
    /// The loopback device and the settings of the network namespace.
    Network,
    /// A fresh `/proc`.
    Proc,
    /// A fresh `/sys`.
    Sys,
    /// `/dev`: nodes of the host, terminals and message queues of its own.
    Devices,
    /// An overlay whose upper layer lies in the state directory, and a write to it.
    Overlay,
    /// Rules in the network namespace.
    Nftables,
    /// Control group and time namespaces.
    Spaces,
    /// A second user and mount namespace inside, with the same ids.
    Inner,
    /// The filter of system calls.
    Filter,
}

/// What to try with.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// A directory of the file system that the state directory is (or will be) on, writable by this process.
    pub place: &'a Path,
    /// The ids of a sandbox of this person.
    pub ids: &'a IdMap,
    /// Directories of the host that a sandbox shows with shifted ids.
    pub shown: &'a [PathBuf],
}

/// What the kernel said to each step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trial {
    answers: BTreeMap<Step, Answer>,
}

/// No step takes longer than a few milliseconds, on an emulated processor some hundred; one that hangs (a dead network file
/// system) ends here.
const PATIENCE: Duration = Duration::from_secs(10);
const STEPS: [(Step, &str); 15] = [
    (Step::User, "user"),
    (Step::Namespaces, "namespaces"),
    (Step::Ids, "ids"),
    (Step::Shift, "shift"),
    (Step::Root, "root"),
    (Step::Mounts, "mounts"),
    (Step::Network, "network"),
    (Step::Proc, "proc"),
    (Step::Sys, "sys"),
    (Step::Devices, "devices"),
    (Step::Overlay, "overlay"),
    (Step::Nftables, "nftables"),
    (Step::Spaces, "spaces"),
    (Step::Inner, "inner"),
    (Step::Filter, "filter"),
];

impl Trial {
    /// A trial with these answers; for decisions that are tested.
    pub fn of(answers: impl IntoIterator<Item = (Step, Answer)>) -> Trial {
        Trial { answers: answers.into_iter().collect() }
    }

    /// Every step worked.
    #[must_use]
    pub fn all_yes() -> Trial {
        Trial::of(STEPS.map(|(step, _)| (step, Answer::Yes)))
    }

    /// The same, with another answer to one step.
    #[must_use]
    pub fn with(mut self, step: Step, answer: Answer) -> Trial {
        self.answers.insert(step, answer);
        self
    }

    /// What the kernel said to this step.
    #[must_use]
    pub fn answer(&self, step: Step) -> &Answer {
        self.answers.get(&step).unwrap_or(&Answer::Unasked)
    }

    /// What the child wrote, one line for each step. Total: what makes no sense is passed over.
    fn parse(text: &str) -> Trial {
        let answer = |line: &str| {
            let mut fields = line.splitn(3, ' ');
            let (name, errno) = (fields.next()?, fields.next()?.parse().ok()?);
            let (step, _) = STEPS.iter().find(|(_, known)| *known == name)?;
            let said = fields.next().unwrap_or_default();
            let yes = errno == 0 && said.is_empty();
            Some((*step, if yes { Answer::Yes } else { Answer::No(No { errno, said: said.to_owned() }) }))
        };
        Trial::of(text.lines().filter_map(answer))
    }
}

/// Tries it. Takes some 10 ms, at most ten seconds whatever hangs, and leaves nothing behind.
///
/// The process must have one thread; otherwise every step is unasked.
#[must_use]
pub fn run(wanted: &Wanted<'_>) -> Trial {
    let scratch = wanted.place.join(format!(".airlock-doctor-{}", std::process::id()));
    let text = watch(wanted, &scratch).unwrap_or_default();
    remove(&scratch);
    Trial::parse(&text)
}

/// Where the child writes its answers.
pub(super) struct Report(PipeWriter);

impl Report {
    /// Writes one line, at once: pipes keep short writes whole. Gives back whether the step worked.
    pub(super) fn tell(&self, step: Step, result: io::Result<()>) -> bool {
        let name = STEPS.iter().find(|(known, _)| *known == step).map_or("", |(_, name)| name);
        let line = match &result {
            Ok(()) => format!("{name} 0\n"),
            Err(err) => {
                let no = No::from(err);
                let said: String =
                    no.said.chars().map(|c| if c == '\n' { ' ' } else { c }).take(500).collect();
                format!("{name} {} {said}\n", no.errno)
            }
        };
        let _ = (&self.0).write_all(line.as_bytes());
        result.is_ok()
    }
}

/// Runs the trial in a process group of its own and ends all of it at the deadline.
fn watch(wanted: &Wanted<'_>, scratch: &Path) -> io::Result<String> {
    let (told, tell) = io::pipe()?;
    let child = match clone::fork(Namespaces::NONE, None)? {
        Side::Child => {
            drop(told);
            let _ = setpgid(None, None);
            let _ = clone::die_with_parent();
            try_all(wanted, scratch, &Report(tell));
            clone::exit_now(0)
        }
        Side::Parent(child) => child,
    };
    // Both set it: whoever comes first, the group exists before it is needed.
    let _ = setpgid(Some(child.pid), Some(child.pid));
    drop(tell);
    let text = read_until(told, Instant::now() + PATIENCE);
    let _ = kill_process_group(child.pid, Signal::KILL);
    child.kill()?;
    // A process that even SIGKILL cannot end at once (it waits for a dead disk) is left to init.
    let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    if poll(&mut [PollFd::new(&child.pidfd, PollFlags::IN)], Some(&soon)).is_ok_and(|ended| ended > 0) {
        child.wait()?;
    }
    text
}

fn read_until(mut told: PipeReader, deadline: Instant) -> io::Result<String> {
    let mut text = Vec::new();
    let mut bytes = [0u8; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(err) => return Err(err.into()),
        }
        match told.read(&mut bytes)? {
            0 => break,
            count => text.extend_from_slice(bytes.get(..count).unwrap_or_default()),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What the keeper does: fork, ids, trees; then the child goes through its own steps.
fn try_all(wanted: &Wanted<'_>, scratch: &Path, report: &Report) {
    let Ok((talk, child_talk)) = crate::fd::pair() else { return };
    let made = make_scratch(wanted.ids, scratch);
    let child = match clone::fork(Namespaces::SANDBOX, None) {
        Ok(Side::Child) => {
            drop(talk);
            steps::build(wanted, scratch, &child_talk, report);
            clone::exit_now(0)
        }
        Ok(Side::Parent(child)) => child,
        Err(err) => {
            report.tell(Step::Namespaces, Err(err));
            report.tell(Step::User, user_namespace_alone());
            return;
        }
    };
    drop(child_talk);
    report.tell(Step::User, Ok(()));
    report.tell(Step::Namespaces, Ok(()));
    // A directory that could not be made means something only where the ids could be written.
    if give(wanted, &child, &talk, report).is_ok()
        && let Err(err) = made
    {
        report.tell(Step::Overlay, Err(err));
    }
    let _ = child.wait();
}

fn give(wanted: &Wanted<'_>, child: &Child, talk: &std::os::fd::OwnedFd, report: &Report) -> io::Result<()> {
    let written = wanted.ids.write(child.pid).map_err(|err| match err {
        crate::idmap::Error::Write { source, .. } | crate::idmap::Error::Run { source, .. } => source,
        refused @ crate::idmap::Error::Refused { .. } => io::Error::other(refused),
    });
    if !report.tell(Step::Ids, written) {
        child.kill()?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let trees = match steps::shifted(wanted, child.pid) {
        Ok(trees) => {
            report.tell(Step::Shift, Ok(()));
            trees
        }
        Err(err) => {
            report.tell(Step::Shift, Err(err));
            Vec::new()
        }
    };
    steps::send(talk, &trees)
}

fn user_namespace_alone() -> io::Result<()> {
    match clone::fork(Namespaces::USER, None)? {
        Side::Child => clone::exit_now(0),
        Side::Parent(child) => child.wait().map(|_| ()),
    }
}

/// The directory that stands for a sandbox's own; as host root it belongs to root inside.
fn make_scratch(ids: &IdMap, scratch: &Path) -> io::Result<()> {
    rustix::fs::mkdir(scratch, rustix::fs::Mode::RWXU)?;
    match (ids.writer, ids.user_outside(0), ids.group_outside(0)) {
        (Writer::Direct, Some(user), Some(group)) => {
            std::os::unix::fs::chown(scratch, Some(user), Some(group))
        }
        _ => Ok(()),
    }
}

/// Removes what the trial left on disk. The overlay's own work directory cannot be read, only removed.
fn remove(scratch: &Path) {
    if fs::symlink_metadata(scratch).is_err() {
        return;
    }
    for below in ["work/work", "work/index", "work", "upper", ""] {
        let _ = fs::remove_dir(scratch.join(below));
    }
    // Nothing is left of a trial that went through; one that was killed may have left its file.
    let _ = fs::remove_file(scratch.join("upper").join(steps::WRITTEN));
    let _ = fs::remove_dir(scratch.join("upper"));
    let _ = fs::remove_dir(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{idmap::Extent, seccomp::trial::in_child};
    use proptest::prelude::*;

    #[test]
    fn a_line_is_an_answer() {
        let trial = Trial::parse("user 0\noverlay 22 invalid argument\nnonsense\nids x\n");

        assert!(trial.answer(Step::User).is_yes());
        assert_eq!(trial.answer(Step::Overlay).no().map(|no| no.errno), Some(libc::EINVAL));
        assert_eq!(*trial.answer(Step::Ids), Answer::Unasked);
    }

    #[test]
    fn a_trial_answers_every_step_and_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let own = |outside| vec![Extent { inside: 0, outside, count: 1 }];
        let ids = IdMap { users: own(uid), groups: own(gid), writer: Writer::SingleId };
        let wanted = Wanted { place: place.path(), ids: &ids, shown: &[] };

        let outcome = in_child(|| Ok(format!("{:?}", run(&wanted))));

        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let expected = format!("{:?}", Trial::all_yes());
        if outcome.output != expected && std::env::var_os("AIRLOCK_TEST_STRICT").is_none() {
            eprintln!("skipped: this host allows no sandboxes: {}", outcome.output);
            return;
        }
        assert_eq!(outcome.output, expected);
    }

    #[test]
    fn a_child_that_never_ends_is_given_up_at_the_deadline() {
        let (told, mut tell) = io::pipe().unwrap();
        tell.write_all(b"user 0\n").unwrap();

        let text = read_until(told, Instant::now() + Duration::from_millis(10)).unwrap();

        assert_eq!(text, "user 0\n");
        drop(tell);
    }

    proptest! {
        #[test]
        fn no_text_panics_the_reader(text in "[a-z0-9 \n]{0,80}") {
            let _ = Trial::parse(&text);
        }
    }
}
