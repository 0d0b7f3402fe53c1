//! What the rules refused, as the kernel tells it (nfnetlink_log).

use super::{
    netlink::{self, Messages, Protocol as Netlink, next_attribute, next_message},
    nft::general,
    seat::{During as _, Error},
    wall::{LOG_GROUP, LOGGED_BYTES},
};
use rustix::net::RecvFlags;
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Something a program tried and the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refused {
    /// Where to. The port is 0 where the protocol has none.
    pub destination: SocketAddr,
    /// By which protocol.
    pub protocol: Protocol,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP for either family.
    Icmp,
    /// Any other.
    Other,
}

/// Reads refusals. The descriptor is readable when there are some.
///
/// At most a hundred in a second are told (after two hundred at once), so that a flood costs nobody anything; what
/// is left out is a destination that was refused too.
#[derive(Debug)]
pub struct Refusals {
    socket: OwnedFd,
    read: VecDeque<Refused>,
}

// linux/netfilter/nfnetlink_log.h
const SUBSYSTEM: u16 = 4;
const PACKET: u16 = SUBSYSTEM << 8;
const CONFIGURE: u16 = (SUBSYSTEM << 8) | 1;
const PAYLOAD: u16 = 9;

/// A socket on which the kernel tells refusals of this network namespace, one by one.
pub(super) fn listen() -> Result<OwnedFd, Error> {
    const COMMAND: u16 = 1;
    const BIND: u8 = 1;
    const MODE: u16 = 2;
    const COPY_PACKET: u8 = 2;
    const THRESHOLD: u16 = 5;
    let socket = netlink::socket(Netlink::Netfilter).during("open a netlink socket for refusals")?;
    let mut messages = Messages::new();
    let fixed = general(0, LOG_GROUP);
    messages.add("listen for refusals (nfnetlink_log)", (CONFIGURE, 0), &fixed, |body| {
        let [a, b, c, d] = LOGGED_BYTES.to_be_bytes();
        body.bytes(COMMAND, &[BIND]);
        body.bytes(MODE, &[a, b, c, d, COPY_PACKET, 0]);
        body.number(THRESHOLD, 1);
    });
    let last = messages.ask_for_answer();
    messages.send(socket.as_fd(), last)?;
    Ok(socket)
}

impl Refusals {
    /// Takes over [`super::seat::Seat::refusals`].
    pub fn new(socket: OwnedFd) -> Refusals {
        Refusals { socket, read: VecDeque::new() }
    }

    /// The next one; `None` if there is none now. Never waits.
    #[expect(clippy::should_implement_trait, reason = "no iterator: what is not there now may come later")]
    pub fn next(&mut self) -> io::Result<Option<Refused>> {
        while self.read.is_empty() {
            if !receive(self.socket.as_fd(), &mut self.read)? {
                return Ok(None);
            }
        }
        Ok(self.read.pop_front())
    }
}

impl AsFd for Refusals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads once. `false` if there is nothing to read.
pub(super) fn receive(socket: BorrowedFd<'_>, into: &mut VecDeque<Refused>) -> io::Result<bool> {
    let mut bytes = [0u8; 4096];
    match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((_, count)) => {
            into.extend(refused_in(bytes.get(..count).unwrap_or_default()));
            Ok(true)
        }
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        // The reader was too slow and some were lost: no reason to stop reading.
        Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => Ok(true),
        Err(err) => Err(err.into()),
    }
}

/// The refusals in what the kernel sent. Total: what makes no sense is passed over.
fn refused_in(mut bytes: &[u8]) -> Vec<Refused> {
    let mut found = Vec::new();
    while let Some((kind, _, body)) = next_message(&mut bytes) {
        let mut attributes = body.get(4..).unwrap_or_default();
        while let Some((attribute, value)) = next_attribute(&mut attributes) {
            if kind == PACKET && attribute == PAYLOAD {
                found.extend(destination(value));
            }
        }
    }
    found
}

/// Where a packet goes. Total over any bytes.
fn destination(packet: &[u8]) -> Option<Refused> {
    let (address, protocol, transport) = match packet.first()? >> 4 {
        4 => v4(packet)?,
        6 => v6(packet)?,
        _ => return None,
    };
    let protocol = match protocol {
        1 | 58 => Protocol::Icmp,
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        _ => Protocol::Other,
    };
    let has_port = matches!(protocol, Protocol::Tcp | Protocol::Udp);
    let port = transport.get(2..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes);
    Some(Refused { destination: SocketAddr::new(address, if has_port { port } else { 0 }), protocol })
}

fn v4(packet: &[u8]) -> Option<(IpAddr, u8, &[u8])> {
    let header = usize::from(packet.first()? & 0x0f).checked_mul(4)?;
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    let transport = packet.get(header..).unwrap_or_default();
    Some((Ipv4Addr::from(address).into(), *packet.get(9)?, transport))
}

/// Walks over the extension headers (RFC 8200, section 4).
fn v6(packet: &[u8]) -> Option<(IpAddr, u8, &[u8])> {
    let address: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
    let mut protocol = *packet.get(6)?;
    let mut rest = packet.get(40..)?;
    while let 0 | 43 | 44 | 60 = protocol {
        let Some([next, length, ..]) = rest.get(..8) else { break };
        let length = if protocol == 44 { 8 } else { (usize::from(*length) + 1) * 8 };
        protocol = *next;
        rest = rest.get(length..).unwrap_or_default();
    }
    Some((Ipv6Addr::from(address).into(), protocol, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_and_extension_headers_do_not_hide_the_port() {
        let mut v4 = vec![0x46, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 192, 0, 2, 7, 1, 1, 1, 0];
        v4.extend([0x12, 0x34, 1, 187]);
        let mut v6 = vec![0x60, 0, 0, 0, 0, 0, 60, 64];
        v6.extend(Ipv6Addr::LOCALHOST.octets());
        v6.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend([17, 0, 1, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 53]);

        let seen = [v4, v6].map(|packet| destination(&packet).unwrap());

        let expected = [("192.0.2.7:443", Protocol::Tcp), ("[2001:db8::1]:53", Protocol::Udp)];
        let expected = expected
            .map(|(destination, protocol)| Refused { destination: destination.parse().unwrap(), protocol });
        assert_eq!(seen, expected);
    }

    proptest! {
        #[test]
        fn no_packet_panics_the_reader(packet in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = destination(&packet);
            let _ = refused_in(&packet);
        }
    }
}
