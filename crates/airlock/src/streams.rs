//! Where the standard streams of a program lead. The host's terminal itself is never handed in.

use crate::failure::Failure;
use airlock_linux::{
    fd::{self, Unfit},
    tty,
};
use airlock_protocol::spec::{Stdio, Stream, WindowSize};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

/// Size of a terminal that nobody looks at yet.
const UNSEEN: WindowSize = WindowSize { rows: 24, columns: 80 };
const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

/// Our own three standard streams.
pub(crate) struct Ours {
    pub(crate) stdin: io::Stdin,
    pub(crate) stdout: io::Stdout,
    pub(crate) stderr: io::Stderr,
}

/// What one of our streams is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A person's terminal.
    Terminal,
    /// Bytes: a pipe, a file, a socket, `/dev/null`.
    Bytes,
}

impl Ours {
    pub(crate) fn new() -> Ours {
        Ours { stdin: io::stdin(), stdout: io::stdout(), stderr: io::stderr() }
    }

    /// The three descriptors, in order.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }

    /// What they are; refused if one would hand in more than bytes.
    pub(crate) fn kinds(&self) -> Result<[Kind; 3], Failure> {
        let mut kinds = [Kind::Bytes; 3];
        for ((kind, fd), name) in kinds.iter_mut().zip(self.fds()).zip(NAMES) {
            *kind = kind_of(fd, name)?;
        }
        Ok(kinds)
    }

    /// Those that `stdio` passes, in order.
    pub(crate) fn passed(&self, stdio: &Stdio) -> Vec<BorrowedFd<'_>> {
        let streams = stdio.streams().into_iter().zip(self.fds());
        streams.filter(|(stream, _)| *stream == Stream::Passed).map(|(_, fd)| fd).collect()
    }

    /// The terminal a person looks at, where there is one.
    pub(crate) fn terminal(&self) -> Option<BorrowedFd<'_>> {
        let [stdin, stdout, stderr] = self.fds();
        [stdout, stderr, stdin].into_iter().find(|fd| tty::is_terminal(fd))
    }

    /// Size of that terminal, or what is usual.
    pub(crate) fn size(&self) -> WindowSize {
        let size = self.terminal().and_then(tty::size);
        size.map_or(UNSEEN, |(rows, columns)| WindowSize { rows, columns })
    }
}

/// Streams of a foreground program: terminals become terminals of its own, all else is passed.
pub(crate) fn foreground(kinds: [Kind; 3], size: WindowSize) -> Stdio {
    let [stdin, stdout, stderr] = kinds.map(|kind| match kind {
        Kind::Terminal => Stream::Terminal,
        Kind::Bytes => Stream::Passed,
    });
    let size = kinds.contains(&Kind::Terminal).then_some(size);
    Stdio { stdin, stdout, stderr, size }
}

/// One terminal for all three.
pub(crate) fn terminal(size: WindowSize) -> Stdio {
    Stdio { size: Some(size), ..Stdio::all(Stream::Terminal) }
}

/// Streams of a detached program: it reads nothing, and what it writes is kept.
pub(crate) fn detached() -> Stdio {
    Stdio { stdin: Stream::Null, ..Stdio::all(Stream::Captured) }
}

fn kind_of(fd: BorrowedFd<'_>, name: &str) -> Result<Kind, Failure> {
    if tty::is_terminal(fd) {
        return Ok(Kind::Terminal);
    }
    let checked = fd::check_stream(fd)
        .map_err(|err| Failure::because(format!("could not look at our {name}"), &err))?;
    let what = match checked {
        Ok(()) => return Ok(Kind::Bytes),
        Err(Unfit::Directory) => "a directory, and the program could reach this host's files through it",
        Err(Unfit::PathOnly) => {
            "a path and no bytes, and the program could reach this host's files through it"
        }
        Err(Unfit::BlockDevice) => "a disk, and the program could read or overwrite it whole",
    };
    let refusal =
        Failure::new(format!("our {name} cannot be passed into a sandbox")).why(format!("it is {what}"));
    Err(refusal.fix(format!("redirect {name} to a file, a pipe or /dev/null")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_stay_pipes_and_terminals_become_the_sandboxs_own() {
        let stdio = foreground([Kind::Bytes, Kind::Terminal, Kind::Bytes], UNSEEN);
        let expected = Stdio {
            stdin: Stream::Passed,
            stdout: Stream::Terminal,
            stderr: Stream::Passed,
            size: Some(UNSEEN),
        };
        assert_eq!(stdio, expected);
        assert_eq!(foreground([Kind::Bytes; 3], UNSEEN), Stdio::all(Stream::Passed));
    }

    #[test]
    fn a_directory_is_refused_as_a_stream_with_the_fix() {
        let directory = std::fs::File::open("/").unwrap();
        let refusal = kind_of(directory.as_fd(), "stdin").unwrap_err();
        let expected = "\
error: our stdin cannot be passed into a sandbox
  why:  it is a directory, and the program could reach this host's files through it
  fix:  redirect stdin to a file, a pipe or /dev/null
";
        assert_eq!(refusal.to_string(), expected);
    }
}
