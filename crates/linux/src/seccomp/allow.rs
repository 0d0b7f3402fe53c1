//! The allow-list, as data. Every group says why it is there.
//!
//! It was compared with Docker's default profile (github.com/moby/profiles) and is nowhere wider, but for
//! `nested`. Always narrower: io_uring, userfaultfd, bpf, perf_event_open, keyrings, modify_ldt, open_by_handle_at, quotas, the
//! kernel log, changing the clock, vhangup, reboot, modules, raw I/O, the lsm_* calls, socket families other
//! than four, terminal injection, and (without `nested`) user namespaces.
//!
//! What is in none of the lists is answered with ENOSYS, as a kernel without the call would: libraries fall
//! back quietly.

use libc::{c_int, c_long};

use super::{Nested, Relax, SetId, number as nr};
use crate::caps::Cap;

/// What the kernel is to do with one call. Arguments are compared by their low 32 bits: of every argument
/// that is tested here the kernel itself ignores the bits above them, or refuses the call if any is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Runs.
    Allow,
    /// Fails with this error.
    Errno(c_int),
    /// Runs unless the argument has any bit of the mask; fails with EPERM then.
    NoBits { arg: u8, mask: u32 },
    /// Runs unless the flags ask for a new file and its mode has any bit of the mask; fails with EPERM then.
    NoBitsIfCreating { flags: u8, mode: u8, mask: u32 },
    /// Runs if the argument is one of the values, fails with the error otherwise.
    OneOf { arg: u8, values: &'static [u32], errno: c_int },
    /// Fails with EPERM if the argument is one of the values, runs otherwise.
    NoneOf { arg: u8, values: &'static [u32] },
}

/// A group of calls that are allowed under one condition, and answered with EPERM where it does not hold, so
/// that programs say "operation not permitted" and not "not implemented".
pub(super) struct Group {
    pub(super) when: When,
    pub(super) calls: &'static [c_long],
}

#[derive(Clone, Copy)]
pub(super) enum When {
    Always,
    Nested,
    Holds(Cap),
    HoldsOrNested(Cap),
}

impl When {
    pub(super) fn is_met(self, relax: &Relax) -> bool {
        let nested = relax.nested == Nested::Yes;
        match self {
            When::Always => true,
            When::Nested => nested,
            When::Holds(cap) => relax.caps.contains(cap),
            When::HoldsOrNested(cap) => nested || relax.caps.contains(cap),
        }
    }
}

const fn always(calls: &'static [c_long]) -> Group {
    Group { when: When::Always, calls }
}

/// Calls allowed whatever their arguments are.
#[rustfmt::skip] // a table: many short names to a line
pub(super) const GROUPS: &[Group] = &[
    // Reading, writing and waiting on descriptors a program already has.
    always(&[
        libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
        libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_close,
        libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_pipe2,
        libc::SYS_sendfile, libc::SYS_splice, libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range,
        libc::SYS_readahead, libc::SYS_fadvise64, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_epoll_create1,
        libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_signalfd4,
        libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
        // Without fanotify_init there is nothing to mark; allowed as in Docker for groups passed in.
        libc::SYS_fanotify_mark,
    ]),
    // The old asynchronous I/O: databases use it. io_uring, its successor, is not here: too many holes, and
    // seccomp cannot look at what it is asked to do.
    always(&[
        libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_submit, libc::SYS_io_cancel, libc::SYS_io_getevents,
        nr::IO_PGETEVENTS,
    ]),
    // Names and attributes of files: the mount namespace, permissions and landlock decide what they reach.
    always(&[
        libc::SYS_newfstatat, libc::SYS_fstat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_faccessat,
        libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_chdir,
        libc::SYS_fchdir, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_linkat, libc::SYS_symlinkat,
        nr::RENAMEAT, libc::SYS_renameat2, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_umask,
        libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_sync, libc::SYS_syncfs,
        libc::SYS_fsync, libc::SYS_fdatasync, nr::SYNC_FILE_RANGE, libc::SYS_name_to_handle_at, nr::CACHESTAT,
        libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_getxattr, libc::SYS_lgetxattr,
        libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_removexattr,
        libc::SYS_lremovexattr, libc::SYS_fremovexattr, nr::SETXATTRAT, nr::GETXATTRAT, nr::LISTXATTRAT,
        nr::REMOVEXATTRAT,
        // The program's own mounts: no more than /proc/self/mountinfo shows.
        nr::STATMOUNT, nr::LISTMOUNT,
    ]),
    // Memory of the caller. memfd_secret is off in most kernels and only hides pages from the kernel.
    always(&[
        libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise, libc::SYS_mincore,
        libc::SYS_msync, libc::SYS_brk, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_mlockall, libc::SYS_munlock,
        libc::SYS_munlockall, libc::SYS_remap_file_pages, libc::SYS_memfd_create, nr::MEMFD_SECRET,
        libc::SYS_membarrier, libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect, nr::MAP_SHADOW_STACK,
        nr::MSEAL, nr::PROCESS_MRELEASE,
    ]),
    // Processes, threads and their signals. The PID namespace bounds whom they reach.
    always(&[
        libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid,
        libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_setpgid, libc::SYS_getpgid, libc::SYS_setsid,
        libc::SYS_getsid, libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_get_robust_list,
        libc::SYS_rseq, libc::SYS_futex, nr::FUTEX_WAITV, nr::FUTEX_WAKE, nr::FUTEX_WAIT, nr::FUTEX_REQUEUE,
        libc::SYS_prctl, libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask, libc::SYS_rt_sigpending, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_rt_sigreturn, libc::SYS_rt_sigsuspend, libc::SYS_rt_sigtimedwait, libc::SYS_sigaltstack,
        libc::SYS_restart_syscall, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal,
        // Debuggers work on the program's own children; the guest is not dumpable.
        libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
    ]),
    // Who the caller is: root inside changes to other users of its own user namespace.
    always(&[
        libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid,
        libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid,
        libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid, libc::SYS_setfsgid,
        libc::SYS_setgroups, libc::SYS_capget, libc::SYS_capset,
        // A program may tighten itself further.
        libc::SYS_seccomp, libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
    ]),
    // Scheduling and limits: the kernel and the cgroup bound them.
    always(&[
        libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getattr,
        libc::SYS_sched_setattr, libc::SYS_sched_getparam, libc::SYS_sched_setparam, libc::SYS_sched_getscheduler,
        libc::SYS_sched_setscheduler, libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min,
        libc::SYS_sched_rr_get_interval, libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_ioprio_get,
        libc::SYS_ioprio_set, nr::GETRLIMIT, nr::SETRLIMIT, libc::SYS_prlimit64, libc::SYS_getrusage,
        libc::SYS_times, libc::SYS_getcpu, libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_getrandom,
    ]),
    // Reading clocks and setting timers.
    always(&[
        libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
        libc::SYS_gettimeofday, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_timer_create,
        libc::SYS_timer_delete, libc::SYS_timer_getoverrun, libc::SYS_timer_gettime, libc::SYS_timer_settime,
        libc::SYS_timerfd_create, libc::SYS_timerfd_gettime, libc::SYS_timerfd_settime,
    ]),
    // Sockets once made: socket and socketpair are checked by family below.
    always(&[
        libc::SYS_bind, libc::SYS_connect, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4,
        libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_sendto,
        libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg,
        libc::SYS_shutdown,
    ]),
    // System V and POSIX queues, semaphores and shared memory of the sandbox's own IPC namespace.
    always(&[
        libc::SYS_msgget, libc::SYS_msgctl, libc::SYS_msgsnd, libc::SYS_msgrcv, libc::SYS_semget, libc::SYS_semctl,
        libc::SYS_semop, libc::SYS_semtimedop, libc::SYS_shmget, libc::SYS_shmctl, libc::SYS_shmat, libc::SYS_shmdt,
        libc::SYS_mq_open, libc::SYS_mq_unlink, libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive,
        libc::SYS_mq_notify, libc::SYS_mq_getsetattr,
    ]),
    // The older forms of all the above, which only x86_64 has.
    #[cfg(target_arch = "x86_64")]
    always(&[
        libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_getdents, libc::SYS_mkdir,
        libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_link, libc::SYS_symlink, libc::SYS_rename, libc::SYS_chown,
        libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat, libc::SYS_dup2, libc::SYS_pipe,
        libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_epoll_ctl_old,
        libc::SYS_epoll_wait_old, libc::SYS_eventfd, libc::SYS_signalfd, libc::SYS_inotify_init, libc::SYS_fork,
        libc::SYS_vfork, libc::SYS_getpgrp, libc::SYS_pause, libc::SYS_alarm, libc::SYS_time,
        // Thread-local storage, and the kernel's own trampoline for a host that watches a function's return.
        libc::SYS_arch_prctl, libc::SYS_set_thread_area, libc::SYS_get_thread_area, nr::URETPROBE,
    ]),
    // Changing the root directory of a process: Docker's condition, and the default set holds it.
    Group { when: When::HoldsOrNested(Cap::SYS_CHROOT), calls: &[libc::SYS_chroot] },
    // Looking into other processes: Docker's condition.
    Group {
        when: When::Holds(Cap::SYS_PTRACE),
        calls: &[libc::SYS_kcmp, nr::PIDFD_GETFD, nr::PROCESS_MADVISE],
    },
    // Where memory lies on machines with several nodes: Docker's condition.
    Group {
        when: When::Holds(Cap::SYS_NICE),
        calls: &[libc::SYS_get_mempolicy, libc::SYS_set_mempolicy, libc::SYS_mbind, nr::SET_MEMPOLICY_HOME_NODE],
    },
    // Mounts and namespaces other than user namespaces (unshare and clone are checked below): Docker's
    // condition.
    Group {
        when: When::HoldsOrNested(Cap::SYS_ADMIN),
        calls: &[
            libc::SYS_mount, libc::SYS_umount2, libc::SYS_setns, nr::OPEN_TREE, nr::MOVE_MOUNT, nr::FSOPEN, nr::FSCONFIG,
            nr::FSMOUNT, nr::FSPICK, nr::MOUNT_SETATTR, libc::SYS_sethostname, libc::SYS_setdomainname,
        ],
    },
    Group { when: When::Holds(Cap::SYS_ADMIN), calls: &[libc::SYS_fanotify_init] },
    // Docker allows them in no case; a sandbox inside the sandbox cannot be built without the first.
    Group { when: When::Nested, calls: &[libc::SYS_pivot_root, nr::OPEN_TREE_ATTR] },
];

/// Calls of the host's root, which the kernel would answer with EPERM as well, and two that a program may
/// expect to be refused (bpf, perf_event_open). No capability opens them here.
#[rustfmt::skip] // a table: many short names to a line
pub(super) const REFUSED: &[c_long] = &[
    libc::SYS_acct, libc::SYS_adjtimex, libc::SYS_bpf, libc::SYS_clock_adjtime, libc::SYS_clock_settime,
    libc::SYS_delete_module, libc::SYS_finit_module, libc::SYS_init_module, libc::SYS_kexec_load,
    nr::KEXEC_FILE_LOAD, libc::SYS_open_by_handle_at, libc::SYS_perf_event_open,
    libc::SYS_quotactl, nr::QUOTACTL_FD, libc::SYS_reboot, libc::SYS_settimeofday, libc::SYS_swapoff,
    libc::SYS_swapon, libc::SYS_syslog, libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
];

/// Every flag of clone that makes a namespace. CLONE_NEWTIME is not among them: clone reads those bits as the
/// exit signal.
const NEW_NAMESPACE: u32 = 0x0002_0000 // CLONE_NEWNS
    | 0x0200_0000 // CLONE_NEWCGROUP
    | 0x0400_0000 // CLONE_NEWUTS
    | 0x0800_0000 // CLONE_NEWIPC
    | NEW_USER
    | 0x2000_0000 // CLONE_NEWPID
    | 0x4000_0000; // CLONE_NEWNET
const NEW_USER: u32 = 0x1000_0000; // CLONE_NEWUSER

/// The setuid and setgid bits of a mode.
const SET_ID: u32 = 0o6000;

/// Unix sockets, the two families the wall looks at, and netlink (read by every resolver and runtime; the
/// kernel asks for powers over the network namespace before it changes anything). VSOCK would pass by the wall;
/// ALG, PACKET and the dozens of others are unused and a favourite way into the kernel.
const FAMILIES: &[u32] =
    &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];

/// Typing into a terminal (TIOCSTI), pasting into a console (TIOCLINUX), changing the line discipline
/// (TIOCSETD: loads modules, and every discipline but the first had holes).
const TERMINAL: &[u32] = &[0x5412, 0x541C, 0x5423];

/// PER_LINUX, PER_LINUX32, each with and without UNAME26, and the question. No READ_IMPLIES_EXEC, no
/// ADDR_NO_RANDOMIZE.
const PERSONALITIES: &[u32] = &[0, 0x0008, 0x0002_0000, 0x0002_0008, 0xffff_ffff];

/// Calls that are decided by an argument or by more than one condition. They come after [`GROUPS`] and
/// [`REFUSED`].
pub(super) fn checked(relax: &Relax) -> impl Iterator<Item = (c_long, Verdict)> {
    let families = Verdict::OneOf { arg: 0, values: FAMILIES, errno: libc::EAFNOSUPPORT };
    let always = [
        (libc::SYS_ioctl, Verdict::NoneOf { arg: 1, values: TERMINAL }),
        (libc::SYS_personality, Verdict::OneOf { arg: 0, values: PERSONALITIES, errno: libc::EPERM }),
        (libc::SYS_socket, families),
        // socketpair makes a socket of the family before it finds that only Unix sockets come in pairs.
        (libc::SYS_socketpair, families),
    ];
    always.into_iter().chain(namespaces(relax)).chain(modes(relax.set_id))
}

fn namespaces(relax: &Relax) -> [(c_long, Verdict); 3] {
    let holds_admin = relax.caps.contains(Cap::SYS_ADMIN);
    let (clone, unshare, clone3) = match (relax.nested, holds_admin) {
        (Nested::Yes, _) => (Verdict::Allow, Verdict::Allow, Verdict::Allow),
        (Nested::No, true) => {
            let no_user = Verdict::NoBits { arg: 0, mask: NEW_USER };
            (no_user, no_user, Verdict::Errno(libc::ENOSYS))
        }
        (Nested::No, false) => (
            Verdict::NoBits { arg: 0, mask: NEW_NAMESPACE },
            Verdict::Errno(libc::EPERM),
            // Its flags lie behind a pointer. C libraries fall back to clone on ENOSYS, and only on ENOSYS.
            Verdict::Errno(libc::ENOSYS),
        ),
    };
    [(libc::SYS_clone, clone), (libc::SYS_unshare, unshare), (libc::SYS_clone3, clone3)]
}

/// Where set-id modes are refused, every call that can give a file a mode is checked. mkdir is not among them:
/// the kernel ignores those bits there.
fn modes(set_id: SetId) -> impl Iterator<Item = (c_long, Verdict)> {
    let mode = |arg| Verdict::NoBits { arg, mask: SET_ID };
    let create = |flags, mode| Verdict::NoBitsIfCreating { flags, mode, mask: SET_ID };
    let calls = [
        (libc::SYS_fchmod, mode(1)),
        (libc::SYS_fchmodat, mode(2)),
        (nr::FCHMODAT2, mode(2)),
        (libc::SYS_mknodat, mode(2)),
        (libc::SYS_openat, create(2, 3)),
        // Its mode lies behind a pointer; callers fall back to openat.
        (nr::OPENAT2, Verdict::Errno(libc::ENOSYS)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_chmod, mode(1)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_creat, mode(1)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mknod, mode(1)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, create(1, 2)),
    ];
    calls.into_iter().map(move |(call, verdict)| match set_id {
        SetId::Refused => (call, verdict),
        SetId::Allowed => (call, Verdict::Allow),
    })
}
