//! One connection that a program inside opened: where to, whether, dialled, relayed.
//!
//! The kernel has accepted it before anybody was asked, so a denial is a reset, and so is a host that cannot be reached.
//! Nothing that the program says goes out before the decision, and none of its TLS before the [greeting](crate::sniff)
//! was looked at:
//!
//! | port | when it is dialled |
//! |---|---|
//! | one of TLS ([`TLS_PORTS`]) | once the client's first message is whole and right; it has [`GREETING`] for that |
//! | any other | at once, since there the server may speak first; the client's first message is held until it is judged |

use crate::{
    egress::{DialError, Dialled},
    flows::{Ticket, What},
    greeting::{Expected, Watch},
    http::{self, proxy},
    relay::{End, Ends, Look, Moved, Pool, Seen},
    wall::Wall,
};
use airlock_gate::{Crossing, Denial, Finished, Permit, Reason, Trace, host::Target, meter::Spent};
use airlock_linux::net::seat;
use airlock_protocol::policy::{Tls, Verdict};
use rustix::net::{RecvFlags, recv};
use std::{
    io,
    net::SocketAddr,
    os::fd::AsFd,
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    io::Interest,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// How long a client may take for its first message where TLS is expected.
pub const GREETING: Duration = Duration::from_secs(10);

/// Ports at which TLS begins with the first byte, and the client speaks first: HTTPS, mail, LDAP, DNS, FTP, IRC, SIP, XMPP,
/// MQTT, AMQP, Kubernetes and Docker.
pub const TLS_PORTS: [u16; 20] = [
    443, 465, 563, 636, 853, 989, 990, 993, 995, 2376, 3269, 5061, 5223, 5671, 6443, 6697, 8443, 8883, 9443,
    10443,
];

/// After an accept that failed for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections of the sandbox until it is dropped, and everything that it has taken with it.
pub(crate) async fn serve(wall: Rc<Wall>, listener: TcpListener) {
    let mut flows = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        while flows.try_join_next().is_some() {}
        match accepted {
            Ok((near, from)) => {
                wall.pool.awake.stir();
                let wall = Rc::clone(&wall);
                flows.spawn_local(async move { carry(&wall, near, from).await });
            }
            // Too many descriptors, or a connection that was reset before we came.
            Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One connection from beginning to end, made by `from`.
pub(crate) async fn carry(wall: &Rc<Wall>, near: TcpStream, from: SocketAddr) {
    let Ok(to) = seat::original_destination(near.as_fd(), from) else { return reset(&near) };
    if to.ip().to_canonical() == proxy::ADDRESS && to.port() == proxy::PORT {
        return Box::pin(proxy::carry(wall, near)).await;
    }
    let admitted = tokio::select! {
        biased;
        // Boxed, so that what is needed to decide is not kept while bytes are moved.
        admitted = Box::pin(admit(wall, wall.target(to.ip()), to.port())) => admitted,
        // The program gave up while a person was asked.
        _ = near.ready(Interest::ERROR) => return reset(&near),
    };
    match admitted {
        Ok((permit, ticket)) => carry_permitted(wall, near, Vec::new(), permit, ticket).await,
        Err(_) => reset(&near),
    }
}

/// A connection that was admitted, of which `first` was read before.
pub(crate) async fn carry_permitted(
    wall: &Rc<Wall>,
    near: TcpStream,
    first: Vec<u8>,
    permit: Permit,
    mut ticket: Ticket,
) {
    if wall.carrier.opens(&permit) {
        return Box::pin(http::carry(&wall.carrier, near, first, permit, ticket)).await;
    }
    if !first.is_empty() {
        // What is relayed is looked at from its first byte; a client of the proxy waits for its answer.
        spoke_early(wall, &permit.trace());
        return reset(&near);
    }
    let (trace, begun) = (permit.trace(), Instant::now());
    let moved = Moved::within(permit.meter());
    let private = permit.private().to_vec();
    // Boxed, so that what is needed to get there is not kept while bytes are moved.
    let reached = ticket.unless_revoked(Box::pin(reach(wall, &near, permit))).await;
    let mut address = None;
    let status = match reached {
        Some(Ok(reached)) => {
            let Reached { dialled: Dialled { stream: far, address: dialled }, first, look } = reached;
            address = Some(dialled);
            if private.iter().any(|range| range.contains(dialled.ip())) {
                wall.leads_to(&ticket, dialled.ip());
            }
            let mut ends = Ends { near, far };
            let end = ticket.unless_revoked(ends.relay(&wall.pool, &moved, first, look)).await;
            ended(wall, &trace, &ends, end)
        }
        Some(Err(status)) => {
            reset(&near);
            status
        }
        None => {
            reset(&near);
            "revoked"
        }
    };
    let (sent, received) = (moved.sent.get(), moved.received.get());
    wall.gate.finish(&Finished {
        trace: &trace,
        address,
        sent,
        received,
        lasted: begun.elapsed(),
        status,
        code: None,
    });
}

/// What a client of the proxy said before it was answered, on a connection that is relayed.
fn spoke_early(wall: &Wall, trace: &Trace) {
    let status = Reason::Protocol.word();
    let _ = wall.gate.note_denial(trace, Reason::Protocol, "it spoke before the proxy had answered");
    let lasted = Duration::ZERO;
    wall.gate.finish(&Finished { trace, address: None, sent: 0, received: 0, lasted, status, code: None });
}

/// Asks whether a connection may be; a place among the flows if so.
async fn admit(wall: &Wall, target: Target, port: u16) -> Result<(Permit, Ticket), Denial> {
    let crossing = Crossing::Connect { target: target.clone(), port };
    let ticket = wall.enter(&crossing)?;
    let judge = wall.gate.judge();
    let permit = wall.gate.ask(crossing).await?;
    ticket.decided(What::Out { target, port, asked: permit.was_asked() });
    if !Rc::ptr_eq(&judge, &wall.gate.judge()) {
        // The rules changed while it was decided, and the flow was not among those judged anew.
        wall.judge_anew();
    }
    Ok((permit, ticket))
}

/// As a connection to a name that the program has looked up: names under a wildcard have the same bound.
pub(crate) async fn admit_named(wall: &Wall, target: Target, port: u16) -> Result<(Permit, Ticket), Denial> {
    if let Target::Name(name) = &target
        && wall.gate.judge().connect(&target, port).verdict.is_some_and(|verdict| verdict != Verdict::Deny)
    {
        let wildcard = wall.gate.judge().wildcard_of(name);
        let given = wall.names.borrow_mut().give(name, wildcard);
        if let Err(full) = given {
            let crossing = Crossing::Connect { target: target.clone(), port };
            return Err(wall.turn_away(&crossing, Reason::Budget, &full.to_string()));
        }
    }
    admit(wall, target, port).await
}

struct Reached {
    dialled: Dialled,
    /// What the client has said.
    first: Vec<u8>,
    /// Looks at what it says next.
    look: Option<Look>,
}

/// Dials, after the greeting where TLS is expected. The status of the flow if it ends here.
async fn reach(wall: &Rc<Wall>, near: &TcpStream, permit: Permit) -> Result<Reached, &'static str> {
    let trace = permit.trace();
    if !wall.carrier.lets_connect(permit.target(), permit.port()).await {
        return Err("script");
    }
    let mut first = Vec::new();
    let mut look = None;
    if permit.tls() == Tls::Checked {
        let watch = Watch::new(expected(wall, &trace), wall.pool.weight());
        if TLS_PORTS.contains(&permit.port()) {
            (first, look) = greet(wall, near, &trace, watch).await?;
        } else {
            look = Some(watch.into_look());
        }
    }
    wall.carrier.may_connect(permit.target(), permit.port()).await.map_err(|_| "denied")?;
    let dialled = tokio::select! {
        biased;
        dialled = wall.egress.dial(permit) => dialled,
        _ = near.ready(Interest::ERROR) => return Err("reset"),
    };
    match dialled {
        Ok(dialled) => Ok(Reached { dialled, first, look }),
        Err(err) => Err(undialled(wall, &trace, &err)),
    }
}

fn expected(wall: &Rc<Wall>, trace: &Trace) -> Expected {
    let (of, port) = (Rc::clone(wall), trace.port());
    let allows = move |name: &airlock_gate::host::HostName| {
        of.gate.judge().connect(&Target::Name(name.clone()), port).verdict == Some(Verdict::Allow)
    };
    let (of, about) = (Rc::clone(wall), trace.clone());
    let excuses =
        move |why: &str| of.gate.policy().audit_only && of.gate.note_denial(&about, Reason::Sni, why).is_ok();
    Expected { target: trace.target().clone(), allows: Box::new(allows), excuses: Box::new(excuses) }
}

/// The client's first message, once it is whole and right, and who looks at what follows.
async fn greet(
    wall: &Wall,
    near: &TcpStream,
    trace: &Trace,
    mut watch: Watch,
) -> Result<(Vec<u8>, Option<Look>), &'static str> {
    let mut heard = Held { pool: &wall.pool, bytes: Vec::new() };
    let why = match timeout(GREETING, hear(near, &mut heard, &mut watch)).await {
        Ok(Ok(Next::Watched)) => return Ok((heard.take(), Some(watch.into_look()))),
        Ok(Ok(Next::Unwatched)) => return Ok((heard.take(), None)),
        Ok(Err(Unheard::Gone)) => return Err("reset"),
        Ok(Err(Unheard::Silent)) => return Err("closed"),
        Ok(Err(Unheard::Refused(why))) => why,
        Err(_) => format!("no ClientHello came within {} s", GREETING.as_secs()),
    };
    match wall.gate.note_denial(trace, Reason::Sni, &why) {
        Ok(()) => Ok((heard.take(), None)),
        Err(_) => Err("sni"),
    }
}

/// What becomes of what the client says after its first message.
enum Next {
    Watched,
    Unwatched,
}

enum Unheard {
    /// The client reset the connection.
    Gone,
    /// It ended it without a word.
    Silent,
    /// What it said may not pass.
    Refused(String),
}

/// Reads until the watch has seen enough to let something pass.
async fn hear(near: &TcpStream, heard: &mut Held<'_>, watch: &mut Watch) -> Result<Next, Unheard> {
    // What it says first is often there already, before anybody was told so.
    let mut read: fn(&TcpStream, &mut [u8]) -> io::Result<usize> =
        |near, buffer| Ok(recv(near, buffer, RecvFlags::DONTWAIT)?.0);
    loop {
        let seen = heard.pool.with_buffer(|buffer| {
            let read = read(near, buffer)?;
            let piece = buffer.get(..read).unwrap_or_default();
            heard.keep(piece);
            Ok(if piece.is_empty() { None } else { Some(watch.look(piece)) })
        });
        match seen {
            Err(err) if io::Error::kind(&err) == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(Unheard::Gone),
            Ok(None) if heard.bytes.is_empty() => return Err(Unheard::Silent),
            Ok(None) => return Err(Unheard::Refused("it ends inside its ClientHello".to_owned())),
            Ok(Some(Seen::Hold)) if heard.pool.is_full() => {
                return Err(Unheard::Refused("too much waits to be looked at".to_owned()));
            }
            Ok(Some(Seen::Hold)) => {}
            Ok(Some(Seen::Pass)) => return Ok(Next::Watched),
            Ok(Some(Seen::Over)) => return Ok(Next::Unwatched),
            Ok(Some(Seen::Refuse(why))) => return Err(Unheard::Refused(why)),
        }
        near.readable().await.map_err(|_| Unheard::Gone)?;
        read = |near, buffer| near.try_read(buffer);
    }
}

/// Bytes that count as waiting while they are held.
struct Held<'a> {
    pool: &'a Pool,
    bytes: Vec<u8>,
}

impl Held<'_> {
    fn keep(&mut self, piece: &[u8]) {
        self.pool.hold(piece.len());
        self.bytes.extend_from_slice(piece);
    }

    fn take(mut self) -> Vec<u8> {
        self.pool.release(self.bytes.len());
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pool.release(self.bytes.len());
    }
}

/// The status of a flow whose host was not reached.
fn undialled(wall: &Wall, trace: &Trace, err: &DialError) -> &'static str {
    if err.is_denial() {
        // An address is refused also where others are only audited.
        let _ = wall.gate.note_denial(trace, Reason::Address, &err.to_string());
    }
    err.word()
}

/// The status of a flow that was relayed; `None` stands for one that was revoked.
fn ended(wall: &Wall, trace: &Trace, ends: &Ends, end: Option<End>) -> &'static str {
    match end {
        Some(End::Closed) => "closed",
        Some(End::Reset) => "reset",
        Some(End::Spent) => {
            let _ = wall.gate.note_denial(trace, Reason::Bytes, &Spent.to_string());
            "bytes"
        }
        Some(End::Refused(why)) => {
            let _ = wall.gate.note_denial(trace, Reason::Sni, &why);
            "sni"
        }
        None => {
            ends.reset();
            "revoked"
        }
    }
}

/// The program sees a reset when the socket is dropped.
fn reset(near: &TcpStream) {
    // A socket that is gone already needs no reset.
    let _ = seat::reset_on_close(near.as_fd());
}

impl Wall {
    /// A place among the flows, if there is one.
    pub(crate) fn enter(&self, crossing: &Crossing) -> Result<Ticket, Denial> {
        self.flows.enter().ok_or_else(|| {
            let why = format!("{} connections are open already", self.flows.count());
            self.turn_away(crossing, Reason::Crowded, &why)
        })
    }

    fn turn_away(&self, crossing: &Crossing, reason: Reason, why: &str) -> Denial {
        self.gate.turn_away(crossing, why);
        Denial {
            reason,
            what: "this connection".to_owned(),
            rule: None,
            detail: Some(why.to_owned()),
            hint: String::new(),
        }
    }

    /// A flow goes to an address that only a rule's `private` allows. The rules may have changed while it was dialled, and
    /// were asked without the address.
    pub(crate) fn leads_to(&self, ticket: &Ticket, address: std::net::IpAddr) {
        ticket.leads_to(address);
        self.judge_anew();
    }

    /// What a program means by an address. One that stands for no name stands for itself, and no rule can be about it.
    pub(crate) fn target(&self, address: std::net::IpAddr) -> Target {
        match self.names.borrow().name(address) {
            Some(name) => Target::Name(name.clone()),
            None => Target::Address(address.to_canonical()),
        }
    }
}
