//! Addresses that are not plain hosts of the internet, and ranges of addresses.
//!
//! [`special`] knows the special-purpose registries of IANA for IPv4 and IPv6 (RFC 6890 and its successors), the places where clouds
//! keep credentials, and every form in which an IPv6 address carries an IPv4 one. [`check`] is what a dialler asks before it dials.

mod cidr;

pub use cidr::{BadCidr, Cidr};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is special about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// Where a cloud hands out credentials.
    Metadata,
    /// `127.0.0.0/8`, `::1`.
    Loopback,
    /// `169.254.0.0/16`, `fe80::/10`.
    LinkLocal,
    /// `0.0.0.0/8`, `::`.
    Unspecified,
    /// `224.0.0.0/4`, `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// `198.18.0.0/15` (benchmarking, RFC 2544) and the prefix of the sandboxes: they stand for names inside.
    Own,
    /// `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`.
    Private,
    /// `100.64.0.0/10`: addresses of a carrier or of an overlay network.
    Shared,
    /// `fc00::/7`.
    UniqueLocal,
    /// `fec0::/10`, deprecated.
    SiteLocal,
    /// Examples in documents.
    Documentation,
    /// Measuring (`2001:2::/48`).
    Benchmarking,
    /// Assigned to protocols, not to hosts.
    Protocol,
    /// Not assigned to anything that could be dialled.
    Reserved,
    /// An IPv4 address inside an IPv6 one: mapped, compatible or translated.
    Mapped,
    /// An IPv4 address behind NAT64.
    Nat64,
    /// An IPv4 address in a 6to4 prefix.
    SixToFour,
    /// Teredo.
    Teredo,
    /// An IPv4 address in an ISATAP interface identifier.
    Isatap,
}

/// What is special about `address`; none for a plain host of the internet. An IPv6 address that carries an IPv4 address which is
/// never dialled is of that kind.
pub fn special(address: IpAddr) -> Option<Special> {
    match address {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

/// Whether `address` may be dialled by a rule that opens `private`: a plain host of the internet may, an address that is never dialled
/// may not, any other special address only if `private` holds it, and likewise the IPv4 address that it carries.
pub fn check(address: IpAddr, private: &[Cidr]) -> Result<(), Special> {
    let opened = |address| private.iter().any(|range| range.contains(address));
    if let Some(kind) = special(address)
        && (kind.is_never() || !opened(address))
    {
        return Err(kind);
    }
    let IpAddr::V6(v6) = address else { return Ok(()) };
    for inner in carried(v6).into_iter().flat_map(|(_, inner)| inner) {
        if let Some(kind) = special_v4(inner)
            && !opened(IpAddr::V4(inner))
        {
            return Err(kind);
        }
    }
    Ok(())
}

/// What is special about every address of `range`, where all of them are special in one way. An address of the range may be more
/// special still (a cloud's metadata in `100.64.0.0/10`).
pub fn special_range(range: &Cidr) -> Option<Special> {
    RANGES.iter().find(|(cover, _)| cover.covers(range)).map(|(_, kind)| *kind)
}

impl Special {
    /// In a word that stays.
    pub fn word(self) -> &'static str {
        match self {
            Special::Metadata => "metadata",
            Special::Loopback => "loopback",
            Special::LinkLocal => "link-local",
            Special::Unspecified => "unspecified",
            Special::Multicast => "multicast",
            Special::Broadcast => "broadcast",
            Special::Own => "sandbox",
            Special::Private => "private",
            Special::Shared => "shared",
            Special::UniqueLocal => "unique-local",
            Special::SiteLocal => "site-local",
            Special::Documentation => "documentation",
            Special::Benchmarking => "benchmarking",
            Special::Protocol => "protocol",
            Special::Reserved => "reserved",
            Special::Mapped => "mapped",
            Special::Nat64 => "nat64",
            Special::SixToFour => "6to4",
            Special::Teredo => "teredo",
            Special::Isatap => "isatap",
        }
    }

    /// Whether no rule can open it.
    pub fn is_never(self) -> bool {
        matches!(
            self,
            Special::Metadata
                | Special::Loopback
                | Special::LinkLocal
                | Special::Unspecified
                | Special::Multicast
                | Special::Broadcast
                | Special::Own
        )
    }
}

/// Where clouds keep credentials, outside of the link-local range, which is closed as a whole.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba Cloud
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle Cloud, first generation
    Ipv4Addr::new(168, 63, 129, 16),   // Azure
];

const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // AWS, EKS pods
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google Cloud
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // Oracle Cloud
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
];

const fn v4(a: u8, b: u8, c: u8, prefix: u8) -> Cidr {
    Cidr::fixed(IpAddr::V4(Ipv4Addr::new(a, b, c, 0)), prefix)
}

const fn v6(head: [u16; 4], prefix: u8) -> Cidr {
    let [a, b, c, d] = head;
    Cidr::fixed(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)), prefix)
}

/// The registries, a narrow range before the wide one that holds it.
/// <https://www.iana.org/assignments/iana-ipv4-special-registry>, <https://www.iana.org/assignments/iana-ipv6-special-registry>.
const RANGES: [(Cidr, Special); 44] = [
    (v4(0, 0, 0, 8), Special::Unspecified),
    (v4(10, 0, 0, 8), Special::Private),
    (v4(100, 64, 0, 10), Special::Shared),
    (v4(127, 0, 0, 8), Special::Loopback),
    (v4(169, 254, 0, 16), Special::LinkLocal),
    (v4(172, 16, 0, 12), Special::Private),
    (v4(192, 0, 0, 24), Special::Protocol),
    (v4(192, 0, 2, 24), Special::Documentation),
    (v4(192, 31, 196, 24), Special::Protocol),
    (v4(192, 52, 193, 24), Special::Protocol),
    (v4(192, 88, 99, 24), Special::SixToFour),
    (v4(192, 168, 0, 16), Special::Private),
    (v4(192, 175, 48, 24), Special::Protocol),
    (v4(198, 18, 0, 15), Special::Own),
    (v4(198, 51, 100, 24), Special::Documentation),
    (v4(203, 0, 113, 24), Special::Documentation),
    (v4(233, 252, 0, 24), Special::Multicast),
    (v4(224, 0, 0, 4), Special::Multicast),
    (Cidr::fixed(IpAddr::V4(Ipv4Addr::BROADCAST), 32), Special::Broadcast),
    (v4(240, 0, 0, 4), Special::Reserved),
    (Cidr::fixed(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128), Special::Unspecified),
    (Cidr::fixed(IpAddr::V6(Ipv6Addr::LOCALHOST), 128), Special::Loopback),
    (Cidr::fixed(IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0)), 96), Special::Mapped),
    (Cidr::fixed(IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0)), 96), Special::Mapped),
    (v6([0, 0, 0, 0], 96), Special::Mapped),
    (v6([0x64, 0xff9b, 0, 0], 96), Special::Nat64),
    (v6([0x64, 0xff9b, 1, 0], 48), Special::Nat64),
    (v6([0x100, 0, 0, 0], 64), Special::Reserved),
    (v6([0x100, 0, 0, 1], 64), Special::Reserved),
    (v6([0x2001, 0, 0, 0], 32), Special::Teredo),
    (v6([0x2001, 2, 0, 0], 48), Special::Benchmarking),
    (v6([0x2001, 0, 0, 0], 23), Special::Protocol),
    (v6([0x2001, 0xdb8, 0, 0], 32), Special::Documentation),
    (v6([0x2002, 0, 0, 0], 16), Special::SixToFour),
    (v6([0x2620, 0x4f, 0x8000, 0], 48), Special::Protocol),
    (v6([0x3fff, 0, 0, 0], 20), Special::Documentation),
    (v6([0x3ffe, 0, 0, 0], 16), Special::Reserved),
    (v6([0x5f00, 0, 0, 0], 16), Special::Protocol),
    // The sandboxes' own prefix (`airlock-linux`, `net::seat`).
    (v6([0xfd61, 0x6972, 0x6c6f, 0x636b], 64), Special::Own),
    (v6([0xfc00, 0, 0, 0], 7), Special::UniqueLocal),
    (v6([0xfe80, 0, 0, 0], 10), Special::LinkLocal),
    (v6([0xfec0, 0, 0, 0], 10), Special::SiteLocal),
    (v6([0xff00, 0, 0, 0], 8), Special::Multicast),
    (v6([0x4000, 0, 0, 0], 2), Special::Reserved),
];

fn special_v4(address: Ipv4Addr) -> Option<Special> {
    if METADATA_V4.contains(&address) {
        return Some(Special::Metadata);
    }
    registered(IpAddr::V4(address))
}

fn special_v6(address: Ipv6Addr) -> Option<Special> {
    if METADATA_V6.contains(&address) {
        return Some(Special::Metadata);
    }
    let plain = registered(IpAddr::V6(address));
    if let Some(kind) = plain
        && kind.is_never()
    {
        return Some(kind);
    }
    if let Some((form, inner)) = carried(address) {
        let never = inner.into_iter().filter_map(special_v4).find(|kind| kind.is_never());
        return Some(never.unwrap_or(form));
    }
    // Only 2000::/3 is given out as global unicast (RFC 4291, 2.4).
    plain.or((address.segments()[0] & 0xe000 != 0x2000).then_some(Special::Reserved))
}

fn registered(address: IpAddr) -> Option<Special> {
    RANGES.iter().find(|(range, _)| range.contains(address)).map(|(_, kind)| *kind)
}

/// The IPv4 addresses that an IPv6 address carries, and in which form. Where a form has two places, both count.
fn carried(address: Ipv6Addr) -> Option<(Special, [Ipv4Addr; 2])> {
    let s = address.segments();
    let at = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    let last = at(s[6], s[7]);
    Some(match s {
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => (Special::Mapped, [last; 2]),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => (Special::Nat64, [last; 2]),
        // RFC 6052, 2.2: with a prefix of 48 bits the address stands around the octet at bit 64, with 96 at the end.
        [0x64, 0xff9b, 1, high, low, next, ..] => {
            let [_, third] = low.to_be_bytes();
            let [fourth, _] = next.to_be_bytes();
            (Special::Nat64, [at(high, u16::from_be_bytes([third, fourth])), last])
        }
        [0x2001, 0, ..] => (Special::Teredo, [at(s[2], s[3]), at(!s[6], !s[7])]),
        [0x2002, high, low, ..] => (Special::SixToFour, [at(high, low); 2]),
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => (Special::Isatap, [last; 2]),
        _ => return None,
    })
}
