//! The addresses that stand for names inside one sandbox.
//!
//! A program inside never sees a real address of a name: it sees one of 198.18.1.0 to 198.19.255.255 (a range that no
//! network uses, RFC 2544), and a connection to it is a connection to the name. A name keeps its address while the
//! sandbox lives, and an address that was never given out stands for nothing.

use airlock_gate::host::HostName;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use thiserror::Error;

/// First and last address that is given out.
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
const LAST: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 255);

/// Bounds of [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Names in all.
    pub names: usize,
    /// Names that hang on one wildcard rule. Each is a label the program chose and, once dialled, a question to the
    /// host's name server: this bounds what can be told by it.
    pub labels: usize,
}

/// Which name stands behind which address.
#[derive(Debug)]
pub struct Names {
    bounds: Bounds,
    by_name: HashMap<HostName, Given>,
    by_address: HashMap<Ipv4Addr, HostName>,
    /// How many names hang on each wildcard rule.
    labels: HashMap<usize, usize>,
    next: u32,
}

/// What a name was given.
#[derive(Debug, Clone, Copy)]
struct Given {
    address: Ipv4Addr,
    wildcard: Option<usize>,
}

/// No address for one more name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Full {
    /// The sandbox has asked for too many names.
    #[error("this sandbox has already asked for {0} names, the most there may be")]
    Names(usize),
    /// Too many names hang on one wildcard.
    #[error("{0} names under this wildcard have already been asked for, the most there may be")]
    Labels(usize),
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { names: 4096, labels: 256 }
    }
}

impl Bounds {
    /// With another budget for wildcards, where one is given.
    pub(crate) fn with_labels(labels: Option<u16>) -> Bounds {
        let usual = Bounds::default();
        Bounds { labels: labels.map_or(usual.labels, usize::from), ..usual }
    }
}

impl Names {
    /// No names yet.
    pub fn new(bounds: Bounds) -> Names {
        Names {
            bounds,
            by_name: HashMap::new(),
            by_address: HashMap::new(),
            labels: HashMap::new(),
            next: FIRST.to_bits(),
        }
    }

    /// The address of `name`, given now if it has none; `wildcard` is the rule it hangs on, if it hangs on one.
    pub fn give(&mut self, name: &HostName, wildcard: Option<usize>) -> Result<Ipv4Addr, Full> {
        if let Some(given) = self.by_name.get(name) {
            return Ok(given.address);
        }
        self.room(wildcard)?;
        let address = self.fresh().ok_or(Full::Names(self.by_name.len()))?;
        if let Some(rule) = wildcard {
            let labels = self.labels.entry(rule).or_default();
            *labels = labels.saturating_add(1);
        }
        self.by_name.insert(name.clone(), Given { address, wildcard });
        self.by_address.insert(address, name.clone());
        Ok(address)
    }

    /// Whether there is an address for one more name that hangs on `wildcard`.
    pub fn room(&self, wildcard: Option<usize>) -> Result<(), Full> {
        if self.by_name.len() >= self.bounds.names {
            return Err(Full::Names(self.bounds.names));
        }
        let labels = wildcard.and_then(|rule| self.labels.get(&rule)).copied().unwrap_or_default();
        if labels >= self.bounds.labels && wildcard.is_some() {
            Err(Full::Labels(self.bounds.labels))
        } else {
            Ok(())
        }
    }

    /// Counts anew what hangs on which wildcard, after the rules have changed. Names already given stay.
    pub fn recount(&mut self, wildcard_of: impl Fn(&HostName) -> Option<usize>) {
        self.labels.clear();
        for (name, given) in &mut self.by_name {
            given.wildcard = wildcard_of(name);
            if let Some(rule) = given.wildcard {
                let labels = self.labels.entry(rule).or_default();
                *labels = labels.saturating_add(1);
            }
        }
    }

    /// The name behind `address`.
    pub fn name(&self, address: IpAddr) -> Option<&HostName> {
        match address.to_canonical() {
            IpAddr::V4(address) => self.by_address.get(&address),
            IpAddr::V6(_) => None,
        }
    }

    /// The address of `name`, where it has one.
    pub fn address(&self, name: &HostName) -> Option<Ipv4Addr> {
        self.by_name.get(name).map(|given| given.address)
    }

    /// Every name and its address, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&HostName, Ipv4Addr)> {
        self.by_name.iter().map(|(name, given)| (name, given.address))
    }

    /// Whether `address` is one that names are given, whether or not this one was.
    pub fn is_synthetic(address: IpAddr) -> bool {
        matches!(address.to_canonical(), IpAddr::V4(address) if (FIRST..=LAST).contains(&address))
    }

    /// The next address that no program takes for a network's own or for everyone's.
    fn fresh(&mut self) -> Option<Ipv4Addr> {
        loop {
            let address = Ipv4Addr::from_bits(self.next);
            if address > LAST {
                return None;
            }
            self.next = self.next.saturating_add(1);
            if !matches!(address.octets(), [.., 0 | 255]) {
                return Some(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_keeps_its_address_and_the_address_leads_back() {
        let mut names = Names::new(Bounds::default());

        let first = names.give(&name("api.example.com"), None).unwrap();
        let second = names.give(&name("www.example.com"), Some(3)).unwrap();

        assert_eq!((first, second), ("198.18.1.1".parse().unwrap(), "198.18.1.2".parse().unwrap()));
        assert_eq!(names.give(&name("API.example.com."), None).unwrap(), first);
        assert_eq!(names.name(first.into()), Some(&name("api.example.com")));
        assert_eq!(names.name("::ffff:198.18.1.2".parse().unwrap()), Some(&name("www.example.com")));
        assert_eq!(names.name("198.18.1.3".parse().unwrap()), None);
        assert_eq!(names.address(&name("other.example.com")), None);
    }

    #[test]
    fn a_wildcard_has_a_budget_of_names_and_other_rules_have_their_own() {
        let mut names = Names::new(Bounds { names: 100, labels: 2 });
        let first = names.give(&name("a.example.com"), Some(0)).unwrap();
        names.give(&name("b.example.com"), Some(0)).unwrap();

        assert_eq!(names.give(&name("c.example.com"), Some(0)), Err(Full::Labels(2)));
        assert_eq!(names.give(&name("a.example.com"), Some(0)), Ok(first));
        assert!(names.give(&name("c.example.org"), Some(1)).is_ok());
        assert!(names.give(&name("exact.example.com"), None).is_ok());
    }

    #[test]
    fn after_a_change_of_rules_the_budget_counts_by_the_new_ones() {
        let mut names = Names::new(Bounds { names: 100, labels: 2 });
        names.give(&name("a.example.com"), Some(0)).unwrap();
        names.give(&name("b.example.com"), Some(0)).unwrap();

        names.recount(|name| (name.as_str() != "a.example.com").then_some(7));

        assert!(names.give(&name("c.example.com"), Some(7)).is_ok());
        assert_eq!(names.give(&name("d.example.com"), Some(7)), Err(Full::Labels(2)));
        assert!(names.give(&name("d.example.com"), Some(0)).is_ok());
    }

    #[test]
    fn there_is_an_end_to_names() {
        let mut names = Names::new(Bounds { names: 600, labels: 256 });
        for number in 0..600 {
            names.give(&name(&format!("n{number}.example")), None).unwrap();
        }
        assert_eq!(names.give(&name("one.more.example"), None), Err(Full::Names(600)));
    }

    proptest! {
        #[test]
        fn addresses_and_names_are_one_to_one_and_stay_in_their_range(labels in prop::collection::vec("[a-z]{1,3}", 1..400)) {
            let mut names = Names::new(Bounds { names: 4096, labels: 50 });
            for label in &labels {
                let name = name(&format!("{label}.example.com"));
                let wildcard = (label.len() > 1).then_some(label.len());
                if let Ok(address) = names.give(&name, wildcard) {
                    prop_assert_eq!(names.name(address.into()), Some(&name));
                    prop_assert!(Names::is_synthetic(address.into()));
                    prop_assert!(!matches!(address.octets(), [.., 0 | 255]));
                }
            }
            let mut addresses: Vec<_> = names.iter().map(|(_, address)| address).collect();
            let count = addresses.len();
            addresses.sort();
            addresses.dedup();
            prop_assert_eq!(addresses.len(), count);
        }
    }
}
