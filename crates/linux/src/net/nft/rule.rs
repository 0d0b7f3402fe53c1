//! The expressions of a rule.

use super::{ACCEPT, COUNTER, DROP, ENTRY, JUMP, RETURN, VALUE};
use crate::net::netlink::Body;

/// The expressions of a rule, in the order they are tried.
pub(in crate::net) struct Rule<'a, 'b>(pub(super) &'a mut Body<'b>);

/// Registers: 16 bytes each from 1 on, or 4 bytes each from 8 on, over the same memory.
const FIRST: u32 = 1;
/// The word behind an IPv4 address in register 1.
const WORD_AFTER_V4: u32 = 9;
/// The word behind an IPv6 address in register 1.
const WORD_AFTER_V6: u32 = 2;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const PORT_AT: u32 = 2;
const ICMP_V4: u8 = 1;
const ICMP_V6: u8 = 58;

/// How two values compare.
#[derive(Debug, Clone, Copy)]
enum Compare {
    Equal = 0,
    NotEqual = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// An address family, with where the destination lies in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum Family {
    V4,
    V6,
}

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum Transport {
    Tcp = 6,
    Udp = 17,
}

impl Rule<'_, '_> {
    /// The destination begins with these bytes.
    pub(in crate::net) fn to(&mut self, family: Family, prefix: &[u8]) -> &mut Self {
        let length = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
        self.family(family).payload(NETWORK, (family.destination_at(), length), FIRST);
        self.compare(Compare::Equal, prefix)
    }

    /// The source is another address than this one.
    pub(in crate::net) fn not_from(&mut self, family: Family, address: &[u8]) -> &mut Self {
        self.source(family, Compare::NotEqual, address)
    }

    /// The source is this address.
    pub(in crate::net) fn from(&mut self, family: Family, address: &[u8]) -> &mut Self {
        self.source(family, Compare::Equal, address)
    }

    /// It came in by the device of this name.
    pub(in crate::net) fn arrives_by(&mut self, name: &str) -> &mut Self {
        const IN_NAME: u32 = 6;
        self.meta(IN_NAME).compare(Compare::Equal, &device_name(name))
    }

    /// It goes out by the device of this name.
    pub(in crate::net) fn leaves_by(&mut self, name: &str) -> &mut Self {
        const OUT_NAME: u32 = 7;
        self.meta(OUT_NAME).compare(Compare::Equal, &device_name(name))
    }

    /// An IPv4 header longer than the shortest (RFC 791, section 3.1).
    pub(in crate::net) fn has_options(&mut self) -> &mut Self {
        const WITHOUT: u8 = 0x45;
        self.family(Family::V4).payload(NETWORK, (0, 1), FIRST).compare(Compare::NotEqual, &[WITHOUT])
    }

    /// Behind the IPv6 header comes neither TCP nor UDP nor ICMP (RFC 8200, section 4). Fragments have been put together.
    pub(in crate::net) fn has_extensions(&mut self) -> &mut Self {
        const NEXT_AT: u32 = 6;
        self.family(Family::V6).payload(NETWORK, (NEXT_AT, 1), FIRST);
        for usual in [Transport::Tcp as u8, Transport::Udp as u8, ICMP_V6] {
            self.compare(Compare::NotEqual, &[usual]);
        }
        self
    }

    /// Asks for an echo.
    pub(in crate::net) fn echo_request(&mut self, family: Family) -> &mut Self {
        let (protocol, request) = match family {
            Family::V4 => (ICMP_V4, 8),
            Family::V6 => (ICMP_V6, 128),
        };
        self.protocol(protocol).payload(TRANSPORT, (0, 1), FIRST).compare(Compare::Equal, &[request])
    }

    /// What a kernel sends to its neighbours on its own: IGMP.
    pub(in crate::net) fn group_membership(&mut self) -> &mut Self {
        const IGMP: u8 = 2;
        self.protocol(IGMP)
    }

    /// The same of IPv6: listener and neighbour discovery (RFC 4443, section 2.1: from 130 on).
    pub(in crate::net) fn discovery(&mut self) -> &mut Self {
        const FIRST_KIND: u8 = 130;
        self.protocol(ICMP_V6).payload(TRANSPORT, (0, 1), FIRST).compare(Compare::AtLeast, &[FIRST_KIND])
    }

    pub(in crate::net) fn transport(&mut self, transport: Transport) -> &mut Self {
        self.protocol(transport as u8)
    }

    /// The destination port.
    pub(in crate::net) fn port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, (PORT_AT, 2), FIRST).compare(Compare::Equal, &port.to_be_bytes())
    }

    /// The destination port, both ends included.
    pub(in crate::net) fn ports(&mut self, first: u16, last: u16) -> &mut Self {
        self.payload(TRANSPORT, (PORT_AT, 2), FIRST)
            .compare(Compare::AtLeast, &first.to_be_bytes())
            .compare(Compare::AtMost, &last.to_be_bytes())
    }

    /// TCP to an address and port in the set.
    pub(in crate::net) fn tcp_to_any_of(&mut self, family: Family, set: &str) -> &mut Self {
        let (length, word) = match family {
            Family::V4 => (4, WORD_AFTER_V4),
            Family::V6 => (16, WORD_AFTER_V6),
        };
        self.family(family).transport(Transport::Tcp);
        self.payload(NETWORK, (family.destination_at(), length), FIRST);
        self.payload(TRANSPORT, (PORT_AT, 2), word);
        self.expression("lookup", |body| {
            body.text(1, set);
            body.number(2, FIRST);
        })
    }

    /// The connection has been answered before.
    pub(in crate::net) fn established(&mut self) -> &mut Self {
        const STATE: u32 = 0;
        const ESTABLISHED: u32 = 1 << 1;
        self.connection(STATE, ESTABLISHED)
    }

    /// The connection has been answered before, or this is an error about one.
    pub(in crate::net) fn answers(&mut self) -> &mut Self {
        const STATE: u32 = 0;
        const ESTABLISHED_OR_RELATED: u32 = (1 << 1) | (1 << 2);
        self.connection(STATE, ESTABLISHED_OR_RELATED)
    }

    /// The connection was redirected by a rule.
    pub(in crate::net) fn redirected(&mut self) -> &mut Self {
        const STATUS: u32 = 2;
        const DESTINATION_CHANGED: u32 = 1 << 5;
        self.connection(STATUS, DESTINATION_CHANGED)
    }

    /// One more, whatever follows.
    pub(in crate::net) fn count(&mut self, counter: &str) -> &mut Self {
        self.expression("objref", |body| {
            body.number(1, COUNTER);
            body.text(2, counter);
        })
    }

    /// No more than so many in a second; beyond that the rule does not apply.
    pub(in crate::net) fn at_most_per_second(&mut self, rate: u64, burst: u32) -> &mut Self {
        const ONE_SECOND: u64 = 1;
        self.expression("limit", |body| {
            body.bytes(1, &rate.to_be_bytes());
            body.bytes(2, &ONE_SECOND.to_be_bytes());
            body.number(3, burst);
        })
    }

    /// Tells whoever listens on this group, packet by packet, with so many bytes of each.
    pub(in crate::net) fn log(&mut self, group: u16, bytes: u32) -> &mut Self {
        self.expression("log", |body| {
            body.bytes(1, &group.to_be_bytes());
            body.number(3, bytes);
            body.bytes(4, &1_u16.to_be_bytes());
        })
    }

    /// To this port of the loopback address, or of the device it came in by.
    pub(in crate::net) fn redirect(&mut self, port: u16) {
        const PORT_GIVEN: u32 = 2;
        self.expression("immediate", |body| {
            body.number(1, FIRST);
            body.nest(2, |body| body.bytes(VALUE, &port.to_be_bytes()));
        });
        self.expression("redir", |body| {
            body.number(1, FIRST);
            body.number(3, PORT_GIVEN);
        });
    }

    pub(in crate::net) fn reset(&mut self) {
        const TCP_RESET: u32 = 1;
        self.expression("reject", |body| {
            body.number(1, TCP_RESET);
            body.bytes(2, &[0]);
        });
    }

    /// The sender's call fails, and a connected socket hears that the port is unreachable.
    pub(in crate::net) fn reject(&mut self) {
        const UNREACHABLE: u32 = 2;
        const PORT: u8 = 1;
        self.expression("reject", |body| {
            body.number(1, UNREACHABLE);
            body.bytes(2, &[PORT]);
        });
    }

    pub(in crate::net) fn accept(&mut self) {
        self.verdict(ACCEPT, None);
    }

    pub(in crate::net) fn drop(&mut self) {
        self.verdict(DROP, None);
    }

    pub(in crate::net) fn go_back(&mut self) {
        self.verdict(RETURN, None);
    }

    pub(in crate::net) fn jump(&mut self, chain: &str) {
        self.verdict(JUMP, Some(chain));
    }

    fn family(&mut self, family: Family) -> &mut Self {
        const PROTOCOL_FAMILY: u32 = 15;
        let number = match family {
            Family::V4 => 2,
            Family::V6 => 10,
        };
        self.meta(PROTOCOL_FAMILY).compare(Compare::Equal, &[number])
    }

    fn source(&mut self, family: Family, how: Compare, address: &[u8]) -> &mut Self {
        let length = u32::try_from(address.len()).unwrap_or(u32::MAX);
        self.family(family).payload(NETWORK, (family.source_at(), length), FIRST).compare(how, address)
    }

    fn protocol(&mut self, number: u8) -> &mut Self {
        const L4_PROTOCOL: u32 = 16;
        self.meta(L4_PROTOCOL).compare(Compare::Equal, &[number])
    }

    fn meta(&mut self, key: u32) -> &mut Self {
        self.expression("meta", |body| {
            body.number(1, FIRST);
            body.number(2, key);
        })
    }

    fn payload(&mut self, base: u32, (offset, length): (u32, u32), register: u32) -> &mut Self {
        self.expression("payload", |body| {
            body.number(1, register);
            body.number(2, base);
            body.number(3, offset);
            body.number(4, length);
        })
    }

    fn compare(&mut self, how: Compare, value: &[u8]) -> &mut Self {
        self.expression("cmp", |body| {
            body.number(1, FIRST);
            body.number(2, how as u32);
            body.nest(3, |body| body.bytes(VALUE, value));
        })
    }

    /// The connection has one of these bits.
    fn connection(&mut self, key: u32, bits: u32) -> &mut Self {
        self.expression("ct", |body| {
            body.number(1, FIRST);
            body.number(2, key);
        });
        self.expression("bitwise", |body| {
            body.number(1, FIRST);
            body.number(2, FIRST);
            body.number(3, 4);
            body.nest(4, |body| body.bytes(VALUE, &bits.to_ne_bytes()));
            body.nest(5, |body| body.bytes(VALUE, &[0; 4]));
        });
        self.compare(Compare::NotEqual, &[0; 4])
    }

    fn verdict(&mut self, code: u32, chain: Option<&str>) {
        const VERDICT_REGISTER: u32 = 0;
        const VERDICT: u16 = 2;
        self.expression("immediate", |body| {
            body.number(1, VERDICT_REGISTER);
            body.nest(2, |body| {
                body.nest(VERDICT, |body| {
                    body.number(1, code);
                    if let Some(chain) = chain {
                        body.text(2, chain);
                    }
                });
            });
        });
    }

    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Body<'_>)) -> &mut Self {
        self.0.nest(ENTRY, |body| {
            body.text(1, name);
            body.nest(2, fill);
        });
        self
    }
}

impl Family {
    /// Where the source lies in the header.
    fn source_at(self) -> u32 {
        match self {
            Family::V4 => 12,
            Family::V6 => 8,
        }
    }

    /// Where the destination lies in the header.
    fn destination_at(self) -> u32 {
        match self {
            Family::V4 => 16,
            Family::V6 => 24,
        }
    }
}

/// As the kernel compares it: filled up with zeros.
fn device_name(name: &str) -> [u8; 16] {
    let mut filled = [0; 16];
    filled.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    filled
}
