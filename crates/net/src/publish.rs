//! Ports of the host that lead inside.
//!
//! A connection to one is a crossing like any other: asked for, recorded, relayed. Who connects is seen inside as
//! 198.18.0.2, never as loopback, so that nothing inside mistakes it for a program of its own.

use crate::{
    flows::{Ticket, What},
    relay::{End, Ends, Moved},
    wall::{Wall, listener},
};
use airlock_gate::{Crossing, Finished, Permit};
use airlock_protocol::spec;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};
use thiserror::Error;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

/// How long the way inside may take.
const INSIDE: Duration = Duration::from_secs(10);

/// After an accept that failed for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A port of the host that is listened on.
#[derive(Debug)]
pub struct Published {
    listener: std::net::TcpListener,
    /// Where on the host; the port that was taken, if any would do.
    pub address: SocketAddr,
    /// The port inside.
    pub inside: u16,
}

/// A port that cannot be published.
#[derive(Debug, Error)]
pub enum CannotPublish {
    /// Somebody else listens there.
    #[error("port {port} of {address} is taken")]
    Taken {
        /// Address of the host.
        address: IpAddr,
        /// Port of the host.
        port: u16,
        /// Port inside.
        inside: u16,
    },
    /// A low port.
    #[error("port {port} is kept for the administrator")]
    Kept {
        /// Port of the host.
        port: u16,
        /// Port inside.
        inside: u16,
    },
    /// The host does not have this address.
    #[error("{0} is no address of this host")]
    Elsewhere(IpAddr),
    /// Anything else.
    #[error("could not listen on {address}")]
    Other {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl CannotPublish {
    /// What a person can do.
    pub fn fix(&self) -> String {
        match self {
            CannotPublish::Taken { port, inside, .. } | CannotPublish::Kept { port, inside } => {
                format!("publish another port: --publish {}:{inside}", another(*port))
            }
            CannotPublish::Elsewhere(_) => {
                "name an address of this host (`ip address` lists them), or none for 127.0.0.1".to_owned()
            }
            CannotPublish::Other { .. } => "name another address or port".to_owned(),
        }
    }
}

fn another(port: u16) -> u16 {
    if port < 1024 { port + 8000 } else { port.checked_add(1).unwrap_or(8080) }
}

/// Listens on the host.
pub fn listen(wish: &spec::Publish) -> Result<Published, CannotPublish> {
    let &spec::Publish { address, port, inside } = wish;
    let place = SocketAddr::new(address, port);
    let bound = std::net::TcpListener::bind(place).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => CannotPublish::Taken { address, port, inside },
        io::ErrorKind::PermissionDenied => CannotPublish::Kept { port, inside },
        io::ErrorKind::AddrNotAvailable => CannotPublish::Elsewhere(address),
        _ => CannotPublish::Other { address: place, source },
    })?;
    let other = |source| CannotPublish::Other { address: place, source };
    let address = bound.local_addr().map_err(other)?;
    Ok(Published { listener: bound, address, inside })
}

impl Published {
    /// What was wished for, with the port that was taken.
    pub fn wish(&self) -> spec::Publish {
        spec::Publish { address: self.address.ip(), port: self.address.port(), inside: self.inside }
    }

    /// Lets connections in until it is dropped. `connect` gives a connection to a port inside, made inside.
    pub async fn serve<C, F>(self, wall: Rc<Wall>, connect: C)
    where
        C: Fn(u16) -> F + Clone + 'static,
        F: Future<Output = io::Result<TcpStream>>,
    {
        let Ok(listener) = listener(OwnedFd::from(self.listener)) else { return };
        let mut flows = JoinSet::new();
        loop {
            let accepted = listener.accept().await;
            while flows.try_join_next().is_some() {}
            match accepted {
                Ok((near, from)) => {
                    let (wall, connect, port) = (Rc::clone(&wall), connect.clone(), self.inside);
                    flows.spawn_local(async move { carry(&wall, near, (from, port), connect(port)).await });
                }
                Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// One connection from outside, from beginning to end.
async fn carry(
    wall: &Wall,
    near: TcpStream,
    (from, port): (SocketAddr, u16),
    inside: impl Future<Output = io::Result<TcpStream>>,
) {
    let (permit, _ticket) = match admit(wall, from, port).await {
        Some(admitted) => admitted,
        None => return reset(&near),
    };
    let (trace, begun, moved) = (permit.trace(), Instant::now(), Moved::within(permit.meter()));
    // It permits this connection, which is being made.
    drop(permit);
    let status = match timeout(INSIDE, inside).await.map_err(io::Error::from).flatten() {
        Err(_) => {
            reset(&near);
            "unreachable"
        }
        Ok(far) => {
            match (Ends { near, far: prompt(far) }).relay(&wall.pool, &moved, Vec::new(), None).await {
                End::Closed => "closed",
                End::Reset | End::Refused(_) | End::Spent => "reset",
            }
        }
    };
    wall.gate.finish(&Finished {
        trace: &trace,
        address: None,
        sent: moved.received.get(),
        received: moved.sent.get(),
        lasted: begun.elapsed(),
        status,
        code: None,
    });
}

async fn admit(wall: &Wall, from: SocketAddr, port: u16) -> Option<(Permit, Ticket)> {
    let crossing = Crossing::Publish { from, port };
    let ticket = wall.enter(&crossing).ok()?;
    let permit = wall.gate.ask(crossing).await.ok()?;
    ticket.decided(What::In);
    Some((permit, ticket))
}

/// What is small goes at once.
fn prompt(far: TcpStream) -> TcpStream {
    let _ = far.set_nodelay(true);
    far
}

fn reset(near: &TcpStream) {
    // A socket that is gone already needs no reset.
    let _ = near.set_zero_linger();
}
