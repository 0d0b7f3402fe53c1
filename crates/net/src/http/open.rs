//! One opened connection: what the program says first decides what it is, then both sides are greeted, then requests are
//! carried.
//!
//! | first bytes | then |
//! |---|---|
//! | a `ClientHello` for the right host | the server is dialled and its certificate verified, then the program's handshake is finished |
//! | anything else | it must be HTTP/1.1; the server is dialled for the first request that is permitted |
//!
//! Where the server cannot be trusted, the program's handshake is finished all the same and each of its requests is
//! answered with 502, so that it can read why. The server gets no byte of a request.

use super::{
    Carrier, Session,
    far::{Failure, Origin},
    near,
    target::Connection,
    tasks::Owner,
};
use crate::{
    accept::GREETING,
    flows::Ticket,
    greeting::Expected,
    relay::Weight,
    sniff::{Hello, Sniffed, Sniffer},
    tls::{Speaks, Stream, Wire},
};
use airlock_gate::{Permit, Reason};
use std::rc::Rc;
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};
use tokio_rustls::TlsAcceptor;

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";
/// Read at once while it is not known what comes.
const PIECE: usize = 4096;

/// Carries a permitted connection of which `first` was read before.
pub(crate) async fn carry(
    carrier: &Rc<Carrier>,
    socket: TcpStream,
    first: Vec<u8>,
    permit: Permit,
    mut ticket: Ticket,
) {
    let wire = Wire::new(socket);
    let session = Rc::new(Session::new(carrier, &permit, wire.counts(), ticket.handle()));
    ticket.has_requests(Rc::clone(&session.requests));
    let owners = (Owner(session.tasks.clone()), Owner(session.upgrades.clone()));
    // Until both sides are greeted, every end is a reset.
    session.near.resets(true);
    let mut opened = Box::pin(open(&session, Begun { wire, first }, permit));
    if ticket.unless_revoked(opened.as_mut()).await.is_none() {
        session.is_revoked.set(true);
        session.near.resets(true);
    }
    drop((opened, owners));
}

/// A near connection that nothing was said on yet.
struct Begun {
    wire: Wire,
    first: Vec<u8>,
}

async fn open(session: &Rc<Session>, mut begun: Begun, permit: Permit) {
    let mut weight = session.carrier.pool.weight();
    let heard = match timeout(GREETING, hear(&mut begun, &mut weight)).await {
        Ok(Ok(Some(heard))) => heard,
        Ok(Ok(None)) => return session.unopened("closed"),
        Ok(Err(why)) => return session.refuse(Reason::Sni, &why),
        Err(_) => {
            return session.refuse(Reason::Sni, &format!("nothing came within {} s", GREETING.as_secs()));
        }
    };
    let Begun { mut wire, first } = begun;
    wire.unread(first);
    match heard {
        Heard::Other => open_plain(session, wire, permit).await,
        Heard::Hello(hello) => open_tls(session, wire, &hello, permit).await,
    }
}

/// What a program begins with.
enum Heard {
    Hello(Hello),
    Other,
}

/// Reads until it is known what it is; none if the program ends without a word.
async fn hear(begun: &mut Begun, weight: &mut Weight) -> Result<Option<Heard>, String> {
    let mut sniffer = Sniffer::new();
    let mut sniffed = sniffer.push(&begun.first);
    loop {
        match sniffed {
            Sniffed::NeedMore => {}
            Sniffed::NotTls => return Ok(Some(Heard::Other)),
            Sniffed::Hello(hello) => return Ok(Some(Heard::Hello(hello))),
            Sniffed::Malformed(why) => return Err(why.to_owned()),
        }
        let before = begun.first.len();
        weight.set(before);
        if weight.is_full() {
            return Err("too much waits to be looked at".to_owned());
        }
        begun.first.reserve(PIECE);
        match begun.wire.read_buf(&mut begun.first).await {
            Ok(1..) => sniffed = sniffer.push(begun.first.get(before..).unwrap_or_default()),
            Ok(0) if before > 0 => return Err("it ends inside its ClientHello".to_owned()),
            Ok(0) | Err(_) => return Ok(None),
        }
    }
}

async fn open_plain(session: &Rc<Session>, wire: Wire, permit: Permit) {
    let connection = Connection { target: permit.target().clone(), port: permit.port(), is_tls: false };
    let origin = Origin::new(session, connection, Vec::new(), Some(permit));
    session.near.resets(false);
    near::serve(session, &Rc::new(origin), Stream::Plain(wire)).await;
}

async fn open_tls(session: &Rc<Session>, wire: Wire, hello: &Hello, permit: Permit) {
    let target = permit.target().clone();
    let expected =
        Expected { target: target.clone(), allows: Box::new(|_| false), excuses: Box::new(|_| false) };
    if let Err(why) = expected.check(hello) {
        return session.refuse(Reason::Sni, &why);
    }
    let offers = match offers(hello) {
        Ok(offers) => offers,
        Err(why) => return session.refuse(Reason::Protocol, why),
    };
    let Some(authority) = session.carrier.authority.clone() else {
        return session
            .refuse(Reason::Certificate, "the sandbox was started without an authority that it trusts");
    };
    let connection = Connection { target: target.clone(), port: permit.port(), is_tls: true };
    let origin = Origin::new(session, connection, offers, Some(permit));
    let is_http2 = match origin.prepare().await {
        Ok(is_http2) => is_http2 && hello.alpn.iter().any(|offer| offer == HTTP2),
        Err(failure @ Failure::Failed { reason: "certificate" | "tls", .. }) => {
            origin.fail(failure);
            !hello.alpn.iter().any(|offer| offer == HTTP1) && !hello.alpn.is_empty()
        }
        Err(_) => return,
    };
    let is_http2 = is_http2 || !hello.alpn.is_empty() && !hello.alpn.iter().any(|offer| offer == HTTP1);
    let speaks = match (is_http2, hello.alpn.is_empty()) {
        (true, _) => Speaks::Http2,
        (false, true) => Speaks::Unsaid,
        (false, false) => Speaks::Http1,
    };
    let Ok(config) = authority.server(&target, speaks) else { return session.unopened("failed") };
    let Ok(Ok(tls)) = timeout(GREETING, TlsAcceptor::from(config).accept(wire)).await else {
        return session.unopened("reset");
    };
    session.is_http2.set(is_http2);
    session.near.resets(false);
    near::serve(session, &Rc::new(origin), Stream::Near(Box::new(tls))).await;
}

/// What is offered to the server: what the program offers. One that speaks HTTP/2 only is translated for a server that does
/// not.
fn offers(hello: &Hello) -> Result<Vec<&'static [u8]>, &'static str> {
    let has = |protocol: &[u8]| hello.alpn.iter().any(|offer| offer == protocol);
    match (has(HTTP2), has(HTTP1)) {
        (true, _) => Ok(vec![HTTP2, HTTP1]),
        (false, true) => Ok(vec![HTTP1]),
        (false, false) if hello.alpn.is_empty() => Ok(Vec::new()),
        (false, false) => Err("what it offers to speak inside TLS is not HTTP"),
    }
}
