//! Trials of things that cannot be undone: each runs in a child process of the test.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a trial ended, and what it and whatever it executed wrote to stdout and stderr.
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

/// Runs `work` in a forked child and collects the text it returns, or the output of the program it turned into.
pub(crate) fn in_child(work: impl FnOnce() -> io::Result<String>) -> Outcome {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // SAFETY: the C library makes its allocator usable in the child; the child takes no lock of the test
    // harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        end(&write, work);
    }
    drop(write);
    let mut output = String::new();
    std::fs::File::from(read).read_to_string(&mut output).unwrap();
    let mut status = 0;
    // SAFETY: `status` outlives the call, and the pid is our child's.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(reaped, pid);
    Outcome { status: ExitStatus::from_raw(status), output }
}

/// Runs `work` as uid 0 of a new user namespace; `None` where the host does not allow that (a failure if the
/// tests are strict).
pub(crate) fn in_own_user_namespace(work: impl FnOnce() -> io::Result<String>) -> Option<String> {
    const REFUSED: &str = "no user namespace: ";
    let uid = rustix::process::getuid().as_raw();
    let outcome = in_child(|| {
        // SAFETY: the forked child has one thread and shares nothing that unshare would separate from another.
        let result = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) };
        if result != 0 {
            return Ok(format!("{REFUSED}{}", io::Error::last_os_error()));
        }
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        work()
    });
    if let Some(why) = outcome.output.strip_prefix(REFUSED) {
        assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "{why}");
        eprintln!("skipped: {REFUSED}{why}");
        return None;
    }
    assert!(outcome.status.success(), "{}: {}", outcome.status, outcome.output);
    Some(outcome.output)
}

/// Turns the child into another program; returns the error as text if that fails.
pub(crate) fn replace_by(words: &[&str]) -> String {
    let words: Vec<CString> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: both are strings that end in NUL, in an array that ends in a null pointer, and they live until
    // the call returns.
    unsafe { libc::execv(words[0].as_ptr(), pointers.as_ptr()) };
    format!("could not execute {words:?}: {}", io::Error::last_os_error())
}

fn end(write: &OwnedFd, work: impl FnOnce() -> io::Result<String>) -> ! {
    for target in [1, 2] {
        // SAFETY: replaces the standard descriptors of this child only.
        unsafe { libc::dup2(write.as_raw_fd(), target) };
    }
    // A panic must not unwind into the child's copy of the test harness.
    let (text, code) = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(Ok(text)) => (text, 0),
        Ok(Err(err)) => (format!("trial failed: {err}"), 70),
        Err(_) => (String::new(), 71),
    };
    // SAFETY: writes the text's own bytes.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    // SAFETY: ends the child without running the exit handlers of the test harness.
    unsafe { libc::_exit(code) }
}
