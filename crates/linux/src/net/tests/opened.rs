//! Open destinations reach the listener, and closed ones do not.

use super::*;
use std::io::{Read as _, Write as _};

#[test]
fn an_open_destination_reaches_the_listener_with_its_name() {
    with_seat(|world| {
        for (family, to) in ["198.18.1.1:443", "[2001:db8::7]:22"].into_iter().enumerate() {
            world.rules.open(&[one(to)]).unwrap();

            let mut program = world.connect(to).unwrap();
            let (mut keeper, destination) = world.accept(family).unwrap();

            assert_eq!(destination, address(to));
            assert!(keeper.nodelay().unwrap());
            program.write_all(b"hello").unwrap();
            let mut heard = [0; 5];
            keeper.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"hello");
            assert_eq!(program.peer_addr().unwrap(), address(to));
        }
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn a_connection_is_not_cut_by_closing_but_no_new_one_is_made() {
    with_seat(|world| {
        let to = "198.18.1.1:443";
        world.rules.open(&[one(to)]).unwrap();
        let mut program = world.connect(to).unwrap();
        let (mut keeper, _) = world.accept(0).unwrap();

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
fn a_prefix_with_ports_opens_just_those() {
    with_seat(|world| {
        let openings = [opening("203.0.113.77", 24, 80, 443), opening("2001:db8:1::", 48, 1000, u16::MAX)];
        world.rules.open(&openings).unwrap();

        for (to, is_open) in [
            ("203.0.113.0:80", true),
            ("203.0.113.255:443", true),
            ("203.0.113.9:79", false),
            ("203.0.113.9:444", false),
            ("203.0.112.255:80", false),
            ("203.0.114.0:80", false),
            ("[2001:db8:1:ffff::1]:65535", true),
            ("[2001:db8:1::]:1000", true),
            ("[2001:db8:1::]:999", false),
            ("[2001:db8:2::]:1000", false),
        ] {
            assert_eq!(world.connect(to).err(), (!is_open).then_some(Errno::CONNREFUSED), "{to}");
        }
    });
}

#[test]
fn openings_may_overlap_in_any_order() {
    with_seat(|world| {
        let (wide, host) = (opening("10.0.0.0", 8, 80, 443), opening("10.1.2.3", 32, 22, 100));
        let tries = ["10.1.2.3:22", "10.1.2.3:90", "10.1.2.3:443", "10.9.9.9:443"];
        let open = |world: &World| tries.map(|to| world.connect(to).is_ok());

        world.rules.open(&[host]).unwrap();
        assert_eq!(open(world), [true, true, false, false]);
        world.rules.open(&[wide, wide]).unwrap();
        assert_eq!(open(world), [true; 4]);
        world.rules.close(&[host]).unwrap();
        assert_eq!(open(world), [false, true, true, true]);
        world.rules.open(&[host]).unwrap();
        world.rules.close(&[wide]).unwrap();
        assert_eq!(open(world), [true, true, false, false]);
        world.rules.replace(&[wide]).unwrap();
        assert_eq!(open(world), [false, true, true, true]);
        world.rules.replace(&[]).unwrap();
        assert_eq!(open(world), [false; 4]);
    });
}

#[test]
fn everything_can_be_opened_but_not_the_ports_of_the_seat() {
    with_seat(|world| {
        world.rules.open(&[opening("0.0.0.0", 0, 0, u16::MAX), opening("::", 0, 0, u16::MAX)]).unwrap();

        world.connect("192.0.2.1:1").unwrap();
        world.connect("[2001:db8::1]:65535").unwrap();
        world.connect("192.0.2.1:61097").unwrap();
        assert_eq!(world.connect("127.0.0.1:61097").err(), Some(Errno::CONNREFUSED));
        assert_eq!(world.connect("127.0.0.1:80").err(), Some(Errno::CONNREFUSED));
        let reached: Vec<_> = std::iter::from_fn(|| world.accept(0)).map(|(_, to)| to).collect();
        assert_eq!(reached, [address("192.0.2.1:1"), address("192.0.2.1:61097")]);
    });
}

#[test]
fn thousands_of_destinations_are_opened_and_closed_at_once() {
    with_seat(|world| {
        let v4 = (0u16..5000).map(|number| {
            let [high, low] = number.to_be_bytes();
            Opening { address: IpAddr::from([198, 19, high, low]), prefix: 32, first: 443, last: 443 }
        });
        let v6 = (0u16..1000).map(|number| Opening {
            address: documentation(number),
            prefix: 128,
            first: 80,
            last: 90,
        });
        let all: Vec<Opening> = v4.chain(v6).collect();
        let tries = ["198.19.0.0:443", "198.19.19.135:443", "[2001:db8::3e7]:85"];

        world.rules.open(&all).unwrap();
        assert!(tries.iter().all(|to| world.connect(to).is_ok()));
        assert_eq!(world.connect("198.19.19.136:443").err(), Some(Errno::CONNREFUSED));

        world.rules.close(&all).unwrap();
        assert!(tries.iter().all(|to| world.connect(to).is_err()));
    });
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    with_seat(|world| {
        let (good, bad) = (one("192.0.2.7:443"), opening("192.0.2.0", 33, 1, 1));

        assert!(world.rules.open(&[good, bad]).is_err());

        assert_eq!(world.connect("192.0.2.7:443").err(), Some(Errno::CONNREFUSED));
        world.rules.open(&[good]).unwrap();
        world.connect("192.0.2.7:443").unwrap();
    });
}
