//! One more rule in the text of a file, everything else kept as it is.

use super::{BadPolicy, Reader, Source, rule, write::rule_text};
use crate::{
    judge::{CompiledRule, Judge, verdict_word},
    pattern::Pattern,
};
use airlock_protocol::policy::{Policy, Rule, Tls, Verdict};
use std::ops::Range;

/// The text with `rule` in it, such that the rule decides all it matches (but what rules about requests deny before it): behind the other rules where none of them meets it, before
/// the first that does otherwise. A rule that is about the very same is changed in its place. Nothing changes where the rules say so
/// already.
///
/// What a rule says about TLS, pins, private ranges and bounds holds for the new rule too, if it said so about all that the new rule matches.
pub(super) fn write_rule(reader: &Reader<'_>, source: Source<'_>, rule: &Rule) -> Result<String, BadPolicy> {
    let reads = reader.rules(source)?;
    let rules: Vec<Rule> = reads.iter().map(|read| read.rule.clone()).collect();
    let old = Judge::compile(&Policy { rules: rules.clone(), ..Policy::default() })?;
    let new = Judge::compile(&Policy { rules: vec![rule.clone()], ..Policy::default() })?;
    let met = |old: &&CompiledRule| new.rules().iter().any(|new| meet(new, old) && !stays_ahead(new, old));
    let Some(read) = old.rules().iter().find(met).and_then(|old| reads.get(old.index())) else {
        let written = appended(source, &reads, rule);
        return check(reader, source, written, rule);
    };
    let rule = &heir(rule, &read.rule)?;
    if decides(&rules, rule)? {
        return Ok(source.text.to_string());
    }
    let is_same = read.rule.hosts == rule.hosts
        && read.rule.ports == rule.ports
        && read.rule.request == rule.request
        && (rule.verdict != Verdict::Deny || is_bare(&read.rule));
    let is_alone = reads.iter().filter(|other| other.at == read.at).count() == 1;
    let written = match is_same && is_alone {
        true => changed(source, read, rule),
        false => inserted(source, read, rule),
    };
    check(reader, source, written, rule)
}

/// The new rule with what the old one says about TLS, addresses and bounds.
fn heir(new: &Rule, old: &Rule) -> Result<Rule, BadPolicy> {
    let wider = Policy { rules: vec![old.clone(), new.clone()], ..Policy::default() };
    let is_covered = matches!(Judge::compile(&wider)?.shadows().as_slice(), [_, Some(_)]);
    if !is_covered || [old.verdict, new.verdict].contains(&Verdict::Deny) {
        return Ok(new.clone());
    }
    let is_blind =
        old.tls == Tls::Opaque && !(new.request.is_any() && new.pins.is_empty() && new.body.is_none());
    let tls = if new.tls == Tls::default() && !is_blind { old.tls } else { new.tls };
    let private = if new.private.is_empty() { old.private.clone() } else { new.private.clone() };
    let pins = if new.pins.is_empty() && tls != Tls::Opaque { old.pins.clone() } else { new.pins.clone() };
    let bounds = if new.bounds.is_none() { old.bounds } else { new.bounds };
    let body = new.body.or(old.body).filter(|_| tls != Tls::Opaque);
    Ok(Rule { tls, private, pins, bounds, body, ..new.clone() })
}

/// Whether it says nothing that a rule which denies cannot say.
fn is_bare(rule: &Rule) -> bool {
    rule.tls == Tls::default()
        && rule.private.is_empty()
        && rule.pins.is_empty()
        && rule.bounds.is_none()
        && rule.body.is_none()
}

/// Whether `rules` give all that `rule` matches its verdict.
fn decides(rules: &[Rule], rule: &Rule) -> Result<bool, BadPolicy> {
    let covered = |count: usize| -> Result<Option<Vec<usize>>, BadPolicy> {
        let first = rules.iter().take(count).chain([rule]).cloned().collect();
        let judge = Judge::compile(&Policy { rules: first, ..Policy::default() })?;
        Ok(judge.shadows().pop().flatten())
    };
    if covered(rules.len())?.is_none() {
        return Ok(false);
    }
    // The fewest of the first rules that match all of it.
    let (mut few, mut enough) = (0, rules.len());
    while few < enough {
        let middle = few.midpoint(enough);
        match covered(middle)? {
            Some(_) => enough = middle,
            None => few = middle + 1,
        }
    }
    let by = covered(enough)?.unwrap_or_default();
    let opened = |old: &Rule| rule.private.iter().all(|range| old.private.contains(range));
    let same = |old: &Rule| {
        old.verdict == rule.verdict
            && old.tls == rule.tls
            && old.pins == rule.pins
            && old.body == rule.body
            && old.bounds == rule.bounds
            && opened(old)
    };
    let first =
        Policy { rules: rules.iter().take(enough).chain([rule]).cloned().collect(), ..Policy::default() };
    let judge = Judge::compile(&first)?;
    let own = judge.rules().last();
    // A rule about some requests takes them away from those behind it.
    let takes = |other: &CompiledRule| {
        other.conditions().is_some()
            && other.verdict() != rule.verdict
            && own.is_some_and(|own| {
                own.index() != other.index() && meet(own, other) && !stays_ahead(own, other)
            })
    };
    Ok(by.iter().filter_map(|index| rules.get(*index)).all(same) && !judge.rules().iter().any(takes))
}

/// A rule that denies some requests stays before one that lets others pass: what it says of queries and headers still counts.
fn stays_ahead(new: &CompiledRule, old: &CompiledRule) -> bool {
    let is_about_requests = new.conditions().is_some() && old.conditions().is_some();
    is_about_requests && old.verdict() == Verdict::Deny && new.verdict() != Verdict::Deny
}

fn meet(one: &CompiledRule, other: &CompiledRule) -> bool {
    let ports =
        one.ports().iter().any(|a| other.ports().iter().any(|b| a.first <= b.last && b.first <= a.last));
    let hosts = |a: &Pattern| other.hosts().iter().any(|b| a.meets(b));
    ports && one.hosts().iter().any(hosts)
}

/// Before `read` and the comment that belongs to it.
fn inserted(source: Source<'_>, read: &rule::Read, new: &Rule) -> String {
    if is_inline(source, read) {
        return spliced(source.text, read.at.start..read.at.start, &format!("{}, ", inline(new)));
    }
    let newline = newline(source.text);
    let mut at = line_start(source.text, read.at.start);
    while let Some(above) = at.checked_sub(1).map(|end| line_start(source.text, end)) {
        if !source.text.get(above..at).is_some_and(|line| line.trim_start().starts_with('#')) {
            break;
        }
        at = above;
    }
    let text = format!("{}\n", rule_text(new)).replace('\n', newline);
    spliced(source.text, at..at, &text)
}

/// At the end of the file, or of the list where the rules are one value.
fn appended(source: Source<'_>, reads: &[rule::Read], new: &Rule) -> String {
    if let Some(last) = reads.last().filter(|read| is_inline(source, read)) {
        return spliced(source.text, last.at.end..last.at.end, &format!(", {}", inline(new)));
    }
    let newline = newline(source.text);
    let mut text = source.text.to_string();
    if !text.is_empty() {
        let gap = if text.ends_with('\n') { newline.to_string() } else { newline.repeat(2) };
        text.push_str(&gap);
    }
    text + &rule_text(new).replace('\n', newline)
}

/// With another verdict, and otherwise as it stands.
fn changed(source: Source<'_>, read: &rule::Read, new: &Rule) -> String {
    spliced(source.text, read.verdict_at.clone(), verdict_word(new.verdict))
}

/// Whether a rule is a value in a list, not a table with a header.
fn is_inline(source: Source<'_>, read: &rule::Read) -> bool {
    source.text.get(read.at.clone()).is_some_and(|text| text.starts_with('{'))
}

fn inline(rule: &Rule) -> String {
    let text = rule_text(rule);
    let keys = text.strip_prefix("[[rule]]\n").unwrap_or(&text).trim_end();
    format!(
        "{{ {} }}",
        keys.replace("[\n    ", "[").replace(",\n]", "]").replace(",\n    ", ", ").replace('\n', ", ")
    )
}

/// What was written, if it reads well and the rule decides.
fn check(reader: &Reader<'_>, source: Source<'_>, written: String, rule: &Rule) -> Result<String, BadPolicy> {
    let refused = |why: String| {
        let what =
            format!("`{} {}` cannot be written into it", verdict_word(rule.verdict), rule.hosts.join(", "));
        BadPolicy::nowhere(source.name, what).why(why).fix("write the rule by hand")
    };
    let reads = reader.rules(Source::new(source.name, &written)).map_err(|bad| refused(bad.headline()))?;
    let rules: Vec<Rule> = reads.into_iter().map(|read| read.rule).collect();
    match decides(&rules, rule)? {
        true => Ok(written),
        false => Err(refused("another rule would decide".to_string())),
    }
}

fn spliced(text: &str, at: Range<usize>, with: &str) -> String {
    let before = text.get(..at.start).unwrap_or(text);
    let after = text.get(at.end..).unwrap_or("");
    format!("{before}{with}{after}")
}

fn line_start(text: &str, at: usize) -> usize {
    text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1)
}

fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}
