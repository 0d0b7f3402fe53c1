//! Starting, signalling and finding programs.

use crate::copies;
use airlock_linux::{
    signal,
    spawn::{self, Failed, Program, Report, Running},
};
use airlock_protocol::{
    copy::CopyJob,
    guest::{End, FromGuest, Start, Step},
};
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The programs started on request; everything else inside is only reaped.
#[derive(Default)]
pub(crate) struct Programs {
    started: Vec<Started>,
}

struct Started {
    process: u32,
    running: Running,
}

impl Programs {
    /// Starts one and says how that went.
    pub(crate) fn start(&mut self, start: &Start, stdio: Vec<OwnedFd>) -> FromGuest {
        let process = start.process;
        let refused =
            |failed: Failed| FromGuest::NotStarted { process, step: step(failed.step), errno: failed.errno };
        let program = match program(start, stdio) {
            Ok(program) => program,
            Err(failed) => return refused(failed),
        };
        match spawn::start(&program) {
            Ok(running) => {
                let pid = u32::try_from(running.program.as_raw_nonzero().get()).unwrap_or(0);
                self.started.push(Started { process, running });
                FromGuest::Started { process, pid }
            }
            Err(failed) => refused(failed),
        }
    }

    /// Starts to copy files, in a process of its own.
    pub(crate) fn copy(&mut self, job: &CopyJob, pipes: Vec<OwnedFd>) -> FromGuest {
        let process = job.process;
        match copies::start(job, pipes) {
            Ok(child) => {
                let running = Running { child, program: child, reports: None };
                self.started.push(Started { process, running });
                FromGuest::Started { process, pid: u32::try_from(child.as_raw_nonzero().get()).unwrap_or(0) }
            }
            Err(err) => {
                let errno = err.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
                FromGuest::NotStarted { process, step: Step::Fork, errno }
            }
        }
    }

    /// Sends a signal to a program, or to its whole group where a terminal would have done so.
    pub(crate) fn signal(&self, process: u32, number: i32) {
        let Some(started) = self.started.iter().find(|started| started.process == process) else { return };
        let pid = started.running.program.as_raw_nonzero().get();
        let target = if signal::TO_GROUP.contains(&number) { -pid } else { pid };
        // It may have ended a moment ago; its end is reported in any case.
        let _ = signal::send(target, number);
    }

    /// The descriptors on which session leaders report, with their programs' numbers.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (u32, &OwnedFd)> {
        self.started.iter().filter_map(|started| Some((started.process, started.running.reports.as_ref()?)))
    }

    /// What to say after a child changed state; `None` for orphans and for leaders whose program has ended.
    pub(crate) fn child_changed(&mut self, pid: i32, report: Report) -> Option<FromGuest> {
        let is_it = |started: &&Started| started.running.child.as_raw_nonzero().get() == pid;
        let started = self.started.iter().find(is_it)?;
        let process = started.process;
        let last =
            started.running.reports.as_ref().and_then(|reports| Report::read(reports.as_fd()).ok().flatten());
        Some(self.reported(process, last.unwrap_or(report)))
    }

    /// What to say of a program after a report; one that ended is forgotten.
    pub(crate) fn reported(&mut self, process: u32, report: Report) -> FromGuest {
        match report {
            Report::Stopped(signal) => return FromGuest::Stopped { process, signal },
            Report::Exited(_) | Report::Signalled(_) => {
                self.started.retain(|started| started.process != process);
            }
        }
        FromGuest::Ended { process, end: end(report), alone: spawn::is_childless() }
    }
}

fn end(report: Report) -> End {
    match report {
        Report::Exited(code) => End::Exited { code: u8::try_from(code & 0xff).unwrap_or(u8::MAX) },
        Report::Signalled(signal) | Report::Stopped(signal) => End::Signalled { signal },
    }
}
fn program(start: &Start, stdio: Vec<OwnedFd>) -> Result<Program, Failed> {
    let invalid = |_| Failed { step: spawn::Step::Find, errno: rustix::io::Errno::INVAL.raw_os_error() };
    let text = |text: &String| CString::new(text.as_bytes());
    let stdio: [OwnedFd; 3] = stdio.try_into().map_err(|_| invalid(()))?;
    let name = start.command.first().ok_or_else(|| invalid(()))?;
    let terminal = if start.terminal { stdio.iter().position(rustix::termios::isatty) } else { None };
    Ok(Program {
        files: candidates(name, &start.env).map_err(|_| invalid(()))?,
        arguments: start.command.iter().map(text).collect::<Result<_, _>>().map_err(|_| invalid(()))?,
        environment: start.env.iter().map(text).collect::<Result<_, _>>().map_err(|_| invalid(()))?,
        workdir: CString::new(start.workdir.as_bytes()).map_err(|_| invalid(()))?,
        uid: start.user.uid,
        gid: start.user.gid,
        groups: start.user.groups.clone(),
        stdio,
        terminal,
        nofile: start.nofile,
    })
}

/// A name with a slash is a path; any other is looked for in `PATH`.
fn candidates(name: &str, env: &[String]) -> io::Result<Vec<CString>> {
    if name.contains('/') {
        return Ok(vec![CString::new(name)?]);
    }
    let path = env.iter().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or("/usr/bin:/bin");
    let file = |dir: &str| CString::new(format!("{}/{name}", if dir.is_empty() { "." } else { dir }));
    Ok(path.split(':').map(file).collect::<Result<_, _>>()?)
}

fn step(step: spawn::Step) -> Step {
    match step {
        spawn::Step::Fork => Step::Fork,
        spawn::Step::Terminal => Step::Terminal,
        spawn::Step::User => Step::User,
        spawn::Step::Workdir => Step::Workdir,
        spawn::Step::Limit => Step::Limit,
        spawn::Step::Find => Step::Find,
        spawn::Step::Exec => Step::Exec,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_slash_is_looked_for_in_path() {
        let found = candidates("ls", &["HOME=/root".into(), "PATH=/bin::/x".into()]).unwrap();
        assert_eq!(found, [c"/bin/ls", c"./ls", c"/x/ls"].map(CString::from));
    }

    #[test]
    fn an_empty_name_finds_nothing_but_directories() {
        assert_eq!(candidates("a/b", &[]).unwrap(), [CString::from(c"a/b")]);
        assert!(candidates("a\0b", &[]).is_err());
    }
}
