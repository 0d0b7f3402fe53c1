//! Which packages may be fetched: the table `[packages]`.

use airlock_protocol::policy::Packages;

/// Of several the strictest: the greatest age, every list and every registry.
pub(super) fn union<'p>(several: impl Iterator<Item = &'p Packages>) -> Packages {
    let mut all = Packages::default();
    for packages in several {
        all.min_age = all.min_age.max(packages.min_age);
        all.registries.extend(packages.registries.iter().cloned());
        all.allow.extend(packages.allow.iter().cloned());
        all.deny.extend(packages.deny.iter().cloned());
    }
    all.registries.sort();
    all.registries.dedup();
    all
}
