//! `airlock ledger`: what was decided at a sandbox's wall, also of a sandbox that is gone.

use super::print_json;
use crate::{
    args::{ExportArgs, LedgerArgs, LedgerFormat, LedgerVerb, VerifyArgs},
    failure::{Failure, Outcome},
    home,
    ledger::{self, Kept, line},
};
use airlock_doors::control::client::{Client, Error};
use airlock_gate::ledger::{Growth, Item, Reader, is_denial, ocsf, verify as chain};
use airlock_protocol::control::Request;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use std::{
    collections::VecDeque,
    io::{self, Write},
    os::fd::AsFd,
};

pub(crate) fn ledger(args: &LedgerArgs) -> Outcome {
    match &args.verb {
        Some(LedgerVerb::Verify(args)) => verify(args),
        Some(LedgerVerb::Export(args)) => export(args),
        None => print(args),
    }
}

fn print(args: &LedgerArgs) -> Outcome {
    let kept = ledger::find(&home::store()?, &args.sandbox)?;
    // Watched before read: nothing written in between is missed.
    let follow = if args.follow { Follow::new(&kept)? } else { None };
    let mut reader = Reader::open(&kept.folder).map_err(unreadable)?;
    let mut last = VecDeque::new();
    let mut take = |item: Item| {
        if !is_wanted(args, &item) {
            return Ok(());
        }
        last.push_back(item);
        match args.tail {
            Some(most) if last.len() > most => drop(last.pop_front()),
            Some(_) => {}
            None => last.drain(..).try_for_each(|item| show(args, &item))?,
        }
        Ok(())
    };
    each(&mut reader, &mut take)?;
    last.iter().try_for_each(|item| show(args, item))?;
    let Some(mut follow) = follow else { return Ok(0) };
    loop {
        let has_ended = follow.wait()?;
        each(&mut reader, &mut |item| match is_wanted(args, &item) {
            true => show(args, &item),
            false => Ok(()),
        })?;
        if has_ended {
            return Ok(0);
        }
    }
}

/// Gives every record that is written now.
fn each(reader: &mut Reader, take: &mut impl FnMut(Item) -> Result<(), Failure>) -> Result<(), Failure> {
    while let Some(item) = reader.next().map_err(unreadable)? {
        take(item)?;
    }
    Ok(())
}

fn is_wanted(args: &LedgerArgs, item: &Item) -> bool {
    let Item::Record(record) = item else { return true };
    let is_young =
        args.since.is_none_or(|since| record.at.parse::<jiff::Timestamp>().is_ok_and(|at| at >= since));
    is_young && (!args.denied || is_denial(&record.entry))
}

fn show(args: &LedgerArgs, item: &Item) -> Result<(), Failure> {
    match (item, args.json) {
        (Item::Record(record), true) => print_json(record),
        (Item::Record(record), false) => Ok(writeln!(io::stdout(), "{}", line(record))?),
        (Item::Damaged { bytes }, true) => {
            print_json(&serde_json::json!({ "kind": "damaged", "bytes": bytes }))
        }
        (Item::Damaged { bytes }, false) => Ok(writeln!(
            io::stdout(),
            "({bytes} bytes that are no record; `airlock ledger verify` tells more)"
        )?),
    }
}

fn verify(args: &VerifyArgs) -> Outcome {
    let kept = ledger::find(&home::store()?, &args.sandbox)?;
    let report = chain::folder(&kept.folder).map_err(unreadable)?;
    let is_intact = report.is_intact();
    let problems: Vec<String> = report
        .problems
        .iter()
        .map(|problem| format!("{}:{}: {}", problem.file, problem.line, problem.fault))
        .collect();
    if args.json {
        print_json(&serde_json::json!({
            "id": kept.id, "name": kept.name, "intact": is_intact, "records": report.records, "first": report.first,
            "dropped": report.dropped, "last": report.last, "head": report.head, "unfinished_bytes": report.unfinished, "problems": problems,
            "more_problems": report.more_problems,
        }))?;
        return Ok(u8::from(!is_intact));
    }
    let mut stdout = io::stdout().lock();
    for problem in &problems {
        writeln!(stdout, "{problem}")?;
    }
    if report.more_problems > 0 {
        writeln!(stdout, "and {} more", report.more_problems)?;
    }
    let verdict = if is_intact { "intact" } else { "NOT intact" };
    writeln!(stdout, "{verdict}: {} records, head {}", report.records, report.head)?;
    Ok(u8::from(!is_intact))
}

fn export(args: &ExportArgs) -> Outcome {
    let kept = ledger::find(&home::store()?, &args.sandbox)?;
    let mut reader = Reader::open(&kept.folder).map_err(unreadable)?;
    each(&mut reader, &mut |item| match (item, args.format) {
        (Item::Record(record), LedgerFormat::Ocsf) => print_json(&ocsf::event(&record)),
        (Item::Record(record), LedgerFormat::Jsonl) => print_json(&record),
        (Item::Damaged { .. }, _) => Ok(()),
    })?;
    Ok(0)
}

fn unreadable(err: io::Error) -> Failure {
    Failure::because("could not read the ledger", &err)
}

/// Waits for more: for the ledger to grow, and for the keeper to end.
struct Follow {
    growth: Growth,
    keeper: Client,
}

impl Follow {
    /// `None` if the sandbox does not run: nothing will come.
    fn new(kept: &Kept) -> Result<Option<Follow>, Failure> {
        let Some(sandbox) = &kept.sandbox else { return Ok(None) };
        let mut keeper = match Client::connect(sandbox) {
            Ok(keeper) => keeper,
            Err(Error::NotRunning { .. }) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        keeper.send(&Request::Wait, &[])?;
        let growth =
            Growth::of(&kept.folder).map_err(|err| Failure::because("could not watch the ledger", &err))?;
        Ok(Some(Follow { growth, keeper }))
    }

    /// Whether the sandbox has ended.
    fn wait(&mut self) -> Result<bool, Failure> {
        let mut watched = [
            PollFd::from_borrowed_fd(self.growth.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.keeper.as_fd(), PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::because("could not wait for the ledger", &errno)),
        }
        let [_, keeper] = &watched;
        let has_ended = !keeper.revents().is_empty();
        self.growth.clear();
        Ok(has_ended)
    }
}
