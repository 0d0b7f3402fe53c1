//! `airlock run`: a new sandbox, its keeper, and a session until the program ends.

use super::print_json;
use crate::{
    args::RunArgs,
    failure::{Failure, Outcome},
    home, keeper,
    say::{Voice, say},
    session::{Ended, Keyboard, Session, collect_signals, no_signals},
    spec::{Host, spec},
    streams::{self, Kind, Ours},
};
use airlock_engine::store::{Error, Lock, Sandbox, Store, generate_name};
use airlock_linux::{fd, signal, tty::Raw};
use airlock_protocol::{
    control::{Begin, Owner},
    size,
    spec::{Spec, Stdio, Stream},
    state::{Cause, Exit},
};
use std::{
    io::{BufRead, BufReader},
    os::fd::BorrowedFd,
};

/// Names tried before giving up on finding a free one.
const NAMES_TRIED: u32 = 20;

pub(crate) fn run(args: &RunArgs) -> Outcome {
    let ours = Ours::new();
    let stdio = stdio(args, &ours)?;
    let host = Host::current()?;
    let store = home::store()?;
    let (sandbox, lock, spec) = create(&store, args, stdio, &host)?;
    let signals = if args.streams.detach { no_signals()? } else { collect_signals()? };
    let mut client = match keeper::start(&sandbox, &spec.limits, lock) {
        Ok(client) => client,
        Err(failure) => return Err(given_up(&sandbox, failure)),
    };
    let owner = if args.streams.detach { Owner::Detached } else { Owner::Foreground };
    client.begin(&Begin { owner }, &ours.passed(&spec.stdio))?;
    let screen = screen(&ours, &spec.stdio);
    let mut session = Session::new(client, signals, screen);
    if args.streams.detach {
        return match session.wait_for_start() {
            Ok(()) => announce(args, &sandbox, &spec),
            Err(ended) => conclude(args, &sandbox, &spec, ended),
        };
    }
    let keyboard = keyboard(args, &ours, &spec.stdio)?;
    let ended = session.with_keyboard(rustix::stdio::stdin(), keyboard).relay()?;
    conclude(args, &sandbox, &spec, ended)
}

fn stdio(args: &RunArgs, ours: &Ours) -> Result<Stdio, Failure> {
    match (args.streams.detach, args.streams.tty) {
        (_, true) => Ok(streams::terminal(ours.size())),
        (true, false) => Ok(streams::detached()),
        (false, false) => Ok(streams::foreground(ours.kinds()?, ours.size())),
    }
}

/// Makes the sandbox; a generated name that is taken is replaced by another.
fn create(
    store: &Store,
    args: &RunArgs,
    stdio: Stdio,
    host: &Host,
) -> Result<(Sandbox, Lock, Spec), Failure> {
    let mut attempt = 0;
    loop {
        let name = args.name.clone().unwrap_or_else(|| generate_name(attempt));
        let spec = spec(args, name, stdio, host)?;
        attempt += 1;
        match store.create(&spec) {
            Ok((sandbox, lock)) => return Ok((sandbox, lock, spec)),
            Err(Error::NameTaken { .. }) if args.name.is_none() && attempt < NAMES_TRIED => {}
            Err(err) => return Err(err.into()),
        }
    }
}

/// Where the program's terminal is shown.
fn screen<'a>(ours: &'a Ours, stdio: &Stdio) -> Option<BorrowedFd<'a>> {
    if !stdio.has_terminal() {
        return None;
    }
    let [stdin, stdout, stderr] = ours.fds();
    if stdio.stdout == Stream::Terminal {
        return Some(stdout);
    }
    Some(if stdio.stderr == Stream::Terminal { stderr } else { stdin })
}

/// Key by key where a person sits in front; line by line where our stdout is a pipe, because then the terminal may
/// belong to another program of the pipeline (`airlock run … | less`).
fn keyboard(args: &RunArgs, ours: &Ours, stdio: &Stdio) -> Result<Keyboard, Failure> {
    if stdio.stdin != Stream::Terminal {
        return Ok(Keyboard::None);
    }
    let [stdin, stdout, _] = ours.kinds()?;
    if stdin == Kind::Bytes {
        return Ok(Keyboard::Bytes);
    }
    let may_share = stdout == Kind::Bytes && fd::is_pipe(&ours.stdout);
    if may_share && !args.streams.interactive && !args.streams.tty {
        return Ok(Keyboard::Lines);
    }
    let raw = Raw::prepare(rustix::stdio::stdin());
    raw.map(Keyboard::Raw).map_err(|err| Failure::because("could not look at the terminal", &err))
}

fn announce(args: &RunArgs, sandbox: &Sandbox, spec: &Spec) -> Outcome {
    use std::io::Write;
    match args.json {
        true => print_json(&serde_json::json!({ "id": sandbox.id(), "name": spec.name }))?,
        false => writeln!(std::io::stdout(), "{}", sandbox.id())?,
    }
    Ok(0)
}

fn conclude(args: &RunArgs, sandbox: &Sandbox, spec: &Spec, ended: Ended) -> Outcome {
    let exit = match ended {
        Ended::Sandbox(exit) => exit,
        Ended::Program(end) => return Ok(end.shell_code()),
        Ended::Refused(refusal) => return Err(given_up(sandbox, refusal.into())),
        Ended::Unanswered | Ended::KeeperDied => return Err(keeper_died(sandbox)),
    };
    if args.json {
        let facts = serde_json::json!({ "id": sandbox.id(), "name": spec.name, "exit": exit });
        eprintln!("{facts}");
        return Ok(exit.code);
    }
    if let Cause::NotStarted { why } = &exit.cause {
        let program = spec.command.first().map_or("the program", String::as_str);
        return Err(Failure::new(format!("{program} could not be started")).why(why.clone()).code(exit.code));
    }
    if let Some(words) = last_words(&exit, spec) {
        // Why it ended is an error worth telling also where nobody sits in front; `-q` asks for the code alone.
        if !args.quiet {
            eprintln!("airlock: {words}");
        }
    } else if spec.keep {
        let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
        say(
            voice,
            &format!("kept as {}; `airlock start {0}` runs it again, `airlock rm {0}` removes it", spec.name),
        );
    }
    Ok(exit.code)
}

/// What a code alone does not tell.
fn last_words(exit: &Exit, spec: &Spec) -> Option<String> {
    match &exit.cause {
        Cause::OutOfMemory => Some(match spec.limits.memory {
            Some(bytes) => format!("killed: out of memory (--memory {})", size::show(bytes)),
            None => "killed: out of memory; --memory SIZE gives it more".to_owned(),
        }),
        Cause::TimedOut => Some(match spec.limits.timeout_ms {
            Some(millis) => format!("ended: its time was up (--timeout {}s)", show_seconds(millis)),
            None => "ended: its time was up".to_owned(),
        }),
        Cause::GuestDied => Some("ended: PID 1 of the sandbox died".to_owned()),
        Cause::KeeperDied => Some("ended: its keeper died".to_owned()),
        Cause::Exited | Cause::Signalled { .. } | Cause::NotStarted { .. } => None,
    }
}

fn show_seconds(millis: u64) -> String {
    match millis % 1000 {
        0 => format!("{}", millis / 1000),
        rest => format!("{}.{rest:03}", millis / 1000),
    }
}

/// A sandbox that never began is not worth keeping. Its keeper may have removed it already.
fn given_up(sandbox: &Sandbox, failure: Failure) -> Failure {
    if sandbox.folder().exists()
        && let Ok(lock) = sandbox.lock()
    {
        // The failure at hand is the one to tell; what is left is removed by the next prune.
        let _ = sandbox.clone().remove(lock);
    }
    failure
}

fn keeper_died(sandbox: &Sandbox) -> Failure {
    let failure =
        Failure::new(format!("the keeper of sandbox {} died, and the sandbox with it", sandbox.id()));
    let log = sandbox.keeper_log();
    let last = std::fs::File::open(&log)
        .ok()
        .and_then(|file| BufReader::new(file).lines().map_while(Result::ok).last());
    // Marks it as crashed, so that nothing is left to find out later.
    let _ = sandbox.repaired_state();
    match last {
        Some(line) => failure.why(line),
        None => failure.why(format!("it was killed; {} says nothing", log.display())),
    }
}

/// How a program ended, in a few words.
pub(super) fn exit_words(exit: &Exit) -> String {
    match &exit.cause {
        Cause::Exited => format!("exited {}", exit.code),
        Cause::Signalled { signal } => format!("killed by {}", signal::name(*signal)),
        Cause::OutOfMemory => "out of memory".to_owned(),
        Cause::TimedOut => "timed out".to_owned(),
        Cause::NotStarted { why } => format!("not started: {why}"),
        Cause::KeeperDied => "keeper died".to_owned(),
        Cause::GuestDied => "PID 1 died".to_owned(),
    }
}
