//! `airlock run`: a new sandbox, its keeper, and a session until the program ends.

use super::print_json;
use crate::{
    answers,
    args::RunArgs,
    asking::Asking,
    changes::{self, Left},
    config::{self, Wanted},
    failure::{Failure, Outcome},
    home, keeper, ledger, mounts, policy, root,
    say::{Voice, say},
    scripts, secrets,
    session::{Ended, Keyboard, Session, collect_signals, no_signals},
    setup,
    spec::{self, Host, Wall, spec},
    streams::{self, Kind, Ours},
};
use airlock_engine::{
    snapshots::fork,
    store::{Error, Lock, Sandbox, Store, generate_name},
};
use airlock_linux::{fd, signal, tty::Raw};
use airlock_protocol::{
    SandboxId,
    approval::Pending,
    control::{Begin, Owner},
    policy::Verdict,
    secret::Values,
    size,
    spec::{Spec, Stdio, Stream, Workspace},
    state::{Cause, Exit},
};
use std::{
    io::{BufRead, BufReader, IsTerminal},
    os::fd::BorrowedFd,
    path::Path,
};

/// Names tried before giving up on finding a free one.
const NAMES_TRIED: u32 = 20;

pub(crate) fn run(args: &mut RunArgs) -> Outcome {
    to_its_end(args).map(|(_, code)| code)
}

/// Runs as the flags say; gives the sandbox's id beside the exit code.
pub(super) fn to_its_end(args: &mut RunArgs) -> Result<(SandboxId, u8), Failure> {
    let ours = Ours::new();
    let stdio = stdio(args, &ours)?;
    let mut host = Host::current()?;
    let store = home::store()?;
    let wall = settle(args, &host, store.home())?;
    host.root = root::choose(args, &store, &wall.own)?;
    host.setup = setup::prepare(args, &wall, stdio, &host, &store)?;
    let (sandbox, lock, spec) = create(&store, args, &wall, stdio, &host)?;
    // The spec names the image now: nothing of it is collected.
    drop(host);
    let made = Made { sandbox: &sandbox, lock, spec: &spec, values: wall.secrets.values };
    let code = start(args, &ours, made)?;
    Ok((sandbox.id().clone(), code))
}

/// Puts files below the flags: the project's, and the person's own.
fn settle(args: &mut RunArgs, host: &Host, home: &Path) -> Result<Wall, Failure> {
    let own = config::own(home)?;
    let wanted = match (&args.config, args.no_config) {
        (Some(path), _) => Wanted::Named(path),
        (None, true) => Wanted::Nothing,
        (None, false) => Wanted::Here(&host.directory),
    };
    let mut project = config::project(wanted, home, &own.flags())?;
    // What the person wrote for every sandbox is as if it were typed each time.
    let mut flags = own.flags();
    args.mounts.splice(..0, std::mem::take(&mut flags.mounts));
    mounts::settle(args, project.as_mut(), &host.directory)?;
    let mut env = Vec::new();
    if let Some(project) = &project {
        for path in &project.settings.env_file {
            env.extend(spec::env_file(path, project.named(path).unwrap_or_default())?);
        }
        project.settings.clone().under(args);
    }
    if let Some(run) = &own.run {
        for path in run.settings.env_file.iter().rev() {
            env.splice(..0, spec::env_file(path, run.named(path).unwrap_or_default())?);
        }
    }
    flags.under(args);
    let mut policy = policy::assemble(&args.network, project.as_ref(), &own, host, home)?;
    let secrets = secrets::settle(args, project.as_ref(), &own, host, &mut policy)?;
    let script = scripts::settle(args, [project.as_ref(), own.run.as_ref()], host)?;
    Ok(Wall { policy, own, env, secrets, script })
}

/// A sandbox that was made and has no keeper yet.
struct Made<'a> {
    sandbox: &'a Sandbox,
    lock: Lock,
    spec: &'a Spec,
    values: Values,
}

fn start(args: &RunArgs, ours: &Ours, made: Made<'_>) -> Outcome {
    let Made { sandbox, lock, spec, values } = made;
    let keyboard = if args.streams.detach { Keyboard::None } else { keyboard(args, ours, &spec.stdio)? };
    let asking = if args.streams.detach { None } else { asking(args, &keyboard, sandbox, spec) };
    let signals = if args.streams.detach { no_signals()? } else { collect_signals()? };
    let mut client = match keeper::start(sandbox, keeper::For::Program(spec), lock) {
        Ok(client) => client,
        Err(failure) => return Err(given_up(sandbox, failure)),
    };
    let owner = if args.streams.detach { Owner::Detached } else { Owner::Foreground };
    client.begin(&Begin { owner, values, ssh: home::ssh() }, &ours.passed(&spec.stdio))?;
    let screen = screen(ours, &spec.stdio);
    let mut session = Session::new(client, signals, screen);
    if args.streams.detach {
        return match session.wait_for_start() {
            Ok(()) => announce(args, sandbox, spec),
            Err(ended) => conclude(args, sandbox, spec, ended),
        };
    }
    let ended = session.with_keyboard(rustix::stdio::stdin(), keyboard).with_asking(asking).relay()?;
    conclude(args, sandbox, spec, ended)
}

/// Where rules ask, questions are asked here. The words that mark a real one are told before the program begins.
fn asking(args: &RunArgs, keyboard: &Keyboard, sandbox: &Sandbox, spec: &Spec) -> Option<Asking> {
    if !spec.policy.rules.iter().any(|rule| rule.verdict == Verdict::Ask) || spec.policy.audit_only {
        return None;
    }
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let words = generate_name(0).to_string();
    if matches!(keyboard, Keyboard::Raw(_)) {
        say(voice, &format!("questions about this sandbox will carry the words {words}"));
    }
    let place =
        answers::Where { home: sandbox.store().home().to_owned(), project: spec.workspace.path().cloned() };
    let keep = Box::new(move |pending: &Pending, given| answers::keep(pending, given, None, &place));
    Some(Asking::new(words, voice, keep))
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
    wall: &Wall,
    stdio: Stdio,
    host: &Host,
) -> Result<(Sandbox, Lock, Spec), Failure> {
    let mut attempt = 0;
    loop {
        let name = args.name.clone().unwrap_or_else(|| generate_name(attempt));
        let spec = spec(args, wall, name, stdio, host)?;
        attempt += 1;
        let created = match &host.setup {
            Some(layers) => fork::create(store, &spec, layers),
            None => store.create(&spec),
        };
        match created {
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
    let left = settle_changes(sandbox, spec);
    if args.json {
        let is_copied = matches!(spec.workspace, Workspace::Cow { .. });
        let changes = is_copied.then(|| left.facts());
        let facts =
            serde_json::json!({ "id": sandbox.id(), "name": spec.name, "exit": exit, "changes": changes });
        eprintln!("{facts}");
        return Ok(exit.code);
    }
    tell_denials(args, sandbox);
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    left.words(spec.name.as_str()).into_iter().for_each(|words| say(voice, &words));
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
        say(
            voice,
            &format!("kept as {}; `airlock start {0}` runs it again, `airlock rm {0}` removes it", spec.name),
        );
    }
    Ok(exit.code)
}

/// What the run left in its copy of the workspace. One that stays only for changes that come to nothing goes.
fn settle_changes(sandbox: &Sandbox, spec: &Spec) -> Left {
    if !matches!(spec.workspace, Workspace::Cow { .. }) || !sandbox.folder().exists() {
        return Left::Nothing;
    }
    let left = changes::left(sandbox, spec);
    if left.is_nothing()
        && !spec.keep
        && let Ok(lock) = sandbox.lock()
    {
        // What is left is removed by the next prune.
        let _ = sandbox.clone().remove(lock);
    }
    left
}

/// What was denied, where a person reads it.
fn tell_denials(args: &RunArgs, sandbox: &Sandbox) {
    if args.quiet || !std::io::stderr().is_terminal() {
        return;
    }
    // A ledger that cannot be read is told of by who asks for it.
    let records = ledger::records(sandbox.store(), sandbox.id()).unwrap_or_default();
    if let Some(words) = ledger::denials(&records) {
        say(Voice::Normal, &words);
    }
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
        Cause::HostRebooted => Some("ended: the host was rebooted".to_owned()),
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
        Cause::HostRebooted => "host rebooted".to_owned(),
        Cause::GuestDied => "PID 1 died".to_owned(),
    }
}
