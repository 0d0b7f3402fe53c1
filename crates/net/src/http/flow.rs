//! A near connection's use of a connection to a server, as the ledger has it.

use super::{Session, link::Link};
use airlock_gate::{Denial, Finished, Reason, Trace};
use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::Instant,
};

/// Its end is recorded when nobody needs it any more.
pub(super) struct Flow {
    session: Rc<Session>,
    trace: Trace,
    begun: Instant,
    used: RefCell<Option<Used>>,
    status: Cell<&'static str>,
}

/// A connection, and what had gone over it before.
struct Used {
    link: Rc<Link>,
    written: u64,
    read: u64,
}

impl Flow {
    /// Not dialled yet.
    pub(super) fn new(session: &Rc<Session>, trace: Trace) -> Rc<Flow> {
        Rc::new(Flow {
            session: Rc::clone(session),
            trace,
            begun: Instant::now(),
            used: RefCell::default(),
            status: Cell::new("closed"),
        })
    }

    /// It goes over this connection; `written` and `read` bytes of that were for others.
    pub(super) fn uses(self: &Rc<Flow>, link: &Rc<Link>, written: u64, read: u64) {
        self.used.replace(Some(Used { link: Rc::clone(link), written, read }));
        link.serve(self);
    }

    /// The server's address.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.used.borrow().as_ref().map(|used| used.link.address)
    }

    /// Whether the server's key is one of these; any is right where there are none.
    pub(super) fn meets(&self, pins: &[String]) -> bool {
        pins.is_empty() || self.used.borrow().as_ref().is_some_and(|used| used.link.meets(pins))
    }

    /// What was said on its connection is about the connection: it is for no other near connection.
    pub(super) fn binds(&self) {
        if let Some(used) = &*self.used.borrow() {
            used.link.bind();
        }
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
        let used = self.used.borrow();
        let is_revoked = self.session.is_revoked.get();
        if let Some(used) = used.as_ref().filter(|_| is_revoked) {
            used.link.counts.resets(true);
        }
        let status = match used.as_ref().is_some_and(|used| used.link.is_lost()) {
            _ if is_revoked => "revoked",
            true => "reset",
            false => self.status.get(),
        };
        let bytes = |used: &Used| {
            let counts = &used.link.counts;
            (counts.written().saturating_sub(used.written), counts.read().saturating_sub(used.read))
        };
        let (sent, received) = used.as_ref().map_or((0, 0), bytes);
        self.session.carrier.gate.finish(&Finished {
            trace: &self.trace,
            address: used.as_ref().map(|used| used.link.address),
            sent,
            received,
            lasted: self.begun.elapsed(),
            status,
            code: None,
        });
    }
}
