//! Starts a monitor that has an API (Firecracker) and tells it what its machine is, beside it in its cell: what the monitor answers, and
//! whoever has taken it over, reaches nothing that the cell does not hold.
//!
//! The machine connects with two ports of its vsock, which the monitor makes connections of with sockets of this process. Each is handed
//! on over the socket that stands for the port, and from then on this process only writes down what the monitor says, and ends with it.
//!
//! - [`api`]: the client of the API

mod api;

use airlock_linux::{clone, fd};
use airlock_protocol::carry::Starting;
use api::{Api, Error};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, WaitOptions, WaitStatus},
};
use std::{
    env,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt as _,
        },
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// The sockets that stand for the ports.
const PORTS: [i32; 2] = [3, 4];
/// How long a monitor may take to make its socket, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between looks whether the socket is there.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Most of a monitor's words that are written down.
const MOST_OUTPUT: u64 = 256 << 10;
/// What goes with a port that is handed on.
const HANDED: &[u8] = b"p";
/// What a shell says of a program that could not be executed.
const NOT_EXECUTED: i32 = 127;

/// Runs until the monitor has ended; gives its exit code.
pub(crate) fn run() -> i32 {
    start().unwrap_or_else(|err| {
        eprintln!("airlock-carrier: {err}");
        1
    })
}

fn start() -> io::Result<i32> {
    let told = env::args().nth(1).unwrap_or_default();
    let starting: Starting = serde_json::from_str(&told)?;
    let mut ports = Vec::new();
    for (path, port) in starting.ports.iter().zip(PORTS) {
        ports.push((UnixListener::bind(path)?, fd::inherited(port)?));
    }
    let (output, said) = io::pipe()?;
    let monitor = execute(&starting.command, said)?;
    let mut log = Log { output, written: 0 };
    if let Err(err) = describe(&starting, &log.output) {
        // Where it has ended, its own words say why; they come last.
        let has_ended = matches!(err, Error::Silent(_));
        if has_ended {
            eprintln!("airlock-carrier: {err}");
        }
        rustix::process::kill_process(monitor, rustix::process::Signal::KILL)?;
        log.write_all_of_it()?;
        if !has_ended {
            eprintln!("airlock-carrier: {err}");
        }
        return Ok(1);
    }
    hand_on(&mut log, ports)?;
    let Some((_, status)) = rustix::process::waitpid(Some(monitor), WaitOptions::empty())? else {
        return Ok(0);
    };
    Ok(code(status))
}

/// Ended by a signal, it ends this process too: who waits for it is told the truth.
fn code(status: WaitStatus) -> i32 {
    let signal = status.terminating_signal().and_then(rustix::process::Signal::from_named_raw);
    if let Some(signal) = signal {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
    status.exit_status().unwrap_or(NOT_EXECUTED)
}

/// It ends with this process, and has nothing of it but its output.
fn execute(command: &[String], said: PipeWriter) -> io::Result<Pid> {
    if let Some(monitor) = clone::fork_inside()? {
        return Ok(monitor);
    }
    let become_it = || -> io::Result<std::convert::Infallible> {
        clone::die_with_parent()?;
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().stdin(Stdio::null());
        Err(command.stdout(said.try_clone()?).stderr(said).exec())
    };
    let Err(err) = become_it();
    eprintln!("airlock-carrier: could not execute the monitor: {err}");
    clone::exit_now(NOT_EXECUTED)
}

/// Asks for everything, one after the other.
fn describe(starting: &Starting, output: &PipeReader) -> Result<(), Error> {
    let mut api = Api::new(connect(&starting.api, output)?, PATIENCE)?;
    starting.requests.iter().try_for_each(|(path, body)| api.put(path, body))
}

/// Connects with the monitor as soon as it listens, unless it ends before.
fn connect(path: &str, output: &PipeReader) -> io::Result<UnixStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(path) {
            Err(err) if Instant::now() >= deadline => return Err(err),
            Err(_) => {}
            connected => return connected,
        }
        // It alone has the other end.
        let mut polled = [PollFd::new(output, PollFlags::empty())];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&PAUSE)))?;
        if polled.iter().any(|polled| polled.revents().contains(PollFlags::HUP)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Hands each port on when the machine has connected with it, and writes down what the monitor says until it has ended.
fn hand_on(log: &mut Log, mut ports: Vec<(UnixListener, OwnedFd)>) -> io::Result<()> {
    loop {
        let waiting: Vec<BorrowedFd<'_>> =
            std::iter::once(log.output.as_fd()).chain(ports.iter().map(|(port, _)| port.as_fd())).collect();
        let mut polled: Vec<PollFd<'_>> = waiting.iter().map(|one| PollFd::new(one, PollFlags::IN)).collect();
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
        let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        let Some((log_is_ready, ports_are_ready)) = ready.split_first() else { return Ok(()) };
        // From behind, so that the places of the others stay.
        for (place, _) in ports_are_ready.iter().enumerate().rev().filter(|(_, is_ready)| **is_ready) {
            let (listener, port) = ports.remove(place);
            let (connection, _) = listener.accept()?;
            fd::send_all(port.as_fd(), HANDED, &[connection.as_fd()])?;
        }
        if *log_is_ready && log.write_some()? == 0 {
            return Ok(());
        }
    }
}

/// What the monitor says, written down as far as there is room.
struct Log {
    output: PipeReader,
    written: u64,
}

impl Log {
    /// How much was read; nothing when the monitor has ended.
    fn write_some(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 4096];
        let count = self.output.read(&mut bytes)?;
        let length = u64::try_from(count).unwrap_or(u64::MAX);
        if self.written.saturating_add(length) <= MOST_OUTPUT {
            self.written += length;
            io::stdout().write_all(bytes.get(..count).unwrap_or_default())?;
            io::stdout().flush()?;
        }
        Ok(count)
    }

    fn write_all_of_it(&mut self) -> io::Result<()> {
        while self.write_some()? > 0 {}
        Ok(())
    }
}
