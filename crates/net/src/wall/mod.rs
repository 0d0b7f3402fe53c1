//! Everything of one sandbox's network, put together: the kernel's rules, the name server, the listeners, the flows.
//!
//! The kernel lets a destination reach the listener only if a rule could match it. The set of those follows the rules of
//! the [`Gate`] and the names that were handed out; the decision itself is always the gate's.

mod refused;

pub use crate::http::Filters;
use crate::{
    accept,
    egress::Egress,
    flows::Flows,
    http::{Carrier, proxy},
    names::Names,
    packages::{Packages, Registries},
    relay::Pool,
    resolver::{self, Itself, Opener, Resolver},
    secrets::Guard,
    ssh::Gateway,
    tls::Authority,
};
use airlock_gate::{Gate, host::HostName, judge::Judge};
use airlock_linux::net::seat::{OWN_V4, OWN_V6, Opening, Rules, Seat};
use airlock_protocol::policy::Ports;
use refused::Refused;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    cell::RefCell,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    rc::Rc,
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// Between two attempts to tell the kernel what is open.
const AGAIN: Duration = Duration::from_millis(200);

/// The keeper's side of one sandbox's network.
pub struct Wall {
    pub(crate) gate: Rc<Gate>,
    pub(crate) names: Rc<RefCell<Names>>,
    pub(crate) egress: Rc<Egress>,
    pub(crate) pool: Rc<Pool>,
    pub(crate) carrier: Rc<Carrier>,
    pub(crate) flows: Rc<Flows>,
    rules: RefCell<Rules>,
    refused: RefCell<Refused>,
}

/// What a wall is made of.
pub struct Setup<'a> {
    /// Who decides.
    pub gate: Rc<Gate>,
    /// How connections leave.
    pub egress: Rc<Egress>,
    /// What the sandbox calls itself.
    pub hostname: &'a str,
    /// Whom the sandbox trusts where its connections are opened; without one, none is.
    pub authority: Option<Rc<Authority>>,
    /// What git inside SSH meets; without it, that is not carried.
    pub ssh: Option<Gateway>,
    /// What looks at requests, in their order. Secrets are looked after behind all of them.
    pub filters: Filters,
}

/// Starts everything on `tasks`, of the thread that owns the gate: the wall stands while they run.
pub fn raise(seat: Seat, setup: Setup<'_>, tasks: &mut JoinSet<()>) -> io::Result<Rc<Wall>> {
    let Setup { gate, egress, hostname, authority, ssh, mut filters } = setup;
    let pool = Rc::new(Pool::new());
    if authority.is_some() {
        let registries = Registries { gate: Rc::clone(&gate), egress: Rc::clone(&egress) };
        filters.0.push(Rc::new(Packages::new(Rc::clone(&gate), Rc::new(registries))));
    }
    if !gate.secrets().is_empty() {
        // Last on the way out and first on the way in: nothing else of ours sees a value.
        filters.0.push(Rc::new(Guard::new(Rc::clone(&gate), Rc::clone(&egress))));
    }
    // Whoever runs a machine has its end of the cable.
    let Seat { tcp, dns_udp, dns_tcp, rules, refusals, tap: _ } = seat;
    let itself = Itself { hostname: hostname.to_owned(), v4: OWN_V4, v6: (tcp.len() > 1).then_some(OWN_V6) };
    let changes = gate.generation();
    let descriptors = descriptors();
    let flows = Rc::new(Flows::new(descriptors));
    let carrier = Carrier {
        gate: Rc::clone(&gate),
        egress: Rc::clone(&egress),
        flows: Rc::clone(&flows),
        pool: Rc::clone(&pool),
        authority,
        ssh,
        filters: filters.0,
        spares: Rc::default(),
    };
    let rules = Rules::new(rules);
    let refused = Refused::since_now(refusals, &rules)?;
    let wall = Rc::new(Wall {
        gate,
        names: Rc::new(RefCell::new(Names::new(egress.names()))),
        egress,
        pool,
        carrier: Rc::new(carrier),
        flows,
        rules: RefCell::new(rules),
        refused: RefCell::new(refused),
    });
    wall.open_what_rules_could_match()?;
    let opener: Rc<dyn Opener> = Rc::<Wall>::clone(&wall);
    let resolver = Rc::new(Resolver::new(Rc::clone(&wall.gate), Rc::clone(&wall.names), opener, itself));
    let listeners = tcp.into_iter().map(listener).collect::<io::Result<Vec<_>>>()?;
    resolver::serve(dns_udp, dns_tcp, &resolver, tasks)?;
    for listener in listeners {
        tasks.spawn_local(accept::serve(Rc::clone(&wall), listener));
    }
    tasks.spawn_local(refused::follow(refused::watched(&wall)?));
    tasks.spawn_local(follow_rules(Rc::clone(&wall), changes));
    let lives = Rc::clone(&wall);
    tasks.spawn_local(async move { lives.pool.awake.stay(|| lives.flows()).await });
    Ok(wall)
}

/// How many descriptors this process may have: as many as it may ever have, since each flow takes two.
fn descriptors() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

impl Wall {
    /// How many flows live now.
    pub fn flows(&self) -> usize {
        self.flows.count()
    }

    fn open_what_rules_could_match(&self) -> io::Result<()> {
        let mut wanted = match self.gate.policy().audit_only {
            true => everything(),
            false => openings(&self.gate.judge(), &self.names.borrow()),
        };
        if !self.gate.policy().audit_only {
            wanted.push(opening(proxy::ADDRESS.into(), 32, Ports::one(proxy::PORT)));
        }
        self.rules.borrow_mut().replace(&wanted)
    }

    /// Ends the flows that the rules of now do not allow.
    pub(crate) fn judge_anew(&self) {
        self.carrier.judge_anew();
    }
}

impl Opener for Wall {
    fn open(&self, _name: &HostName, address: Ipv4Addr, ports: &[Ports]) -> io::Result<()> {
        let wanted: Vec<Opening> = ports.iter().map(|ports| opening(address.into(), 32, *ports)).collect();
        self.rules.borrow_mut().open(&wanted)
    }
}

/// What `judge` could match: names by the addresses that stand for them, and addresses that rules name.
fn openings(judge: &Judge, names: &Names) -> Vec<Opening> {
    let named = names.iter().flat_map(|(name, address)| {
        let ports = judge.could_match(name);
        ports.into_iter().map(move |ports| opening(address.into(), 32, ports))
    });
    let literal = judge.literal_openings();
    let literal = literal.iter().map(|(range, ports)| opening(range.network(), range.prefix(), *ports));
    named.chain(literal).collect()
}

/// Where nothing is denied, everything has to be seen.
fn everything() -> Vec<Opening> {
    vec![
        opening(Ipv4Addr::UNSPECIFIED.into(), 0, Ports::ALL),
        opening(Ipv6Addr::UNSPECIFIED.into(), 0, Ports::ALL),
    ]
}

fn opening(address: IpAddr, prefix: u8, ports: Ports) -> Opening {
    Opening { address, prefix, first: ports.first, last: ports.last }
}

/// Keeps the kernel's set and the flows as the rules are.
async fn follow_rules(wall: Rc<Wall>, mut changes: watch::Receiver<u64>) {
    let mut is_behind = false;
    loop {
        tokio::select! {
            biased;
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN), if is_behind => {}
        }
        wall.carrier.rules_changed();
        // The gate decides by the new rules already. While the kernel is behind, it refuses what was not open before.
        is_behind = wall.open_what_rules_could_match().is_err();
    }
}

/// What is accepted there sends at once what it is given: accepted sockets are as their listener is.
pub(crate) fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod tests;
