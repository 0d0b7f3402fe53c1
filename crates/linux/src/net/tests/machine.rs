//! Programs of a machine: the same wall as for others, through a TAP.

use super::*;
use crate::net::{
    machine::{self as this, tap},
    seat::{Families, LISTENER_PORT, OUTSIDE_V4, RESOLVER_PORT},
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::{
    fs::File,
    io::{Read as _, Write as _},
};

const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A second network namespace, which stands for the machine's kernel.
pub(super) struct Second {
    seat: File,
    machine: File,
    tun: OwnedFd,
}

impl Second {
    /// Makes it, and stays where it is.
    pub(super) fn open() -> io::Result<Second> {
        let seat = File::open("/proc/self/ns/net")?;
        clone::unshare(Namespaces::NETWORK)?;
        let second = Second { seat, machine: File::open("/proc/self/ns/net")?, tun: this::open()? };
        rustix::thread::move_into_link_name_space(second.seat.as_fd(), None)?;
        Ok(second)
    }

    /// Moves there, sets it up as a machine, and joins its TAP with that of the seat for good.
    pub(super) fn join(&self, seat: OwnedFd, families: Families) -> io::Result<()> {
        rustix::thread::move_into_link_name_space(self.machine.as_fd(), None)?;
        tap::make(&self.tun).map_err(io::Error::other)?;
        this::set_up(tap::NAME, families, &(0..=0)).map_err(io::Error::other)?;
        let tun = self.tun.try_clone()?;
        std::thread::spawn(move || pump(&seat, &tun));
        Ok(())
    }

    /// A TCP socket as the keeper's porter makes it.
    pub(super) fn porter(&self) -> io::Result<OwnedFd> {
        rustix::thread::move_into_link_name_space(self.seat.as_fd(), None)?;
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::thread::move_into_link_name_space(self.machine.as_fd(), None)?;
        Ok(socket)
    }
}

fn pump(one: &OwnedFd, other: &OwnedFd) -> io::Result<()> {
    let mut bytes = vec![0; 70_000];
    loop {
        let mut both = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
        rustix::event::poll(&mut both, None)?;
        for (from, to) in [(one, other), (other, one)] {
            while let Ok(count) = rustix::io::read(from, &mut bytes[..]) {
                // What does not get through is lost, as on any cable.
                let _ = rustix::io::write(to, &bytes[..count]);
            }
        }
    }
}

fn with_machine(test: fn(&mut World)) {
    run(Behind::Machine, test);
}

fn wait(socket: &OwnedFd) {
    let ready = rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&PATIENCE)).unwrap();
    assert_eq!(ready, 1, "nothing came");
}

impl World {
    /// The connection that comes to a listener of the seat, with where it was meant to go.
    fn arrival(&self, family: usize) -> (TcpStream, SocketAddr) {
        wait(&self.seat.tcp[family]);
        self.accept(family).unwrap()
    }
}

#[test]
fn an_open_destination_reaches_the_listener_with_its_name() {
    with_machine(|world| {
        for (family, to) in ["198.18.1.1:443", "[2001:db8::7]:22"].into_iter().enumerate() {
            world.rules.open(&[one(to)]).unwrap();

            let mut program = world.connect(to).unwrap();
            let (mut keeper, destination) = world.arrival(family);

            assert_eq!(destination, address(to));
            program.write_all(&[7; 300_000]).unwrap();
            let mut heard = vec![0; 300_000];
            keeper.read_exact(&mut heard).unwrap();
            assert_eq!(heard, [7; 300_000]);
            assert_eq!(program.peer_addr().unwrap(), address(to));
        }
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn a_forbidden_connection_is_refused_and_told() {
    with_machine(|world| {
        for to in ["192.0.2.7:443", "[2001:db8::7]:22", "169.254.169.254:80", "198.18.1.1:80", "10.0.0.1:1"] {
            assert_eq!(world.connect(to).err(), Some(Errno::CONNREFUSED), "{to}");
            assert_eq!(world.refusals(), [refused(to, Protocol::Tcp)]);
        }
    });
}

#[test]
fn a_connected_socket_hears_that_nobody_is_there_every_time() {
    with_machine(|world| {
        for _ in 0..20 {
            for (kind, to) in [
                (UDP, "192.0.2.7:443"),
                (UDP, "[2001:db8::7]:443"),
                (PING, "192.0.2.7:0"),
                (PING, "[2001:db8::7]:0"),
            ] {
                let socket = world.socket(kind, address(to));
                rustix::net::connect(&socket, &address(to)).unwrap();
                let socket = UdpSocket::from(socket);

                socket.send(echo(address(to))).unwrap();

                let heard = socket.recv(&mut [0; 8]).unwrap_err();
                assert_eq!(heard.raw_os_error(), Some(libc::ECONNREFUSED), "{to}");
            }
        }
        let told = world.refusals();
        for (to, protocol) in [
            ("192.0.2.7:443", Protocol::Udp),
            ("[2001:db8::7]:443", Protocol::Udp),
            ("192.0.2.7:0", Protocol::Icmp),
            ("[2001:db8::7]:0", Protocol::Icmp),
        ] {
            assert!(told.contains(&refused(to, protocol)), "{to}");
        }
    });
}

#[test]
fn a_question_reaches_the_resolver_whatever_server_is_asked() {
    with_machine(|world| {
        let servers = ["198.18.0.2:53", "192.0.2.53:53"].map(|server| (0, server));
        let servers_v6 = ["[fd61:6972:6c6f:636b::2]:53", "[2001:db8::53]:53"].map(|server| (1, server));
        for (family, server) in servers.into_iter().chain(servers_v6) {
            let program = UdpSocket::from(world.socket(UDP, address(server)));
            for question in [&b"who?"[..], &[7; 60_000]] {
                program.send_to(question, server).unwrap();

                wait(&world.seat.dns_udp[family]);
                let resolver = UdpSocket::from(world.seat.dns_udp[family].try_clone().unwrap());
                let mut heard = vec![0; 65_536];
                let (count, from) = resolver.recv_from(&mut heard).unwrap();
                assert_eq!(&heard[..count], question);
                resolver.send_to(b"me", from).unwrap();

                let (count, by) = program.recv_from(&mut heard).unwrap();
                assert_eq!((&heard[..count], by), (&b"me"[..], address(server)));
            }
        }
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn a_question_by_tcp_reaches_the_resolver() {
    with_machine(|world| {
        for (family, server) in ["192.0.2.53:53", "[2001:db8::53]:53"].into_iter().enumerate() {
            let mut program = world.connect(server).unwrap();
            wait(&world.seat.dns_tcp[family]);
            let mut resolver = TcpStream::from(rustix::net::accept(&world.seat.dns_tcp[family]).unwrap());
            let from = resolver.peer_addr().unwrap();
            assert_eq!(original_destination(resolver.as_fd(), from).unwrap(), address(server));
            resolver.write_all(b"me").unwrap();
            program.read_exact(&mut [0; 2]).unwrap();
        }
    });
}

#[test]
fn the_gateway_answers_a_ping_and_nothing_else() {
    with_machine(|world| {
        for at in ["198.18.0.2:0", "[fd61:6972:6c6f:636b::2]:0"] {
            let socket = UdpSocket::from(world.socket(PING, address(at)));
            socket.send_to(echo(address(at)), at).unwrap();
            assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 8, "{at}");
        }
        for host in ["198.18.0.2", "198.18.0.9", "[fd61:6972:6c6f:636b::2]", "[fd61:6972:6c6f:636b::9]"] {
            for port in [LISTENER_PORT, RESOLVER_PORT, 22] {
                let to = format!("{host}:{port}");
                assert_eq!(world.connect(&to).err(), Some(Errno::CONNREFUSED), "{to}");
            }
        }
        assert_eq!(world.refusals(), []);
        assert!(world.accept(0).is_none() && world.accept(1).is_none());
    });
}

#[test]
fn everything_can_be_opened_but_not_the_ports_of_the_seat() {
    with_machine(|world| {
        world.rules.open(&[opening("0.0.0.0", 0, 0, u16::MAX), opening("::", 0, 0, u16::MAX)]).unwrap();

        let _open = [world.connect("192.0.2.1:61097").unwrap(), world.connect("[2001:db8::1]:1").unwrap()];
        assert_eq!(world.arrival(0).1, address("192.0.2.1:61097"));
        assert_eq!(world.arrival(1).1, address("[2001:db8::1]:1"));
        for to in ["198.18.0.2:61097", "[fd61:6972:6c6f:636b::2]:61097", "198.18.0.2:80"] {
            assert_eq!(world.connect(to).err(), Some(Errno::CONNREFUSED), "{to}");
        }
        assert!(world.accept(0).is_none() && world.accept(1).is_none());
    });
}

#[test]
fn a_connection_is_not_cut_by_closing_and_a_reset_arrives() {
    with_machine(|world| {
        let to = "198.18.1.1:443";
        world.rules.open(&[one(to)]).unwrap();
        let mut program = world.connect(to).unwrap();
        let (mut keeper, _) = world.arrival(0);

        world.rules.close(&[one(to)]).unwrap();

        assert_eq!(world.connect(to).err(), Some(Errno::CONNREFUSED));
        keeper.write_all(b"still here").unwrap();
        program.read_exact(&mut [0; 10]).unwrap();
        super::super::seat::reset_on_close(keeper.as_fd()).unwrap();
        drop(keeper);
        assert_eq!(program.read(&mut [0]).unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
    });
}

#[test]
fn programs_of_a_machine_reach_themselves() {
    with_machine(|world| {
        for at in ["127.0.0.1:8080", "198.18.0.1:80", "[::1]:53", "[fd61:6972:6c6f:636b::1]:80"] {
            let server = world.listen(at);
            world.connect(at).unwrap();
            server.accept().unwrap();
        }
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn many_connections_at_once_are_answered() {
    with_machine(|world| {
        world.rules.open(&[one("192.0.2.7:443")]).unwrap();
        for _ in 0..200 {
            let _open = world.connect("192.0.2.7:443").unwrap();
            world.arrival(0);
            assert_eq!(world.connect("192.0.2.7:444").err(), Some(Errno::CONNREFUSED));
        }
        assert_eq!(world.rules.refused().unwrap(), 4 + 4 + 200);
    });
}

#[test]
fn a_published_connection_reaches_a_server_of_the_machine() {
    with_machine(|world| {
        let server = world.listen("0.0.0.0:8080");
        let port = |to: &str| {
            let socket = world.socket(PORTER, address(to));
            rustix::net::bind(&socket, &SocketAddr::new(OUTSIDE_V4.into(), 0)).unwrap();
            rustix::net::connect(&socket, &address(to)).map(|()| TcpStream::from(socket))
        };

        let mut caller = port("198.18.0.1:8080").unwrap();

        let (mut served, peer) = server.accept().unwrap();
        assert_eq!(peer.ip(), OUTSIDE_V4);
        served.write_all(b"hello").unwrap();
        caller.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(port("198.18.0.1:8081").err(), Some(Errno::CONNREFUSED));
        let _relay = world.listen("198.18.0.1:61097");
        port("198.18.0.1:61097").unwrap();
        assert_eq!(port("198.18.0.9:8080").err(), Some(Errno::CONNREFUSED));
    });
}
