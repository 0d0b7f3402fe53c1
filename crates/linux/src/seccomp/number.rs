//! Numbers of newer calls that the libc crate does not name on every platform. From 424 on they are the same
//! everywhere.

use libc::c_long;

pub(super) use older::*;

#[cfg(target_arch = "x86_64")]
mod older {
    use libc::c_long;

    pub(in crate::seccomp) const URETPROBE: c_long = 335;
    pub(in crate::seccomp) const RENAMEAT: c_long = 264;
    pub(in crate::seccomp) const GETRLIMIT: c_long = 97;
    pub(in crate::seccomp) const SETRLIMIT: c_long = 160;
    pub(in crate::seccomp) const SYNC_FILE_RANGE: c_long = 277;
    pub(in crate::seccomp) const IO_PGETEVENTS: c_long = 333;
    pub(in crate::seccomp) const KEXEC_FILE_LOAD: c_long = 320;
}

#[cfg(target_arch = "aarch64")]
mod older {
    use libc::c_long;

    pub(in crate::seccomp) const RENAMEAT: c_long = 38;
    pub(in crate::seccomp) const GETRLIMIT: c_long = 163;
    pub(in crate::seccomp) const SETRLIMIT: c_long = 164;
    pub(in crate::seccomp) const SYNC_FILE_RANGE: c_long = 84;
    pub(in crate::seccomp) const IO_PGETEVENTS: c_long = 292;
    pub(in crate::seccomp) const KEXEC_FILE_LOAD: c_long = 294;
}

pub(super) const OPEN_TREE: c_long = 428;
pub(super) const MOVE_MOUNT: c_long = 429;
pub(super) const FSOPEN: c_long = 430;
pub(super) const FSCONFIG: c_long = 431;
pub(super) const FSMOUNT: c_long = 432;
pub(super) const FSPICK: c_long = 433;
pub(super) const OPENAT2: c_long = 437;
pub(super) const PIDFD_GETFD: c_long = 438;
pub(super) const PROCESS_MADVISE: c_long = 440;
pub(super) const MOUNT_SETATTR: c_long = 442;
pub(super) const QUOTACTL_FD: c_long = 443;
pub(super) const MEMFD_SECRET: c_long = 447;
pub(super) const PROCESS_MRELEASE: c_long = 448;
pub(super) const FUTEX_WAITV: c_long = 449;
pub(super) const SET_MEMPOLICY_HOME_NODE: c_long = 450;
pub(super) const CACHESTAT: c_long = 451;
pub(super) const FCHMODAT2: c_long = 452;
pub(super) const MAP_SHADOW_STACK: c_long = 453;
pub(super) const FUTEX_WAKE: c_long = 454;
pub(super) const FUTEX_WAIT: c_long = 455;
pub(super) const FUTEX_REQUEUE: c_long = 456;
pub(super) const STATMOUNT: c_long = 457;
pub(super) const LISTMOUNT: c_long = 458;
pub(super) const MSEAL: c_long = 462;
pub(super) const SETXATTRAT: c_long = 463;
pub(super) const GETXATTRAT: c_long = 464;
pub(super) const LISTXATTRAT: c_long = 465;
pub(super) const REMOVEXATTRAT: c_long = 466;
pub(super) const OPEN_TREE_ATTR: c_long = 467;
