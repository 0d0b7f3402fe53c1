//! The life of the main program: started, waited for, started anew, ended.

use super::{
    Keeper, Order, Tasks, plan,
    program::{self, Event, Program},
};
use crate::store;
use airlock_linux::signal;
use airlock_protocol::{
    control::Refusal,
    guest::End,
    spec::Restart,
    state::{Cause, Exit, Status},
};
use std::{os::fd::OwnedFd, rc::Rc, time::Duration};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};

/// What the first client hears of.
#[derive(Debug)]
pub enum News {
    /// The program runs; its terminal, if it has one, can be watched.
    Started {
        /// Its pid inside.
        pid: u32,
        /// Its terminal.
        terminal: Option<Rc<super::terminal::Terminal>>,
    },
    /// It stopped.
    Stopped {
        /// By this signal.
        signal: i32,
    },
    /// Something that a person has to hear, whether or not anybody watches.
    Told(airlock_protocol::event::Event),
    /// It could not be started.
    Refused(Refusal),
}

/// Everything the life of a program needs besides the keeper.
pub struct Life {
    /// Orders of clients.
    pub(super) orders: mpsc::Receiver<Order>,
    /// The first client.
    pub news: mpsc::Sender<News>,
    /// The first client's streams.
    pub passed: Vec<OwnedFd>,
    /// PID 1, readable when it has ended.
    pub(super) init: AsyncFd<OwnedFd>,
    /// The program, where it was asked for while the sandbox was still being built.
    pub(super) asked: Option<Result<program::Asked, Refusal>>,
}

impl Life {
    /// Asks for the program while the sandbox is still being built, so that PID 1 finds that word when it is sealed and has become
    /// the guest. Where the program needs something that is there only then, it is asked for by [`run`].
    pub async fn ask_ahead(&mut self, keeper: &Keeper, tasks: &mut Tasks) {
        let needs_sealed = keeper.spec.stdio.has_terminal()
            || !keeper.plan.provided.is_empty()
            || keeper.launched.monitor.is_some();
        if !needs_sealed {
            let passed = self.take_passed(keeper);
            self.asked = Some(ask(keeper, passed, tasks).await);
        }
    }

    /// Descriptors the client sent are kept only where the program may be started anew: whoever reads the other end of
    /// a pipe waits for the last copy to close.
    fn take_passed(&mut self, keeper: &Keeper) -> Vec<OwnedFd> {
        let kept = match keeper.spec.restart {
            Restart::No => Vec::new(),
            _ => self.passed.iter().filter_map(|fd| fd.try_clone().ok()).collect(),
        };
        std::mem::replace(&mut self.passed, kept)
    }
}

/// How long SIGTERM has before SIGKILL where nobody said.
pub const GRACE: Duration = Duration::from_secs(10);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// A program that only its command waits for is written down as running when it has run this long.
const MOMENT: Duration = Duration::from_millis(3);
/// A program that ran this long has started well; the next restart is a first one again.
const WELL: Duration = Duration::from_secs(10);

/// How one run of the program came to its end.
enum Outcome {
    Ended(End),
    TimedOut,
    Ordered { restart: bool, end: Option<End> },
    GuestDied,
}

/// Runs the program until it has ended for good; says how.
pub async fn run(keeper: &Rc<Keeper>, mut life: Life, tasks: &mut Tasks) -> Result<Exit, Refusal> {
    let (mut failures, mut is_first) = (0u32, true);
    loop {
        let began = Instant::now();
        let mut program = match start(keeper, &mut life, tasks).await {
            Ok(program) => program,
            Err(refusal) if is_first => return Err(refusal),
            Err(refusal) => return Ok(exit(refusal.code, Cause::NotStarted { why: refusal.what })),
        };
        keeper.main.set(program.process);
        for signal in keeper.early.take() {
            let _ = keeper.signal(program.process, signal).await;
        }
        keeper.change(|state| {
            state.status = Status::Running;
            state.started_at = Some(store::now());
            state.exit = None;
        });
        if !is_private(keeper) {
            keeper.write_down();
        }
        let started = News::Started { pid: program.pid, terminal: program.terminal.clone() };
        let _ = life.news.send(started).await;
        keeper.runs.send_modify(|runs| *runs = runs.wrapping_add(1));
        let outcome = follow(keeper, &mut program, &mut life).await;
        program.written.wait().await;
        if began.elapsed() >= WELL {
            failures = 0;
        }
        let (exit, ordered) = judge(keeper, &outcome);
        is_first = false;
        failures = if ordered { 0 } else { failures + 1 };
        if !(ordered || wants_restart(keeper.spec.restart, &outcome, failures)) {
            return Ok(exit);
        }
        let delay = if ordered { Duration::ZERO } else { delay(failures) };
        if !pause_before_restart(keeper, &mut life, exit.clone(), delay).await {
            return Ok(exit);
        }
    }
}

/// Whether only the command that started the program waits for it and nothing of it stays: nobody who looks for the
/// sandbox can tell that it has not begun yet, so that a program that ends within a moment need not be written down.
fn is_private(keeper: &Keeper) -> bool {
    let spec = &keeper.spec;
    !spec.keep && spec.restart == Restart::No && spec.stdio.passed() > 0
}

async fn start(keeper: &Rc<Keeper>, life: &mut Life, tasks: &mut Tasks) -> Result<Program, Refusal> {
    let asked = match life.asked.take() {
        Some(asked) => asked,
        None => ask(keeper, life.take_passed(keeper), tasks).await,
    };
    asked?.executed().await
}

async fn ask(keeper: &Keeper, passed: Vec<OwnedFd>, tasks: &mut Tasks) -> Result<program::Asked, Refusal> {
    let wanted = program::Wanted {
        command: keeper.spec.command.clone(),
        env: keeper.plan.env.clone(),
        workdir: plan::workdir(&keeper.spec.workdir)?,
        user: keeper.plan.user.clone(),
        stdio: keeper.spec.stdio,
    };
    keeper.ask(wanted, passed, tasks).await
}

/// Waits for whatever ends the program.
async fn follow(keeper: &Keeper, program: &mut Program, life: &mut Life) -> Outcome {
    let deadline = keeper.plan.bounds.timeout.map(|timeout| Instant::now() + timeout);
    let (moment, mut is_settled) = (Instant::now() + MOMENT, false);
    loop {
        tokio::select! {
            biased;
            event = program.events.recv() => match event {
                Some(Event::Ended(end)) => return Outcome::Ended(end),
                Some(Event::Stopped { signal }) => {
                    let _ = life.news.try_send(News::Stopped { signal });
                }
                Some(_) => {}
                None => return Outcome::GuestDied,
            },
            _ = life.init.ready(Interest::READABLE) => {
                // Its last words may still be on the link.
                let last = timeout_at(Instant::now() + Duration::from_millis(50), program.events.recv()).await;
                return match last {
                    Ok(Some(Event::Ended(end))) => Outcome::Ended(end),
                    _ => Outcome::GuestDied,
                };
            }
            order = life.orders.recv() => match order {
                Some(Order::End { signal, grace }) => {
                    let end = put_down(keeper, program, signal, grace).await;
                    return Outcome::Ordered { restart: false, end };
                }
                Some(Order::Restart { grace }) => {
                    let end = put_down(keeper, program, keeper.stop_signal(), grace).await;
                    return Outcome::Ordered { restart: true, end };
                }
                None => return Outcome::GuestDied,
            },
            () = sleep_until(moment), if !is_settled => {
                if is_private(keeper) {
                    keeper.write_down();
                }
                keeper.launched.left.take();
                is_settled = true;
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                put_down(keeper, program, keeper.stop_signal(), GRACE).await;
                return Outcome::TimedOut;
            }
        }
    }
}

/// Asks the program to end, then makes it.
async fn put_down(keeper: &Keeper, program: &mut Program, signal: i32, grace: Duration) -> Option<End> {
    let _ = keeper.signal(program.process, signal).await;
    let until = Instant::now() + grace;
    loop {
        match timeout_at(until, program.events.recv()).await {
            Ok(Some(Event::Ended(end))) => return Some(end),
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(_) => break,
        }
    }
    let _ = keeper.signal(program.process, signal::KILL).await;
    let until = Instant::now() + Duration::from_secs(5);
    while let Ok(Some(event)) = timeout_at(until, program.events.recv()).await {
        if let Event::Ended(end) = event {
            return Some(end);
        }
    }
    None
}

fn judge(keeper: &Keeper, outcome: &Outcome) -> (Exit, bool) {
    let ended = |end: End| {
        let out_of_memory = end.shell_code() == 128 + 9 && keeper.ran_out_of_memory();
        match end {
            _ if out_of_memory => exit(128 + 9, Cause::OutOfMemory),
            End::Exited { code } => exit(code, Cause::Exited),
            End::Signalled { signal } => exit(end.shell_code(), Cause::Signalled { signal }),
        }
    };
    match outcome {
        Outcome::Ended(end) => (ended(*end), false),
        Outcome::TimedOut => (exit(124, Cause::TimedOut), false),
        Outcome::Ordered { restart, end } => {
            (end.map_or_else(|| exit(128 + 9, Cause::Signalled { signal: signal::KILL }), ended), *restart)
        }
        Outcome::GuestDied if keeper.ran_out_of_memory() => (exit(128 + 9, Cause::OutOfMemory), false),
        Outcome::GuestDied => (exit(125, Cause::GuestDied), false),
    }
}

/// Kills what is left, waits a while. `false` if somebody ordered the end meanwhile.
async fn pause_before_restart(keeper: &Keeper, life: &mut Life, exit: Exit, delay: Duration) -> bool {
    keeper.update(|state| {
        state.status = Status::Restarting;
        state.exit = Some(exit);
        state.restarts += 1;
    });
    if keeper.clear().await.is_err() {
        return false;
    }
    let until = Instant::now() + delay;
    match timeout_at(until, life.orders.recv()).await {
        Ok(Some(Order::Restart { .. })) | Err(_) => true,
        Ok(_) => false,
    }
}

fn delay(failures: u32) -> Duration {
    FIRST_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_DELAY)
}

/// Whether a program that ended by itself is to be started anew.
fn wants_restart(policy: Restart, outcome: &Outcome, failures: u32) -> bool {
    let Outcome::Ended(end) = outcome else { return false };
    match policy {
        Restart::No => false,
        Restart::OnFailure { max } => end.shell_code() != 0 && max.is_none_or(|max| failures <= max),
        Restart::Always => true,
    }
}

fn exit(code: u8, cause: Cause) -> Exit {
    Exit { code, cause, at: store::now() }
}
