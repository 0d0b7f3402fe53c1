//! The running machine: starts the emulator, listens on its serial lines, and ends it when the sessions are over or the
//! time is up.
//!
//! `machine::run(&image, &suite, &console_log, &cases)?` returns what was heard. Nothing here waits by the clock but
//! the deadline: every step is a line from a serial terminal.

use super::{
    cases::{Case, User},
    image::Image,
    report::{News, Report},
};
use anyhow::{Context as _, Result};
use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Boots the machine and listens until every session is over, the machine is gone, or the deadline has passed.
pub(super) fn run<'a>(
    image: &Image,
    suite: &Path,
    console_log: &Path,
    cases: &'a [Case],
) -> Result<Report<'a>> {
    let mut sockets = Sockets::new()?;
    let mut emulator = Emulator::start(image, suite, &sockets)?;
    let lines = sockets.listen(console_log)?;
    Ok(follow(&mut emulator, &lines, cases))
}

/// After this the machine is ended whatever it does.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// How often a person who waits hears that nothing happened.
const PATIENCE: Duration = Duration::from_secs(20);

/// The first disk is the root file system; all disks are left as they are (`snapshot`). The console is the
/// first serial line. No initial RAM disk: the kernel has the drivers of these disks built in.
/// The processor's own clock is not trusted: on a busy machine the kernel measures its rate wrongly, and then CPU limits
/// with it.
const KERNEL_ARGUMENTS: &str = "root=/dev/nvme0n1 rw console=ttyS0 quiet panic=-1 mitigations=off audit=0 \
fsck.mode=skip clocksource=hpet tsc=unstable systemd.unified_cgroup_hierarchy=1";

/// The serial lines of the machine: the console and one terminal for each user. The emulator connects to our sockets.
struct Sockets {
    dir: PathBuf,
    listeners: Vec<(Option<User>, UnixListener)>,
}

/// A line from somebody's terminal, with the moment it came.
struct Line {
    user: User,
    text: String,
    at: Instant,
}

impl Sockets {
    /// In a directory with a short name: a socket's path has room for about a hundred bytes.
    fn new() -> Result<Self> {
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let dir = std::env::temp_dir().join(format!("host2-{moment:x}"));
        fs::create_dir(&dir).with_context(|| format!("could not make {}", dir.display()))?;
        let mut sockets = Self { dir, listeners: Vec::new() };
        let owners = std::iter::once(None).chain(User::ALL.map(Some));
        for (number, owner) in owners.enumerate() {
            let path = sockets.path(number);
            let listener =
                UnixListener::bind(&path).with_context(|| format!("could not bind {}", path.display()))?;
            sockets.listeners.push((owner, listener));
        }
        Ok(sockets)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.dir.join(number.to_string())
    }

    /// Lines of the users' terminals; the console goes to the log. The channel closes when every line is hung up.
    fn listen(&mut self, console_log: &Path) -> Result<Receiver<Line>> {
        let (heard, lines) = mpsc::channel();
        for (owner, listener) in self.listeners.drain(..) {
            match owner {
                Some(user) => spawn_reader(listener, user, heard.clone()),
                None => spawn_console(listener, console_log)?,
            }
        }
        Ok(lines)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // Nothing can be done about a directory that stays in the temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The thread ends when the emulator hangs up, or with this process if the emulator never calls.
fn spawn_reader(listener: UnixListener, user: User, heard: Sender<Line>) {
    thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if heard.send(Line { user, text, at: Instant::now() }).is_err() {
                return;
            }
            bytes.clear();
        }
    });
}

fn spawn_console(listener: UnixListener, path: &Path) -> Result<()> {
    let mut log = File::create(path).with_context(|| format!("could not make {}", path.display()))?;
    thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        io::copy(&mut stream, &mut log)
    });
    Ok(())
}

/// The emulator's process; ended with this value.
struct Emulator(Child);

impl Emulator {
    fn start(image: &Image, suite: &Path, sockets: &Sockets) -> Result<Self> {
        let mut command = Command::new("setpriv");
        // Whatever ends us ends the machine.
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args([
            "-machine",
            "q35",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "2048",
        ]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot"]);
        command.arg("-kernel").arg(&image.kernel).args(["-append", KERNEL_ARGUMENTS]);
        command.args(["-device", "nvme,id=disks,serial=disks"]);
        let disks = [(image.disk.as_path(), "root"), (suite, "suite"), (image.quota.as_path(), "quota")];
        for (number, (disk, name)) in disks.into_iter().enumerate() {
            let escaped = disk.to_string_lossy().replace(',', ",,");
            command.args(["-drive", &format!("if=none,id={name},format=raw,snapshot=on,file={escaped}")]);
            command.args(["-device", &format!("nvme-ns,drive={name},bus=disks,nsid={}", number + 1)]);
        }
        for number in 0..sockets.listeners.len() {
            let escaped = sockets.path(number).to_string_lossy().replace(',', ",,");
            command.args(["-chardev", &format!("socket,id=line{number},path={escaped}")]);
            command.args(["-serial", &format!("chardev:line{number}")]);
        }
        let child = command.stdin(Stdio::null()).spawn().context("could not start qemu-system-x86_64")?;
        Ok(Self(child))
    }

    fn is_gone(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn follow<'a>(emulator: &mut Emulator, lines: &Receiver<Line>, cases: &'a [Case]) -> Report<'a> {
    let started = Instant::now();
    let mut report = Report::new(cases);
    let mut doing = "booting".to_owned();
    while !report.is_complete() {
        let Some(left) = DEADLINE.checked_sub(started.elapsed()) else {
            super::progress(started, "the deadline has passed: the machine is ended");
            break;
        };
        match lines.recv_timeout(left.min(PATIENCE)) {
            Ok(line) => match report.hear(line.user, &line.text, line.at) {
                Some(News::LoggedIn) => super::progress(started, &format!("{} is logged in", line.user)),
                Some(News::Began(name)) => doing = format!("{}: {name}", line.user),
                Some(News::Finished) => report.finished.last().into_iter().for_each(super::print),
                None => {}
            },
            Err(RecvTimeoutError::Timeout) if !emulator.is_gone() => super::progress(started, &doing),
            Err(_) => {
                super::progress(started, "the machine has gone");
                break;
            }
        }
    }
    report
}
