//! Starting programs in the sandbox and hearing of them.

use super::{Keeper, Tasks, plan, streams, terminal::Terminal};
use airlock_linux::fd;
use airlock_protocol::{
    control::Refusal,
    copy::{Copy, CopyJob},
    guest::{End, FromGuest, Start, Step, ToGuest, User},
    spec::Stdio,
    state::Status,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    os::fd::OwnedFd,
    rc::Rc,
};
use tokio::sync::mpsc;

/// The first number given to a program.
const FIRST: u32 = 1;
/// Most programs that may run at once on request; the main one among them.
const MOST: usize = 256;

/// A program to start.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) command: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) workdir: String,
    pub(super) user: User,
    pub(super) stdio: Stdio,
}

/// A program that runs.
pub struct Program {
    /// The keeper's number for it.
    pub process: u32,
    /// Its pid inside.
    pub pid: u32,
    /// Its terminal, if it has one.
    pub terminal: Option<Rc<Terminal>>,
    /// What the guest says of it.
    pub events: mpsc::Receiver<Event>,
    /// Ends when everything it wrote has been read.
    pub(super) written: streams::Written,
}

/// What happens to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was executed.
    Started {
        /// Its pid inside.
        pid: u32,
    },
    /// It could not be.
    NotStarted {
        /// While doing this.
        step: Step,
        /// With this error.
        errno: i32,
    },
    /// It stopped.
    Stopped {
        /// By this signal.
        signal: i32,
    },
    /// It ended.
    Ended(End),
}

/// The programs that run, by number.
#[derive(Debug, Default)]
pub(super) struct Table {
    last: Cell<u32>,
    running: RefCell<HashMap<u32, mpsc::Sender<Event>>>,
    alone: Cell<bool>,
    /// Whether a kernel of the sandbox's own ended something for want of memory.
    starved: Cell<bool>,
    /// Whether a machine that was asked to stand still does.
    is_still: Cell<bool>,
    /// Who waits until everything is gone, or stands still.
    cleared: RefCell<Option<tokio::sync::oneshot::Sender<()>>>,
}

/// A program that was asked for.
pub(super) struct Asked {
    program: Program,
    command: String,
    workdir: String,
}

impl Asked {
    /// Returns when it has been executed.
    pub(super) async fn executed(mut self) -> Result<Program, Refusal> {
        match self.program.events.recv().await {
            Some(Event::Started { pid }) => Ok(Program { pid, ..self.program }),
            Some(Event::NotStarted { step, errno }) => {
                Err(not_started(&self.command, &self.workdir, step, errno))
            }
            _ => Err(super::gone()),
        }
    }
}

impl Program {
    /// Returns when everything it wrote has been read, or soon after it ended.
    pub async fn output_read(&mut self) {
        self.written.wait().await;
    }
}

impl Keeper {
    /// Starts a program and returns when it has been executed.
    pub(super) async fn start(
        &self,
        wanted: Wanted,
        passed: Vec<OwnedFd>,
        tasks: &mut Tasks,
    ) -> Result<Program, Refusal> {
        self.ask(wanted, passed, tasks).await?.executed().await
    }

    /// Asks for a program. PID 1 hears of it when it has become the guest, and it becomes the guest sealed or not at all.
    pub(super) async fn ask(
        &self,
        wanted: Wanted,
        passed: Vec<OwnedFd>,
        tasks: &mut Tasks,
    ) -> Result<Asked, Refusal> {
        let command = wanted.command.first().cloned().unwrap_or_default();
        let terminal = wanted.stdio.has_terminal();
        let streams = streams::open(self, &wanted.stdio, passed, tasks)?;
        let (process, events) = self.programs.enter()?;
        let workdir = wanted.workdir.clone();
        let start = Start {
            process,
            command: wanted.command,
            env: wanted.env,
            workdir: wanted.workdir,
            user: wanted.user,
            terminal,
            nofile: Some(self.plan.bounds.nofile.value),
        };
        self.programs.alone.set(false);
        self.tell(ToGuest::Start(start), streams.theirs).await?;
        let program =
            Program { process, pid: 0, terminal: streams.terminal, events, written: streams.written };
        Ok(Asked { program, command, workdir })
    }

    /// Copies files in or out. `pipes` are the one with the archive and the one for the guest's report.
    pub async fn copy(&self, copy: Copy, pipes: Vec<OwnedFd>) -> Result<Program, Refusal> {
        if self.state.borrow().status == Status::Paused {
            return Err(plan::refusal(125, "this sandbox is frozen", None, Some("airlock resume")));
        }
        if pipes.len() != 2 || !pipes.iter().all(fd::is_pipe) {
            return Err(plan::refusal(125, "files are copied through two pipes", None, None));
        }
        let (path, touch) = match &copy {
            Copy::In { path, .. } => (path, "copy to"),
            Copy::Out { path, .. } => (path, "copy from"),
        };
        self.gate.copy(path, touch).map_err(|err| {
            let what = "nothing can be copied: the ledger cannot be written";
            plan::refusal(125, what, Some(&plan::chain(&err)), None)
        })?;
        let (process, mut events) = self.programs.enter()?;
        self.programs.alone.set(false);
        let job = CopyJob { process, copy, user: self.plan.user.clone() };
        self.tell(ToGuest::Copy(job), pipes).await?;
        match events.recv().await {
            Some(Event::Started { pid }) => {
                let written = streams::Written::default();
                Ok(Program { process, pid, terminal: None, events, written })
            }
            Some(Event::NotStarted { errno, .. }) => {
                let why = std::io::Error::from_raw_os_error(errno).to_string();
                Err(plan::refusal(125, "no process could be made for the copy", Some(&why), None))
            }
            _ => Err(super::gone()),
        }
    }

    /// Takes in what the guest said.
    pub(super) fn heard(&self, said: FromGuest) {
        match said {
            FromGuest::Started { process, pid } => self.programs.pass(process, Event::Started { pid }),
            FromGuest::NotStarted { process, step, errno } => {
                self.programs.pass(process, Event::NotStarted { step, errno });
                self.programs.forget(process);
            }
            FromGuest::Stopped { process, signal } => self.programs.pass(process, Event::Stopped { signal }),
            FromGuest::Ended { process, end, alone } => {
                self.programs.alone.set(alone);
                self.programs.pass(process, Event::Ended(end));
                self.programs.forget(process);
            }
            FromGuest::OutOfMemory => self.programs.starved.set(true),
            FromGuest::Broken { why } => {
                super::note(&format!("the sandbox cannot go on: {}", printable(&why)))
            }
            FromGuest::Resting { still } => {
                self.programs.is_still.set(still);
                self.programs.told();
            }
            FromGuest::Cleared | FromGuest::Frozen => self.programs.told(),
        }
    }

    /// Tells the sandbox that the terminal of a program, or of the main one, has another size.
    pub async fn resized(&self, process: Option<u32>) -> Result<(), Refusal> {
        let process = process.unwrap_or_else(|| self.main.get());
        self.tell(ToGuest::Resized { process }, Vec::new()).await
    }

    /// Has the guest stop everything in the sandbox but itself.
    pub(super) async fn stop_all(&self) -> Result<(), Refusal> {
        let frozen = self.programs.await_word();
        self.tell(ToGuest::Freeze, Vec::new()).await?;
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), frozen).await;
        Ok(())
    }

    /// Kills everything in the sandbox but PID 1.
    pub(super) async fn clear(&self) -> Result<(), Refusal> {
        if self.programs.alone.get() && self.programs.running.borrow().is_empty() {
            return Ok(());
        }
        let cleared = self.programs.await_word();
        self.tell(ToGuest::Clear, Vec::new()).await?;
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), cleared).await;
        Ok(())
    }
}

impl Table {
    fn enter(&self) -> Result<(u32, mpsc::Receiver<Event>), Refusal> {
        let mut running = self.running.borrow_mut();
        if running.len() >= MOST {
            let what = format!("{MOST} programs already run in this sandbox on request");
            return Err(plan::refusal(125, &what, None, Some("wait for one to end")));
        }
        let process = self.last.get().wrapping_add(1).max(FIRST);
        self.last.set(process);
        let (sender, receiver) = mpsc::channel(16);
        running.insert(process, sender);
        Ok((process, receiver))
    }

    /// What somebody waits for is done.
    fn told(&self) {
        if let Some(waiting) = self.cleared.borrow_mut().take() {
            let _ = waiting.send(());
        }
    }

    /// Waits until the next [`Table::told`].
    pub(super) fn await_word(&self) -> tokio::sync::oneshot::Receiver<()> {
        let (done, waiting) = tokio::sync::oneshot::channel();
        self.cleared.replace(Some(done));
        waiting
    }

    /// Whether a machine said last that it stands still.
    pub(super) fn is_still(&self) -> bool {
        self.is_still.get()
    }

    /// A guest that floods loses events about stops, never the memory of this process.
    fn pass(&self, process: u32, event: Event) {
        if let Some(sender) = self.running.borrow().get(&process) {
            let _ = sender.try_send(event);
        }
    }

    /// Whether a kernel of the sandbox's own ended something for want of memory.
    pub(super) fn is_starved(&self) -> bool {
        self.starved.get()
    }

    fn forget(&self, process: u32) {
        self.running.borrow_mut().remove(&process);
    }

    /// All programs are gone with PID 1.
    pub(super) fn forget_all(&self) {
        self.running.borrow_mut().clear();
    }
}

/// Words from inside as a person may see them.
fn printable(words: &str) -> String {
    words.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// What a shell would say, with its exit codes.
fn not_started(command: &str, workdir: &str, step: Step, errno: i32) -> Refusal {
    let why = std::io::Error::from_raw_os_error(errno).to_string();
    let why = why.split(" (os error").next().unwrap_or_default().to_lowercase();
    let (code, what) = match step {
        Step::Find => (127, format!("{command}: not found in the sandbox")),
        Step::Exec if errno == NOT_FOUND => (127, format!("{command}: not found in the sandbox")),
        Step::Exec => (126, format!("{command}: cannot be executed")),
        Step::Workdir => (125, format!("the working directory {workdir} cannot be entered")),
        Step::User => (125, format!("{command} cannot run as this user")),
        Step::Fork => (125, format!("no process could be made for {command}")),
        Step::Terminal => (125, format!("{command} could not be given a terminal")),
        Step::Limit => (125, format!("the limits of {command} could not be set")),
    };
    plan::refusal(code, &what, Some(&why), None)
}

const NOT_FOUND: i32 = 2;
