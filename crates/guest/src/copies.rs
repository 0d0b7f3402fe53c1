//! Files in and out, by a process of its own: it opens paths inside, with the sandbox's own root and rights, and the host
//! never does.

use airlock_copy::{
    Error, pack,
    place::{self, Place},
    tally::Tally,
    tar::Reader,
    unpack::{self, HardLinks, Links, Mounts, Rules},
};
use airlock_linux::{clone, fd, signal};
use airlock_protocol::{
    copy::{Copy, CopyJob, Report},
    guest::User,
};
use rustix::{fs::CWD, io::Errno, process::Pid};
use std::{
    error::Error as _,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

/// Starts the process.
pub(crate) fn start(job: &CopyJob, pipes: Vec<OwnedFd>) -> io::Result<Pid> {
    let [archive, report]: [OwnedFd; 2] = pipes.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    match clone::fork_inside()? {
        Some(child) => Ok(child),
        None => {
            let code = work(job, archive, report).map_or(125, |()| 0);
            clone::exit_now(code)
        }
    }
}

/// In the new process, which keeps nothing of the guest's but the two pipes.
fn work(job: &CopyJob, archive: OwnedFd, report: OwnedFd) -> io::Result<()> {
    signal::reset_for_program();
    rustix::stdio::dup2_stdin(&archive)?;
    rustix::stdio::dup2_stdout(&report)?;
    drop((archive, report));
    fd::close_all_but(rustix::stdio::stdin())?;
    let mut archive = File::from(rustix::io::dup(rustix::stdio::stdin())?);
    let done = match &job.copy {
        Copy::Out { path, follow } => send(path, *follow, &mut archive),
        Copy::In { path, name, archive: false } => take(path, name.as_deref(), &job.user, &archive),
        Copy::In { path, archive: true, .. } => take_archive(path, &job.user, &archive),
    };
    let text = serde_json::to_vec(&told(done)).map_err(io::Error::other)?;
    let mut report = File::from(rustix::io::dup(rustix::stdio::stdout())?);
    report.write_all(&text)
}

fn send(path: &str, follow: bool, archive: &mut File) -> Result<Tally, Error> {
    let mut path = inside(path);
    if follow {
        let real = std::fs::canonicalize(&path);
        path =
            real.map_err(|source| Error::Io { tried: "find", name: path.display().to_string(), source })?;
    }
    let source = pack::Source::find(&path, &open)?;
    pack::pack(&source, archive, &mut |_| {})
}

fn take(path: &str, name: Option<&str>, user: &User, archive: &File) -> Result<Tally, Error> {
    let place = place::find(&inside(path), name.map(Path::new), &open)?;
    let mut archive = Reader::new(archive);
    let tally = unpack::unpack(&mut archive, &place, &rules(user), &mut |_| {})?;
    archive.drain();
    Ok(tally)
}

fn take_archive(path: &str, user: &User, archive: &File) -> Result<Tally, Error> {
    let Place::Into(directory) = place::find(&inside(path), None, &open)? else {
        return Err(Error::Place { name: path.to_owned(), why: "is no directory" });
    };
    let mut archive = Reader::new(archive);
    let tally = unpack::unpack_all(&mut archive, directory.as_fd(), &rules(user), &mut |_| {})?;
    archive.drain();
    Ok(tally)
}

/// What comes in is the person's own.
fn rules(user: &User) -> Rules {
    Rules {
        links: Links::All,
        hard_links: HardLinks::Made,
        mounts: Mounts::Entered,
        owner: Some((user.uid, user.gid)),
        most_bytes: u64::MAX,
        most_entries: u64::MAX,
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    place::open_directory(CWD, path)
}

/// The end of a path tells what is meant, so that it stays as it is.
fn inside(path: &str) -> PathBuf {
    PathBuf::from(format!("/{}", path.trim_start_matches('/')))
}

fn told(done: Result<Tally, Error>) -> Report {
    match done {
        Ok(Tally { files, bytes, left, left_count, .. }) => {
            Report { files, bytes, left, left_count, failed: None, why: None }
        }
        Err(err) => {
            let why = err.source().map(|cause| plain(&cause.to_string()));
            Report { failed: Some(err.to_string()), why, ..Report::default() }
        }
    }
}

/// Without the number that the standard library appends.
fn plain(text: &str) -> String {
    text.split_once(" (os error").map_or(text, |(words, _)| words).to_owned()
}
