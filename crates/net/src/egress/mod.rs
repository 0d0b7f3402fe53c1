//! The only dialler. It takes a permit, finds the real addresses of the name it was given for, checks each of them, and
//! connects to one of exactly those.
//!
//! What is refused, whatever answered the name: addresses of this host, loopback, link-local, metadata and multicast
//! addresses in every form, always; private and other special ranges unless the rule opens them (`private`). There is no
//! second look-up between the check and the connection, so an answer that changes meanwhile changes nothing.
//!
//! Through a proxy of the company the proxy resolves names, and what they point at cannot be checked here (see
//! [`spec::Egress::proxy`]); `no_proxy` names what is dialled directly and checked as ever.

mod files;
mod lookup;
mod proxy;
mod race;
mod route;
mod tunnel;

pub use lookup::Fault;
pub use proxy::{BadProxy, ProxyError};

use crate::names::Bounds;
use crate::tls::{Untrusted, Upstream};
use airlock_gate::address::{self, Cidr, Special};
use airlock_gate::host::{HostName, Target};
use airlock_gate::{Kind, Permit};
use airlock_protocol::spec;
use lookup::{Lookup, Source};
use proxy::{Direct, Proxy};
use route::{Route, Routes};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tunnel::Tunnels;

/// How long everything together may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// How connections leave this host.
pub struct Egress {
    lookup: Lookup,
    routes: Routes,
    proxy: Option<Proxy>,
    direct: Vec<Direct>,
    tunnels: Tunnels,
    /// Places for attempts beside the first of their flow.
    beside: Semaphore,
    names: Bounds,
    deadline: Duration,
    /// Whom servers of opened connections are verified by.
    pub(crate) trust: Upstream,
    #[cfg(test)]
    exempt: Vec<Cidr>,
}

/// A connection that was made.
#[derive(Debug)]
pub struct Dialled {
    /// The connection; `TCP_NODELAY` is set.
    pub stream: TcpStream,
    /// The address dialled; the proxy's where there is one.
    pub address: SocketAddr,
}

/// Why nothing was dialled, or nothing answered.
#[derive(Debug, Error)]
pub enum DialError {
    /// Every address was refused. A denial, by the word `address`.
    #[error("{}", refused(host, addresses))]
    Address {
        /// The name or address.
        host: String,
        /// What was refused, and why.
        addresses: Vec<(IpAddr, Why)>,
    },
    /// The name has no addresses.
    #[error("{host} cannot be resolved")]
    Unresolved {
        /// The name.
        host: String,
        /// Why.
        #[source]
        source: Fault,
    },
    /// None of the addresses could be connected to.
    #[error("{host}:{port} cannot be reached")]
    Unreachable {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// What the last one said.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("{host}:{port} did not answer within {} s", DEADLINE.as_secs())]
    TimedOut {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// The proxy did not let us through.
    #[error("{host}:{port} cannot be reached through the proxy")]
    Proxy {
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        #[source]
        source: ProxyError,
    },
    /// The permit is for something else.
    #[error("the permit is not for a connection")]
    Permit,
    /// The kernel did not say which addresses are this host's.
    #[error("this host's own addresses cannot be told from others")]
    Routes(#[source] io::Error),
}

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is of a special range.
    Special(Special),
    /// It is this host.
    ThisHost,
}

/// What is wanted, as far as dialling goes.
struct Wish<'a> {
    target: &'a Target,
    port: u16,
    /// Special ranges that the rule opens.
    opened: &'a [Cidr],
}

impl Egress {
    /// Reads the settings. The host's name servers are read when the first name is looked up.
    pub fn new(settings: &spec::Egress) -> Result<Egress, BadProxy> {
        let source = Source {
            servers: settings.resolvers.clone(),
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
        };
        Ok(Egress {
            lookup: Lookup::new(source),
            routes: Routes::default(),
            proxy: settings.proxy.as_deref().map(Proxy::parse).transpose()?,
            direct: settings.no_proxy.iter().map(|text| Direct::parse(text)).collect::<Result<_, _>>()?,
            tunnels: Tunnels::default(),
            beside: Semaphore::new(race::MOST_BESIDE),
            names: Bounds::with_labels(settings.wildcard_names),
            deadline: DEADLINE,
            trust: Upstream::new(settings.extra_ca.clone()),
            #[cfg(test)]
            exempt: Vec::new(),
        })
    }

    /// How many names there may be.
    pub(crate) fn names(&self) -> Bounds {
        self.names
    }

    /// Connects to where `permit` leads, within 30 seconds. Take its [`Permit::trace`] before, to tell how it went.
    pub async fn dial(&self, permit: Permit) -> Result<Dialled, DialError> {
        if permit.kind() != Kind::Connect {
            return Err(DialError::Permit);
        }
        let wish = Wish { target: permit.target(), port: permit.port(), opened: permit.private() };
        self.reach(&wish).await
    }

    /// Connects to a host that the person who set this machine up named, wherever that is; no sandbox has a say in it.
    pub(crate) async fn reach_own(&self, host: &str, port: u16) -> Result<TcpStream, DialError> {
        let late = || DialError::TimedOut { host: host.to_owned(), port };
        let reached = async {
            let addresses: Vec<IpAddr> = match host {
                "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
                _ => match host.parse::<Target>() {
                    Ok(Target::Address(address)) => vec![address],
                    Ok(Target::Name(name)) => self.resolve(&name).await?.to_vec(),
                    Err(_) => {
                        let source = io::ErrorKind::InvalidInput.into();
                        return Err(DialError::Unreachable { host: host.to_owned(), port, source });
                    }
                },
            };
            let addresses = race::interleave(&addresses);
            let places: Vec<SocketAddr> = addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
            let unreachable = |source| DialError::Unreachable { host: host.to_owned(), port, source };
            race::connect(&places, &self.beside).await.map(|(stream, _)| stream).map_err(unreachable)
        };
        timeout(self.deadline, reached).await.map_err(|_| late())?
    }

    /// Connects to a host that a person of this machine asked for by a command of their own, such as a registry of images:
    /// wherever it is, and through the proxy where there is one for it. No sandbox has a say in it.
    pub(crate) async fn reach_errand(&self, host: &str, port: u16) -> Result<TcpStream, DialError> {
        let Ok(target) = host.parse::<Target>() else { return self.reach_own(host, port).await };
        let is_here = match &target {
            Target::Name(name) => name.as_str() == "localhost",
            Target::Address(address) => address.is_loopback(),
        };
        let is_direct = is_here || self.direct.iter().any(|direct| direct.matches(&target));
        let Some(proxy) = self.proxy.as_ref().filter(|_| !is_direct) else {
            return self.reach_own(host, port).await;
        };
        let wish = Wish { target: &target, port, opened: &[] };
        if proxy.is_tls {
            // Whoever runs an errand may have no other thread.
            let untrusted = |err: Untrusted| ProxyError::Untrusted(err.to_string());
            let failed = |source| DialError::Proxy { host: host.to_owned(), port, source };
            self.trust.load_here().map_err(untrusted).map_err(failed)?;
        }
        let late = || DialError::TimedOut { host: host.to_owned(), port };
        let dialled = timeout(self.deadline, self.through(proxy, &wish)).await.map_err(|_| late())?;
        Ok(dialled?.stream)
    }

    async fn reach(&self, wish: &Wish<'_>) -> Result<Dialled, DialError> {
        let late = || DialError::TimedOut { host: wish.target.to_string(), port: wish.port };
        timeout(self.deadline, self.reach_in_time(wish)).await.map_err(|_| late())?
    }

    async fn reach_in_time(&self, wish: &Wish<'_>) -> Result<Dialled, DialError> {
        if let Target::Name(name) = wish.target
            && name.is_host_airlock()
        {
            // A rule named it and this port; the gate permits it for nothing else.
            return self.connect(wish, &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]).await;
        }
        let proxy =
            self.proxy.as_ref().filter(|_| !self.direct.iter().any(|direct| direct.matches(wish.target)));
        let addresses = match (wish.target, proxy) {
            (Target::Name(_), Some(proxy)) => return self.through(proxy, wish).await,
            (Target::Name(name), None) => self.resolve(name).await?.to_vec(),
            (Target::Address(address), _) => vec![*address],
        };
        let checked = self.checked(wish, &addresses)?;
        match proxy {
            Some(proxy) => self.through(proxy, wish).await,
            None => self.connect(wish, &race::interleave(&checked)).await,
        }
    }

    async fn connect(&self, wish: &Wish<'_>, addresses: &[IpAddr]) -> Result<Dialled, DialError> {
        let unreachable =
            |source| DialError::Unreachable { host: wish.target.to_string(), port: wish.port, source };
        let places = places(addresses, wish.port);
        let (stream, address) = race::connect(&places, &self.beside).await.map_err(unreachable)?;
        Ok(Dialled { stream, address })
    }

    async fn resolve(&self, name: &HostName) -> Result<std::rc::Rc<[IpAddr]>, DialError> {
        let unresolved = |source| DialError::Unresolved { host: name.to_string(), source };
        self.lookup.addresses(name).await.map_err(unresolved)
    }

    /// Those of `addresses` that may be dialled.
    fn checked(&self, wish: &Wish<'_>, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, DialError> {
        let mut fine = Vec::with_capacity(addresses.len());
        let mut refused = Vec::new();
        for address in addresses {
            match self.check(*address, wish.opened)? {
                None => fine.push(*address),
                Some(why) => refused.push((*address, why)),
            }
        }
        if fine.is_empty() {
            return Err(DialError::Address { host: wish.target.to_string(), addresses: refused });
        }
        Ok(fine)
    }

    fn check(&self, address: IpAddr, opened: &[Cidr]) -> Result<Option<Why>, DialError> {
        #[cfg(test)]
        if self.exempt.iter().any(|range| range.contains(address)) {
            return Ok(None);
        }
        if let Err(kind) = address::check(address, opened) {
            return Ok(Some(Why::Special(kind)));
        }
        match self.routes.to(address).map_err(DialError::Routes)? {
            Route::Here => Ok(Some(Why::ThisHost)),
            Route::Away | Route::Nowhere => Ok(None),
        }
    }

    async fn through(&self, proxy: &Proxy, wish: &Wish<'_>) -> Result<Dialled, DialError> {
        let addresses = match &proxy.target {
            Target::Address(address) => vec![*address],
            Target::Name(name) => self.resolve(name).await?.to_vec(),
        };
        let failed = |source| DialError::Proxy { host: wish.target.to_string(), port: wish.port, source };
        let places = places(&race::interleave(&addresses), proxy.port);
        let (mut stream, address) =
            race::connect(&places, &self.beside).await.map_err(|error| failed(error.into()))?;
        if proxy.is_tls {
            let to = (wish.target, wish.port);
            stream = self.tunnels.open(&self.trust, proxy, stream, to).await.map_err(failed)?;
        } else {
            proxy.connect(&mut stream, wish.target, wish.port).await.map_err(failed)?;
        }
        Ok(Dialled { stream, address })
    }
}

impl DialError {
    /// Whether the ledger has it as a denial, not as a failure.
    pub fn is_denial(&self) -> bool {
        matches!(self, DialError::Address { .. })
    }

    /// The word for it in the ledger: the reason of a denial, the status of a flow that never began.
    pub fn word(&self) -> &'static str {
        match self {
            DialError::Address { .. } => "address",
            DialError::Unresolved { .. } => "unresolved",
            DialError::Unreachable { .. } | DialError::Routes(_) | DialError::Permit => "unreachable",
            DialError::TimedOut { .. } => "timeout",
            DialError::Proxy { .. } => "proxy",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Special(kind) => f.write_str(kind.word()),
            Why::ThisHost => f.write_str("this host"),
        }
    }
}

fn places(addresses: &[IpAddr], port: u16) -> Vec<SocketAddr> {
    addresses.iter().map(|address| SocketAddr::new(*address, port)).collect()
}

/// "git.example resolves to 10.1.2.3 (private), which no rule opens".
fn refused(host: &str, addresses: &[(IpAddr, Why)]) -> String {
    if let [(address, why)] = addresses
        && address.to_string() == host
    {
        return format!("{address} is not dialled ({why})");
    }
    let shown: Vec<_> = addresses.iter().take(3).map(|(address, why)| format!("{address} ({why})")).collect();
    let more = if addresses.len() > shown.len() { " and others" } else { "" };
    format!("{host} resolves to {}{more}, which no rule opens", shown.join(", "))
}

#[cfg(test)]
impl Egress {
    /// One to which these names are 127.0.0.1, and that dials it.
    pub(crate) fn to_loopback(names: &[&str]) -> Egress {
        let mut egress = Egress::new(&spec::Egress::default()).unwrap();
        egress.exempt.push("127.0.0.0/8".parse().unwrap());
        for name in names {
            egress.lookup.remember(&name.parse().unwrap(), vec![Ipv4Addr::LOCALHOST.into()]);
        }
        egress
    }
}

#[cfg(test)]
mod tests;
