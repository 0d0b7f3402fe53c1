//! The real addresses of a name, asked of the host's name servers when something is dialled.
//!
//! Not through the C library: a static program has no NSS, and a name that a sandbox chose is never handed to
//! `getaddrinfo`. Names are absolute; search lists and `ndots` do not apply. The host's `/etc/hosts` comes first, then its
//! name servers in order: the next is asked only where one is silent or fails, never because it says that there is no
//! such name. One that was silent is asked last for a while. A server with a scope (`fe80::1%eth0`) is passed over.

use super::files;
use airlock_gate::host::HostName;
use hickory_proto::rr::{Name, RData, RecordType};
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup as Answer;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::{Resolver, TokioResolver};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

/// Names kept at most.
const MOST_KEPT: usize = 1024;
/// Addresses taken of one name.
const MOST_ADDRESSES: usize = 32;
/// How long an answer is kept, whatever its TTL says.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// How long what a hosts file says is kept.
const HOSTS: Duration = Duration::from_secs(5);
/// How long one server is waited for, and how often the whole list is gone through.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// How long a server that was silent is asked last.
const SULK: Duration = Duration::from_secs(30);
/// How long the addresses of the other family are waited for once there are some (RFC 8305, section 3).
const OTHER_FAMILY: Duration = Duration::from_millis(50);
/// Names that are asked for at the same time, each with two sockets; others wait their turn.
const MOST_FLIGHTS: usize = 32;
/// Longest file that is read.
const LONGEST_FILE: u64 = 16 << 20;

/// Finds addresses, and keeps them as long as their TTL says.
pub(super) struct Lookup {
    source: Source,
    servers: RefCell<Option<(Stamp, Servers)>>,
    kept: RefCell<HashMap<HostName, Kept>>,
    flights: RefCell<HashMap<HostName, Flight>>,
    places: Semaphore,
}

/// Where the host's own settings are.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Asked in place of those in `resolv_conf`.
    pub(super) servers: Vec<SocketAddr>,
    pub(super) resolv_conf: PathBuf,
    pub(super) hosts: PathBuf,
}

/// Why a name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// The name server says so.
    #[error("there is no such name")]
    NoSuchName,
    /// It is a name, without addresses.
    #[error("the name has no address")]
    NoAddress,
    /// No server answered in time.
    #[error("no name server answered in time")]
    Silent,
    /// They answered, but with a failure.
    #[error("the name server failed: {0}")]
    Failed(String),
}

type Servers = Rc<[Server]>;
type Outcome = Result<Rc<[IpAddr]>, Fault>;
/// One question on its way; whoever asks the same meanwhile waits for it too.
type Flight = Rc<OnceCell<Outcome>>;
/// What tells that a file has changed: time, size, inode.
type Stamp = Option<(i64, i64, u64, u64)>;

/// One name server.
pub(super) struct Server {
    client: TokioResolver,
    /// It was silent, and is asked last until then.
    silent_until: Cell<Option<Instant>>,
}

struct Kept {
    addresses: Rc<[IpAddr]>,
    until: Instant,
}

/// The answer for one family.
struct Found {
    addresses: Vec<IpAddr>,
    lasts: Duration,
}

impl Lookup {
    pub(super) fn new(source: Source) -> Lookup {
        Lookup {
            source,
            servers: RefCell::default(),
            kept: RefCell::default(),
            flights: RefCell::default(),
            places: Semaphore::new(MOST_FLIGHTS),
        }
    }

    /// The addresses of `name`, none of them checked; never an empty list.
    pub(super) async fn addresses(&self, name: &HostName) -> Outcome {
        if let Some(kept) = self.kept(name) {
            return Ok(kept);
        }
        let flight = Rc::clone(self.flights.borrow_mut().entry(name.clone()).or_default());
        let boarded = Boarded { lookup: self, name, flight };
        boarded.flight.get_or_init(|| self.ask(name)).await.clone()
    }

    fn kept(&self, name: &HostName) -> Option<Rc<[IpAddr]>> {
        let kept = self.kept.borrow();
        let kept = kept.get(name)?;
        (kept.until > Instant::now()).then(|| Rc::clone(&kept.addresses))
    }

    async fn ask(&self, name: &HostName) -> Outcome {
        let given = files::addresses(&read(&self.source.hosts), name.as_str());
        if !given.is_empty() {
            return Ok(self.keep(name, Found { addresses: given, lasts: HOSTS }));
        }
        let Ok(wire) = Name::from_ascii(format!("{name}.")) else { return Err(Fault::NoSuchName) };
        // It is never closed; were it, there would be no place.
        let _place = self.places.acquire().await.map_err(|_| Fault::Silent)?;
        let servers = self.servers();
        let found =
            both(family(&servers, &wire, RecordType::AAAA), family(&servers, &wire, RecordType::A)).await?;
        Ok(self.keep(name, found))
    }

    fn keep(&self, name: &HostName, found: Found) -> Rc<[IpAddr]> {
        let addresses: Rc<[IpAddr]> = found.addresses.into();
        let now = Instant::now();
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, old| old.until > now);
        }
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        let until = now + found.lasts.clamp(SHORTEST, LONGEST);
        kept.insert(name.clone(), Kept { addresses: Rc::clone(&addresses), until });
        addresses
    }

    /// The host's name servers, as they are now.
    pub(super) fn servers(&self) -> Servers {
        let stamp = if self.source.servers.is_empty() { stamp(&self.source.resolv_conf) } else { None };
        if let Some((known, servers)) = &*self.servers.borrow()
            && *known == stamp
        {
            return Rc::clone(servers);
        }
        let addresses = match self.source.servers.as_slice() {
            [] => files::servers(&read(&self.source.resolv_conf)),
            given => given.to_vec(),
        };
        let servers: Servers = addresses.into_iter().filter_map(Server::new).collect();
        self.servers.replace(Some((stamp, Rc::clone(&servers))));
        servers
    }
}

#[cfg(test)]
impl Lookup {
    pub(super) fn forget(&self) {
        self.kept.borrow_mut().clear();
    }

    pub(super) fn remember(&self, name: &HostName, addresses: Vec<IpAddr>) {
        self.keep(name, Found { addresses, lasts: LONGEST });
    }

    pub(super) fn len(&self) -> usize {
        self.kept.borrow().len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flights.borrow().is_empty()
    }
}

/// Someone waits for a flight; the last to leave takes it off the board, even if nobody waited to the end.
struct Boarded<'a> {
    lookup: &'a Lookup,
    name: &'a HostName,
    flight: Flight,
}

impl Drop for Boarded<'_> {
    fn drop(&mut self) {
        // One is on the board and one is ours.
        if Rc::strong_count(&self.flight) <= 2 {
            self.lookup.flights.borrow_mut().remove(self.name);
        }
    }
}

impl Server {
    /// A client of one name server: UDP, and TCP where an answer is truncated. It keeps nothing and reads no file.
    fn new(address: SocketAddr) -> Option<Server> {
        let at = |mut connection: ConnectionConfig| {
            connection.port = address.port();
            connection
        };
        let connections = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
        let server = NameServerConfig::new(address.ip(), true, connections);
        let config = ResolverConfig::from_name_servers(vec![server]);
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options = builder.options_mut();
        options.timeout = PATIENCE;
        options.attempts = 0;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.num_concurrent_reqs = 1;
        Some(Server { client: builder.build().ok()?, silent_until: Cell::new(None) })
    }

    /// Asks once; none where it is silent.
    async fn ask(&self, name: &Name, kind: RecordType) -> Option<Result<Answer, NetError>> {
        let answer = match timeout(PATIENCE, self.client.lookup(name.clone(), kind)).await {
            Ok(Err(NetError::Timeout)) | Err(_) => None,
            Ok(answer) => Some(answer),
        };
        let silent_until = if answer.is_none() { Instant::now().checked_add(SULK) } else { None };
        self.silent_until.set(silent_until);
        answer
    }

    fn is_silent(&self) -> bool {
        self.silent_until.get().is_some_and(|until| until > Instant::now())
    }
}

/// Asks the servers in order for one family.
async fn family(servers: &[Server], name: &Name, kind: RecordType) -> Result<Found, Fault> {
    let mut fault = Fault::Silent;
    let (silent, awake): (Vec<_>, Vec<_>) = servers.iter().partition(|server| server.is_silent());
    let order: Vec<&Server> = awake.into_iter().chain(silent).collect();
    for server in std::iter::repeat_n(order, ROUNDS).flatten() {
        match server.ask(name, kind).await {
            Some(Ok(answer)) => return found(&answer),
            Some(Err(error)) if error.is_nx_domain() => return Err(Fault::NoSuchName),
            Some(Err(NetError::Dns(DnsError::NoRecordsFound(_)))) => return Err(Fault::NoAddress),
            Some(Err(error)) => fault = Fault::Failed(error.to_string()),
            None => {}
        }
    }
    Err(fault)
}

fn found(answer: &Answer) -> Result<Found, Fault> {
    let lasts = answer.valid_until().saturating_duration_since(Instant::now());
    let addresses = answer.answers().iter().filter_map(|record| address(&record.data));
    let addresses: Vec<_> = addresses.take(MOST_ADDRESSES).collect();
    if addresses.is_empty() { Err(Fault::NoAddress) } else { Ok(Found { addresses, lasts }) }
}

fn address(record: &RData) -> Option<IpAddr> {
    match record {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    }
}

/// Both families; the second is waited for only a moment once the first has brought addresses.
async fn both(
    v6: impl Future<Output = Result<Found, Fault>>,
    v4: impl Future<Output = Result<Found, Fault>>,
) -> Result<Found, Fault> {
    tokio::pin!(v6, v4);
    let (six, four) = tokio::select! {
        six = &mut v6 => {
            let four = second(&six, v4).await;
            (Some(six), four)
        }
        four = &mut v4 => {
            let six = second(&four, v6).await;
            (six, Some(four))
        }
    };
    match (six, four) {
        (Some(Ok(mut six)), Some(Ok(four))) => {
            six.addresses.extend(four.addresses);
            six.lasts = six.lasts.min(four.lasts);
            Ok(six)
        }
        (Some(Ok(found)), _) | (_, Some(Ok(found))) => Ok(found),
        (Some(Err(six)), Some(Err(four))) => Err(worse(six, four)),
        (Some(Err(fault)), None) | (None, Some(Err(fault))) => Err(fault),
        (None, None) => Err(Fault::Silent),
    }
}

async fn second(
    first: &Result<Found, Fault>,
    other: impl Future<Output = Result<Found, Fault>>,
) -> Option<Result<Found, Fault>> {
    match first {
        Ok(_) => timeout(OTHER_FAMILY, other).await.ok(),
        Err(_) => Some(other.await),
    }
}

/// What tells a person more: a failure before silence, silence before "no such name", that before "no address".
fn worse(one: Fault, other: Fault) -> Fault {
    let weight = |fault: &Fault| match fault {
        Fault::Failed(_) => 3,
        Fault::Silent => 2,
        Fault::NoSuchName => 1,
        Fault::NoAddress => 0,
    };
    if weight(&one) >= weight(&other) { one } else { other }
}

fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((file.mtime(), file.mtime_nsec(), file.size(), file.ino()))
}

/// A file as text; nothing where it cannot be read.
fn read(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(file) if file.is_file() && file.len() <= LONGEST_FILE => {
            fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        }
        _ => String::new(),
    }
}
