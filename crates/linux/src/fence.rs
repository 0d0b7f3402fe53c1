//! Landlock as a second fence: whatever a program reaches, by whichever descriptor or mistake of ours, it can
//! open nothing outside its own root directory.
//!
//! The first fence is the mount namespace, which simply does not contain the host's files. This one holds for
//! descriptors: a directory that leaked in from the host opens nothing, and a file of the host that was given
//! as stdin for reading cannot be opened again for writing through `/proc/self/fd/0`. It also keeps signals and
//! abstract Unix sockets inside (Linux 6.12).
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use airlock_linux::fence::Fence;
//!
//! let fence = Fence::prepare(); // in the keeper, or once per host
//! // … in the sandbox's first process, after pivot_root and no_new_privs:
//! let root = std::fs::File::open("/")?;
//! let applied = fence.restrict(root.as_fd(), &[std::io::stdin().as_fd()])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Landlock forbids every change of mounts to those behind the fence. A sandbox with CAP_SYS_ADMIN or `nested`,
//! which are there to mount, must do without the fence; the caller decides.
//!
//! What the fence does not hold: changing the mode, owner, times or attributes of a file through an open
//! descriptor.
//!
//! The three system calls are made here directly and not by the landlock crate: it probes the kernel again and
//! allocates at each use, and this runs between fork and exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long, c_uint};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use thiserror::Error;

/// What this kernel's landlock can do, found out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    abi: u32,
}

/// Whether the fence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It stands, with everything that this version of landlock knows.
    Enforced {
        /// The version of landlock.
        abi: u32,
    },
    /// The kernel has no landlock, has it switched off, or has the first version, in which no file can be moved
    /// to another directory.
    Unavailable,
}

/// Which step failed. None of them allocates.
#[derive(Debug, Error)]
pub enum RestrictError {
    /// The kernel refused the kinds of access to handle.
    #[error("could not create a landlock ruleset")]
    Create(#[source] io::Error),
    /// The root directory or one of the extra descriptors cannot be named in a rule.
    #[error("could not add descriptor {fd} to the landlock ruleset")]
    Add {
        /// Which one.
        fd: RawFd,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to restrict the caller; EPERM says that no_new_privs is not set.
    #[error("could not enter the landlock domain")]
    Enter(#[source] io::Error),
}

impl Fence {
    /// Asks the kernel for its version of landlock: one system call.
    #[must_use]
    pub fn prepare() -> Fence {
        let abi = call(libc::SYS_landlock_create_ruleset, [0, 0, VERSION, 0]).unwrap_or(0);
        Fence { abi: u32::try_from(abi).unwrap_or(0) }
    }

    /// What [`Fence::restrict`] will do here.
    #[must_use]
    pub fn offers(&self) -> Applied {
        if self.abi < FIRST_USABLE { Applied::Unavailable } else { Applied::Enforced { abi: self.abi } }
    }

    /// Puts the calling thread and all it will ever start behind the fence, for good: everything beneath `root`
    /// stays as it is, files and devices of `extra` can be opened again in the way they are open now (read-only
    /// ones can be executed too), and nothing else can be opened, executed, made, moved or removed. Pipes and
    /// sockets in `extra` need no rule; a directory there gets none.
    ///
    /// no_new_privs must be set. System calls only.
    pub fn restrict(&self, root: BorrowedFd<'_>, extra: &[BorrowedFd<'_>]) -> Result<Applied, RestrictError> {
        let applied = self.offers();
        if applied == Applied::Unavailable {
            return Ok(applied);
        }
        let ruleset = self.create().map_err(RestrictError::Create)?;
        allow(&ruleset, root, file_access(self.abi))?;
        for fd in extra {
            let access = open_access(*fd) & file_access(self.abi);
            if access != 0 {
                allow(&ruleset, *fd, access)?;
            }
        }
        // A program inside may fence itself further, but not fill the host's audit log with it.
        let flags = if self.abi >= 7 { LOG_SUBDOMAINS_OFF } else { 0 };
        call(libc::SYS_landlock_restrict_self, [c_long::from(ruleset.as_raw_fd()), flags, 0, 0])
            .map_err(RestrictError::Enter)?;
        Ok(applied)
    }

    fn create(self) -> io::Result<OwnedFd> {
        let attributes =
            RulesetAttributes { file_access: file_access(self.abi), network: 0, scope: scope(self.abi) };
        let size = match self.abi {
            ..4 => 8,
            4..6 => 16,
            6.. => 24,
        };
        // SAFETY: the kernel reads the first `size` bytes of the attributes, which are no longer than the
        // struct.
        let fd = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0 as c_uint)
        };
        let fd = RawFd::try_from(checked(fd)?).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Version 1 cannot express that a file moves to another directory and refuses it always.
const FIRST_USABLE: u32 = 2;

// include/uapi/linux/landlock.h
const VERSION: c_long = 1; // LANDLOCK_CREATE_RULESET_VERSION
const PATH_BENEATH: c_int = 1; // LANDLOCK_RULE_PATH_BENEATH
const LOG_SUBDOMAINS_OFF: c_long = 4; // LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEVICE: u64 = 1 << 15;
const SCOPE_ABSTRACT_SOCKET: u64 = 1 << 0;
const SCOPE_SIGNAL: u64 = 1 << 1;

/// struct landlock_ruleset_attr; older kernels know only its beginning.
#[repr(C)]
struct RulesetAttributes {
    file_access: u64,
    network: u64,
    scope: u64,
}

/// struct landlock_path_beneath_attr
#[repr(C, packed)]
struct PathBeneath {
    access: u64,
    parent: c_int,
}

/// Every kind of file access that this version knows, newest last: moving between directories, truncating,
/// ioctl on devices, connecting to a Unix socket by its path.
fn file_access(abi: u32) -> u64 {
    let kinds = match abi {
        ..2 => 13,
        2 => 14,
        3..5 => 15,
        5..9 => 16,
        9.. => 17,
    };
    (1 << kinds) - 1
}

fn scope(abi: u32) -> u64 {
    if abi < 6 { 0 } else { SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL }
}

/// The access that a descriptor already gives. What can be read can be executed: a copy could be as well, and
/// the guest may be given by a descriptor. A directory gives none: a rule on it would open all that lies
/// beneath.
fn open_access(fd: BorrowedFd<'_>) -> u64 {
    let (Ok(flags), Ok(stat)) = (rustix::fs::fcntl_getfl(fd), rustix::fs::fstat(fd)) else { return 0 };
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory || flags.contains(OFlags::PATH) {
        return 0;
    }
    let (read, write) = (READ_FILE | EXECUTE | IOCTL_DEVICE, WRITE_FILE | TRUNCATE | IOCTL_DEVICE);
    match flags & OFlags::RWMODE {
        OFlags::RDONLY => read,
        OFlags::WRONLY => write,
        _ => read | write,
    }
}

fn allow(ruleset: &OwnedFd, fd: BorrowedFd<'_>, access: u64) -> Result<(), RestrictError> {
    let rule = PathBeneath { access, parent: fd.as_raw_fd() };
    // SAFETY: the kernel reads one rule of the type named, which lives until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_fd().as_raw_fd(),
            PATH_BENEATH,
            &raw const rule,
            0 as c_uint,
        )
    };
    match checked(result) {
        // Pipes, sockets and memory files lie in no directory: landlock never refuses them.
        Err(err) if err.raw_os_error() == Some(libc::EBADFD) => Ok(()),
        Err(source) => Err(RestrictError::Add { fd: fd.as_raw_fd(), source }),
        Ok(_) => Ok(()),
    }
}

/// A call that takes numbers only.
fn call(number: c_long, [a, b, c, d]: [c_long; 4]) -> io::Result<c_long> {
    // SAFETY: the two callers pass descriptors, flags and null pointers; the kernel touches no memory of ours.
    checked(unsafe { libc::syscall(number, a, b, c, d) })
}

fn checked(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::seccomp::trial;

    /// The fence around one directory, with `extra` beside it; `None` where the kernel has none.
    fn behind(
        root: &Path,
        extra: &[BorrowedFd<'_>],
        work: impl FnOnce() -> io::Result<String>,
    ) -> Option<String> {
        let fence = Fence::prepare();
        if fence.offers() == Applied::Unavailable {
            assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "this kernel has no landlock");
            eprintln!("skipped: this kernel has no landlock");
            return None;
        }
        let root = File::open(root).unwrap();
        let outcome = trial::in_child(|| {
            rustix::thread::set_no_new_privs(true)?;
            fence.restrict(root.as_fd(), extra).map_err(io::Error::other)?;
            work()
        });
        assert!(outcome.status.success(), "{}: {}", outcome.status, outcome.output);
        Some(outcome.output)
    }

    fn kind<T>(result: io::Result<T>) -> String {
        result.map_or_else(|err| format!("{:?}", err.kind()), |_| "works".to_owned())
    }

    #[test]
    fn each_version_handles_all_it_knows() {
        assert_eq!(
            [1, 2, 3, 4, 5, 8, 9].map(file_access),
            [0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff, 0xffff, 0x1ffff]
        );
        assert_eq!([5, 6].map(scope), [0, 3]);
    }

    #[test]
    fn a_kernel_without_landlock_is_reported_and_is_no_error() {
        for abi in [0, 1] {
            let root = File::open("/").unwrap();

            let applied = Fence { abi }.restrict(root.as_fd(), &[]).unwrap();

            assert_eq!(applied, Applied::Unavailable);
        }
    }

    #[test]
    fn a_directory_that_leaked_in_is_useless() {
        let (inside, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(host.path().join("secret"), "s").unwrap();
        let leaked = File::open(host.path()).unwrap();

        let seen = behind(inside.path(), &[leaked.as_fd()], || {
            let at = |name: &str| format!("/proc/self/fd/{}/{name}", leaked.as_raw_fd());
            let opened = rustix::fs::openat(&leaked, "secret", OFlags::RDONLY, 0.into()).map_err(Into::into);
            Ok([
                kind(opened),
                kind(fs::read(at("secret"))),
                kind(fs::read_dir(at(""))),
                kind(fs::write(at("new"), "n")),
                kind(fs::remove_file(at("secret"))),
                kind(fs::create_dir(at("dir"))),
            ]
            .join(" "))
        });

        if let Some(seen) = seen {
            assert_eq!(seen, ["PermissionDenied"; 6].join(" "));
        }
    }

    #[test]
    fn everything_beneath_the_root_stays_as_it_is() {
        let inside = tempfile::tempdir().unwrap();
        let at = |name: &str| inside.path().join(name);

        let seen = behind(inside.path(), &[], || {
            fs::create_dir_all(at("a/b"))?;
            fs::write(at("a/b/file"), "text")?;
            fs::rename(at("a/b/file"), at("moved"))?;
            fs::hard_link(at("moved"), at("a/linked"))?;
            OpenOptions::new().write(true).truncate(true).open(at("moved"))?.write_all(b"again")?;
            std::os::unix::fs::symlink("moved", at("link"))?;
            drop(UnixListener::bind(at("socket"))?);
            fs::remove_dir(at("a/b"))?;
            fs::read_to_string(at("link"))
        });

        if let Some(seen) = seen {
            assert_eq!(seen, "again");
        }
    }

    #[test]
    fn a_file_given_for_reading_can_be_opened_again_for_reading_only() {
        let (inside, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(host.path().join("in"), "text").unwrap();
        let stdin = File::open(host.path().join("in")).unwrap();
        let stdout = File::create(host.path().join("out")).unwrap();

        let seen = behind(inside.path(), &[stdin.as_fd(), stdout.as_fd()], || {
            let at = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
            Ok([
                kind(fs::read(at(&stdin))),
                kind(OpenOptions::new().write(true).open(at(&stdin))),
                kind(OpenOptions::new().append(true).open(at(&stdout))),
                kind(File::create(at(&stdout))),
                kind(fs::read(at(&stdout))),
            ]
            .join(" "))
        });

        if let Some(seen) = seen {
            assert_eq!(seen, "works PermissionDenied works works PermissionDenied");
        }
    }

    #[test]
    fn pipes_sockets_and_memory_files_need_no_rule() {
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        std::io::copy(&mut File::open("/bin/true").unwrap(), &mut File::from(memory.try_clone().unwrap()))
            .unwrap();

        let seen = behind(Path::new("/"), &[read.as_fd(), socket.as_fd(), memory.as_fd()], || {
            Ok(trial::replace_by(&[&format!("/proc/self/fd/{}", memory.as_raw_fd())]))
        });

        assert_eq!(seen.unwrap_or_default(), "");
    }

    #[test]
    fn a_program_outside_the_root_runs_only_if_its_descriptor_was_given() {
        let host = tempfile::tempdir().unwrap();
        fs::copy("/bin/true", host.path().join("guest")).unwrap();
        let guest = File::open(host.path().join("guest")).unwrap();
        let run = || Ok(trial::replace_by(&[&format!("/proc/self/fd/{}", guest.as_raw_fd())]));

        let given = behind(Path::new("/usr"), &[guest.as_fd()], run);
        let leaked = behind(Path::new("/usr"), &[], run);

        if let (Some(given), Some(leaked)) = (given, leaked) {
            assert_eq!(given, "");
            assert!(leaked.starts_with("could not execute"), "{leaked}");
        }
    }

    #[test]
    fn signals_reach_those_inside_and_nobody_else() {
        let outside = c_int::try_from(std::process::id()).unwrap();

        let seen = behind(Path::new("/"), &[], || {
            // SAFETY: signal 0 is never delivered.
            let up = unsafe { libc::kill(outside, 0) };
            let within = std::process::Command::new("/bin/sh").args(["-c", "sleep 60 & kill $!"]).status()?;
            Ok(format!("{up} {:?}", within.code()))
        });

        match (seen, Fence::prepare().abi) {
            (Some(seen), 6..) => assert_eq!(seen, "-1 Some(0)"),
            (Some(seen), _) => assert_eq!(seen, "0 Some(0)"),
            (None, _) => {}
        }
    }

    #[test]
    fn abstract_sockets_connect_those_inside_and_nobody_else() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixStream};
        let test = std::process::id();
        let address = |side| SocketAddr::from_abstract_name(format!("airlock-fence-{side}-{test}")).unwrap();
        let _outside = UnixListener::bind_addr(&address("outside")).unwrap();

        let seen = behind(Path::new("/"), &[], || {
            let _inside = UnixListener::bind_addr(&address("inside"))?;
            Ok([address("outside"), address("inside")]
                .map(|addr| kind(UnixStream::connect_addr(&addr)))
                .join(" "))
        });

        match (seen, Fence::prepare().abi) {
            (Some(seen), 6..) => assert_eq!(seen, "PermissionDenied works"),
            (Some(seen), _) => assert_eq!(seen, "works works"),
            (None, _) => {}
        }
    }

    #[test]
    fn without_no_new_privs_an_ordinary_process_cannot_enter() {
        let root = File::open("/").unwrap();
        let outcome = trial::in_child(|| {
            if rustix::process::geteuid().is_root() {
                crate::caps::limit_to(crate::caps::CapSet::EMPTY)?;
            }
            Ok(format!("{:?}", Fence::prepare().restrict(root.as_fd(), &[])))
        });

        if Fence::prepare().offers() != Applied::Unavailable {
            assert!(outcome.output.starts_with("Err(Enter("), "{}", outcome.output);
        }
    }

    #[test]
    #[ignore = "benchmark: prints, asserts nothing"]
    fn what_the_fence_costs() {
        let seen = behind(Path::new("/tmp"), &[], || {
            let root = File::open("/tmp")?;
            let start = Instant::now();
            let applied = Fence::prepare().restrict(root.as_fd(), &[root.as_fd()]);
            Ok(format!("{applied:?} in {:?}", start.elapsed()))
        });
        println!("{seen:?}");
    }
}
