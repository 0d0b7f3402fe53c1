//! What may be asked, in the words of the ledger and of people.

use crate::{
    approvals::Question,
    glob::Glob,
    host::{HostName, Target},
    permit::Kind,
    request::Request,
};
use airlock_protocol::{ledger, policy};
use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

/// Methods that are told apart where there are very many requests; whoever makes requests can make up others.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];

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
    Request(Rc<Request>),
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

    /// As [`Crossing::record`], where it stands for others of the same sort too.
    pub(super) fn record_of_many(&self) -> ledger::Crossing {
        match (self.record(), self.sort()) {
            (ledger::Crossing::Request { host, port, .. }, Some(method)) => {
                ledger::Crossing::Request { host, port, method, path: "*".to_owned() }
            }
            (record, _) => record,
        }
    }

    /// What tells sorts of it apart where there are very many.
    pub(super) fn sort(&self) -> Option<String> {
        match self {
            Crossing::Request(request) => {
                let known = METHODS.iter().find(|method| **method == request.method);
                Some((*known.unwrap_or(&"*")).to_owned())
            }
            Crossing::Reveal { secret, .. } => Some(secret.clone()),
            _ => None,
        }
    }

    /// The request.
    pub(super) fn call(&self) -> Option<Rc<Request>> {
        let Crossing::Request(request) = self else { return None };
        Some(Rc::clone(request))
    }

    /// What a person is asked; where the rule that asks is about git, about a repository.
    pub(super) fn question(&self, is_git: bool) -> Question {
        let question = Question {
            kind: "connect",
            host: self.target().to_string(),
            port: self.port(),
            ..Question::default()
        };
        match self {
            Crossing::Request(request) => Question {
                kind: "request",
                method: Some(request.method.clone()),
                path: Some(request.path.clone()),
                query: query(&request.query),
                grant: grant(request, is_git),
                ..question
            },
            _ => question,
        }
    }

    /// As a person reads it: `connecting to api.example.com:443`.
    pub(super) fn words(&self) -> String {
        match self {
            Crossing::Resolve { name, .. } => format!("looking up {name}"),
            Crossing::Connect { target, port } => connecting(target, *port),
            Crossing::Request(request) => {
                let Request { target, port, method, path, .. } = &**request;
                requesting(method, path, target, *port)
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
            Crossing::Request(request) if request.is_ssh => None,
            Crossing::Request(request) => Some(url(request)),
            Crossing::Reveal { .. } | Crossing::Publish { .. } => None,
        }
    }
}

/// Exactly this request, whatever its query, as a rule has it: method and path, or the repository.
fn grant(request: &Request, is_git: bool) -> policy::Request {
    // What is too long for a pattern stays as it is, and then no rule can be made of it.
    let exact = |text: &str| Glob::exact(text).map_or(text.to_owned(), |glob| glob.to_string());
    let websocket = request.websocket.then_some(true);
    match request.git.as_ref().filter(|_| is_git) {
        Some(call) => policy::Request {
            git: Some(call.wants),
            repositories: vec![exact(&call.repository)],
            ..policy::Request::default()
        },
        None => policy::Request {
            methods: vec![request.method.clone()],
            paths: vec![exact(&request.path)],
            websocket,
            ..policy::Request::default()
        },
    }
}

fn query(pairs: &[(String, String)]) -> Option<String> {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    (!pairs.is_empty()).then(|| pairs.join("&"))
}

/// As `airlock allow` takes it; the whole host where the path would need care in a shell.
fn url(request: &Request) -> String {
    let Request { target, port, is_tls, method, path, .. } = request;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~+,=@".contains(&byte);
    if !path.bytes().all(is_plain) || !method.bytes().all(is_plain) {
        return place(target, *port);
    }
    let (scheme, usual) = if *is_tls { ("https", 443) } else { ("http", 80) };
    match *port == usual {
        true => format!("'{method} {scheme}://{}{path}'", host(target)),
        false => format!("'{method} {scheme}://{}{path}'", place(target, *port)),
    }
}

fn host(target: &Target) -> String {
    match target {
        Target::Address(IpAddr::V6(address)) => format!("[{address}]"),
        other => other.to_string(),
    }
}

pub(super) fn connect(target: &Target, port: u16) -> ledger::Crossing {
    ledger::Crossing::Connect { host: target.to_string(), port, protocol: "tcp".to_owned() }
}

pub(super) fn connecting(target: &Target, port: u16) -> String {
    format!("connecting to {}", place(target, port))
}

pub(super) fn requesting(method: &str, path: &str, target: &Target, port: u16) -> String {
    let (method, path) = (crate::ledger::shown(method), crate::ledger::shown(path));
    format!("{method} {path} at {}", place(target, port))
}

pub(super) fn place(target: &Target, port: u16) -> String {
    match target {
        Target::Address(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        other => format!("{other}:{port}"),
    }
}
