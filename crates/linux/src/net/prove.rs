//! The trial from inside: what must be refused is refused, before any program runs.

use super::{
    links::Families,
    machine,
    refusals::{self, Protocol, Refused},
    seat::{During as _, Error, LISTENER_PORT, RESOLVER_PORT, Seat},
    sockets,
};
use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt},
};
use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

/// Addresses for documentation, which nobody has (RFC 5737, RFC 3849).
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const HTTPS: u16 = 443;
/// A wall refuses within microseconds; a connection that is still under way after this was not refused.
const PATIENCE: Duration = Duration::from_secs(1);

/// Proves that the wall is closed, from where the program will be: connections and packets to the outside are refused
/// at once, and neither listener nor resolver can be reached but by redirection.
///
/// Called before anything is open. What it was refused is for the keeper to [`witness`].
pub fn prove() -> Result<(), Error> {
    connects_are_refused(AddressFamily::INET, &[outside_v4(), listener_v4(), resolver_v4()])?;
    sends_are_refused(AddressFamily::INET, &[outside_v4(), resolver_v4()])?;
    if sockets::families().during("ask for IPv6")? == Families::Both {
        connects_are_refused(AddressFamily::INET6, &[outside_v6(), listener_v6(), resolver_v6()])?;
        sends_are_refused(AddressFamily::INET6, &[outside_v6(), resolver_v6()])?;
    }
    Ok(())
}

/// The keeper's part of the proof: nobody has reached a listener, and what [`prove`] was refused has been told.
///
/// Called when `prove` has ended well and before any program runs; takes these refusals out of the seat, and those of a
/// machine's trial.
pub fn witness(seat: &Seat) -> Result<(), Error> {
    for listener in seat.tcp.iter().chain(&seat.dns_tcp) {
        if !matches!(rustix::net::accept(listener), Err(Errno::AGAIN)) {
            return Err(Error::Open("a listener was reached"));
        }
    }
    let mut told = VecDeque::new();
    while refusals::receive(seat.refusals.as_fd(), &mut told).during("read the refusals of the trial")? {}
    let mut tried = vec![outside_v4()];
    if seat.families() == Families::Both {
        tried.push(outside_v6());
    }
    if seat.tap.is_some() {
        tried.extend(machine::prove::tried(seat.families()));
    }
    for destination in tried {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            if !told.contains(&Refused { destination, protocol }) {
                return Err(Error::Open("a refusal was not reported"));
            }
        }
    }
    Ok(())
}

fn connects_are_refused(family: AddressFamily, to: &[SocketAddr]) -> Result<(), Error> {
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| {
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE)).map(|()| socket)
        })
        .map_err(io::Error::from)
        .during("make a socket for the trial")?;
    for to in to {
        match rustix::net::connect(&socket, to) {
            Err(Errno::CONNREFUSED) => {}
            Err(err) if is_without_address(err) => {}
            Err(Errno::INPROGRESS | Errno::AGAIN) => {
                return Err(Error::Open("a forbidden connection was not refused at once"));
            }
            Err(err) => return Err(io::Error::from(err)).during("try a forbidden connection"),
            Ok(()) => return Err(Error::Open("a forbidden connection was made")),
        }
    }
    Ok(())
}

fn sends_are_refused(family: AddressFamily, to: &[SocketAddr]) -> Result<(), Error> {
    let socket = sockets::socket(family, SocketType::DGRAM).during("make a socket for the trial")?;
    for to in to {
        match rustix::net::sendto(&socket, b"?", SendFlags::empty(), to) {
            Err(Errno::PERM) => {}
            Err(err) if is_without_address(err) => {}
            Err(err) => return Err(io::Error::from(err)).during("try a forbidden packet"),
            Ok(_) => return Err(Error::Open("a forbidden packet was sent")),
        }
    }
    Ok(())
}

/// IPv6 is switched off. Whether it should be, the [`witness`] knows.
fn is_without_address(err: Errno) -> bool {
    matches!(err, Errno::NETUNREACH | Errno::ADDRNOTAVAIL | Errno::ACCESS)
}

fn outside_v4() -> SocketAddr {
    SocketAddr::new(NOBODY_V4.into(), HTTPS)
}

fn outside_v6() -> SocketAddr {
    SocketAddr::new(NOBODY_V6.into(), HTTPS)
}

fn listener_v4() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), LISTENER_PORT)
}

fn listener_v6() -> SocketAddr {
    SocketAddr::new(Ipv6Addr::LOCALHOST.into(), LISTENER_PORT)
}

fn resolver_v4() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), RESOLVER_PORT)
}

fn resolver_v6() -> SocketAddr {
    SocketAddr::new(Ipv6Addr::LOCALHOST.into(), RESOLVER_PORT)
}
