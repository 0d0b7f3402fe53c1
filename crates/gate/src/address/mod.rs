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
        // RFC 6052, 2.2: with a prefix of 48 bits the address stands around the octet at bit 64, with 96 at the end. The other
        // place is empty then.
        [0x64, 0xff9b, 1, high, low, next, ..] => {
            let [_, third] = low.to_be_bytes();
            let [fourth, _] = next.to_be_bytes();
            let first = at(high, u16::from_be_bytes([third, fourth]));
            let (first, last) = match (first.is_unspecified(), last.is_unspecified()) {
                (true, _) => (last, last),
                (_, true) => (first, first),
                _ => (first, last),
            };
            (Special::Nat64, [first, last])
        }
        [0x2001, 0, ..] => (Special::Teredo, [at(s[2], s[3]), at(!s[6], !s[7])]),
        [0x2002, high, low, ..] => (Special::SixToFour, [at(high, low); 2]),
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => (Special::Isatap, [last; 2]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(address: &str) -> &'static str {
        special(address.parse().unwrap()).map_or("plain", Special::word)
    }

    #[test]
    fn plain_hosts_of_the_internet_are_not_special() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2600:1f18::1",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "3ffd::1",
        ] {
            assert_eq!(word(address), "plain", "{address}");
        }
    }

    #[test]
    fn the_registries_are_known_from_their_first_to_their_last_address() {
        for (word_of, first, last) in [
            ("unspecified", "0.0.0.0", "0.255.255.255"),
            ("private", "10.0.0.0", "10.255.255.255"),
            ("shared", "100.64.0.0", "100.127.255.255"),
            ("loopback", "127.0.0.0", "127.255.255.255"),
            ("link-local", "169.254.0.0", "169.254.255.255"),
            ("private", "172.16.0.0", "172.31.255.255"),
            ("protocol", "192.0.0.0", "192.0.0.255"),
            ("documentation", "192.0.2.0", "192.0.2.255"),
            ("6to4", "192.88.99.0", "192.88.99.255"),
            ("private", "192.168.0.0", "192.168.255.255"),
            ("sandbox", "198.18.0.0", "198.19.255.255"),
            ("documentation", "198.51.100.0", "203.0.113.255"),
            ("multicast", "224.0.0.0", "239.255.255.255"),
            ("reserved", "240.0.0.0", "255.255.255.254"),
            ("broadcast", "255.255.255.255", "255.255.255.255"),
            ("unspecified", "::", "::"),
            ("loopback", "::1", "::1"),
            ("reserved", "100::", "100::ffff:ffff:ffff:ffff"),
            ("benchmarking", "2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff"),
            ("protocol", "2001:10::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("documentation", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("documentation", "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("protocol", "5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("unique-local", "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("sandbox", "fd61:6972:6c6f:636b::1", "fd61:6972:6c6f:636b:ffff:ffff:ffff:ffff"),
            ("link-local", "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("site-local", "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("multicast", "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("reserved", "1::", "4000::"),
            ("reserved", "8000::", "e000::"),
        ] {
            assert_eq!((word(first), word(last)), (word_of, word_of), "{first} {last}");
        }
    }

    #[test]
    fn clouds_credentials_are_metadata_and_never_dialled() {
        for address in [
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
        ] {
            assert_eq!(word(address), "metadata", "{address}");
        }
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(special(address.parse().unwrap()).is_some_and(Special::is_never), "{address}");
        }
    }

    #[test]
    fn an_address_within_an_address_is_found() {
        for (address, wanted) in [
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:8.8.8.8", "mapped"),
            ("::ffff:10.0.0.1", "mapped"),
            ("::127.0.0.1", "loopback"),
            ("::8.8.8.8", "mapped"),
            ("::ffff:0:127.0.0.1", "loopback"),
            ("64:ff9b::7f00:1", "loopback"),
            ("64:ff9b::808:808", "nat64"),
            ("64:ff9b:1:7f00:0:100::", "loopback"),
            ("64:ff9b:1::7f00:1", "loopback"),
            ("64:ff9b:1::808:808", "nat64"),
            ("64:ff9b:1:808:8:800::", "nat64"),
            ("64:ff9b:1::", "unspecified"),
            ("2002:7f00:1::", "loopback"),
            ("2002:808:808::1", "6to4"),
            ("2001:0:808:808::f7f7:f7f7", "teredo"),
            ("2001:0:808:808::80ff:fffe", "loopback"),
            ("2001:0:7f00:1::f7f7:f7f7", "loopback"),
            ("2600::5efe:7f00:1", "loopback"),
            ("2600::200:5efe:808:808", "isatap"),
        ] {
            assert_eq!(word(address), wanted, "{address}");
        }
    }

    #[test]
    fn a_rule_opens_the_private_ranges_it_names_and_nothing_that_is_never_opened() {
        let open: Vec<Cidr> = ["10.20.0.0/16", "100.64.0.0/10", "64:ff9b::/96", "::ffff:0:0/96"]
            .iter()
            .filter_map(|text| text.parse().ok())
            .chain([Cidr::holding("::ffff:0:0".parse().unwrap(), 96)])
            .collect();
        let checked = |address: &str| check(address.parse().unwrap(), &open).map_err(Special::word);
        assert_eq!(checked("8.8.8.8"), Ok(()));
        assert_eq!(checked("10.20.1.1"), Ok(()));
        assert_eq!(checked("10.21.1.1"), Err("private"));
        assert_eq!(checked("100.100.100.200"), Err("metadata"));
        assert_eq!(checked("64:ff9b::808:808"), Ok(()));
        assert_eq!(checked("64:ff9b::a14:101"), Ok(()));
        assert_eq!(checked("64:ff9b::a15:101"), Err("private"));
        assert_eq!(checked("::ffff:127.0.0.1"), Err("loopback"));
        let all = ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        for address in [
            "127.0.0.1",
            "169.254.1.1",
            "198.18.0.1",
            "::1",
            "fe80::1",
            "64:ff9b::7f00:1",
            "fd00:ec2::254",
            "0.0.0.0",
            "224.0.0.1",
        ] {
            assert!(check(address.parse().unwrap(), &all).is_err(), "{address}");
        }
    }

    proptest! {
        #[test]
        fn a_range_that_is_never_dialled_stays_so_in_every_form(last in any::<[u8; 3]>(), site in any::<u16>()) {
            let [b, c, d] = last;
            let inner = Ipv4Addr::new(127, b, c, d);
            let [high, low] = [u16::from_be_bytes([127, b]), u16::from_be_bytes([c, d])];
            for form in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, site, 1, 2, 3, 4),
                Ipv6Addr::new(0x2001, 0, 0x808, 0x808, site, site, !high, !low),
                Ipv6Addr::new(0x2600, site, 1, 2, 0x200, 0x5efe, high, low),
            ] {
                prop_assert_eq!(special(IpAddr::V6(form)), Some(Special::Loopback));
            }
        }

        #[test]
        fn only_global_unicast_is_plain(bits in any::<u128>()) {
            let address = Ipv6Addr::from_bits(bits);
            if special(IpAddr::V6(address)).is_none() {
                prop_assert_eq!(bits >> 125, 1);
            }
        }
    }
}
