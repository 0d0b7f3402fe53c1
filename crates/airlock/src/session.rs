//! A person (or a pipe) on this side, a keeper on the other: one loop that relays keys, output, signals and sizes
//! until the program ends.
//!
//! Who reads the keyboard is decided by [`Keyboard`]; the terminal is raw only while this process is in the
//! foreground of it, and is put back whatever happens (`airlock_linux::tty`).

use crate::{failure::Failure, pump::Pump};
use airlock_doors::control::client::{Client, Error, Received};
use airlock_linux::{
    job,
    signal::Signals,
    tty::{self, Raw},
};
use airlock_protocol::{
    control::{Refusal, Reply, Request},
    guest::End,
    spec::WindowSize,
    state::Exit,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Signal,
};
use std::os::fd::{AsFd, BorrowedFd};

/// While typed bytes of this size wait for the keeper, no more are read.
const MOST_TYPED: usize = 256 * 1024;
/// How long to leave a terminal alone that another program has taken for itself.
const LEFT_ALONE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Signals that are the program's, not ours.
const FORWARDED: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
    Signal::TSTP,
];

/// How a session ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ended {
    /// The sandbox's main program ended for good.
    Sandbox(Exit),
    /// The program of this connection ended.
    Program(End),
    /// It never started.
    Refused(Refusal),
    /// The keeper went away without a word, before the program ran.
    Unanswered,
    /// The keeper went away without a word.
    KeeperDied,
}

/// How what is typed reaches the program.
#[derive(Debug)]
pub(crate) enum Keyboard {
    /// It does not.
    None,
    /// Key by key: the sandbox's terminal interprets them.
    Raw(Raw),
    /// Line by line, and only while no other program of the pipeline has the terminal for itself.
    Lines,
    /// As if typed: stdin is no terminal, but the program was given one.
    Bytes,
}

/// Everything on this side.
pub(crate) struct Session<'a> {
    client: Client,
    signals: Signals,
    keyboard: Keyboard,
    typed: BorrowedFd<'a>,
    screen: Option<BorrowedFd<'a>>,
    pumps: Vec<Pump<'a>>,
    has_started: bool,
}

/// No signals: they have on this process the effect they always have.
pub(crate) fn no_signals() -> Result<Signals, Failure> {
    collect(&[])
}

/// Collects the signals that are meant for the program, except those this process was told to ignore.
pub(crate) fn collect_signals() -> Result<Signals, Failure> {
    let wanted = FORWARDED.iter().map(|signal| signal.as_raw()).filter(|signal| !job::is_ignored(*signal));
    collect(&wanted.collect::<Vec<_>>())
}

impl<'a> Session<'a> {
    /// A session that relays signals; the program's terminal, if any, is shown on `screen`.
    pub(crate) fn new(client: Client, signals: Signals, screen: Option<BorrowedFd<'a>>) -> Session<'a> {
        let typed = screen.unwrap_or(rustix::stdio::stdin());
        Session {
            client,
            signals,
            keyboard: Keyboard::None,
            typed,
            screen,
            pumps: Vec::new(),
            has_started: false,
        }
    }

    /// What is typed on `typed` goes to the program's terminal.
    pub(crate) fn with_keyboard(self, typed: BorrowedFd<'a>, keyboard: Keyboard) -> Session<'a> {
        Session { typed, keyboard, ..self }
    }

    /// Bytes are also carried from here to there.
    pub(crate) fn with_pumps(self, pumps: Vec<Pump<'a>>) -> Session<'a> {
        Session { pumps, ..self }
    }

    /// Waits until the program runs. `Err(Ended)` if it never does.
    pub(crate) fn wait_for_start(&mut self) -> Result<(), Ended> {
        loop {
            match self.client.receive() {
                Ok(Received::Reply(Reply::Started { .. })) => {
                    self.has_started = true;
                    return Ok(());
                }
                Ok(Received::Reply(reply)) => {
                    if let Some(ended) = self.heard(reply).unwrap_or(Some(Ended::KeeperDied)) {
                        return Err(ended);
                    }
                }
                Ok(Received::Data(_)) => {}
                Err(_) => return Err(Ended::KeeperDied),
            }
        }
    }

    /// Relays until the program has ended.
    pub(crate) fn relay(mut self) -> Result<Ended, Failure> {
        self.take_terminal();
        let ended = self.run();
        self.pumps.iter_mut().for_each(Pump::drain);
        ended
    }

    fn run(&mut self) -> Result<Ended, Failure> {
        loop {
            while let Some(received) = self.client.next()? {
                match received {
                    Received::Data(bytes) => self.show(&bytes),
                    Received::Reply(reply) => {
                        if let Some(ended) = self.heard(reply)? {
                            return Ok(ended);
                        }
                    }
                }
            }
            self.client.flush()?;
            let ready = self.wait()?;
            if ready.signals {
                self.forward_signals()?;
            }
            if ready.keyboard {
                self.read_keyboard();
            }
            self.pumps.retain_mut(Pump::carry);
            if ready.client {
                match self.client.read_ready() {
                    Err(Error::Closed) if self.has_started => return Ok(Ended::KeeperDied),
                    Err(Error::Closed) => return Ok(Ended::Unanswered),
                    other => other?,
                }
            }
        }
    }

    /// What a message of the keeper means for the session.
    fn heard(&mut self, reply: Reply) -> Result<Option<Ended>, Failure> {
        match reply {
            Reply::Ended(exit) => return Ok(Some(Ended::Sandbox(exit))),
            Reply::ProgramEnded { end } => return Ok(Some(Ended::Program(end))),
            // Later ones answer a signal that came too late.
            Reply::Refused(refusal) if !self.has_started => return Ok(Some(Ended::Refused(refusal))),
            Reply::Started { .. } => self.has_started = true,
            Reply::Stopped { .. } => self.stop_too()?,
            Reply::Refused(_)
            | Reply::Done
            | Reply::State(_)
            | Reply::Policy(_)
            | Reply::Approvals { .. }
            | Reply::Event(_) => {}
        }
        Ok(None)
    }

    fn show(&mut self, bytes: &[u8]) {
        if let Some(screen) = self.screen {
            // A screen that is gone shows nothing; the program learns of it by SIGHUP, as it would unsealed.
            let _ = crate::pump::write_all(screen, bytes);
        }
    }

    /// The program was stopped: stop with it, so that the shell takes over, and let it go on when we do.
    fn stop_too(&mut self) -> Result<(), Failure> {
        if let Keyboard::Raw(raw) = &mut self.keyboard {
            let _ = raw.leave();
        }
        if job::can_be_continued() {
            job::stop().map_err(|err| Failure::because("could not stop with the program", &err))?;
            // The SIGCONT that woke us is among the collected signals and does the rest.
            return Ok(());
        }
        self.go_on()
    }

    fn go_on(&mut self) -> Result<(), Failure> {
        self.take_terminal();
        self.send_size()?;
        Ok(self.client.queue(&Request::Signal { signal: Signal::CONT.as_raw() })?)
    }

    fn take_terminal(&mut self) {
        if let Keyboard::Raw(raw) = &mut self.keyboard
            && tty::is_foreground(self.typed)
            && raw.enter().is_err()
        {
            self.keyboard = Keyboard::Lines;
        }
    }

    fn send_size(&mut self) -> Result<(), Failure> {
        // A screen that is a file has no size; the terminal that is typed on has.
        if let Some((rows, columns)) =
            self.screen.and_then(|screen| tty::size(screen).or_else(|| tty::size(self.typed)))
        {
            self.client.queue(&Request::Resize(WindowSize { rows, columns }))?;
        }
        Ok(())
    }

    fn forward_signals(&mut self) -> Result<(), Failure> {
        while let Some(arrived) =
            self.signals.take().map_err(|err| Failure::because("could not read signals", &err))?
        {
            match Signal::from_named_raw(arrived.signal) {
                Some(Signal::WINCH) => self.send_size()?,
                Some(Signal::CONT) => self.go_on()?,
                // Without a terminal the program leads a session of its own, and there the kernel drops SIGTSTP.
                Some(Signal::TSTP) if self.screen.is_none() => {
                    self.client.queue(&Request::Signal { signal: Signal::STOP.as_raw() })?;
                }
                _ => self.client.queue(&Request::Signal { signal: arrived.signal })?,
            }
        }
        Ok(())
    }

    fn read_keyboard(&mut self) {
        let mut bytes = [0u8; 4096];
        match rustix::io::read(self.typed, &mut bytes) {
            // A closed line (Ctrl-D) is typed on; a terminal that hung up is not watched any more.
            Ok(0) if matches!(self.keyboard, Keyboard::Lines) => self.client.queue_data(b"\x04"),
            Ok(0) if matches!(self.keyboard, Keyboard::Bytes) => {
                self.client.queue_data(b"\x04");
                self.keyboard = Keyboard::None;
            }
            Ok(count) if count > 0 => self.client.queue_data(bytes.get(..count).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            _ => self.keyboard = Keyboard::None,
        }
    }

    fn keyboard_turn(&self) -> Turn {
        // What is typed before the program runs waits in the terminal: there is nobody to read it.
        if !self.has_started || self.client.queued() > MOST_TYPED {
            return Turn::Never;
        }
        match &self.keyboard {
            Keyboard::None => Turn::Never,
            Keyboard::Bytes => Turn::Now,
            Keyboard::Raw(raw) if raw.is_raw() => Turn::Now,
            Keyboard::Raw(_) => Turn::Never,
            Keyboard::Lines if !tty::is_foreground(self.typed) => Turn::Never,
            Keyboard::Lines if tty::reads_lines(self.typed) => Turn::Now,
            Keyboard::Lines => Turn::Later,
        }
    }

    fn wait(&mut self) -> Result<Ready, Failure> {
        let turn = self.keyboard_turn();
        let sending = if self.client.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        let keyboard = if turn == Turn::Now { PollFlags::IN } else { PollFlags::empty() };
        let client = self.client.as_fd();
        let mut watched = vec![
            PollFd::from_borrowed_fd(client, PollFlags::IN | sending),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        watched.extend(self.pumps.iter().map(Pump::watched));
        if !keyboard.is_empty() {
            watched.push(PollFd::from_borrowed_fd(self.typed, keyboard));
        }
        let timeout = (turn == Turn::Later).then_some(&LEFT_ALONE);
        match poll(&mut watched, timeout) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(Failure::because("could not wait for the program", &errno)),
        }
        let seen: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
        let pumps = self.pumps.len();
        drop(watched);
        for (pump, seen) in self.pumps.iter_mut().zip(seen.iter().skip(2)) {
            pump.set_ready(*seen);
        }
        let at = |index: usize| seen.get(index).copied().unwrap_or(false);
        Ok(Ready { client: at(0), signals: at(1), keyboard: at(2 + pumps) })
    }
}

fn collect(numbers: &[i32]) -> Result<Signals, Failure> {
    Signals::collect(numbers).map_err(|err| Failure::because("could not collect signals", &err))
}

/// What can be done without waiting.
#[derive(Debug, Default, Clone, Copy)]
struct Ready {
    client: bool,
    signals: bool,
    keyboard: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Now,
    Later,
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::{control::TERMINAL, frame::Frame, state::Cause};
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    fn session<'a>(screen: Option<BorrowedFd<'a>>) -> (Session<'a>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Session::new(Client::from_fd(ours.into()).unwrap(), no_signals().unwrap(), screen), theirs)
    }

    fn say(keeper: &mut UnixStream, reply: &Reply) {
        keeper.write_all(&Frame::message(reply, 0).unwrap().encode()).unwrap();
    }

    fn refusal() -> Refusal {
        Refusal { code: 125, what: "no".into(), why: None, fix: None }
    }

    #[test]
    fn a_refusal_ends_a_session_before_the_program_runs_and_not_after() {
        let (early, mut keeper) = session(None);
        say(&mut keeper, &Reply::Refused(refusal()));
        assert_eq!(early.relay().unwrap(), Ended::Refused(refusal()));

        let (late, mut keeper) = session(None);
        let exit = Exit { code: 3, cause: Cause::Exited, at: "T".into() };
        say(&mut keeper, &Reply::Started { pid: 2 });
        say(&mut keeper, &Reply::Refused(refusal()));
        say(&mut keeper, &Reply::Ended(exit.clone()));
        assert_eq!(late.relay().unwrap(), Ended::Sandbox(exit));
    }

    #[test]
    fn a_keeper_that_vanishes_is_noticed() {
        let (session, mut keeper) = session(None);
        say(&mut keeper, &Reply::Started { pid: 2 });
        drop(keeper);
        assert_eq!(session.relay().unwrap(), Ended::KeeperDied);
    }

    #[test]
    fn a_keeper_that_hangs_up_before_the_program_runs_never_answered() {
        let (session, keeper) = session(None);
        drop(keeper);
        assert_eq!(session.relay().unwrap(), Ended::Unanswered);
    }

    #[test]
    fn everything_shown_before_the_end_is_seen() {
        let (mut screen, shown) = std::io::pipe().unwrap();
        let (session, mut keeper) = session(Some(shown.as_fd()));
        say(&mut keeper, &Reply::Started { pid: 2 });
        keeper.write_all(&Frame::data(TERMINAL, b"hello").encode()).unwrap();
        say(&mut keeper, &Reply::ProgramEnded { end: End::Exited { code: 0 } });

        assert_eq!(session.relay().unwrap(), Ended::Program(End::Exited { code: 0 }));

        drop(shown);
        let mut text = String::new();
        screen.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn bytes_instead_of_a_keyboard_are_typed_and_their_end_is_ctrl_d() {
        let (typed, mut source) = std::io::pipe().unwrap();
        source.write_all(b"abc").unwrap();
        drop(source);
        let (session, mut keeper) = session(None);

        say(&mut keeper, &Reply::Started { pid: 2 });
        let program = std::thread::spawn(move || {
            let expected =
                [Frame::data(TERMINAL, b"abc").encode(), Frame::data(TERMINAL, b"\x04").encode()].concat();
            let mut heard = vec![0; expected.len()];
            keeper.read_exact(&mut heard).unwrap();
            say(&mut keeper, &Reply::ProgramEnded { end: End::Exited { code: 0 } });
            heard == expected
        });
        session.with_keyboard(typed.as_fd(), Keyboard::Bytes).relay().unwrap();

        assert!(program.join().unwrap());
    }
}
