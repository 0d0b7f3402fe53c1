//! The server's side: connections to where the requests of one near connection go.
//!
//! There is one, unless the program speaks HTTP/2 and the server does not. When the server has closed it, the gate is asked
//! for another before the next request.

use super::{Session, body::Body, flow::Flow, heads::Place, target::Connection};
use crate::{
    egress::{DialError, Dialled},
    relay,
    tls::{Stream, Untrusted, Wire},
};
use airlock_gate::{Crossing, Denial, Permit, Reason, host::Target};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use std::{cell::RefCell, rc::Rc};

/// Of a head from the server.
const HEAD: usize = 64 * 1024;
/// Read or written at once.
const BUFFER: usize = 128 * 1024;
/// HTTP/2: what a server may send before we have passed it on.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;
/// HTTP/2: the longest frame.
const FRAME: u32 = 64 * 1024;

/// Where requests go.
pub(super) struct Origin {
    session: Rc<Session>,
    pub(super) connection: Connection,
    pub(super) place: Place,
    /// Protocols that are offered to the server.
    offers: Vec<&'static [u8]>,
    /// For the first dial.
    permit: RefCell<Option<Permit>>,
    idle: RefCell<Vec<Kept>>,
    shared: RefCell<Option<(http2::SendRequest<Body>, Rc<Flow>)>>,
    /// Why there is no server, once that is certain.
    failure: RefCell<Option<Failure>>,
}

/// A connection to a server that takes one more request.
pub(super) enum Far {
    /// HTTP/1.1.
    Http1(Kept),
    /// HTTP/2.
    Http2(http2::SendRequest<Body>, Rc<Flow>),
}

/// One of HTTP/1.1.
pub(super) struct Kept {
    pub(super) sender: http1::SendRequest<Body>,
    pub(super) flow: Rc<Flow>,
    /// Whether it has had a request before.
    pub(super) is_used: bool,
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
    fn flow(&self) -> &Flow {
        match self {
            Far::Http1(kept) => &kept.flow,
            Far::Http2(_, flow) => flow,
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
        Origin {
            session: Rc::clone(session),
            place: Place::new(&connection.target, connection.port, connection.is_tls),
            connection,
            offers,
            permit: RefCell::new(permit),
            idle: RefCell::default(),
            shared: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    /// Dials now, before there is a request; whether the server speaks HTTP/2.
    pub(super) async fn prepare(&self) -> Result<bool, Failure> {
        let far = self.dial().await?;
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

    /// A connection that takes a request, dialled if need be.
    pub(super) async fn take(&self) -> Result<Far, Failure> {
        if let Some(failure) = &*self.failure.borrow() {
            return Err(failure.clone());
        }
        if let Some((sender, flow)) = &*self.shared.borrow()
            && !sender.is_closed()
        {
            return Ok(Far::Http2(sender.clone(), Rc::clone(flow)));
        }
        if let Some(kept) = self.take_idle().await {
            return Ok(Far::Http1(kept));
        }
        self.dial().await
    }

    /// One that can take another request, or soon will.
    async fn take_idle(&self) -> Option<Kept> {
        let found = {
            let mut idle = self.idle.borrow_mut();
            idle.retain(|kept| !kept.sender.is_closed());
            match idle.iter().position(|kept| kept.sender.is_ready()) {
                Some(ready) => Some(idle.swap_remove(ready)),
                // The last answer has been passed on; its connection is about to know.
                None if !self.session.is_http2.get() => idle.pop(),
                None => None,
            }
        };
        let mut kept = found?;
        kept.sender.ready().await.ok()?;
        Some(kept)
    }

    /// Takes a connection back whose answer has begun.
    pub(super) fn give_back(&self, kept: Kept) {
        if !kept.sender.is_closed() {
            self.idle.borrow_mut().push(kept);
        }
    }

    async fn dial(&self) -> Result<Far, Failure> {
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
        let flow = Rc::new(Flow::new(&self.session, permit.trace()));
        let (pins, private) = (permit.pins().to_vec(), permit.private().to_vec());
        let dialled = self.session.carrier.egress.dial(permit).await;
        let Dialled { stream, address } = dialled.map_err(|err| self.undialled(&flow, &err))?;
        relay::keep_alive(&stream);
        if private.iter().any(|range| range.contains(address.ip())) {
            self.session.handle.leads_to(address.ip());
            self.session.carrier.judge_anew();
        }
        let wire = Wire::new(stream);
        flow.reached(address, wire.counts());
        self.greet(wire, flow, &pins).await
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
    async fn greet(&self, wire: Wire, flow: Rc<Flow>, pins: &[String]) -> Result<Far, Failure> {
        if !self.connection.is_tls {
            return self.http1(Stream::Plain(wire), flow).await;
        }
        let Connection { target, port, .. } = &self.connection;
        let trust = &self.session.carrier.egress.trust;
        let tls = match trust.connect(target, pins, &self.offers, wire).await {
            Ok((tls, key)) => {
                flow.has_key(key);
                tls
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
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = Stream::Far(Box::new(tls));
        match is_http2 {
            true => self.http2(stream, flow).await,
            false => self.http1(stream, flow).await,
        }
    }

    async fn http1(&self, stream: Stream, flow: Rc<Flow>) -> Result<Far, Failure> {
        let mut builder = http1::Builder::new();
        builder.max_header_size(HEAD).max_buf_size(BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|err| lost(&err))?;
        let held = Rc::clone(&flow);
        self.session.tasks.start(async move {
            if connection.with_upgrades().await.is_err() {
                held.end("reset");
            }
        });
        Ok(Far::Http1(Kept { sender, flow, is_used: false }))
    }

    async fn http2(&self, stream: Stream, flow: Rc<Flow>) -> Result<Far, Failure> {
        let mut builder = http2::Builder::new(self.session.tasks.clone());
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_header_list_size(u32::try_from(HEAD).unwrap_or(u32::MAX));
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|err| lost(&err))?;
        let held = Rc::clone(&flow);
        self.session.tasks.start(async move {
            if connection.await.is_err() {
                held.end("reset");
            }
        });
        self.shared.replace(Some((sender.clone(), Rc::clone(&flow))));
        Ok(Far::Http2(sender, flow))
    }
}

fn lost(err: &hyper::Error) -> Failure {
    Failure::new(502, "reset", format!("the server does not speak HTTP with us: {err}"))
}
