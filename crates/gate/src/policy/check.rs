//! What is checked when all rules are known: that each can match, and that its examples hold.

use super::{BadPolicy, Source, rule::Read};
use crate::{
    judge::{CompiledRule, Judge},
    url::{Asked, BadUrl},
};
use airlock_protocol::policy::Policy;
use std::{collections::HashSet, ops::Range};

/// Checks all rules of a text together.
pub(super) fn whole(source: Source<'_>, reads: &[Read]) -> Result<(), BadPolicy> {
    let policy = Policy { rules: reads.iter().map(|read| read.rule.clone()).collect(), ..Policy::default() };
    let judge = Judge::compile(&policy)?;
    let shadows = judge.shadows();
    let alive: HashSet<usize> = reads
        .iter()
        .zip(&shadows)
        .filter(|(_, shadow)| shadow.is_none())
        .map(|(read, _)| read.at.start)
        .collect();
    for (read, shadow) in reads.iter().zip(&shadows) {
        if let Some(earlier) = shadow
            && !alive.contains(&read.at.start)
        {
            return Err(dead(source, read, &judge, earlier));
        }
    }
    for read in reads {
        for example in &read.examples {
            check_example(source, &judge, reads, (read, example))?;
        }
    }
    Ok(())
}

fn dead(source: Source<'_>, read: &Read, judge: &Judge, earlier: &[usize]) -> BadPolicy {
    let rules: Vec<&CompiledRule> = earlier.iter().filter_map(|index| judge.rules().get(*index)).collect();
    let words: Vec<&str> = rules.iter().take(3).map(|rule| rule.words()).collect();
    let line = rules.first().map_or(0, |rule| rule.origin().line);
    let bad =
        source.bad(read.at.clone(), format!("the rule on line {} can never match", read.rule.origin.line));
    bad.why(format!("the first match wins, and {} matches all of it before", words.join(" and ")))
        .fix(format!("remove it, or put it before line {line}"))
}

fn check_example(
    source: Source<'_>,
    judge: &Judge,
    reads: &[Read],
    (read, (text, at)): (&Read, &(String, Range<usize>)),
) -> Result<(), BadPolicy> {
    let (wanted, text) = match text.strip_prefix('!') {
        Some(text) => (false, text),
        None => (true, text.as_str()),
    };
    let bad = |what: &str| source.bad(at.clone(), format!("the example `{}` {what}", text.escape_debug()));
    let asked: Asked = text.parse().map_err(|err: BadUrl| {
        bad("is not a destination").why(err.to_string()).fix("write HOST:PORT, a URL, or a method and a URL")
    })?;
    let judged = judge.judge_asked(&asked);
    let deciding = judged.rule.and_then(|rule| reads.get(rule.index()));
    let decides = deciding.is_some_and(|deciding| deciding.at == read.at);
    match (wanted, decides) {
        (true, true) | (false, false) => Ok(()),
        (false, true) => Err(bad("is decided by this rule, and should not be")
            .fix("make the rule narrower, or put one before it that decides this")),
        (true, false) => {
            let why = judged
                .rule
                .map_or("no rule matches it".to_string(), |rule| format!("{} decides it", rule.words()));
            Err(bad("is not decided by this rule").why(why).fix("correct the example, or the rule"))
        }
    }
}
