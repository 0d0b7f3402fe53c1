//! One opened connection: what the program says first decides what it is, then both sides are greeted, then requests are
//! carried.
//!
//! | first bytes | then |
//! |---|---|
//! | a `ClientHello` for the right host | the server is dialled and its certificate verified, then the program's handshake is finished; both at once where it is known what the server speaks; no dial where a connection to it waits |
//! | `SSH-` | git inside it is judged, where a rule is about that ([`ssh`](super::ssh)) |
//! | anything else | it must be HTTP/1.1; the server is dialled for the first request that is permitted |
//!
//! Where the server cannot be trusted, the program's handshake is finished all the same and each of its requests is
//! answered with 502, so that it can read why. The server gets no byte of a request.

use super::{
    Carrier, Living, Session,
    far::{Failure, HTTP1, Origin},
    near,
    spare::Spoken,
    ssh,
    target::Connection,
};
use crate::{
    accept::GREETING,
    flows::Ticket,
    greeting::Expected,
    relay::Weight,
    sniff::{Hello, Sniffed, Sniffer},
    tls::{Authority, Speaks, Stream, Version, Wire},
};
use airlock_gate::{Permit, Reason, host::Target};
use std::rc::Rc;
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};
use tokio_rustls::TlsAcceptor;

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
    let living = Living(Rc::clone(&session));
    // Until both sides are greeted, every end is a reset.
    session.near.resets(true);
    let mut opened = Box::pin(open(&session, Begun { wire, first }, permit));
    if ticket.unless_revoked(opened.as_mut()).await.is_none() {
        session.is_revoked.set(true);
        session.near.resets(true);
        session.links.reset();
    }
    drop((opened, living));
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
        Heard::Ssh => ssh::carry(session, wire, permit).await,
        Heard::Other => open_plain(session, wire, permit).await,
        Heard::Hello(hello) => open_tls(session, wire, &hello, permit).await,
    }
}

/// What a program begins with.
enum Heard {
    Hello(Hello),
    Ssh,
    Other,
}

/// Reads until it is known what it is; none if the program ends without a word.
async fn hear(begun: &mut Begun, weight: &mut Weight) -> Result<Option<Heard>, String> {
    let mut sniffer = Sniffer::new();
    let mut sniffed = sniffer.push(&begun.first);
    loop {
        match sniffed {
            Sniffed::NeedMore => {}
            Sniffed::NotTls if ssh::could_be(&begun.first) => {
                if begun.first.len() >= ssh::GREETING.len() {
                    return Ok(Some(Heard::Ssh));
                }
            }
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
            // What is not TLS stays so.
            Ok(1..) if matches!(sniffed, Sniffed::NotTls) => {}
            Ok(1..) => sniffed = sniffer.push(begun.first.get(before..).unwrap_or_default()),
            Ok(0) if before > 0 => return Err("it ends inside its first message".to_owned()),
            Ok(0) | Err(_) => return Ok(None),
        }
    }
}

async fn open_plain(session: &Rc<Session>, wire: Wire, permit: Permit) {
    let connection = Connection { target: permit.target().clone(), port: permit.port(), is_tls: false };
    let origin = Rc::new(Origin::new(session, connection, Vec::new(), Some(permit)));
    session.near.resets(false);
    near::serve(session, &origin, Stream::Plain(wire)).await;
    origin.retire();
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
    let origin = Rc::new(Origin::new(session, connection, offers, Some(permit)));
    let near = Near { hello, target: &target, authority: &authority };
    let greeted = match origin.spoken() {
        Some(spoken) => greet_both(&origin, wire, &near, spoken).await,
        None => greet_in_turn(&origin, wire, &near).await,
    };
    match greeted {
        Ok(stream) => {
            session.is_http2.set(stream.speaks_http2());
            session.near.resets(false);
            near::serve(session, &origin, stream).await;
            origin.retire();
        }
        Err(Ungreeted::Server) => {}
        Err(Ungreeted::Program) => origin.unused(),
        Err(Ungreeted::Certificate) => session.unopened("failed"),
    }
}

/// Why there is no connection inside TLS.
enum Ungreeted {
    /// The server cannot be reached.
    Server,
    /// The program did not finish its handshake.
    Program,
    /// No certificate could be made.
    Certificate,
}

/// What the program's handshake is finished with.
struct Near<'a> {
    hello: &'a Hello,
    target: &'a Target,
    authority: &'a Authority,
}

impl Near<'_> {
    /// What is agreed on with the program, where the server speaks this.
    fn speaks(&self, is_http2: bool) -> Speaks {
        let offers = &self.hello.alpn;
        let has = |protocol: &[u8]| offers.iter().any(|offer| offer == protocol);
        match is_http2 && has(HTTP2) || !offers.is_empty() && !has(HTTP1) {
            true => Speaks::Http2,
            false if offers.is_empty() => Speaks::Unsaid,
            false => Speaks::Http1,
        }
    }

    /// The version of TLS that the server speaks, if the program takes it.
    fn version(&self, spoken: Option<Spoken>) -> Version {
        match spoken.is_some_and(|spoken| spoken.is_tls12) && !self.hello.only13 {
            true => Version::Tls12,
            false => Version::Newest,
        }
    }

    async fn greet(&self, wire: Wire, speaks: Speaks, version: Version) -> Result<Stream, Ungreeted> {
        let config = self.authority.server(self.target, speaks, version);
        let config = config.map_err(|_| Ungreeted::Certificate)?;
        match timeout(GREETING, TlsAcceptor::from(config).accept(wire)).await {
            Ok(Ok(tls)) => Ok(Stream::Near(Box::new(tls))),
            Ok(Err(_)) | Err(_) => Err(Ungreeted::Program),
        }
    }
}

/// The server first: only it can tell what it speaks.
async fn greet_in_turn(origin: &Origin, wire: Wire, near: &Near<'_>) -> Result<Stream, Ungreeted> {
    let is_http2 = prepared(origin, origin.prepare().await)?;
    near.greet(wire, near.speaks(is_http2), near.version(origin.spoken())).await
}

/// Both at once, since it is known what the server spoke last. Should it speak HTTP/1.1 only now, requests are translated.
async fn greet_both(
    origin: &Origin,
    wire: Wire,
    near: &Near<'_>,
    spoken: Spoken,
) -> Result<Stream, Ungreeted> {
    let speaks = near.speaks(spoken.is_http2);
    if speaks == Speaks::Http1 {
        origin.offer_http1();
    }
    let server = async { prepared(origin, origin.prepare().await) };
    let (_, stream) = tokio::try_join!(server, near.greet(wire, speaks, near.version(Some(spoken))))?;
    Ok(stream)
}

/// Whether the server speaks HTTP/2. Where it cannot be trusted, the program is to read why.
fn prepared(origin: &Origin, prepared: Result<bool, Failure>) -> Result<bool, Ungreeted> {
    match prepared {
        Ok(is_http2) => Ok(is_http2),
        Err(failure @ Failure::Failed { reason: "certificate" | "tls", .. }) => {
            origin.fail(failure);
            Ok(false)
        }
        Err(_) => Err(Ungreeted::Server),
    }
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
