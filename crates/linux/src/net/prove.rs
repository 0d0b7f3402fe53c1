//! The trial from inside: what must be refused is refused, before any program runs.

use super::{
    refusals::{self, Protocol, Refused},
    seat::{During as _, Error, LISTENER_PORT, RESOLVER_PORT, Seat},
    sockets,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SendFlags, SocketType, sockopt},
};
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
};

/// Addresses for documentation, which nobody has (RFC 5737, RFC 3849).
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const HTTPS: u16 = 443;
/// A wall refuses within microseconds; a connection that is still under way after this was not refused.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Proves that the wall is closed, from where the program will be: connections and packets to the outside are
/// refused at once and reported, and neither listener nor resolver can be reached but by redirection.
///
/// Called before anything is open. The refusals it causes are read here and tell nobody.
pub fn prove(seat: &Seat) -> Result<(), Error> {
    let mut addresses = vec![(IpAddr::from(NOBODY_V4), IpAddr::from(Ipv4Addr::LOCALHOST))];
    if seat.tcp.len() > 1 {
        addresses.push((NOBODY_V6.into(), Ipv6Addr::LOCALHOST.into()));
    }
    for (outside, inside) in &addresses {
        connect_is_refused(SocketAddr::new(*outside, HTTPS))?;
        connect_is_refused(SocketAddr::new(*inside, LISTENER_PORT))?;
        connect_is_refused(SocketAddr::new(*inside, RESOLVER_PORT))?;
        send_is_refused(SocketAddr::new(*outside, HTTPS))?;
        send_is_refused(SocketAddr::new(*inside, RESOLVER_PORT))?;
    }
    for listener in seat.tcp.iter().chain(&seat.dns_tcp) {
        match rustix::net::accept(listener) {
            Err(Errno::AGAIN) => {}
            _ => return Err(Error::Open("a listener was reached")),
        }
    }
    let outside = addresses.iter().map(|(outside, _)| SocketAddr::new(*outside, HTTPS));
    are_reported(seat, outside)
}

fn connect_is_refused(to: SocketAddr) -> Result<(), Error> {
    let socket = sockets::socket(family(to), SocketType::STREAM).during("make a socket for the trial")?;
    match rustix::net::connect(&socket, &to) {
        Err(Errno::CONNREFUSED) => return Ok(()),
        Err(Errno::INPROGRESS) => {}
        Err(err) => return Err(io::Error::from(err)).during("try a forbidden connection"),
        Ok(()) => return Err(Error::Open("a forbidden connection was made")),
    }
    let ready = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&PATIENCE));
    match (ready, sockopt::socket_error(&socket)) {
        (Ok(1), Ok(Err(Errno::CONNREFUSED))) => Ok(()),
        (Ok(0), _) => Err(Error::Open("a forbidden connection was not refused at once")),
        _ => Err(Error::Open("a forbidden connection was not refused")),
    }
}

fn send_is_refused(to: SocketAddr) -> Result<(), Error> {
    let socket = sockets::socket(family(to), SocketType::DGRAM).during("make a socket for the trial")?;
    match rustix::net::sendto(&socket, b"?", SendFlags::empty(), &to) {
        Err(Errno::PERM) => Ok(()),
        Err(err) => Err(io::Error::from(err)).during("try a forbidden packet"),
        Ok(_) => Err(Error::Open("a forbidden packet was sent")),
    }
}

/// Both the connection and the packet to each of these were told.
fn are_reported(seat: &Seat, outside: impl Iterator<Item = SocketAddr>) -> Result<(), Error> {
    let mut told = VecDeque::new();
    while refusals::receive(seat.refusals.as_fd(), &mut told).during("read the refusals of the trial")? {}
    for destination in outside {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            if !told.contains(&Refused { destination, protocol }) {
                return Err(Error::Open("a refusal was not reported"));
            }
        }
    }
    Ok(())
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET }
}
