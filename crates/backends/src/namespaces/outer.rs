//! What can be made ahead, by a process that only stands for it while the keeper plans the rest: user namespace A, the
//! network namespace, the wall's network side and its proof, user namespace B. It ends before any program starts.

use super::{
    During, Failed,
    launch::{FAILED, SEAT, heard},
    seal,
};
use airlock_engine::{
    Begun,
    plan::{Identity, chain},
};
use airlock_linux::{
    clone::{self, Namespaces, Side},
    fd, idmap,
    idmap::Writing,
    net::{
        machine,
        seat::{self, Seat},
    },
};
use std::{
    fs::File,
    io::{self, PipeReader, Read as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// What the process says with its user and network namespace attached.
const MADE: u8 = b'm';
/// What it says with user namespace B attached.
const INNER: u8 = b'i';
/// Why there is no word at all.
const KILLED: &str = "the process that makes the sandbox's network was killed";

/// User namespace A and the network namespace that belongs to it.
pub(super) struct Outer {
    user: OwnedFd,
    network: OwnedFd,
}

impl Outer {
    /// User namespace A, whose ids may still be missing.
    pub(super) fn user(&self) -> BorrowedFd<'_> {
        self.user.as_fd()
    }

    pub(super) fn namespaces(&self) -> [BorrowedFd<'_>; 2] {
        [self.user.as_fd(), self.network.as_fd()]
    }

    /// Tells the network namespace from all others: device and inode.
    pub(super) fn network_identity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.network)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Moves this process there.
    pub(super) fn enter(&self) -> io::Result<()> {
        for namespace in self.namespaces() {
            rustix::thread::move_into_link_name_space(namespace, None)?;
        }
        Ok(())
    }
}

/// The network namespace this process is in, as [`Outer::network_identity`] tells it.
pub(super) fn network_here() -> io::Result<(u64, u64)> {
    let stat = rustix::fs::stat("/proc/self/ns/net")?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Who will be behind the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Programs, in the network namespace.
    Programs,
    /// A machine: the seat has its TAP.
    Machine,
}

/// Starts the process and has its ids written.
pub(crate) fn begin(identity: &Identity, behind: Behind) -> Result<Begun, Failed> {
    let (talk, child_talk) = fd::pair().during("make a socket pair")?;
    let (written, done) = io::pipe().during("make a pipe")?;
    match clone::fork(Namespaces::USER, None).during("make a user namespace")? {
        Side::Child => {
            drop((talk, done));
            stand(identity, behind, written, &child_talk)
        }
        Side::Parent(child) => {
            let mut begun = Begun { child, talk, ids: Writing::default() };
            let ids = identity.ids.begin(begun.child.pid, Some(done.into()));
            begun.ids = ids.map_err(io::Error::other).during("write the sandbox's ids")?;
            Ok(begun)
        }
    }
}

/// Waits for the namespaces.
pub(super) fn spaces(begun: &Begun) -> Result<Outer, String> {
    let mut descriptors = hear(begun, MADE)?.into_iter();
    match (descriptors.next(), descriptors.next()) {
        (Some(user), Some(network)) => Ok(Outer { user, network }),
        _ => Err(KILLED.to_owned()),
    }
}

/// Waits for the seat, after [`spaces`].
pub(super) fn seat(begun: &Begun) -> Result<Seat, String> {
    Seat::from_descriptors(hear(begun, SEAT)?).ok_or_else(|| KILLED.to_owned())
}

/// Has user namespace B made, in which so many processes may be. To be waited for with [`inner`].
pub(super) fn ask_for_inner(begun: &Begun, processes: u64) {
    // Where nobody listens any more, why not is heard next.
    let _ = fd::send_all(begun.talk.as_fd(), &processes.to_ne_bytes(), &[]);
}

/// Waits for user namespace B, after [`seat`].
pub(super) fn inner(begun: &Begun) -> Result<OwnedFd, String> {
    hear(begun, INNER)?.pop().ok_or_else(|| KILLED.to_owned())
}

/// What comes with the next word, which has to be this one.
fn hear(begun: &Begun, word: u8) -> Result<Vec<OwnedFd>, String> {
    let (mut first, mut bytes, mut said, mut descriptors) = ([0u8; 1], [0u8; 1024], Vec::new(), Vec::new());
    // One byte: the next word may be there already.
    heard(fd::receive_with_fds(begun.talk.as_fd(), &mut first, &mut descriptors))?;
    match first {
        [said] if said == word => return Ok(descriptors),
        [FAILED] => {}
        _ => return Err(KILLED.to_owned()),
    }
    // Why is all that follows.
    loop {
        let count = heard(fd::receive_with_fds(begun.talk.as_fd(), &mut bytes, &mut descriptors))?;
        if count == 0 {
            return Err(String::from_utf8_lossy(&said).into_owned());
        }
        said.extend_from_slice(bytes.get(..count).unwrap_or_default());
    }
}

/// The process: makes, tells, and waits until it is no longer needed.
fn stand(identity: &Identity, behind: Behind, written: PipeReader, talk: &OwnedFd) -> ! {
    if let Err(failed) = make(identity, behind, written, talk) {
        let mut text = vec![FAILED];
        text.extend_from_slice(chain(&failed).as_bytes());
        let _ = fd::send_all(talk.as_fd(), &text, &[]);
        clone::exit_now(125)
    }
    let _ = fd::receive_with_fds(talk.as_fd(), &mut [0u8; 1], &mut Vec::new());
    clone::exit_now(0)
}

fn make(identity: &Identity, behind: Behind, mut written: PipeReader, talk: &OwnedFd) -> Result<(), Failed> {
    let tie = || clone::die_with_parent().during("tie the network to its keeper");
    tie()?;
    clone::unshare(Namespaces::NETWORK).during("make a network namespace")?;
    // Opened by whoever the keeper is: root of the sandbox may not be allowed to.
    let tun = match behind {
        Behind::Programs => None,
        Behind::Machine => Some(open_tun()?),
    };
    let open = |path: &str| File::open(path).during("open the namespaces");
    let (user, network) = (open("/proc/self/ns/user")?, open("/proc/self/ns/net")?);
    fd::send_all(talk.as_fd(), &[MADE], &[user.as_fd(), network.as_fd()]).during("speak to the keeper")?;
    written.read_to_end(&mut Vec::new()).during("wait for the ids")?;
    seal::become_builder(&identity.ids, &identity.user).during("become root of the sandbox")?;
    tie()?;
    let groups = identity.ids.group_range();
    let seat = match tun {
        None => seat::build(&groups),
        Some(tun) => seat::build_for_machine(tun, &groups),
    };
    let seat = seat.map_err(io::Error::other).during("take a seat in the sandbox's network")?;
    // No rule asks who sends, so that what is refused here is refused to any program of this network.
    seat::prove().map_err(io::Error::other).during("prove the wall from inside")?;
    fd::send_all(talk.as_fd(), &[SEAT], &seat.descriptors()).during("hand over the network seat")?;
    drop(seat);
    make_inner(identity, talk)
}

/// What a machine's network is made of, in the network namespace of this process.
fn open_tun() -> Result<OwnedFd, Failed> {
    let fix = |err: &io::Error| match err.kind() {
        io::ErrorKind::PermissionDenied => {
            "its mode has to let you read and write it, as most distributions have it: chmod 666"
        }
        io::ErrorKind::NotFound => "modprobe tun makes it; a container needs --device /dev/net/tun",
        _ => "the kernel has to have tun",
    };
    let opened = machine::open();
    let fix = opened.as_ref().err().map(fix).unwrap_or_default();
    opened.during(&format!("open {} for the machine's network ({fix})", machine::DEVICE))
}

/// User namespace B: the limit on processes in force now bounds those of all ids inside together.
fn make_inner(identity: &Identity, talk: &OwnedFd) -> Result<(), Failed> {
    let mut processes = [0u8; 8];
    File::from(talk.try_clone().during("hear from the keeper")?)
        .read_exact(&mut processes)
        .during("hear from the keeper")?;
    // Those that build count too.
    let most = Some(u64::from_ne_bytes(processes).max(BUILDERS));
    let limit = rustix::process::Rlimit { current: most, maximum: most };
    rustix::process::setrlimit(rustix::process::Resource::Nproc, limit)
        .during("limit the number of processes")?;
    let inner = idmap::inner(&identity.ids).during("make the inner user namespace")?;
    fd::send_all(talk.as_fd(), &[INNER], &[inner.as_fd()]).during("hand over the inner user namespace")
}

/// This process, the one that builds, and the one that stands for user namespace B.
const BUILDERS: u64 = 3;
