//! The command as a job of its shell, and processes that outlive it.
//!
//! ```no_run
//! use airlock_linux::job::{Detached, spawn_detached};
//! use std::{fs::File, os::fd::AsFd};
//! let null = File::open("/dev/null")?;
//! let pid = spawn_detached(&Detached {
//!     program: c"/bin/sleep",
//!     arguments: &[c"sleep".into(), c"1".into()],
//!     environment: &[],
//!     descriptors: &[null.as_fd(), null.as_fd(), null.as_fd()],
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    ffi::{CStr, CString},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

/// The same number in glibc and musl; not in every version of the bindings.
const SETSID: libc::c_short = 0x80;

/// A program to start in a session of its own: no terminal, directory `/`, no signal blocked or ignored.
#[derive(Debug)]
pub struct Detached<'a> {
    /// Path of the program.
    pub program: &'a CStr,
    /// All its arguments, its own name first.
    pub arguments: &'a [CString],
    /// Its whole environment, `NAME=value`.
    pub environment: &'a [CString],
    /// Its descriptors 0, 1, 2 and so on. Whatever else is open and not closed on exec it inherits too.
    pub descriptors: &'a [BorrowedFd<'a>],
}

/// Starts it and gives its pid. Costs no copy of this process's memory (vfork semantics).
pub fn spawn_detached(program: &Detached<'_>) -> io::Result<i32> {
    // Out of the way of the numbers they are about to get.
    let above = i32::try_from(program.descriptors.len()).map_err(io::Error::other)?.max(10);
    let sources: Vec<OwnedFd> = program
        .descriptors
        .iter()
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, above))
        .collect::<Result<_, _>>()?;
    let mut actions = Actions::new()?;
    for (number, source) in (0..).zip(&sources) {
        actions.duplicate(source, number)?;
    }
    actions.enter_root()?;
    let attributes = Attributes::of_new_session()?;
    let arguments = pointers(program.arguments);
    let environment = pointers(program.environment);
    let mut pid = 0;
    // SAFETY: every pointer is to an initialised value that lives until the call returns; both arrays end with null.
    let failed = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.program.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            arguments.as_ptr(),
            environment.as_ptr(),
        )
    };
    outcome(failed).map(|()| pid)
}

/// How far others go first: a tenth of their share is left. With less, what is to be removed would pile up on a busy host.
const WAY: i32 = 10;

/// Lets others go first wherever there is not enough of the processor for all: for work that nobody waits for. For good.
pub fn give_way() {
    // Where the kernel schedules sessions and not processes (sched(7), "The autogroup feature"), only the session's own
    // counts. A kernel without it, or one that is asked too often, refuses.
    let _ = std::fs::write("/proc/self/autogroup", WAY.to_string());
    let _ = rustix::process::setpriority_process(None, WAY);
}

/// The same for another process, so far as it may be told so.
pub fn let_go_behind(pid: rustix::process::Pid) {
    let _ = rustix::process::setpriority_process(Some(pid), WAY);
}

/// Whether this process was started with a signal ignored (`nohup`, background jobs of a script): then the person
/// does not want it to have an effect.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; the old one is written where there is room for it.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded and has filled it.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Whether somebody could continue this process after a stop: its parent is in the same session, as a shell is.
pub fn can_be_continued() -> bool {
    let Some(parent) = rustix::process::getppid() else { return false };
    let session = rustix::process::getsid(None);
    let same_session = session.is_ok() && rustix::process::getsid(Some(parent)).ok() == session.ok();
    let own_group = rustix::process::getpgrp();
    same_session && rustix::process::getpgid(Some(parent)).is_ok_and(|group| group != own_group)
}

/// Stops the rest of this process's group as Ctrl-Z would, then this process. Returns when it was continued.
pub fn stop() -> io::Result<()> {
    let group = rustix::process::getpgrp();
    let own = rustix::process::getpid();
    rustix::process::kill_process_group(group, rustix::process::Signal::TSTP)?;
    Ok(rustix::process::kill_process(own, rustix::process::Signal::STOP)?)
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> io::Result<Actions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: `init` fills the value.
        outcome(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: filled above.
        Ok(Actions(unsafe { actions.assume_init() }))
    }

    fn duplicate(&mut self, source: &OwnedFd, number: i32) -> io::Result<()> {
        // SAFETY: initialised; the numbers are only recorded.
        outcome(unsafe {
            libc::posix_spawn_file_actions_adddup2(&raw mut self.0, source.as_raw_fd(), number)
        })
    }

    fn enter_root(&mut self) -> io::Result<()> {
        // SAFETY: initialised; the path is copied.
        outcome(unsafe { libc::posix_spawn_file_actions_addchdir_np(&raw mut self.0, c"/".as_ptr()) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised, and never used again.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn of_new_session() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: `init` fills the value.
        outcome(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: filled above.
        let mut attributes = Attributes(unsafe { attributes.assume_init() });
        attributes.no_signal_blocked()?;
        attributes.every_signal_default()?;
        let masks = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        let flags = libc::c_short::try_from(masks).map_err(io::Error::other)? | SETSID;
        // SAFETY: initialised.
        outcome(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) })?;
        Ok(attributes)
    }

    fn no_signal_blocked(&mut self) -> io::Result<()> {
        let mut none = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` fills the set.
        unsafe { libc::sigemptyset(none.as_mut_ptr()) };
        // SAFETY: both are initialised.
        outcome(unsafe { libc::posix_spawnattr_setsigmask(&raw mut self.0, none.as_ptr()) })
    }

    fn every_signal_default(&mut self) -> io::Result<()> {
        let mut every = MaybeUninit::uninit();
        // SAFETY: `sigfillset` fills the set.
        unsafe { libc::sigfillset(every.as_mut_ptr()) };
        // SAFETY: both are initialised.
        outcome(unsafe { libc::posix_spawnattr_setsigdefault(&raw mut self.0, every.as_ptr()) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised, and never used again.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

fn pointers(texts: &[CString]) -> Vec<*mut libc::c_char> {
    texts.iter().map(|text| text.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

fn outcome(number: libc::c_int) -> io::Result<()> {
    if number == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(number)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read, os::fd::AsFd};

    #[test]
    fn a_detached_program_has_its_own_session_the_root_directory_and_only_what_it_was_given() {
        let (mut read, write) = io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let script =
            c"cd . && pwd && cut -d' ' -f6 /proc/self/stat && echo $$ $KEY $HOME && readlink /proc/self/fd/3";
        let pid = spawn_detached(&Detached {
            program: c"/bin/sh",
            arguments: &[c"sh".into(), c"-c".into(), script.into()],
            environment: &[c"KEY=value".into(), c"PATH=/usr/bin:/bin".into()],
            descriptors: &[null.as_fd(), write.as_fd(), write.as_fd(), null.as_fd()],
        })
        .unwrap();
        drop(write);

        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();

        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        let pid = pid.as_raw_nonzero();
        assert_eq!(said, format!("/\n{pid}\n{pid} value\n/dev/null\n"));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let missing = Detached { program: c"/no/such", arguments: &[], environment: &[], descriptors: &[] };
        assert_eq!(spawn_detached(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn sigpipe_is_ignored_by_every_rust_program_and_sigterm_is_not() {
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGTERM));
    }
}
