//! `airlock diff`: what a sandbox changed in its copy of the workspace.

use crate::{
    args::DiffArgs,
    commands::{find, print_json, review},
    failure::{Failure, Outcome},
    home,
    say::{self, Voice, say_anyway},
};
use airlock_engine::review::refuse;
use airlock_files::review::{Change, Changes, Kind, Seen, Style, Verb, Why, WriteError, names::quote};
use std::{
    io::{self, BufWriter, IsTerminal as _, Write},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// Bytes of output gathered before they are written.
const BUFFER: usize = 256 << 10;

pub(crate) fn diff(args: &DiffArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let opened = review::open(&sandbox)?;
    let mut changes = opened.changes()?;
    changes.keep_below(&review::paths(&args.paths, opened.workspace())?);
    let mut out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    match () {
        () if args.json => json(&opened, &changes)?,
        () if args.name_only => names_only(&changes, &mut out)?,
        () if args.stat => stat(&changes, &mut out)?,
        () if args.paths.is_empty() => {
            git_in_short(&opened, &changes, &mut out)?;
            patch(&changes, &mut out, |change| !is_of_git(&change.path))?;
        }
        () => patch(&changes, &mut out, |_| true)?,
    }
    out.flush()?;
    if !args.json {
        tell_left_out(&changes);
    }
    Ok(u8::from(args.exit_code && !changes.is_empty()))
}

/// What lies in `.git` is no text to read, and `git apply` refuses it: told in lines that programs skip. What the host would
/// obey is named.
fn git_in_short(
    opened: &airlock_engine::review::Review,
    changes: &Changes,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let known = opened.known().map_err(|err| Failure::from(refuse(&err)))?;
    let judge = opened.judge_by(&known);
    let (protected, plain): (Vec<&Change>, Vec<&Change>) = changes
        .list()
        .iter()
        .filter(|change| is_of_git(&change.path) && is_told(change))
        .partition(|change| judge.is_protected(opened.tree(), change));
    for change in protected {
        writeln!(out, "# {} ({}, protected)", quoted(&change.path), change.verb().word())?;
    }
    if !plain.is_empty() {
        let files = if plain.len() == 1 { "file" } else { "files" };
        writeln!(out, "# .git: {} {files} of git itself (`airlock diff - .git` shows them)", plain.len())?;
    }
    Ok(())
}

fn is_of_git(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().eq_ignore_ascii_case(".git"))
}

fn patch(changes: &Changes, out: &mut dyn Write, is_shown: impl Fn(&Change) -> bool) -> Result<(), Failure> {
    let style = match (io::stdout().is_terminal(), say::wants_colour()) {
        (false, _) => Style::Bytes,
        (true, true) => Style::Colours,
        (true, false) => Style::Plain,
    };
    let mut shown = changes.list().iter().filter(|change| is_shown(change));
    shown.try_for_each(|change| write_patch(changes, change, style, out))
}

/// One change. A file that is gone or was replaced meanwhile is told, and does not stop the others.
pub(super) fn write_patch(
    changes: &Changes,
    change: &Change,
    style: Style,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match changes.write_patch(change, style, out) {
        Ok(()) => Ok(()),
        Err(WriteError::Write(err)) => Err(err.into()),
        Err(WriteError::Read(err)) => {
            out.flush()?;
            say_anyway(Voice::Normal, &airlock_engine::plan::chain(&err));
            Ok(())
        }
    }
}

fn names_only(changes: &Changes, out: &mut dyn Write) -> Result<(), Failure> {
    for change in changes.list().iter().filter(|change| is_told(change)) {
        writeln!(out, "{}", quoted(&change.path))?;
    }
    Ok(())
}

/// Directories are told by what is in them, moved files where they went.
fn is_told(change: &Change) -> bool {
    let is_plain_directory = change.kind() == Kind::Directory && change.verb() != Verb::Mode;
    !is_plain_directory && change.verb() != Verb::MovedAway
}

/// As `git diff --stat` has it.
fn stat(changes: &Changes, out: &mut dyn Write) -> Result<(), Failure> {
    let told: Vec<(String, Option<(u64, u64)>)> = changes
        .list()
        .iter()
        .filter(|change| is_told(change))
        .map(|change| (label(change), changes.lines_of(change)))
        .collect();
    let width = told.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0).min(80);
    let most = told.iter().filter_map(|(_, lines)| lines.map(|(a, r)| a + r)).max().unwrap_or(0);
    let (mut added, mut removed) = (0u64, 0u64);
    for (label, lines) in &told {
        match lines {
            Some((plus, minus)) => {
                (added, removed) = (added + plus, removed + minus);
                let marks = marks(*plus, *minus, most);
                writeln!(out, "{}", format!(" {label:<width$} | {:>5} {marks}", plus + minus).trim_end())?;
            }
            None => writeln!(out, " {label:<width$} |   Bin")?,
        }
    }
    if !told.is_empty() {
        let files = if told.len() == 1 { "file" } else { "files" };
        writeln!(out, " {} {files} changed, {added} insertions(+), {removed} deletions(-)", told.len())?;
    }
    Ok(())
}

fn label(change: &Change) -> String {
    match (&change.renamed_from, change.verb()) {
        (Some(from), _) => format!("{} => {}", quoted(from), quoted(&change.path)),
        (None, Verb::Mode) => format!("{} (mode)", quoted(&change.path)),
        _ => quoted(&change.path),
    }
}

/// At most forty signs for the file that changed most.
fn marks(plus: u64, minus: u64, most: u64) -> String {
    const WIDEST: u64 = 40;
    let scaled = |count: u64| match (count, most) {
        (0, _) => 0,
        (count, most) if most <= WIDEST => count,
        (count, most) => (count.saturating_mul(WIDEST) / most).max(1),
    };
    let repeat = |sign: &str, count: u64| sign.repeat(usize::try_from(count).unwrap_or(0));
    repeat("+", scaled(plus)) + &repeat("-", scaled(minus))
}

fn json(opened: &airlock_engine::review::Review, changes: &Changes) -> Result<(), Failure> {
    let journals = opened.known().map_err(|err| Failure::from(refuse(&err)))?;
    let judge = opened.judge_by(&journals);
    for change in changes.list() {
        let lines = changes.lines_of(change);
        let mode = |seen: &Option<Seen>| seen.as_ref().map(|seen| format!("{:o}", seen.git_mode()));
        let size = |seen: &Option<Seen>| seen.as_ref().map(|seen| seen.size);
        print_json(&serde_json::json!({
            "path": quoted(&change.path),
            "change": change.verb().word(),
            "kind": change.kind().word(),
            "from": change.renamed_from.as_deref().map(quoted),
            "to": change.renamed_to.as_deref().map(quoted),
            "old_mode": mode(&change.was),
            "mode": mode(&change.is),
            "old_size": size(&change.was),
            "size": size(&change.is),
            "added": lines.map(|(added, _)| added),
            "removed": lines.map(|(_, removed)| removed),
            "protected": judge.is_protected(opened.tree(), change),
            "conflict": judge.is_conflict(opened.tree(), change),
        }))?;
    }
    for left in changes.left_out() {
        print_json(&serde_json::json!({
            "path": quoted(&left.path), "change": "left_out", "why": why(left.why),
        }))?;
    }
    Ok(())
}

pub(super) fn tell_left_out(changes: &Changes) {
    for left in changes.left_out().iter().take(10) {
        say_anyway(Voice::Normal, &format!("{} stays in the sandbox: {}", quoted(&left.path), why(left.why)));
    }
    if let more @ 1.. = changes.left_out().len().saturating_sub(10) {
        say_anyway(Voice::Normal, &format!("{more} more stay in the sandbox"));
    }
}

pub(super) fn why(why: Why) -> &'static str {
    match why {
        Why::Special => "devices, sockets and pipes never leave",
        Why::Mount => "another file system is mounted there on the host",
        Why::Deep => "it lies too deep",
    }
}

pub(super) fn quoted(path: &Path) -> String {
    quote(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_changed_most_has_forty_marks() {
        assert_eq!(marks(3, 1, 4), "+++-");
        assert_eq!(marks(400, 400, 800).len(), 40);
        assert_eq!(marks(1, 0, 100_000), "+");
        assert_eq!(marks(0, 0, 0), "");
    }
}
