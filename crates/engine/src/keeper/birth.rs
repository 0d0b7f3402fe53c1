//! Building the sandbox, while this process has one thread.

use super::{
    Keeper, Tasks,
    confine::{Confined, bounded_disk, confine, other_limits, refuse_limit},
    guard, health, life, link,
    log::Log,
    program, provided, spare, visit, wall, watch, watched,
};
use crate::{
    backend::{Backend, Confine, Launched},
    plan::{self, Caller, Plan, ids},
    store::{Lock, Sandbox},
};
use airlock_linux::{
    cgroup::{self, Group},
    clone::{self, Dumpable},
    disk::Limited,
    job,
};
use airlock_net::publish::Published;
use airlock_protocol::{
    control::{Begin, Owner, Refusal},
    spec::{Spec, Workspace},
    state::{State, Status},
};
use std::{
    cell::{Cell, RefCell},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    rc::Rc,
};
use tokio::{io::Interest, sync::mpsc, task::AbortHandle};

/// A sandbox that is being built, with no program in it yet.
pub struct Born {
    sandbox: Sandbox,
    spec: Spec,
    plan: Plan,
    launched: Launched,
    disk: Option<OwnedFd>,
    group: Option<Group>,
    state: State,
    wall: wall::Prepared,
    is_visited: bool,
}

/// The program that becomes PID 1.
#[derive(Debug, Clone, Copy)]
pub struct Guest<'a> {
    /// Tells it from those of other builds.
    pub id: &'a str,
    /// The program itself.
    pub program: &'a [u8],
}

/// A sandbox and the tasks around it.
pub struct Awake {
    /// For doors.
    pub keeper: Rc<Keeper>,
    /// For [`life::run`].
    pub life: life::Life,
    /// For the first client.
    pub news: mpsc::Receiver<life::News>,
}

/// What a sandbox is to be.
pub struct Wish<'a> {
    /// As it is written down.
    pub spec: Spec,
    /// The streams the program will get.
    pub passed: &'a [OwnedFd],
    /// Whose it is, and the values of its secrets.
    pub begin: &'a Begin,
}

/// Builds the sandbox. `guest` is the program that becomes PID 1.
pub fn build(
    sandbox: &Sandbox,
    backend: &dyn Backend,
    guest: &Guest<'_>,
    wish: Wish<'_>,
) -> Result<Born, Refusal> {
    let Wish { spec, passed, begin } = wish;
    let is_visited = begin.owner == Owner::Visit;
    let spec = if is_visited { visit::without_program(spec) } else { spec };
    let guest_file = sandbox.store().guest().join(guest.id);
    install_guest(&guest_file, guest.program).map_err(|err| {
        plan::refusal(125, "could not put the guest program in place", Some(&err.to_string()), None)
    })?;
    let caller = Caller::current();
    let etc = plan::etc_files(&spec, &caller)?;
    spare::adopt(sandbox, &spec, &caller, &etc);
    let identity = plan::identify(&spec, sandbox, &caller, etc)?;
    let begun = backend.begin(&caller, &identity)?;
    let mut plan = plan::check(&spec, sandbox, caller, identity, guest_file)?;
    let base = plan.ids.user_outside(0).zip(plan.ids.group_outside(0)).filter(|_| plan.caller.is_root());
    prepare_disk(sandbox, &plan, base).map_err(|err| {
        plan::refusal(125, "could not make the sandbox's directory", Some(&err.to_string()), None)
    })?;
    let wall = wall::prepare(sandbox, &spec, begin)?;
    if let Some(authority) = &wall.authority {
        plan.trust(authority.pem());
        plan.known_hosts = wall.ssh.as_ref().map(|ssh| ssh.key.known_hosts());
    }
    let mut confined = confine(&plan)?;
    let mut state = match is_visited {
        false => note(sandbox, &spec, &plan, &confined)?,
        true => visit::state(sandbox)?,
    };
    state.machine = backend.machine();
    state.published = wall.published.iter().map(Published::wish).collect();
    match is_visited {
        false => stand_in(sandbox, &mut plan, &mut state)?,
        // Nothing runs that would have to be bounded.
        true => confined.limits = cgroup::Limits::default(),
    }
    let group = confined.make(sandbox)?;
    let (disk, kept) = twice(bounded_disk(&plan, sandbox, base)?);
    let streams: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    let cgroup = group.as_ref().and_then(Group::clone_into_fd);
    let entries = match &group {
        Some(group) => group.entries().map_err(|err| refuse_limit(&err))?,
        None => Vec::new(),
    };
    let launched =
        backend.launch(&plan, begun, Confine { streams: &streams, entries: &entries, cgroup, disk });
    // Nobody looks into the memory that keys and secrets are in; making a sandbox needs others to.
    let launched = match (launched, &wall.authority) {
        (Ok(launched), Some(_)) => hidden(launched),
        (launched, _) => launched,
    };
    match launched {
        Ok(launched) => {
            let sandbox = sandbox.clone();
            // Now it is known how it starts.
            state.machine = backend.machine();
            Ok(Born { sandbox, spec, plan, launched, disk: kept, group, state, wall, is_visited })
        }
        Err(refusal) => {
            let _ = group.map(Group::remove);
            Err(refusal)
        }
    }
}

/// What was asked for, as it is written down.
pub fn spec_of(sandbox: &Sandbox) -> Result<Spec, Refusal> {
    sandbox
        .spec()
        .map_err(|err| plan::refusal(125, "the sandbox's spec is lost", Some(&plan::chain(&err)), None))
}

/// Makes what stands for protected paths that are not there.
fn stand_in(sandbox: &Sandbox, plan: &mut Plan, state: &mut State) -> Result<(), Refusal> {
    let note = |state: &State| sandbox.write_state(state).map_err(io::Error::other);
    guard::stand_in(sandbox, plan, state, note).map_err(|err| {
        let fix = Some("--workspace cow, or make the workspace writable for yourself");
        plan::refusal(125, "protected paths cannot be kept from being made", Some(&err.to_string()), fix)
    })
}

/// A bounded disk for the sandbox, and for whoever copies what it wrote while it runs.
fn twice(bounded: Option<Limited>) -> (Option<OwnedFd>, Option<OwnedFd>) {
    let disk = bounded.map(|limited| limited.mount);
    let kept = disk.as_ref().and_then(|disk| disk.try_clone().ok());
    (disk, kept)
}

fn hidden(launched: Launched) -> Result<Launched, Refusal> {
    match clone::set_dumpable(Dumpable::No) {
        Ok(()) => Ok(launched),
        Err(err) => {
            let _ = launched.init.kill();
            let _ = launched.init.wait();
            let what = "the memory of the sandbox's keeper cannot be hidden";
            Err(plan::refusal(125, what, Some(&plan::chain(&err)), None))
        }
    }
}

impl Born {
    /// Sets everything in motion but the program itself. Needs a runtime.
    pub fn wake(mut self, passed: Vec<OwnedFd>, tasks: &mut Tasks) -> io::Result<Awake> {
        let seat = self.launched.seat.take();
        self.launched.set_nonblocking()?;
        let link =
            Rc::new(watched(self.launched.link.try_clone()?, Interest::READABLE | Interest::WRITABLE)?);
        let init = watched(self.launched.init.pidfd.try_clone()?, Interest::READABLE)?;
        let (guest, queue) = mpsc::channel(64);
        let (orders, received) = mpsc::channel(4);
        let (teller, news) = mpsc::channel(16);
        let (keeper, wall) = self.into_keeper(guest, orders);
        let keeper = Rc::new(keeper);
        tasks.spawn_local(provided::tell(keeper.clone()));
        tasks.spawn_local(wall::tell_trouble(keeper.gate.clone(), teller.clone()));
        wall.raise(&keeper, seat, tasks)?;
        tasks.spawn_local(link::write(link.clone(), queue));
        tasks.spawn_local(link::read(link, keeper.clone()));
        tasks.spawn_local(watch::disk(keeper.clone()));
        if let Some(check) = keeper.spec.health.clone().filter(|_| !keeper.is_visited) {
            tasks.spawn_local(health::watch(keeper.clone(), check));
        }
        if keeper.is_recheck_due.get() {
            tasks.spawn_local(watch::recheck_host(keeper.clone()));
        }
        let life = life::Life { orders: received, news: teller, passed, init, asked: None };
        Ok(Awake { keeper, life, news })
    }

    fn into_keeper(
        self,
        guest: mpsc::Sender<link::Outgoing>,
        orders: mpsc::Sender<super::Order>,
    ) -> (Keeper, wall::Prepared) {
        let (plan, log) = (self.plan, Log::at(&self.sandbox.log()));
        let shifted = plan.ids.user_outside(plan.user.uid).zip(plan.ids.group_outside(plan.user.gid));
        let mut state = self.state;
        state.keeper_pid = Some(std::process::id());
        state.init_pid = u32::try_from(self.launched.init.pid.as_raw_nonzero().get()).ok();
        let keeper = Keeper {
            held: Cell::new(false),
            rests: Cell::new(false),
            is_recheck_due: Cell::new(plan.image.is_recheck_due),
            view: plan::view(&self.sandbox, &plan.caller),
            sandbox: self.sandbox,
            spec: self.spec,
            state: RefCell::new(state),
            launched: self.launched,
            disk: self.disk,
            group: self.group,
            guest,
            programs: program::Table::default(),
            log: Rc::new(log),
            orders,
            main: Cell::new(0),
            early: RefCell::default(),
            runs: tokio::sync::watch::Sender::new(0),
            ended: tokio::sync::watch::Sender::new(None),
            shifted: Cell::new(shifted.filter(|_| plan.caller.is_root())),
            gate: self.wall.gate.clone(),
            wall: std::cell::OnceCell::new(),
            published: RefCell::default(),
            mounts: provided::Mounts::default(),
            is_visited: self.is_visited,
            plan,
        };
        (keeper, self.wall)
    }
}

/// Writes down what the sandbox is about to have on this host, before it has it: whenever this process is killed,
/// what is left can be found and removed.
fn note(sandbox: &Sandbox, spec: &Spec, plan: &Plan, confined: &Confined) -> Result<State, Refusal> {
    let mut state = sandbox.state().unwrap_or_else(|_| sandbox.first_state(spec));
    state.status = Status::Creating;
    state.exit = None;
    state.restarts = 0;
    (state.note, state.health) = (None, None);
    if matches!(spec.workspace, Workspace::Cow { .. }) && state.copied_since.is_none() {
        state.copied_since = Some(stamp_now());
    }
    state.id_map = ids::told(&plan.ids.users);
    state.group_map = ids::told(&plan.ids.groups);
    state.cgroups = confined.paths(sandbox)?.iter().map(|path| path.display().to_string()).collect();
    state.limits.clone_from(&confined.enforced);
    state.limits.extend(other_limits(plan, sandbox));
    sandbox.write_state(&state).map_err(|err| {
        plan::refusal(125, "the state of this sandbox cannot be written", Some(&plan::chain(&err)), None)
    })?;
    Ok(state)
}

/// The time now as file systems stamp it: a change that comes later has this stamp or a later one.
fn stamp_now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// The guest lies in the state directory as a file nobody writes to. It is compared with the one in this binary when
/// it is installed and whenever its inode or change time is not the one noted then, so that a changed one is never
/// executed; comparing it at every start would cost a millisecond.
fn install_guest(path: &Path, guest: &[u8]) -> io::Result<()> {
    let noted = beside(path, "checked");
    if identity(path).is_ok_and(|identity| fs::read_to_string(&noted).is_ok_and(|noted| noted == identity)) {
        return Ok(());
    }
    if !fs::read(path).is_ok_and(|there| there == guest) {
        place_guest(path, guest)?;
    }
    let temporary = beside(path, &format!("checked-{}", std::process::id()));
    fs::write(&temporary, identity(path)?)?;
    fs::rename(&temporary, &noted)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

/// What no write to a file leaves as it was.
fn identity(path: &Path) -> io::Result<String> {
    let stat = rustix::fs::lstat(path)?;
    Ok(format!("{} {} {} {} {:o}", stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec, stat.st_mode))
}

fn place_guest(path: &Path, guest: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(".guest-{}", std::process::id()));
    fs::write(&temporary, guest)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o555))?;
    fs::rename(&temporary, path)
}

/// The directory of everything the sandbox writes belongs to its root.
fn prepare_disk(sandbox: &Sandbox, plan: &Plan, base: Option<(u32, u32)>) -> io::Result<()> {
    if fs::symlink_metadata(&plan.disk).is_ok() {
        return Ok(());
    }
    // What is bounded stays below the directory that has the bound.
    if plan.bounds.disk.is_none() && spare::make_empty(sandbox, base).is_ok() {
        return Ok(());
    }
    fs::create_dir(&plan.disk)?;
    match base {
        Some((user, group)) => std::os::unix::fs::chown(&plan.disk, Some(user), Some(group)),
        None => Ok(()),
    }
}

/// Waits until the sandbox is sealed; meanwhile tasks get ready for it.
pub async fn sealed(keeper: &Keeper, backend: &dyn Backend) -> Result<(), Refusal> {
    // A machine has to boot after that.
    while keeper.launched.sealing.borrow().is_some() {
        let copy = keeper.launched.sealing.borrow().as_ref().map(OwnedFd::try_clone).transpose();
        // Who cannot be told of it waits below.
        if let Ok(Some(copy)) = copy
            && let Ok(sealing) = watched(copy, Interest::READABLE)
        {
            let _ = sealing.readable().await;
        }
        backend.seal(&keeper.plan, &keeper.launched)?;
    }
    keeper.serve_mounts(keeper.launched.served.take())
}

/// Takes down what was to become a sandbox and was never sealed.
pub fn give_up(keeper: Keeper) {
    let Keeper { launched, group, .. } = keeper;
    end(launched);
    if let Some(Err(err)) = group.map(Group::remove) {
        super::note(&plan::chain(&err));
    }
}

fn end(launched: Launched) {
    let _ = launched.init.kill();
    let _ = launched.init.wait();
    if let Some(porter) = launched.porter {
        drop(porter.socket);
        // It would go by itself, unless somebody stopped it.
        let _ = porter.child.kill();
        let _ = porter.child.wait();
    }
}

/// Ends the sandbox for good: whoever waits is told first, then everything goes.
pub async fn finish(
    keeper: &Rc<Keeper>,
    outcome: &Result<airlock_protocol::state::Exit, Refusal>,
    news: &mpsc::Sender<life::News>,
) {
    let _ = keeper.clear().await;
    provided::tell_now(keeper);
    if let Some(appeared) = keeper.appeared() {
        let _ = news.send(life::News::Told(appeared)).await;
    }
    // Whoever hears of the end finds its ports free: what was told to stop drops its listener in its turn.
    keeper.published.take().iter().for_each(AbortHandle::abort);
    tokio::task::yield_now().await;
    keeper.wall.get().into_iter().for_each(|wall| wall.close());
    if let Err(err) = keeper.gate.close() {
        super::note(&plan::chain(&err));
    }
    if let Err(err) = guard::stand_down(&keeper.sandbox, &mut keeper.state.borrow_mut()) {
        super::note(&format!("what stood for protected paths is left behind: {err}"));
    }
    if let Ok(exit) = outcome
        && keeper.stays()
    {
        {
            let mut state = keeper.state.borrow_mut();
            state.status = Status::Stopped;
            state.exit = Some(exit.clone());
            state.note = None;
        }
        // Before anybody hears of the end: what stays must survive a power cut.
        if let Err(err) = keeper.sandbox.write_state_durably(&keeper.state.borrow()) {
            super::note(&plan::chain(&err));
        }
    }
}

/// Takes down what is left of a sandbox that has ended; the process has one thread again.
pub fn bury(keeper: Keeper, backend: &dyn Backend, lock: Lock, keep: Keep) {
    keeper.mounts.stop();
    let Keeper { sandbox, launched, group, plan, view, is_recheck_due, .. } = keeper;
    let (gone, turn) = match keep {
        Keep::Yes => (None, None),
        Keep::No(gone) => {
            // Nobody waits for what follows, and others may be about to start.
            job::give_way();
            // PID 1 takes its mounts down itself.
            job::let_go_behind(launched.init.pid);
            (gone, spare::turn(sandbox.store()))
        }
    };
    end(launched);
    if let Some(Err(err)) = group.map(Group::remove) {
        super::note(&plan::chain(&err));
    }
    if let Some(Err(err)) = gone.map(crate::store::Gone::delete) {
        super::note(&plan::chain(&err));
    }
    spare::make(sandbox.store(), backend, &plan);
    drop((sandbox, lock, turn));
    if is_recheck_due.get() {
        job::give_way();
        if let Err(err) = airlock_images::host::recheck(&view) {
            super::note(&plan::chain(&err));
        }
    }
    if let Err(err) = backend.help_next(&plan) {
        super::note(&format!("the next sandbox like this one starts slowly: {}", plan::chain(&err)));
    }
}

/// Whether a sandbox stays when its program has ended.
pub enum Keep {
    /// Stopped, with its files.
    Yes,
    /// It is out of sight already; its files go.
    No(Option<crate::store::Gone>),
}
