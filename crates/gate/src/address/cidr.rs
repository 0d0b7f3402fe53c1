//! A range of addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A network and the length of its prefix. No bit behind the prefix is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCidr {
    /// The part before the slash is no address.
    #[error("it is not an address")]
    Address,
    /// The part behind the slash is no length.
    #[error("the length of a prefix is a number from 0 to {0}")]
    Prefix(u8),
    /// Bits behind the prefix are set.
    #[error("bits behind the prefix are set; the range is {0}")]
    HostBits(Cidr),
    /// A v4-mapped range.
    #[error("IPv4 is written as IPv4")]
    Mapped,
}

impl Cidr {
    /// The range of `prefix` bits that holds `address`; more bits than there are count as all of them.
    pub fn holding(address: IpAddr, prefix: u8) -> Cidr {
        let prefix = prefix.min(width(address));
        Cidr { network: masked(address, prefix), prefix }
    }

    /// A range known when we are built: `network` has no bit set behind `prefix`.
    pub(super) const fn fixed(network: IpAddr, prefix: u8) -> Cidr {
        Cidr { network, prefix }
    }

    /// Its first address.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Bits that all its addresses share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` is in it. A v4-mapped address is not an IPv4 address here.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4() && masked(address, self.prefix) == self.network
    }

    /// Whether every address of `other` is in it.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.prefix <= other.prefix && self.contains(other.network)
    }

    /// Whether it is one address.
    pub fn is_single(&self) -> bool {
        self.prefix == width(self.network)
    }
}

impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Cidr {
        Cidr { network: address, prefix: width(address) }
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Cidr, BadCidr> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let bare = address
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'))
            .filter(|inner| inner.contains(':'));
        let address: IpAddr = bare.unwrap_or(address).parse().map_err(|_| BadCidr::Address)?;
        if address.to_canonical() != address {
            return Err(BadCidr::Mapped);
        }
        let Some(prefix) = prefix else { return Ok(address.into()) };
        let most = width(address);
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BadCidr::Prefix(most));
        }
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= most).ok_or(BadCidr::Prefix(most))?;
        let range = Cidr::holding(address, prefix);
        if range.network == address { Ok(range) } else { Err(BadCidr::HostBits(range)) }
    }
}

/// A single address is written without its prefix.
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_single() {
            true => self.network.fmt(f),
            false => write!(f, "{}/{}", self.network, self.prefix),
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_is_an_address_with_the_length_of_its_prefix() {
        let shown =
            |text: &str| text.parse::<Cidr>().map_or_else(|err| err.to_string(), |range| range.to_string());
        for (text, wanted) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("[2001:db8::]/32", "2001:db8::/32"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("10.0.0.1/8", "bits behind the prefix are set; the range is 10.0.0.0/8"),
            ("10.0.0.0/33", "the length of a prefix is a number from 0 to 32"),
            ("10.0.0.0/+8", "the length of a prefix is a number from 0 to 32"),
            ("2001:db8::/129", "the length of a prefix is a number from 0 to 128"),
            ("10.0/8", "it is not an address"),
            ("[10.0.0.0]/8", "it is not an address"),
            ("::ffff:10.0.0.0/104", "IPv4 is written as IPv4"),
        ] {
            assert_eq!(shown(text), wanted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_range_is_read_back_and_holds_what_it_was_made_of(bits in any::<u128>(), prefix in 0_u8..=128, v4 in any::<bool>()) {
            let v6 = Ipv6Addr::from_bits(bits | 1 << 127);
            let address = if v4 { IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits >> 96).unwrap())) } else { IpAddr::V6(v6) };
            let range = Cidr::holding(address, prefix);
            prop_assert!(range.contains(address));
            prop_assert!(range.covers(&address.into()));
            if prefix > 0 {
                prop_assert!(range.to_string().parse::<Cidr>().is_ok_and(|read| read == range));
            }
            prop_assert!(Cidr::holding(address, prefix.saturating_sub(1)).covers(&range));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-f:./]{0,40}") {
            if let Ok(range) = text.parse::<Cidr>() {
                prop_assert_eq!(range.to_string().parse::<Cidr>().unwrap(), range);
            }
        }
    }
}
