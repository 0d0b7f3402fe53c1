//! Frames as a machine sends them, and what its gateway answers, as bytes. Pure; reading is total.

use super::{OUTSIDE_HARDWARE, OWN_HARDWARE, tap::HEADER};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) struct Packet {
    pub(in crate::net) from: SocketAddr,
    /// Where to; the port means nothing for an echo.
    pub(in crate::net) to: SocketAddr,
    pub(in crate::net) what: What,
}

/// What is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum What {
    /// The first of a TCP connection.
    Syn,
    /// A UDP packet.
    Datagram,
    /// Asks for an echo.
    Echo,
}

/// What comes out of the TAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum Answer {
    /// A connection to there is refused.
    Reset(SocketAddr),
    /// A connection to there is accepted.
    Accepted(SocketAddr),
    /// A packet to there is refused.
    Unreachable(SocketAddr),
    /// An echo from there.
    Echo(IpAddr),
    /// Anything else.
    Other,
}

const ETHERNET: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V4: u8 = 1;
const ICMP_V6: u8 = 58;
const V4_LENGTH: usize = 20;
const V6_LENGTH: usize = 40;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The frame of a packet to the gateway.
pub(in crate::net) fn frame(packet: &Packet) -> Vec<u8> {
    frame_to(OUTSIDE_HARDWARE, packet)
}

/// The same to another hardware address.
pub(in crate::net) fn frame_to(hardware: [u8; 6], packet: &Packet) -> Vec<u8> {
    let kind = if packet.to.is_ipv4() { IPV4 } else { IPV6 };
    ethernet(hardware, kind, &bytes_of(packet))
}

/// Asks for the hardware address of the gateway.
pub(in crate::net) fn arp_request(from: Ipv4Addr, whose: Ipv4Addr) -> Vec<u8> {
    const ETHERNET_ASKS_FOR_IPV4: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let mut body = ETHERNET_ASKS_FOR_IPV4.to_vec();
    body.extend(OWN_HARDWARE);
    body.extend(from.octets());
    body.extend([0; 6]);
    body.extend(whose.octets());
    ethernet([0xff; 6], ARP, &body)
}

/// A frame with the header that a TAP wants before it.
pub(in crate::net) fn ethernet(to: [u8; 6], kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame.extend(to);
    frame.extend(OWN_HARDWARE);
    frame.extend(kind.to_be_bytes());
    frame.extend(body);
    frame
}

/// The packet itself.
pub(in crate::net) fn bytes_of(packet: &Packet) -> Vec<u8> {
    let (protocol, mut body, sum_at) = body(packet);
    let (from, to) = (packet.from.ip(), packet.to.ip());
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let sum = match protocol {
        ICMP_V4 => checksum(&body),
        _ => checksum(&[pseudo(from, to, length, protocol), body.clone()].concat()),
    };
    put(&mut body, sum_at, sum);
    let mut bytes = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => v4(from, to, length, protocol),
        (from, to) => v6(mapped(from), mapped(to), length, protocol),
    };
    bytes.extend(body);
    bytes
}

/// What this frame says to a machine. Total over any bytes.
pub(in crate::net) fn answer(frame: &[u8]) -> Answer {
    understood(frame).unwrap_or(Answer::Other)
}

fn understood(frame: &[u8]) -> Option<Answer> {
    let kind = frame.get(HEADER + 12..HEADER + ETHERNET)?;
    let packet = frame.get(HEADER + ETHERNET..)?;
    let (from, _, protocol, body) = match u16::from_be_bytes(kind.try_into().ok()?) {
        IPV4 => read_v4(packet)?,
        IPV6 => read_v6(packet)?,
        _ => return None,
    };
    match protocol {
        TCP => {
            let from = SocketAddr::new(from, port(body, 0)?);
            match body.get(13)? & (SYN | RST | ACK) {
                flags if flags & RST != 0 => Some(Answer::Reset(from)),
                flags if flags == SYN | ACK => Some(Answer::Accepted(from)),
                _ => None,
            }
        }
        ICMP_V4 | ICMP_V6 => message(from, body),
        _ => None,
    }
}

fn message(from: IpAddr, body: &[u8]) -> Option<Answer> {
    let [kind, code, ..] = body.get(..8)? else { return None };
    let quoted = body.get(8..)?;
    let (_, to, _, body) = match (from, kind, code) {
        (IpAddr::V4(_), 0, 0) | (IpAddr::V6(_), 129, 0) => return Some(Answer::Echo(from)),
        (IpAddr::V4(_), 3, 3) => read_v4(quoted)?,
        (IpAddr::V6(_), 1, 4) => read_v6(quoted)?,
        _ => return None,
    };
    Some(Answer::Unreachable(SocketAddr::new(to, port(body, 2)?)))
}

type Read<'a> = (IpAddr, IpAddr, u8, &'a [u8]);

fn read_v4(packet: &[u8]) -> Option<Read<'_>> {
    let header = usize::from(packet.first()? & 0x0f).checked_mul(4)?;
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?).into());
    Some((address(12)?, address(16)?, *packet.get(9)?, packet.get(header..)?))
}

fn read_v6(packet: &[u8]) -> Option<Read<'_>> {
    let address =
        |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?).into());
    Some((address(8)?, address(24)?, *packet.get(6)?, packet.get(V6_LENGTH..)?))
}

fn port(body: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?))
}

/// Its protocol, its bytes, and where in them the checksum belongs.
fn body(packet: &Packet) -> (u8, Vec<u8>, usize) {
    let ports = [packet.from.port().to_be_bytes(), packet.to.port().to_be_bytes()].concat();
    match packet.what {
        // RFC 9293, section 3.1: sequence number, none acknowledged, five words, SYN, a window.
        What::Syn => {
            let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0];
            (TCP, [&ports[..], &rest[..]].concat(), 16)
        }
        What::Datagram => (UDP, [&ports[..], &[0, 9, 0, 0, b'?']].concat(), 6),
        What::Echo if packet.to.is_ipv4() => (ICMP_V4, vec![8, 0, 0, 0, 0, 1, 0, 1], 2),
        What::Echo => (ICMP_V6, vec![128, 0, 0, 0, 0, 1, 0, 1], 2),
    }
}

/// RFC 791, section 3.1.
fn v4(from: Ipv4Addr, to: Ipv4Addr, length: u16, protocol: u8) -> Vec<u8> {
    const SUM_AT: usize = 10;
    let whole = length.saturating_add(20).to_be_bytes();
    let mut header = Vec::with_capacity(V4_LENGTH);
    header.extend([0x45, 0]);
    header.extend(whole);
    header.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum(&header);
    put(&mut header, SUM_AT, sum);
    header
}

/// RFC 8200, section 3.
fn v6(from: Ipv6Addr, to: Ipv6Addr, length: u16, protocol: u8) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(length.to_be_bytes());
    header.extend([protocol, 64]);
    header.extend(from.octets());
    header.extend(to.octets());
    header
}

/// What checksums of TCP, UDP and ICMPv6 cover besides.
fn pseudo(from: IpAddr, to: IpAddr, length: u16, protocol: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend([0, protocol]);
    bytes.extend(length.to_be_bytes());
    bytes
}

/// RFC 1071.
pub(in crate::net) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match word {
        [high, low] => u16::from_be_bytes([*high, *low]),
        [high] => u16::from_be_bytes([*high, 0]),
        _ => 0,
    });
    let folded = words.fold(0_u16, |sum, word| {
        let (sum, carry) = sum.overflowing_add(word);
        sum.wrapping_add(u16::from(carry))
    });
    !folded
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes.iter_mut().skip(at).zip(value.to_be_bytes()).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(from: &str, to: &str, what: What) -> Packet {
        Packet { from: from.parse().unwrap(), to: to.parse().unwrap(), what }
    }

    #[test]
    fn a_frame_has_the_bytes_of_the_standards() {
        let frame = frame(&packet("198.18.0.1:1000", "192.0.2.2:443", What::Datagram));

        let (before, packet) = frame.split_at(HEADER + ETHERNET);
        assert_eq!(&before[HEADER..], [2, b'a', b'i', b'r', 0, 2, 2, b'a', b'i', b'r', 0, 1, 8, 0]);
        assert_eq!(&packet[..4], [0x45, 0, 0, 29]);
        assert_eq!(checksum(&packet[..20]), 0);
        assert_eq!(&packet[20..26], [3, 232, 1, 187, 0, 9]);
        let whole = [pseudo([198, 18, 0, 1].into(), [192, 0, 2, 2].into(), 9, UDP), packet[20..].to_vec()];
        assert_eq!(checksum(&whole.concat()), 0);
    }

    #[test]
    fn answers_are_told_apart() {
        let with = |body: &[u8], protocol: u8| {
            let (from, to) = (Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(198, 18, 0, 1));
            let length = u16::try_from(body.len()).unwrap();
            answer(&ethernet(OWN_HARDWARE, IPV4, &[v4(from, to, length, protocol), body.to_vec()].concat()))
        };
        let tcp = |flags: u8| {
            let mut body = body(&packet("192.0.2.2:443", "198.18.0.1:1000", What::Syn)).1;
            body[13] = flags;
            with(&body, TCP)
        };
        let refused = bytes_of(&packet("198.18.0.1:1000", "192.0.2.2:443", What::Datagram));
        let at = "192.0.2.2:443".parse().unwrap();

        assert_eq!(tcp(RST | ACK), Answer::Reset(at));
        assert_eq!(tcp(SYN | ACK), Answer::Accepted(at));
        assert_eq!(tcp(ACK), Answer::Other);
        assert_eq!(
            with(&[&[3, 3, 0, 0, 0, 0, 0, 0], &refused[..]].concat(), ICMP_V4),
            Answer::Unreachable(at)
        );
        assert_eq!(with(&[0; 8], ICMP_V4), Answer::Echo(at.ip()));
        assert_eq!(answer(&arp_request([198, 18, 0, 1].into(), [198, 18, 0, 2].into())), Answer::Other);
    }

    proptest! {
        #[test]
        fn no_frame_panics_the_reader(frame in proptest::collection::vec(any::<u8>(), 0..150)) {
            let _ = answer(&frame);
            let _ = answer(&ethernet(OWN_HARDWARE, IPV4, &frame));
            let _ = answer(&ethernet(OWN_HARDWARE, IPV6, &frame));
        }
    }
}
