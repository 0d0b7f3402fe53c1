//! Where sandboxes of the suite run: in namespaces, or in machines with a kernel of their own.
//!
//! `AIRLOCK_TEST_BACKEND=microvm` makes every sandbox of every test a machine. `AIRLOCK_TEST_MACHINES` names the directory
//! `machines` of a state directory that has a kernel (`airlock prefetch --backend microvm`).

use crate::DEADLINE;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

/// Verbs that make sandboxes.
const VERBS: [&str; 3] = ["run", "learn", "shell"];
const BACKEND: &str = "microvm";

/// Whether every sandbox is to be a machine, for a test that looks at it in another way then.
pub fn is_machine() -> bool {
    is_asked_for()
}

/// About the least memory that a sandbox of the suite can have: a kernel needs some too.
pub fn least_memory() -> &'static str {
    if is_asked_for() { "128M" } else { "64M" }
}

/// A command that looks for files everywhere, by tests of find(1). The system's own files, of which no test makes any, take an emulated
/// processor minutes.
pub fn search(tests: &str) -> String {
    let but = if is_asked_for() { "-path /usr -prune -o" } else { "" };
    format!("find / {but} \\( {tests} \\) -print 2>/dev/null")
}

/// So many where a sandbox takes milliseconds; fewer where it takes seconds.
pub fn many(number: usize) -> usize {
    if is_asked_for() { number.div_ceil(20).max(2) } else { number }
}

/// Says that a test is, by design, not about machines, where every sandbox is to be one. Return where it says `true`. Each reason stands in
/// `docs/microvm.md` too.
pub fn not_for_a_machine(why: &str) -> bool {
    if is_asked_for() {
        println!("not for a machine: {why}");
    }
    is_asked_for()
}

/// Whether every sandbox is to be a machine.
fn is_asked_for() -> bool {
    env::var_os("AIRLOCK_TEST_BACKEND").is_some_and(|backend| backend == BACKEND)
}

/// How long anything may take. An emulated processor takes its time.
pub(crate) fn patience() -> Duration {
    if is_asked_for() { 4 * DEADLINE } else { DEADLINE }
}

/// A directory with a kernel that whoever runs this can read.
pub(crate) fn kernels_of_tests() -> Option<PathBuf> {
    let machines = PathBuf::from(env::var_os("AIRLOCK_TEST_MACHINES")?);
    fs::read_dir(&machines).ok().map(|_| machines)
}

/// The same where every sandbox is to be a machine.
pub(crate) fn kernels() -> Option<PathBuf> {
    is_asked_for().then(kernels_of_tests).flatten()
}

/// Flags behind a verb.
pub(crate) fn flags(verb: &OsString) -> Option<[&'static OsStr; 2]> {
    let makes = VERBS.iter().any(|known| verb == known);
    (makes && is_asked_for()).then(|| ["--backend", BACKEND].map(OsStr::new))
}

/// Makes a state directory that has the kernel.
pub(crate) fn furnish(home: &Path, machines: &Path) {
    DirBuilder::new().recursive(true).mode(0o700).create(home).expect("a state directory");
    symlink(machines, home.join("machines")).expect("a kernel");
}
