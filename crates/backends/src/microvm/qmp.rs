//! A small client of QEMU's own protocol (qemu.org, "QMP"), for saving a machine. What it reads is bounded, and nothing it reads is trusted.

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

impl Qmp {
    /// Hears the greeting and agrees to talk. Nothing is waited for longer than `patience`.
    pub fn connect(socket: UnixStream, patience: Duration) -> Result<Qmp, Error> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let mut qmp = Qmp { socket, unread: Vec::new(), events: VecDeque::new() };
        if qmp.line()?.get("QMP").is_none() {
            return Err(Error::Nonsense);
        }
        qmp.ask("qmp_capabilities", json!({}), None)?;
        Ok(qmp)
    }

    /// Asks, with a descriptor where one belongs to it.
    pub fn ask(
        &mut self,
        command: &'static str,
        arguments: Value,
        with: Option<BorrowedFd<'_>>,
    ) -> Result<Value, Error> {
        let bytes = json!({ "execute": command, "arguments": arguments }).to_string();
        fd::send_all(self.socket.as_fd(), bytes.as_bytes(), with.as_slice())?;
        loop {
            let mut line = self.line()?;
            if let Some(answer) = line.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = line.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason").to_owned();
                return Err(Error::Refused { command, why });
            }
            self.keep(line);
        }
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
    use std::io::Write as _;

    fn told(text: &[u8]) -> Result<Qmp, Error> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(text).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        // What is asked stays in the socket.
        std::mem::forget(theirs);
        Qmp::connect(ours, Duration::from_secs(5))
    }

    #[test]
    fn events_between_answers_are_kept() {
        let text =
            b"{\"QMP\": {}}\n{\"event\": \"RESUME\"}\n{\"return\": {}}\n{\"return\": {\"status\": \"x\"}}\n";
        let mut qmp = told(text).unwrap();
        assert_eq!(qmp.ask("query-status", json!({}), None).unwrap(), json!({"status": "x"}));
        assert!(qmp.event(|event| event["event"] == "RESUME").is_ok());
    }

    #[test]
    fn whatever_makes_no_sense_is_an_error() {
        assert!(matches!(told(b"hello\n"), Err(Error::Nonsense)));
        assert!(matches!(told(b"{\"x\": 1}\n"), Err(Error::Nonsense)));
        assert!(matches!(told(b""), Err(Error::Silent(_))));
        let refused = b"{\"QMP\": {}}\n{\"error\": {\"desc\": \"no\"}}\n";
        assert!(matches!(told(refused), Err(Error::Refused { why, .. }) if why == "no"));
        let endless = [b"{\"QMP\": {}}\n".as_slice(), &vec![b' '; 2 * LONGEST]].concat();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || theirs.write_all(&endless));
        assert!(matches!(Qmp::connect(ours, Duration::from_secs(5)), Err(Error::Nonsense)));
        drop(writer.join());
    }
}
