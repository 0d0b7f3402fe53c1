//! The last steps before the guest: capabilities, no new privileges, the second fence, the filter.

use super::{During, Failed, outer::Behind};
use airlock_engine::Plan;
use airlock_linux::{
    caps::{self, Cap, CapSet},
    clone, fd,
    fence::Fence,
    idmap::IdMap,
    seccomp::{Filter, Nested, Relax},
    spawn,
};
use airlock_protocol::guest::User;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// What was prepared before the fork.
pub(super) struct Seal {
    caps: CapSet,
    filter: Filter,
    fence: Option<Fence>,
    files: Vec<OwnedFd>,
}

impl Seal {
    pub(super) fn prepare(plan: &Plan, streams: &[BorrowedFd<'_>], behind: Behind) -> Result<Seal, Failed> {
        // Programs of a machine have what was asked for in there; whoever serves their files has what that takes.
        let (caps, nested) = match behind {
            Behind::Programs => (plan.caps, plan.nested),
            Behind::Machine => (CapSet::DEFAULT, Nested::No),
        };
        let relax = Relax { caps, nested, set_id: plan.set_id };
        // Landlock forbids every mount, also those that were asked for.
        let mounts = nested == Nested::Yes || caps.contains(Cap::SYS_ADMIN);
        let files =
            streams.iter().filter(|stream| fd::is_file(stream)).map(|stream| stream.try_clone_to_owned());
        Ok(Seal {
            caps,
            filter: Filter::compile(&relax),
            fence: if mounts { None } else { Some(Fence::prepare()) },
            files: files.collect::<io::Result<_>>().during("keep the standard streams")?,
        })
    }

    /// From here on this process can do only what programs inside can.
    /// The guest lies outside the new root, so the fence has to know it.
    pub(super) fn apply(&self, guest: &OwnedFd) -> Result<(), Failed> {
        caps::limit_to(self.caps).during("drop capabilities")?;
        rustix::thread::set_no_new_privs(true).during("give up new privileges")?;
        if let Some(fence) = &self.fence {
            let root = std::fs::File::open("/").during("open the new root")?;
            let guest = std::fs::File::open(format!("/proc/self/fd/{}", guest.as_raw_fd()))
                .during("open the guest")?;
            let files: Vec<BorrowedFd<'_>> =
                self.files.iter().map(AsFd::as_fd).chain([guest.as_fd()]).collect();
            fence
                .restrict(root.as_fd(), &files)
                .map_err(io::Error::other)
                .during("raise the second fence")?;
        }
        self.filter.install().during("install the system call filter")
    }
}

/// Becomes user and group 0 of A (or the single id there is) and drops the host's groups.
pub(super) fn become_builder(ids: &IdMap, user: &User) -> io::Result<()> {
    let (uid, gid) = match ids.user_outside(0) {
        Some(_) => (0, ids.group_outside(0).map_or(user.gid, |_| 0)),
        None => (user.uid, user.gid),
    };
    spawn::become_user(uid, gid, &[])
}

/// Bounds the processes of all ids inside together: the limit of the namespace B is the one in force when it is made.
pub(super) fn limit_processes(plan: &Plan) -> Result<(), Failed> {
    let most = Some(plan.bounds.pids.value);
    let limit = rustix::process::Rlimit { current: most, maximum: most };
    rustix::process::setrlimit(rustix::process::Resource::Nproc, limit)
        .during("limit the number of processes")
}

/// No memory image of a program that crashes: neither in a file nor by a program of the host. Of the host's core
/// pattern a limit of 0 stops only the file, a limit of 1 stops both (fs/coredump.c).
pub(super) fn forbid_memory_images() -> Result<(), Failed> {
    let limit = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(rustix::process::Resource::Core, limit)
        .during("forbid memory images of crashes")
}

/// Becomes the guest: descriptor 3 is its link, those behind it are `further`, everything else but the standard streams
/// closes.
pub(super) fn execute<T>(guest: OwnedFd, link: OwnedFd, further: Vec<OwnedFd>) -> Result<T, Failed> {
    clone::die_with_parent().during("tie the sandbox to its keeper")?;
    Err(spawn::execute_guest_with(guest, link, further)).during("execute the guest")
}
