//! Rules made ready to decide.

use super::{Judge, claims::merged};
use crate::{
    address::{Cidr, special_range},
    conditions::Conditions,
    pattern::Pattern,
    policy::{BadPolicy, check_pin},
};
use airlock_protocol::policy::{Body, Git, Origin, Policy, Ports, Request, Rule, Tls, Verdict};
use std::{collections::HashSet, net::IpAddr, sync::Arc};

/// Most hosts in all rules together.
const MOST_HOSTS: usize = 100_000;

/// One rule, checked.
#[derive(Debug)]
pub struct CompiledRule {
    index: usize,
    verdict: Verdict,
    hosts: Vec<Pattern>,
    ports: Vec<Ports>,
    tls: Tls,
    private: Vec<Cidr>,
    pins: Vec<String>,
    body: Option<Body>,
    conditions: Option<Conditions>,
    origin: Origin,
    words: Arc<str>,
}

impl CompiledRule {
    /// Its place in the order, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What it says.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The hosts it is about.
    pub fn hosts(&self) -> &[Pattern] {
        &self.hosts
    }

    /// The ports it is about, in order.
    pub fn ports(&self) -> &[Ports] {
        &self.ports
    }

    /// What must be true of TLS: a rule with pins, or one that asks something of requests, is about opened connections.
    pub fn tls(&self) -> Tls {
        self.tls
    }

    /// Keys of which the server's certificate must have one; any where empty.
    pub fn pins(&self) -> &[String] {
        &self.pins
    }

    /// Whether it is about git.
    pub(crate) fn is_about_git(&self) -> bool {
        self.conditions.as_ref().is_some_and(Conditions::is_about_git)
    }

    /// How much of bodies scripts see.
    pub fn body(&self) -> Option<Body> {
        self.body
    }

    /// What it asks of requests, if it does.
    pub(crate) fn conditions(&self) -> Option<&Conditions> {
        self.conditions.as_ref()
    }

    /// Special ranges that may be dialled: those of `private`, and those that the rule itself names as hosts.
    pub fn private(&self) -> &[Cidr] {
        &self.private
    }

    /// Where a person finds it.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// For a person: `allow *.example.com (airlock.toml:12)`.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// The same, to be kept.
    pub(crate) fn kept_words(&self) -> Arc<str> {
        Arc::clone(&self.words)
    }
}

impl Judge {
    /// Makes the rules of `policy` ready. Rules that can never match are no error here: a rule that was put before them while the
    /// sandbox runs may be the reason.
    pub fn compile(policy: &Policy) -> Result<Judge, BadPolicy> {
        let hosts: usize = policy.rules.iter().map(|rule| rule.hosts.len()).sum();
        if hosts > MOST_HOSTS {
            let what = format!("the policy names {hosts} hosts, and {MOST_HOSTS} are the most");
            return Err(BadPolicy::nowhere("policy", what).fix("name them by wildcards"));
        }
        let mut judge = Judge::default();
        for (index, rule) in policy.rules.iter().enumerate() {
            judge.add(compile(index, rule)?);
        }
        if policy.bandwidth == Some(0) {
            return Err(BadPolicy::nowhere("policy", "a bandwidth of nothing lets nothing pass"));
        }
        Ok(judge)
    }

    /// For each rule the earlier ones that together match all of it, if they do.
    pub(crate) fn shadows(&self) -> Vec<Option<Vec<usize>>> {
        self.rules.iter().map(|rule| self.shadow(rule)).collect()
    }

    /// For each rule its hosts about which neither earlier rules nor a wider host of the same rule say everything.
    pub(crate) fn living_hosts(&self) -> Vec<Vec<&Pattern>> {
        self.rules.iter().map(|rule| self.living(rule)).collect()
    }

    fn living<'a>(&self, rule: &'a CompiledRule) -> Vec<&'a Pattern> {
        let mut own: HashSet<&Pattern> = rule.hosts.iter().collect();
        let mut kept = Vec::new();
        for host in &rule.hosts {
            let speaks = |wider: &Pattern| {
                // No `*` but one that denies speaks about the host's own loopback.
                *wider != Pattern::EveryName || rule.verdict == Verdict::Deny || !host.is_host_airlock()
            };
            let twin = host.wider().any(|wider| own.contains(&wider) && speaks(&wider));
            if !twin && self.covering(rule, host).is_none() && own.remove(host) {
                kept.push(host);
            }
        }
        kept
    }

    fn shadow(&self, rule: &CompiledRule) -> Option<Vec<usize>> {
        let mut by = Vec::new();
        for host in &rule.hosts {
            by.extend(self.covering(rule, host)?);
        }
        by.sort_unstable();
        by.dedup();
        Some(by)
    }

    /// The rules before `rule` that together match all it says about `host`, if they do.
    fn covering(&self, rule: &CompiledRule, host: &Pattern) -> Option<Vec<usize>> {
        let about: Vec<&super::Said> = match host {
            Pattern::Name(name) => self.about_name(name).collect(),
            Pattern::Under(suffix) => self.about_suffix(suffix).collect(),
            Pattern::EveryName => vec![&self.every],
            Pattern::Addresses(range) => self.about_address(*range).collect(),
        };
        let whole: Vec<&super::Claims> = about.iter().map(|said| &said.whole).collect();
        let mut earlier = super::deciding(&whole, &rule.ports);
        earlier.retain(|(_, index)| *index < rule.index);
        let inside = about.iter().flat_map(|said| &said.inside);
        earlier.extend(
            inside
                .filter(|(_, index, _)| self.is_wider(*index, rule))
                .map(|(ports, index, _)| (*ports, *index)),
        );
        let taken: Vec<Ports> = earlier.iter().map(|(run, _)| *run).collect();
        super::claims::without(&rule.ports, &taken)
            .is_empty()
            .then(|| earlier.into_iter().map(|(_, index)| index).collect())
    }

    /// Whether an earlier rule asks no more of requests than `rule` does. One that asks anything is never wider than one that
    /// asks nothing.
    fn is_wider(&self, index: usize, rule: &CompiledRule) -> bool {
        let earlier = self.rules.get(index).filter(|_| index < rule.index).and_then(CompiledRule::conditions);
        earlier.zip(rule.conditions()).is_some_and(|(earlier, own)| earlier.covers(own))
    }

    fn add(&mut self, rule: CompiledRule) {
        self.looks_inside |= rule.conditions.is_some();
        for host in &rule.hosts {
            let claim = |said: &mut super::Said| match &rule.conditions {
                None => said.whole.claim(&rule.ports, rule.index),
                Some(asked) => {
                    said.inside.extend(rule.ports.iter().map(|run| (*run, rule.index, asked.glance())));
                }
            };
            match host {
                Pattern::Name(name) => claim(self.names.entry(name.clone()).or_default()),
                Pattern::Under(suffix) => claim(self.under.entry(suffix.clone()).or_default()),
                Pattern::EveryName => {
                    claim(&mut self.every);
                    if rule.verdict == Verdict::Deny {
                        claim(&mut self.every_denied);
                    }
                }
                Pattern::Addresses(range) => {
                    claim(self.addresses.entry(*range).or_default());
                    let [v4, v6] = &mut self.prefixes;
                    let prefixes = if matches!(range.network(), IpAddr::V4(_)) { v4 } else { v6 };
                    if !prefixes.contains(&range.prefix()) {
                        prefixes.push(range.prefix());
                    }
                }
            }
        }
        self.rules.push(rule);
    }
}

fn compile(index: usize, rule: &Rule) -> Result<CompiledRule, BadPolicy> {
    let origin = rule.origin.clone();
    let bad = |what: String| BadPolicy::nowhere(&place(&origin), what);
    if rule.hosts.is_empty() || rule.ports.is_empty() {
        return Err(bad("a rule without hosts or without ports matches nothing".to_string()));
    }
    if let Some(run) = rule.ports.iter().find(|run| run.first > run.last) {
        return Err(bad(format!("a run of ports ends before it begins: {}-{}", run.first, run.last)));
    }
    let mut hosts = Vec::with_capacity(rule.hosts.len());
    for text in &rule.hosts {
        let host: Pattern = text.parse().map_err(|err| {
            let err: crate::pattern::BadPattern = err;
            bad(format!("{text:?} is not a host a rule can name")).why(err.to_string()).fix(err.fix())
        })?;
        hosts.push(host);
    }
    let mut private = Vec::with_capacity(rule.private.len());
    for text in &rule.private {
        let range: Cidr = text.parse().map_err(|err: crate::address::BadCidr| {
            bad(format!("{text:?} is not a range of addresses")).why(err.to_string())
        })?;
        private.push(range);
    }
    private.extend(hosts.iter().filter_map(named_special));
    let conditions = Conditions::compile(&rule.request, rule.verdict).map_err(bad)?;
    let tls = tls(rule).map_err(bad)?;
    check_bounds(rule).map_err(bad)?;
    let words = words(rule).into();
    let ports = merged(rule.ports.clone());
    let (verdict, pins, body) = (rule.verdict, rule.pins.clone(), rule.body);
    Ok(CompiledRule { index, verdict, hosts, ports, tls, private, pins, body, conditions, origin, words })
}

/// What looks inside needs a connection that is opened.
fn tls(rule: &Rule) -> Result<Tls, String> {
    if let Some(why) = rule.pins.iter().find_map(|pin| check_pin(pin).err()) {
        return Err(why.to_string());
    }
    match (rule.request.is_any() && rule.pins.is_empty() && rule.body.is_none(), rule.tls) {
        (true, tls) => Ok(tls),
        (false, Tls::Opaque) => {
            Err("a rule about requests, bodies or pins cannot have tls = \"opaque\"".to_string())
        }
        (false, Tls::Checked | Tls::Opened) => Ok(Tls::Opened),
    }
}

fn check_bounds(rule: &Rule) -> Result<(), String> {
    let is_never = rule.bounds.rate.is_some_and(|rate| rate.count == 0 || rate.seconds == 0)
        || rule.bounds.bandwidth == Some(0);
    match is_never {
        true => Err("a rate or a bandwidth of nothing lets nothing pass".to_string()),
        false => Ok(()),
    }
}

/// A range that is special as a whole is meant where it is named; one that merely holds special addresses opens none of them.
fn named_special(host: &Pattern) -> Option<Cidr> {
    match host {
        Pattern::Addresses(range) => special_range(range).map(|_| *range),
        _ => None,
    }
}

/// The rule for a person.
pub(crate) fn words(rule: &Rule) -> String {
    let verdict = format!("{}{}", verdict_word(rule.verdict), what(&rule.request));
    let first = rule.hosts.first().map_or("nothing", String::as_str);
    let more = match (rule.hosts.len(), rule.request.paths.as_slice()) {
        (0 | 1, [path]) => path.clone(),
        (0 | 1, []) => String::new(),
        (0 | 1, paths) => format!(", {} paths", paths.len()),
        (count, _) => format!(" and {} more", count - 1),
    };
    match rule.origin.from.is_empty() {
        true => format!("{verdict} {first}{more}"),
        false => format!("{verdict} {first}{more} ({})", place(&rule.origin)),
    }
}

/// What of requests, before the host: ` GET, HEAD`, ` git push to`.
fn what(request: &Request) -> String {
    match (request.git, request.websocket) {
        (Some(git), _) => format!(" git {} at", git_word(git)),
        (None, Some(true)) => " WebSockets to".to_string(),
        (None, _) if request.methods.is_empty() => String::new(),
        (None, _) => format!(" {}", request.methods.join(", ")),
    }
}

/// As it is written in a file.
pub(crate) fn git_word(git: Git) -> &'static str {
    match git {
        Git::Fetch => "fetch",
        Git::Push => "push",
    }
}

/// Where a rule was written: `airlock.toml:12`, `--allow`.
pub(crate) fn place(origin: &Origin) -> String {
    match origin.line {
        0 => origin.from.clone(),
        line => format!("{}:{line}", origin.from),
    }
}

/// As it is written in a file.
pub(crate) fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Ask => "ask",
    }
}
