//! Signals as a descriptor, so that a loop can wait for them beside everything else.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// A blocked set of signals, read one by one.
#[derive(Debug)]
pub struct Signals(OwnedFd);

/// One signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
}

impl Signals {
    /// Blocks these signals in this process and collects them instead.
    pub fn collect(numbers: &[i32]) -> io::Result<Signals> {
        let set = set_of(numbers);
        // SAFETY: `set` is an initialised signal set.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it for us.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that arrived, if any.
    pub fn take(&self) -> io::Result<Option<Arrived>> {
        let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(_) => {
                let [a, b, c, d, ..] = bytes;
                let number = u32::from_ne_bytes([a, b, c, d]);
                Ok(i32::try_from(number).ok().map(|signal| Arrived { signal }))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(err) => Err(err.into()),
        }
    }
}

impl std::os::fd::AsFd for Signals {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// Undoes for a new program what this one changed: no signal is blocked, SIGPIPE ends it again.
pub fn reset_for_program() {
    let none = set_of(&[]);
    // SAFETY: an initialised, empty set; failure is impossible with these arguments.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    // SAFETY: the default disposition runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Undoes for a copy of this program what was done in it for the first: no signal is blocked, and none is ignored or
/// caught but those that every program of Rust ignores (SIGPIPE) or catches to tell of its own faults.
pub(crate) fn reset_for_copy() {
    const KEPT: [libc::c_int; 3] = [libc::SIGPIPE, libc::SIGSEGV, libc::SIGBUS];
    let none = set_of(&[]);
    // SAFETY: an initialised, empty set; failure is impossible with these arguments.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    for signal in (1..=LAST).filter(|signal| !KEPT.contains(signal)) {
        // SAFETY: the default disposition runs no code of ours. Those that cannot be changed stay as they are.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The last signal there is.
const LAST: libc::c_int = 64;

/// Ignores a signal in this process.
pub fn ignore(signal: i32) {
    // SAFETY: ignoring runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends a signal to a process, or with a negative number to a process group. `kill(-1)` is refused here.
pub fn send(target: i32, signal: i32) -> io::Result<()> {
    if target == -1 || target == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: sending a signal touches no memory.
    if unsafe { libc::kill(target, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to every process this one may signal, itself excepted: for PID 1 of a PID namespace only.
pub fn send_to_all(signal: i32) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "only PID 1 may signal every process"));
    }
    // SAFETY: sending a signal touches no memory, and the namespace bounds whom it reaches.
    if unsafe { libc::kill(-1, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The name of a signal (`SIGTERM`) or `signal 40`.
pub fn name(signal: i32) -> String {
    NAMES
        .iter()
        .find(|(_, number)| *number == signal)
        .map_or_else(|| format!("signal {signal}"), |(name, _)| format!("SIG{name}"))
}

/// The signal a person means: `TERM`, `SIGTERM`, `term` or `15`.
pub fn parse(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(name, _)| *name == short).map(|(_, number)| *number)
}

/// Asks a program to end.
pub const TERM: i32 = libc::SIGTERM;
/// Ends a program.
pub const KILL: i32 = libc::SIGKILL;
/// Tells a program that its terminal is gone.
pub const HUP: i32 = libc::SIGHUP;
/// Signals that a terminal (or the loss of it) sends to the whole foreground group.
pub const TO_GROUP: [i32; 6] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH];

const NAMES: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

fn set_of(numbers: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised above.
    let mut set = unsafe { set.assume_init() };
    for number in numbers {
        // SAFETY: `set` is initialised; an invalid number is refused without effect.
        unsafe { libc::sigaddset(&raw mut set, *number) };
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_known_by_name_and_number() {
        let parsed: Vec<_> = ["TERM", "sigkill", "15", "0", "65", "nope"].map(parse).into();
        assert_eq!(parsed, [Some(15), Some(9), Some(15), None, None, None]);
    }

    #[test]
    fn nobody_but_pid_1_signals_everybody() {
        assert!(send_to_all(0).is_err());
        assert!(send(-1, 0).is_err());
    }
}
