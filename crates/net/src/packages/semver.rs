//! The order of versions, as semver.org has it. Pure.

use std::cmp::Ordering;

/// The greatest that is no pre-release; the greatest of those where there is nothing else.
pub(super) fn greatest<'v>(versions: impl Iterator<Item = &'v str> + Clone) -> Option<&'v str> {
    let finished = versions.clone().filter(|version| pre_release(version).is_none());
    finished.max_by(|a, b| compare(a, b)).or_else(|| versions.max_by(|a, b| compare(a, b)))
}

/// By numbers first; a pre-release is less than what it goes before. What is no version is least.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let by_numbers = numbers(a).cmp(&numbers(b));
    by_numbers.then_with(|| match (pre_release(a), pre_release(b)) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.split('.').map(Part::of).cmp(b.split('.').map(Part::of)),
    })
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'t> {
    Number(u64),
    Text(&'t str),
}

impl Part<'_> {
    fn of(text: &str) -> Part<'_> {
        text.parse().map_or(Part::Text(text), Part::Number)
    }
}

fn without_build(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

fn pre_release(version: &str) -> Option<&str> {
    without_build(version).split_once('-').map(|(_, pre)| pre)
}

fn numbers(version: &str) -> Option<[u64; 3]> {
    let bare = without_build(version).split('-').next()?;
    let mut parts = bare.strip_prefix('v').unwrap_or(bare).split('.').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_are_ordered_as_the_standard_says() {
        let order = [
            "nonsense",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.9.0",
            "1.10.0",
            "2.0.0",
        ];
        for pair in order.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(greatest(order.into_iter().chain(["v3.0.0-rc.1"])), Some("2.0.0"));
        assert_eq!(greatest(["1.0.0-a", "1.0.0-b"].into_iter()), Some("1.0.0-b"));
        assert_eq!(greatest(std::iter::empty()), None);
    }

    proptest! {
        #[test]
        fn the_order_is_one(a in "[0-9v.a+-]{0,8}", b in "[0-9v.a+-]{0,8}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        }
    }
}
