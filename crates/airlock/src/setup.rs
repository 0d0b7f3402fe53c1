//! `setup = ["…"]`: commands that run once, in a sandbox on top of the image or of the host's own system. What they leave is kept as a
//! snapshot that is named after what it was made from, and every later sandbox with the same settings goes on from it.

use crate::{
    args::RunArgs,
    failure::Failure,
    say::{Voice, say},
    spec::{Host, Wall, spec},
    step::{self, Done, Files, Step},
};
use airlock_engine::{
    plan::Caller,
    snapshots::{Chain, Guard, kept, take},
    store::{Store, generate_name, now},
};
use airlock_protocol::{
    Name,
    spec::{Limits, Spec, Stdio},
};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use sha2::{Digest as _, Sha256};
use std::{io::Write as _, os::fd::OwnedFd, path::PathBuf};

/// Runs each of its arguments in a shell, and stops at the first that fails.
const EACH: &str =
    r#"for line in "$@"; do printf '+ %s\n' "$line"; /bin/sh -c "$line" </dev/null || exit; done"#;
/// Variables that differ from start to start and change nothing that is installed.
const PASSING: [&str; 4] = ["TERM", "COLORTERM", "NO_COLOR", "HOSTNAME"];

/// The layers that sandboxes of these settings go on from; made if they are not there.
pub(crate) fn prepare(
    args: &RunArgs,
    wall: &Wall,
    stdio: Stdio,
    host: &Host,
    store: &Store,
) -> Result<Option<Chain>, Failure> {
    if args.setup.is_empty() {
        return Ok(None);
    }
    if args.rootfs.is_some() {
        return Err(Failure::new("a directory cannot be set up")
            .code(2)
            .why("nobody can tell whether it is still what the commands ran upon")
            .fix("make an image of it: tar -C DIR -c . | airlock images import - NAME"));
    }
    let wish = spec(args, wall, generate_name(0), stdio, host)?;
    let name = name_of(args, wall, &wish)?;
    if let Some(chain) = there(store, &name)? {
        return Ok(Some(chain));
    }
    // Of several who want it, one makes it.
    let _lock = lock(store, &name)?;
    match there(store, &name)? {
        Some(chain) => Ok(Some(chain)),
        None => make(args, wall, host, store, (&name, &wish)).map(Some),
    }
}

fn there(store: &Store, name: &Name) -> Result<Option<Chain>, Failure> {
    let all = kept::list(store)?;
    Ok(all.into_iter().find(|snapshot| snapshot.name == *name).map(|snapshot| snapshot.chain))
}

/// Everything that the result depends on, in one word.
fn name_of(args: &RunArgs, wall: &Wall, wish: &Spec) -> Result<Name, Failure> {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    };
    part("airlock setup 1");
    match &wish.image {
        Some(image) => part(&image.id),
        None => part(&std::fs::read_to_string("/etc/os-release").unwrap_or_default()),
    }
    part(&wish.user);
    let Caller { uid, gid, user_ranges, group_ranges, .. } = Caller::current();
    part(&format!("{uid} {gid} {user_ranges:?} {group_ranges:?}"));
    for (name, value) in &wish.env {
        if !PASSING.contains(&name.as_str()) && !wall.secrets.env.contains_key(name) {
            part(name);
            part(value);
        }
    }
    args.setup.iter().for_each(|line| part(line));
    let digits: String = hash.finalize().iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("setup-{digits}").parse().map_err(|_| Failure::new("a set-up cannot be named"))
}

fn lock(store: &Store, name: &Name) -> Result<OwnedFd, Failure> {
    let failed =
        |err: rustix::io::Errno| Failure::because("could not wait for a set-up", &std::io::Error::from(err));
    let path = store.home().join(format!(".{name}.lock"));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).map_err(failed)?;
    Ok(lock)
}

fn make(
    args: &RunArgs,
    wall: &Wall,
    host: &Host,
    store: &Store,
    (name, wish): (&Name, &Spec),
) -> Result<Chain, Failure> {
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    say(voice, "setting up; later starts go on from what is left");
    let mut command = ["/bin/sh", "-c", EACH, "setup"].map(str::to_owned).to_vec();
    command.extend(args.setup.iter().cloned());
    let mut env = wish.env.clone();
    env.remove("HOSTNAME");
    let done = step::begin(
        store,
        &Step {
            env,
            workdir: PathBuf::from("/"),
            user: wish.user.clone(),
            policy: wall.policy.clone(),
            egress: wall.own.egress.clone(),
            secrets: (wall.secrets.secrets.clone(), wall.secrets.values.clone()),
            // What it writes is kept.
            limits: Limits { disk: None, timeout_ms: None, ..wish.limits.clone() },
            files: Files::OfSandbox,
            ..Step::new(host.root.clone(), command)
        },
    )?
    .relay(&mut |bytes| {
        if voice == Voice::Normal {
            // Nobody is there to read it, then.
            let _ = std::io::stderr().write_all(bytes);
        }
    })?;
    match done.exit.code {
        0 => keep(store, done, name),
        code => Err(Failure::new(format!("the set-up failed with exit code {code}"))
            .code(code)
            .fix("correct `setup` in airlock.toml; nothing of it was kept")),
    }
}

fn keep(store: &Store, done: Done, name: &Name) -> Result<Chain, Failure> {
    let lost = || Failure::new("what the set-up left cannot be kept");
    let (sandbox, lock) = done.into_sandbox().ok_or_else(lost)?;
    let guard = Guard::take(store)?;
    let chain = take::settle(&sandbox, &lock, &guard)?.ok_or_else(lost)?;
    let snapshot = kept::Snapshot {
        id: sandbox.id().clone(),
        name: name.clone(),
        created_at: now(),
        sandbox: sandbox.id().clone(),
        copied_since: None,
        chain,
        spec: sandbox.spec()?,
        memory: false,
    };
    let kept = kept::keep(&guard, snapshot, None)?;
    drop(guard);
    // What is left of it is removed by the next prune.
    let _ = sandbox.remove(lock);
    let _ = std::fs::remove_file(store.home().join(format!(".{name}.lock")));
    Ok(kept.chain)
}
