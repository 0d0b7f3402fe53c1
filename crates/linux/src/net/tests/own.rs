//! Programs inside reach themselves as on any machine.

use super::*;

#[test]
fn programs_keep_their_own_servers() {
    with_seat(|world| {
        for at in ["127.0.0.1:8080", "127.0.0.53:53", "[::1]:53", "198.18.0.1:80", "0.0.0.0:443", "[::]:8443"]
        {
            let server = world.listen(at);
            let to = at.replace("0.0.0.0", "198.18.0.1").replace("[::]", "[fd61:6972:6c6f:636b::1]");

            world.connect(&to).unwrap();

            server.accept().unwrap();
            assert_eq!(world.refusals(), []);
        }
    });
}

#[test]
fn programs_talk_to_themselves_by_udp_and_ping() {
    with_seat(|world| {
        for at in ["127.0.0.1:5000", "[::1]:5000", "198.18.0.1:5000", "127.0.0.53:53"] {
            let server = world.bind(at);
            world.send(UDP, at).unwrap();
            assert_eq!(server.recv(&mut [0; 16]).unwrap(), 8);
        }
        for at in ["127.0.0.1:0", "198.18.0.1:0", "[::1]:0", "[fd61:6972:6c6f:636b::1]:0"] {
            let socket = UdpSocket::from(world.socket(PING, address(at)));
            socket.send_to(echo(address(at)), at).unwrap();
            assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 8, "{at}");
        }
    });
}

#[test]
fn a_port_without_a_server_is_refused_and_not_told() {
    with_seat(|world| {
        for to in ["127.0.0.1:9", "198.18.0.1:9", "198.18.0.2:9", "[::1]:9", "[fd61:6972:6c6f:636b::2]:9"] {
            assert_eq!(world.connect(to).err(), Some(Errno::CONNREFUSED), "{to}");
        }
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn a_published_connection_comes_from_the_outside_address() {
    with_seat(|world| {
        for (at, from) in [("127.0.0.1:8080", "198.18.0.2:0"), ("[::1]:8080", "[fd61:6972:6c6f:636b::2]:0")] {
            let server = world.listen(at);
            let socket = world.socket(TCP, address(at));
            rustix::net::bind(&socket, &address(from)).unwrap();

            rustix::net::connect(&socket, &address(at)).unwrap();

            let (_, peer) = server.accept().unwrap();
            assert_eq!(peer.ip(), address(from).ip());
        }
    });
}

#[test]
fn the_ports_of_the_seat_are_taken() {
    with_seat(|world| {
        for at in ["127.0.0.1:61097", "0.0.0.0:61098", "[::1]:61097"] {
            let socket = world.socket(TCP, address(at));
            sockopt::set_socket_reuseaddr(&socket, true).unwrap();
            sockopt::set_socket_reuseport(&socket, true).unwrap();
            let taken =
                rustix::net::bind(&socket, &address(at)).and_then(|()| rustix::net::listen(&socket, 1));
            assert_eq!(taken, Err(Errno::ADDRINUSE), "{at}");
        }
        for at in ["127.0.0.1:61098", "0.0.0.0:61098"] {
            let socket = world.socket(UDP, address(at));
            sockopt::set_socket_reuseaddr(&socket, true).unwrap();
            sockopt::set_socket_reuseport(&socket, true).unwrap();
            assert_eq!(rustix::net::bind(&socket, &address(at)), Err(Errno::ADDRINUSE), "{at}");
        }
    });
}
