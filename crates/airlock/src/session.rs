//! A person (or a pipe) on this side, a keeper on the other: one loop that relays keys, output, signals and sizes
//! until the program ends.
//!
//! Who reads the keyboard is decided by [`Keyboard`]; the terminal is raw only while this process is in the
//! foreground of it, and is put back whatever happens (`airlock_linux::tty`).

use crate::{
    asking::{Asking, Next, Place},
    failure::Failure,
    pump::Pump,
    say::{Voice, say, say_anyway},
};
use airlock_doors::control::client::{Client, Error, Received};
use airlock_linux::{
    job,
    signal::Signals,
    tty::{self, Raw},
};
use airlock_protocol::{
    control::{Refusal, Reply, Request},
    event::Event,
    guest::End,
    spec::WindowSize,
    state::Exit,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Signal,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

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
    asking: Option<Asking>,
    has_started: bool,
    /// What was said of the ledger.
    told: Option<String>,
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
            asking: None,
            has_started: false,
            told: None,
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

    /// Questions of the sandbox are asked here.
    pub(crate) fn with_asking(self, asking: Option<Asking>) -> Session<'a> {
        Session { asking, ..self }
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
        self.leave_question();
        self.pumps.iter_mut().for_each(Pump::drain);
        if let Keyboard::Raw(raw) = &mut self.keyboard {
            let _ = raw.leave();
        }
        let notes = self.asking.take().map(Asking::into_notes).unwrap_or_default();
        notes.iter().for_each(|note| say(Voice::Normal, note));
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
                        self.ask_next();
                    }
                }
            }
            self.ask_next();
            self.client.flush()?;
            let ready = self.wait()?;
            if ready.signals {
                self.forward_signals()?;
            }
            if ready.keyboard {
                self.read_keyboard()?;
            }
            let next = self.asking.as_mut().map(Asking::tick);
            self.follow(next)?;
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
            Reply::Started { .. } => self.started()?,
            Reply::Stopped { .. } => self.stop_too()?,
            Reply::Approvals { pending } => {
                let asking = self.asking.as_mut();
                asking
                    .into_iter()
                    .for_each(|asking| pending.iter().for_each(|one| asking.asked(one.clone())));
            }
            Reply::Event(Event::LedgerFails { why }) => {
                // Told by the keeper and, where questions are watched for, with the events.
                if self.told.as_ref() != Some(&why) {
                    say_anyway(Voice::Normal, &why);
                }
                self.told = Some(why);
            }
            Reply::Event(Event::Appeared { paths, count }) => {
                say_anyway(Voice::Normal, &appeared(&paths, count));
            }
            Reply::Event(Event::Asked(pending)) => {
                self.asking.as_mut().into_iter().for_each(|asking| asking.asked((*pending).clone()));
            }
            Reply::Event(Event::Answered { id, .. }) => {
                let next = self.asking.as_mut().map(|asking| asking.answered(&id));
                self.follow(next)?;
            }
            Reply::Refused(_)
            | Reply::Done
            | Reply::State(_)
            | Reply::Policy(_)
            | Reply::Event(_)
            | Reply::Layer
            | Reply::Resting { .. } => {}
        }
        Ok(None)
    }

    /// From its start on, questions of the program are heard; those it asked before are fetched.
    fn started(&mut self) -> Result<(), Failure> {
        let is_first = !std::mem::replace(&mut self.has_started, true);
        if is_first && self.asking.is_some() {
            self.client.queue(&Request::Watch)?;
            self.client.queue(&Request::Approvals)?;
        }
        Ok(())
    }

    fn show(&mut self, bytes: &[u8]) {
        let bytes = self.asking.as_mut().map_or(bytes, |asking| asking.output(bytes));
        self.draw(bytes);
    }

    fn draw(&self, bytes: &[u8]) {
        if let Some(screen) = self.screen {
            // A screen that is gone shows nothing; the program learns of it by SIGHUP, as it would unsealed.
            let _ = crate::pump::write_all(screen, bytes);
        }
    }

    /// Where a question can be asked now: on a screen whose keyboard is wholly ours.
    fn place(&self) -> Place {
        let is_ours =
            matches!(&self.keyboard, Keyboard::Raw(raw) if raw.is_raw()) && tty::is_foreground(self.typed);
        match self.screen.filter(|screen| is_ours && tty::is_terminal(screen)).and_then(tty::size) {
            Some((rows, columns)) => Place::Screen(WindowSize { rows, columns }),
            None => Place::Nowhere,
        }
    }

    fn ask_next(&mut self) {
        if !self.asking.as_ref().is_some_and(Asking::is_due) {
            return;
        }
        let place = self.place();
        let Some(drawn) = self.asking.as_mut().and_then(|asking| asking.ask(place)) else { return };
        // What was typed before the question appeared is no answer to it.
        let _ = rustix::termios::tcflush(self.typed, rustix::termios::QueueSelector::IFlush);
        self.draw(&drawn);
    }

    /// Does what a key, a moment or an answer from elsewhere leads to.
    fn follow(&mut self, next: Option<Next>) -> Result<(), Failure> {
        let Some(next) = next else { return Ok(()) };
        self.draw(&next.show);
        if let Some(answer) = next.answer {
            self.client.queue(&Request::Answer(answer))?;
        }
        if let (true, Place::Screen(size)) = (next.redraw, self.place()) {
            // Another size and back: a program that has the whole screen draws it anew.
            let smaller = WindowSize { rows: size.rows.saturating_sub(1).max(1), ..size };
            self.client.queue(&Request::Resize(smaller))?;
            self.client.queue(&Request::Resize(size))?;
        }
        Ok(())
    }

    fn leave_question(&mut self) {
        if let Some(next) = self.asking.as_mut().map(Asking::leave) {
            self.draw(&next.show);
        }
    }

    /// The program was stopped: stop with it, so that the shell takes over, and let it go on when we do.
    fn stop_too(&mut self) -> Result<(), Failure> {
        self.leave_question();
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
            let size = WindowSize { rows, columns };
            self.client.queue(&Request::Resize(size))?;
            if let Some(drawn) = self.asking.as_mut().and_then(|asking| asking.draw(size)) {
                self.draw(&drawn);
            }
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

    fn read_keyboard(&mut self) -> Result<(), Failure> {
        let mut bytes = [0u8; 4096];
        let read = rustix::io::read(self.typed, &mut bytes);
        if let (Ok(count), Some(asking)) = (read, self.asking.as_mut().filter(|asking| asking.is_open()))
            && count > 0
        {
            let next = asking.typed(bytes.get(..count).unwrap_or_default());
            return self.follow(Some(next));
        }
        match read {
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
        Ok(())
    }

    fn keyboard_turn(&self) -> Turn {
        // What is typed before the program runs waits in the terminal: there is nobody to read it.
        let is_asking = self.asking.as_ref().is_some_and(Asking::is_open);
        if !self.has_started || (self.client.queued() > MOST_TYPED && !is_asking) {
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
        let is_full = self.asking.as_ref().is_some_and(Asking::is_full);
        let receiving = if is_full { PollFlags::empty() } else { PollFlags::IN };
        let client = self.client.as_fd();
        let mut watched = vec![
            PollFd::from_borrowed_fd(client, receiving | sending),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        watched.extend(self.pumps.iter().map(Pump::watched));
        if !keyboard.is_empty() {
            watched.push(PollFd::from_borrowed_fd(self.typed, keyboard));
        }
        let due = self
            .asking
            .as_ref()
            .and_then(Asking::due)
            .map(|millis| Timespec::try_from(Duration::from_millis(millis)).unwrap_or(LEFT_ALONE));
        let timeout = if turn == Turn::Later { Some(LEFT_ALONE) } else { due };
        match poll(&mut watched, timeout.as_ref()) {
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

/// Which protected paths came into being, in a line.
fn appeared(paths: &[String], count: u64) -> String {
    let more = count.saturating_sub(u64::try_from(paths.len()).unwrap_or(u64::MAX));
    let and = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("protected paths appeared: {}{and}; look at them before anything runs them", paths.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::{
        approval::{Answer, Given, Pending, Scope},
        control::TERMINAL,
        frame::{Decoder, Frame, Kind},
        state::Cause,
    };
    use rustix::{pty::OpenptFlags, termios::Winsize};
    use std::{
        fs::File,
        io::{Read, Write},
        os::{fd::OwnedFd, unix::net::UnixStream},
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

    /// A terminal: what a person sits at, and the line that programs have.
    fn terminal() -> (File, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let person = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&person).unwrap();
        rustix::pty::unlockpt(&person).unwrap();
        let line = rustix::pty::ioctl_tiocgptpeer(&person, flags).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&line, size).unwrap();
        (File::from(person), line)
    }

    /// Reads requests until one is as wanted.
    fn hear(keeper: &mut UnixStream, decoder: &mut Decoder, is_wanted: impl Fn(&Request) -> bool) -> Request {
        loop {
            while let Some(frame) = decoder.next().unwrap() {
                assert_eq!(frame.kind, Kind::Message, "no key reaches the program while a question stands");
                let request: Request = frame.parse().unwrap();
                if is_wanted(&request) {
                    return request;
                }
            }
            let mut bytes = [0; 4096];
            let count = keeper.read(&mut bytes).unwrap();
            assert_ne!(count, 0);
            decoder.feed(&bytes[..count]);
        }
    }

    /// Waits until the screen shows `text`, at most so many milliseconds.
    fn shows(person: &mut File, seen: &mut String, text: &str, most: i64) -> bool {
        while !seen.contains(text) {
            let most = Timespec { tv_sec: most / 1000, tv_nsec: most % 1000 * 1_000_000 };
            if poll(&mut [PollFd::new(person, PollFlags::IN)], Some(&most)).unwrap() == 0 {
                return false;
            }
            let mut bytes = [0; 4096];
            let count = person.read(&mut bytes).unwrap();
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        true
    }

    fn pending() -> Pending {
        Pending {
            id: "3f9a0c2e7b14-1".into(),
            sandbox: "web".into(),
            since: String::new(),
            until: "2999-01-01T00:00:00Z".into(),
            kind: "connect".into(),
            host: "api.example.com".into(),
            port: 443,
            rule: "ask *".into(),
            ..Pending::default()
        }
    }

    #[test]
    fn a_question_is_asked_on_the_screen_and_only_a_key_typed_at_it_answers() {
        let (mut person, line) = terminal();
        let (ours, mut keeper) = UnixStream::pair().unwrap();
        // Typed before the question appears: neither its answer nor lost to the program's own terminal.
        person.write_all(b"yyy").unwrap();
        let program = std::thread::spawn(move || {
            let mut decoder = Decoder::default();
            let mut typed = Vec::new();
            say(&mut keeper, &Reply::Started { pid: 2 });
            while typed.len() < 3 {
                let mut bytes = [0; 4096];
                let count = keeper.read(&mut bytes).unwrap();
                decoder.feed(&bytes[..count]);
                while let Some(frame) = decoder.next().unwrap() {
                    typed.extend(if frame.kind == Kind::Data { frame.body } else { Vec::new() });
                }
            }
            say(&mut keeper, &Reply::Event(Event::Asked(Box::new(pending()))));
            keeper.write_all(&Frame::data(TERMINAL, b"painted by the program").encode()).unwrap();
            let answer = hear(&mut keeper, &mut decoder, |request| matches!(request, Request::Answer(_)));
            say(&mut keeper, &Reply::ProgramEnded { end: End::Exited { code: 0 } });
            answer
        });
        let session = std::thread::spawn(move || {
            let keep = Box::new(|_: &Pending, _| Ok("/srv/airlock.toml".into()));
            let asking = Asking::new("calm-otter".into(), Voice::Quiet, keep);
            let client = Client::from_fd(ours.into()).unwrap();
            Session::new(client, no_signals().unwrap(), Some(line.as_fd()))
                .with_keyboard(line.as_fd(), Keyboard::Raw(Raw::prepare(line.as_fd()).unwrap()))
                .with_asking(Some(asking))
                .relay()
        });

        let mut seen = String::new();
        assert!(shows(&mut person, &mut seen, "\x1b[6n", 10_000));
        assert!(seen.contains("api.example.com port 443") && seen.contains("calm-otter"), "{seen:?}");
        assert!(!seen.contains("painted by the program"));
        let mark = seen.rsplit_once("\x1b[6n").and_then(|(before, _)| before.rsplit_once("\x1b[")).unwrap().1;
        person.write_all(format!("\x1b[{}R", mark.trim_end_matches('H')).as_bytes()).unwrap();
        // A key counts once nothing was typed for a moment: a person who is in a hurry tries again.
        for _ in 0..20 {
            if shows(&mut person, &mut seen, "painted by the program", 700) {
                break;
            }
            person.write_all(b"s").unwrap();
        }

        assert_eq!(session.join().unwrap().unwrap(), Ended::Program(End::Exited { code: 0 }));
        let answer = Answer { id: pending().id, verdict: Given::Approved, scope: Scope::Sandbox };
        assert_eq!(program.join().unwrap(), Request::Answer(answer));
        assert!(seen.contains("\x1b[?1049h") && seen.contains("\x1b[?1049l"), "{seen:?}");
    }
}
