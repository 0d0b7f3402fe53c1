//! Starting the keeper of a sandbox: the same program, in a session of its own, with a connection and the lock.

use crate::{args::KeepArgs, failure::Failure, keep, say::say_failure};
use airlock_doors::control::client::Client;
use airlock_engine::store::{Lock, Sandbox};
use airlock_linux::{
    cgroup, clone,
    detach::{self, Detached, Side},
    fd, job,
};
use airlock_protocol::spec::Spec;
use std::{
    ffi::{CString, OsString},
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::PathBuf,
};

/// Variables a keeper needs: to find newuidmap, its home, and the user's systemd.
const NEEDED: [&str; 4] = ["PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"];

/// What a keeper is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum For<'a> {
    /// A program, as this spec says, which is the one that is written down.
    Program(&'a Spec),
    /// Somebody who only looks at the files.
    Visit,
}

/// Starts the keeper and gives our end of its first connection. The keeper has the lock from its first moment on:
/// there is no time at which a live sandbox looks dead.
pub(crate) fn start(sandbox: &Sandbox, what: For<'_>, lock: Lock) -> Result<Client, Failure> {
    spawn(sandbox, what, &lock).map_err(|err| Failure::because("could not start the keeper", &err))
}

fn spawn(sandbox: &Sandbox, what: For<'_>, lock: &Lock) -> io::Result<Client> {
    let (ours, theirs) = fd::pair()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let log = log_file(sandbox)?;
    let descriptors = [null.as_fd(), log.as_fd(), log.as_fd(), theirs.as_fd(), lock.as_fd()];
    let environment = environment(sandbox);
    match scope(sandbox, what)? {
        Some(scope) => execute(sandbox, scope, &environment, &descriptors)?,
        None => fork(sandbox, what, &environment, &descriptors)?,
    }
    Client::from_fd(ours)
}

/// Goes on as the keeper in a second process.
fn fork(
    sandbox: &Sandbox,
    what: For<'_>,
    environment: &[CString],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let title = &format!("airlock keep {}", sandbox.id());
    match detach::fork(&Detached { title, environment, descriptors })? {
        Side::Parent => Ok(()),
        Side::Child => {
            let args = KeepArgs { id: sandbox.id().clone() };
            let spec = match what {
                For::Program(spec) => Some(spec.clone()),
                For::Visit => None,
            };
            let code = keep::run(&args, spec).unwrap_or_else(|failure| {
                say_failure(&failure);
                failure.code
            });
            clone::exit_now(code.into())
        }
    }
}

/// Under an ordinary user's systemd, in a scope of its own where a limit needs one.
fn execute(
    sandbox: &Sandbox,
    scope: Vec<String>,
    environment: &[CString],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    // Whatever the person's shell left open is neither the keeper's business nor the sandbox's.
    fd::close_on_exec_from(3)?;
    // Asked by its own name it would mean systemd-run.
    let own = CString::new(std::env::current_exe()?.into_os_string().into_encoded_bytes())?;
    let mut arguments = scope.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
    arguments.extend([own, c"keep".into(), CString::new(sandbox.id().as_str())?]);
    let program = c"/usr/bin/systemd-run";
    job::spawn_detached(&job::Detached { program, arguments: &arguments, environment, descriptors })?;
    Ok(())
}

fn scope(sandbox: &Sandbox, what: For<'_>) -> io::Result<Option<Vec<String>>> {
    let For::Program(Spec { limits, .. }) = what else { return Ok(None) };
    let needs_group = limits.memory.is_some() || limits.cpu_millis.is_some();
    if !needs_group || rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let manager = cgroup::user_manager(runtime_dir.as_deref());
    Ok(cgroup::systemd_scope(&cgroup::layout()?, manager, sandbox.id().as_str()))
}

fn log_file(sandbox: &Sandbox) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(sandbox.keeper_log())
}

fn environment(sandbox: &Sandbox) -> Vec<CString> {
    let mut home = OsString::from("AIRLOCK_HOME=");
    home.push(sandbox.store().home());
    let needed = std::env::vars_os().filter(|(name, _)| NEEDED.iter().any(|needed| name == needed));
    let words = [home].into_iter().chain(needed.map(|(name, value)| [name, value].join("=".as_ref())));
    words.filter_map(|word| CString::new(word.as_bytes()).ok()).collect()
}
