//! What is refused, how, and that it is told.

use super::*;

#[test]
fn a_forbidden_connection_is_refused_and_told() {
    with_seat(|world| {
        for to in
            ["192.0.2.7:443", "[2001:db8::7]:22", "169.254.169.254:80", "198.18.1.1:80", "255.255.255.1:1"]
        {
            assert_eq!(world.connect(to).err(), Some(Errno::CONNREFUSED), "{to}");
            assert_eq!(world.refusals(), [refused(to, Protocol::Tcp)]);
        }
    });
}

#[test]
fn a_forbidden_packet_fails_at_once_and_is_told() {
    with_seat(|world| {
        for to in ["192.0.2.7:443", "[2001:db8::7]:443", "198.18.0.1:61098"] {
            assert_eq!(world.send(UDP, to), Err(Errno::PERM), "{to}");
        }
        // The kernel tells nothing to the call that sends a ping.
        let _ = world.send(PING, "192.0.2.7:0");
        let _ = world.send(PING, "[2001:db8::7]:0");

        let expected = [
            refused("192.0.2.7:443", Protocol::Udp),
            refused("[2001:db8::7]:443", Protocol::Udp),
            refused("192.0.2.7:0", Protocol::Icmp),
            refused("[2001:db8::7]:0", Protocol::Icmp),
        ];
        assert_eq!(world.refusals(), expected);
    });
}

#[test]
fn multicast_and_broadcast_go_nowhere() {
    with_seat(|world| {
        for to in ["224.0.0.251:5353", "255.255.255.255:67", "[ff02::fb]:5353"] {
            let socket = world.socket(UDP, address(to));
            sockopt::set_socket_broadcast(&socket, true).unwrap();
            let sent = rustix::net::sendto(&socket, b"?", rustix::net::SendFlags::empty(), &address(to));
            assert!(sent.is_err(), "{to}");
        }
    });
}

#[test]
fn a_connected_socket_hears_that_nobody_is_there() {
    with_seat(|world| {
        for (kind, to) in [
            (UDP, "192.0.2.7:443"),
            (UDP, "[2001:db8::7]:443"),
            (PING, "192.0.2.7:0"),
            (PING, "[2001:db8::7]:0"),
        ] {
            let to = address(to);
            let socket = world.socket(kind, to);
            rustix::net::connect(&socket, &to).unwrap();
            let socket = UdpSocket::from(socket);

            let _ = socket.send(echo(to));

            let heard = socket.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(heard.raw_os_error(), Some(libc::ECONNREFUSED), "{to}");
        }
    });
}

#[test]
fn the_ports_of_the_seat_cannot_be_reached_directly() {
    with_seat(|world| {
        for host in ["127.0.0.1", "127.0.0.9", "198.18.0.1", "198.18.0.2", "0.0.0.0", "[::1]", "[::]"] {
            for port in [super::super::seat::LISTENER_PORT, super::super::seat::RESOLVER_PORT] {
                let to = format!("{host}:{port}");
                assert_eq!(world.connect(&to).err(), Some(Errno::CONNREFUSED), "{to}");
            }
            let resolver = format!("{host}:{}", super::super::seat::RESOLVER_PORT);
            assert_eq!(world.send(UDP, &resolver), Err(Errno::PERM), "{resolver}");
        }
        assert!(world.accept(0).is_none());
        assert!(world.accept(1).is_none());
    });
}

#[test]
fn the_source_of_a_connection_changes_nothing() {
    with_seat(|world| {
        world.rules.open(&[one("192.0.2.7:443")]).unwrap();
        for source in ["127.0.0.1:0", "127.0.0.77:0", "198.18.0.1:0", "198.18.0.2:0"] {
            let from = |to: &str| {
                let socket = world.socket(TCP, address(to));
                rustix::net::bind(&socket, &address(source)).unwrap();
                rustix::net::connect(&socket, &address(to)).map(|()| socket)
            };
            assert_eq!(from("192.0.2.7:444").err(), Some(Errno::CONNREFUSED), "{source}");
            assert_eq!(from("127.0.0.1:61097").err(), Some(Errno::CONNREFUSED), "{source}");
            assert!(world.accept(0).is_none());
            let _open = from("192.0.2.7:443").unwrap();
            assert_eq!(world.accept(0).unwrap().1, address("192.0.2.7:443"), "{source}");
        }
    });
}

#[test]
fn a_program_that_takes_a_foreign_address_talks_to_itself() {
    with_seat(|world| {
        let foreign = world.bind("192.0.2.7:443");
        let own = world.bind("198.18.0.1:5000");
        foreign.send_to(b"?", "198.18.0.1:5000").unwrap();
        assert_eq!(own.recv_from(&mut [0; 8]).unwrap().1, address("192.0.2.7:443"));

        // An answer goes back to the same program; nobody else can send there.
        own.send_to(b"!", "192.0.2.7:443").unwrap();
        assert_eq!(foreign.recv(&mut [0; 8]).unwrap(), 1);
        assert_eq!(world.send(UDP, "192.0.2.7:443"), Err(Errno::PERM));

        let server = world.listen("192.0.2.7:443");
        assert_eq!(world.connect("192.0.2.7:443").err(), Some(Errno::CONNREFUSED));
        world.rules.open(&[one("192.0.2.7:443")]).unwrap();
        let _program = world.connect("192.0.2.7:443").unwrap();
        assert!(world.accept(0).is_some());
        server.set_nonblocking(true).unwrap();
        assert!(server.accept().is_err());
    });
}

#[test]
fn source_routing_does_not_lead_around_the_rules() {
    // RFC 791: loose source route, seven bytes, pointer to the first address.
    const VIA: [u8; 8] = [131, 7, 4, 127, 0, 0, 1, 0];
    with_seat(|world| {
        world.rules.open(&[one("192.0.2.7:443")]).unwrap();
        for to in ["127.0.0.1:61097", "192.0.2.8:443"] {
            let socket = world.socket(TCP, address(to));
            let raw = std::os::fd::AsRawFd::as_raw_fd(&socket);
            let length = libc::socklen_t::try_from(VIA.len()).unwrap();
            // SAFETY: pointer and length are of one live array.
            let set = unsafe { libc::setsockopt(raw, 0, libc::IP_OPTIONS, VIA.as_ptr().cast(), length) };
            assert_eq!(set, 0, "{}", io::Error::last_os_error());
            assert!(rustix::net::connect(&socket, &address(to)).is_err(), "{to}");
        }
        assert!(world.accept(0).is_none());
    });
}
