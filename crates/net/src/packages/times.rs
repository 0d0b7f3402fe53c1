//! What is known of versions: bounded, the oldest knowledge goes first.

use super::rules::Package;
use std::collections::{HashMap, VecDeque};

/// Most versions that are remembered.
const MOST: usize = 200_000;

/// Since when versions are public.
#[derive(Debug, Default)]
pub(crate) struct Times {
    known: HashMap<Package, HashMap<String, u64>>,
    order: VecDeque<Package>,
    count: usize,
}

impl Times {
    /// What an index told of a package; it replaces what was known.
    pub(crate) fn learn(&mut self, package: &Package, told: impl Iterator<Item = (String, u64)>) {
        let told: HashMap<String, u64> = told.take(MOST).collect();
        self.count += told.len();
        match self.known.insert(package.clone(), told) {
            Some(old) => self.count = self.count.saturating_sub(old.len()),
            None => self.order.push_back(package.clone()),
        }
        self.forget();
    }

    /// What was told of one version.
    pub(crate) fn learn_one(&mut self, package: &Package, version: &str, since: u64) {
        let versions = self.known.entry(package.clone()).or_insert_with(|| {
            self.order.push_back(package.clone());
            HashMap::new()
        });
        if versions.insert(version.to_owned(), since).is_none() {
            self.count += 1;
        }
        self.forget();
    }

    /// Since when it is public, where that was told.
    pub(crate) fn since(&self, package: &Package, version: &str) -> Option<u64> {
        self.known.get(package)?.get(version).copied()
    }

    fn forget(&mut self) {
        while self.count > MOST && self.order.len() > 1 {
            let oldest = self.order.pop_front().and_then(|package| self.known.remove(&package));
            self.count = self.count.saturating_sub(oldest.map_or(0, |versions| versions.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::policy::RegistryKind;

    #[test]
    fn what_was_told_is_known_and_memory_is_bounded() {
        let package = |number: usize| Package { kind: RegistryKind::Npm, name: number.to_string() };
        let mut times = Times::default();
        for number in 0..220 {
            times.learn(&package(number), (0..1000).map(|version| (version.to_string(), 7)));
            times.learn_one(&package(number), "x", 8);
        }

        assert_eq!(times.since(&package(219), "999"), Some(7));
        assert_eq!(times.since(&package(219), "x"), Some(8));
        assert_eq!(times.since(&package(0), "1"), None);
        assert!(times.count <= MOST && times.order.len() == times.known.len());
    }
}
