//! A person's policy, from text to rules and back.
//!
//! | part | what it does |
//! |---|---|
//! | [`parse_toml`], [`parse_markdown`], [`rule_from_flag`] | read; every fault is shown with its line and column |
//! | [`union`], [`diff`] | join several policies into one, tell two apart |
//! | [`show`], [`narrow`], [`write_rule`] | write: all rules, the rules that would have sufficed, one more rule |

mod bounds;
mod check;
mod diff;
mod hosts;
mod insert;
mod inside;
mod learned;
mod markdown;
mod packages;
mod ports;
mod read;
mod rule;
mod source;
mod suggest;
mod union;
mod write;

pub(crate) use bounds::check_pin;
pub use diff::{Change, Diff, diff};
pub use learned::Seen;
pub use packages::registry_url;
pub use read::{OtherKey, PolicyFile};
pub use rule::KEYS as RULE_KEYS;
pub use source::{BadPolicy, Source};
pub use suggest::suggestion;
pub use union::union;
pub use write::{narrow, narrow_requests, show};

use crate::groups::Discovered;
use airlock_protocol::policy::{Rule, Verdict};

/// Largest policy that is read.
pub(crate) const LARGEST: usize = 1024 * 1024;
/// Most rules of a policy that is read.
pub(crate) const MOST_RULES: usize = 10_000;

/// Reads policies, with the groups that this host's package clients tell of.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// Hosts of the groups that are not known beforehand.
    pub discovered: &'a Discovered,
}

impl Reader<'_> {
    /// Reads `airlock.toml`, or another file of its form.
    pub fn toml(&self, name: &str, text: &str) -> Result<PolicyFile, BadPolicy> {
        read::toml(Source::new(name, text), self.discovered)
    }

    /// Reads the front matter of a Markdown file: each entry of `domains:` is allowed.
    pub fn markdown(&self, name: &str, text: &str) -> Result<PolicyFile, BadPolicy> {
        markdown::read(Source::new(name, text), self.discovered)
    }

    /// Reads the value of `--allow`, `--deny` or `--ask`: `HOST[:PORT]`, a group, or `METHOD URL`.
    pub fn flag(&self, verdict: Verdict, text: &str, from: &str) -> Result<Vec<Rule>, BadPolicy> {
        rule::from_flag(verdict, Source::new(from, text), self.discovered)
    }

    /// The text of the file `name` with `rule` in it, everything else kept. The rule then decides all it matches; where it cannot, or
    /// an example of another rule forbids it, the error says why.
    pub fn write_rule(&self, name: &str, text: &str, rule: &Rule) -> Result<String, BadPolicy> {
        insert::write_rule(self, Source::new(name, text), rule)
    }

    fn rules(&self, source: Source<'_>) -> Result<Vec<rule::Read>, BadPolicy> {
        read::reads(source, self.discovered).map(|(_, reads)| reads)
    }
}

/// As [`Reader::toml`], where nothing is known of package clients.
pub fn parse_toml(name: &str, text: &str) -> Result<PolicyFile, BadPolicy> {
    Reader { discovered: &Discovered::default() }.toml(name, text)
}

/// As [`Reader::markdown`], where nothing is known of package clients.
pub fn parse_markdown(name: &str, text: &str) -> Result<PolicyFile, BadPolicy> {
    Reader { discovered: &Discovered::default() }.markdown(name, text)
}

/// As [`Reader::flag`], where nothing is known of package clients.
pub fn rule_from_flag(verdict: Verdict, text: &str, from: &str) -> Result<Vec<Rule>, BadPolicy> {
    Reader { discovered: &Discovered::default() }.flag(verdict, text, from)
}

/// As [`Reader::write_rule`], where nothing is known of package clients.
pub fn write_rule(name: &str, text: &str, rule: &Rule) -> Result<String, BadPolicy> {
    Reader { discovered: &Discovered::default() }.write_rule(name, text, rule)
}

#[cfg(test)]
mod tests;
