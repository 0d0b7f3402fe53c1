//! The seam between what happens and where.

use crate::plan::{Caller, Identity, Plan};
use airlock_linux::{clone::Child, fd, idmap::Writing, net::seat::Seat};
use airlock_protocol::{control::Refusal, state::Machine};
use std::{
    cell::{OnceCell, RefCell},
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// A place to run.
pub trait Backend {
    /// Begins with what takes long and needs to know only who is inside, while the caller goes on planning.
    fn begin(&self, caller: &Caller, identity: &Identity) -> Result<Begun, Refusal>;

    /// Builds the wall and begins to put the guest behind it; [`Backend::seal`] waits for that. Fails closed: on an error
    /// nothing of the sandbox is left running.
    fn launch(&self, plan: &Plan, begun: Begun, confine: Confine<'_>) -> Result<Launched, Refusal>;

    /// Waits until the guest is sealed and can be spoken to; called again while there is still something in
    /// [`Launched::sealing`]. On an error PID 1 is dead or about to be killed by the caller.
    fn seal(&self, plan: &Plan, launched: &Launched) -> Result<(), Refusal>;

    /// Why PID 1 ended though it was sealed, where it could not become the guest. Asked when no program could be started.
    fn farewell(&self, plan: &Plan, launched: &Launched) -> Option<Refusal> {
        let _ = (plan, launched);
        None
    }

    /// What a person should know of the machine, where the place has one.
    fn machine(&self) -> Option<Machine> {
        None
    }

    /// Makes in an empty directory what `launch` would make on a sandbox's disk, for the next sandbox like this one.
    fn furnish(&self, plan: &Plan, disk: BorrowedFd<'_>) -> io::Result<()>;

    /// Does what takes long and makes the next start of a sandbox like this one quick. This one is gone, and nobody waits.
    fn help_next(&self, _plan: &Plan) -> io::Result<()> {
        Ok(())
    }
}

/// A user and a network namespace that are being made, by a process that stands for them. It ends when this is dropped.
#[derive(Debug)]
pub struct Begun {
    /// The process.
    pub child: Child,
    /// Where it speaks.
    pub talk: OwnedFd,
    /// Their ids.
    pub ids: Writing,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the engine adds while a sandbox is being built.
pub struct Confine<'a> {
    /// Standard streams of the program.
    pub streams: &'a [BorrowedFd<'a>],
    /// Files of version 1 control groups; the first process puts itself in by writing `0` to each, before anything else.
    pub entries: &'a [OwnedFd],
    /// A cgroup v2 directory to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// A file system of bounded size that replaces the sandbox's directory for everything it writes.
    pub disk: Option<OwnedFd>,
}

/// A sandbox that is being built, with no program in it yet.
#[derive(Debug)]
pub struct Launched {
    /// PID 1.
    pub init: Child,
    /// The keeper's end of the guest link.
    pub link: OwnedFd,
    /// Root directory of the sandbox's devpts, where terminals are made; there when it is sealed.
    pub terminals: OnceCell<OwnedFd>,
    /// Readable when it is sealed, or will never be; gone after that.
    pub sealing: RefCell<Option<OwnedFd>>,
    /// Where PID 1 says why it could not become the guest; there when it is sealed.
    pub farewell: RefCell<Option<OwnedFd>>,
    /// What PID 1 leaves behind when it is sealed: the mount namespace it was in before, the mount of the program it
    /// becomes. Whoever drops them last takes mounts down, and stands still meanwhile.
    pub left: RefCell<Vec<OwnedFd>>,
    /// The keeper's seat in the sandbox's network namespace, where the backend has one.
    pub seat: Option<Seat>,
    /// The kernel's devices of the programmable mounts, in the plan's order; there when it is sealed.
    pub served: RefCell<Vec<OwnedFd>>,
    /// The sandbox's outer user namespace, where mounts are made while it runs.
    pub outer: Option<OwnedFd>,
    /// Where the workspace is copied on write: the directory that holds what differs, as a place only.
    pub workspace: OnceCell<OwnedFd>,
    /// Where ports are published, who brings connections in.
    pub porter: Option<Porter>,
    /// Where there is a machine, who runs it.
    pub monitor: Option<Monitor>,
}

/// Who runs a machine, for whoever saves its memory.
#[derive(Debug)]
pub struct Monitor {
    /// Takes orders.
    pub socket: OwnedFd,
    /// Tells machines apart: only one with the same goes on from a saved memory.
    pub key: String,
}

/// A process of the keeper's in the sandbox's network: it makes sockets there and hands them out.
#[derive(Debug)]
pub struct Porter {
    /// The process.
    pub child: Child,
    /// It answers each byte with one socket.
    pub socket: OwnedFd,
    /// How servers are reached that listen on loopback only.
    pub loopback: Loopback,
}

/// Where the loopback address of programs is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// In the sandbox's network.
    Here,
    /// In a machine, which takes connections in at one port
    /// ([`LOOPBACK_PORT`](airlock_linux::net::machine::LOOPBACK_PORT)).
    Machine,
}

impl Launched {
    /// The descriptor that becomes readable when PID 1 has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.init.pidfd.as_fd()
    }

    /// Never waits when talking to the guest.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        fd::set_nonblocking(self.link.as_fd())
    }
}
