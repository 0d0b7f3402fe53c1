//! What opened connections of one sandbox share.

use super::{
    far::Failure,
    filter::{Filter, Stop},
    flight::Requests,
    link::Links,
    spare::Spares,
    tasks::Tasks,
};
use crate::{
    egress::Egress,
    flows::{Flows, Handle},
    relay::Pool,
    ssh::Gateway,
    tls::{Authority, Counts},
};
use airlock_gate::{Finished, Gate, Permit, Reason, Trace, host::Target};
use airlock_protocol::policy::Tls;
use std::{cell::Cell, net::SocketAddr, rc::Rc, sync::Arc, time::Instant};

/// The opened connections' side of a wall.
pub(crate) struct Carrier {
    pub(crate) gate: Rc<Gate>,
    pub(crate) egress: Rc<Egress>,
    pub(crate) flows: Rc<Flows>,
    pub(crate) pool: Rc<Pool>,
    /// None where the sandbox trusts no authority of ours.
    pub(crate) authority: Option<Rc<Authority>>,
    /// For git inside SSH; none where that is not carried.
    pub(crate) ssh: Option<Gateway>,
    pub(crate) filters: Vec<Rc<dyn Filter>>,
    /// Connections to servers that wait for another near connection.
    pub(crate) spares: Rc<Spares>,
}

/// One near connection.
pub(super) struct Session {
    pub(super) carrier: Rc<Carrier>,
    /// Of the connection that the program made.
    pub(super) trace: Trace,
    begun: Instant,
    /// Connections to servers.
    pub(super) links: Links,
    /// Streams of HTTP/2.
    pub(super) tasks: Tasks,
    /// What goes on after the last request.
    pub(super) upgrades: Tasks,
    pub(super) handle: Handle,
    pub(super) requests: Rc<Requests>,
    pub(super) near: Arc<Counts>,
    pub(super) is_http2: Cell<bool>,
    pub(super) is_revoked: Cell<bool>,
    /// Requests that have come.
    pub(super) heard: Cell<u64>,
    /// Requests that have no answer yet.
    pub(super) unanswered: Cell<usize>,
}

impl Session {
    /// A connection that the gate permitted, before anything was said.
    pub(super) fn new(carrier: &Rc<Carrier>, permit: &Permit, near: Arc<Counts>, handle: Handle) -> Session {
        Session {
            carrier: Rc::clone(carrier),
            trace: permit.trace(),
            begun: Instant::now(),
            links: Links::default(),
            tasks: Tasks::default(),
            upgrades: Tasks::default(),
            handle,
            requests: Rc::default(),
            near,
            is_http2: Cell::new(false),
            is_revoked: Cell::new(false),
            heard: Cell::new(0),
            unanswered: Cell::new(0),
        }
    }

    /// It ends before anything was dialled.
    pub(super) fn unopened(&self, status: &str) {
        self.finished(None, (0, 0), status);
    }

    /// It ends, having led there and moved so much to and fro.
    pub(super) fn finished(&self, address: Option<SocketAddr>, (sent, received): (u64, u64), status: &str) {
        let lasted = self.begun.elapsed();
        let trace = &self.trace;
        self.carrier.gate.finish(&Finished { trace, address, sent, received, lasted, status, code: None });
    }

    /// It turned out to be forbidden before anything was dialled.
    pub(super) fn refuse(&self, reason: Reason, why: &str) {
        let _ = self.carrier.gate.note_denial(&self.trace, reason, why);
        self.unopened(reason.word());
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.unanswered.get() > 0 || self.requests.count() > 0
    }
}

/// Ends whatever belongs to a near connection when it is dropped.
pub(super) struct Living(pub(super) Rc<Session>);

impl Drop for Living {
    fn drop(&mut self) {
        self.0.tasks.end();
        self.0.upgrades.end();
        self.0.links.end();
    }
}

/// A request without an answer, while it lives.
pub(super) struct Unanswered<'a>(&'a Session);

impl Unanswered<'_> {
    /// One more.
    pub(super) fn new(session: &Session) -> Unanswered<'_> {
        session.heard.set(session.heard.get().wrapping_add(1));
        session.unanswered.set(session.unanswered.get() + 1);
        Unanswered(session)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.unanswered.set(self.0.unanswered.get().saturating_sub(1));
    }
}

impl Carrier {
    /// Whether what goes over this connection is looked at.
    pub(crate) fn opens(&self, permit: &Permit) -> bool {
        match permit.tls() {
            Tls::Opened => true,
            Tls::Checked => self.filters.iter().any(|filter| filter.wants(permit.target(), permit.port())),
            Tls::Opaque => false,
        }
    }

    /// The rules have changed.
    pub(crate) fn rules_changed(&self) {
        self.spares.obey(self.gate.generation_now());
        self.judge_anew();
    }

    /// Ends what the rules of now do not allow.
    pub(crate) fn judge_anew(&self) {
        if !self.gate.policy().audit_only {
            self.flows.judge_anew(&self.gate.judge());
        }
    }

    /// As [`Carrier::may_connect`], for a connection that is not opened.
    pub(crate) async fn lets_connect(&self, target: &Target, port: u16) -> bool {
        self.may_connect(target, port).await.is_ok()
    }

    /// Whether the filters let a connection be dialled.
    pub(crate) async fn may_connect(&self, target: &Target, port: u16) -> Result<(), Failure> {
        for filter in &self.filters {
            match filter.connect(target, port).await {
                Ok(()) => {}
                Err(Stop::Denied(denial)) => return Err(Failure::Denied(denial)),
                Err(Stop::Failed(why)) => return Err(Failure::Failed { status: 502, reason: "script", why }),
                Err(Stop::Answered(_)) => {
                    let why = "a connection cannot be answered with a document".to_owned();
                    return Err(Failure::Failed { status: 502, reason: "script", why });
                }
            }
        }
        Ok(())
    }
}
