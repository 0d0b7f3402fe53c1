//! Port 53 of every address but loopback is the resolver.

use super::*;
use std::io::{Read as _, Write as _};

#[test]
fn a_question_reaches_the_resolver_whatever_server_is_asked() {
    with_seat(|world| {
        let servers = ["198.18.0.2:53", "192.0.2.53:53", "198.18.0.1:53"].map(|server| (0, server));
        let servers_v6 = ["[fd61:6972:6c6f:636b::2]:53", "[2001:db8::53]:53"].map(|server| (1, server));
        for (family, server) in servers.into_iter().chain(servers_v6) {
            let program = UdpSocket::from(world.socket(UDP, address(server)));
            program.send_to(b"who?", server).unwrap();

            let resolver = UdpSocket::from(world.seat.dns_udp[family].try_clone().unwrap());
            let mut question = [0; 16];
            let (count, from) = resolver.recv_from(&mut question).unwrap();
            assert_eq!(&question[..count], b"who?");
            resolver.send_to(b"me", from).unwrap();

            let (count, by) = program.recv_from(&mut question).unwrap();
            assert_eq!((&question[..count], by), (&b"me"[..], address(server)));
        }
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn a_question_by_tcp_reaches_the_resolver_and_not_the_listener() {
    with_seat(|world| {
        for (family, server) in ["192.0.2.53:53", "[2001:db8::53]:53"].into_iter().enumerate() {
            let mut program = world.connect(server).unwrap();
            let mut resolver = TcpStream::from(rustix::net::accept(&world.seat.dns_tcp[family]).unwrap());
            let from = resolver.peer_addr().unwrap();
            assert_eq!(original_destination(resolver.as_fd(), from).unwrap(), address(server));
            resolver.write_all(b"me").unwrap();
            program.read_exact(&mut [0; 2]).unwrap();
            assert!(world.accept(family).is_none());
        }
    });
}

#[test]
fn a_long_question_arrives_whole() {
    with_seat(|world| {
        let program = UdpSocket::from(world.socket(UDP, address("192.0.2.53:53")));
        program.send_to(&[7; 60_000], "192.0.2.53:53").unwrap();
        let resolver = UdpSocket::from(world.seat.dns_udp[0].try_clone().unwrap());
        assert_eq!(resolver.recv(&mut [0; 65_536]).unwrap(), 60_000);
    });
}
