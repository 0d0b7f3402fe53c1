//! Which rule decides on which ports, for one host.

use airlock_protocol::policy::Ports;

/// So many runs are put in their places one by one; more are sorted in.
const FEW: usize = 8;

/// Runs of ports that do not overlap, each with the first rule that speaks about it, in the order of the ports.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(Vec<(Ports, usize)>);

impl Claims {
    /// Gives `rule` those of its ports that no earlier rule has. Rules come in their order.
    pub(super) fn claim(&mut self, ports: &[Ports], rule: usize) {
        let taken: Vec<Ports> = ports.iter().flat_map(|run| self.within(*run)).map(|(run, _)| *run).collect();
        let free = without(ports, &taken);
        if free.len() > FEW {
            self.0.extend(free.into_iter().map(|run| (run, rule)));
            self.0.sort_by_key(|(run, _)| run.first);
            return;
        }
        for run in free {
            let place = self.0.partition_point(|(other, _)| other.first < run.first);
            self.0.insert(place, (run, rule));
        }
    }

    /// The runs that share a port with `run`.
    fn within(&self, run: Ports) -> &[(Ports, usize)] {
        let start = self.0.partition_point(|(other, _)| other.last < run.first);
        let end = self.0.partition_point(|(other, _)| other.first <= run.last);
        self.0.get(start..end).unwrap_or(&[])
    }

    /// The rule that decides about `port`.
    pub(super) fn at(&self, port: u16) -> Option<usize> {
        let after = self.0.partition_point(|(ports, _)| ports.first <= port);
        let (ports, rule) = self.0.get(after.checked_sub(1)?)?;
        ports.contains(port).then_some(*rule)
    }

    /// The rules that decide about some port.
    pub(super) fn rules(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(_, rule)| *rule)
    }
}

/// The deciding rule for each run of the ports `within`, if several claims speak about the same host.
pub(super) fn deciding(about: &[&Claims], within: &[Ports]) -> Vec<(Ports, usize)> {
    within.iter().flat_map(|run| deciding_in(about, *run)).collect()
}

fn deciding_in(about: &[&Claims], within: Ports) -> Vec<(Ports, usize)> {
    let parts = about.iter().flat_map(|claims| claims.within(within)).map(|(run, _)| *run);
    let mut borders: Vec<u32> = parts
        .flat_map(|run| [u32::from(run.first.max(within.first)), u32::from(run.last.min(within.last)) + 1])
        .collect();
    borders.sort_unstable();
    borders.dedup();
    let runs = borders.iter().zip(borders.iter().skip(1));
    runs.filter_map(|(first, after)| {
        let first = u16::try_from(*first).ok()?;
        let last = u16::try_from(after - 1).ok()?;
        let rule = about.iter().filter_map(|claims| claims.at(first)).min()?;
        Some((Ports { first, last }, rule))
    })
    .collect()
}

/// The same ports in order, runs that touch made one.
pub(crate) fn merged(mut ports: Vec<Ports>) -> Vec<Ports> {
    ports.retain(|run| run.first <= run.last);
    ports.sort_unstable_by_key(|run| run.first);
    let mut runs: Vec<Ports> = Vec::new();
    for run in ports {
        match runs.last_mut() {
            Some(before) if u32::from(run.first) <= u32::from(before.last) + 1 => {
                before.last = before.last.max(run.last);
            }
            _ => runs.push(run),
        }
    }
    runs
}

/// The ports of `all` that are not in `taken`.
pub(crate) fn without(all: &[Ports], taken: &[Ports]) -> Vec<Ports> {
    let mut taken = merged(taken.to_vec()).into_iter().peekable();
    let mut left = Vec::new();
    for run in merged(all.to_vec()) {
        let mut first = u32::from(run.first);
        while taken.next_if(|gap| gap.last < run.first).is_some() {}
        // A gap that reaches beyond this run may cut the next one too.
        while let Some(gap) = taken.peek().copied().filter(|gap| gap.first <= run.last) {
            keep(&mut left, first, u32::from(gap.first));
            first = u32::from(gap.last) + 1;
            if gap.last > run.last {
                break;
            }
            taken.next();
        }
        keep(&mut left, first, u32::from(run.last) + 1);
    }
    left
}

/// Adds the ports from `first` to before `end`, if there are any.
fn keep(left: &mut Vec<Ports>, first: u32, end: u32) {
    if let (Ok(first), Some(Ok(last))) = (u16::try_from(first), end.checked_sub(1).map(u16::try_from))
        && first <= last
    {
        left.push(Ports { first, last });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs() -> impl Strategy<Value = Vec<Ports>> {
        let edge = prop_oneof![0_u16..12, Just(u16::MAX - 1), Just(u16::MAX)];
        let run = (edge.clone(), edge).prop_map(|(a, b)| Ports { first: a.min(b), last: a.max(b) });
        prop::collection::vec(run, 0..6)
    }

    fn holds(runs: &[Ports], port: u16) -> bool {
        runs.iter().any(|run| run.contains(port))
    }

    fn is_normal(runs: &[Ports]) -> bool {
        runs.windows(2).all(|pair| u32::from(pair[0].last) + 1 < u32::from(pair[1].first))
    }

    proptest! {
        #[test]
        fn runs_are_joined_and_taken_away_port_by_port(all in runs(), taken in runs()) {
            let (joined, left) = (merged(all.clone()), without(&all, &taken));
            prop_assert!(is_normal(&joined) && is_normal(&left));
            for port in (0..14).chain([u16::MAX - 2, u16::MAX - 1, u16::MAX]) {
                prop_assert_eq!(holds(&joined, port), holds(&all, port));
                prop_assert_eq!(holds(&left, port), holds(&all, port) && !holds(&taken, port));
            }
        }
    }
}
