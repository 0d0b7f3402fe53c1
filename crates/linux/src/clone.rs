//! New processes in new namespaces.
//!
//! The keeper forks once, before it has threads, so that the child may run ordinary code while it builds the
//! sandbox around itself; what it becomes in the end is the guest, by exec.

use rustix::process::{Pid, WaitOptions, WaitStatus};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// A child process, known by a descriptor that cannot come to mean another.
#[derive(Debug)]
pub struct Child {
    /// Its number here.
    pub pid: Pid,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
}

/// Who returned from [`fork`].
#[derive(Debug)]
pub enum Side {
    /// The caller, with its new child.
    Parent(Child),
    /// The child.
    Child,
}

/// Namespaces a child is born into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(u64);

impl Namespaces {
    /// None: a plain fork.
    pub const NONE: Namespaces = Namespaces(0);
    /// User, mount, PID, network, IPC and UTS.
    pub const SANDBOX: Namespaces =
        Namespaces(Namespaces::WITHIN.0 | (libc::CLONE_NEWUSER | libc::CLONE_NEWNET) as u64);
    /// Mount, PID, IPC and UTS: what a sandbox has besides a user and a network namespace that were made before.
    pub const WITHIN: Namespaces =
        Namespaces((libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64);
    /// Network only.
    pub const NETWORK: Namespaces = Namespaces(libc::CLONE_NEWNET as u64);
    /// Mount only.
    pub const MOUNT: Namespaces = Namespaces(libc::CLONE_NEWNS as u64);
    /// User, mount, network, IPC, UTS and control group: what a program beside a sandbox has for itself.
    pub const CELL: Namespaces = Namespaces(
        (libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP) as u64,
    );
    /// The same in the network it is in.
    pub const CELL_WITH_NETWORK: Namespaces = Namespaces(Namespaces::CELL.0 & !(libc::CLONE_NEWNET as u64));
    /// Control group and time.
    pub const CGROUP_AND_TIME: Namespaces = Namespaces((libc::CLONE_NEWCGROUP | CLONE_NEWTIME) as u64);
    /// User only.
    pub const USER: Namespaces = Namespaces(libc::CLONE_NEWUSER as u64);
}

const CLONE_NEWTIME: libc::c_int = 0x80;

/// Forks into new namespaces (and into a cgroup v2 directory where given).
///
/// Fails with `EINVAL` where the process has more than one thread: the child may run any code.
pub fn fork(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    assert_single_threaded()?;
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs {
        flags: namespaces.0 | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    }
    let size = size_of::<CloneArgs>();
    // SAFETY: the arguments describe a fork (no shared memory, no new stack); `args` and `pidfd` outlive the call,
    // and the process has one thread, so the copy is whole.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) };
    match pid {
        0 => Ok(Side::Child),
        pid if pid > 0 => {
            // SAFETY: the kernel has just opened this descriptor for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
            Ok(Side::Parent(Child { pid, pidfd }))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks a child that is born in `namespaces` and lives in the user and network namespace `outer`; the caller stays where
/// it is. The child runs `child`, on a stack of its own, and ends after it.
///
/// A process in between, which shares the memory of this one and holds it up meanwhile, enters `outer` and forks: no
/// other way leads into a PID namespace that belongs to another user namespace.
///
/// Fails with `EINVAL` where the process has more than one thread: the child may run any code.
pub fn fork_into(
    outer: [BorrowedFd<'_>; 2],
    namespaces: Namespaces,
    cgroup: Option<BorrowedFd<'_>>,
    child: impl FnOnce(),
) -> io::Result<Child> {
    assert_single_threaded()?;
    let mut passage = Passage {
        outer: outer.map(|fd| fd.as_raw_fd()),
        args: CloneArgs {
            flags: namespaces.0 | (libc::CLONE_PIDFD | libc::CLONE_PARENT) as u64,
            ..CloneArgs::default()
        },
        pidfd: -1,
        outcome: Err(libc::EIO),
        child: Some(child),
    };
    if let Some(cgroup) = cgroup {
        passage.args.flags |= CLONE_INTO_CGROUP;
        passage.args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    }
    let stack = Stack::new(CHILD_STACK)?;
    let between = passage.go_through(&stack)?;
    let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(between), WaitOptions::empty()));
    // Entering another user namespace closed the memory, which is this process's too, to others of the same user.
    set_dumpable(Dumpable::Yes)?;
    let pid = passage.outcome.map_err(io::Error::from_raw_os_error)?;
    // SAFETY: the kernel has just opened this descriptor, in the table that both processes share.
    let pidfd = unsafe { OwnedFd::from_raw_fd(passage.pidfd) };
    Ok(Child { pid: Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?, pidfd })
}

/// Room for whatever builds a sandbox; only what is used costs memory.
const CHILD_STACK: usize = 8 << 20;

/// What the process in between works with.
struct Passage<F> {
    outer: [libc::c_int; 2],
    args: CloneArgs,
    pidfd: libc::c_int,
    outcome: Result<i32, i32>,
    child: Option<F>,
}

impl<F: FnOnce()> Passage<F> {
    /// Makes the process in between and returns when it has ended.
    fn go_through(&mut self, stack: &Stack) -> io::Result<Pid> {
        extern "C" fn run<F: FnOnce()>(passage: *mut libc::c_void) -> libc::c_int {
            // SAFETY: `go_through` gave it a passage that nobody else touches until this process has ended.
            let passage = unsafe { &mut *passage.cast::<Passage<F>>() };
            passage.outcome = passage.fork();
            0
        }
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::SIGCHLD;
        let passage = std::ptr::from_mut(self).cast();
        // SAFETY: this process stands still until the other has ended, which runs on a stack of its own.
        let pid = unsafe { libc::clone(run::<F>, stack.top(), flags, passage) };
        made(pid)
    }

    /// In the process in between.
    fn fork(&mut self) -> Result<i32, i32> {
        let failed = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        for namespace in self.outer {
            // SAFETY: changes only which namespaces this process is in.
            if unsafe { libc::setns(namespace, 0) } != 0 {
                return Err(failed());
            }
        }
        self.args.pidfd = (&raw mut self.pidfd).addr() as u64;
        let size = size_of::<CloneArgs>();
        // SAFETY: the arguments describe a fork (no shared memory, no new stack); they outlive the call, and this is
        // the only thread that runs, so the copy is whole.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw mut self.args, size) } {
            0 => {
                if let Some(child) = self.child.take() {
                    child();
                }
                exit_now(125)
            }
            pid if pid > 0 => i32::try_from(pid).map_err(|_| libc::EIO),
            _ => Err(failed()),
        }
    }
}

/// Memory for the stack of another process, below which nothing can be written.
struct Stack {
    start: *mut libc::c_void,
    size: usize,
}

impl Stack {
    fn new(size: usize) -> io::Result<Stack> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, wherever the kernel has room.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Stack { start, size };
        // SAFETY: the first page of what was just mapped.
        match unsafe { libc::mprotect(start, 4096, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn top(&self) -> *mut libc::c_void {
        self.start.wrapping_byte_add(self.size)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody runs on it any more.
        unsafe { libc::munmap(self.start, self.size) };
    }
}

/// Forks under the filter of a sandbox, which knows neither `clone3` nor `unshare`.
///
/// The caller is PID 1 of a sandbox or a child of it that [`fork_inside`] made: programs of one thread.
pub fn fork_inside() -> io::Result<Option<Pid>> {
    // SAFETY: the process has one thread (see above), so the copy is whole and may run any code.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid => made(pid).map(Some),
    }
}

/// Moves this process into new namespaces.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    let flags = libc::c_int::try_from(namespaces.0).map_err(io::Error::other)?;
    // SAFETY: changes only which namespaces this process is in.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel kill this process when the thread that made it ends.
pub fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
}

/// Whether others of the same user may look into this process (and write its maps).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dumpable {
    /// They may.
    Yes,
    /// They may not, and no core is written.
    No,
}

/// See [`Dumpable`].
pub fn set_dumpable(dumpable: Dumpable) -> io::Result<()> {
    let behavior = match dumpable {
        Dumpable::Yes => rustix::process::DumpableBehavior::Dumpable,
        Dumpable::No => rustix::process::DumpableBehavior::NotDumpable,
    };
    Ok(rustix::process::set_dumpable_behavior(behavior)?)
}

/// Ends this process at once: no destructors, no buffers. For children of [`fork`].
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` never returns and touches nothing of ours.
    unsafe { libc::_exit(code) }
}

/// A process that only stands for its user namespace, whose ids are still to be written.
///
/// It shares the memory of this process, so that it costs no copy of it, and does nothing but wait on a stack of its own.
pub(crate) fn stand_in_user_namespace() -> io::Result<StandIn> {
    extern "C" fn wait(parent: *mut libc::c_void) -> libc::c_int {
        // SAFETY: nothing but a setting of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: only asks. A parent that ended before the setting was made has another for successor.
        let now = unsafe { libc::getppid() };
        while usize::try_from(now) == Ok(parent.addr()) {
            // SAFETY: only waits; no handler ever runs in this process, so that it touches nothing it shares.
            unsafe { libc::pause() };
        }
        exit_now(0)
    }
    let stack = Stack::new(STAND_IN_STACK)?;
    let own = usize::try_from(rustix::process::getpid().as_raw_nonzero().get()).map_err(io::Error::other)?;
    let parent = std::ptr::without_provenance_mut(own);
    let flags = libc::CLONE_VM | libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: `wait` neither returns nor unwinds; its stack goes only after the process has been waited for.
    let pid = unsafe { libc::clone(wait, stack.top(), flags, parent) };
    Ok(StandIn { pid: made(pid)?, _stack: stack })
}

/// What `clone(2)` of the C library gave back: the process it made, or -1 and the reason beside it.
fn made(pid: libc::pid_t) -> io::Result<Pid> {
    let pid = if pid > 0 { Pid::from_raw(pid) } else { None };
    pid.ok_or_else(io::Error::last_os_error)
}

const STAND_IN_STACK: usize = 32 << 10;

/// See [`stand_in_user_namespace`]. Ends when dropped.
pub(crate) struct StandIn {
    pub(crate) pid: Pid,
    _stack: Stack,
}

impl StandIn {
    /// Ends it without waiting for that.
    pub(crate) fn end(self) -> Ending {
        let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
        Ending(self)
    }
}

/// A process that is ending; dropping this waits until it has.
#[must_use]
pub struct Ending(#[expect(dead_code, reason = "dropping it waits")] StandIn);

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
        let wait = || rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        let _ = rustix::io::retry_on_intr(wait);
    }
}

/// Enters a user namespace, with every power in it.
pub(crate) fn enter_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = rustix::thread::LinkNameSpaceType::User;
    Ok(rustix::thread::move_into_link_name_space(namespace, Some(kind))?)
}

impl Child {
    /// Kills it. Fine if it has ended already.
    pub fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    /// Waits until it has ended.
    pub fn wait(&self) -> io::Result<WaitStatus> {
        loop {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(status),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `unshare(CLONE_THREAD)` does nothing in a process with one thread and is refused in one with more.
pub(crate) fn assert_single_threaded() -> io::Result<()> {
    // SAFETY: see above; it never changes anything.
    if unsafe { libc::unshare(libc::CLONE_THREAD) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
