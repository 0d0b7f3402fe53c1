//! Several policies made one.

use super::packages;
use crate::judge::Judge;
use airlock_protocol::policy::{Policy, Rule};

/// All rules, those of the first policy first. A host that an earlier rule wholly covers is dropped, and so is a rule that is left
/// without hosts. It only records if every policy does, and the least bandwidth counts.
pub fn union(policies: Vec<Policy>) -> Policy {
    let audit_only = !policies.is_empty() && policies.iter().all(|policy| policy.audit_only);
    let bandwidth = policies.iter().filter_map(|policy| policy.bandwidth).min();
    let packages = packages::union(policies.iter().map(|policy| &policy.packages));
    let rules = policies.into_iter().flat_map(|policy| policy.rules).collect();
    Policy { rules: alive(rules), audit_only, bandwidth, packages }
}

/// The rules without what can never match. Rules that cannot be read are left as they are; whoever compiles them says so.
fn alive(rules: Vec<Rule>) -> Vec<Rule> {
    let all = Policy { rules, ..Policy::default() };
    let Ok(judge) = Judge::compile(&all) else { return all.rules };
    let kept = judge.living_hosts();
    let paired = all.rules.into_iter().zip(kept);
    let rules =
        paired.map(|(rule, hosts)| Rule { hosts: hosts.iter().map(ToString::to_string).collect(), ..rule });
    rules.filter(|rule| !rule.hosts.is_empty()).collect()
}
