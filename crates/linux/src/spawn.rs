//! Starting a program from PID 1: what runs between fork and exec.
//!
//! A program with a terminal gets a session leader above it, a fork of this process that only waits. Without one
//! its process group would be orphaned, and the kernel ignores Ctrl-Z for those.

use crate::{clone, fd, signal};
use rustix::process::{Pid, WaitOptions, WaitStatus};
use std::{
    ffi::{CString, c_char},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// A program to start.
#[derive(Debug)]
pub struct Program {
    /// Files to try, in the order of `PATH`.
    pub files: Vec<CString>,
    /// Arguments, the program's own name first.
    pub arguments: Vec<CString>,
    /// The whole environment.
    pub environment: Vec<CString>,
    /// Directory to start in.
    pub workdir: CString,
    /// User, group and supplementary groups to become.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// See `uid`.
    pub groups: Vec<u32>,
    /// Standard streams.
    pub stdio: [OwnedFd; 3],
    /// Which standard stream is the controlling terminal.
    pub terminal: Option<usize>,
    /// Open files it may have.
    pub nofile: Option<u64>,
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    /// The child to wait for: the program, or the session leader above it.
    pub child: Pid,
    /// The program.
    pub program: Pid,
    /// Where a session leader reports: [`Report`]s, then the end.
    pub reports: Option<OwnedFd>,
}

/// A start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// What was being done.
    pub step: Step,
    /// The error number.
    pub errno: i32,
}

/// What was being done when a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Making the process.
    Fork = 1,
    /// Taking the terminal.
    Terminal,
    /// Becoming the user.
    User,
    /// Entering the directory.
    Workdir,
    /// Setting a limit.
    Limit,
    /// Finding the program.
    Find,
    /// Executing it.
    Exec,
}

/// What a session leader says of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Stopped by this signal.
    Stopped(i32),
    /// Returned this code.
    Exited(i32),
    /// Ended by this signal.
    Signalled(i32),
}

const REPORT_SIZE: usize = 8;

/// Starts a program. Returns when it has been executed, or says what failed. For PID 1 of a sandbox only.
pub fn start(program: &Program) -> Result<Running, Failed> {
    let failed = |step| move |err: io::Error| Failed { step, errno: err.raw_os_error().unwrap_or(libc::EIO) };
    let (mut outcome, tell) = io::pipe().map_err(failed(Step::Fork))?;
    let (reports, report) = match program.terminal {
        None => (None, None),
        Some(_) => {
            let (read, write) = io::pipe().map_err(failed(Step::Fork))?;
            (Some(OwnedFd::from(read)), Some(OwnedFd::from(write)))
        }
    };
    let Some(child) = clone::fork_inside().map_err(failed(Step::Fork))? else {
        match report {
            None => become_program(program, tell.into()),
            Some(report) => lead_session(program, tell.into(), &report),
        }
    };
    drop((tell, report));
    let mut said = Vec::new();
    outcome.read_to_end(&mut said).map_err(failed(Step::Fork))?;
    let (program_pid, failure) = read_outcome(&said);
    match failure {
        None => Ok(Running { child, program: program_pid.unwrap_or(child), reports }),
        Some(failure) => {
            // The child ends by itself right after it told us; PID 1 reaps it here so that nobody else sees it.
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
            Err(failure)
        }
    }
}

impl Report {
    /// The next report on a leader's descriptor; `None` when it is gone.
    pub fn read(reports: BorrowedFd<'_>) -> io::Result<Option<Report>> {
        let mut bytes = [0u8; REPORT_SIZE];
        match rustix::io::read(reports, &mut bytes)? {
            REPORT_SIZE => Ok(Report::from_bytes(bytes)),
            _ => Ok(None),
        }
    }

    fn from_bytes(bytes: [u8; REPORT_SIZE]) -> Option<Report> {
        let [kind, _, _, _, a, b, c, d] = bytes;
        let value = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            b's' => Some(Report::Stopped(value)),
            b'x' => Some(Report::Exited(value)),
            b'k' => Some(Report::Signalled(value)),
            _ => None,
        }
    }

    fn to_bytes(self) -> [u8; REPORT_SIZE] {
        let (kind, value) = match self {
            Report::Stopped(signal) => (b's', signal),
            Report::Exited(code) => (b'x', code),
            Report::Signalled(signal) => (b'k', signal),
        };
        let [a, b, c, d] = value.to_ne_bytes();
        [kind, 0, 0, 0, a, b, c, d]
    }
}

/// Whether this process has no child, dead or alive.
pub fn is_childless() -> bool {
    let options = rustix::process::WaitIdOptions::EXITED
        | rustix::process::WaitIdOptions::NOHANG
        | rustix::process::WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(rustix::process::WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

/// Becomes a user: groups while still root, the user last. Where the kernel forbids setting groups (a single id is
/// mapped), having none to set is fine.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: pointer and length are of one live slice.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    let refused = io::Error::last_os_error();
    if done < 0 && !(groups.is_empty() && refused.raw_os_error() == Some(libc::EPERM)) {
        return Err(refused);
    }
    // SAFETY: changes only this process's ids.
    if unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Runs `what` with other ids for files: what it makes belongs to them, and root's power over files is gone meanwhile.
pub fn with_file_ids<T>(uid: u32, gid: u32, what: impl FnOnce() -> T) -> T {
    let (old_uid, old_gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: changes only which ids this thread has for files.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: as above.
    unsafe { libc::setfsuid(uid) };
    let result = what();
    // SAFETY: as above.
    unsafe { libc::setfsuid(old_uid) };
    // SAFETY: as above.
    unsafe { libc::setfsgid(old_gid) };
    result
}

/// Becomes the guest: descriptor 3 is its link, its standard streams are the sandbox's `/dev/null`, everything else
/// closes. Returns only on failure.
pub fn execute_guest(guest: OwnedFd, link: OwnedFd) -> io::Error {
    execute_guest_with(guest, link, Vec::new())
}

/// The same, and it finds `further` behind its link.
pub fn execute_guest_with(guest: OwnedFd, link: OwnedFd, further: Vec<OwnedFd>) -> io::Error {
    let Err(err) = try_execute_guest(guest, link, further);
    err
}

fn try_execute_guest(
    guest: OwnedFd,
    link: OwnedFd,
    further: Vec<OwnedFd>,
) -> io::Result<std::convert::Infallible> {
    let guest = rustix::io::fcntl_dupfd_cloexec(guest, OUT_OF_THE_WAY)?;
    let mut kept = vec![rustix::io::fcntl_dupfd_cloexec(link, OUT_OF_THE_WAY)?];
    for one in further {
        kept.push(rustix::io::fcntl_dupfd_cloexec(one, OUT_OF_THE_WAY)?);
    }
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    for target in 0..3 {
        duplicate_onto(null.as_fd(), target)?;
    }
    let first_free = place(&kept, GUEST_LINK)?;
    fd::close_on_exec_from(first_free)?;
    let (arguments, environment) =
        ([c"airlock-guest".as_ptr(), std::ptr::null()], [std::ptr::null::<c_char>()]);
    let (guest, empty) = (guest.as_raw_fd(), c"".as_ptr());
    // SAFETY: NUL-terminated strings and null-terminated arrays that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            guest,
            empty,
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(io::Error::last_os_error())
}

/// Puts descriptors under the numbers from `first` on, where the next program finds them; gives the number behind them.
/// All of them lie at [`OUT_OF_THE_WAY`] or above.
pub(crate) fn place(descriptors: &[OwnedFd], first: i32) -> io::Result<i32> {
    let mut number = first;
    for one in descriptors {
        duplicate_onto(one.as_fd(), number)?;
        number += 1;
    }
    Ok(number)
}

/// Above every number that a program finds descriptors under.
pub(crate) const OUT_OF_THE_WAY: i32 = 32;

/// The number under which the guest finds its link.
pub const GUEST_LINK: i32 = 3;

/// Turns a wait status into a report; `None` for a mere continuation.
pub fn report_of(status: WaitStatus) -> Option<Report> {
    status
        .stopping_signal()
        .map(Report::Stopped)
        .or_else(|| status.exit_status().map(Report::Exited))
        .or_else(|| status.terminating_signal().map(Report::Signalled))
}

/// What the child wrote before exec closed the pipe: `p` + pid from a leader, `f` + step + errno on failure.
fn read_outcome(said: &[u8]) -> (Option<Pid>, Option<Failed>) {
    let (mut pid, mut failure) = (None, None);
    for record in said.chunks_exact(REPORT_SIZE) {
        let [kind, step, _, _, a, b, c, d] = *record else { continue };
        let value = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            b'p' => pid = Pid::from_raw(value),
            b'f' => failure = Some(Failed { step: Step::from_number(step), errno: value }),
            _ => {}
        }
    }
    (pid, failure)
}

impl Step {
    fn from_number(number: u8) -> Step {
        let all = [Step::Terminal, Step::User, Step::Workdir, Step::Limit, Step::Find, Step::Exec];
        all.into_iter().find(|step| *step as u8 == number).unwrap_or(Step::Fork)
    }
}

fn lead_session(program: &Program, tell: OwnedFd, report: &OwnedFd) -> ! {
    let led = take_terminal(program).and_then(|()| match clone::fork_inside() {
        Ok(Some(child)) => Ok(child),
        Ok(None) => become_program(program, rustix::io::dup(&tell).unwrap_or_else(|_| clone::exit_now(125))),
        Err(err) => Err((Step::Fork, err)),
    });
    let child = match led {
        Ok(child) => child,
        Err((step, err)) => fail(&tell, step, &err),
    };
    say(&tell, b'p', 0, child.as_raw_nonzero().get());
    drop(tell);
    wait_as_leader(child, report)
}

fn wait_as_leader(child: Pid, report: &OwnedFd) -> ! {
    for ignored in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        signal::ignore(ignored);
    }
    close_all_but(report);
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => {
                let Some(what) = report_of(status) else { continue };
                let _ = rustix::io::write(report, &what.to_bytes());
                if !matches!(what, Report::Stopped(_)) {
                    clone::exit_now(0);
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => clone::exit_now(125),
        }
    }
}

/// A leader holds nothing of the guest's: neither its link nor the program's streams.
fn close_all_but(keep: &OwnedFd) {
    let number = libc::c_uint::try_from(keep.as_raw_fd()).unwrap_or(0);
    for (first, last) in [(0, number.saturating_sub(1)), (number + 1, libc::c_uint::MAX)] {
        // SAFETY: this process runs no code that uses another descriptor from here on.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn take_terminal(program: &Program) -> Result<(), (Step, io::Error)> {
    let terminal = |err: rustix::io::Errno| (Step::Terminal, io::Error::from(err));
    rustix::process::setsid().map_err(terminal)?;
    if let Some(tty) = program.terminal.and_then(|stream| program.stdio.get(stream)) {
        rustix::process::ioctl_tiocsctty(tty).map_err(terminal)?;
        // The terminal belongs to the user of the program; in a sandbox with a single id it does already.
        let _ = rustix::fs::fchown(tty, Some(rustix::fs::Uid::from_raw(program.uid)), None);
    }
    Ok(())
}

fn become_program(program: &Program, tell: OwnedFd) -> ! {
    let (step, err) = match prepare(program) {
        Err(failure) => failure,
        Ok(()) => execute(program),
    };
    fail(&tell, step, &err)
}

fn prepare(program: &Program) -> Result<(), (Step, io::Error)> {
    let at = |step| move |err: rustix::io::Errno| (step, io::Error::from(err));
    join_group(program).map_err(at(Step::Terminal))?;
    for (target, stream) in program.stdio.iter().enumerate() {
        let target = i32::try_from(target).map_err(|_| (Step::Fork, io::ErrorKind::InvalidInput.into()))?;
        duplicate_onto(stream.as_fd(), target).map_err(|err| (Step::Fork, err))?;
    }
    fd::close_on_exec_from(3).map_err(|err| (Step::Fork, err))?;
    if let Some(most) = program.nofile {
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).map_err(at(Step::Limit))?;
    }
    become_user(program.uid, program.gid, &program.groups).map_err(|err| (Step::User, err))?;
    rustix::process::chdir(program.workdir.as_c_str()).map_err(at(Step::Workdir))?;
    signal::reset_for_program();
    Ok(())
}

/// Under a leader the program leads the terminal's foreground group; without a terminal, a session of its own.
fn join_group(program: &Program) -> rustix::io::Result<()> {
    let Some(tty) = program.terminal.and_then(|stream| program.stdio.get(stream)) else {
        return rustix::process::setsid().map(drop);
    };
    rustix::process::setpgid(None, None)?;
    signal::ignore(libc::SIGTTOU);
    let done = rustix::termios::tcsetpgrp(tty, rustix::process::getpid());
    // SAFETY: the default disposition runs no code of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_DFL) };
    done
}

pub(crate) fn duplicate_onto(stream: BorrowedFd<'_>, target: i32) -> io::Result<()> {
    // SAFETY: the process is about to be another program; nothing in it owns the numbers that one finds.
    if unsafe { libc::dup2(stream.as_raw_fd(), target) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Tries the files in turn, as `execvp` does; returns only with why none could be executed.
fn execute(program: &Program) -> (Step, io::Error) {
    let arguments = pointers(&program.arguments);
    let environment = pointers(&program.environment);
    let mut worst = (Step::Find, io::Error::from_raw_os_error(libc::ENOENT));
    for file in &program.files {
        // SAFETY: all three are NUL-terminated strings and null-terminated arrays that outlive the call.
        unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        let err = io::Error::last_os_error();
        match err.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => worst = (Step::Exec, err),
            _ => return (Step::Exec, err),
        }
    }
    worst
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn fail(tell: &OwnedFd, step: Step, err: &io::Error) -> ! {
    say(tell, b'f', step as u8, err.raw_os_error().unwrap_or(libc::EIO));
    clone::exit_now(125)
}

fn say(tell: &OwnedFd, kind: u8, step: u8, value: i32) {
    let [a, b, c, d] = value.to_ne_bytes();
    let Ok(tell) = rustix::io::dup(tell) else { return };
    let _ = std::fs::File::from(tell).write_all(&[kind, step, 0, 0, a, b, c, d]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_pipe() {
        for report in [Report::Stopped(20), Report::Exited(7), Report::Signalled(9)] {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
    }

    #[test]
    fn a_failure_is_read_with_its_step() {
        let said = [b'f', Step::Exec as u8, 0, 0, 13, 0, 0, 0];
        assert_eq!(read_outcome(&said), (None, Some(Failed { step: Step::Exec, errno: 13 })));
    }
}
