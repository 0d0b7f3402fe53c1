//! The sandbox's own proxy, for programs that insist on one: `proxy.airlock`, port 3128.
//!
//! `CONNECT` becomes the connection that it asks for, and a request in absolute form (`http://host/`) one inside a connection
//! to its host. Both are judged as if the program had connected by itself, and nothing else is carried.

use super::{
    Bad, Living, Session, answer,
    body::{Body, Cut},
    exchange::{self, Back},
    far::Origin,
    framing,
    strict::Strict,
    target::{self, Connection},
    upgrade,
};
use crate::{
    accept,
    flows::Ticket,
    tls::{Counts, Wire},
    wall::Wall,
};
use airlock_gate::{Denial, Permit, Reason, host::Target};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::Ipv4Addr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::net::TcpStream;

/// What it is called inside.
pub(crate) const NAME: &str = "proxy.airlock";
/// Where it is inside: behind all addresses that names are given.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 254);
/// The port that proxies usually have.
pub(crate) const PORT: u16 = 3128;

/// Of a head.
const HEAD: usize = 64 * 1024;
/// Hosts that one connection may ask for.
const MOST: usize = 64;
/// How long a connection may ask for nothing.
const IDLE: Duration = Duration::from_secs(10 * 60);

/// One connection to the proxy.
struct Proxy {
    wall: Rc<Wall>,
    near: Arc<Counts>,
    origins: RefCell<HashMap<(Target, u16), Rc<Inside>>>,
    /// What the connection becomes.
    becomes: RefCell<Option<(Permit, Ticket)>>,
    heard: Cell<u64>,
}

/// A connection to a host, for requests in absolute form.
struct Inside {
    session: Rc<Session>,
    origin: Rc<Origin>,
    ticket: RefCell<Ticket>,
    _living: Living,
}

/// Carries one connection to the proxy.
pub(crate) async fn carry(wall: &Rc<Wall>, socket: TcpStream) {
    let wire = Wire::new(socket);
    let proxy = Rc::new(Proxy {
        wall: Rc::clone(wall),
        near: wire.counts(),
        origins: RefCell::default(),
        becomes: RefCell::default(),
        heard: Cell::new(0),
    });
    let served = tokio::select! {
        biased;
        served = serve(&proxy, wire) => served,
        () = silence(&proxy) => None,
    };
    let becomes = proxy.becomes.take();
    let (Some((wire, first)), Some((permit, ticket))) = (served, becomes) else { return };
    drop(proxy);
    if let Some(socket) = wire.into_socket() {
        accept::carry_permitted(wall, socket, first, permit, ticket).await;
    }
}

/// Answers requests until one becomes something else; then what is left of the connection.
async fn serve(proxy: &Rc<Proxy>, wire: Wire) -> Option<(Wire, Vec<u8>)> {
    let stream = Strict::new(wire);
    let switch = stream.switch();
    let service = service_fn(|request: Request<Incoming>| {
        let (proxy, switch) = (Rc::clone(proxy), switch.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let may_switch = framing::may_switch(&head);
            let answer = proxy.answer(Request::from_parts(head, body)).await;
            if may_switch {
                switch.answered(proxy.becomes.borrow().is_some());
            }
            answer
        })
    });
    let mut builder = http1::Builder::new();
    builder.max_header_size(HEAD).auto_date_header(false).header_read_timeout(None);
    let parts = builder.serve_connection(TokioIo::new(stream), service).without_shutdown().await.ok()?;
    let (wire, rest) = parts.io.into_inner().into_inner();
    let mut first = parts.read_buf.to_vec();
    first.extend(rest);
    Some((wire, first))
}

/// Waits until nothing has been asked for a long time.
async fn silence(proxy: &Proxy) {
    let mut before = u64::MAX;
    loop {
        let heard = proxy.heard.get();
        let is_busy = proxy.origins.borrow().values().any(|inside| inside.session.is_busy());
        if heard == before && !is_busy {
            return;
        }
        before = heard;
        tokio::time::sleep(IDLE).await;
    }
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
        self.heard.set(self.heard.get().wrapping_add(1));
        let mut request = request;
        let asks = request.extensions().get::<OnUpgrade>().is_some();
        let upgrade = asks.then(|| upgrade::Near::Library(hyper::upgrade::on(&mut request)));
        let (head, body) = request.into_parts();
        let checked = framing::check(&head).and_then(|()| target::proxied(&head));
        let (target, port) = match checked {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(answer::bad(&not_for_proxies()).map(Body::Ours)),
            Err(bad) => return Ok(answer::bad(&bad).map(Body::Ours)),
        };
        if head.method == Method::CONNECT {
            let admitted = accept::admit_named(&self.wall, target, port).await;
            return Ok(match admitted {
                Ok(admitted) => {
                    self.becomes.replace(Some(admitted));
                    Response::new(Body::Ours(Full::default()))
                }
                Err(denial) => answer::denied(&denial, &head).map(Body::Ours),
            });
        }
        match self.inside(target, port).await {
            Ok(inside) => {
                let request = Request::from_parts(head, body.into());
                let back = Back { upgrade, ..Back::default() };
                exchange::exchange(&inside.session, &inside.origin, request, back).await
            }
            Err(denial) => Ok(answer::denied(&denial, &head).map(Body::Ours)),
        }
    }

    /// The connection to this host, asked for if there is none that may still be.
    async fn inside(&self, target: Target, port: u16) -> Result<Rc<Inside>, Denial> {
        let key = (target.clone(), port);
        let known = self.origins.borrow().get(&key).cloned();
        if let Some(inside) = known.filter(|inside| !inside.ticket.borrow_mut().is_revoked()) {
            return Ok(inside);
        }
        self.origins.borrow_mut().remove(&key);
        let (permit, ticket) = accept::admit_named(&self.wall, target.clone(), port).await?;
        let carrier = &self.wall.carrier;
        let session = Rc::new(Session::new(carrier, &permit, Arc::clone(&self.near), ticket.handle()));
        ticket.has_requests(Rc::clone(&session.requests));
        let living = Living(Rc::clone(&session));
        let connection = Connection { target, port, is_tls: false };
        let origin = Rc::new(Origin::new(&session, connection, Vec::new(), Some(permit)));
        let inside = Rc::new(Inside { session, origin, ticket: RefCell::new(ticket), _living: living });
        let mut origins = self.origins.borrow_mut();
        if origins.len() >= MOST {
            origins.clear();
        }
        origins.insert(key, Rc::clone(&inside));
        Ok(inside)
    }
}

fn not_for_proxies() -> Bad {
    let why = "a proxy is asked for a URL or with CONNECT".to_owned();
    Bad { status: 400, reason: Reason::Ambiguous, why }
}
