//! What a hostile machine can send: any frame at all.

use super::*;
use crate::net::{
    machine::{
        frames::{Answer, Packet, What, arp_request, bytes_of, checksum, ethernet, frame, frame_to},
        prove::hear,
    },
    seat::{OUTSIDE_V4, OWN_V4},
};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const GATEWAY: [u8; 6] = crate::net::machine::OUTSIDE_HARDWARE;
const OWN: &str = "198.18.0.1:4000";
const OWN_V6: &str = "[fd61:6972:6c6f:636b::1]:4000";

fn with_cable(test: fn(&mut World)) {
    run(Behind::Cable, test);
}

fn packet(from: &str, to: &str, what: What) -> Packet {
    Packet { from: address(from), to: address(to), what }
}

impl World {
    /// What comes back for these frames: all of it, for a ping behind them is answered last.
    fn exchange(&self, frames: &[Vec<u8>]) -> Vec<Answer> {
        let tap = self.seat.tap.as_ref().unwrap();
        let gateway = SocketAddr::new(OUTSIDE_V4.into(), 0);
        let ping = frame(&Packet { from: address(OWN), to: gateway, what: What::Echo });
        for frame in frames.iter().chain([&ping]) {
            rustix::io::write(tap, frame).unwrap();
        }
        let mut heard = hear(tap.as_fd(), Answer::Echo(gateway.ip())).unwrap();
        assert_eq!(heard.pop(), Some(Answer::Echo(gateway.ip())), "{heard:?}");
        heard
    }

    fn open_everything(&mut self) {
        self.rules.open(&[opening("0.0.0.0", 0, 0, u16::MAX), opening("::", 0, 0, u16::MAX)]).unwrap();
    }

    fn is_untouched(&mut self) -> bool {
        self.accept(0).is_none()
            && self.accept(1).is_none()
            && self.seat.dns_udp.iter().all(|socket| {
                let nothing = rustix::net::recv(socket, &mut [0u8; 8], rustix::net::RecvFlags::DONTWAIT);
                matches!(nothing, Err(Errno::AGAIN))
            })
    }
}

/// An IPv4 packet with these words of options.
fn with_options(packet: &Packet, options: &[u8]) -> Vec<u8> {
    let plain = bytes_of(packet);
    let mut bytes = [&plain[..20], options, &plain[20..]].concat();
    bytes[0] = 0x45 + u8::try_from(options.len() / 4).unwrap();
    let length = u16::try_from(bytes.len()).unwrap();
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[10..12].copy_from_slice(&[0; 2]);
    let sum = checksum(&bytes[..20 + options.len()]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The packet in two fragments, of which the first has eight bytes of its body.
fn fragments(packet: &Packet) -> [Vec<u8>; 2] {
    let plain = bytes_of(packet);
    let (header, body) = plain.split_at(20);
    let part = |bytes: &[u8], offset: u16| {
        let mut part = [header, bytes].concat();
        let length = u16::try_from(part.len()).unwrap();
        part[2..4].copy_from_slice(&length.to_be_bytes());
        part[6..8].copy_from_slice(&offset.to_be_bytes());
        part[10..12].copy_from_slice(&[0; 2]);
        let sum = checksum(&part[..20]);
        part[10..12].copy_from_slice(&sum.to_be_bytes());
        ethernet(GATEWAY, IPV4, &part)
    };
    [part(&body[..8], 0x2000), part(&body[8..], 1)]
}

/// An IPv6 packet with an extension header before its body.
fn with_extension(packet: &Packet, kind: u8, extension: &[u8]) -> Vec<u8> {
    let plain = bytes_of(packet);
    let mut extension = extension.to_vec();
    extension[0] = plain[6];
    let mut bytes = [&plain[..40], &extension[..], &plain[40..]].concat();
    bytes[6] = kind;
    let length = u16::try_from(bytes.len() - 40).unwrap();
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[test]
fn only_the_machines_own_address_is_heard() {
    with_cable(|world| {
        world.open_everything();
        let mut frames = Vec::new();
        for from in
            ["198.18.0.2:1", "198.18.0.9:1", "127.0.0.1:1", "0.0.0.0:1", "255.255.255.255:1", "10.0.0.1:1"]
        {
            for to in ["192.0.2.7:443", "198.18.0.2:53", "198.18.0.2:61097"] {
                for what in [What::Syn, What::Datagram, What::Echo] {
                    frames.push(frame(&packet(from, to, what)));
                }
            }
        }
        for from in ["[fd61:6972:6c6f:636b::9]:1", "[::1]:1", "[::]:1", "[fe80::1]:1", "[ff02::1]:1"] {
            for to in ["[2001:db8::7]:443", "[fd61:6972:6c6f:636b::2]:53", "[ff02::2]:1", "[fe80::2]:53"] {
                for what in [What::Syn, What::Datagram, What::Echo] {
                    frames.push(frame(&packet(from, to, what)));
                }
            }
        }

        assert_eq!(world.exchange(&frames), []);
        assert!(world.is_untouched());
        assert_eq!(world.refusals(), []);
    });
}

#[test]
fn frames_for_others_and_of_other_kinds_are_not_heard() {
    with_cable(|world| {
        world.open_everything();
        let to_open = packet(OWN, "192.0.2.7:443", What::Syn);
        let mut frames = vec![
            frame_to([2, 0, 0, 0, 0, 9], &to_open),
            frame_to([0xff; 6], &to_open),
            frame_to([0x01, 0, 0x5e, 0, 0, 1], &to_open),
            arp_request(OWN_V4, OUTSIDE_V4),
            arp_request(OWN_V4, OWN_V4),
        ];
        // A VLAN's frame, IPv4 in name only, LLDP, PPPoE, and one that ends early.
        for kind in [0x8100, 0x86dd, 0x88cc, 0x8864] {
            frames.push(ethernet(GATEWAY, kind, &bytes_of(&to_open)));
        }
        frames.push(ethernet(GATEWAY, IPV4, &bytes_of(&to_open)[..19]));

        assert_eq!(world.exchange(&frames), []);
        assert!(world.is_untouched());
    });
}

#[test]
fn options_and_extension_headers_lead_nowhere() {
    with_cable(|world| {
        world.open_everything();
        // RFC 791: loose and strict source route, record route, router alert.
        let routes: [&[u8]; 4] = [
            &[131, 7, 4, 198, 18, 0, 2, 0],
            &[137, 7, 4, 198, 18, 0, 2, 0],
            &[7, 7, 4, 0, 0, 0, 0, 0],
            &[148, 4, 0, 0],
        ];
        let mut frames = Vec::new();
        for to in ["192.0.2.7:443", "198.18.0.2:61097", "127.0.0.1:61097"] {
            for options in routes {
                frames.push(ethernet(GATEWAY, IPV4, &with_options(&packet(OWN, to, What::Syn), options)));
            }
        }
        for to in ["[2001:db8::7]:443", "[fd61:6972:6c6f:636b::2]:61097"] {
            let packet = packet(OWN_V6, to, What::Syn);
            for (kind, extension) in [(0, [0, 0, 1, 4, 0, 0, 0, 0]), (60, [0, 0, 1, 4, 0, 0, 0, 0])] {
                frames.push(ethernet(GATEWAY, IPV6, &with_extension(&packet, kind, &extension)));
            }
            let mut route = [0u8; 24];
            route[1..4].copy_from_slice(&[2, 0, 1]);
            frames.push(ethernet(GATEWAY, IPV6, &with_extension(&packet, 43, &route)));
        }

        assert_eq!(world.exchange(&frames), []);
        assert!(world.is_untouched());
    });
}

#[test]
fn fragments_are_put_together_before_they_are_judged() {
    with_cable(|world| {
        let to = "192.0.2.7:443";
        let refused = world.exchange(&fragments(&packet(OWN, to, What::Syn)));
        assert_eq!(refused, [Answer::Reset(address(to))]);
        let [first, second] = fragments(&packet(OWN, "198.18.0.2:61097", What::Syn));
        assert_eq!(world.exchange(&[second, first]), [Answer::Reset(address("198.18.0.2:61097"))]);

        world.rules.open(&[one(to)]).unwrap();
        let accepted = world.exchange(&fragments(&packet("198.18.0.1:4001", to, What::Syn)));
        assert_eq!(accepted, [Answer::Accepted(address(to))]);
        assert!(world.is_untouched(), "half a connection is none");
    });
}

#[test]
fn the_hosts_own_addresses_groups_and_everybody_are_out_of_reach() {
    with_cable(|world| {
        world.open_everything();
        let mut frames = Vec::new();
        for to in ["127.0.0.1", "127.9.9.9"] {
            for port in [22, 61097, 61098] {
                frames.push(frame(&packet(OWN, &format!("{to}:{port}"), What::Syn)));
                frames.push(frame(&packet(OWN, &format!("{to}:{port}"), What::Datagram)));
            }
            frames.push(frame(&packet(OWN, &format!("{to}:53"), What::Datagram)));
            frames.push(frame(&packet(OWN, &format!("{to}:0"), What::Echo)));
        }
        for what in [What::Syn, What::Datagram, What::Echo] {
            frames.push(frame(&packet(OWN_V6, "[::1]:61097", what)));
        }
        for (hardware, to) in [
            ([0xff; 6], "255.255.255.255:67"),
            ([0xff; 6], "198.18.0.255:137"),
            ([0x01, 0, 0x5e, 0, 0, 0xfb], "224.0.0.251:5353"),
            ([0x33, 0x33, 0, 0, 0, 0xfb], "[ff02::fb]:5353"),
        ] {
            let from = if address(to).is_ipv6() { OWN_V6 } else { OWN };
            for what in [What::Datagram, What::Echo] {
                frames.push(frame_to(hardware, &packet(from, to, what)));
            }
        }

        assert_eq!(world.exchange(&frames), []);
        assert!(world.is_untouched());
    });
}

#[test]
fn what_a_machine_is_refused_is_told_and_what_a_kernel_asks_is_not() {
    with_cable(|world| {
        let refused_frames = [
            frame(&packet(OWN, "192.0.2.7:443", What::Syn)),
            frame(&packet(OWN, "192.0.2.7:443", What::Datagram)),
            frame(&packet(OWN_V6, "[2001:db8::7]:0", What::Echo)),
        ];
        let mut asked = bytes_of(&packet(OWN, "224.0.0.22:0", What::Datagram));
        // IGMP.
        asked[9] = 2;
        asked[10..12].copy_from_slice(&[0; 2]);
        let sum = checksum(&asked[..20]);
        asked[10..12].copy_from_slice(&sum.to_be_bytes());
        world.exchange(&[&refused_frames[..], &[ethernet(GATEWAY, IPV4, &asked)]].concat());

        let expected = [
            refused("192.0.2.7:443", Protocol::Tcp),
            refused("192.0.2.7:443", Protocol::Udp),
            refused("[2001:db8::7]:0", Protocol::Icmp),
        ];
        assert_eq!(world.refusals(), expected);
    });
}

#[test]
fn a_flood_of_frames_is_dropped_and_told_in_part() {
    with_cable(|world| {
        let flood: Vec<_> = (0..20_000_u32)
            .map(|number| {
                let port = u16::try_from(number % 60_000 + 1).unwrap();
                frame(&packet(OWN, &format!("192.0.2.7:{port}"), What::Syn))
            })
            .collect();
        let tap = world.seat.tap.as_ref().unwrap();
        for frame in &flood {
            rustix::io::write(tap, frame).unwrap();
        }
        // Nobody reads while it lasts: answers that find no room are lost, and later ones arrive again.
        while rustix::io::read(tap, &mut [0u8; 2048]).is_ok() {}

        let to = "192.0.2.8:1";
        assert_eq!(world.exchange(&[frame(&packet(OWN, to, What::Syn))]), [Answer::Reset(address(to))]);
        assert!(world.rules.refused().unwrap() >= 20_000);
        let told = world.refusals().len();
        assert!((1..2000).contains(&told), "{told}");
    });
}
