//! A program with nothing around it: no file, no network, no other process, few system calls. For code that is run on behalf of
//! somebody else next to what he must not see.
//!
//! ```no_run
//! use airlock_linux::alone::{Alone, run};
//! let code = run(&Alone { program: include_bytes!("alone.rs"), memory: 256 << 20 })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use crate::{
    caps::{self, CapSet},
    clone::{self, Namespaces, Side},
    mount,
    seccomp::Filter,
};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    process::{Resource, Rlimit, setrlimit},
};
use std::{
    convert::Infallible,
    ffi::c_char,
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

/// What is run.
#[derive(Debug, Clone, Copy)]
pub struct Alone<'a> {
    /// A static program; its standard streams are those of the caller.
    pub program: &'a [u8],
    /// The most bytes of memory.
    pub memory: u64,
}

/// The id it has inside: nobody's.
const NOBODY: u32 = 65_534;

/// Calls that a program needs to start, to get memory, to read, to write and to end.
const CALLS: [libc::c_long; 35] = [
    // Starting: the program itself, threads of its own it has none.
    libc::SYS_execveat,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sched_getaffinity,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "aarch64")]
    libc::SYS_gettid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "aarch64")]
    libc::SYS_sched_yield,
    libc::SYS_ppoll,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    // Standard streams.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    // Time, signals and the end.
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Runs it and gives its exit code; 128 and the signal where one ended it. It ends with this process, which ends with its parent.
///
/// Fails with `EINVAL` where the process has more than one thread.
pub fn run(alone: &Alone<'_>) -> io::Result<i32> {
    clone::die_with_parent()?;
    clone::set_dumpable(clone::Dumpable::Yes)?;
    let program = sealed(alone.program)?;
    let filter = Filter::only(&CALLS);
    // The child sees its ids of outside no more.
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match clone::fork(Namespaces::SANDBOX, None)? {
        Side::Parent(child) => {
            let status = child.wait()?;
            Ok(status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(125))
        }
        Side::Child => {
            let Err(_) = become_program(&program, ids, alone.memory, &filter);
            clone::exit_now(125)
        }
    }
}

/// The program as a file that nobody can change.
fn sealed(program: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(c"script", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = fs::File::from(fd);
    io::Write::write_all(&mut file, program)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

fn become_program(
    program: &OwnedFd,
    ids: (u32, u32),
    memory: u64,
    filter: &Filter,
) -> io::Result<Infallible> {
    be_nobody(ids)?;
    leave_files()?;
    // Whatever else is open is closed when the program is executed.
    crate::fd::close_on_exec_from(3)?;
    caps::limit_to(CapSet::EMPTY)?;
    for (resource, most) in [
        (Resource::As, memory),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, 3),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    rustix::thread::set_no_new_privs(true)?;
    clone::die_with_parent()?;
    filter.install()?;
    let (arguments, environment) =
        ([c"airlock-script".as_ptr(), std::ptr::null()], [std::ptr::null::<c_char>()]);
    // SAFETY: NUL-terminated strings and null-terminated arrays that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(io::Error::last_os_error())
}

/// One id inside, which is this process's own outside.
fn be_nobody((user, group): (u32, u32)) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{NOBODY} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{NOBODY} {group} 1"))
}

/// The root becomes an empty directory that cannot be written.
fn leave_files() -> io::Result<()> {
    mount::make_private()?;
    let empty = mount::tmpfs(&[(c"size", c"4096"), (c"nr_inodes", c"2"), (c"mode", c"0555")])?;
    let place = mount::open_place(rustix::fs::CWD, "/proc".as_ref())?;
    mount::make_read_only(empty.as_fd(), mount::Depth::One)?;
    mount::attach(empty.as_fd(), place.as_fd())?;
    mount::pivot_into(empty.as_fd())
}
