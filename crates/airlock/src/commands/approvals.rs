//! `airlock approvals`, `approve` and `refuse`: crossings of all running sandboxes that wait for a person.

use super::print_json;
use crate::{
    answers,
    args::{AnswerArgs, ApprovalsArgs},
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, terminal_width},
    table::Table,
};
use airlock_doors::control::client::{Client, Error, Received};
use airlock_engine::store::{Entry, Sandbox, Store};
use airlock_protocol::{
    approval::{Answer, Given, Pending, Scope},
    control::{Reply, Request},
    event::Event,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{collections::BTreeMap, io::Write, os::fd::AsFd};

/// How often sandboxes that have come meanwhile are looked for.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A crossing that waits, and whose it is.
struct Waiting {
    sandbox: Sandbox,
    pending: Pending,
}

pub(crate) fn approvals(args: &ApprovalsArgs) -> Outcome {
    let store = home::store()?;
    if args.watch {
        return watch(&store, args);
    }
    let waiting = waiting(&store)?;
    if args.json {
        waiting.iter().try_for_each(|one| print_json(&one.pending))?;
        return Ok(0);
    }
    std::io::stdout().write_all(table(&waiting).as_bytes())?;
    Ok(0)
}

pub(crate) fn approve(args: &AnswerArgs) -> Outcome {
    answer(args, Given::Approved)
}

pub(crate) fn refuse(args: &AnswerArgs) -> Outcome {
    answer(args, Given::Refused)
}

fn answer(args: &AnswerArgs, verdict: Given) -> Outcome {
    let store = home::store()?;
    let one = chosen(waiting(&store)?, &args.request)?;
    let scope = args.scope.scope();
    let answer = Answer { id: one.pending.id.clone(), verdict, scope };
    let mut client = Client::connect(&one.sandbox)?;
    // Before the answer: a rule that cannot be written is no answer for good, and the crossing still waits.
    if scope == Scope::Always {
        let place = answers::Where::of(&one.sandbox)?;
        let path = answers::keep(&one.pending, verdict, args.file.as_deref(), &place)?;
        say(Voice::Normal, &format!("the rule is in {}", path.display()));
    }
    if let Reply::Refused(refusal) = client.ask(&Request::Answer(answer.clone()))? {
        return Err(refusal.into());
    }
    let verb = match verdict {
        Given::Approved => "approved",
        Given::Refused => "refused",
    };
    say(
        Voice::Normal,
        &format!("{verb}: {} of {}, {}", one.pending.words(), one.pending.sandbox, scope_words(scope)),
    );
    if args.json {
        print_json(&serde_json::json!({
            "id": answer.id, "host": one.pending.host, "port": one.pending.port, "method": one.pending.method,
            "path": one.pending.path, "verdict": verdict, "scope": scope,
        }))?;
    }
    Ok(0)
}

/// Everything that waits, the oldest first. A keeper that ends meanwhile has nothing that waits.
fn waiting(store: &Store) -> Result<Vec<Waiting>, Failure> {
    let mut waiting = Vec::new();
    for Entry { sandbox, .. } in live(store)? {
        let Ok(reply) = Client::connect(&sandbox).and_then(|mut client| client.ask(&Request::Approvals))
        else {
            continue;
        };
        if let Reply::Approvals { pending } = reply {
            waiting.extend(pending.into_iter().map(|pending| Waiting { sandbox: sandbox.clone(), pending }));
        }
    }
    waiting.sort_by(|a, b| (&a.pending.since, &a.pending.id).cmp(&(&b.pending.since, &b.pending.id)));
    Ok(waiting)
}

fn live(store: &Store) -> Result<Vec<Entry>, Failure> {
    Ok(store.list()?.into_iter().filter(|entry| entry.state.status.is_live()).collect())
}

/// The one meant by an id, or an unambiguous beginning of one; `-` and the empty text mean the newest.
fn chosen(mut waiting: Vec<Waiting>, selector: &str) -> Result<Waiting, Failure> {
    let nothing = |what: String| Failure::new(what).code(3).fix("`airlock approvals` lists what waits");
    if selector.is_empty() || selector == "-" {
        return waiting.pop().ok_or_else(|| nothing("nothing waits for an answer".to_owned()));
    }
    if let Some(exact) = waiting.iter().position(|one| one.pending.id == selector) {
        return Ok(waiting.swap_remove(exact));
    }
    let begins: Vec<usize> = (0..)
        .zip(&waiting)
        .filter(|(_, one)| one.pending.id.starts_with(selector))
        .map(|(at, _)| at)
        .collect();
    match begins.as_slice() {
        [only] => Ok(waiting.swap_remove(*only)),
        [] => Err(nothing(format!("no request {:?} waits; it may have been answered", short(selector)))),
        several => {
            let ids: Vec<&str> =
                several.iter().filter_map(|at| waiting.get(*at)).map(|one| one.pending.id.as_str()).collect();
            Err(Failure::new(format!("{:?} could be {}", short(selector), ids.join(", ")))
                .code(3)
                .fix("type more of it"))
        }
    }
}

fn short(selector: &str) -> String {
    selector.chars().take(64).collect()
}

fn table(waiting: &[Waiting]) -> String {
    let mut table = Table::new(["REQUEST", "SANDBOX", "WANTS", "LEFT", "RULE"]);
    for Waiting { pending, .. } in waiting {
        table.row([
            pending.id.clone(),
            pending.sandbox.clone(),
            pending.words(),
            left(pending),
            pending.rule.clone(),
        ]);
    }
    table.text(terminal_width())
}

/// How long it still waits.
fn left(pending: &Pending) -> String {
    let until = pending.until.parse::<jiff::Timestamp>();
    until.map_or_else(
        |_| pending.until.clone(),
        |until| format!("{}s", until.duration_since(jiff::Timestamp::now()).as_secs().max(0)),
    )
}

/// Tells of questions and answers as they come, of every sandbox that runs or will run.
fn watch(store: &Store, args: &ApprovalsArgs) -> Outcome {
    let mut watched: BTreeMap<String, Client> = BTreeMap::new();
    loop {
        look_for_more(store, &mut watched, args)?;
        wait(&watched)?;
        let mut gone = Vec::new();
        for (id, client) in &mut watched {
            if !hear(client, args)? {
                gone.push(id.clone());
            }
        }
        gone.iter().for_each(|id| drop(watched.remove(id)));
    }
}

fn look_for_more(
    store: &Store,
    watched: &mut BTreeMap<String, Client>,
    args: &ApprovalsArgs,
) -> Result<(), Failure> {
    for Entry { sandbox, .. } in live(store)? {
        let id = sandbox.id().to_string();
        if watched.contains_key(&id) {
            continue;
        }
        let Ok(mut client) = Client::connect(&sandbox) else { continue };
        // What waits already is told first; what comes meanwhile is told after it.
        let asked = client.send(&Request::Watch, &[]).and_then(|()| client.send(&Request::Approvals, &[]));
        if asked.is_ok() {
            hear(&mut client, args)?;
            watched.insert(id, client);
        }
    }
    Ok(())
}

fn wait(watched: &BTreeMap<String, Client>) -> Result<(), Failure> {
    let mut ready: Vec<PollFd<'_>> =
        watched.values().map(|client| PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)).collect();
    match poll(&mut ready, Some(&LOOK_AGAIN)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Failure::because("could not wait for questions", &errno)),
    }
}

/// Tells what has arrived; `false` once the keeper is gone.
fn hear(client: &mut Client, args: &ApprovalsArgs) -> Result<bool, Failure> {
    let is_there = match client.read_ready() {
        Ok(()) => true,
        Err(Error::Closed | Error::Io(_)) => false,
        Err(err) => return Err(err.into()),
    };
    while let Some(received) = client.next()? {
        match received {
            Received::Reply(Reply::Approvals { pending }) => {
                pending.into_iter().try_for_each(|pending| tell(&Event::Asked(Box::new(pending)), args))?;
            }
            Received::Reply(Reply::Event(event)) => tell(&event, args)?,
            Received::Reply(_) | Received::Data(_) => {}
        }
    }
    Ok(is_there)
}

fn tell(event: &Event, args: &ApprovalsArgs) -> Result<(), Failure> {
    let line = match event {
        Event::Asked(pending) => {
            format!("asked     {}  {}  {}  {}", pending.id, pending.sandbox, pending.words(), pending.rule)
        }
        Event::Answered { id, verdict, scope, by } => {
            let verdict = match verdict {
                Given::Approved => "approved",
                Given::Refused => "refused",
            };
            format!("{verdict:<9} {id}  {}, by {by}", scope_words(*scope))
        }
        _ => return Ok(()),
    };
    match args.json {
        true => print_json(event),
        false => Ok(writeln!(std::io::stdout(), "{}", crate::clean::clean_line(&line))?),
    }
}

fn scope_words(scope: Scope) -> &'static str {
    match scope {
        Scope::Once => "once",
        Scope::Sandbox => "as long as the sandbox lives",
        Scope::Always => "always",
    }
}
