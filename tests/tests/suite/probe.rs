//! What an attacker's program does: tried inside, and once outside to show that the attempt itself is real.
//!
//! A probe is a Python script that prints one word for each attempt: `done`, or the name of the error. The functions
//! of [`PRELUDE`] stand before it.

use airlock_tests::World;
use std::process::Command;

/// `tried(f)`: what came of calling `f`. `call(name, …)`: the same of a system call. `say(word, …)`: prints words.
const PRELUDE: &str = r#"
import ctypes, errno, os, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51), "clock_settime": (227, 112),
    "clone": (56, 220), "clone3": (435, 435), "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "finit_module": (313, 273), "fsopen": (430, 430), "init_module": (175, 105),
    "io_uring_setup": (425, 425), "kexec_load": (246, 104), "keyctl": (250, 219), "mknodat": (259, 33),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "openat": (257, 56), "openat2": (437, 437), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pivot_root": (155, 41), "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142),
    "request_key": (249, 218), "setns": (308, 268), "settimeofday": (170, 170), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
def word(number):
    return errno.errorcode.get(number, str(number))
def tried(attempt):
    try:
        attempt()
    except OSError as err:
        return word(err.errno)
    return "done"
def number(name):
    return NUMBERS[name][0 if os.uname().machine == "x86_64" else 1]
def call(name, *args):
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number(name)), *args)
    return "done" if result >= 0 else word(ctypes.get_errno())
def say(*words):
    print(*words, flush=True)
"#;

/// The whole text of a probe.
pub(crate) fn script(probe: &str) -> String {
    format!("{PRELUDE}\n{probe}")
}

/// What a probe says inside a sandbox of its own.
#[track_caller]
pub(crate) fn inside<'a>(world: &World, flags: impl IntoIterator<Item = &'a str>, probe: &str) -> String {
    world.python(flags, &script(probe)).run().succeeded()
}

/// What a probe says in a sandbox that runs, started there by `exec`.
#[track_caller]
pub(crate) fn inside_running(world: &World, sandbox: &str, probe: &str) -> String {
    world.airlock(["exec", sandbox, "python3", "-c", &script(probe)]).run().succeeded()
}

/// What the same probe says on the host, as the user who runs this test.
#[track_caller]
pub(crate) fn outside(world: &World, probe: &str) -> String {
    let mut python = Command::new("/usr/bin/python3");
    let output =
        python.args(["-c", &script(probe)]).current_dir(world.work()).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every word that is not among `refusals`.
pub(crate) fn not_refused(said: &str, refusals: &[&str]) -> Vec<String> {
    let is_refusal = |line: &&str| refusals.contains(&line.rsplit(' ').next().unwrap_or_default());
    said.lines().filter(|line| !is_refusal(line)).map(str::to_owned).collect()
}
