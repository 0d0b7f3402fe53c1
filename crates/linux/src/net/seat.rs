//! The seat: what the keeper has inside a sandbox's network namespace. Addresses, listeners, rules.
//!
//! [`build`] runs in the namespace, with its power. What it makes is handed to the keeper, which works with it from
//! outside: it accepts what programs inside connect to, answers their questions, and opens destinations.
//!
//! Two ports of the loopback address are the seat's: [`LISTENER_PORT`] and [`RESOLVER_PORT`]. A connection reaches
//! them only by redirection; one that is made to them is refused. For a machine ([`build_for_machine`]) they are
//! ports of the outside's address, which is its gateway's.

use super::{links, machine, netlink, refusals, settings, sockets, wall};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

pub use super::{
    links::Families,
    openings::Opening,
    prove::{prove, witness},
    refusals::{Protocol, Refusals, Refused},
    rules::Rules,
    sockets::{original_destination, reset_on_close},
};

/// The sandbox's own address. All of 198.18.0.0/24 stays inside; names get addresses behind it.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// What programs inside see of the outside: their name server, and where published connections come from.
pub const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// See [`OWN_V4`].
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd61, 0x6972, 0x6c6f, 0x636b, 0, 0, 0, 1);
/// See [`OUTSIDE_V4`].
pub const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0xfd61, 0x6972, 0x6c6f, 0x636b, 0, 0, 0, 2);
/// Where redirected connections are accepted.
pub const LISTENER_PORT: u16 = 61097;
/// Where questions are answered.
pub const RESOLVER_PORT: u16 = 61098;

/// What the keeper holds of a sandbox's network. Sockets never wait. Of each kind the one for IPv4 comes first, then
/// the one for IPv6 if the host has it.
#[derive(Debug)]
pub struct Seat {
    /// Accept connections that programs make; see [`original_destination`].
    pub tcp: Vec<OwnedFd>,
    /// Receive questions.
    pub dns_udp: Vec<OwnedFd>,
    /// Accept connections for questions.
    pub dns_tcp: Vec<OwnedFd>,
    /// For [`Rules`].
    pub rules: OwnedFd,
    /// For [`Refusals`].
    pub refusals: OwnedFd,
    /// The machine's end of its cable, for whoever runs the machine. `None` where programs are in the network namespace.
    pub tap: Option<OwnedFd>,
}

/// Why there is no seat.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a step.
    #[error("could not {step}")]
    Step {
        /// Completes the sentence.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The trial from inside found a hole.
    #[error("the wall does not hold: {0}")]
    Open(&'static str),
}

/// Builds the seat: the device and its addresses, settings, sockets, rules. Fails if any piece is missing.
///
/// Called in the network namespace, with its power, while `/proc/sys` is writable. `groups` are those that programs
/// inside can have. The rules come before any program, and nothing is open.
pub fn build(groups: &RangeInclusive<u32>) -> Result<Seat, Error> {
    furnish(prepare(groups)?)
}

/// The same for a machine: its TAP is made of `device` ([`machine::open`] in this namespace) and handed on in the seat.
/// Proved by the machine's own means before anybody has it.
pub fn build_for_machine(device: OwnedFd, groups: &RangeInclusive<u32>) -> Result<Seat, Error> {
    let families = sockets::families().during("ask for IPv6")?;
    // First, so that not even the kernel's own first words go out by the device.
    let rules = lay(wall::Of::Machine)?;
    let families = machine::gateway::set_up(&device, families)?;
    settings::write(groups)?;
    let seat = Seat { tap: Some(device), ..take(families, [OUTSIDE_V4.into(), OUTSIDE_V6.into()], rules)? };
    machine::prove::prove(&seat)?;
    Ok(seat)
}

/// The first part of [`build`]: what the kernel's routing and settings need.
pub(crate) fn prepare(groups: &RangeInclusive<u32>) -> Result<Families, Error> {
    let families = sockets::families().during("ask for IPv6")?;
    let families = links::set_up(families)?;
    settings::write(groups)?;
    Ok(families)
}

/// The second part: rules and sockets.
pub(crate) fn furnish(families: Families) -> Result<Seat, Error> {
    let addresses = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    take(families, addresses, lay(wall::Of::Programs)?)
}

/// The rules, by the socket for them.
fn lay(of: wall::Of) -> Result<OwnedFd, Error> {
    let rules = netlink::socket(netlink::Protocol::Netfilter).during("open a netlink socket for rules")?;
    wall::transaction(of).commit(rules.as_fd())?;
    Ok(rules)
}

/// Sockets at these addresses, so far as there are such.
fn take(families: Families, addresses: [IpAddr; 2], rules: OwnedFd) -> Result<Seat, Error> {
    settings::shorten_memory();
    let refusals = refusals::listen()?;
    let mut seat =
        Seat { tcp: Vec::new(), dns_udp: Vec::new(), dns_tcp: Vec::new(), rules, refusals, tap: None };
    for address in addresses {
        if address.is_ipv6() && families == Families::V4 {
            continue;
        }
        let sockets = sockets::make(address)?;
        seat.tcp.push(sockets.tcp);
        seat.dns_udp.push(sockets.dns_udp);
        seat.dns_tcp.push(sockets.dns_tcp);
    }
    Ok(seat)
}

impl Seat {
    /// Which addresses the sandbox has.
    pub fn families(&self) -> Families {
        if self.tcp.len() > 1 { Families::Both } else { Families::V4 }
    }

    /// Its descriptors, in the order [`Seat::from_descriptors`] takes them; no more than one message carries.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let families = self.tcp.iter().zip(&self.dns_udp).zip(&self.dns_tcp);
        let sockets = families.flat_map(|((tcp, dns_udp), dns_tcp)| [tcp, dns_udp, dns_tcp]);
        let whole = [&self.rules, &self.refusals].into_iter().chain(sockets).chain(&self.tap);
        whole.map(AsFd::as_fd).collect()
    }

    /// The seat again, in another process. `None` if the number of descriptors is wrong.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Option<Seat> {
        let mut descriptors = descriptors.into_iter();
        let (rules, refusals) = (descriptors.next()?, descriptors.next()?);
        let mut seat =
            Seat { tcp: Vec::new(), dns_udp: Vec::new(), dns_tcp: Vec::new(), rules, refusals, tap: None };
        while let Some(first) = descriptors.next() {
            let Some(second) = descriptors.next() else {
                // What is left over behind the sockets, which come by threes.
                seat.tap = Some(first);
                break;
            };
            seat.tcp.push(first);
            seat.dns_udp.push(second);
            seat.dns_tcp.push(descriptors.next()?);
        }
        (!seat.tcp.is_empty()).then_some(seat)
    }
}

impl From<netlink::Refused> for Error {
    fn from(refused: netlink::Refused) -> Error {
        Error::Step { step: refused.purpose, source: refused.source }
    }
}

/// Names the step an error happened in.
pub(super) trait During<T> {
    /// `step` completes the sentence "could not …".
    fn during(self, step: &'static str) -> Result<T, Error>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, step: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::Step { step, source })
    }
}
