//! `airlock allow` and `airlock deny`: rules in front of those in force, of a sandbox that runs.

use super::{find, lifecycle::ask};
use crate::{
    args::ChangeArgs,
    failure::Outcome,
    home, policy,
    say::{Voice, say},
    spec::Host,
};
use airlock_protocol::{control::Request, policy::Verdict};

pub(crate) fn allow(args: &ChangeArgs) -> Outcome {
    change(args, Verdict::Allow, "airlock allow")
}

pub(crate) fn deny(args: &ChangeArgs) -> Outcome {
    change(args, Verdict::Deny, "airlock deny")
}

fn change(args: &ChangeArgs, verdict: Verdict, from: &str) -> Outcome {
    let rules = policy::from_words(verdict, &args.hosts, from, &Host::current()?)?;
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let count = rules.len();
    ask(&sandbox, &Request::AddRules { rules })?;
    let words = if count == 1 { "1 rule" } else { &format!("{count} rules") };
    say(Voice::Normal, &format!("{words} in front of those of {}", sandbox.id()));
    Ok(0)
}
