//! What is made before anybody has said what the machine is for, since it is the same for every sandbox. A warm machine is saved with it, so
//! that no start waits for it.

use super::{During as _, Failed, inside, orders};
use airlock_linux::{
    clone::{self, Namespaces, Side},
    fd,
};
use rustix::{
    fs::{Mode, OFlags},
    process::Pid,
};
use std::os::fd::{AsFd as _, OwnedFd};

/// The process that becomes the guest, waiting for its root.
pub(super) struct Prepared {
    pub(super) guest: Pid,
    /// The guest's link.
    pub(super) link: OwnedFd,
    /// Gives it what it waits for, hears why nothing came of it.
    pub(super) talk: OwnedFd,
}

/// The network, the control group, and the guest's process with its namespaces.
pub(super) fn make() -> Result<Prepared, Failed> {
    orders::network()?;
    let group = orders::group()?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let guest = rustix::fs::open("/guest", flags, Mode::empty()).during("open the guest")?;
    let (link, their_link) = fd::pair().during("make a socket pair")?;
    let (talk, their_talk) = fd::pair().during("make a socket pair")?;
    let forked =
        clone::fork(Namespaces::WITHIN, Some(group.as_fd())).during("make the guest's namespaces")?;
    let child = match forked {
        Side::Child => {
            drop((link, talk, group));
            inside::run(inside::Inside { guest, link: their_link, talk: their_talk })
        }
        Side::Parent(child) => child,
    };
    drop((their_link, their_talk));
    await_prepared(&talk)?;
    Ok(Prepared { guest: child.pid, link, talk })
}

/// Its first word, or why it has none.
fn await_prepared(talk: &OwnedFd) -> Result<(), Failed> {
    let mut words = [0; 512];
    let heard = rustix::io::retry_on_intr(|| rustix::io::read(talk, &mut words[..]));
    match words.get(..heard.during("hear from the guest's process")?) {
        Some([inside::PREPARED]) => Ok(()),
        other => Err(String::from_utf8_lossy(other.unwrap_or_default())).during("prepare the guest"),
    }
}
