//! Requests under way: what they moved, how they ended, and which of them rules no longer allow.

use super::filter::{Stop, Way};
use airlock_gate::{Finished, Gate, Permit, Reason, Trace, judge::Judge, meter::Meter, request::Request};
use airlock_protocol::policy::Verdict;
use std::{
    cell::{Cell, RefCell},
    fmt,
    net::SocketAddr,
    rc::{Rc, Weak},
    task::{Context, Waker},
    time::Instant,
};

/// One request from its permit to the end of its answer.
pub(crate) struct Flight {
    gate: Rc<Gate>,
    trace: Trace,
    begun: Instant,
    request: Rc<Request>,
    was_asked: bool,
    pub(super) meter: Meter,
    /// Keys of which the server must have one; any where empty.
    pub(super) pins: Vec<String>,
    sent: Cell<u64>,
    received: Cell<u64>,
    code: Cell<Option<u16>>,
    address: Cell<Option<SocketAddr>>,
    is_over: Cell<bool>,
    why: RefCell<Option<Why>>,
    wakers: RefCell<[Option<Waker>; 3]>,
}

/// Why a request was stopped.
#[derive(Clone)]
pub(super) enum Why {
    /// The rules no longer allow it.
    Revoked,
    /// The bytes of its rule are spent.
    Spent,
    /// Something that looks at it stopped it.
    Filter(Stop),
}

/// Who waits for something of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waits {
    /// The body on its way out.
    Out,
    /// The body on its way in.
    In,
    /// Whoever waits for the answer's head.
    Head,
}

impl From<Way> for Waits {
    fn from(way: Way) -> Waits {
        match way {
            Way::Out => Waits::Out,
            Way::In => Waits::In,
        }
    }
}

impl Flight {
    /// What the rules allowed, or a person.
    pub(super) fn new(gate: &Rc<Gate>, permit: Permit, request: Rc<Request>) -> Flight {
        let (was_asked, meter, pins) = (permit.was_asked(), permit.meter(), permit.pins().to_vec());
        Flight {
            gate: Rc::clone(gate),
            trace: permit.into_trace(),
            begun: Instant::now(),
            request,
            was_asked,
            meter,
            pins,
            sent: Cell::new(0),
            received: Cell::new(0),
            code: Cell::new(None),
            address: Cell::new(None),
            is_over: Cell::new(false),
            why: RefCell::new(None),
            wakers: RefCell::default(),
        }
    }

    /// Bytes of a body go on.
    pub(super) fn count(&self, way: Way, bytes: usize) {
        let counter = match way {
            Way::Out => &self.sent,
            Way::In => &self.received,
        };
        counter.set(counter.get().saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX)));
    }

    /// The server that has it.
    pub(super) fn leads_to(&self, address: Option<SocketAddr>) {
        self.address.set(address);
    }

    /// The answer begins.
    pub(super) fn answered(&self, code: u16) {
        self.code.set(Some(code));
    }

    /// The answer has ended as it should.
    pub(super) fn over(&self) {
        self.is_over.set(true);
    }

    /// Ends it where it is. What stopped it first counts.
    pub(super) fn stop(&self, why: Why) {
        self.why.borrow_mut().get_or_insert(why);
        for waker in self.wakers.borrow_mut().iter_mut().filter_map(Option::take) {
            waker.wake();
        }
    }

    /// Whether it was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.why.borrow().is_some()
    }

    /// Why it was stopped, if it was.
    pub(super) fn why(&self) -> Option<Why> {
        self.why.borrow().clone()
    }

    /// Wakes whoever waits when it is stopped.
    pub(super) fn watch(&self, who: Waits, cx: &Context<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        let [out, inward, head] = &mut *wakers;
        let place = match who {
            Waits::Out => out,
            Waits::In => inward,
            Waits::Head => head,
        };
        match place {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            place => *place = Some(cx.waker().clone()),
        }
    }

    /// What was permitted turns out to be forbidden: the ledger has it.
    pub(super) fn note(&self, reason: Reason) {
        let _ = self.gate.note_denial(&self.trace, reason, "the flow was ended");
    }

    fn is_still_allowed(&self, judge: &Judge) -> bool {
        match judge.request(&self.request).verdict {
            Some(Verdict::Allow) => true,
            Some(Verdict::Ask) => self.was_asked,
            Some(Verdict::Deny) | None => false,
        }
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({})", self.trace.flow())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let status = match (&*self.why.borrow(), self.is_over.get()) {
            (Some(Why::Revoked), _) => "revoked",
            (Some(Why::Spent), _) => "spent",
            (Some(Why::Filter(Stop::Denied(_))), _) => "denied",
            (Some(Why::Filter(Stop::Failed(_))), _) => "failed",
            (Some(Why::Filter(Stop::Answered(_))), _) => "closed",
            (None, true) => "closed",
            (None, false) => "reset",
        };
        self.gate.finish(&Finished {
            trace: &self.trace,
            address: self.address.get(),
            sent: self.sent.get(),
            received: self.received.get(),
            lasted: self.begun.elapsed(),
            status,
            code: self.code.get(),
        });
    }
}

/// The requests of one connection that are under way.
#[derive(Debug, Default)]
pub(crate) struct Requests(RefCell<Vec<Weak<Flight>>>);

/// So many places are looked through for ones that are free.
const FEW: usize = 16;

impl Requests {
    /// One more.
    pub(super) fn enter(&self, flight: &Rc<Flight>) {
        let mut all = self.0.borrow_mut();
        if all.len() >= FEW {
            all.retain(|flight| flight.strong_count() > 0);
        }
        all.push(Rc::downgrade(flight));
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().iter().filter(|flight| flight.strong_count() > 0).count()
    }

    /// Stops all of them.
    pub(crate) fn revoke(&self) {
        let all: Vec<_> = self.0.borrow().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|flight| flight.stop(Why::Revoked));
    }

    /// Stops those that `judge` no longer allows.
    pub(crate) fn judge_anew(&self, judge: &Judge) {
        let all: Vec<_> = self.0.borrow().iter().filter_map(Weak::upgrade).collect();
        for flight in all.into_iter().filter(|flight| !flight.is_still_allowed(judge)) {
            flight.stop(Why::Revoked);
        }
    }
}
