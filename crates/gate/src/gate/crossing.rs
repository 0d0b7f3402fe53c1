//! What may be asked, in the words of the ledger and of people.

use crate::{
    host::{HostName, Target},
    permit::Kind,
    request::Request,
};
use airlock_protocol::ledger;
use std::net::{IpAddr, SocketAddr};

/// One attempt to cross the wall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crossing {
    /// To look up a name.
    Resolve {
        /// The name.
        name: HostName,
        /// The type of the question (`A`, `TXT`, …).
        question: String,
    },
    /// To connect.
    Connect {
        /// The name or address.
        target: Target,
        /// The port.
        port: u16,
    },
    /// To send a request, inside a connection that was permitted and opened.
    Request(Box<Request>),
    /// To put a secret into a request.
    Reveal {
        /// The secret's name.
        secret: String,
        /// Where the request goes.
        target: Target,
        /// The port.
        port: u16,
    },
    /// To be connected to at a published port.
    Publish {
        /// From where.
        from: SocketAddr,
        /// The port inside.
        port: u16,
    },
}

impl Crossing {
    /// Which kind.
    pub fn kind(&self) -> Kind {
        match self {
            Crossing::Resolve { .. } => Kind::Resolve,
            Crossing::Connect { .. } => Kind::Connect,
            Crossing::Request(_) => Kind::Request,
            Crossing::Reveal { .. } => Kind::Reveal,
            Crossing::Publish { .. } => Kind::Publish,
        }
    }

    pub(super) fn target(&self) -> Target {
        match self {
            Crossing::Resolve { name, .. } => Target::Name(name.clone()),
            Crossing::Connect { target, .. } | Crossing::Reveal { target, .. } => target.clone(),
            Crossing::Request(request) => request.target.clone(),
            Crossing::Publish { from, .. } => Target::Address(from.ip()),
        }
    }

    /// Whether it is `host.airlock`.
    pub(super) fn is_to_this_host(&self) -> bool {
        self.target().name().is_some_and(crate::host::HostName::is_host_airlock)
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Crossing::Resolve { .. } => 0,
            Crossing::Connect { port, .. }
            | Crossing::Reveal { port, .. }
            | Crossing::Publish { port, .. } => *port,
            Crossing::Request(request) => request.port,
        }
    }

    /// As the ledger has it.
    pub(super) fn record(&self) -> ledger::Crossing {
        match self {
            Crossing::Resolve { name, question } => {
                ledger::Crossing::Resolve { host: name.to_string(), question: question.clone() }
            }
            Crossing::Connect { target, port } => connect(target, *port),
            Crossing::Request(request) => ledger::Crossing::Request {
                host: request.target.to_string(),
                port: request.port,
                method: request.method.clone(),
                path: request.path.clone(),
            },
            Crossing::Reveal { secret, target, port } => {
                ledger::Crossing::Reveal { secret: secret.clone(), host: target.to_string(), port: *port }
            }
            Crossing::Publish { from, port } => {
                ledger::Crossing::Publish { from: from.to_string(), port: *port }
            }
        }
    }

    /// As a person reads it: `connecting to api.example.com:443`.
    pub(super) fn words(&self) -> String {
        match self {
            Crossing::Resolve { name, .. } => format!("looking up {name}"),
            Crossing::Connect { target, port } => connecting(target, *port),
            Crossing::Request(request) => {
                let Request { target, port, method, path, .. } = &**request;
                format!("{method} {path} at {}", place(target, *port))
            }
            Crossing::Reveal { secret, target, port } => {
                format!("sending the secret {secret} to {}", place(target, *port))
            }
            Crossing::Publish { from, port } => format!("a connection from {from} to port {port}"),
        }
    }

    /// The host as `airlock allow` takes it.
    pub(super) fn place(&self) -> Option<String> {
        match self {
            Crossing::Resolve { name, .. } => Some(name.to_string()),
            Crossing::Connect { target, port } => Some(place(target, *port)),
            Crossing::Request(request) => Some(place(&request.target, request.port)),
            Crossing::Reveal { .. } | Crossing::Publish { .. } => None,
        }
    }
}

pub(super) fn connect(target: &Target, port: u16) -> ledger::Crossing {
    ledger::Crossing::Connect { host: target.to_string(), port, protocol: "tcp".to_owned() }
}

pub(super) fn connecting(target: &Target, port: u16) -> String {
    format!("connecting to {}", place(target, port))
}

pub(super) fn place(target: &Target, port: u16) -> String {
    match target {
        Target::Address(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        other => format!("{other}:{port}"),
    }
}
