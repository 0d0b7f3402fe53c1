//! One connection to a server, from its handshake to its end.
//!
//! It serves one near connection at a time, which the ledger has as a [`Flow`]; between two of them it is a
//! [spare](super::spare) one.

use super::{calls::Caller, flow::Flow, line::Line, tasks::Tasks};
use crate::tls::Counts;
use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
};
use tokio::task::AbortHandle;

/// What is known of a connection, also while requests are under way on it.
pub(super) struct Link {
    /// Whom it leads to.
    pub(super) address: SocketAddr,
    /// The server's key, as a pin.
    key: RefCell<Option<String>>,
    /// What went over it.
    pub(super) counts: Arc<Counts>,
    is_over: Cell<bool>,
    is_lost: Cell<bool>,
    /// Whether the server may have tied a person's name to it: it is nobody else's then.
    is_bound: Cell<bool>,
    /// Who uses it.
    flow: RefCell<Option<Rc<Flow>>>,
    task: RefCell<Option<AbortHandle>>,
}

impl Link {
    /// One that nobody uses yet.
    pub(super) fn new(address: SocketAddr, counts: Arc<Counts>) -> Rc<Link> {
        Rc::new(Link {
            address,
            key: RefCell::default(),
            counts,
            is_over: Cell::new(false),
            is_lost: Cell::new(false),
            is_bound: Cell::new(false),
            flow: RefCell::default(),
            task: RefCell::default(),
        })
    }

    /// Whether the server's key is one of these; any is right where there are none.
    pub(super) fn meets(&self, pins: &[String]) -> bool {
        pins.is_empty() || self.key.borrow().as_ref().is_some_and(|key| pins.contains(key))
    }

    /// The server has shown this key.
    pub(super) fn has_key(&self, key: Option<String>) {
        self.key.replace(key);
    }

    /// Moves its bytes on `tasks` until it ends.
    pub(super) fn run<E>(
        self: &Rc<Link>,
        tasks: &Tasks,
        connection: impl Future<Output = Result<(), E>> + 'static,
    ) {
        let link = Rc::clone(self);
        let task = tasks.start(async move {
            link.is_lost.set(connection.await.is_err());
            link.ended();
        });
        self.task.replace(Some(task));
    }

    /// It ends before it should.
    pub(super) fn lose(&self) {
        self.is_lost.set(true);
    }

    /// It has ended.
    pub(super) fn ended(&self) {
        self.is_over.set(true);
        self.release();
    }

    /// `flow` uses it from now on.
    pub(super) fn serve(&self, flow: &Rc<Flow>) {
        self.flow.replace(Some(Rc::clone(flow)));
    }

    /// Nobody uses it any more.
    pub(super) fn release(&self) {
        let flow = self.flow.take();
        drop(flow);
    }

    /// Ends it, whatever is under way.
    pub(super) fn end(&self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        self.ended();
    }

    /// It is for no other near connection.
    pub(super) fn bind(&self) {
        self.is_bound.set(true);
    }

    /// Whether it is for no other near connection.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound.get()
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Whether it was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }
}

/// The connections that one near connection uses.
#[derive(Default)]
pub(super) struct Links(RefCell<Vec<Rc<Link>>>);

impl Links {
    /// One more.
    pub(super) fn add(&self, link: &Rc<Link>) {
        let mut all = self.0.borrow_mut();
        all.retain(|link| !link.is_over.get());
        all.push(Rc::clone(link));
    }

    /// This one is used no longer, or by another.
    pub(super) fn remove(&self, link: &Rc<Link>) {
        self.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, link));
    }

    /// Their servers will see a reset.
    pub(super) fn reset(&self) {
        self.0.borrow().iter().for_each(|link| link.counts.resets(true));
    }

    /// Ends all of them.
    pub(super) fn end(&self) {
        let all = self.0.take();
        all.iter().for_each(|link| link.end());
    }
}

/// What sends requests over a connection.
pub(super) enum Sender {
    /// HTTP/1.1: one at a time.
    Http1(Line),
    /// HTTP/2.
    Http2(Caller),
}

impl Sender {
    /// Whether nothing can be sent any more.
    pub(super) fn is_closed(&mut self) -> bool {
        match self {
            Sender::Http1(line) => line.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }
}
