//! User namespace A and the network namespace, made ahead: a process that only stands for them makes the wall's network
//! side while the keeper plans the rest. It ends before any program starts.

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
    fd,
    idmap::Writing,
    net::seat::{self, Seat},
};
use std::{
    fs::File,
    io::{self, PipeReader, Read as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// What the process says with its user and network namespace attached.
const MADE: u8 = b'm';
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

    /// Moves this process there.
    pub(super) fn enter(&self) -> io::Result<()> {
        for namespace in self.namespaces() {
            rustix::thread::move_into_link_name_space(namespace, None)?;
        }
        Ok(())
    }
}

/// Starts the process and has its ids written.
pub(super) fn begin(identity: &Identity) -> Result<Begun, Failed> {
    let (talk, child_talk) = fd::pair().during("make a socket pair")?;
    let (written, done) = io::pipe().during("make a pipe")?;
    match clone::fork(Namespaces::USER, None).during("make a user namespace")? {
        Side::Child => {
            drop((talk, done));
            stand(identity, written, &child_talk)
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

/// What comes with the next word, which has to be this one.
fn hear(begun: &Begun, word: u8) -> Result<Vec<OwnedFd>, String> {
    let (mut bytes, mut said, mut descriptors) = ([0u8; 1024], Vec::new(), Vec::new());
    loop {
        let count = heard(fd::receive_with_fds(begun.talk.as_fd(), &mut bytes, &mut descriptors))?;
        said.extend_from_slice(bytes.get(..count).unwrap_or_default());
        match said.split_first() {
            Some((first, _)) if *first == word => return Ok(descriptors),
            // Why is all that follows.
            Some((&FAILED, why)) if count == 0 => return Err(String::from_utf8_lossy(why).into_owned()),
            Some((&FAILED, _)) => {}
            _ => return Err(KILLED.to_owned()),
        }
    }
}

/// The process: makes, tells, and waits until it is no longer needed.
fn stand(identity: &Identity, written: PipeReader, talk: &OwnedFd) -> ! {
    if let Err(failed) = make(identity, written, talk) {
        let mut text = vec![FAILED];
        text.extend_from_slice(chain(&failed).as_bytes());
        let _ = fd::send_all(talk.as_fd(), &text, &[]);
        clone::exit_now(125)
    }
    let _ = fd::receive_with_fds(talk.as_fd(), &mut [0u8; 1], &mut Vec::new());
    clone::exit_now(0)
}

fn make(identity: &Identity, mut written: PipeReader, talk: &OwnedFd) -> Result<(), Failed> {
    let tie = || clone::die_with_parent().during("tie the network to its keeper");
    tie()?;
    clone::unshare(Namespaces::NETWORK).during("make a network namespace")?;
    let open = |path: &str| File::open(path).during("open the namespaces");
    let (user, network) = (open("/proc/self/ns/user")?, open("/proc/self/ns/net")?);
    fd::send_all(talk.as_fd(), &[MADE], &[user.as_fd(), network.as_fd()]).during("speak to the keeper")?;
    written.read_to_end(&mut Vec::new()).during("wait for the ids")?;
    seal::become_builder(&identity.ids, &identity.user).during("become root of the sandbox")?;
    tie()?;
    let seat = seat::build(&identity.ids.group_range())
        .map_err(io::Error::other)
        .during("take a seat in the sandbox's network")?;
    fd::send_all(talk.as_fd(), &[SEAT], &seat.descriptors()).during("hand over the network seat")
}
