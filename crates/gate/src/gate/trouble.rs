//! A ledger that cannot be written: nothing crosses then, and somebody has to hear why.

use super::Gate;
use crate::ledger;
use airlock_protocol::event::Event;
use std::{cell::Cell, time::Duration};
use tokio::{sync::watch, time::Instant};

/// A ledger that fails and works by turns is told of once in this time.
const QUIET: Duration = Duration::from_secs(60);

/// Whether the ledger fails now, and who was told.
#[derive(Debug)]
pub(super) struct Trouble {
    fails: Cell<bool>,
    quiet_until: Cell<Option<Instant>>,
    told: watch::Sender<Option<String>>,
}

impl Default for Trouble {
    fn default() -> Trouble {
        Trouble { fails: Cell::new(false), quiet_until: Cell::new(None), told: watch::Sender::new(None) }
    }
}

impl Gate {
    /// Why nothing crosses, once for each spell in which the ledger cannot be written.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.told.subscribe()
    }

    pub(super) fn ledger_fails(&self, err: &ledger::Error) {
        let now = Instant::now();
        if self.trouble.fails.replace(true) || self.trouble.quiet_until.get().is_some_and(|until| now < until)
        {
            return;
        }
        self.trouble.quiet_until.set(Some(now + QUIET));
        let why = words(err);
        self.trouble.told.send_replace(Some(why.clone()));
        self.events.tell(|| Event::LedgerFails { why });
    }

    pub(super) fn ledger_works(&self) {
        self.trouble.fails.set(false);
    }
}

/// What the kernel said, without its number, and what to do.
fn words(err: &ledger::Error) -> String {
    let said = err.to_string();
    let said = said.split(" (os error").next().unwrap_or_default();
    format!("{said}; nothing crosses the wall until it can be written: free space there")
}
