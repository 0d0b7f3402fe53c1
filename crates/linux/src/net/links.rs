//! The only device, its addresses and the default routes: one transaction with the kernel's routing.
//!
//! The device is `lo`, and the whole world is local: a default route of that kind brings every packet to the rules.
//! What they do not catch goes nowhere, because there is no other device. IPv6 knows a default route over `lo` only as
//! a local one (net/ipv6/route.c, `fib6_is_reject`); with any other one for IPv4 the kernel sends no ICMP errors, and a
//! refused packet could be told only to the call that sent it.

use super::{
    netlink::{self, CREATE, EXCLUSIVE, Messages, Protocol, Refused},
    seat::{During as _, Error, OUTSIDE_V6, OWN_V4, OWN_V6},
};
use std::os::fd::AsFd;

// linux/rtnetlink.h, linux/if_addr.h, linux/if_link.h
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const MAKE: u16 = CREATE | EXCLUSIVE;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const OUT_DEVICE: u16 = 4;
const PREFERRED_SOURCE: u16 = 7;
const NO_DUPLICATE_DETECTION: u8 = 0x02;
const TABLE_LOCAL: u8 = 255;
const PROTOCOL_BOOT: u8 = 3;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_HOST: u8 = 254;
const TO_LOCAL: u8 = 2;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// `lo` is the first device of every network namespace (include/net/net_namespace.h, `LOOPBACK_IFINDEX`).
const LO: u32 = 1;
const UP: u32 = 1;
/// All of 198.18.0.0/24 is the seat's: no name gets an address there.
const OWN_V4_BITS: u8 = 24;

const ADDRESS_V6: &str = "give the sandbox its IPv6 address";

/// Which addresses the host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4 only.
    V4,
    /// IPv4 and IPv6.
    Both,
}

/// Brings `lo` up with its addresses and routes. Gives back the families that have some: IPv6 may be known and
/// switched off.
pub(super) fn set_up(families: Families) -> Result<Families, Error> {
    let socket = netlink::socket(Protocol::Route).during("open a netlink socket for devices")?;
    let mut messages = messages(families);
    let last = messages.ask_for_answer();
    match messages.send(socket.as_fd(), last) {
        Ok(()) => Ok(families),
        // The messages for IPv4 come first, and were done.
        Err(Refused { purpose: ADDRESS_V6, source }) if source.raw_os_error() == Some(libc::EACCES) => {
            Ok(Families::V4)
        }
        Err(refused) => Err(refused.into()),
    }
}

fn messages(families: Families) -> Messages {
    let mut messages = Messages::new();
    messages.add("bring up the loopback device", (NEW_LINK, 0), &link_up(), |_| {});
    address(&mut messages, IPV4, OWN_V4_BITS, &OWN_V4.octets());
    route(&mut messages, IPV4, &OWN_V4.octets());
    if families == Families::Both {
        address(&mut messages, IPV6, 128, &OWN_V6.octets());
        address(&mut messages, IPV6, 128, &OUTSIDE_V6.octets());
        route(&mut messages, IPV6, &OWN_V6.octets());
    }
    messages
}

/// `struct ifinfomsg`: family and pad, type, index, flags, change mask.
fn link_up() -> Vec<u8> {
    [[0; 4], LO.to_ne_bytes(), UP.to_ne_bytes(), UP.to_ne_bytes()].concat()
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
fn address(messages: &mut Messages, family: u8, bits: u8, address: &[u8]) {
    let [a, b, c, d] = LO.to_ne_bytes();
    let fixed = [family, bits, NO_DUPLICATE_DETECTION, SCOPE_UNIVERSE, a, b, c, d];
    let purpose = if family == IPV6 { ADDRESS_V6 } else { "give the sandbox its address" };
    messages.add(purpose, (NEW_ADDRESS, MAKE), &fixed, |body| {
        body.bytes(LOCAL, address);
        body.bytes(ADDRESS, address);
    });
}

/// `struct rtmsg`: family, destination and source lengths, tos, table, protocol, scope, type, flags.
fn route(messages: &mut Messages, family: u8, source: &[u8]) {
    let scope = if family == IPV4 { SCOPE_HOST } else { SCOPE_UNIVERSE };
    let fixed = [family, 0, 0, 0, TABLE_LOCAL, PROTOCOL_BOOT, scope, TO_LOCAL, 0, 0, 0, 0];
    messages.add("make the default route", (NEW_ROUTE, MAKE), &fixed, |body| {
        body.bytes(OUT_DEVICE, &LO.to_ne_bytes());
        body.bytes(PREFERRED_SOURCE, source);
    });
}
