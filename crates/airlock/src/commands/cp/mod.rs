//! `airlock cp`: files into a sandbox and out of it, as an archive through a pipe. The guest opens every path inside,
//! this command every path of the host; neither follows a link that the other side could have made.
//!
//! - [`side`]: what was typed
//! - [`wire`]: the pipe and who is at its other end
//! - [`host`]: paths of this host
//! - [`meter`]: how far it is

mod host;
mod meter;
mod side;
mod wire;

use crate::{
    args::CopyArgs,
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, say_anyway},
};
use airlock_copy::{
    Error, pack,
    tally::Tally,
    tar::{self, Entry, Kind, Reader},
    unpack::{self, HardLinks, Links, Mounts, Rules},
};
use airlock_engine::{
    plan::chain,
    store::{Sandbox, Store},
};
use airlock_protocol::{
    copy::{Copy, Left, Report, Why},
    size,
};
use meter::Meter;
use side::Side;
use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};
use wire::{Direction, Wire};

/// Most entries that may come out.
const MOST_ENTRIES: u64 = 2_000_000;

pub(crate) fn cp(args: &CopyArgs) -> Outcome {
    let sides = (side::parse(&args.source), side::parse(&args.destination));
    let store = home::store()?;
    let copied = match &sides {
        (Side::Inside { sandbox, path }, Side::Host(to)) => {
            let sandbox = store.find(sandbox)?;
            outward(args, &store, (&sandbox, path), to)?
        }
        (Side::Inside { sandbox, path }, Side::Stream) => to_stream(args, &store.find(sandbox)?, path)?,
        (Side::Host(from), Side::Inside { sandbox, path }) => {
            let sandbox = store.find(sandbox)?;
            inward(args, &store, from, (&sandbox, path))?
        }
        (Side::Stream, Side::Inside { sandbox, path }) => from_stream(args, &store.find(sandbox)?, path)?,
        (Side::Inside { .. }, Side::Inside { .. }) => {
            let fix = format!("airlock cp {} - | airlock cp - {}", args.source, args.destination);
            return Err(Failure::new("files are not copied from sandbox to sandbox").code(2).fix(fix));
        }
        _ => {
            let fix = "name one: SANDBOX:PATH; a path of this host with a `:` is written ./a:b";
            return Err(Failure::new("neither path is inside a sandbox").code(2).fix(fix));
        }
    };
    conclude(args, &copied)
}

/// Tells what was copied, and fails if something is missing.
fn conclude(args: &CopyArgs, copied: &Report) -> Outcome {
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    for Left { path, why } in copied.left.iter().filter(|left| !left.why.is_failure()) {
        say_anyway(voice, &format!("left out {path}: {}", why.words()));
    }
    let unnamed = copied.left_count.saturating_sub(u64::try_from(copied.left.len()).unwrap_or(0));
    if unnamed > 0 {
        say_anyway(voice, &format!("left out {unnamed} more"));
    }
    if let Some(Left { path, why }) = copied.left.iter().find(|left| left.why.is_failure()) {
        let what = format!("{path} was not copied as it is: {}", why.words());
        let why = format!("{} entries were left out, all others were copied", copied.left_count);
        return Err(Failure::new(what).code(1).why(why));
    }
    let plural = if copied.files == 1 { "" } else { "s" };
    say(voice, &format!("copied {} file{plural}, {}", copied.files, size::show(copied.bytes)));
    Ok(0)
}

/// Out of a sandbox, to a path of this host.
fn outward(
    args: &CopyArgs,
    store: &Store,
    (sandbox, path): (&Sandbox, &str),
    to: &Path,
) -> Result<Report, Failure> {
    let name = side::last_name(path);
    let place = host::place(store, to, name.as_deref())?;
    let mut wire = Wire::open(sandbox, &out(args, path), Direction::Outward)?;
    let mut archive = Reader::new(wire.take_archive()?);
    let mut meter = Meter::new(args.quiet);
    let taken = unpack::unpack(&mut archive, &place, &rules(args), &mut |tally| meter.tick(tally));
    meter.end();
    archive.drain();
    drop(archive);
    joined(taken, wire.end(), path)
}

/// Out of a sandbox, as an archive on stdout.
fn to_stream(args: &CopyArgs, sandbox: &Sandbox, path: &str) -> Result<Report, Failure> {
    if io::stdout().is_terminal() {
        let fix = format!("airlock cp {} - > FILE.tar", args.source);
        return Err(Failure::new("an archive is not written to a terminal").code(2).fix(fix));
    }
    let mut wire = Wire::open(sandbox, &out(args, path), Direction::Outward)?;
    let mut archive = Reader::new(wire.take_archive()?);
    let top = side::last_name(path).unwrap_or_else(|| PathBuf::from("."));
    let taken = relay(&mut archive, &mut io::stdout().lock(), &top, &rules(args));
    archive.drain();
    drop(archive);
    joined(taken, wire.end(), path)
}

/// Into a sandbox, from a path of this host.
fn inward(
    args: &CopyArgs,
    store: &Store,
    from: &Path,
    (sandbox, path): (&Sandbox, &str),
) -> Result<Report, Failure> {
    let source = host::source(store, from, args.follow_link)?;
    let name = side::last_name(&from.to_string_lossy());
    let name = match (&source, name) {
        (_, None) => None,
        (_, Some(name)) => Some(name.into_os_string().into_string().map_err(|_| {
            Failure::new(format!("the name of {} is not text", from.display()))
                .fix("copy the contents of its directory: DIR/.")
        })?),
    };
    let copy = Copy::In { path: path.to_owned(), name, archive: false };
    let mut wire = Wire::open(sandbox, &copy, Direction::Inward)?;
    let mut archive = wire.take_archive()?;
    let mut meter = Meter::new(args.quiet);
    let sent = pack::pack(&source, &mut archive, &mut |tally| meter.tick(tally));
    meter.end();
    drop(archive);
    joined(sent, wire.end(), &from.to_string_lossy())
}

/// Into a sandbox, from an archive on stdin, which the guest unpacks.
fn from_stream(args: &CopyArgs, sandbox: &Sandbox, path: &str) -> Result<Report, Failure> {
    if io::stdin().is_terminal() {
        let fix = format!("tar c FILES | airlock cp - {}", args.destination);
        return Err(Failure::new("an archive is not read from a terminal").code(2).fix(fix));
    }
    let copy = Copy::In { path: path.to_owned(), name: None, archive: true };
    let mut wire = Wire::open(sandbox, &copy, Direction::Inward)?;
    let mut archive = wire.take_archive()?;
    let sent = io::copy(&mut io::stdin().lock(), &mut archive);
    drop(archive);
    let report = wire.end()?;
    match sent {
        // The guest has its archive and wants no more.
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::because("could not read the archive", &err))
        }
        _ => Ok(report),
    }
}

fn out(args: &CopyArgs, path: &str) -> Copy {
    Copy::Out { path: path.to_owned(), follow: args.follow_link }
}

/// What is taken of a sandbox's archive.
fn rules(args: &CopyArgs) -> Rules {
    Rules {
        links: if args.keep_links { Links::All } else { Links::Within },
        hard_links: HardLinks::Refused,
        mounts: Mounts::Refused,
        owner: None,
        most_bytes: args.limit,
        most_entries: MOST_ENTRIES,
    }
}

/// What both sides say of a copy. What the guest says comes first where it failed: it knows why the pipe broke.
fn joined(
    ours: Result<Tally, Error>,
    theirs: Result<Report, Failure>,
    what: &str,
) -> Result<Report, Failure> {
    let ours = match ours {
        Ok(ours) => ours,
        Err(err) if err.is_broken_off() => {
            theirs?;
            return Err(failure(&err, what));
        }
        Err(err) => return Err(failure(&err, what)),
    };
    let mut report = theirs?;
    report.files = ours.files;
    report.bytes = ours.bytes;
    report.left.extend(ours.left);
    report.left_count = report.left_count.saturating_add(ours.left_count);
    Ok(report)
}

fn failure(err: &Error, what: &str) -> Failure {
    let failure = Failure::new(format!("{what} was not copied whole: {err}")).code(1);
    let failure = match std::error::Error::source(err) {
        Some(cause) => failure.why(chain(cause)),
        None => failure,
    };
    match err {
        Error::TooMuch { .. } => failure.fix("--limit SIZE, if so much is meant"),
        Error::Archive(tar::Malformed::Compressed(_)) => failure.fix("decompress it first"),
        _ => failure,
    }
}

/// Passes an archive of a sandbox on, entry by entry: nothing that was not understood reaches the other side.
fn relay(
    archive: &mut Reader<File>,
    into: &mut impl Write,
    top: &Path,
    rules: &Rules,
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let mut piece = vec![0u8; 128 * 1024];
    let write = |into: &mut dyn Write, bytes: &[u8]| {
        let failed = |source| Error::Io { tried: "write", name: "the archive".to_owned(), source };
        into.write_all(bytes).map_err(failed)
    };
    while let Some(entry) = archive.next()? {
        let below = unpack::parts(&entry)?;
        tally.entries += 1;
        if tally.entries > rules.most_entries || tally.bytes.saturating_add(entry.size) > rules.most_bytes {
            return Err(Error::TooMuch { most: size::show(rules.most_bytes) });
        }
        let Some(entry) = passed_on(entry, &below, top, rules, &mut tally)? else { continue };
        write(into, &tar::head(&entry))?;
        loop {
            let count = archive.read(&mut piece)?;
            if count == 0 {
                break;
            }
            write(into, piece.get(..count).unwrap_or_default())?;
        }
        write(into, tar::padding(entry.size))?;
        tally.bytes = tally.bytes.saturating_add(entry.size);
        tally.files += u64::from(entry.kind != Kind::Directory);
    }
    write(into, &tar::END)?;
    into.flush().map_err(|source| Error::Io { tried: "write", name: "the archive".to_owned(), source })?;
    Ok(tally)
}

/// An entry as it is passed on, under the name of what is copied.
fn passed_on(
    entry: Entry,
    below: &Path,
    top: &Path,
    rules: &Rules,
    tally: &mut Tally,
) -> Result<Option<Entry>, Error> {
    let path = if below.as_os_str().is_empty() { top.to_owned() } else { top.join(below) };
    let mut leave = |why| {
        tally.left_count += 1;
        tally.left.push(Left { path: below.display().to_string(), why });
        tally.left.truncate(20);
        Ok(None)
    };
    let mode = match &entry.kind {
        Kind::Directory => entry.mode & 0o1777,
        Kind::File | Kind::Link(_) => entry.mode & 0o777,
        Kind::HardLink(_) => return Err(Error::HardLink { name: below.display().to_string() }),
        Kind::Other => return leave(Why::Kind),
    };
    if let Kind::Link(target) = &entry.kind {
        let depth = below.components().count().saturating_sub(1);
        if rules.links == Links::Within && !unpack::stays_within(depth, target) {
            return leave(Why::LeadsOut);
        }
    }
    Ok(Some(Entry { path: path.as_os_str().as_bytes().to_vec(), mode, ..entry }))
}
