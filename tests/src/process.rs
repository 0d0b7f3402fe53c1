//! One command line, run to its end or watched while it runs. Nothing outlives its deadline.

use crate::machine;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    ffi::OsStr,
    fmt,
    io::{self, Read, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A command line that was typed but not yet entered.
pub struct Airlock {
    command: Command,
    input: Option<Vec<u8>>,
    deadline: Duration,
}

/// How a command line ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code, or 128+n where signal n ended the command line itself.
    pub code: i32,
    /// The signal that ended the command line itself.
    pub signal: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// A command line that runs. Killed when dropped.
pub struct Running {
    child: Child,
    stdout: Arc<Heard>,
    stderr: Arc<Heard>,
    what: String,
    end: Instant,
}

impl Airlock {
    /// A command with this environment and none else, without input.
    pub fn new(program: &Path, env: &[(&str, &OsStr)]) -> Airlock {
        let mut command = Command::new(program);
        command.env_clear().envs(env.iter().copied()).stdin(Stdio::null());
        Airlock { command, input: None, deadline: machine::patience() }
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Airlock {
        self.command.args(args);
        self
    }

    /// Sets a variable of the command line's own environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Airlock {
        self.command.env(name, value);
        self
    }

    /// Runs in another directory than the workspace.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Airlock {
        self.command.current_dir(dir);
        self
    }

    /// Writes this to stdin, a pipe, and closes it.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Airlock {
        self.input = Some(bytes.into());
        self.command.stdin(Stdio::piped());
        self
    }

    /// Takes stdin from somewhere else.
    pub fn stdin(mut self, from: impl Into<Stdio>) -> Airlock {
        self.command.stdin(from);
        self
    }

    /// Fails earlier or later than [`DEADLINE`](crate::DEADLINE).
    pub fn deadline(mut self, deadline: Duration) -> Airlock {
        self.deadline = deadline;
        self
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Output {
        let input = self.input.take();
        let mut running = self.start();
        if let (Some(bytes), Some(mut stdin)) = (input, running.stdin()) {
            // A program that does not read its input is no fault of the test.
            thread::spawn(move || stdin.write_all(&bytes));
        }
        running.wait()
    }

    /// Starts it, to be watched. `input` is not written; [`Running::stdin`] is the pipe.
    pub fn start(mut self) -> Running {
        let what = format!("{:?}", self.command);
        let spawned = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|err| panic!("could not start {what}: {err}"));
        let (stdout, stderr) = (Heard::of(child.stdout.take()), Heard::of(child.stderr.take()));
        Running { child, stdout, stderr, what, end: Instant::now() + self.deadline }
    }

    /// The command itself, for streams of another kind. It is not bound by a deadline.
    pub fn into_command(self) -> Command {
        self.command
    }
}

impl Running {
    /// The pid of the command line.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The writing end of stdin, once, if it is a pipe.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to the command line.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.raw_pid(), signal)
            .unwrap_or_else(|err| panic!("could not signal {}: {err}", self.what));
    }

    /// Waits until stdout contains this; gives all of it so far.
    pub fn wait_for(&self, text: &str) -> String {
        self.stdout.wait_for(text, self.end).unwrap_or_else(|| {
            panic!("{} never wrote {text:?}: {:?} {:?}", self.what, self.stdout.text(), self.stderr.text())
        })
    }

    /// Waits until stderr contains this; gives all of it so far.
    pub fn wait_for_stderr(&self, text: &str) -> String {
        self.stderr.wait_for(text, self.end).unwrap_or_else(|| {
            panic!("{} never wrote {text:?}: {:?} {:?}", self.what, self.stdout.text(), self.stderr.text())
        })
    }

    /// What stdout was so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Waits for its end; kills it and fails after the deadline.
    pub fn wait(mut self) -> Output {
        let Some(status) = wait_until(&mut self.child, self.end) else {
            let _ = self.child.kill();
            let _ = self.child.wait();
            panic!("{} took too long: {:?} {:?}", self.what, self.stdout.text(), self.stderr.text());
        };
        // The streams close when the last who writes to them is gone: that must be soon.
        let grace = self.end.max(Instant::now() + Duration::from_secs(5));
        let closed = self.stdout.wait_closed(grace) && self.stderr.wait_closed(grace);
        assert!(closed, "{} ended, but something holds its streams: {:?}", self.what, self.stdout.text());
        let signal = status.signal();
        let code = status.code().or(signal.map(|n| 128 + n)).expect("it ended");
        Output { code, signal, stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Output {
    /// Asserts code 0; gives stdout.
    #[track_caller]
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "{self}");
        self.stdout
    }

    /// Asserts this code; gives stderr.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self}");
        self.stderr
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "code {}\nstdout:\n{}\nstderr:\n{}", self.code, self.stdout, self.stderr)
    }
}

/// Waits for the end of a child until `end`.
pub(crate) fn wait_until(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a child can be watched");
    let left = end.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).expect("deadlines are short");
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut watched, Some(&left))) {
        Ok(0) => None,
        Ok(_) => Some(child.wait().expect("a child can be waited for")),
        Err(err) => panic!("could not wait: {err}"),
    }
}

/// What was read from a stream so far.
pub(crate) struct Heard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    is_closed: bool,
}

impl Heard {
    /// Reads to the end in a thread of its own.
    pub(crate) fn of(stream: Option<impl Read + Send + 'static>) -> Arc<Heard> {
        let heard = Arc::new(Heard { state: Mutex::default(), changed: Condvar::new() });
        let writer = heard.clone();
        thread::spawn(move || {
            if let Some(mut stream) = stream {
                writer.listen(&mut stream);
            }
            writer.lock().is_closed = true;
            writer.changed.notify_all();
        });
        heard
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock().bytes).into_owned()
    }

    /// Forgets what was heard.
    pub(crate) fn clear(&self) {
        self.lock().bytes.clear();
    }

    pub(crate) fn wait_for(&self, text: &str, end: Instant) -> Option<String> {
        self.wait_while(end, |state| {
            !state.is_closed && !String::from_utf8_lossy(&state.bytes).contains(text)
        });
        Some(self.text()).filter(|heard| heard.contains(text))
    }

    pub(crate) fn wait_closed(&self, end: Instant) -> bool {
        self.wait_while(end, |state| !state.is_closed);
        self.lock().is_closed
    }

    fn wait_while(&self, end: Instant, mut going_on: impl FnMut(&mut State) -> bool) {
        let left = end.saturating_duration_since(Instant::now());
        drop(self.changed.wait_timeout_while(self.lock(), left, |state| going_on(state)));
    }

    fn listen(&self, stream: &mut impl Read) {
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => self.lock().bytes.extend(buffer.iter().take(count)),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            }
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
