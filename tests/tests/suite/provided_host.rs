//! Served directories and the programs of the host: locks that both take, and files that the kernel reads by itself.

use airlock_tests::{Who, World, eventually, has_program, not_applicable, skip, who};
use rustix::{
    fs::FlockOperation,
    io::Errno,
    process::{Pid, Signal},
};
use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command},
};

/// Whether this user may open the kernel's device.
fn can_serve() -> bool {
    let opened = File::options().read(true).write(true).open("/dev/fuse");
    if let Err(err) = &opened {
        skip(&format!("/dev/fuse cannot be opened: {err}"));
    }
    opened.is_ok()
}

fn served(directory: &Path) -> String {
    format!("type=real,src={},dst=/m", directory.display())
}

fn both(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("a file")
}

/// Tries both kinds of locks, the whole file's and of bytes.
const TRY: &str = "
import fcntl
for name, act in [('flock', fcntl.flock), ('lockf', fcntl.lockf)]:
    with open('/m/a', 'r+b') as file:
        try: act(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError: print(name, 'held')
        else: print(name, 'free')
";

#[test]
fn locks_that_programs_of_the_host_hold_are_met_in_a_served_directory() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("a"), "0123456789").unwrap();
    let mount = served(&data);
    let flags = ["--workspace", "none", "--mount", &mount];
    let tried = || world.python(flags, TRY).run().succeeded();

    assert_eq!(tried(), "flock free\nlockf free\n");
    let (whole, bytes) = (both(&data.join("a")), both(&data.join("a")));
    rustix::fs::flock(&whole, FlockOperation::LockExclusive).unwrap();
    assert_eq!(tried(), "flock held\nlockf free\n");
    rustix::fs::fcntl_lock(&bytes, FlockOperation::LockExclusive).unwrap();
    assert_eq!(tried(), "flock held\nlockf held\n");
}

#[test]
fn the_host_meets_locks_of_a_served_directory_until_their_process_is_gone() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("a"), "0123456789").unwrap();
    let script = "exec python3 -c \"
import fcntl, signal
whole, bytes = open('/m/a', 'r+b'), open('/m/a', 'r+b')
fcntl.flock(whole, fcntl.LOCK_EX)
fcntl.lockf(bytes, fcntl.LOCK_EX, 5, 2)
print('locked', flush=True)
signal.pause()\"";
    let id = world.detached(["--workspace", "none", "--mount", &served(&data)], script);
    eventually("the locks", || (world.airlock(["logs", &id]).run().succeeded() == "locked\n").then_some(()));

    let file = both(&data.join("a"));
    let whole = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let bytes = || rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(whole(), Err(Errno::WOULDBLOCK));
    assert!(matches!(bytes(), Err(Errno::AGAIN | Errno::ACCESS)));

    world.airlock(["kill", &id]).run().succeeded();
    eventually("free locks", || (whole().is_ok() && bytes().is_ok()).then_some(()));
}

#[test]
fn a_lock_is_waited_for_and_who_waits_can_be_killed() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let (data, out) = (world.aside("data"), world.aside("out"));
    fs::write(data.join("a"), "").unwrap();
    let held = both(&data.join("a"));
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    let script = "
        timeout -s KILL 1 flock /m/a true; echo $? >/out/killed
        flock /m/a echo got; echo done >/out/done; sleep 600";
    let shown = format!("{}:/out", out.display());
    let mount = served(&data);
    let id = world.detached(["--workspace", "none", "--mount", &mount, "--mount", &shown], script);

    eventually("the end of who waited", || {
        fs::read_to_string(out.join("killed")).ok().filter(|code| code == "137\n")
    });
    assert!(!out.join("done").exists());
    drop(held);
    eventually("the lock", || out.join("done").exists().then_some(()));
    assert_eq!(world.airlock(["logs", &id]).run().succeeded(), "got\n");
}

#[test]
fn processes_that_lock_a_served_file_count_without_losing_one() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("a"), "0").unwrap();
    let script = "
import fcntl, os
children = []
for act in [fcntl.lockf, fcntl.lockf, fcntl.lockf]:
    child = os.fork()
    if child == 0:
        for _ in range(200):
            with open('/m/a', 'r+b', buffering=0) as file:
                act(file, fcntl.LOCK_EX)
                count = int(file.read())
                file.seek(0)
                file.write(str(count + 1).encode())
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], open('/m/a').read())
";
    let output = world.python(["--workspace", "none", "--mount", &served(&data)], script).run();
    assert_eq!(output.succeeded(), "[0, 0, 0] 600\n");
}

/// Whether this kernel says that it passes files through.
fn kernel_passes_through() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let boot = format!("/boot/config-{}", release.trim());
    let settings = ["/proc/config.gz", &boot].map(|path| Command::new("zcat").args(["-f", path]).output());
    let is_said = |output: &std::process::Output| {
        String::from_utf8_lossy(&output.stdout).contains("CONFIG_FUSE_PASSTHROUGH=y")
    };
    settings.iter().flatten().any(is_said)
}

#[test]
fn the_kernel_reads_a_served_file_by_itself_while_the_keeper_stands_still() {
    if !can_serve() {
        return;
    }
    if who() != Who::Root {
        return not_applicable("the kernel takes files to read by itself from host root only");
    }
    if !kernel_passes_through() {
        return skip("this kernel has no FUSE passthrough (CONFIG_FUSE_PASSTHROUGH)");
    }
    let world = World::new();
    let (data, out) = (world.aside("data"), world.aside("out"));
    fs::write(data.join("large"), vec![7u8; 8 << 20]).unwrap();
    let script = "exec python3 -c \"
import os, time
file = os.open('/m/large', os.O_RDONLY)
open('/out/open', 'w').close()
while not os.path.exists('/out/go'): time.sleep(0.01)
count = 0
while True:
    bytes = os.read(file, 1 << 20)
    if not bytes: break
    count += len(bytes)
open('/out/read', 'w').write(str(count))
time.sleep(600)\"";
    let shown = format!("{}:/out", out.display());
    let id = world.detached(["--workspace", "none", "--mount", &served(&data), "--mount", &shown], script);
    eventually("the open file", || out.join("open").exists().then_some(()));
    let keeper = world.state(&id)["keeper_pid"].as_u64().expect("a keeper");
    let keeper = Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap();

    rustix::process::kill_process(keeper, Signal::STOP).unwrap();
    fs::write(out.join("go"), "").unwrap();
    let began = std::time::Instant::now();
    let read = loop {
        match fs::read_to_string(out.join("read")) {
            Ok(count) if !count.is_empty() => break count,
            _ if began.elapsed().as_secs() > 20 => break "nothing".to_owned(),
            _ => std::thread::yield_now(),
        }
    };
    rustix::process::kill_process(keeper, Signal::CONT).unwrap();

    assert_eq!(read, (8 << 20).to_string());
}

/// A file system of the host that can be made to hang: whoever asks it for a file waits.
struct Hanging<'a> {
    program: Child,
    shown: &'a Path,
}

impl Hanging<'_> {
    fn mount<'a>(behind: &Path, shown: &'a Path) -> Hanging<'a> {
        let program = Command::new("bindfs")
            .args(["-f", "--no-allow-other"])
            .args([behind, shown])
            .spawn()
            .expect("bindfs");
        let hanging = Hanging { program, shown };
        eventually("the mounted file system", || shown.join("a").exists().then_some(()));
        hanging
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.program.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        let (unmount, lazily) = if who() == Who::Root { ("umount", "-l") } else { ("fusermount3", "-uz") };
        let _ = Command::new(unmount).arg(lazily).arg(self.shown).status();
    }
}

#[test]
fn files_behind_a_served_directory_that_hang_are_errors_and_the_sandbox_goes_on() {
    if !can_serve() {
        return;
    }
    if !has_program("bindfs") || !has_program("fusermount3") {
        return skip("there is no bindfs, or no fusermount3");
    }
    let world = World::new();
    let (behind, shown) = (world.aside("behind"), world.aside("shown"));
    for name in ["a", "b", "c"] {
        fs::write(behind.join(name), name).unwrap();
    }
    let hanging = Hanging::mount(&behind, &shown);
    let id = world.detached(["--workspace", "none", "--mount", &served(&shown)], "sleep 600");
    assert_eq!(world.exec(&id, "cat /m/a").run().succeeded(), "a");

    hanging.signal(Signal::STOP);
    let waiting = world.exec(&id, "cat /m/b").start();
    assert_eq!(world.exec(&id, "echo here").run().succeeded(), "here\n");
    let told = waiting.wait().failed(1);
    assert!(told.contains("Input/output error"), "{told}");

    hanging.signal(Signal::CONT);
    eventually("files that can be read again", || {
        let read = world.exec(&id, "cat /m/b").run();
        (read.stdout == "b").then_some(())
    });

    hanging.signal(Signal::STOP);
    let waiting = world.exec(&id, "cat /m/c").start();
    world.airlock(["stop", "-t", "0s", &id]).run().succeeded();
    waiting.wait();
    hanging.signal(Signal::CONT);
}
