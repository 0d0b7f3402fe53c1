//! What is different between two policies.

use super::{bounds::shown_bytes, write::inside_keys};
use crate::judge::{PortWords, place, verdict_word};
use airlock_protocol::policy::{Policy, Rule, Tls};
use std::fmt;

/// Most pairs of rules that are compared one by one; beyond that only the lists are.
const MOST_PAIRS: usize = 4_000_000;

/// From one policy to another, in the order of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diff {
    /// Rules that came and went.
    pub changes: Vec<Change>,
    /// Whether the new policy only records, where the old one did not or the other way round.
    pub audit_only: Option<bool>,
    /// The bandwidth of the sandbox before and after, where it changed.
    pub bandwidth: Option<(Option<u64>, Option<u64>)>,
}

/// One rule that came or went. A rule that moved does both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Only in the new policy.
    Added(Rule),
    /// Only in the old one.
    Removed(Rule),
}

/// What turns `old` into `new`. Where a rule was written makes no difference.
pub fn diff(old: &Policy, new: &Policy) -> Diff {
    let audit_only = (old.audit_only != new.audit_only).then_some(new.audit_only);
    let bandwidth = (old.bandwidth != new.bandwidth).then_some((old.bandwidth, new.bandwidth));
    Diff { changes: changes(&old.rules, &new.rules), audit_only, bandwidth }
}

impl Diff {
    /// Whether both policies say the same.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.audit_only.is_none() && self.bandwidth.is_none()
    }
}

/// One line a change: `+ allow api.example.com on port 443 (airlock.toml:12)`.
impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(audit_only) = self.audit_only {
            writeln!(f, "{} audit_only", if audit_only { '+' } else { '-' })?;
        }
        let (before, after) = self.bandwidth.unwrap_or_default();
        for (sign, bandwidth) in [('-', before), ('+', after)] {
            if let Some(bandwidth) = bandwidth {
                writeln!(f, "{sign} bandwidth {}/s", shown_bytes(bandwidth))?;
            }
        }
        for change in &self.changes {
            match change {
                Change::Added(rule) => writeln!(f, "+ {}", Line(rule))?,
                Change::Removed(rule) => writeln!(f, "- {}", Line(rule))?,
            }
        }
        Ok(())
    }
}

/// All of a rule in one line.
struct Line<'a>(&'a Rule);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line(rule) = self;
        write!(f, "{} {} on {}", verdict_word(rule.verdict), rule.hosts.join(", "), PortWords(&rule.ports))?;
        for key in inside_keys(rule) {
            write!(f, ", {}", key.replacen(" = ", " ", 1))?;
        }
        match rule.tls {
            Tls::Checked => {}
            Tls::Opaque => f.write_str(", tls opaque")?,
            Tls::Opened => f.write_str(", tls opened")?,
        }
        if !rule.private.is_empty() {
            write!(f, ", private {}", rule.private.join(", "))?;
        }
        match rule.origin.from.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", place(&rule.origin)),
        }
    }
}

fn same(one: &Rule, other: &Rule) -> bool {
    let said = |rule: &Rule| (rule.verdict, rule.tls);
    said(one) == said(other)
        && one.request == other.request
        && one.bounds == other.bounds
        && one.pins == other.pins
        && one.body == other.body
        && one.hosts == other.hosts
        && one.ports == other.ports
        && one.private == other.private
}

fn changes(old: &[Rule], new: &[Rule]) -> Vec<Change> {
    let head = old.iter().zip(new).take_while(|(one, other)| same(one, other)).count();
    let (old, new) = (old.get(head..).unwrap_or(&[]), new.get(head..).unwrap_or(&[]));
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(one, other)| same(one, other)).count();
    let old = old.get(..old.len() - tail).unwrap_or(&[]);
    let new = new.get(..new.len() - tail).unwrap_or(&[]);
    if old.len().saturating_mul(new.len()) > MOST_PAIRS {
        let removed = old.iter().cloned().map(Change::Removed);
        return removed.chain(new.iter().cloned().map(Change::Added)).collect();
    }
    walk(old, new, &common(old, new))
}

/// Lengths of the longest common sequence of what is left from each pair of places on, row by row.
fn common(old: &[Rule], new: &[Rule]) -> Vec<Vec<u32>> {
    let mut rows = vec![vec![0; new.len() + 1]];
    for one in old.iter().rev() {
        let below = rows.last().cloned().unwrap_or_default();
        let mut right = 0;
        let mut row = vec![0];
        for (other, pair) in new.iter().rev().zip(below.windows(2).rev()) {
            let [down, diagonal] = pair else { continue };
            right = if same(one, other) { diagonal + 1 } else { right.max(*down) };
            row.push(right);
        }
        row.reverse();
        rows.push(row);
    }
    rows.reverse();
    rows
}

fn walk(old: &[Rule], new: &[Rule], lengths: &[Vec<u32>]) -> Vec<Change> {
    let length = |i: usize, j: usize| lengths.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0);
    let (mut i, mut j) = (0, 0);
    let mut changes = Vec::new();
    loop {
        match (old.get(i), new.get(j)) {
            (Some(one), Some(other)) if same(one, other) => (i, j) = (i + 1, j + 1),
            (Some(one), other) if other.is_none() || length(i + 1, j) >= length(i, j + 1) => {
                changes.push(Change::Removed(one.clone()));
                i += 1;
            }
            (_, Some(other)) => {
                changes.push(Change::Added(other.clone()));
                j += 1;
            }
            (Some(_), None) | (None, None) => return changes,
        }
    }
}
