//! The pipe of a copy, and who is at its other end: the guest of a running sandbox, or of one that is opened for the visit.

use crate::{commands::lifecycle, failure::Failure, keeper};
use airlock_doors::control::client::{Client, Error, Received};
use airlock_engine::store::Sandbox;
use airlock_linux::fd;
use airlock_protocol::{
    control::{Begin, Owner, Reply, Request, Ssh},
    copy::{Copy, Report},
    guest::End,
    secret::Values,
    spec::DiskBy,
};
use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
};

/// Bytes that a pipe holds, where the kernel allows so many.
const PIPE: usize = 1 << 20;
/// Most bytes of what the guest says at the end.
const MOST_SAID: u64 = 64 * 1024;

/// Which way files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Into the sandbox.
    Inward,
    /// Out of it.
    Outward,
}

/// A copy under way.
pub(super) struct Wire {
    client: Client,
    archive: Option<File>,
    report: File,
}

impl Wire {
    /// Asks the guest for a copy. The guest has begun when this returns.
    pub(super) fn open(sandbox: &Sandbox, copy: &Copy, direction: Direction) -> Result<Wire, Failure> {
        let piped = |err: io::Error| Failure::because("could not make a pipe", &err);
        let (read, write) = io::pipe().map_err(piped)?;
        // Only faster.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE);
        let (ours, theirs): (OwnedFd, OwnedFd) = match direction {
            Direction::Inward => (write.into(), read.into()),
            Direction::Outward => (read.into(), write.into()),
        };
        let (report, their_report) = io::pipe().map_err(piped)?;
        let report = OwnedFd::from(report);
        fd::set_nonblocking(report.as_fd()).map_err(piped)?;
        let mut client = connect(sandbox)?;
        client.send(&Request::Copy(copy.clone()), &[theirs.as_fd(), their_report.as_fd()])?;
        drop((theirs, their_report));
        loop {
            match client.receive()? {
                Received::Reply(Reply::Started { .. }) => break,
                Received::Reply(Reply::Refused(refusal)) => return Err(refusal.into()),
                _ => {}
            }
        }
        Ok(Wire { client, archive: Some(ours.into()), report: report.into() })
    }

    /// Our end of the pipe with the archive.
    pub(super) fn take_archive(&mut self) -> Result<File, Failure> {
        self.archive.take().ok_or_else(|| Failure::new("the copy has begun already"))
    }

    /// Waits for the guest's end of the copy; what it says of it.
    pub(super) fn end(mut self) -> Result<Report, Failure> {
        drop(self.archive.take());
        let ended = loop {
            match self.client.receive() {
                Ok(Received::Reply(Reply::ProgramEnded { end })) => break end,
                Ok(Received::Reply(Reply::Refused(refusal))) => return Err(refusal.into()),
                Ok(_) => {}
                Err(_) => return Err(Failure::new("the sandbox ended during the copy").code(1)),
            }
        };
        let mut said = Vec::new();
        // It has ended: what it said is in the pipe.
        let _ = (&mut self.report).take(MOST_SAID).read_to_end(&mut said);
        let report: Report = match serde_json::from_slice(&said) {
            Ok(report) => report,
            Err(_) => return Err(broken_off(ended)),
        };
        match report.failed {
            Some(what) => Err(Failure { why: report.why, ..Failure::new(what).code(1) }),
            None => Ok(report),
        }
    }
}

fn broken_off(end: End) -> Failure {
    let why = match end {
        End::Exited { code } => format!("the process in the sandbox that copied ended with code {code}"),
        End::Signalled { signal } => format!("signal {signal} ended the process in the sandbox that copied"),
    };
    Failure::new("the copy broke off").code(1).why(why)
}

/// The keeper of a running sandbox, or one for the visit.
fn connect(sandbox: &Sandbox) -> Result<Client, Failure> {
    if lifecycle::is_live(sandbox)? {
        match Client::connect(sandbox) {
            // It ended a moment ago.
            Err(Error::NotRunning { .. }) if !lifecycle::is_live(sandbox)? => {}
            other => return Ok(other?),
        }
    }
    if sandbox.spec()?.limits.disk.is_some_and(|disk| disk.by == DiskBy::Tmpfs) {
        let failure = Failure::new(format!("the files of sandbox {} are gone", sandbox.id()));
        return Err(failure.code(1).why("they were in memory (--disk SIZE,tmpfs), and it does not run"));
    }
    let lock = lifecycle::free_lock(sandbox)?;
    let mut client = keeper::start(sandbox, keeper::For::Visit, lock)?;
    client.begin(&Begin { owner: Owner::Visit, values: Values::default(), ssh: Ssh::default() }, &[])?;
    loop {
        match client.receive() {
            Ok(Received::Reply(Reply::Done)) => return Ok(client),
            Ok(Received::Reply(Reply::Refused(refusal))) => return Err(refusal.into()),
            Ok(_) => {}
            Err(err) => {
                let failure = Failure::because(format!("sandbox {} could not be opened", sandbox.id()), &err);
                return Err(failure.fix(format!("look into {}", sandbox.keeper_log().display())));
            }
        }
    }
}
