//! Transactions of nf_tables as bytes: the few messages and expressions the wall is made of.
//!
//! Names and numbers are those of `linux/netfilter/nf_tables.h`.

mod rule;

use super::netlink::{APPEND, Body, CREATE, EXCLUSIVE, Messages, Refused, next_attribute};
use std::{io, os::fd::BorrowedFd};

pub(super) use rule::{Family, Rule, Transport};

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
pub(super) const PREROUTING: u32 = 0;
/// See [`PREROUTING`].
pub(super) const INPUT: u32 = 1;
/// See [`PREROUTING`].
pub(super) const FORWARD: u32 = 2;
/// See [`PREROUTING`].
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
