//! Connections of a machine that is a copy: nobody is at their other side (sock_diag(7)).

use crate::net::{
    netlink::{self, DUMP, Messages, Protocol, next_message},
    seat::{OWN_V4, OWN_V6},
};
use rustix::net::RecvFlags;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd as _, BorrowedFd},
};

// linux/sock_diag.h, linux/inet_diag.h
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const DONE: u16 = 3;
const TCP: u8 = 6;
const FAMILIES: [(u8, usize); 2] = [(2, 4), (10, 16)];
/// Every state in which there is another side: established, being made, being closed.
const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
const ID: usize = 48;
/// Where the other side's address is in an id, behind the ports and the own address.
const OTHER: usize = 20;

/// Ends every TCP connection that leaves the machine: its programs are told at once. Where the kernel cannot, they are told when they
/// next send something.
pub fn reset_connections() -> io::Result<()> {
    let socket = match netlink::socket(Protocol::Sockets) {
        Err(err) if err.kind() == io::ErrorKind::Unsupported => return Ok(()),
        other => other?,
    };
    for (family, length) in FAMILIES {
        for id in connected(socket.as_fd(), family, length) {
            let mut messages = Messages::new();
            messages.add("end a connection", (DESTROY, netlink::ACK), &request(family, &id), |_| {});
            // It may have ended by itself, or the kernel knows no such request.
            let _ = messages.send(socket.as_fd(), 0);
        }
    }
    Ok(())
}

/// The ids of connections to somewhere else; none where the kernel does not tell.
fn connected(socket: BorrowedFd<'_>, family: u8, length: usize) -> Vec<[u8; ID]> {
    let mut messages = Messages::new();
    messages.add("list connections", (BY_FAMILY, DUMP), &request(family, &[0; ID]), |_| {});
    let mut found = Vec::new();
    if messages.begin(socket).is_err() {
        return found;
    }
    let mut bytes = [0u8; 16 * 1024];
    while let Ok((_, count)) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        let mut rest = bytes.get(..count).unwrap_or_default();
        while let Some((kind, _, body)) = next_message(&mut rest) {
            if kind == DONE || kind != BY_FAMILY {
                return found;
            }
            // Family, state, timer and retransmissions come before it.
            let id = body.get(4..).and_then(|body| body.first_chunk::<ID>());
            found.extend(id.filter(|id| leaves(id, length)));
        }
    }
    found
}

/// Whether the other side is not this machine itself.
fn leaves(id: &[u8; ID], length: usize) -> bool {
    let address = id.get(OTHER..OTHER + length).unwrap_or_default();
    let address = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(four), _) => IpAddr::V4(Ipv4Addr::from(four)),
        (_, Ok(sixteen)) => Ipv6Addr::from(sixteen).to_canonical(),
        _ => return false,
    };
    !address.is_loopback() && address != IpAddr::V4(OWN_V4) && address != IpAddr::V6(OWN_V6)
}

/// `struct inet_diag_req_v2`
fn request(family: u8, id: &[u8; ID]) -> Vec<u8> {
    [&[family, TCP, 0, 0][..], &CONNECTED.to_ne_bytes(), id].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_of_this_machine_with_itself_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let socket = netlink::socket(Protocol::Sockets).unwrap();
        let ports: Vec<[u8; 2]> = connected(socket.as_fd(), 2, 4).iter().map(|id| [id[0], id[1]]).collect();
        assert!(!ports.contains(&client.local_addr().unwrap().port().to_be_bytes()));
        drop((client, server));
    }

    #[test]
    fn an_address_elsewhere_leaves_and_an_own_one_does_not() {
        let id = |address: &[u8]| {
            let mut id = [0; ID];
            id[OTHER..OTHER + address.len()].copy_from_slice(address);
            id
        };
        assert!(leaves(&id(&[93, 184, 216, 34]), 4));
        assert!(!leaves(&id(&[127, 0, 0, 9]), 4));
        assert!(!leaves(&id(&OWN_V4.octets()), 4));
        assert!(leaves(&id(&Ipv4Addr::new(8, 8, 8, 8).to_ipv6_mapped().octets()), 16));
        assert!(!leaves(&id(&Ipv6Addr::LOCALHOST.octets()), 16));
    }
}
