//! The process that owns one sandbox: its guest link, terminals, logs, limits and state.
//!
//! [`birth`] builds the sandbox while the process has one thread. Then everything runs on one single-threaded
//! runtime: [`life`] starts the program, waits, restarts, ends; doors ask for further programs through [`Keeper`].
//!
//! - [`guard`]: protected paths of a workspace that is written directly
//! - `health`: whether the program does its work
//! - [`link`]: frames to and from the guest
//! - [`program`]: starting programs and hearing of them
//! - `provided`: programmable mounts, and mounts while it runs
//! - `rest`: a machine whose memory is being saved
//! - [`spare`]: a disk made in advance for the next sandbox
//! - [`streams`]: where their standard streams lead
//! - [`terminal`]: terminals and who watches them
//! - [`log`]: what the program wrote, bounded on disk
//! - [`visit`]: a sandbox that stands for a while without its program
//! - [`wall`]: the gate, and what carries what it permits
//! - [`watch`]: the disk, and freezing

pub mod birth;
mod confine;
pub(crate) mod guard;
mod health;
pub mod life;
mod link;
pub mod log;
pub mod program;
mod provided;
mod rest;
mod script;
pub mod spare;
mod streams;
pub mod terminal;
pub mod visit;
mod wall;
mod watch;

use crate::{
    backend::{Backend, Launched},
    plan::{self, Base, Plan},
    store::{Gone, Sandbox},
};
use airlock_gate::{Gate, secrets::Bound};
use airlock_images::host::View;
use airlock_linux::cgroup::Group;
use airlock_net::wall::Wall;
use airlock_protocol::{
    control::{Exec, Refusal},
    guest::{ToGuest, User},
    spec::{DiskBy, Spec},
    state::{Exit, State, Status},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    cell::{Cell, OnceCell, RefCell},
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch as tokio_watch},
    task::{AbortHandle, JoinSet},
};

/// One sandbox and everything that belongs to it. Shared by the tasks of one thread.
pub struct Keeper {
    sandbox: Sandbox,
    spec: Spec,
    plan: Plan,
    state: RefCell<State>,
    launched: Launched,
    /// The disk of bounded size that the sandbox writes to.
    disk: Option<OwnedFd>,
    group: Option<Group>,
    guest: mpsc::Sender<link::Outgoing>,
    programs: program::Table,
    log: Rc<log::Log>,
    gate: Rc<Gate>,
    wall: OnceCell<Rc<Wall>>,
    /// Who listens on the published ports of the host.
    published: RefCell<Vec<AbortHandle>>,
    orders: mpsc::Sender<Order>,
    ended: tokio_watch::Sender<Option<Exit>>,
    main: Cell<u32>,
    /// Signals that came before the main program runs.
    early: RefCell<Vec<i32>>,
    /// How often the main program was started.
    runs: tokio_watch::Sender<u32>,
    shifted: Cell<Option<(u32, u32)>>,
    view: View,
    /// Programmable mounts, and what was mounted while it runs.
    mounts: provided::Mounts,
    /// Whether somebody only visits: nothing of it is written down.
    is_visited: bool,
    /// Whether it is frozen for somebody who copies its files.
    held: Cell<bool>,
    /// Whether its machine stands still for somebody who saves its memory.
    rests: Cell<bool>,
    /// Whether the host is to be looked over again.
    is_recheck_due: Cell<bool>,
}

/// What a client may want of the main program.
#[derive(Debug)]
enum Order {
    /// End it: this signal, and after the grace SIGKILL.
    End { signal: i32, grace: Duration },
    /// End it and start it anew.
    Restart { grace: Duration },
}

/// Tasks of one sandbox; they die with it.
pub type Tasks = JoinSet<()>;

impl Keeper {
    /// The state as it is now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Starts a further program.
    pub async fn exec(
        &self,
        exec: Exec,
        passed: Vec<OwnedFd>,
        tasks: &mut Tasks,
    ) -> Result<program::Program, Refusal> {
        if self.state.borrow().status == Status::Paused {
            let why = self.state.borrow().note.clone();
            return Err(plan::refusal(125, "this sandbox is frozen", why.as_deref(), Some("airlock resume")));
        }
        self.refuse_values(&exec)?;
        let mut env = self.plan.env.clone();
        for (name, value) in &exec.env {
            env.retain(|entry| entry.split_once('=').is_none_or(|(old, _)| old != name));
            env.push(format!("{name}={value}"));
        }
        let user = match &exec.user {
            Some(user) => self.find_user(user)?,
            None => self.plan.user.clone(),
        };
        let workdir = match exec.workdir {
            Some(workdir) => plan::workdir(workdir.as_ref())?,
            None => plan::workdir(&self.spec.workdir)?,
        };
        let command = exec.command.clone();
        let wanted = program::Wanted { command: exec.command, env, workdir, user, stdio: exec.stdio };
        let program = self.start(wanted, passed, tasks).await?;
        self.gate.tell(airlock_protocol::event::Event::Exec { command });
        Ok(program)
    }

    /// A user as the sandbox's own accounts name it.
    fn find_user(&self, user: &str) -> Result<User, Refusal> {
        if self.plan.base == Base::Host {
            return Ok(plan::find_user(user, &self.plan.etc)?.0);
        }
        let accounts = plan::base::accounts(&self.spec, &self.sandbox, &self.plan.caller)?;
        Ok(plan::find_user_in(user, &accounts, &self.plan.caller)?.0)
    }

    /// A secret's value never enters, whoever brings it.
    fn refuse_values(&self, exec: &Exec) -> Result<(), Refusal> {
        let texts = exec.env.values().chain(&exec.command);
        for text in texts {
            let holds = |secret: &&Bound| text.contains(secret.value().reveal());
            if let Some(secret) = self.gate.secrets().iter().find(holds) {
                let what =
                    format!("the command or its environment holds the value of the secret {}", secret.name());
                let fix = format!("the variable {} inside holds what stands for it", secret.name());
                return Err(plan::refusal(2, &what, Some("the program inside would see it"), Some(&fix)));
            }
        }
        Ok(())
    }

    /// Sends a signal to a program.
    pub async fn signal(&self, process: u32, signal: i32) -> Result<(), Refusal> {
        if !(1..=64).contains(&signal) {
            return Err(plan::refusal(2, &format!("{signal} is no signal"), None, None));
        }
        self.tell(ToGuest::Signal { process, signal }, Vec::new()).await
    }

    /// Sends a signal to the main program; to one that does not run yet, as soon as it does.
    pub async fn signal_main(&self, signal: i32) -> Result<(), Refusal> {
        let process = self.main.get();
        if signal == airlock_linux::signal::KILL {
            // What is frozen does not die.
            self.thaw_if_frozen().await;
        }
        if process != 0 {
            return self.signal(process, signal).await;
        }
        let mut early = self.early.borrow_mut();
        if !early.contains(&signal) {
            early.push(signal);
        }
        Ok(())
    }

    /// What asks its program to end.
    pub fn stop_signal(&self) -> i32 {
        self.spec.stop_signal.unwrap_or(airlock_linux::signal::TERM)
    }

    /// Ends the main program and the sandbox with it. Returns when that has happened.
    pub async fn end(&self, signal: i32, grace: Duration) -> Option<Exit> {
        self.thaw_if_frozen().await;
        let _ = self.orders.send(Order::End { signal, grace }).await;
        self.wait().await
    }

    /// Ends the main program and starts it anew. Returns when the new one runs.
    pub async fn restart(&self, grace: Duration) -> Result<(), Refusal> {
        if self.spec.stdio.passed() > 0 {
            let why = "its streams belong to the command that started it";
            return Err(plan::refusal(
                125,
                "this program cannot be started anew",
                Some(why),
                Some("run it with -d"),
            ));
        }
        self.thaw_if_frozen().await;
        let mut runs = self.runs.subscribe();
        self.orders.send(Order::Restart { grace }).await.map_err(|_| gone())?;
        tokio::select! {
            biased;
            started = runs.changed() => started.map_err(|_| gone()),
            _ = self.wait() => Err(gone()),
        }
    }

    /// Waits until the sandbox has ended for good.
    pub async fn wait(&self) -> Option<Exit> {
        let mut ended = self.ended.subscribe();
        let exit = ended.wait_for(Option::is_some).await.ok()?;
        exit.clone()
    }

    /// Why no program could be started, where it is the fault of PID 1.
    pub fn farewell(&self, backend: &dyn Backend) -> Option<Refusal> {
        backend.farewell(&self.plan, &self.launched)
    }

    /// Says that it has ended for good: whoever waits hears it now.
    pub fn announce(&self, exit: Exit) {
        self.ended.send_replace(Some(exit));
    }

    /// Takes a sandbox that does not stay out of sight.
    pub fn retire(&self) -> Option<Gone> {
        match self.sandbox.retire(Some(&self.state.borrow().name)) {
            Ok(gone) => Some(gone),
            Err(err) => {
                note(&plan::chain(&err));
                None
            }
        }
    }

    /// Whether it stays when its program has ended: it was asked to, or its workspace's copy differs from the host.
    pub fn stays(&self) -> bool {
        self.spec.keep || self.has_changes()
    }

    /// Whether anything was written into the workspace's copy. What lies in memory is lost with the sandbox anyway.
    fn has_changes(&self) -> bool {
        let in_memory = self.plan.bounds.disk.is_some_and(|disk| disk.by == DiskBy::Tmpfs);
        match self.launched.workspace.get() {
            Some(layer) => !in_memory && !crate::store::is_empty(layer.as_fd()),
            None => false,
        }
    }

    /// The directory that holds what differs in a workspace that is copied on write.
    pub fn workspace_layer(&self) -> Result<OwnedFd, Refusal> {
        let what = "this sandbox has no copy of a workspace";
        let fix = Some("airlock run --workspace cow");
        let layer = self.launched.workspace.get().ok_or_else(|| plan::refusal(125, what, None, fix))?;
        layer
            .try_clone()
            .map_err(|err| plan::refusal(125, "the copy cannot be opened", Some(&err.to_string()), None))
    }

    /// The root of its bounded disk.
    pub fn disk(&self) -> Result<OwnedFd, Refusal> {
        let what = "this sandbox has no disk of its own";
        let disk = self.disk.as_ref().ok_or_else(|| plan::refusal(125, what, None, None))?;
        disk.try_clone()
            .map_err(|err| plan::refusal(125, "its disk cannot be opened", Some(&err.to_string()), None))
    }

    /// Changes the state and writes it down.
    fn update(&self, change: impl FnOnce(&mut State)) {
        self.change(change);
        self.write_down();
    }

    /// Changes the state as whoever asks the keeper sees it.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.borrow_mut());
    }

    /// Writes the state down for those who do not ask the keeper.
    fn write_down(&self) {
        if self.is_visited {
            return;
        }
        if let Err(err) = self.sandbox.write_state(&self.state.borrow()) {
            note(&plan::chain(&err));
        }
    }

    async fn tell(&self, what: ToGuest, descriptors: Vec<OwnedFd>) -> Result<(), Refusal> {
        self.guest.send(link::Outgoing { what, descriptors }).await.map_err(|_| gone())
    }
}

fn gone() -> Refusal {
    plan::refusal(125, "this sandbox has just ended", None, None)
}

/// No memory image of this process, should it crash: neither in a file nor by a program of the host. Secrets are in its memory. Of
/// the host's core pattern a limit of 0 stops only the file, a limit of 1 stops both (fs/coredump.c).
pub fn forbid_memory_images() -> std::io::Result<()> {
    let most = getrlimit(Resource::Core).maximum.map_or(1, |most| most.min(1));
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Writes a line to the keeper's log, if that can be written: it may lie on the disk that is full.
pub fn note(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "airlock keep: {text}");
}

/// Has the runtime watch a descriptor, which must never wait.
#[expect(
    deprecated,
    reason = "the danger is a type whose descriptor changes under the runtime; an OwnedFd's does not"
)]
pub fn watched(fd: OwnedFd, interest: Interest) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
