//! The loop of PID 1: requests of the keeper, ended children, reports of session leaders.

use crate::{
    link::{Asked, Link},
    programs::Programs,
    stillness,
};
use airlock_linux::{
    clone::{self, Dumpable},
    signal::{self, Signals},
    spawn::{self, Report},
};
use airlock_protocol::guest::{FromGuest, ToGuest};
use rustix::{
    event::{PollFd, PollFlags},
    process::{Signal, WaitOptions},
};
use std::{io, os::fd::AsFd};

/// Runs until the keeper is gone.
pub(crate) fn run() -> io::Result<()> {
    clone::set_dumpable(Dumpable::No)?;
    rustix::thread::set_name(c"airlock-guest")?;
    clone::die_with_parent()?;
    let signals = Signals::collect(&[Signal::CHILD.as_raw()])?;
    let mut link = Link::inherit()?;
    let mut programs = Programs::default();
    loop {
        let ready = wait(&link, &signals, &programs)?;
        if ready.link && !requests(&mut link, &mut programs)? {
            return Ok(());
        }
        for process in ready.reports {
            pass_on_report(&link, &mut programs, process)?;
        }
        if ready.children {
            while signals.take()?.is_some() {}
            reap(&link, &mut programs)?;
        }
    }
}

struct Ready {
    link: bool,
    children: bool,
    reports: Vec<u32>,
}

fn wait(link: &Link, signals: &Signals, programs: &Programs) -> io::Result<Ready> {
    let numbers: Vec<u32> = programs.reports().map(|(process, _)| process).collect();
    let mut polled = vec![PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN)];
    polled.push(PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN));
    polled.extend(programs.reports().map(|(_, fd)| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    match rustix::event::poll(&mut polled, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(err) => return Err(err.into()),
    }
    let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
    let (link, children) = (happened.next() == Some(true), happened.next() == Some(true));
    let readable = polled.iter().skip(2).map(|polled| polled.revents().contains(PollFlags::IN));
    let reports =
        numbers.into_iter().zip(readable).filter(|(_, readable)| *readable).map(|(number, _)| number);
    Ok(Ready { link, children, reports: reports.collect() })
}

/// Does what the keeper asks. `false` means the keeper is gone.
fn requests(link: &mut Link, programs: &mut Programs) -> io::Result<bool> {
    if !link.fill()? {
        return Ok(false);
    }
    while let Some(Asked { request, descriptors }) = link.next()? {
        match request {
            ToGuest::Start(start) => {
                let answer = programs.start(&start, descriptors);
                link.say(&answer)?;
            }
            ToGuest::Copy(job) => {
                let answer = programs.copy(&job, descriptors);
                link.say(&answer)?;
            }
            ToGuest::Signal { process, signal } => programs.signal(process, signal),
            // The terminal is the program's own: the kernel has told it.
            ToGuest::Resized { .. } => {}
            ToGuest::Clear => {
                clear(link, programs)?;
                link.say(&FromGuest::Cleared)?;
            }
            ToGuest::Freeze => {
                everybody(Signal::STOP)?;
                stillness::wait();
                link.say(&FromGuest::Frozen)?;
            }
            ToGuest::Thaw => everybody(Signal::CONT)?,
            // Only a machine has a memory of its own.
            ToGuest::Rest { .. } => link.say(&FromGuest::Resting { still: false })?,
            ToGuest::Rise => {}
        }
    }
    Ok(true)
}

fn everybody(signal: Signal) -> io::Result<()> {
    match signal::send_to_all(signal.as_raw()) {
        Err(err) if err.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(()),
        other => other,
    }
}

/// Kills all and waits until nobody is left.
fn clear(link: &Link, programs: &mut Programs) -> io::Result<()> {
    everybody(Signal::KILL)?;
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                changed(link, programs, pid.as_raw_nonzero().get(), spawn::report_of(status))?
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(err) => return Err(err.into()),
        }
    }
}

fn reap(link: &Link, programs: &mut Programs) -> io::Result<()> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => {
                changed(link, programs, pid.as_raw_nonzero().get(), spawn::report_of(status))?
            }
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

fn changed(link: &Link, programs: &mut Programs, pid: i32, report: Option<Report>) -> io::Result<()> {
    match report.and_then(|report| programs.child_changed(pid, report)) {
        Some(said) => link.say(&said),
        None => Ok(()),
    }
}

/// A session leader has something to say of its program.
fn pass_on_report(link: &Link, programs: &mut Programs, process: u32) -> io::Result<()> {
    let Some((_, reports)) = programs.reports().find(|(number, _)| *number == process) else { return Ok(()) };
    match Report::read(reports.as_fd())? {
        Some(report) => link.say(&programs.reported(process, report)),
        None => Ok(()),
    }
}
