//! Transactions of nf_tables as bytes: the few messages and expressions the wall is made of.
//!
//! Names and numbers are those of `linux/netfilter/nf_tables.h`.

use super::netlink::{APPEND, Body, CREATE, EXCLUSIVE, Messages, Refused, next_attribute};
use std::{io, os::fd::BorrowedFd};

/// The only table.
pub(super) const TABLE: &str = "airlock";

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const INET: u8 = 1;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;
const NEW_OBJECT: u16 = 18;
const GET_OBJECT: u16 = 19;
const COUNTER: u32 = 1;
/// A list's entries, whatever the list.
const ENTRY: u16 = 1;
/// The value in any attribute that holds data.
const VALUE: u16 = 1;
/// So many fit into one attribute (64 kB) with room to spare.
const ELEMENTS_PER_MESSAGE: usize = 800;

/// One transaction: all of it happens, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transaction {
    messages: Messages,
}

/// Where a chain hangs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hook {
    pub(super) kind: &'static str,
    pub(super) number: u32,
    pub(super) priority: i32,
    pub(super) policy: u32,
}

/// Hook numbers (linux/netfilter.h).
pub(super) const FORWARD: u32 = 2;
/// See [`FORWARD`].
pub(super) const OUTPUT: u32 = 3;

/// Verdicts (linux/netfilter.h, linux/netfilter/nf_tables.h).
pub(super) const DROP: u32 = 0;
/// See [`DROP`].
pub(super) const ACCEPT: u32 = 1;
const JUMP: u32 = (-3_i32).cast_unsigned();
const RETURN: u32 = (-5_i32).cast_unsigned();

/// A set of intervals over two fields: an address and a port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Set {
    pub(super) name: &'static str,
    pub(super) id: u32,
    /// How `nft list` shows its keys (two type numbers of six bits); the kernel does not care.
    pub(super) shown_as: u32,
    pub(super) address_length: u32,
}

/// The ends of one interval of a [`Set`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
}

/// What to do with elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    Add,
    Remove,
}

impl Transaction {
    pub(super) fn begin() -> Transaction {
        let mut messages = Messages::new();
        messages.add("begin a transaction", (BATCH_BEGIN, 0), &general(0, SUBSYSTEM), |_| {});
        Transaction { messages }
    }

    pub(super) fn table(&mut self) {
        let kind = (kind(NEW_TABLE), CREATE | EXCLUSIVE);
        self.messages.add("make the table of rules (nf_tables)", kind, &general(INET, 0), |body| {
            body.text(1, TABLE);
        });
    }

    /// A chain that others jump to.
    pub(super) fn chain(&mut self, name: &str) {
        self.messages.add("make a chain", (kind(NEW_CHAIN), CREATE), &general(INET, 0), |body| {
            body.text(1, TABLE);
            body.text(3, name);
        });
    }

    /// A chain that packets meet.
    pub(super) fn hooked(&mut self, name: &str, purpose: &'static str, hook: Hook) {
        self.messages.add(purpose, (kind(NEW_CHAIN), CREATE), &general(INET, 0), |body| {
            body.text(1, TABLE);
            body.text(3, name);
            body.nest(4, |body| {
                body.number(1, hook.number);
                body.number(2, hook.priority.cast_unsigned());
            });
            body.number(5, hook.policy);
            body.text(7, hook.kind);
        });
    }

    pub(super) fn set(&mut self, set: Set) {
        const INTERVALS_OF_SEVERAL_FIELDS: u32 = 0x84;
        // Each field takes whole words of four bytes; a port fills half of its word.
        let lengths = [set.address_length, 2];
        let kind = (kind(NEW_SET), CREATE);
        self.messages.add("make a set of destinations", kind, &general(INET, 0), |body| {
            body.text(1, TABLE);
            body.text(2, set.name);
            body.number(3, INTERVALS_OF_SEVERAL_FIELDS);
            body.number(4, set.shown_as);
            body.number(5, set.address_length.saturating_add(4));
            body.nest(9, |body| {
                body.nest(2, |body| {
                    lengths.iter().for_each(|length| body.nest(ENTRY, |body| body.number(1, *length)));
                });
            });
            body.number(10, set.id);
        });
    }

    /// A counter that rules can share and others read.
    pub(super) fn counter(&mut self, name: &str) {
        let kind = (kind(NEW_OBJECT), CREATE);
        self.messages.add("make a counter", kind, &general(INET, 0), |body| {
            body.text(1, TABLE);
            body.text(2, name);
            body.number(3, COUNTER);
            body.nest(4, |_| {});
        });
    }

    /// `purpose` completes "could not …".
    pub(super) fn rule(&mut self, chain: &str, purpose: &'static str, fill: impl FnOnce(&mut Rule<'_, '_>)) {
        let kind = (kind(NEW_RULE), CREATE | APPEND);
        self.messages.add(purpose, kind, &general(INET, 0), |body| {
            body.text(1, TABLE);
            body.text(2, chain);
            body.nest(4, |body| fill(&mut Rule(body)));
        });
    }

    pub(super) fn elements(&mut self, edit: Edit, set: &str, elements: &[Element]) {
        let (kind, purpose) = match edit {
            Edit::Add => ((kind(NEW_ELEMENT), CREATE), "open a destination"),
            Edit::Remove => ((kind(DELETE_ELEMENT), 0), "close a destination"),
        };
        for some in elements.chunks(ELEMENTS_PER_MESSAGE) {
            self.messages.add(purpose, kind, &general(INET, 0), |body| {
                body.text(1, TABLE);
                body.text(2, set);
                body.nest(3, |body| some.iter().for_each(|element| put_element(body, element)));
            });
        }
    }

    /// Removes every element.
    pub(super) fn empty(&mut self, set: &str) {
        let kind = (kind(DELETE_ELEMENT), 0);
        self.messages.add("close every destination", kind, &general(INET, 0), |body| {
            body.text(1, TABLE);
            body.text(2, set);
        });
    }

    /// How long it is so far.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Sends it. Success is the kernel's word for the whole.
    pub(super) fn commit(mut self, socket: BorrowedFd<'_>) -> Result<(), Refused> {
        let last = self.messages.ask_for_answer();
        self.messages.add("end a transaction", (BATCH_END, 0), &general(0, SUBSYSTEM), |_| {});
        self.messages.send(socket, last)
    }
}

/// The expressions of a rule, in the order they are tried.
pub(super) struct Rule<'a, 'b>(&'a mut Body<'b>);

/// Registers: 16 bytes each from 1 on, or 4 bytes each from 8 on, over the same memory.
const FIRST: u32 = 1;
/// The word behind an IPv4 address in register 1.
const WORD_AFTER_V4: u32 = 9;
/// The word behind an IPv6 address in register 1.
const WORD_AFTER_V6: u32 = 2;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const PORT_AT: u32 = 2;

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
pub(super) enum Family {
    V4,
    V6,
}

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp = 6,
    Udp = 17,
}

impl Rule<'_, '_> {
    /// The destination begins with these bytes.
    pub(super) fn to(&mut self, family: Family, prefix: &[u8]) -> &mut Self {
        let length = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
        self.family(family).payload(NETWORK, (family.destination_at(), length), FIRST);
        self.compare(Compare::Equal, prefix)
    }

    pub(super) fn transport(&mut self, transport: Transport) -> &mut Self {
        const L4_PROTOCOL: u32 = 16;
        self.meta(L4_PROTOCOL).compare(Compare::Equal, &[transport as u8])
    }

    /// The destination port.
    pub(super) fn port(&mut self, port: u16) -> &mut Self {
        self.payload(TRANSPORT, (PORT_AT, 2), FIRST).compare(Compare::Equal, &port.to_be_bytes())
    }

    /// The destination port, both ends included.
    pub(super) fn ports(&mut self, first: u16, last: u16) -> &mut Self {
        self.payload(TRANSPORT, (PORT_AT, 2), FIRST)
            .compare(Compare::AtLeast, &first.to_be_bytes())
            .compare(Compare::AtMost, &last.to_be_bytes())
    }

    /// TCP to an address and port in the set.
    pub(super) fn tcp_to_any_of(&mut self, family: Family, set: &str) -> &mut Self {
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
    pub(super) fn established(&mut self) -> &mut Self {
        const STATE: u32 = 0;
        const ESTABLISHED: u32 = 1 << 1;
        self.connection(STATE, ESTABLISHED)
    }

    /// The connection was redirected by a rule.
    pub(super) fn redirected(&mut self) -> &mut Self {
        const STATUS: u32 = 2;
        const DESTINATION_CHANGED: u32 = 1 << 5;
        self.connection(STATUS, DESTINATION_CHANGED)
    }

    /// One more, whatever follows.
    pub(super) fn count(&mut self, counter: &str) -> &mut Self {
        self.expression("objref", |body| {
            body.number(1, COUNTER);
            body.text(2, counter);
        })
    }

    /// No more than so many in a second; beyond that the rule does not apply.
    pub(super) fn at_most_per_second(&mut self, rate: u64, burst: u32) -> &mut Self {
        const ONE_SECOND: u64 = 1;
        self.expression("limit", |body| {
            body.bytes(1, &rate.to_be_bytes());
            body.bytes(2, &ONE_SECOND.to_be_bytes());
            body.number(3, burst);
        })
    }

    /// Tells whoever listens on this group, packet by packet, with so many bytes of each.
    pub(super) fn log(&mut self, group: u16, bytes: u32) -> &mut Self {
        self.expression("log", |body| {
            body.bytes(1, &group.to_be_bytes());
            body.number(3, bytes);
            body.bytes(4, &1_u16.to_be_bytes());
        })
    }

    /// To this port of the loopback address.
    pub(super) fn redirect(&mut self, port: u16) {
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

    pub(super) fn reset(&mut self) {
        const TCP_RESET: u32 = 1;
        self.expression("reject", |body| {
            body.number(1, TCP_RESET);
            body.bytes(2, &[0]);
        });
    }

    /// The sender's call fails, and a connected socket hears that the port is unreachable.
    pub(super) fn reject(&mut self) {
        const UNREACHABLE: u32 = 2;
        const PORT: u8 = 1;
        self.expression("reject", |body| {
            body.number(1, UNREACHABLE);
            body.bytes(2, &[PORT]);
        });
    }

    pub(super) fn accept(&mut self) {
        self.verdict(ACCEPT, None);
    }

    pub(super) fn go_back(&mut self) {
        self.verdict(RETURN, None);
    }

    pub(super) fn jump(&mut self, chain: &str) {
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

    /// The connection has this bit.
    fn connection(&mut self, key: u32, bit: u32) -> &mut Self {
        self.expression("ct", |body| {
            body.number(1, FIRST);
            body.number(2, key);
        });
        self.expression("bitwise", |body| {
            body.number(1, FIRST);
            body.number(2, FIRST);
            body.number(3, 4);
            body.nest(4, |body| body.bytes(VALUE, &bit.to_ne_bytes()));
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
    /// Where the destination lies in the header.
    fn destination_at(self) -> u32 {
        match self {
            Family::V4 => 16,
            Family::V6 => 24,
        }
    }
}

/// What a counter of the table stands at, in packets.
pub(super) fn read_counter(socket: BorrowedFd<'_>, name: &str) -> io::Result<u64> {
    let mut messages = Messages::new();
    messages.add("read a counter", (kind(GET_OBJECT), 0), &general(INET, 0), |body| {
        body.text(1, TABLE);
        body.text(2, name);
        body.number(3, COUNTER);
    });
    let mut found = None;
    let last = messages.ask_for_answer();
    messages.exchange(socket, last, |kind_of, body| {
        if kind_of == kind(NEW_OBJECT) {
            found = packets_of(body.get(4..).unwrap_or_default());
        }
    })?;
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The number of packets in the attributes of a counter. Total over any bytes.
fn packets_of(attributes: &[u8]) -> Option<u64> {
    const STATE: u16 = 4;
    const PACKETS: u16 = 2;
    let state = attribute(attributes, STATE)?;
    Some(u64::from_be_bytes(attribute(state, PACKETS)?.try_into().ok()?))
}

fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((kind, value)) = next_attribute(&mut attributes) {
        if kind == wanted {
            return Some(value);
        }
    }
    None
}

fn put_element(body: &mut Body<'_>, element: &Element) {
    const KEY: u16 = 1;
    const KEY_END: u16 = 10;
    body.nest(ENTRY, |body| {
        body.nest(KEY, |body| body.bytes(VALUE, &element.first));
        body.nest(KEY_END, |body| body.bytes(VALUE, &element.last));
    });
}

fn kind(message: u16) -> u16 {
    (SUBSYSTEM << 8) | message
}

/// `struct nfgenmsg`: family, version, resource.
pub(super) fn general(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
