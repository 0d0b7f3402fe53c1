//! Devices, addresses and routes: one transaction with the kernel's routing.
//!
//! The device of a sandbox is `lo`, and the whole world is local: a default route of that kind brings every packet to the
//! rules. What they do not catch goes nowhere, because there is no other device (but a machine's, see `machine`). IPv6
//! knows a default route over `lo` only as a local one (net/ipv6/route.c, `fib6_is_reject`); with any other one for IPv4 the
//! kernel sends no ICMP errors, and a refused packet could be told only to the call that sent it.

use super::{
    netlink::{self, Body, CREATE, EXCLUSIVE, Messages, Protocol, REPLACE, Refused},
    seat::{During as _, Error, OUTSIDE_V6, OWN_V4, OWN_V6},
};
use std::{
    net::{IpAddr, Ipv6Addr},
    os::fd::AsFd,
};

// linux/rtnetlink.h, linux/if_addr.h, linux/if_link.h, linux/neighbour.h
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_NEIGHBOUR: u16 = 28;
const MAKE: u16 = CREATE | EXCLUSIVE;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const TO: u16 = 1;
const OUT_DEVICE: u16 = 4;
const GATEWAY: u16 = 5;
const PREFERRED_SOURCE: u16 = 7;
const NO_DUPLICATE_DETECTION: u8 = 0x02;
const TABLE_MAIN: u8 = 254;
const TABLE_LOCAL: u8 = 255;
const PROTOCOL_BOOT: u8 = 3;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
const TO_ELSEWHERE: u8 = 1;
const TO_LOCAL: u8 = 2;
const ON_LINK: u32 = 4;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// `lo` is the first device of every network namespace (include/net/net_namespace.h, `LOOPBACK_IFINDEX`).
pub(super) const LO: u32 = 1;
const UP: u32 = 1;
const NO_ARP: u32 = 0x80;
/// All of 198.18.0.0/24 is the seat's: no name gets an address there.
const OWN_V4_BITS: u8 = 24;

const ADDRESS_V6: &str = "give the sandbox its IPv6 address";

/// Which addresses the host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv4 only.
    V4,
    /// IPv4 and IPv6.
    Both,
}

/// Where a default route to this host stands among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Behind those to other devices.
    Main,
    /// Before all others.
    Local,
}

/// A device that leads to one other, which is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cable {
    /// The device.
    pub(super) device: u32,
    /// Its hardware address.
    pub(super) own: [u8; 6],
    /// The other's.
    pub(super) other: [u8; 6],
    /// The longest packet.
    pub(super) longest: u32,
}

/// Brings `lo` up with its addresses and routes. Gives back the families that have some: IPv6 may be known and
/// switched off.
pub(super) fn set_up(families: Families) -> Result<Families, Error> {
    let mut messages = Messages::new();
    loopback(&mut messages);
    address(&mut messages, LO, OWN_V4.into(), OWN_V4_BITS);
    default_here(&mut messages, Table::Local, OWN_V4.into());
    if families == Families::Both {
        address(&mut messages, LO, OWN_V6.into(), 128);
        address(&mut messages, LO, OUTSIDE_V6.into(), 128);
        default_here(&mut messages, Table::Local, OWN_V6.into());
    }
    send(messages, families)
}

/// Sends what was put together, of which the part about IPv6 comes last.
pub(super) fn send(mut messages: Messages, families: Families) -> Result<Families, Error> {
    let socket = netlink::socket(Protocol::Route).during("open a netlink socket for devices")?;
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

/// Brings `lo` up.
pub(super) fn loopback(messages: &mut Messages) {
    link(messages, "bring up the loopback device", (LO, UP), |_| {});
}

/// Brings up a device that never asks who is at its other end.
pub(super) fn cable(messages: &mut Messages, cable: Cable) {
    const LONGEST: u16 = 4;
    link(messages, "set up the machine's device", (cable.device, 0), |body| {
        body.bytes(ADDRESS, &cable.own);
        body.bytes(LONGEST, &cable.longest.to_ne_bytes());
    });
    link(messages, "bring up the machine's device", (cable.device, UP | NO_ARP), |_| {});
}

/// `struct ifinfomsg`: family and pad, type, index, flags, change mask.
fn link(
    messages: &mut Messages,
    purpose: &'static str,
    (device, flags): (u32, u32),
    fill: impl FnOnce(&mut Body<'_>),
) {
    let fixed = [[0; 4], device.to_ne_bytes(), flags.to_ne_bytes(), flags.to_ne_bytes()].concat();
    messages.add(purpose, (NEW_LINK, 0), &fixed, fill);
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
pub(super) fn address(messages: &mut Messages, device: u32, own: IpAddr, bits: u8) {
    let [a, b, c, d] = device.to_ne_bytes();
    let fixed = [family(own), bits, NO_DUPLICATE_DETECTION, SCOPE_UNIVERSE, a, b, c, d];
    let purpose = if own.is_ipv6() { ADDRESS_V6 } else { "give the sandbox its address" };
    messages.add(purpose, (NEW_ADDRESS, MAKE), &fixed, |body| {
        put(body, LOCAL, own);
        put(body, ADDRESS, own);
    });
}

/// Whatever has no other route is for this host.
pub(super) fn default_here(messages: &mut Messages, table: Table, source: IpAddr) {
    let scope = if source.is_ipv4() { SCOPE_HOST } else { SCOPE_UNIVERSE };
    let table = if table == Table::Local { TABLE_LOCAL } else { TABLE_MAIN };
    route(messages, [family(source), 0, table, scope, TO_LOCAL], 0, |body| {
        body.bytes(OUT_DEVICE, &LO.to_ne_bytes());
        put(body, PREFERRED_SOURCE, source);
    });
}

/// Whatever has no other route goes to the other end of a device.
pub(super) fn default_through(messages: &mut Messages, device: u32, gateway: IpAddr) {
    route(messages, [family(gateway), 0, TABLE_MAIN, SCOPE_UNIVERSE, TO_ELSEWHERE], ON_LINK, |body| {
        body.bytes(OUT_DEVICE, &device.to_ne_bytes());
        put(body, GATEWAY, gateway);
    });
}

/// Who is at the other end of a device.
pub(super) fn through(messages: &mut Messages, device: u32, other: IpAddr) {
    let (bits, scope) = if other.is_ipv4() { (32, SCOPE_LINK) } else { (128, SCOPE_UNIVERSE) };
    route(messages, [family(other), bits, TABLE_MAIN, scope, TO_ELSEWHERE], 0, |body| {
        put(body, TO, other);
        body.bytes(OUT_DEVICE, &device.to_ne_bytes());
    });
}

/// An address of IPv6 is this host's from now on, not only when the kernel gets to it (net/ipv6/addrconf.c,
/// `addrconf_dad_work`).
pub(super) fn here(messages: &mut Messages, device: u32, own: Ipv6Addr) {
    route(messages, [IPV6, 128, TABLE_LOCAL, SCOPE_UNIVERSE, TO_LOCAL], 0, |body| {
        put(body, TO, own.into());
        body.bytes(OUT_DEVICE, &device.to_ne_bytes());
    });
}

/// `struct rtmsg`: family, destination and source lengths, tos, table, protocol, scope, type, flags.
fn route(
    messages: &mut Messages,
    [family, bits, table, scope, kind]: [u8; 5],
    flags: u32,
    fill: impl FnOnce(&mut Body<'_>),
) {
    let [a, b, c, d] = flags.to_ne_bytes();
    let fixed = [family, bits, 0, 0, table, PROTOCOL_BOOT, scope, kind, a, b, c, d];
    messages.add("make a route", (NEW_ROUTE, MAKE), &fixed, fill);
}

/// Who has an address at the other end. Nobody is asked.
///
/// `struct ndmsg`: family and pad, index, state, flags, type.
pub(super) fn neighbour(messages: &mut Messages, cable: Cable, at: IpAddr) {
    const PERMANENT: u16 = 0x80;
    const DESTINATION: u16 = 1;
    const HARDWARE: u16 = 2;
    let [low, high] = PERMANENT.to_ne_bytes();
    let fixed = [[family(at), 0, 0, 0], cable.device.to_ne_bytes(), [low, high, 0, 0]].concat();
    messages.add(
        "name the other end of the machine's device",
        (NEW_NEIGHBOUR, CREATE | REPLACE),
        &fixed,
        |body| {
            put(body, DESTINATION, at);
            body.bytes(HARDWARE, &cable.other);
        },
    );
}

fn family(of: IpAddr) -> u8 {
    if of.is_ipv4() { IPV4 } else { IPV6 }
}

fn put(body: &mut Body<'_>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => body.bytes(kind, &address.octets()),
        IpAddr::V6(address) => body.bytes(kind, &address.octets()),
    }
}
