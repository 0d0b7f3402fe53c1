//! `airlock exec`: a further program in a running sandbox.

use crate::{
    args::ExecArgs,
    environment::named,
    failure::{Failure, Outcome},
    home,
    pump::Pump,
    session::{Ended, Keyboard, Session, collect_signals},
    spec::variables,
    streams::{self, Kind, Ours},
};
use airlock_doors::control::client::{Client, Error};
use airlock_engine::store::Sandbox;
use airlock_linux::{
    signal::Signals,
    tty::{self, Raw},
};
use airlock_protocol::{
    control::{Exec, Request},
    spec::{Stdio, Stream},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

pub(crate) fn exec(args: &ExecArgs) -> Outcome {
    let sandbox = home::store()?.find(&args.sandbox)?;
    // A code below 125 would look like the program's own.
    let mut client = Client::connect(&sandbox).map_err(|err| Failure::from(err).code(125))?;
    let ours = Ours::new();
    // Collected before the program can run: from its first moment on they are its own.
    let signals = collect_signals()?;
    if args.tty {
        let sent = client.send(&request(args, streams_of_terminal(args, &ours)), &[]);
        sent.map_err(|_| has_ended(&sandbox))?;
        return conclude(&sandbox, in_terminal(args, &ours, client, signals)?);
    }
    let streams = Wired::new(args, &ours)?;
    let sent = client.send(&request(args, streams.stdio), &streams.passed());
    sent.map_err(|_| has_ended(&sandbox))?;
    let Wired { pumps, .. } = streams.without_far_ends();
    conclude(&sandbox, Session::new(client, signals, None).with_pumps(pumps).relay()?)
}

/// Its keeper hung up before it answered: the sandbox ended a moment ago.
fn has_ended(sandbox: &Sandbox) -> Failure {
    Failure::from(Error::NotRunning { id: sandbox.id().to_string() }).code(125)
}

fn request(args: &ExecArgs, stdio: Stdio) -> Request {
    Request::Exec(Exec {
        command: args.command.clone(),
        env: named(&variables(), args.env.iter().cloned()),
        workdir: args.workdir.clone(),
        user: args.user.clone(),
        stdio,
    })
}

fn streams_of_terminal(args: &ExecArgs, ours: &Ours) -> Stdio {
    let stdio = streams::terminal(ours.size());
    match args.interactive {
        true => stdio,
        false => Stdio { stdin: Stream::Null, ..stdio },
    }
}

fn in_terminal(args: &ExecArgs, ours: &Ours, client: Client, signals: Signals) -> Result<Ended, Failure> {
    let session = Session::new(client, signals, Some(ours.stdout.as_fd()));
    let keyboard = match (args.interactive, tty::is_terminal(&ours.stdin)) {
        (false, _) => Keyboard::None,
        (true, false) => Keyboard::Bytes,
        (true, true) => Keyboard::Raw(
            Raw::prepare(ours.stdin.as_fd())
                .map_err(|err| Failure::because("could not look at the terminal", &err))?,
        ),
    };
    session.with_keyboard(ours.stdin.as_fd(), keyboard).relay()
}

/// Streams without a terminal inside: where ours is one, a pipe stands between.
struct Wired<'a> {
    stdio: Stdio,
    passed: Vec<Far<'a>>,
    pumps: Vec<Pump<'a>>,
}

enum Far<'a> {
    Ours(BorrowedFd<'a>),
    Pipe(OwnedFd),
}

impl<'a> Wired<'a> {
    fn new(args: &ExecArgs, ours: &'a Ours) -> Result<Wired<'a>, Failure> {
        let [stdin, stdout, stderr] = ours.kinds()?;
        let mut wired = Wired { stdio: Stdio::all(Stream::Passed), passed: Vec::new(), pumps: Vec::new() };
        let piped = |err: io::Error| Failure::because("could not make a pipe", &err);
        match (args.interactive, stdin) {
            (false, _) => wired.stdio.stdin = Stream::Null,
            (true, Kind::Bytes) => wired.passed.push(Far::Ours(ours.stdin.as_fd())),
            (true, Kind::Terminal) => {
                let (read, write) = io::pipe().map_err(piped)?;
                wired.passed.push(Far::Pipe(read.into()));
                wired.pumps.push(Pump::inward(ours.stdin.as_fd(), write.into()));
            }
        }
        for (kind, fd) in [(stdout, ours.stdout.as_fd()), (stderr, ours.stderr.as_fd())] {
            match kind {
                Kind::Bytes => wired.passed.push(Far::Ours(fd)),
                Kind::Terminal => {
                    let (read, write) = io::pipe().map_err(piped)?;
                    wired.passed.push(Far::Pipe(write.into()));
                    wired.pumps.push(Pump::outward(read.into(), fd));
                }
            }
        }
        Ok(wired)
    }

    fn passed(&self) -> Vec<BorrowedFd<'_>> {
        self.passed.iter().map(Far::fd).collect()
    }

    /// Closes our copies of what the program has now: its end must be the end.
    fn without_far_ends(self) -> Wired<'a> {
        Wired { passed: Vec::new(), ..self }
    }
}

impl Far<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Far::Ours(fd) => *fd,
            Far::Pipe(fd) => fd.as_fd(),
        }
    }
}

fn conclude(sandbox: &Sandbox, ended: Ended) -> Outcome {
    match ended {
        Ended::Program(end) => Ok(end.shell_code()),
        Ended::Sandbox(exit) => Ok(exit.code),
        Ended::Refused(refusal) => Err(refusal.into()),
        Ended::Unanswered => Err(has_ended(sandbox)),
        Ended::KeeperDied => Err(Failure::new("the sandbox ended while the program ran in it").code(137)),
    }
}
