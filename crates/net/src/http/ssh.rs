//! git inside SSH on an opened connection: what the program asks for is judged as a request, then asked of the host anew.
//!
//! The host is dialled only when it is allowed. Where it is not, the program reads why on its standard error.

use super::{
    Session,
    filter::Way,
    flight::{Flight, Waits, Why},
};
use crate::{
    accept::GREETING as PATIENCE,
    egress::Dialled,
    ssh::{self, Asked, Between, Command, Counted, Ended, Far, Gateway, Unreached, Wish, known_keys},
    tls::{Counts, Wire},
};
use airlock_gate::{Crossing, Permit, Reason, meter::Spent, request::Request};
use std::{cell::Cell, future::poll_fn, net::SocketAddr, rc::Rc, sync::Arc, task::Poll, time::Duration};
use tokio::time::timeout;

/// What a client of SSH says first.
pub(super) const GREETING: &[u8] = b"SSH-";
/// For a host to let us in; somebody may have to touch a key.
const LOGIN: Duration = Duration::from_secs(90);

/// Whether it begins as SSH does, as far as it has come.
pub(super) fn could_be(first: &[u8]) -> bool {
    let length = first.len().min(GREETING.len());
    length > 0 && first.get(..length) == GREETING.get(..length)
}

/// Carries a connection that begins as SSH does.
pub(super) async fn carry(session: &Rc<Session>, wire: Wire, permit: Permit) {
    let carrier = &session.carrier;
    let (target, port) = (permit.target().clone(), permit.port());
    let speaks_git = carrier.gate.judge().speaks_git(&target, port);
    let Some(gateway) = carrier.ssh.clone().filter(|_| speaks_git) else {
        return session.refuse(Reason::Protocol, "it is SSH, and no rule here is about git inside it");
    };
    if carrier.filters.iter().any(|filter| filter.is_needed()) {
        return session
            .refuse(Reason::Protocol, "a script looks at requests, and what is inside SSH it cannot");
    }
    let host = target.to_string();
    let asked = match timeout(PATIENCE, ssh::hear(wire, &gateway.key, &host)).await {
        Ok(Ok(asked)) => asked,
        Ok(Err(broken)) => return session.refuse(Reason::Protocol, &broken.to_string()),
        Err(_) => return session.refuse(Reason::Protocol, "it asked for nothing within its time"),
    };
    session.near.resets(false);
    let command = match asked.command.clone() {
        Ok(command) => command,
        Err(bad) => {
            session.refuse(Reason::Protocol, &bad.to_string());
            return tell(asked, &bad.to_string()).await;
        }
    };
    let request = Rc::new(judged(&permit, &command));
    let decided = carrier.gate.ask(Crossing::Request(Rc::clone(&request))).await;
    let granted = match decided {
        Ok(granted) => granted,
        Err(denial) => {
            session.unopened("denied");
            return tell(asked, &denial.to_string()).await;
        }
    };
    let flight = Rc::new(Flight::new(&carrier.gate, granted, request));
    session.requests.enter(&flight);
    let wanted = Wanted { session, gateway: &gateway, command: &command, led: Led::default() };
    let ended = wanted.run(asked, permit, &flight).await;
    let led = wanted.led;
    let counts = led.counts.take().map_or((0, 0), |counts| (counts.written(), counts.read()));
    session.finished(led.address.get(), counts, ended);
}

/// A command that was permitted.
struct Wanted<'a> {
    session: &'a Rc<Session>,
    gateway: &'a Gateway,
    command: &'a Command,
    led: Led,
}

/// Where it led.
#[derive(Default)]
struct Led {
    address: Cell<Option<SocketAddr>>,
    counts: Cell<Option<Arc<Counts>>>,
}

impl Wanted<'_> {
    /// A permitted command, to its end; how that was.
    async fn run(&self, asked: Asked<Wire>, permit: Permit, flight: &Rc<Flight>) -> &'static str {
        let Wanted { session, led, .. } = self;
        let host = permit.target().to_string();
        let reached = unless_stopped(flight, self.reach(&asked, permit)).await;
        let far = match reached {
            Some(Ok(far)) if flight.pins.is_empty() => far,
            Some(Ok(_)) => {
                flight.note(Reason::Certificate);
                tell(asked, "the rule has pins, which are about TLS").await;
                return "certificate";
            }
            Some(Err(unreached)) => {
                flight.answered(502);
                tell(asked, &unreached.why(&host)).await;
                return unreached.word();
            }
            None => return "revoked",
        };
        flight.leads_to(led.address.get());
        let Ok(mut between) = Between::new(asked, far, flight.meter.clone()) else { return "failed" };
        let moved = Moved(flight);
        match unless_stopped(flight, between.carry(&moved)).await {
            Some(Ended::Closed) => {
                flight.answered(200);
                flight.over();
                "closed"
            }
            Some(Ended::Spent) => {
                flight.stop(Why::Spent);
                let _ = session.carrier.gate.note_denial(&session.trace, Reason::Bytes, &Spent.to_string());
                session.near.resets(true);
                "bytes"
            }
            Some(Ended::Broken(_)) => {
                session.near.resets(true);
                "reset"
            }
            None => {
                session.near.resets(true);
                "revoked"
            }
        }
    }

    /// Dials the host, once it is clear whose key it must have, and has it run the command.
    async fn reach(&self, asked: &Asked<Wire>, permit: Permit) -> Result<Far<Wire>, Failed> {
        let Wanted { session, gateway, command, led } = self;
        let carrier = &session.carrier;
        let (host, port) = (permit.target().to_string(), permit.port());
        if !carrier.lets_connect(permit.target(), port).await {
            return Err(Failed::Denied("a script does not let connections there".to_owned()));
        }
        let known = known_keys(&gateway.outside, &host, port).map_err(|err| distrusted(session, err))?;
        let private = permit.private().to_vec();
        let Dialled { stream, address } = carrier.egress.dial(permit).await.map_err(|err| {
            if err.is_denial() {
                // An address is refused also where others are only audited.
                let _ = carrier.gate.note_denial(&session.trace, Reason::Address, &err.to_string());
            }
            Failed::Undialled(err.word(), err.to_string())
        })?;
        led.address.set(Some(address));
        if private.iter().any(|range| range.contains(address.ip())) {
            session.handle.leads_to(address.ip());
            carrier.judge_anew();
        }
        let wire = Wire::new(stream);
        led.counts.set(Some(wire.counts()));
        let wish = Wish { host: &host, user: &asked.user, command, protocol: asked.protocol.as_deref() };
        match timeout(LOGIN, Far::reach(wire, known, &gateway.outside, &wish)).await {
            Ok(reached) => reached.map_err(|err| distrusted(session, err)),
            Err(_) => Err(Failed::Late),
        }
    }
}

/// As rules look at it.
fn judged(permit: &Permit, command: &Command) -> Request {
    Request {
        target: permit.target().clone(),
        port: permit.port(),
        is_tls: false,
        method: command.program().to_owned(),
        path: command.path(),
        read_as: None,
        query: Vec::new(),
        headers: Vec::new(),
        websocket: false,
        git: Some(command.call()),
        is_ssh: true,
    }
}

/// Tells the program why not. It has a while to read that.
async fn tell(asked: Asked<Wire>, why: &str) {
    let _ = timeout(PATIENCE, asked.refuse(why)).await;
}

/// Why the host does not run it.
enum Failed {
    /// A script, or the host's address, which the ledger has.
    Denied(String),
    /// It cannot be reached.
    Undialled(&'static str, String),
    /// It is reached, and no more.
    Unreached(Unreached),
    Late,
}

impl Failed {
    fn word(&self) -> &'static str {
        match self {
            Failed::Denied(_) => "denied",
            Failed::Undialled(word, _) => word,
            Failed::Unreached(Unreached::Unknown(_) | Unreached::Untrusted(..)) => "certificate",
            Failed::Unreached(_) => "failed",
            Failed::Late => "timeout",
        }
    }

    fn why(&self, host: &str) -> String {
        match self {
            Failed::Denied(why) | Failed::Undialled(_, why) => why.clone(),
            Failed::Unreached(unreached) => unreached.to_string(),
            Failed::Late => format!("{host} did not let us in within {} s", LOGIN.as_secs()),
        }
    }
}

/// A host that is not whom it should be is an alarm.
fn distrusted(session: &Session, err: Unreached) -> Failed {
    if matches!(err, Unreached::Unknown(_) | Unreached::Untrusted(..)) {
        let _ = session.carrier.gate.note_denial(&session.trace, Reason::Certificate, &err.to_string());
    }
    Failed::Unreached(err)
}

/// Bytes count for the request.
struct Moved<'a>(&'a Flight);

impl Counted for Moved<'_> {
    fn sent(&self, bytes: usize) {
        self.0.count(Way::Out, bytes);
    }

    fn received(&self, bytes: usize) {
        self.0.count(Way::In, bytes);
    }
}

/// Unless the rules no longer allow it.
async fn unless_stopped<T>(flight: &Flight, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    poll_fn(|cx| {
        if flight.is_stopped() {
            return Poll::Ready(None);
        }
        let done = work.as_mut().poll(cx).map(Some);
        if done.is_pending() {
            flight.watch(Waits::Head, cx);
        }
        done
    })
    .await
}
