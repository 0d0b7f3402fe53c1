//! The system call filter: which calls a program may make of the kernel.
//!
//! The list is data in `allow.rs`, its comments say why each group is there. [`Filter::compile`] turns it into
//! a program for the kernel in the keeper, before anything is forked; [`Filter::install`] is one system call
//! and the last thing that happens before the guest is executed.
//!
//! ```no_run
//! use airlock_linux::caps::CapSet;
//! use airlock_linux::seccomp::{Filter, Nested, Relax, SetId};
//!
//! let filter = Filter::compile(&Relax { caps: CapSet::DEFAULT, nested: Nested::No, set_id: SetId::Refused });
//! rustix::thread::set_no_new_privs(true)?;
//! filter.install()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The program is assembled here and not by a crate: the crates test one call after the other, which makes the
//! last ones in the list slow and takes longer to compile than a whole step of the start may. It is a pure
//! function of the list, and a test interprets the result for every number.

mod allow;
mod assemble;
mod number;
#[cfg(test)]
pub(crate) mod trial;

use std::io;

use allow::Verdict;
use assemble::{CALLS, Table};

use crate::caps::CapSet;

/// What the filter of one sandbox allows beyond the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relax {
    /// The capabilities the program holds: calls that only work with one of them are refused without it.
    pub caps: CapSet,
    /// Whether sandboxes may be made inside the sandbox.
    pub nested: Nested,
    /// Whether files may be given setuid and setgid modes.
    pub set_id: SetId,
}

/// Whether sandboxes may be made inside the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nested {
    /// No new user namespaces, so no new powers.
    No,
    /// User and all other namespaces, mounts and pivot_root work; a large part of the kernel is within reach
    /// then.
    Yes,
}

/// Whether files may be given setuid and setgid modes. Where a host directory is writable from inside, they
/// would carry the powers of their owner back to the host.
///
/// This holds for system calls. Who may also mount (CAP_SYS_ADMIN, [`Nested::Yes`]) can have the kernel copy a
/// set-id file there through an overlay of his own; such a sandbox should have no writable directory of the
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetId {
    /// chmod and creating a file with such a mode fail with EPERM, openat2 with ENOSYS.
    Refused,
    /// The kernel decides.
    Allowed,
}

/// A compiled filter.
pub struct Filter {
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// Compiles the filter. A call that is not in the list fails with ENOSYS, one of another architecture
    /// (i386, x32, 32-bit ARM) never reaches the kernel: i386 and ARM end the process with SIGSYS, x32 fails
    /// with ENOSYS.
    #[must_use]
    pub fn compile(relax: &Relax) -> Filter {
        Filter { program: assemble::assemble(&verdicts(relax)) }
    }

    /// A filter that knows these calls only; all others are not permitted.
    #[must_use]
    pub fn only(calls: &[libc::c_long]) -> Filter {
        let mut table = [Verdict::Errno(libc::EPERM); CALLS];
        for place in calls.iter().filter_map(|call| assemble::index(*call)) {
            if let Some(verdict) = table.get_mut(place) {
                *verdict = Verdict::Allow;
            }
        }
        Filter { program: assemble::assemble(&table) }
    }

    /// A filter that lets everything pass but these calls, which are not permitted. For laying over another one.
    #[must_use]
    pub fn but(calls: &[libc::c_long]) -> Filter {
        let mut table = [Verdict::Allow; CALLS];
        for place in calls.iter().filter_map(|call| assemble::index(*call)) {
            if let Some(verdict) = table.get_mut(place) {
                *verdict = Verdict::Errno(libc::EPERM);
            }
        }
        Filter { program: assemble::assemble(&table) }
    }

    /// A filter that lets everything pass but sockets of other families than Unix. For laying over another one.
    #[must_use]
    pub fn unix_sockets_only() -> Filter {
        let mut table = [Verdict::Allow; CALLS];
        let unix = Verdict::OneOf { arg: 0, values: &[libc::AF_UNIX as u32], errno: libc::EAFNOSUPPORT };
        for place in [libc::SYS_socket, libc::SYS_socketpair].into_iter().filter_map(assemble::index) {
            if let Some(verdict) = table.get_mut(place) {
                *verdict = unix;
            }
        }
        Filter { program: assemble::assemble(&table) }
    }

    /// Puts the calling thread and all it will ever start under the filter, for good. One system call, so it
    /// may run between fork and exec. no_new_privs must be set; EACCES says that it is not.
    pub fn install(&self) -> io::Result<()> {
        let len = u16::try_from(self.program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: self.program.as_ptr().cast_mut() };
        // SAFETY: the kernel reads `len` instructions at `filter`, which `self` owns for the whole call, and
        // writes nothing.
        let result =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The verdict on every call: the lists of `allow.rs` laid over one another.
fn verdicts(relax: &Relax) -> Table {
    let mut table = [Verdict::Errno(libc::ENOSYS); CALLS];
    let groups = allow::GROUPS.iter().flat_map(|group| {
        let verdict = if group.when.is_met(relax) { Verdict::Allow } else { Verdict::Errno(libc::EPERM) };
        group.calls.iter().map(move |call| (*call, verdict))
    });
    let refused = allow::REFUSED.iter().map(|call| (*call, Verdict::Errno(libc::EPERM)));
    for (call, verdict) in groups.chain(refused).chain(allow::checked(relax)) {
        if let Some(place) = assemble::index(call).and_then(|index| table.get_mut(index)) {
            *place = verdict;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    use libc::{c_int, c_long};

    use super::*;
    use crate::caps::Cap;

    const STRICT: Relax = Relax { caps: CapSet::DEFAULT, nested: Nested::No, set_id: SetId::Refused };

    fn with(cap: Cap) -> Relax {
        Relax { caps: CapSet::DEFAULT.with(cap), ..STRICT }
    }

    fn seal(relax: &Relax) -> io::Result<()> {
        let filter = Filter::compile(relax);
        rustix::thread::set_no_new_privs(true)?;
        filter.install()
    }

    /// The error of each call under the filter, 0 where it worked. Every call gets a child process of its own.
    fn errors<const N: usize>(relax: &Relax, calls: [(c_long, [c_long; 5]); N]) -> [c_int; N] {
        calls.map(|(call, [a, b, c, d, e])| {
            let outcome = trial::in_child(|| {
                seal(relax)?;
                // SAFETY: the trials below pass either numbers or pointers to strings that live as long as the
                // test.
                let result = unsafe { libc::syscall(call, a, b, c, d, e) };
                Ok((if result < 0 { io::Error::last_os_error().raw_os_error().unwrap() } else { 0 })
                    .to_string())
            });
            assert!(outcome.status.success(), "call {call}: {} {}", outcome.status, outcome.output);
            outcome.output.parse().unwrap()
        })
    }

    fn program(relax: &Relax, words: &[&str]) -> trial::Outcome {
        trial::in_child(|| {
            seal(relax)?;
            Ok(trial::replace_by(words))
        })
    }

    fn address(text: &std::ffi::CStr) -> c_long {
        c_long::try_from(text.as_ptr().addr()).unwrap()
    }

    #[test]
    fn no_call_is_in_the_list_twice() {
        let mut seen = HashSet::new();
        let checked: Vec<c_long> = allow::checked(&STRICT).map(|(call, _)| call).collect();

        for call in allow::GROUPS.iter().flat_map(|group| group.calls).chain(allow::REFUSED).chain(&checked) {
            assert!(seen.insert(*call), "call {call} is in the list twice");
            assert!(assemble::index(*call).is_some(), "call {call} does not fit the table");
        }
    }

    #[test]
    fn what_dockers_default_refuses_is_refused() {
        #[rustfmt::skip]
        let calls = [
            libc::SYS_acct, libc::SYS_add_key, libc::SYS_bpf, libc::SYS_clock_settime, libc::SYS_clone3,
            libc::SYS_delete_module, libc::SYS_fanotify_init, libc::SYS_finit_module, libc::SYS_get_mempolicy,
            libc::SYS_init_module, libc::SYS_kcmp, libc::SYS_kexec_load, libc::SYS_keyctl, libc::SYS_lookup_dcookie,
            libc::SYS_mbind, libc::SYS_migrate_pages, libc::SYS_mount, libc::SYS_move_pages, libc::SYS_nfsservctl,
            libc::SYS_open_by_handle_at, libc::SYS_perf_event_open, libc::SYS_pivot_root, libc::SYS_quotactl,
            libc::SYS_reboot, libc::SYS_request_key, libc::SYS_set_mempolicy, libc::SYS_setdomainname,
            libc::SYS_sethostname, libc::SYS_setns, libc::SYS_settimeofday, libc::SYS_swapoff, libc::SYS_swapon,
            libc::SYS_syslog, libc::SYS_umount2, libc::SYS_unshare, libc::SYS_userfaultfd, libc::SYS_vhangup,
            number::KEXEC_FILE_LOAD, number::PIDFD_GETFD, number::PROCESS_MADVISE, number::SET_MEMPOLICY_HOME_NODE,
            425, 426, 427, // io_uring
            428, 429, 430, 431, 432, 433, 442, // the mount calls that work on descriptors
            443, // quotactl_fd
            459, 460, 461, // lsm_*
            467, 468, 469, // open_tree_attr, file_getattr, file_setattr
            470, 471, 472, 473, // newer than this list
        ];
        let table = verdicts(&STRICT);

        for call in calls {
            let verdict = table[assemble::index(call).unwrap()];
            assert!(matches!(verdict, Verdict::Errno(_)), "call {call}: {verdict:?}");
        }
    }

    #[test]
    fn no_new_privs_is_needed_unless_the_caller_is_root() {
        let outcome = trial::in_child(|| {
            crate::caps::limit_to(CapSet::EMPTY).or_else(|err| {
                match rustix::process::geteuid().is_root() {
                    true => Err(err),
                    false => Ok(()),
                }
            })?;
            Ok(format!("{:?}", Filter::compile(&STRICT).install().map_err(|err| err.raw_os_error())))
        });

        assert_eq!(outcome.output, format!("Err(Some({}))", libc::EACCES));
    }

    #[test]
    fn calls_of_the_hosts_root_are_not_permitted_whatever_is_held() {
        let calls = [
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_kexec_load,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_acct,
            libc::SYS_quotactl,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_adjtimex,
            libc::SYS_syslog,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_open_by_handle_at,
        ]
        .map(|call| (call, [0; 5]));
        let caps = CapSet::adjust(&["SYS_ADMIN".into(), "DAC_READ_SEARCH".into()], &[]).unwrap();

        assert_eq!(errors(&STRICT, calls), [libc::EPERM; 14]);
        assert_eq!(errors(&Relax { caps, nested: Nested::Yes, ..STRICT }, calls), [libc::EPERM; 14]);
    }

    #[test]
    fn features_a_sandbox_does_not_have_are_not_implemented() {
        let calls = [
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_lookup_dcookie,
            libc::SYS_nfsservctl,
            libc::SYS_clone3,
            libc::SYS_openat2,
            511,
            9999,
            // An x32 call.
            0x4000_0000 | libc::SYS_getpid,
        ]
        .map(|call| (call, [0; 5]));

        assert_eq!(errors(&STRICT, calls), [libc::ENOSYS; 14]);
    }

    #[test]
    fn namespaces_and_mounts_are_not_permitted() {
        let new = |flag: c_int| (libc::SYS_clone, [c_long::from(flag | libc::SIGCHLD), 0, 0, 0, 0]);
        let calls = [
            (libc::SYS_unshare, [c_long::from(libc::CLONE_NEWUSER), 0, 0, 0, 0]),
            (libc::SYS_unshare, [c_long::from(libc::CLONE_NEWNS), 0, 0, 0, 0]),
            (libc::SYS_setns, [0; 5]),
            (libc::SYS_mount, [0; 5]),
            (libc::SYS_umount2, [0; 5]),
            (libc::SYS_pivot_root, [0; 5]),
            (libc::SYS_fsopen, [0; 5]),
            (libc::SYS_open_tree, [0; 5]),
            (libc::SYS_move_mount, [0; 5]),
            (libc::SYS_mount_setattr, [0; 5]),
            new(libc::CLONE_NEWUSER),
            new(libc::CLONE_NEWNS),
            new(libc::CLONE_NEWPID),
            new(libc::CLONE_NEWNET),
            new(libc::CLONE_NEWIPC),
            new(libc::CLONE_NEWUTS),
            new(libc::CLONE_NEWCGROUP),
        ];

        assert_eq!(errors(&STRICT, calls), [libc::EPERM; 17]);
    }

    #[test]
    fn sys_admin_opens_mounts_but_not_user_namespaces() {
        let relax = with(Cap::SYS_ADMIN);
        let [mount, unshare, user, clone_user, clone3, pivot] = errors(
            &relax,
            [
                (libc::SYS_mount, [0; 5]),
                (libc::SYS_unshare, [0; 5]),
                (libc::SYS_unshare, [c_long::from(libc::CLONE_NEWUSER), 0, 0, 0, 0]),
                (libc::SYS_clone, [c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0, 0, 0]),
                (libc::SYS_clone3, [0; 5]),
                (libc::SYS_pivot_root, [0; 5]),
            ],
        );

        assert_ne!((mount, unshare), (libc::EPERM, libc::EPERM));
        assert_eq!((user, clone_user, clone3, pivot), (libc::EPERM, libc::EPERM, libc::ENOSYS, libc::EPERM));
    }

    #[test]
    fn nested_lets_a_sandbox_be_built_inside() {
        let Some(_) = trial::in_own_user_namespace(|| Ok(String::new())) else { return };

        let outcome = trial::in_child(|| {
            seal(&Relax { nested: Nested::Yes, ..STRICT })?;
            Ok(trial::replace_by(&["/usr/bin/unshare", "-Urmpf", "--mount-proc", "/bin/sh", "-c", "echo $$"]))
        });

        assert_eq!(outcome.output, "1\n");
    }

    #[test]
    fn a_call_that_needs_a_capability_is_permitted_with_it_only() {
        let pairs = [
            (libc::SYS_chroot, Cap::SYS_CHROOT),
            (libc::SYS_kcmp, Cap::SYS_PTRACE),
            (libc::SYS_pidfd_getfd, Cap::SYS_PTRACE),
            (libc::SYS_get_mempolicy, Cap::SYS_NICE),
            (libc::SYS_fsopen, Cap::SYS_ADMIN),
        ];
        for (call, cap) in pairs {
            let without = Relax { caps: CapSet::EMPTY, ..STRICT };

            let [refused] = errors(&without, [(call, [-1, 0, 0, 0, 0])]);
            let verdict = verdicts(&with(cap))[assemble::index(call).unwrap()];

            assert_eq!((refused, verdict), (libc::EPERM, Verdict::Allow), "{cap}");
        }
    }

    #[test]
    fn only_four_socket_families_exist() {
        let socket = |family: c_int| (libc::SYS_socket, [family.into(), libc::SOCK_DGRAM.into(), 0, 0, 0]);
        let vsock_pair = (libc::SYS_socketpair, [libc::AF_VSOCK.into(), libc::SOCK_STREAM.into(), 0, 0, 0]);
        let others =
            [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_TIPC, libc::AF_CAN, libc::AF_XDP];

        assert_eq!(
            errors(&STRICT, [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(socket)),
            [0; 4]
        );
        assert_eq!(errors(&STRICT, others.map(socket)), [libc::EAFNOSUPPORT; 6]);
        assert_eq!(errors(&STRICT, [vsock_pair]), [libc::EAFNOSUPPORT]);
    }

    #[test]
    fn whoever_may_have_unix_sockets_only_has_no_others() {
        let socket = |family: c_int| {
            let outcome = trial::in_child(|| {
                rustix::thread::set_no_new_privs(true)?;
                Filter::unix_sockets_only().install()?;
                // SAFETY: takes numbers only.
                let made = unsafe { libc::socket(family, libc::SOCK_STREAM, 0) };
                Ok((made >= 0).to_string())
            });
            assert!(outcome.status.success(), "{}", outcome.output);
            outcome.output
        };

        assert_eq!([libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].map(socket), ["true", "false", "false"]);
    }

    #[test]
    fn nothing_can_be_typed_into_a_terminal() {
        let high = 0x7fff_0000_0000_0000;
        let ioctl = |request: c_long| (libc::SYS_ioctl, [1, request, 0, 0, 0]);
        let requests = [0x5412, 0x541c, 0x5423, 0x5412 | high, 0x541c | high].map(ioctl);

        assert_eq!(errors(&STRICT, requests), [libc::EPERM; 5]);
        // Others reach the kernel: stdout of the trial is a pipe.
        assert_eq!(errors(&STRICT, [ioctl(0x5413)]), [libc::ENOTTY]);
    }

    #[test]
    fn harmless_personalities_only() {
        let personality = |value| (libc::SYS_personality, [value, 0, 0, 0, 0]);

        assert_eq!(errors(&STRICT, [0, 8, 0x20000, 0xffff_ffff].map(personality)), [0; 4]);
        assert_eq!(errors(&STRICT, [0x0040_0000, 0x0004_0000, 2].map(personality)), [libc::EPERM; 3]);
    }

    #[test]
    fn no_file_gets_a_set_id_mode_by_any_call() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| std::ffi::CString::new(dir.path().join(name).to_str().unwrap()).unwrap();
        std::fs::write(dir.path().join("old"), "").unwrap();
        let (old, new, node) = (path("old"), path("new"), path("node"));
        let at = c_long::from(libc::AT_FDCWD);
        let create = c_long::from(libc::O_CREAT | libc::O_WRONLY);
        let tmpfile = c_long::from(libc::O_TMPFILE | libc::O_WRONLY);
        let tree = path("");
        let calls = [
            (libc::SYS_fchmodat, [at, address(&old), 0o4755, 0, 0]),
            (libc::SYS_fchmod, [1, 0o2755, 0, 0, 0]),
            (number::FCHMODAT2, [at, address(&old), 0o6755, 0, 0]),
            (libc::SYS_openat, [at, address(&new), create, 0o4755, 0]),
            (libc::SYS_openat, [at, address(&tree), tmpfile, 0o4755, 0]),
            (libc::SYS_mknodat, [at, address(&node), 0o102_755, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_chmod, [address(&old), 0o4755, 0, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_open, [address(&new), create, 0o2755, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_creat, [address(&new), 0o4755, 0, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_mknod, [address(&node), 0o104_755, 0, 0, 0]),
        ];

        assert!(errors(&STRICT, calls).iter().all(|errno| *errno == libc::EPERM));
        // Other modes work, and a mode that does not count is not looked at.
        let fine = [
            (libc::SYS_fchmodat, [at, address(&old), 0o1755, 0, 0]),
            (libc::SYS_openat, [at, address(&new), create, 0o755, 0]),
            (libc::SYS_openat, [at, address(&old), 0, 0o7777, 0]),
            (libc::SYS_openat, [at, address(&tree), c_long::from(libc::O_DIRECTORY), 0o7777, 0]),
            (libc::SYS_mknodat, [at, address(&node), 0o100_644, 0, 0]),
        ];
        assert_eq!(errors(&STRICT, fine), [0; 5]);
        let allowed = Relax { set_id: SetId::Allowed, ..STRICT };
        assert_eq!(errors(&allowed, [(libc::SYS_fchmodat, [at, address(&old), 0o4755, 0, 0])]), [0]);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_32_bit_call_ends_the_process() {
        fn getpid_of_i386() -> String {
            let result: u64;
            // SAFETY: call 20 of i386 is getpid, which takes no arguments and touches no memory.
            unsafe { std::arch::asm!("int 0x80", inout("rax") 20u64 => result, options(nostack)) };
            result.to_string()
        }

        let free = trial::in_child(|| Ok(getpid_of_i386()));
        let sealed = trial::in_child(|| {
            seal(&STRICT)?;
            Ok(getpid_of_i386())
        });

        if !free.status.success() {
            eprintln!("skipped: this kernel has no 32-bit calls");
            assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none());
            return;
        }
        assert_eq!((sealed.status.signal(), sealed.output.as_str()), (Some(libc::SIGSYS), ""));
    }

    #[test]
    fn ordinary_programs_run() {
        let shell = "set -e; seq 1 1000 | sort -rn | head -3 | tr '\\n' ' '; (exit 3) || echo $?; \
                     d=$(mktemp -d); cp -r /etc/passwd $d/; chmod 755 $d/passwd; ls -l $d >/dev/null; rm -r $d; \
                     sleep 0 & wait $!; kill -0 $$; ulimit -n >/dev/null";
        let python = "import threading, subprocess, socket, os, select, signal\n\
                      ts = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(8)]\n\
                      [t.start() for t in ts]; [t.join() for t in ts]\n\
                      a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'\n\
                      s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); e = select.epoll(); e.register(s)\n\
                      c = socket.create_connection(s.getsockname()); assert e.poll()\n\
                      assert subprocess.run(['/bin/sh', '-c', 'exit 7']).returncode == 7\n\
                      socket.send_fds(a, [b'x'], [1]); assert len(socket.recv_fds(b, 1, 1)[1]) == 1\n\
                      m, t = os.openpty(); assert os.isatty(t)\n\
                      pid = os.fork()\n\
                      if pid == 0: os.login_tty(t); os.nice(1); os._exit(5)\n\
                      assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5; print('fine')";

        let quiet = program(&STRICT, &["/bin/true"]);
        let piped = program(&STRICT, &["/bin/sh", "-c", shell]);
        let scripted = program(&STRICT, &["/usr/bin/env", "python3", "-c", python]);

        assert!(quiet.status.success(), "{}", quiet.output);
        assert_eq!((piped.output.as_str(), piped.status.code()), ("1000 999 998 3\n", Some(0)));
        assert_eq!((scripted.output.as_str(), scripted.status.code()), ("fine\n", Some(0)));
    }

    #[test]
    fn the_whole_seal_in_its_order_lets_a_program_run() {
        let fence = crate::fence::Fence::prepare();
        let filter = Filter::compile(&STRICT);
        let text = "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                    unshare -U true 2>&1; mount -t tmpfs x /mnt 2>/dev/null || echo no mount";

        let seen = trial::in_own_user_namespace(|| {
            let root = std::fs::File::open("/")?;
            crate::caps::limit_to(CapSet::DEFAULT)?;
            rustix::thread::set_no_new_privs(true)?;
            fence.restrict(std::os::fd::AsFd::as_fd(&root), &[]).map_err(io::Error::other)?;
            filter.install()?;
            Ok(trial::replace_by(&["/bin/sh", "-c", text]))
        });

        let held = CapSet::DEFAULT.bits();
        let wanted = format!(
            "CapEff:\t{held:016x}\nCapBnd:\t{held:016x}\nNoNewPrivs:\t1\nSeccomp:\t2\n\
             unshare: unshare failed: Operation not permitted\nno mount\n"
        );
        assert_eq!(seen.unwrap_or_else(|| wanted.clone()), wanted);
    }

    #[test]
    #[ignore = "benchmark: prints, asserts nothing"]
    fn what_the_filter_costs() {
        let rounds = 1000;
        let start = Instant::now();
        let size = (0..rounds).map(|_| Filter::compile(&STRICT).program.len()).max();
        println!("compile {:?}, {size:?} instructions", start.elapsed() / rounds);
        let per_call = |work: &dyn Fn()| {
            let start = Instant::now();
            (0..200_000).for_each(|_| work());
            start.elapsed() / 200_000
        };
        let calls = || {
            let getppid = per_call(&|| {
                // SAFETY: takes no arguments.
                unsafe { libc::syscall(libc::SYS_getppid) };
            });
            let ioctl = per_call(&|| {
                // SAFETY: descriptor -1 is never open.
                unsafe { libc::syscall(libc::SYS_ioctl, -1, 0, 0) };
            });
            format!("getppid {getppid:?} ioctl {ioctl:?}")
        };
        println!("free: {}", trial::in_child(|| Ok(calls())).output);
        let sealed = trial::in_child(|| {
            let filter = Filter::compile(&STRICT);
            rustix::thread::set_no_new_privs(true)?;
            let start = Instant::now();
            filter.install()?;
            let install = start.elapsed();
            Ok(format!("{} install {install:?}", calls()))
        });
        println!("sealed: {}", sealed.output);
    }
}
