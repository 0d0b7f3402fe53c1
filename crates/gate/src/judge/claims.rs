//! Which rule decides on which ports, for one host.

use airlock_protocol::policy::Ports;

/// Runs of ports that do not overlap, each with the first rule that speaks about it, in the order of the ports.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(Vec<(Ports, usize)>);

impl Claims {
    /// Gives `rule` the ports that no earlier rule has. Rules come in their order.
    pub(super) fn claim(&mut self, ports: Ports, rule: usize) {
        let taken: Vec<Ports> = self.0.iter().map(|(ports, _)| *ports).collect();
        let free = without(&[ports], &taken);
        self.0.extend(free.into_iter().map(|ports| (ports, rule)));
        self.0.sort_unstable_by_key(|(ports, _)| ports.first);
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

/// The deciding rule for each run of ports, if several claims speak about the same host.
pub(super) fn deciding(about: &[&Claims]) -> Vec<(Ports, usize)> {
    let all = about.iter().flat_map(|claims| claims.0.iter().map(|(ports, _)| *ports));
    let mut borders: Vec<u32> =
        all.flat_map(|ports| [u32::from(ports.first), u32::from(ports.last) + 1]).collect();
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
    let taken = merged(taken.to_vec());
    let mut left = Vec::new();
    for run in merged(all.to_vec()) {
        let mut first = u32::from(run.first);
        for gap in &taken {
            if gap.last < run.first || gap.first > run.last {
                continue;
            }
            if let (Ok(from), Some(to)) = (u16::try_from(first), gap.first.checked_sub(1))
                && from <= to
            {
                left.push(Ports { first: from, last: to });
            }
            first = u32::from(gap.last) + 1;
        }
        if let Ok(from) = u16::try_from(first)
            && from <= run.last
        {
            left.push(Ports { first: from, last: run.last });
        }
    }
    left
}
