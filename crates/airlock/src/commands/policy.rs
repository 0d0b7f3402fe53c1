//! `airlock policy`: rules shown, checked, explained, compared and set.

use super::{find, lifecycle::ask, print_json};
use crate::{
    args::{
        DiffPolicyArgs, ExplainArgs, GroupsArgs, PolicyArgs, PolicyVerb, SetPolicyArgs, ShowPolicyArgs,
        TestPolicyArgs,
    },
    clean::clean_text,
    failure::{Failure, Outcome},
    home, policy, registries,
    say::{Voice, say, terminal_width},
    spec::Host,
    table::Table,
};
use airlock_doors::control::client::Client;
use airlock_engine::store::Sandbox;
use airlock_gate::{
    groups::{self, NoGroup},
    judge::{Explained, Judge},
    policy::{Change, Diff, diff, show},
    url::{Asked, BadUrl},
};
use airlock_protocol::{
    control::{Reply, Request},
    policy::{Policy, Tls, Verdict},
};
use serde_json::json;
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

pub(crate) fn perform(args: &PolicyArgs) -> Outcome {
    match &args.verb {
        PolicyVerb::Show(args) => show_policy(args),
        PolicyVerb::Set(args) => set(args),
        PolicyVerb::Test(args) => test(args),
        PolicyVerb::Explain(args) => explain(args),
        PolicyVerb::Diff(args) => compare(args),
        PolicyVerb::Groups(args) => list_groups(args),
    }
}

fn show_policy(args: &ShowPolicyArgs) -> Outcome {
    let policy = in_force(&find(&home::store()?, &args.sandbox)?)?;
    match args.json {
        true => print_json(&policy)?,
        false => io::stdout().write_all(clean_text(&show(&policy)).as_bytes())?,
    }
    Ok(0)
}

fn set(args: &SetPolicyArgs) -> Outcome {
    let policy = policy::from_files(&args.files, &Host::current()?)?;
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let count = policy.rules.len();
    ask(&sandbox, &Request::SetPolicy(policy))?;
    say(Voice::Normal, &format!("{} has {count} rules now", sandbox.id()));
    Ok(0)
}

/// The file itself and its examples are checked by reading it.
fn test(args: &TestPolicyArgs) -> Outcome {
    let policy =
        policy::from_files(std::slice::from_ref(&args.file), &Host::current()?).map_err(|bad| bad.code(1))?;
    let judge = Judge::compile(&policy).map_err(policy::failure)?;
    let mut differs = false;
    for text in &args.urls {
        let (is_wanted, url) = match text.strip_prefix('!') {
            Some(url) => (false, url),
            None => (true, text.as_str()),
        };
        let asked = asked(url)?;
        let explained = judge.explain_asked(&asked);
        let is_as_wanted = (verdict(&explained) == Verdict::Allow) == is_wanted;
        differs |= !is_as_wanted;
        report(args, &explained, is_wanted, is_as_wanted)?;
    }
    match (args.urls.is_empty(), args.json) {
        (true, true) => print_json(&json!({ "rules": policy.rules.len(), "ok": true }))?,
        (true, false) => writeln!(io::stdout(), "{} rules, all well", policy.rules.len())?,
        (false, _) => {}
    }
    Ok(u8::from(differs))
}

fn report(
    args: &TestPolicyArgs,
    explained: &Explained<'_>,
    is_wanted: bool,
    is_as_wanted: bool,
) -> Result<(), Failure> {
    if args.json {
        let mut facts = facts(explained);
        if let Some(facts) = facts.as_object_mut() {
            facts.extend([("wanted".to_owned(), json!(is_wanted)), ("ok".to_owned(), json!(is_as_wanted))]);
        }
        return print_json(&facts);
    }
    let mark = if is_as_wanted { "ok  " } else { "FAIL" };
    Ok(write!(io::stdout(), "{mark}  {}", clean_text(&explained.to_string()))?)
}

fn explain(args: &ExplainArgs) -> Outcome {
    let words: Vec<&str> = args.sandbox.iter().chain(&args.words).map(String::as_str).collect();
    let (selector, url) = match (words.as_slice(), args.policy.is_empty()) {
        ([url], false) => (None, (*url).to_owned()),
        ([method, url], is_sandbox) if is_method(method) => {
            (is_sandbox.then_some("-"), format!("{method} {url}"))
        }
        (_, false) => {
            return Err(usage(
                "with --policy name no sandbox: airlock policy explain --policy FILE [METHOD] URL",
            ));
        }
        ([url], true) => (Some("-"), (*url).to_owned()),
        ([sandbox, url], true) => (Some(*sandbox), (*url).to_owned()),
        ([sandbox, method, url], true) => (Some(*sandbox), format!("{method} {url}")),
        _ => {
            return Err(usage(
                "what wants to cross is not named: airlock policy explain SANDBOX [METHOD] URL",
            ));
        }
    };
    let asked = asked(&url)?;
    let policy = match selector {
        Some(selector) => in_force(&find(&home::store()?, selector)?)?,
        None => policy::from_files(&args.policy, &Host::current()?)?,
    };
    let judge = Judge::compile(&policy).map_err(policy::failure)?;
    let explained = judge.explain_asked(&asked);
    match args.json {
        true => print_json(&facts(&explained))?,
        false => io::stdout().write_all(clean_text(&explained.to_string()).as_bytes())?,
    }
    if policy.audit_only && !args.json {
        say(Voice::Normal, "this sandbox only records: nothing is denied");
    }
    Ok(match verdict(&explained) {
        Verdict::Allow => 0,
        Verdict::Ask => 1,
        Verdict::Deny => 4,
    })
}

fn compare(args: &DiffPolicyArgs) -> Outcome {
    let host = Host::current()?;
    let diff = diff(&either(&args.from, &host)?, &either(&args.to, &host)?);
    match args.json {
        true => print_json(&diff_facts(&diff))?,
        false => io::stdout().write_all(clean_text(&diff.to_string()).as_bytes())?,
    }
    Ok(u8::from(args.exit_code && !diff.is_empty()))
}

fn list_groups(args: &GroupsArgs) -> Outcome {
    let known = registries::discover_all(&Host::current()?);
    let all = groups::list(&known);
    let chosen = match &args.name {
        None => all,
        Some(name) => match groups::find(name, &known) {
            Ok(group) => vec![group],
            Err(err) => {
                let fix = match err {
                    NoGroup::Silent { setting, .. } => setting,
                    NoGroup::Unknown { .. } => "`airlock policy groups` lists them",
                };
                return Err(Failure::new(err.to_string()).code(1).fix(fix));
            }
        },
    };
    if args.json {
        for group in &chosen {
            print_json(&json!({ "name": group.name, "about": group.about, "hosts": group.hosts }))?;
        }
        return Ok(0);
    }
    let mut stdout = io::stdout().lock();
    match (&args.name, chosen.as_slice()) {
        (Some(_), [group]) => {
            writeln!(stdout, "# {}", clean_text(&group.about))?;
            group.hosts.iter().try_for_each(|host| writeln!(stdout, "{host}"))?;
        }
        _ => {
            let mut table = Table::new(["GROUP", "HOSTS", "ABOUT"]);
            chosen.iter().for_each(|group| {
                table.row([group.name.clone(), group.hosts.len().to_string(), group.about.clone()])
            });
            stdout.write_all(table.text(terminal_width()).as_bytes())?;
        }
    }
    Ok(0)
}

/// The rules of a sandbox: those in force while it runs, those it begins with otherwise.
pub(super) fn in_force(sandbox: &Sandbox) -> Result<Policy, Failure> {
    if sandbox.repaired_state()?.status.is_live()
        && let Ok(mut client) = Client::connect(sandbox)
    {
        match client.ask(&Request::Policy)? {
            Reply::Policy(policy) => return Ok(policy),
            Reply::Refused(refusal) => return Err(refusal.into()),
            _ => {}
        }
    }
    Ok(sandbox.spec()?.policy)
}

/// A file if there is one of that name, else a sandbox.
fn either(name: &str, host: &Host) -> Result<Policy, Failure> {
    match Path::new(name).is_file() {
        true => policy::from_files(&[PathBuf::from(name)], host),
        false => in_force(&find(&home::store()?, name)?),
    }
}

fn asked(text: &str) -> Result<Asked, Failure> {
    text.parse().map_err(|err: BadUrl| {
        Failure::new(format!("{text:?} is no destination"))
            .code(2)
            .why(err.to_string())
            .fix("write HOST:PORT, a URL, or a method and a URL")
    })
}

/// Methods are written in capitals, names of sandboxes are not.
fn is_method(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn usage(what: &str) -> Failure {
    Failure::new(what).code(2)
}

/// What no rule matches is denied.
fn verdict(explained: &Explained<'_>) -> Verdict {
    explained.judged.verdict.unwrap_or(Verdict::Deny)
}

fn facts(explained: &Explained<'_>) -> serde_json::Value {
    let rule = explained.judged.rule;
    json!({
        "host": explained.destination.target.to_string(),
        "port": explained.destination.port_or_https(),
        "method": explained.request.map(|request| &request.method),
        "path": explained.request.map(|request| &request.path),
        "opened": explained.judged.tls == Tls::Opened,
        "verdict": verdict(explained),
        "rule": rule.map(|rule| rule.words()),
        "file": rule.map(|rule| &rule.origin().from),
        "line": rule.map(|rule| rule.origin().line).filter(|line| *line > 0),
        "passed_over": explained.near().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn diff_facts(diff: &Diff) -> serde_json::Value {
    let only = |wanted: fn(&Change) -> bool| -> Vec<_> {
        let chosen = diff.changes.iter().filter(|change| wanted(change));
        chosen.map(|(Change::Added(rule) | Change::Removed(rule))| rule).collect()
    };
    json!({
        "same": diff.is_empty(),
        "audit_only": diff.audit_only,
        "bandwidth": diff.bandwidth.map(|(before, after)| json!({ "before": before, "after": after })),
        "added": only(|change| matches!(change, Change::Added(_))),
        "removed": only(|change| matches!(change, Change::Removed(_))),
    })
}
