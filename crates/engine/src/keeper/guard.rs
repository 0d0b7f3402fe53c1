//! Protected paths of a workspace that is written directly: what stands for absent ones, and which appeared.

use super::Keeper;
use crate::{
    plan::{Plan, placeholder, places, search},
    store::{Sandbox, Store},
};
use airlock_linux::mount::Access;
use airlock_protocol::{
    event::Event,
    spec::Workspace,
    state::{Placeholder, State},
};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags};
use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// Most paths that are told by name.
const MOST_TOLD: usize = 8;

/// Makes what the plan wants. `note` writes it down first: whoever finds this process dead removes it. Others that run in
/// the same workspace share what is there already, and the last of them removes it.
pub(super) fn stand_in(
    sandbox: &Sandbox,
    plan: &mut Plan,
    state: &mut State,
    note: impl Fn(&State) -> io::Result<()>,
) -> io::Result<()> {
    let Some(bind) = plan.binds.first_mut() else { return Ok(()) };
    let is_repository = !bind.found.repositories.is_empty();
    if bind.access != Access::ReadWrite || (bind.placeholders.is_empty() && !is_repository) {
        return Ok(());
    }
    let _turn = turn(sandbox.store())?;
    let shared = of_others(sandbox, &bind.host);
    let is_there = |one: &Placeholder| bind.found.protected.iter().any(|found| found.path == one.path);
    state.placeholders = bind.placeholders.clone();
    state.placeholders.extend(shared.into_iter().filter(is_there));
    if state.placeholders.is_empty() {
        return Ok(());
    }
    note(state)?;
    for wanted in &bind.placeholders {
        let made = placeholder::make(bind.source.as_fd(), wanted)?;
        // A way to others is pinned with them, and can be used besides.
        let is_way = placeholder::is_above(&bind.placeholders, wanted);
        bind.found.protected.extend(made.filter(|_| !is_way));
    }
    Ok(())
}

/// Removes what nobody else needs.
pub(crate) fn stand_down(sandbox: &Sandbox, state: &mut State) -> io::Result<()> {
    if state.placeholders.is_empty() {
        return Ok(());
    }
    let spec = sandbox.spec().map_err(io::Error::other)?;
    let Some(host) = spec.workspace.path() else { return Ok(()) };
    let _turn = turn(sandbox.store())?;
    let needed = of_others(sandbox, host);
    let workspace = open(host)?;
    // What is in others goes before them.
    for one in std::mem::take(&mut state.placeholders).into_iter().rev() {
        if !needed.contains(&one) {
            placeholder::remove(workspace.as_fd(), &one)?;
        }
    }
    Ok(())
}

/// One sandbox at a time.
fn turn(store: &Store) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(store.home().join("placeholders.lock"), flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

/// What other live sandboxes need in the same workspace.
fn of_others(sandbox: &Sandbox, host: &Path) -> Vec<Placeholder> {
    let is_same = |other: &Sandbox| {
        other.spec().is_ok_and(|spec| spec.workspace.path().is_some_and(|path| path == host))
    };
    let others = sandbox.store().states().unwrap_or_default().into_iter();
    others
        .filter(|(other, state)| {
            other.id() != sandbox.id()
                && state.status.is_live()
                && !state.placeholders.is_empty()
                && is_same(other)
        })
        .flat_map(|(_, state)| state.placeholders)
        .collect()
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?)
}

impl Keeper {
    /// Protected paths that were not there when the sandbox began, or are others now.
    pub(super) fn appeared(&self) -> Option<Event> {
        let Workspace::Rw { .. } = self.spec.workspace else { return None };
        let bind = self.plan.binds.first()?;
        let lists = places::lists(&self.spec.paths).ok()?;
        let wish = search::Wish { sockets: false, hidden: None, protected: Some(&lists) };
        let now = search::search(&bind.source, &bind.host, wish).ok()?;
        let is_known = |one: &search::Protected| bind.found.protected.contains(one);
        let appeared: Vec<_> = now.protected.iter().filter(|one| !is_known(one)).collect();
        if appeared.is_empty() {
            return None;
        }
        let paths = appeared.iter().take(MOST_TOLD).map(|one| one.path.display().to_string()).collect();
        Some(Event::Appeared { paths, count: u64::try_from(appeared.len()).unwrap_or(u64::MAX) })
    }
}
