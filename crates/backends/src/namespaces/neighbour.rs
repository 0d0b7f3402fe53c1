//! A program beside PID 1: its child, born before the root is built, with nothing of the sandbox's files. It is executed when the
//! keeper sends what only the keeper has.

use super::{During, Failed};
use airlock_engine::plan::chain;
use airlock_linux::{
    cell::{self, Cell, Means, Trees},
    clone::{self, Namespaces, Side},
    fd,
    idmap::IdMap,
    mount,
};
use airlock_protocol::guest::User;
use rustix::fs::CWD;
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

/// What is to be run.
pub(crate) struct Neighbour {
    /// Program and arguments.
    pub(crate) command: Vec<CString>,
    /// Directories and files of the host that it needs.
    pub(crate) shown: Vec<PathBuf>,
    /// Files that it finds under other names.
    pub(crate) files: Vec<(PathBuf, PathBuf)>,
    /// Devices of the host that it needs.
    pub(crate) devices: Vec<PathBuf>,
    /// What it finds open from 3 on; behind them comes what the keeper sends.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Bytes of the largest file that it writes.
    pub(crate) largest: u64,
    /// How it comes by what it is connected with.
    pub(crate) means: Means,
    /// Where its output goes.
    pub(crate) output: OwnedFd,
    /// Where it hears from the keeper, and says why it cannot be executed.
    pub(crate) talk: OwnedFd,
}

/// What the process says when it cannot go on: this byte, then the text.
pub(crate) const FAILED: u8 = b'!';
/// What the keeper says, with descriptors attached.
pub(crate) const GO: u8 = b'g';

/// A neighbour whose files are opened.
pub(super) struct Ready {
    neighbour: Neighbour,
    files: Vec<(PathBuf, OwnedFd)>,
}

impl Neighbour {
    /// Opens its files while this process is still who it was on the host.
    pub(super) fn open(self) -> Result<Ready, Failed> {
        let mut files = Vec::new();
        for (name, path) in &self.files {
            let step = format!("open {}", path.display());
            files.push((name.clone(), mount::open_place(CWD, path).during(&step)?));
        }
        Ok(Ready { neighbour: self, files })
    }
}

impl Ready {
    /// Forks it. Called as root of user namespace A.
    pub(super) fn start(self, ids: &IdMap, user: &User) -> Result<(), Failed> {
        let nobody = nobody(ids, user);
        let Ready { neighbour, files } = self;
        // Before PID 1 goes on to change the mounts that both see.
        let trees = Trees::open(&neighbour.shown, &files, &neighbour.devices)
            .during("show the machine's monitor its files")?;
        let (here, there) = fd::pair().during("wait for the machine's monitor")?;
        match clone::fork(Namespaces::NONE, None).during("fork the machine's monitor")? {
            Side::Parent(_) => {
                drop(there);
                await_leave(&here).during("wait for the machine's monitor")
            }
            Side::Child => {
                drop(here);
                run(neighbour, trees, nobody, there)
            }
        }
    }
}

/// Waits until the other end is closed: the monitor has mounts of its own, or is gone and has told the keeper why.
///
/// While PID 1 changes the root of a mount namespace that both are in, the kernel takes the monitor for one behind a chroot(2), and
/// refuses it a user namespace (user_namespaces(7), EPERM).
fn await_leave(end: &OwnedFd) -> io::Result<()> {
    fd::receive_with_fds(end.as_fd(), &mut [0u8; 1], &mut Vec::new()).map(|_| ())
}

fn run(neighbour: Neighbour, trees: Trees, user: (u32, u32), waiting: OwnedFd) -> ! {
    let Ok(talk) = neighbour.talk.try_clone() else { clone::exit_now(125) };
    let left = clone::unshare(Namespaces::MOUNT).during("leave the sandbox's mounts");
    drop(waiting);
    let Err(failed) = left.and_then(|()| wait_and_become(neighbour, trees, user));
    let mut text = vec![FAILED];
    text.extend_from_slice(chain(&failed).as_bytes());
    let _ = fd::send_all(talk.as_fd(), &text, &[]);
    clone::exit_now(125)
}

fn wait_and_become(
    neighbour: Neighbour,
    trees: Trees,
    user: (u32, u32),
) -> Result<std::convert::Infallible, Failed> {
    clone::die_with_parent().during("tie the machine to its sandbox")?;
    let (mut word, mut sent) = ([0u8; 1], Vec::new());
    fd::receive_with_fds(neighbour.talk.as_fd(), &mut word, &mut sent).during("hear from the keeper")?;
    if word != [GO] {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).during("hear from the keeper");
    }
    let descriptors = neighbour.descriptors.into_iter().chain(sent).collect();
    let Neighbour { command, output, largest, means, .. } = neighbour;
    let cell = Cell { command, trees, descriptors, output, user, largest, means };
    Err(cell::execute(cell)).during("execute the machine's monitor")
}

/// Ids of the sandbox that no program in it has; where there is one id only, that.
fn nobody(ids: &IdMap, user: &User) -> (u32, u32) {
    const UNUSED: u32 = 65_533;
    let uid = ids.user_outside(UNUSED).map_or(user.uid, |_| UNUSED);
    (uid, ids.group_outside(UNUSED).map_or(user.gid, |_| UNUSED))
}
