//! A small client of QEMU's own protocol (qemu.org, "QMP"), for saving a machine. What it reads is bounded, and nothing it reads is trusted.
//!
//! Several may have spoken on the same socket before, and left answers behind: each command has a mark of its own, and
//! only the answer with that mark counts.

use airlock_linux::fd;
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{self, Read as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// A connection that takes commands.
#[derive(Debug)]
pub struct Qmp {
    socket: UnixStream,
    unread: Vec<u8>,
    events: VecDeque<Value>,
    mark: u64,
    asked: u64,
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It ended, or said nothing in time.
    #[error("QEMU does not answer")]
    Silent(#[from] io::Error),
    /// It said something that makes no sense.
    #[error("QEMU makes no sense")]
    Nonsense,
    /// It refused.
    #[error("QEMU refused {command}: {why}")]
    Refused {
        /// What.
        command: &'static str,
        /// In its words.
        why: String,
    },
}

/// Longest line that is read.
const LONGEST: usize = 256 << 10;
/// Most events that are kept for later.
const MOST_EVENTS: usize = 64;
/// Most lines that are read for one answer.
const MOST_LINES: usize = 65_536;

impl Qmp {
    /// Agrees to talk, unless somebody has before. Nothing is waited for longer than `patience`.
    pub fn connect(socket: UnixStream, patience: Duration) -> Result<Qmp, Error> {
        let mut mark = [0; 8];
        rustix::rand::getrandom(&mut mark[..], rustix::rand::GetRandomFlags::empty())
            .map_err(io::Error::from)?;
        Qmp::marked(socket, patience, u64::from_ne_bytes(mark) >> 1)
    }

    fn marked(socket: UnixStream, patience: Duration, mark: u64) -> Result<Qmp, Error> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let (unread, events) = (Vec::new(), VecDeque::new());
        let mut qmp = Qmp { socket, unread, events, mark, asked: 0 };
        match qmp.ask("qmp_capabilities", json!({}), None) {
            // Refused to whoever asks twice.
            Ok(_) | Err(Error::Refused { .. }) => Ok(qmp),
            Err(err) => Err(err),
        }
    }

    /// Asks, with a descriptor where one belongs to it.
    pub fn ask(
        &mut self,
        command: &'static str,
        arguments: Value,
        with: Option<BorrowedFd<'_>>,
    ) -> Result<Value, Error> {
        self.asked += 1;
        let id = format!("{:x}-{}", self.mark, self.asked);
        let bytes = json!({ "execute": command, "arguments": arguments, "id": id }).to_string();
        fd::send_all(self.socket.as_fd(), bytes.as_bytes(), with.as_slice())?;
        for _ in 0..MOST_LINES {
            let mut line = self.line()?;
            if line.get("id").and_then(Value::as_str) != Some(&id) {
                self.keep(line);
                continue;
            }
            if let Some(answer) = line.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = line.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason").to_owned();
                return Err(Error::Refused { command, why });
            }
            return Err(Error::Nonsense);
        }
        Err(Error::Nonsense)
    }

    /// Waits for an event, which may have been there before.
    pub fn event(&mut self, is_it: impl Fn(&Value) -> bool) -> Result<Value, Error> {
        if let Some(place) = self.events.iter().position(&is_it) {
            return self.events.remove(place).ok_or(Error::Nonsense);
        }
        loop {
            let line = self.line()?;
            if is_it(&line) {
                return Ok(line);
            }
            self.keep(line);
        }
    }

    fn keep(&mut self, line: Value) {
        if line.get("event").is_some() && self.events.len() < MOST_EVENTS {
            self.events.push_back(line);
        }
    }

    fn line(&mut self) -> Result<Value, Error> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| Error::Nonsense);
            }
            if self.unread.len() > LONGEST {
                return Err(Error::Nonsense);
            }
            let mut bytes = [0u8; 4096];
            let count = self.socket.read(&mut bytes)?;
            if count == 0 {
                return Err(Error::Silent(io::ErrorKind::UnexpectedEof.into()));
            }
            self.unread.extend_from_slice(bytes.get(..count).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    fn told(text: &[u8]) -> Result<Qmp, Error> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(text).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        // What is asked stays in the socket.
        std::mem::forget(theirs);
        Qmp::marked(ours, Duration::from_secs(5), 10)
    }

    #[test]
    fn events_between_answers_are_kept_and_answers_to_others_are_not_taken() {
        let text = b"{\"QMP\": {}}\n{\"event\": \"RESUME\"}\n{\"return\": {\"of\": \"others\"}}\n{\"return\": {}, \"id\": \"a-1\"}\n\
            {\"return\": {\"of\": \"others\"}, \"id\": \"b-2\"}\n{\"return\": {\"status\": \"x\"}, \"id\": \"a-2\"}\n";
        let mut qmp = told(text).unwrap();
        assert_eq!(qmp.ask("query-status", json!({}), None).unwrap(), json!({"status": "x"}));
        assert!(qmp.event(|event| event["event"] == "RESUME").is_ok());
    }

    #[test]
    fn whoever_comes_second_need_not_agree_again() {
        let mut qmp = told(b"{\"id\": \"a-1\", \"error\": {\"desc\": \"complete\"}}\n{\"id\": \"a-2\", \"error\": {\"desc\": \"no\"}}\n").unwrap();
        let refused = qmp.ask("migrate", json!({}), None);
        assert!(matches!(refused, Err(Error::Refused { why, .. }) if why == "no"));
    }

    #[test]
    fn whatever_makes_no_sense_is_an_error() {
        assert!(matches!(told(b"hello\n"), Err(Error::Nonsense)));
        assert!(matches!(told(b"{\"id\": \"a-1\"}\n"), Err(Error::Nonsense)));
        assert!(matches!(told(b""), Err(Error::Silent(_))));
        let endless = [b"{\"QMP\": {}}\n".as_slice(), &vec![b' '; 2 * LONGEST]].concat();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || theirs.write_all(&endless));
        assert!(matches!(Qmp::connect(ours, Duration::from_secs(5)), Err(Error::Nonsense)));
        drop(writer.join());
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_monitor_harm_whoever_listens(text in prop::collection::vec(any::<u8>(), 0..2000)) {
            drop(told(&text));
        }
    }
}
