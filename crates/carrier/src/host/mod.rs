//! The end on the host: PID 1 of the sandbox's namespaces.
//!
//! To the keeper it is the guest. What it hears from the machine is hostile: whatever breaks a rule ends the sandbox.
//!
//! - [`descriptors`]: what the keeper passes, as streams
//! - [`files`]: the machine's files
//! - [`shown`]: what of them lies over a root on disks
//! - [`rest`]: while the machine's memory is saved, and how a copy of it goes on
//! - [`saved`]: what is written down for a copy
//! - [`sent`]: ports that come when the machine has connected with them
//! - [`numbers`]: what programs are called by a keeper that did not start them

pub(crate) mod descriptors;
pub(crate) mod files;
mod numbers;
mod rest;
mod saved;
mod sent;
mod shown;
#[cfg(test)]
mod tests;

use crate::{
    hold::{Full, Hold},
    link::{Link, Peer},
    mux::{Broken, Mux, Turn, Violation, Waiting},
};
use airlock_files::{fuse::Server, provider::Real};
use airlock_linux::{
    clone::{self, Dumpable},
    fd,
    signal::Signals,
    spawn::GUEST_LINK,
};
use airlock_protocol::{
    carry::{self, Configure, Descriptor, Kind, Machine, Message, Now, Orders, SEED},
    frame::Malformed,
    guest::{FromGuest, ToGuest},
};
use numbers::Numbers;
use rest::Rest;
use rustix::{
    event::PollFlags,
    process::{Signal, WaitOptions},
};
use saved::Saved;
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long a machine may take from its orders until its guest runs. It may have to boot first.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a monitor may take from closing its ports to its end.
const LAST_MOMENTS: Duration = Duration::from_secs(1);
/// More orders than any sandbox needs.
const MOST_ORDERS: u64 = 64 * 1024;

/// Why the sandbox cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("the machine is gone")]
    Gone,
    #[error("the machine's monitor {0}")]
    Monitor(String),
    #[error("the machine was ended: {0}")]
    Rules(Violation),
    #[error("the machine was ended: {0}")]
    Full(Full),
    #[error("the machine was ended: its guest makes no sense")]
    Guest(#[source] Malformed),
    #[error("the machine gave up: {0}")]
    Failed(String),
    #[error("the machine was not ready within {} s", PATIENCE.as_secs())]
    Late,
    #[error("the keeper makes no sense")]
    Keeper(#[source] Malformed),
    #[error("the carrier cannot go on")]
    Io(#[from] io::Error),
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Ended {
        match broken {
            Broken::Gone => Ended::Gone,
            Broken::Rules(violation) => Ended::Rules(violation),
            Broken::Port(err) => Ended::Io(err),
        }
    }
}

/// Runs until the keeper or the machine is gone.
pub(crate) fn run() -> io::Result<()> {
    let outcome = fd::inherited(carry::OUTCOME)?;
    let (mut host, signals, _files) = match prepare() {
        Ok(prepared) => prepared,
        Err(err) => {
            let why = [&[carry::NOT_READY], chain(&err).as_bytes()].concat();
            let _ = File::from(outcome).write_all(&why);
            return Err(err);
        }
    };
    host.outcome = Some(outcome);
    let mut monitor = None;
    let ended = loop {
        match host.turn(Some(&signals)) {
            Ok(Peer::There) => {
                if signals.take()?.is_some() {
                    monitor = reap().or(monitor);
                }
            }
            Ok(Peer::Gone) => return Ok(()),
            Err(Ended::Gone) => break monitor.or_else(await_monitor).map_or(Ended::Gone, Ended::Monitor),
            Err(ended) => break ended,
        }
    };
    host.give_up(&ended);
    Err(io::Error::other(ended))
}

/// Everything but where to say how it went.
fn prepare() -> io::Result<(Host, Signals, Server)> {
    clone::set_dumpable(Dumpable::No)?;
    rustix::thread::set_name(c"airlock-carrier")?;
    clone::die_with_parent()?;
    let signals = Signals::collect(&[Signal::CHILD.as_raw()])?;
    let keeper = Link::new(fd::inherited(GUEST_LINK)?)?;
    let (port, files) = (fd::inherited(carry::LINK_SOCKET)?, fd::inherited(carry::FILES_SOCKET)?);
    let Orders { mut machine, resumes, ports_are_sent } = orders(fd::inherited(carry::ORDERS)?)?;
    let (port, files) = match ports_are_sent {
        true => (sent::port(&port)?, sent::port(&files)?),
        false => (port, files),
    };
    if let Some(disks) = &mut machine.disks {
        disks.shown = shown::look()?;
    }
    let saved = match resumes {
        true => Some(Saved::read(fd::inherited(carry::KNOWN)?)?),
        false => None,
    };
    let known = saved.as_ref().map(|saved| saved.files.clone().into());
    let (server, real) = files::serve(files, known.as_ref())?;
    let mut host = Host::new(keeper, Mux::new(port)?, None);
    (host.files, host.hostname) = (Some(real), machine.hostname.clone());
    match saved {
        None => host.mux.say(&Message::Configure(Box::new(configure(machine)?)))?,
        Some(saved) => host.go_on(saved)?,
    }
    Ok((host, signals, server))
}

fn orders(pipe: OwnedFd) -> io::Result<Orders> {
    let mut text = Vec::new();
    File::from(pipe).take(MOST_ORDERS).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn configure(machine: Machine) -> io::Result<Configure> {
    let Now { seconds, nanoseconds } = now();
    Ok(Configure { machine, seed: seed()?, seconds, nanoseconds })
}

fn seed() -> io::Result<Vec<u8>> {
    let mut seed = vec![0; SEED];
    rustix::rand::getrandom(&mut seed[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(seed)
}

fn now() -> Now {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX), nanoseconds: now.subsec_nanos() }
}

/// How the monitor, the only child with a name, has ended; nothing while it runs.
fn reap() -> Option<String> {
    let mut last = None;
    while let Ok(Some((_, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        last = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(format!("ended with {code}")),
            (_, Some(signal)) => Some(format!("was ended by signal {signal}")),
            _ => last,
        };
    }
    last
}

/// The same for one whose ports are closed already: the kernel closes them before it can be told of.
fn await_monitor() -> Option<String> {
    let end = Instant::now() + LAST_MOMENTS;
    loop {
        let told = reap();
        if told.is_some() || Instant::now() >= end {
            return told;
        }
        std::thread::sleep(LAST_MOMENTS / 100);
    }
}

/// Keeper at one side, machine at the other.
pub(crate) struct Host {
    keeper: Link,
    mux: Mux,
    hold: Hold,
    numbers: Numbers,
    last_process: u32,
    last_stream: u32,
    rest: Rest,
    /// What it serves.
    files: Option<Arc<Real>>,
    hostname: String,
    /// Until the machine is ready, where to say so.
    outcome: Option<OwnedFd>,
    is_ready: bool,
    deadline: Instant,
}

impl Host {
    pub(crate) fn new(keeper: Link, mux: Mux, outcome: Option<OwnedFd>) -> Host {
        Host {
            keeper,
            mux,
            hold: Hold::default(),
            numbers: Numbers::default(),
            last_process: 0,
            last_stream: 0,
            rest: Rest::No,
            files: None,
            hostname: String::new(),
            outcome,
            is_ready: false,
            deadline: Instant::now() + PATIENCE,
        }
    }

    /// Waits for something to happen and does it. Says whether the keeper is still there.
    pub(crate) fn turn(&mut self, signals: Option<&Signals>) -> Result<Peer, Ended> {
        // Whoever rests is woken by the keeper, however much waits to be said.
        let listens = self.is_ready && (self.mux.has_room() || self.rest.is_silent());
        let mut others = vec![(self.keeper.as_fd(), self.keeper.interest(listens))];
        others.extend(signals.map(|signals| (signals.as_fd(), PollFlags::IN)));
        let timeout = (!self.is_ready).then(|| self.deadline.saturating_duration_since(Instant::now()));
        let waiting = Waiting { others, listens: self.keeper.has_room(), timeout };
        let Turn { others, message } = self.mux.turn(waiting)?;
        if !self.is_ready && Instant::now() >= self.deadline {
            return Err(Ended::Late);
        }
        if let Some(message) = message {
            self.heard(message)?;
        }
        let keeper = others.first().copied().unwrap_or(PollFlags::empty());
        if keeper.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            if self.keeper.fill()? == Peer::Gone {
                return Ok(Peer::Gone);
            }
            while let Some((frame, descriptors)) = self.keeper.next().map_err(Ended::Keeper)? {
                let request = frame.parse::<ToGuest>().map_err(Ended::Keeper)?;
                self.asked(request, descriptors)?;
            }
        }
        while let Some(said) = self.hold.next(|streams, _| !self.mux.is_marked(streams)) {
            if let Some(said) = self.numbers.outside(said) {
                self.keeper.say(&said, Vec::new())?;
            }
        }
        Ok(self.keeper.flush()?)
    }

    /// Passes on what the keeper asks for.
    fn asked(&mut self, request: ToGuest, descriptors: Vec<OwnedFd>) -> Result<(), Ended> {
        let request = match request {
            ToGuest::Start(start) if self.rest.awaits_main() => {
                return self.take_over(start.process, descriptors);
            }
            request => self.numbers.inside(request),
        };
        match &request {
            ToGuest::Resized { process } => return self.resized(*process),
            ToGuest::Rest { main } => return self.lie_down(*main, descriptors),
            ToGuest::Rise => return self.wake(),
            // What stood still does not know how long.
            ToGuest::Thaw => self.mux.say(&Message::Clock(now()))?,
            ToGuest::Start(start) => self.last_process = self.last_process.max(start.process),
            ToGuest::Copy(job) => self.last_process = self.last_process.max(job.process),
            ToGuest::Signal { .. } | ToGuest::Clear | ToGuest::Freeze => {}
        }
        let (described, numbers) = self.open(descriptors)?;
        self.hold.asked(&request, &numbers);
        if let ToGuest::Start(start) = &request {
            self.hold.place(start.process, described.iter().map(|one| one.stream).collect());
        }
        let message = serde_json::to_vec(&request).map_err(io::Error::other)?;
        Ok(self.mux.say(&Message::Guest { descriptors: described, message })?)
    }

    /// Opens a stream for each descriptor, one for those that are the same.
    fn open(&mut self, descriptors: Vec<OwnedFd>) -> Result<(Vec<Descriptor>, Vec<u32>), Ended> {
        let mut described: Vec<Descriptor> = Vec::new();
        let mut numbers = Vec::new();
        for (place, descriptor) in descriptors.iter().enumerate() {
            let kind = descriptors::look(descriptor, place)?;
            let before = descriptors.iter().zip(&described);
            let mut same = before.filter(|(other, known)| {
                known.kind == kind && kind != Kind::Nothing && descriptors::are_one(other, descriptor)
            });
            if let Some((_, known)) = same.next() {
                described.push(known.clone());
                continue;
            }
            self.last_stream = self.last_stream.wrapping_add(1);
            described.push(Descriptor { stream: self.last_stream, kind });
        }
        for (descriptor, described) in descriptors.into_iter().zip(&described) {
            if numbers.contains(&described.stream) {
                continue;
            }
            let Some((endpoint, ways)) = descriptors::endpoint(descriptor, &described.kind)? else {
                continue;
            };
            self.mux.open(described.stream, endpoint, ways).map_err(Ended::Rules)?;
            numbers.push(described.stream);
        }
        Ok((described, numbers))
    }

    /// Takes in what the machine says.
    fn heard(&mut self, message: Message) -> Result<(), Ended> {
        match message {
            Message::Ready if !self.is_ready => {
                self.is_ready = true;
                // It was told the time before, and may have been restored since.
                self.mux.say(&Message::Clock(now()))?;
                self.report(&[carry::READY])?;
                Ok(())
            }
            Message::Ready | Message::Resting | Message::Restless if self.rest.is_silent() => {
                self.heard_of_rest(&message)
            }
            Message::Failed(why) => Err(Ended::Failed(why)),
            Message::Guest { descriptors, message } if self.is_ready && descriptors.is_empty() => {
                let said = serde_json::from_slice::<FromGuest>(&message);
                let said = said.map_err(|err| Ended::Guest(Malformed::Json(err)))?;
                let (streams, _) = self.hold.said(said).map_err(Ended::Full)?;
                self.mux.mark_receiving(&streams);
                Ok(())
            }
            _ => Err(Ended::Rules(Violation::Unexpected)),
        }
    }

    /// Tells the machine the size of a program's terminals.
    fn resized(&mut self, process: u32) -> Result<(), Ended> {
        for stream in self.hold.streams(process) {
            let Some(size) = self.mux.descriptor(*stream).and_then(descriptors::size) else { continue };
            self.mux.say(&Message::Resize { stream: *stream, size })?;
        }
        Ok(())
    }

    fn report(&mut self, words: &[u8]) -> io::Result<()> {
        match self.outcome.take() {
            Some(outcome) => File::from(outcome).write_all(words),
            None => Ok(()),
        }
    }

    /// Says why nothing can go on: to who waits for the machine, else to the keeper.
    pub(crate) fn give_up(&mut self, ended: &Ended) {
        let why = chain(ended);
        let _ = match self.outcome {
            Some(_) => self.report(&[&[carry::NOT_READY], why.as_bytes()].concat()),
            None => self.keeper.say(&FromGuest::Broken { why }, Vec::new()),
        };
        let _ = self.keeper.flush();
    }
}

/// An error and its causes.
fn chain(err: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(err), |err| err.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
