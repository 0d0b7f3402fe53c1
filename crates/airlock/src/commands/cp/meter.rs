//! How far a copy is, where it takes longer than a second.

use airlock_copy::tally::Tally;
use airlock_protocol::size;
use std::{
    io::{IsTerminal, Write as _, stderr},
    time::{Duration, Instant},
};

/// Nothing is said before.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a terminal is written to.
const OFTEN: Duration = Duration::from_millis(200);
/// How often anything else is.
const SELDOM: Duration = Duration::from_secs(10);

/// Says how far a copy is.
pub(super) struct Meter {
    next: Instant,
    is_quiet: bool,
    is_terminal: bool,
    has_said: bool,
}

impl Meter {
    pub(super) fn new(is_quiet: bool) -> Meter {
        let is_terminal = stderr().is_terminal();
        let patience = if is_terminal { PATIENCE } else { SELDOM };
        Meter { next: Instant::now() + patience, is_quiet, is_terminal, has_said: false }
    }

    /// Something was copied.
    pub(super) fn tick(&mut self, tally: &Tally) {
        let now = Instant::now();
        if self.is_quiet || now < self.next {
            return;
        }
        self.has_said = true;
        let words = format!("airlock: {} files, {}", tally.files, size::show(tally.bytes));
        // A terminal that cannot be written to has nobody in front of it.
        let _ = match self.is_terminal {
            true => write!(stderr(), "\r{words}\x1b[K"),
            false => writeln!(stderr(), "{words}"),
        };
        self.next = now + if self.is_terminal { OFTEN } else { SELDOM };
    }

    /// The copy is over.
    pub(super) fn end(&mut self) {
        if self.has_said && self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
