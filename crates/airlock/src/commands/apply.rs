//! `airlock apply`: what a sandbox changed reaches the host.

use crate::{
    args::ApplyArgs,
    commands::{
        diff::{quoted, tell_left_out, why, write_patch},
        find, print_json, review,
    },
    failure::{Failure, Outcome},
    home,
    say::{self, Voice, say_anyway},
};
use airlock_engine::review::refuse;
use airlock_files::review::{Applied, Change, Changes, Kind, Protected, Style, Verb, Verdict};
use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

pub(crate) fn apply(args: &ApplyArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let opened = review::open(&sandbox)?;
    let mut journals = opened.journals()?;
    journals.recover(opened.tree()).map_err(|err| Failure::from(refuse(&err)))?;
    let mut changes = opened.changes()?;
    changes.keep_below(&review::paths(&args.paths, opened.workspace())?);
    let protected = if args.include_protected { Protected::Included } else { Protected::HeldBack };
    let mut verdict = opened.judge(&journals).judge(&changes, protected);
    if args.interactive {
        choose(&changes, &mut verdict)?;
    }
    if !verdict.conflicts.is_empty() && !args.force {
        if args.json {
            print_json(&facts(&Applied::default(), &verdict, &changes))?;
        }
        return Err(in_the_way(&verdict.conflicts));
    }
    if args.dry_run {
        let would = Applied { done: verdict.free.clone(), ..Applied::default() };
        tell(&would, &verdict, &changes, args, "would apply")?;
        return Ok(0);
    }
    let applied = journals.apply(opened.tree(), &verdict.free, opened.owner());
    let applied = applied.map_err(|err| Failure::from(refuse(&err)))?;
    tell(&applied, &verdict, &changes, args, "applied")?;
    match applied.stopped {
        None => Ok(0),
        Some(err) => {
            let words = Failure::from(refuse(&err));
            let what =
                format!("applied {} of {} changes, then stopped", applied.done.len(), verdict.free.len());
            let fix = "mend the cause and apply again, or `airlock undo` takes back what was written";
            Err(Failure::new(what).code(words.code).why(words.why.unwrap_or(words.what)).fix(fix))
        }
    }
}

fn in_the_way(conflicts: &[PathBuf]) -> Failure {
    let some: Vec<String> = conflicts.iter().take(10).map(|path| quoted(path)).collect();
    let more = match conflicts.len() {
        0..=10 => String::new(),
        many => format!(" and {} more", many - 10),
    };
    Failure::new("nothing was applied: files of the host changed since the sandbox got its copy")
        .code(1)
        .why(format!("{}{more}", some.join(", ")))
        .fix("compare them (`airlock diff`), then --force replaces them; or name the paths to apply")
}

/// Says what was done, in lines or as JSON.
fn tell(
    applied: &Applied,
    verdict: &Verdict,
    changes: &Changes,
    args: &ApplyArgs,
    verb: &str,
) -> Result<(), Failure> {
    if args.json {
        return print_json(&facts(applied, verdict, changes));
    }
    let mut out = io::stdout().lock();
    let files = applied.files();
    writeln!(out, "{verb} {files} {}", if files == 1 { "file" } else { "files" })?;
    if args.dry_run {
        for change in &applied.done {
            writeln!(out, "  {} {}", change.verb().word(), quoted(&change.path))?;
        }
    }
    let held = topmost(&verdict.protected);
    if !held.is_empty() {
        let paths = if held.len() == 1 { "path" } else { "paths" };
        writeln!(out, "held back {} protected {paths} (--include-protected writes them too):", held.len())?;
        for path in held.iter().take(20) {
            writeln!(out, "  {}", quoted(path))?;
        }
        if let more @ 1.. = held.len().saturating_sub(20) {
            writeln!(out, "  and {more} more")?;
        }
    }
    for change in &verdict.stale {
        say_anyway(Voice::Normal, &format!("{} stays as git on the host has it", quoted(&change.path)));
    }
    for path in &applied.kept {
        say_anyway(Voice::Normal, &format!("{} stays: it is not empty", quoted(path)));
    }
    tell_left_out(changes);
    Ok(())
}

/// Paths that lie below no other one.
fn topmost(changes: &[Change]) -> Vec<&Path> {
    let mut top: Vec<&Path> = Vec::new();
    for change in changes {
        if !top.last().is_some_and(|last| change.path.starts_with(last)) {
            top.push(&change.path);
        }
    }
    top
}

fn facts(applied: &Applied, verdict: &Verdict, changes: &Changes) -> serde_json::Value {
    let names = |paths: Vec<&Path>| -> Vec<String> { paths.into_iter().map(quoted).collect() };
    let done: Vec<serde_json::Value> = applied
        .done
        .iter()
        .map(|change| serde_json::json!({ "path": quoted(&change.path), "change": change.verb().word() }))
        .collect();
    let left: Vec<serde_json::Value> = changes
        .left_out()
        .iter()
        .map(|left| serde_json::json!({ "path": quoted(&left.path), "why": why(left.why) }))
        .collect();
    serde_json::json!({
        "applied": done,
        "files": applied.files(),
        "protected": names(verdict.protected.iter().map(|change| change.path.as_path()).collect()),
        "conflicts": names(verdict.conflicts.iter().map(PathBuf::as_path).collect()),
        "stale": names(verdict.stale.iter().map(|change| change.path.as_path()).collect()),
        "kept": names(applied.kept.iter().map(PathBuf::as_path).collect()),
        "left_out": left,
        "stopped": applied.stopped.as_ref().map(|err| airlock_engine::plan::chain(err)),
    })
}

/// Shows each change and asks. What is not wanted is neither written nor in anyone's way.
fn choose(changes: &Changes, verdict: &mut Verdict) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new("nothing was applied: nobody is there to be asked")
            .code(2)
            .why("standard input is not a terminal")
            .fix("name the paths to apply, without --interactive"));
    }
    let style = if say::wants_colour() { Style::Colours } else { Style::Plain };
    let mut wanted = BTreeSet::new();
    for change in verdict.free.iter().filter(|change| !goes_along(change, &verdict.free)) {
        let mut out = io::stdout().lock();
        write_patch(changes, change, style, &mut out)?;
        out.flush()?;
        drop(out);
        match ask(&change.path)? {
            Answer::Yes => drop(wanted.insert(change.path.clone())),
            Answer::No => {}
            Answer::All => {
                let rest = verdict.free.iter().filter(|other| other.path >= change.path);
                wanted.extend(rest.map(|change| change.path.clone()));
                break;
            }
            Answer::Quit => break,
        }
    }
    let chosen: Vec<Change> =
        verdict.free.iter().filter(|change| is_chosen(change, &verdict.free, &wanted)).cloned().collect();
    verdict.conflicts.retain(|path| chosen.iter().any(|change| change.path == *path));
    verdict.free = chosen;
    Ok(())
}

/// Nobody is asked about a directory that comes or goes with what is in it, nor about the place that a file left.
fn goes_along(change: &Change, all: &[Change]) -> bool {
    match change.verb() {
        Verb::MovedAway => true,
        Verb::Added | Verb::Deleted if change.kind() == Kind::Directory => {
            below(change, all).next().is_some()
        }
        _ => false,
    }
}

/// A file goes from its old place if it comes to the new one; a directory comes with the first thing in it, and goes with
/// the last.
fn is_chosen(change: &Change, all: &[Change], wanted: &BTreeSet<PathBuf>) -> bool {
    let is_wanted = |change: &Change| match &change.renamed_to {
        Some(to) => wanted.contains(to),
        None => wanted.contains(&change.path),
    };
    if !goes_along(change, all) || change.verb() == Verb::MovedAway {
        return is_wanted(change);
    }
    let mut asked =
        below(change, all).filter(|below| below.verb() == Verb::MovedAway || !goes_along(below, all));
    match change.verb() {
        Verb::Deleted => asked.all(is_wanted),
        _ => asked.any(is_wanted),
    }
}

/// Those that lie below one. All are in the order of their paths.
fn below<'a>(change: &'a Change, all: &'a [Change]) -> impl Iterator<Item = &'a Change> {
    let after = all.partition_point(|other| other.path <= change.path);
    let rest = all.get(after..).unwrap_or_default();
    rest.iter().take_while(move |other| other.path.starts_with(&change.path))
}

enum Answer {
    Yes,
    No,
    All,
    Quit,
}

fn ask(path: &Path) -> Result<Answer, Failure> {
    loop {
        let mut stderr = io::stderr();
        write!(stderr, "apply {}? [y]es, [n]o, [a]ll that follow, [q]uit: ", quoted(path))?;
        stderr.flush()?;
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        if read.map_err(|err| Failure::because("could not read the answer", &err))? == 0 {
            return Ok(Answer::Quit);
        }
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Answer::Yes),
            "n" | "no" => return Ok(Answer::No),
            "a" | "all" => return Ok(Answer::All),
            "q" | "quit" => return Ok(Answer::Quit),
            _ => {}
        }
    }
}
