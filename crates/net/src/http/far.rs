//! The server's side: connections to where the requests of one near connection go.
//!
//! There is one, unless the program speaks HTTP/2 and the server does not. It is dialled, or it is a
//! [spare](super::spare) one. When the server has closed it, the gate is asked for another before the next request.

use super::{
    Session,
    calls::{Begins, Caller},
    flow::Flow,
    heads::Place,
    line::Line,
    link::{Link, Sender},
    spare::{Destination, Spare, Spoken},
    target::Connection,
};
use crate::{
    egress::{DialError, Dialled},
    relay,
    tls::{Stream, Untrusted, Wire},
};
use airlock_gate::{Crossing, Denial, Permit, Reason, host::Target};
use http::Version;
use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

/// Of a head from the server.
const HEAD: usize = 64 * 1024;
/// HTTP/2: what a server may send before we have passed it on.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;
/// HTTP/2: the longest frame.
const FRAME: u32 = 64 * 1024;
/// A server that is about to close a connection which waited longer than this may not have told us yet.
const FRESH: Duration = Duration::from_secs(1);

/// What HTTP/1.1 is called inside TLS.
pub(super) const HTTP1: &[u8] = b"http/1.1";

/// Where requests go.
pub(super) struct Origin {
    session: Rc<Session>,
    pub(super) connection: Connection,
    pub(super) place: Place,
    /// The same, and the protocols that the program offers.
    destination: Destination,
    /// Those that are offered to the server.
    offers: RefCell<Vec<&'static [u8]>>,
    /// For the first dial.
    permit: RefCell<Option<Permit>>,
    idle: RefCell<Vec<Kept>>,
    shared: RefCell<Option<Shared>>,
    /// Why there is no server, once that is certain.
    failure: RefCell<Option<Failure>>,
}

/// A connection of HTTP/2.
#[derive(Clone)]
struct Shared {
    sender: Caller,
    link: Rc<Link>,
    flow: Rc<Flow>,
    past: Past,
}

/// A connection to a server that takes one more request.
pub(super) enum Far {
    /// HTTP/1.1.
    Http1(Kept),
    /// HTTP/2.
    Http2(Caller, Rc<Flow>, Past),
}

/// One of HTTP/1.1.
pub(super) struct Kept {
    pub(super) line: Line,
    pub(super) flow: Rc<Flow>,
    pub(super) past: Past,
}

/// What a connection was used for before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// Nothing.
    New,
    /// Requests of other near connections; for how long it has waited since.
    Spare(Duration),
    /// Requests of this near connection.
    Used,
}

/// Why no server takes a request.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// It is not allowed, or no longer.
    Denied(Denial),
    /// It cannot be reached, or not in private.
    Failed {
        /// For the program.
        status: u16,
        /// In a word.
        reason: &'static str,
        /// In a sentence.
        why: String,
    },
}

impl Failure {
    fn new(status: u16, reason: &'static str, why: String) -> Failure {
        Failure::Failed { status, reason, why }
    }
}

impl Far {
    /// As the ledger has it.
    pub(super) fn flow(&self) -> &Flow {
        match self {
            Far::Http1(kept) => &kept.flow,
            Far::Http2(_, flow, _) => flow,
        }
    }

    /// What it was used for before.
    pub(super) fn past(&self) -> Past {
        match self {
            Far::Http1(kept) => kept.past,
            Far::Http2(_, _, past) => *past,
        }
    }

    /// What is spoken.
    pub(super) fn version(&self) -> Version {
        match self {
            Far::Http1(_) => Version::HTTP_11,
            Far::Http2(..) => Version::HTTP_2,
        }
    }

    /// Whether the rule that permitted a request takes this server, which the connection's permit need not tell: others of its
    /// requests may be for rules without pins.
    pub(super) fn check(&self, target: &Target, pins: &[String]) -> Result<(), Failure> {
        if self.flow().meets(pins) {
            return Ok(());
        }
        let why = format!("the key of {target} is none that the rule's pins name");
        match self.flow().note_denial(Reason::Certificate, &why) {
            Ok(()) => Ok(()),
            Err(denial) => Err(Failure::Denied(denial)),
        }
    }
}

impl Origin {
    /// Where `connection` leads. `permit` is for the first dial; others ask for their own.
    pub(super) fn new(
        session: &Rc<Session>,
        connection: Connection,
        offers: Vec<&'static [u8]>,
        permit: Option<Permit>,
    ) -> Origin {
        let Connection { target, port, is_tls } = &connection;
        Origin {
            session: Rc::clone(session),
            place: Place::new(target, *port, *is_tls),
            offers: RefCell::new(offers.clone()),
            destination: Destination { target: target.clone(), port: *port, is_tls: *is_tls, offers },
            connection,
            permit: RefCell::new(permit),
            idle: RefCell::default(),
            shared: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    /// What the server will speak, where that is known before it is asked.
    pub(super) fn spoken(&self) -> Option<Spoken> {
        self.session.carrier.spares.spoken(&self.destination)
    }

    /// The program was told that the server speaks HTTP/1.1.
    pub(super) fn offer_http1(&self) {
        self.offers.borrow_mut().retain(|offer| *offer == HTTP1);
    }

    /// Dials now, before there is a request; whether the server speaks HTTP/2.
    pub(super) async fn prepare(&self) -> Result<bool, Failure> {
        let far = self.reach().await?;
        let is_http2 = matches!(far, Far::Http2(..));
        if let Far::Http1(kept) = far {
            self.give_back(kept);
        }
        Ok(is_http2)
    }

    /// From now on every request fails like this.
    pub(super) fn fail(&self, failure: Failure) {
        self.failure.replace(Some(failure));
    }

    /// A connection that takes a request, dialled if need be. One that waited for long is not for a request that cannot be
    /// sent again.
    pub(super) async fn take(&self, can_repeat: bool) -> Result<Far, Failure> {
        if let Some(failure) = &*self.failure.borrow() {
            return Err(failure.clone());
        }
        if let Some(Shared { sender, flow, past, .. }) = &*self.shared.borrow()
            && !sender.is_closed()
        {
            return Ok(Far::Http2(sender.clone(), Rc::clone(flow), *past));
        }
        if let Some(kept) = self.take_idle(can_repeat) {
            return Ok(Far::Http1(kept));
        }
        self.reach().await
    }

    /// One that can take another request.
    fn take_idle(&self, can_repeat: bool) -> Option<Kept> {
        let is_stale =
            |kept: &Kept| !can_repeat && matches!(kept.past, Past::Spare(waited) if waited > FRESH);
        let mut idle = self.idle.borrow_mut();
        idle.retain_mut(|kept| !kept.line.is_closed() && !is_stale(kept));
        idle.pop()
    }

    /// Takes a connection back whose answer is over.
    pub(super) fn give_back(&self, kept: Kept) {
        self.idle.borrow_mut().push(kept);
    }

    /// Lets connections go that the server closes while they have no request. Never ends.
    pub(super) async fn watch(&self) {
        poll_fn(|cx: &mut Context<'_>| {
            self.idle.borrow_mut().retain_mut(|kept| kept.line.poll_closed(cx).is_pending());
            Poll::Pending
        })
        .await
    }

    /// The program did not finish its handshake.
    pub(super) fn unused(&self) {
        self.idle.borrow().iter().for_each(|kept| kept.flow.end("reset"));
        if let Some(shared) = &*self.shared.borrow() {
            shared.flow.end("reset");
        }
        self.retire();
    }

    /// The near connection has ended as it should: the connections to the server may wait for another.
    pub(super) fn retire(&self) {
        let spares = &self.session.carrier.spares;
        for Kept { line, flow, .. } in self.idle.take() {
            drop(flow);
            let link = Rc::clone(line.link());
            self.session.links.remove(&link);
            spares.keep(self.destination.clone(), Sender::Http1(line), link);
        }
        if let Some(Shared { sender, link, flow, .. }) = self.shared.take()
            && self.session.requests.count() == 0
        {
            drop(flow);
            self.session.links.remove(&link);
            spares.keep(self.destination.clone(), Sender::Http2(sender), link);
        }
    }

    /// Asks for a connection; then one that waits, or a new one.
    async fn reach(&self) -> Result<Far, Failure> {
        let Connection { target, port, .. } = &self.connection;
        let known = self.permit.borrow_mut().take();
        let permit = match known {
            Some(permit) => permit,
            None => {
                let crossing = Crossing::Connect { target: target.clone(), port: *port };
                self.session.carrier.gate.ask(crossing).await.map_err(Failure::Denied)?
            }
        };
        self.session.carrier.may_connect(target, *port).await?;
        let flow = Flow::new(&self.session, permit.trace());
        let generation = self.session.carrier.gate.generation_now();
        match self.session.carrier.spares.take(&self.destination, &permit, generation) {
            Some(spare) => Ok(self.reuse(spare, flow, &permit)),
            None => self.dial(permit, flow).await,
        }
    }

    /// Goes on with one that waited.
    fn reuse(&self, spare: Spare, flow: Rc<Flow>, permit: &Permit) -> Far {
        let Spare { sender, link, since } = spare;
        self.leads_to(permit, &link);
        flow.uses(&link, link.counts.written(), link.counts.read());
        self.session.links.add(&link);
        let past = Past::Spare(since.elapsed());
        match sender {
            Sender::Http1(line) => Far::Http1(Kept { line, flow, past }),
            Sender::Http2(sender) => self.share(sender, link, (flow, past)),
        }
    }

    fn leads_to(&self, permit: &Permit, link: &Link) {
        if permit.private().iter().any(|range| range.contains(link.address.ip())) {
            self.session.handle.leads_to(link.address.ip());
            self.session.carrier.judge_anew();
        }
    }

    async fn dial(&self, permit: Permit, flow: Rc<Flow>) -> Result<Far, Failure> {
        let (pins, private) = (permit.pins().to_vec(), permit.private().to_vec());
        let dialled = self.session.carrier.egress.dial(permit).await;
        let Dialled { stream, address } = dialled.map_err(|err| self.undialled(&flow, &err))?;
        relay::keep_alive(&stream);
        if private.iter().any(|range| range.contains(address.ip())) {
            self.session.handle.leads_to(address.ip());
            self.session.carrier.judge_anew();
        }
        let wire = Wire::new(stream);
        let link = Link::new(address, wire.counts());
        flow.uses(&link, 0, 0);
        self.session.links.add(&link);
        let far = self.greet(wire, &link, flow, &pins).await;
        if far.is_err() {
            self.session.links.remove(&link);
            link.end();
        }
        far
    }

    fn undialled(&self, flow: &Flow, err: &DialError) -> Failure {
        flow.end(err.word());
        if err.is_denial() {
            // An address is refused also where others are only audited.
            if let Err(denial) = flow.note_denial(Reason::Address, &err.to_string()) {
                return Failure::Denied(denial);
            }
        }
        let status = if matches!(err, DialError::TimedOut { .. }) { 504 } else { 502 };
        Failure::new(status, err.word(), err.to_string())
    }

    /// Speaks TLS where the near side does, then HTTP.
    async fn greet(
        &self,
        wire: Wire,
        link: &Rc<Link>,
        flow: Rc<Flow>,
        pins: &[String],
    ) -> Result<Far, Failure> {
        if !self.connection.is_tls {
            return Ok(http1(Stream::Plain(wire), link, flow));
        }
        let Connection { target, port, .. } = &self.connection;
        let trust = &self.session.carrier.egress.trust;
        let offers = self.offers.borrow().clone();
        let stream = match trust.connect(target, pins, &offers, wire).await {
            Ok((tls, key)) => {
                link.has_key(key);
                Stream::Far(Box::new(tls))
            }
            Err(Untrusted::Certificate(why)) => {
                flow.end("certificate");
                let why = format!("the certificate of {target}:{port} is not to be trusted: {why}");
                let _ = flow.note_denial(Reason::Certificate, &why);
                return Err(Failure::new(502, "certificate", why));
            }
            Err(err) => {
                flow.end("tls");
                let status = if matches!(err, Untrusted::Late) { 504 } else { 502 };
                return Err(Failure::new(status, "tls", format!("{target}:{port}: {err}")));
            }
        };
        let is_http2 = stream.speaks_http2();
        if offers == self.destination.offers {
            let spoken = Spoken { is_http2, is_tls12: stream.is_tls12() };
            self.session.carrier.spares.spoke(&self.destination, spoken);
        }
        match is_http2 {
            true => self.http2(stream, link, flow).await,
            false => Ok(http1(stream, link, flow)),
        }
    }

    async fn http2(&self, stream: Stream, link: &Rc<Link>, flow: Rc<Flow>) -> Result<Far, Failure> {
        let tasks = &self.session.carrier.spares.tasks;
        let begins = Begins {
            stream_window: STREAM_WINDOW,
            connection_window: CONNECTION_WINDOW,
            frame: FRAME,
            head: HEAD,
        };
        let (sender, connection) = begins.greet(stream).await.map_err(|err| lost(&err))?;
        let sender = Caller::new(sender, link, tasks);
        link.run(tasks, connection);
        Ok(self.share(sender, Rc::clone(link), (flow, Past::New)))
    }

    fn share(&self, sender: Caller, link: Rc<Link>, (flow, past): (Rc<Flow>, Past)) -> Far {
        let shared = Shared { sender: sender.clone(), link, flow: Rc::clone(&flow), past };
        self.shared.replace(Some(shared));
        Far::Http2(sender, flow, past)
    }
}

fn http1(stream: Stream, link: &Rc<Link>, flow: Rc<Flow>) -> Far {
    Far::Http1(Kept { line: Line::new(stream, link), flow, past: Past::New })
}

fn lost(err: &dyn std::error::Error) -> Failure {
    Failure::new(502, "reset", format!("the server does not speak HTTP with us: {err}"))
}
