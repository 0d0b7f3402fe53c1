//! How far something has come, where it takes longer than a second: a line that changes on a terminal, a plain line every ten
//! seconds elsewhere.

use crate::say::Voice;
use airlock_protocol::size;
use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// Something that goes on.
pub(crate) struct Progress {
    what: &'static str,
    voice: Voice,
    began: Instant,
    told: Option<Instant>,
    bytes: u64,
}

const FIRST: Duration = Duration::from_secs(1);
const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(10);

impl Progress {
    /// `what` begins the line: `copied`.
    pub(crate) fn new(what: &'static str, voice: Voice) -> Progress {
        Progress { what, voice, began: Instant::now(), told: None, bytes: 0 }
    }

    /// So many bytes more.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let now = Instant::now();
        let mut stderr = std::io::stderr();
        let every = if stderr.is_terminal() { ON_TERMINAL } else { ELSEWHERE };
        let due = self.told.map_or(self.began + FIRST, |told| told + every);
        if self.voice == Voice::Quiet || now < due {
            return;
        }
        self.told = Some(now);
        let line = format!("airlock: {} {}", self.what, size::show(self.bytes));
        // Nobody is there to hear it, then.
        let _ = match stderr.is_terminal() {
            true => write!(stderr, "\r\x1b[2K\x1b[2m{line}\x1b[0m"),
            false => writeln!(stderr, "{line}"),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.told.is_some() && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
