//! One permitted connection to a server, as the ledger has it.

use super::Session;
use crate::tls::Counts;
use airlock_gate::{Denial, Finished, Reason, Trace};
use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Instant,
};

/// Its end is recorded when nobody needs it any more.
pub(super) struct Flow {
    session: Rc<Session>,
    trace: Trace,
    begun: Instant,
    address: Cell<Option<SocketAddr>>,
    counts: RefCell<Option<Arc<Counts>>>,
    /// The server's key, as a pin.
    key: RefCell<Option<String>>,
    status: Cell<&'static str>,
}

impl Flow {
    /// Not dialled yet.
    pub(super) fn new(session: &Rc<Session>, trace: Trace) -> Flow {
        Flow {
            session: Rc::clone(session),
            trace,
            begun: Instant::now(),
            address: Cell::new(None),
            counts: RefCell::new(None),
            key: RefCell::new(None),
            status: Cell::new("closed"),
        }
    }

    /// The server was reached.
    pub(super) fn reached(&self, address: SocketAddr, counts: Arc<Counts>) {
        self.address.set(Some(address));
        self.counts.replace(Some(counts));
    }

    /// The server's address.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address.get()
    }

    /// The server has shown this key.
    pub(super) fn has_key(&self, key: Option<String>) {
        self.key.replace(key);
    }

    /// Whether the server's key is one of these; any is right where there are none.
    pub(super) fn meets(&self, pins: &[String]) -> bool {
        pins.is_empty() || self.key.borrow().as_ref().is_some_and(|key| pins.contains(key))
    }

    /// How it will be said to have ended.
    pub(super) fn end(&self, status: &'static str) {
        self.status.set(status);
    }

    /// It turned out to be forbidden.
    pub(super) fn note_denial(&self, reason: Reason, why: &str) -> Result<(), Denial> {
        self.session.carrier.gate.note_denial(&self.trace, reason, why)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let counts = self.counts.borrow();
        let is_revoked = self.session.is_revoked.get();
        if let Some(counts) = counts.as_ref().filter(|_| is_revoked) {
            counts.resets(true);
        }
        self.session.carrier.gate.finish(&Finished {
            trace: &self.trace,
            address: self.address.get(),
            sent: counts.as_ref().map_or(0, |counts| counts.written()),
            received: counts.as_ref().map_or(0, |counts| counts.read()),
            lasted: self.begun.elapsed(),
            status: if is_revoked { "revoked" } else { self.status.get() },
            code: None,
        });
    }
}
