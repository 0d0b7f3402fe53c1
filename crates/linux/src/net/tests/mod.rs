//! A real seat, in namespaces of its own. The test stands outside, where the keeper stands: it has the seat, and
//! sockets that a process inside has made and handed out.

mod cable;
mod floods;
mod machine;
mod opened;
mod own;
mod proof;
mod questions;
mod refused;

use super::seat::{
    Opening, Protocol, Refusals, Refused, Rules, Seat, build, build_for_machine, original_destination, prove,
    witness,
};
use crate::{
    clone::{self, Dumpable, Namespaces, Side},
    fd,
    idmap::{Extent, IdMap, Writer},
    seccomp::trial::in_child,
    spawn,
};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt},
};
use std::{
    io::{self, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

const TCP: u8 = b't';
const UDP: u8 = b'u';
const PING: u8 = b'p';
/// A TCP socket of the seat's network namespace, where that is not the programs'.
const PORTER: u8 = b'o';
const V4: u8 = b'4';
const V6: u8 = b'6';
const NOBODY: u32 = 65534;
/// How the outcome of a test begins that this host does not allow.
const SKIPPED: &str = "skipped: ";

/// A sandbox's network as the keeper has it.
struct World {
    seat: Seat,
    rules: Rules,
    refusals: Refusals,
    talk: OwnedFd,
}

/// Who is behind the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Programs of the network namespace.
    Programs,
    /// Programs of a second one, which stands for a machine: a TAP of its own, joined with that of the seat.
    Machine,
    /// Whoever writes frames: the test.
    Cable,
}

#[track_caller]
fn with_seat(test: fn(&mut World)) {
    run(Behind::Programs, test);
}

/// Runs a test as this user and, as root, once more as an ordinary one.
#[track_caller]
fn run(behind: Behind, test: fn(&mut World)) {
    let is_root = rustix::process::geteuid().is_root();
    let nobody = is_root.then_some(Some(NOBODY));
    for become_user in [None].into_iter().chain(nobody) {
        let outcome = in_child(|| world(become_user, behind, test));
        if let Some(why) = outcome.output.strip_prefix(SKIPPED) {
            assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "{why}");
            eprintln!("skipped as {become_user:?}: {why}");
            return;
        }
        assert!(outcome.status.success(), "as {become_user:?}: {}: {}", outcome.status, outcome.output);
    }
}

fn world(become_user: Option<u32>, behind: Behind, test: fn(&mut World)) -> io::Result<String> {
    // What the harness would print is lost in a child.
    std::panic::set_hook(Box::new(|panic| drop(writeln!(io::stderr(), "{panic}"))));
    if let Some(id) = become_user {
        spawn::become_user(id, id, &[])?;
        clone::set_dumpable(Dumpable::Yes)?;
    }
    if behind != Behind::Programs
        && let Err(err) = super::machine::open()
    {
        return Ok(format!("{SKIPPED}{}: {err}", super::machine::DEVICE));
    }
    let (talk, child_talk) = fd::pair()?;
    let child = match clone::fork(Namespaces::SANDBOX, None) {
        Ok(Side::Child) => {
            drop(talk);
            let _ = clone::die_with_parent();
            if let Err(err) = inside(behind, &child_talk) {
                let _ = fd::send_all(child_talk.as_fd(), format!("!{err}").as_bytes(), &[]);
            }
            clone::exit_now(0)
        }
        Ok(Side::Parent(child)) => child,
        Err(err) => return Ok(format!("{SKIPPED}no namespaces: {err}")),
    };
    drop(child_talk);
    ids().write(child.pid).map_err(io::Error::other)?;
    fd::send_all(talk.as_fd(), b"i", &[])?;
    let mut descriptors = hear(&talk)?;
    let refusals = Refusals::new(descriptors.remove(1));
    let rules = Rules::new(descriptors.remove(0));
    // Whoever has taken its part out has the seat no more; these two stand in for them.
    let spare = || rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    descriptors.splice(0..0, [spare()?, spare()?]);
    let seat = Seat::from_descriptors(descriptors).ok_or(io::ErrorKind::InvalidData)?;
    test(&mut World { seat, rules, refusals, talk });
    child.kill()?;
    child.wait()?;
    Ok(String::new())
}

/// Under root shifted ids as root's sandboxes have; else the one id there is.
fn ids() -> IdMap {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (users, groups, count, writer) = match uid {
        0 => (0x7000_0000, 0x7000_0000, 65536, Writer::Direct),
        _ => (uid, gid, 1, Writer::SingleId),
    };
    let extent = |outside| vec![Extent { inside: 0, outside, count }];
    IdMap { users: extent(users), groups: extent(groups), writer }
}

/// Builds the seat, proves it, hands it out, and makes sockets for whoever asks.
fn inside(behind: Behind, talk: &OwnedFd) -> io::Result<()> {
    // As whoever the test is: the device may be closed to the sandbox's root.
    let tun = (behind != Behind::Programs).then(super::machine::open).transpose()?;
    let second = (behind == Behind::Machine).then(machine::Second::open).transpose()?;
    hear(talk)?;
    spawn::become_user(0, 0, &[])?;
    let seat = match tun {
        None => build(&(0..=0)),
        Some(tun) => build_for_machine(tun, &(0..=0)),
    };
    let mut seat = seat.map_err(io::Error::other)?;
    prove().map_err(io::Error::other)?;
    witness(&seat).map_err(io::Error::other)?;
    let tap = (behind == Behind::Machine).then(|| seat.tap.take()).flatten();
    fd::send_all(talk.as_fd(), b".", &seat.descriptors())?;
    if let (Some(second), Some(tap)) = (&second, tap) {
        second.join(tap, seat.families())?;
    }
    drop(seat);
    loop {
        let mut wanted = [0u8; 2];
        if fd::receive_with_fds(talk.as_fd(), &mut wanted, &mut Vec::new())? == 0 {
            return Ok(());
        }
        let [kind, family] = wanted;
        let family = if family == V6 { AddressFamily::INET6 } else { AddressFamily::INET };
        if let (PORTER, Some(second)) = (kind, &second) {
            fd::send_all(talk.as_fd(), b"s", &[second.porter()?.as_fd()])?;
            continue;
        }
        let (kind, protocol) = match kind {
            TCP => (SocketType::STREAM, None),
            UDP => (SocketType::DGRAM, None),
            _ if family == AddressFamily::INET6 => (SocketType::DGRAM, Some(ipproto::ICMPV6)),
            _ => (SocketType::DGRAM, Some(ipproto::ICMP)),
        };
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        fd::send_all(talk.as_fd(), b"s", &[socket.as_fd()])?;
    }
}

fn hear(talk: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let (mut bytes, mut descriptors) = ([0u8; 512], Vec::new());
    let count = fd::receive_with_fds(talk.as_fd(), &mut bytes, &mut descriptors)?;
    match bytes.get(..count).and_then(<[u8]>::split_first) {
        Some((b'!', why)) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
        Some(_) => Ok(descriptors),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl World {
    /// A socket of the sandbox's network that waits no longer than a second.
    fn socket(&self, kind: u8, like: SocketAddr) -> OwnedFd {
        let family = if like.is_ipv6() { V6 } else { V4 };
        fd::send_all(self.talk.as_fd(), &[kind, family], &[]).unwrap();
        let socket = hear(&self.talk).unwrap().remove(0);
        for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
            sockopt::set_socket_timeout(&socket, timeout, Some(Duration::from_secs(1))).unwrap();
        }
        socket
    }

    fn connect(&self, to: &str) -> Result<TcpStream, Errno> {
        let to = address(to);
        let socket = self.socket(TCP, to);
        rustix::net::connect(&socket, &to).map(|()| TcpStream::from(socket))
    }

    fn send(&self, kind: u8, to: &str) -> Result<(), Errno> {
        let to = address(to);
        let socket = self.socket(kind, to);
        rustix::net::sendto(&socket, echo(to), rustix::net::SendFlags::empty(), &to).map(|_| ())
    }

    /// A program's own server.
    fn listen(&self, at: &str) -> TcpListener {
        let socket = self.socket(TCP, address(at));
        rustix::net::bind(&socket, &address(at)).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        TcpListener::from(socket)
    }

    /// A program's own UDP socket.
    fn bind(&self, at: &str) -> UdpSocket {
        let socket = self.socket(UDP, address(at));
        rustix::net::bind(&socket, &address(at)).unwrap();
        UdpSocket::from(socket)
    }

    /// The connection that waits at a listener of the seat, with where it was meant to go.
    fn accept(&self, family: usize) -> Option<(TcpStream, SocketAddr)> {
        match rustix::net::accept(&self.seat.tcp[family]) {
            Ok(socket) => {
                let stream = TcpStream::from(socket);
                let to = original_destination(stream.as_fd(), stream.peer_addr().unwrap()).unwrap();
                Some((stream, to))
            }
            Err(Errno::AGAIN) => None,
            Err(err) => panic!("accept: {err}"),
        }
    }

    fn refusals(&mut self) -> Vec<Refused> {
        std::iter::from_fn(|| self.refusals.next().unwrap()).collect()
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn opening(text: &str, prefix: u8, first: u16, last: u16) -> Opening {
    Opening { address: text.parse().unwrap(), prefix, first, last }
}

fn one(text: &str) -> Opening {
    let at = address(text);
    let prefix = if at.is_ipv6() { 128 } else { 32 };
    Opening { address: at.ip(), prefix, first: at.port(), last: at.port() }
}

fn refused(to: &str, protocol: Protocol) -> Refused {
    Refused { destination: address(to), protocol }
}

/// What asks for an echo.
fn echo(to: SocketAddr) -> &'static [u8] {
    if to.is_ipv6() { &[128, 0, 0, 0, 0, 0, 0, 1] } else { &[8, 0, 0, 0, 0, 0, 0, 1] }
}

/// An address for documentation.
fn documentation(host: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host).into()
}
