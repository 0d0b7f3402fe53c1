//! The loop in the machine: host at one side, guest at the other.

use super::{descriptors, files::Files, orders, rest, settle::Settling};
use crate::{
    hold::Hold,
    link::{Link, Peer},
    mux::{Broken, Mux, Turn, Violation, Waiting},
};
use airlock_linux::pty;
use airlock_protocol::{
    carry::{Descriptor, Message},
    guest::{FromGuest, ToGuest, User},
};
use rustix::event::PollFlags;
use std::{
    collections::BTreeSet,
    io::{self, PipeReader},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The end in the machine.
pub(super) struct Served {
    guest: Link,
    mux: Mux,
    hold: Hold,
    inside: Inside,
    /// Readable when files are not served any more.
    over: PipeReader,
    settling: Settling,
    /// What waits until everything is written.
    unsettled: BTreeSet<u64>,
    ended_for_memory: u64,
}

/// What is around the guest.
pub(super) struct Inside {
    /// Where terminals are made.
    pub(super) terminals: OwnedFd,
    /// The namespace in which its host name is.
    pub(super) names: PathBuf,
    /// Its files.
    pub(super) files: Arc<Files>,
}

impl Served {
    pub(super) fn new(guest: Link, mux: Mux, inside: Inside, settling: Settling) -> io::Result<Served> {
        let ended_for_memory = orders::ended_for_memory();
        let (hold, unsettled) = (Hold::default(), BTreeSet::new());
        let over = inside.files.over()?;
        Ok(Served { guest, mux, hold, inside, over, settling, unsettled, ended_for_memory })
    }

    pub(super) fn mux(&mut self) -> &mut Mux {
        &mut self.mux
    }

    pub(super) fn files(&self) -> &Files {
        &self.inside.files
    }

    /// The namespace in which the guest's host name is.
    pub(super) fn names(&self) -> &Path {
        &self.inside.names
    }

    /// Queues a message to the host.
    pub(super) fn say(&mut self, message: &Message) -> io::Result<()> {
        self.mux.say(message)
    }

    /// Waits for something to happen and does it. Says whether the guest is still there.
    pub(super) fn turn(&mut self) -> Result<Peer, Broken> {
        let listens = self.mux.has_room();
        let others = vec![
            (self.guest.as_fd(), self.guest.interest(listens)),
            (self.settling.as_fd(), PollFlags::IN),
            (self.over.as_fd(), PollFlags::IN),
        ];
        let waiting = Waiting { others, listens: self.guest.has_room(), timeout: None };
        let Turn { others, message } = self.mux.turn(waiting)?;
        if others.get(2).is_some_and(|over| !over.is_empty()) {
            return Err(Broken::Port(io::Error::other("its files are not served any more")));
        }
        if let Some(message) = message {
            self.heard(message)?;
        }
        if let Some(settled) = self.settling.settled() {
            self.unsettled.retain(|ticket| *ticket > settled);
        }
        let guest = others.first().copied().unwrap_or(PollFlags::empty());
        if guest.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            if self.guest.fill().map_err(Broken::Port)? == Peer::Gone {
                return Ok(Peer::Gone);
            }
            self.said()?;
        }
        let is_through =
            |streams: &[u32], ticket| !self.unsettled.contains(&ticket) && !self.mux.is_marked(streams);
        let mut through = Vec::new();
        while let Some(said) = self.hold.next(is_through) {
            through.push(said);
        }
        for said in through {
            self.pass_on(&said).map_err(Broken::Port)?;
        }
        self.guest.flush().map_err(Broken::Port)
    }

    /// Gives the host time to hear what was said last.
    pub(super) fn finish(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        while !self.mux.is_flushed() && Instant::now() < deadline {
            let timeout = Some(deadline.saturating_duration_since(Instant::now()));
            if self.mux.turn(Waiting { others: Vec::new(), listens: false, timeout }).is_err() {
                return;
            }
        }
    }

    fn heard(&mut self, message: Message) -> Result<(), Broken> {
        match message {
            Message::Guest { descriptors, message } => {
                let unexpected = |_| Broken::Rules(Violation::Unexpected);
                let request: ToGuest = serde_json::from_slice(&message).map_err(unexpected)?;
                self.asked(&request, &descriptors)
            }
            Message::Resize { stream, size } => {
                if let Some(terminal) = self.mux.descriptor(stream) {
                    // One whose programs are gone needs no size.
                    let _ = pty::resize(terminal, size.rows, size.columns);
                }
                Ok(())
            }
            Message::Clock(now) => orders::set_clock(now).map_err(Broken::Port),
            Message::Rest => rest::rest(self),
            _ => Err(Broken::Rules(Violation::Unexpected)),
        }
    }

    /// Passes on what the keeper asks for, with descriptors of this machine.
    fn asked(&mut self, request: &ToGuest, described: &[Descriptor]) -> Result<(), Broken> {
        let user = match request {
            ToGuest::Start(start) => Some(&start.user),
            _ => None,
        };
        let (theirs, numbers) = self.open(described, user)?;
        self.hold.asked(request, &numbers);
        self.guest.say(request, theirs).map_err(Broken::Port)
    }

    fn open(
        &mut self,
        described: &[Descriptor],
        user: Option<&User>,
    ) -> Result<(Vec<OwnedFd>, Vec<u32>), Broken> {
        let mut theirs: Vec<OwnedFd> = Vec::new();
        let mut numbers = Vec::new();
        for (place, Descriptor { stream, kind }) in described.iter().enumerate() {
            let before = described.iter().take(place).position(|before| before.stream == *stream);
            if let Some(same) = before.and_then(|before| theirs.get(before)) {
                theirs.push(same.try_clone().map_err(Broken::Port)?);
                continue;
            }
            let made = descriptors::make(kind, self.inside.terminals.as_fd(), user).map_err(Broken::Port)?;
            theirs.push(made.theirs);
            if let Some((endpoint, ways)) = made.ours {
                self.mux.open(*stream, endpoint, ways).map_err(Broken::Rules)?;
                numbers.push(*stream);
            }
        }
        Ok((theirs, numbers))
    }

    /// Takes in what the guest says.
    fn said(&mut self) -> Result<(), Broken> {
        let odd = |err| Broken::Port(io::Error::other(err));
        while let Some((frame, _)) = self.guest.next().map_err(odd)? {
            let said: FromGuest = frame.parse().map_err(odd)?;
            let settles = matches!(said, FromGuest::Ended { .. } | FromGuest::Cleared);
            let (streams, ticket) =
                self.hold.said(said).map_err(|err| Broken::Port(io::Error::other(err)))?;
            self.mux.mark_sending(&streams);
            if settles {
                self.unsettled.insert(ticket);
                self.settling.ask(ticket);
            }
        }
        Ok(())
    }

    fn pass_on(&mut self, said: &FromGuest) -> io::Result<()> {
        if matches!(said, FromGuest::Ended { .. }) {
            let ended = orders::ended_for_memory();
            if ended > self.ended_for_memory {
                self.ended_for_memory = ended;
                self.say_of_guest(&FromGuest::OutOfMemory)?;
            }
        }
        self.say_of_guest(said)
    }

    fn say_of_guest(&mut self, said: &FromGuest) -> io::Result<()> {
        let message = serde_json::to_vec(said)?;
        self.mux.say(&Message::Guest { descriptors: Vec::new(), message })
    }
}
