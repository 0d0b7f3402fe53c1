//! While the machine's memory is saved, and how a copy of it goes on.
//!
//! ```text
//! the keeper        this end                        the machine
//! Rest ───────────▶ Rest, then silence ───────────▶ freezes, writes, answers what was asked
//!                   writes down what it knows ◀──── Resting, then silence
//! ◀─ Resting                                        (its memory is saved)
//! Rise ───────────▶ Resume ───────────────────────▶ the time, random numbers, its name
//!                   Rise, and what waited ◀──────── Ready
//! ```
//!
//! A copy begins with `Resume`. When it is ready, the keeper starts its main program; that runs already, so that it is only given its
//! streams, and the copy goes on. Streams of other programs lead nowhere from then on.

use super::{
    Ended, Host, now,
    saved::{Main, Saved},
    seed,
};
use crate::mux::{Endpoint, Owner, Standing};
use airlock_protocol::{
    carry::{Message, Resume},
    guest::FromGuest,
};
use std::{fs::File, io, os::fd::OwnedFd};

/// How far it is.
#[derive(Debug, Default)]
pub(super) enum Rest {
    /// It does not rest.
    #[default]
    No,
    /// It was asked to. What is known goes into the descriptor.
    Asked { main: u32, to: OwnedFd },
    /// It was asked to, and then to rise again.
    Regretted,
    /// It rests.
    Resting,
    /// It was told to resume.
    Waking,
    /// A copy that waits for its main program to be asked for.
    Copy(Box<Waiting>),
}

/// Who goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Itself,
    Copy,
}

/// What a copy goes on with.
#[derive(Debug)]
pub(super) struct Waiting {
    main: Main,
    streams: Vec<Standing>,
}

impl Rest {
    /// Whether nothing may be said that is not about the rest.
    pub(super) fn is_silent(&self) -> bool {
        !matches!(self, Rest::No)
    }

    pub(super) fn awaits_main(&self) -> bool {
        matches!(self, Rest::Copy(_))
    }
}

impl Host {
    /// The machine is to rest.
    pub(super) fn lie_down(&mut self, main: u32, mut descriptors: Vec<OwnedFd>) -> Result<(), Ended> {
        let to = descriptors.pop().filter(|_| self.hold.running(main).is_some());
        let Some(to) = to.filter(|_| !self.rest.is_silent()) else { return self.answer(false) };
        self.mux.say(&Message::Rest)?;
        self.mux.hush(Vec::new());
        self.rest = Rest::Asked { main, to };
        Ok(())
    }

    /// It is to go on.
    pub(super) fn wake(&mut self) -> Result<(), Ended> {
        match &self.rest {
            Rest::Resting => self.resume(),
            Rest::Asked { .. } => {
                self.rest = Rest::Regretted;
                Ok(())
            }
            Rest::No | Rest::Regretted | Rest::Waking | Rest::Copy(_) => Ok(()),
        }
    }

    /// What the machine says of its rest.
    pub(super) fn heard_of_rest(&mut self, message: &Message) -> Result<(), Ended> {
        let unexpected = || Ended::Rules(crate::mux::Violation::Unexpected);
        match (message, std::mem::take(&mut self.rest)) {
            (Message::Resting, Rest::Asked { main, to }) => {
                let still = self.write_down(main, to).is_ok();
                self.rest = Rest::Resting;
                self.answer(still)?;
                if still { Ok(()) } else { self.resume() }
            }
            (Message::Resting, Rest::Regretted) => {
                self.answer(false)?;
                self.resume()
            }
            (Message::Restless, Rest::Asked { .. } | Rest::Regretted) => {
                self.mux.speak();
                self.answer(false)
            }
            (Message::Ready, Rest::Waking) => {
                self.mux.put_between(&Message::Rise)?;
                self.mux.speak();
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    /// A copy of a machine goes on from what was known of it.
    pub(super) fn go_on(&mut self, saved: Saved) -> io::Result<()> {
        let Saved { main, last_process, last_stream, streams, unsaid, .. } = saved;
        self.numbers = super::Numbers::behind(last_process);
        (self.last_process, self.last_stream) = (last_process, last_stream);
        self.mux.say(&self.come_to(Who::Copy)?)?;
        self.mux.hush(unsaid);
        self.rest = Rest::Copy(Box::new(Waiting { main, streams }));
        Ok(())
    }

    /// The keeper starts the main program, which runs: these are its streams from now on.
    pub(super) fn take_over(&mut self, process: u32, descriptors: Vec<OwnedFd>) -> Result<(), Ended> {
        let Rest::Copy(waiting) = std::mem::take(&mut self.rest) else { return Ok(()) };
        let Waiting { main, streams } = *waiting;
        for standing in streams {
            let place = place_of(standing.number(), &main.places);
            let given = place.and_then(|place| descriptors.get(place)).map(OwnedFd::try_clone).transpose()?;
            let endpoint = Endpoint::new(given.map_or_else(nowhere, Ok)?, Owner::Others)?;
            self.mux.resume(standing, endpoint).map_err(Ended::Rules)?;
        }
        self.numbers.adopt(process, main.process);
        let said = FromGuest::Started { process: main.process, pid: main.pid };
        self.hold.adopt(main.process, main.pid, main.places);
        self.hold.said(said).map_err(Ended::Full)?;
        self.mux.put_between(&Message::Rise)?;
        self.mux.speak();
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Ended> {
        let message = self.come_to(Who::Itself)?;
        self.mux.put_between(&message)?;
        self.rest = Rest::Waking;
        Ok(())
    }

    fn come_to(&self, who: Who) -> io::Result<Message> {
        let is_copy = who == Who::Copy;
        let resume = Resume { hostname: self.hostname.clone(), seed: seed()?, now: now(), is_copy };
        Ok(Message::Resume(Box::new(resume)))
    }

    fn write_down(&self, main: u32, to: OwnedFd) -> io::Result<()> {
        let (pid, places) = self.hold.running(main).ok_or(io::ErrorKind::NotFound)?;
        let main = Main { process: main, pid, places: places.to_vec() };
        let files = self.files.as_ref().map(|files| files.known()).unwrap_or_default().into();
        let (streams, unsaid) = self.mux.standing();
        let (last_process, last_stream) = (self.last_process, self.last_stream);
        Saved { main, last_process, last_stream, streams, unsaid, files }.write(to)
    }

    fn answer(&mut self, still: bool) -> Result<(), Ended> {
        Ok(self.keeper.say(&FromGuest::Resting { still }, Vec::new())?)
    }
}

/// Which of a program's descriptors stands for a stream: a terminal is written to more than read.
fn place_of(stream: u32, places: &[u32]) -> Option<usize> {
    const OUTPUT: usize = 1;
    let is_output = places.get(OUTPUT) == Some(&stream);
    if is_output { Some(OUTPUT) } else { places.iter().position(|place| *place == stream) }
}

fn nowhere() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}
