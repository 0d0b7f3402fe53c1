//! The child's side, from its first instruction to the guest's.

use super::{
    About, During, Failed,
    launch::{FAILED, INNER, NOT_A_ROOT, NOT_COPIED, SEALED, SERVED},
    neighbour::Neighbour,
    outer::{self, Behind},
    root, seal,
};
use airlock_engine::{Confine, Plan, plan::chain};
use airlock_linux::{
    clone::{self, Namespaces},
    fd, idmap,
    mount::{self, Depth},
};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Everything that can be made before the fork.
pub(super) struct Sealing {
    seal: seal::Seal,
    disk: Option<OwnedFd>,
    entries: Vec<OwnedFd>,
    beside: Beside,
}

/// What there is besides the sandbox's programs.
#[derive(Default)]
pub(crate) struct Beside {
    /// What PID 1 finds open behind its link.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// A program in a cell of its own.
    pub(crate) neighbour: Option<Neighbour>,
}

impl Beside {
    fn behind(&self) -> Behind {
        if self.neighbour.is_some() { Behind::Machine } else { Behind::Programs }
    }
}

impl Sealing {
    pub(super) fn prepare(plan: &Plan, confine: &Confine<'_>, beside: Beside) -> Result<Sealing, Failed> {
        let disk = match &confine.disk {
            Some(disk) => Some(disk.try_clone().during("keep the bounded disk")?),
            None => None,
        };
        let entries = confine.entries.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>();
        let entries = entries.during("keep the control groups")?;
        let seal = seal::Seal::prepare(plan, confine.streams, beside.behind())?;
        Ok(Sealing { seal, disk, entries, beside })
    }
}

/// The child's ends of its sockets.
pub(super) struct Ends {
    /// To the keeper, until the guest is executed.
    pub(super) talk: OwnedFd,
    /// The guest's link.
    pub(super) link: OwnedFd,
    /// The network namespace whose wall is proven: device and inode.
    pub(super) network: (u64, u64),
}

/// Builds, seals and becomes the guest. Speaks to the keeper on `ends.talk`, which closes when the guest is executed.
pub(super) fn run(plan: &Plan, sealing: Sealing, ends: Ends) -> ! {
    let talk = ends.talk.try_clone();
    let Err(failed) = build_and_become(plan, sealing, ends);
    let mut text = vec![match failed.about {
        About::Workspace => NOT_COPIED,
        About::Image => NOT_A_ROOT,
        About::Wall | About::Ids => FAILED,
    }];
    text.extend_from_slice(chain(&failed).as_bytes());
    let _ = talk.and_then(|talk| fd::send_all(talk.as_fd(), &text, &[]));
    clone::exit_now(125)
}

enum Never {}

fn build_and_become(plan: &Plan, sealing: Sealing, ends: Ends) -> Result<Never, Failed> {
    let talk = &ends.talk;
    clone::die_with_parent().during("tie the sandbox to its keeper")?;
    for entry in &sealing.entries {
        rustix::io::write(entry, b"0").during("enter a control group")?;
    }
    // What was proven of a network holds for this process only if it is in it.
    if outer::network_here().during("look at the network")? != ends.network {
        return Err(io::Error::from(io::ErrorKind::InvalidData)).during("enter the sandbox's network");
    }
    let opened = root::Opened::open(plan, sealing.disk)?;
    let neighbour = sealing.beside.neighbour.map(Neighbour::open).transpose()?;
    let trees = receive(talk)?;
    seal::become_builder(&plan.ids, &plan.user).during("become root of the sandbox")?;
    // A change of ids undoes it (prctl(2), PR_SET_PDEATHSIG).
    clone::die_with_parent().during("tie the sandbox to its keeper")?;
    mount::make_private().during("make the mounts private")?;
    neighbour.map(|neighbour| neighbour.start(&plan.ids, &plan.user)).transpose()?;
    rustix::system::sethostname(plan.hostname.as_bytes()).during("set the host name")?;
    let guest = guest_copy(&opened.guest)?;
    let root::Built { layer, served } = root::build(plan, opened, trees)?;
    clone::unshare(Namespaces::CGROUP_AND_TIME).during("make control group and time namespaces")?;
    seal::limit_processes(plan)?;
    seal::forbid_memory_images()?;
    let inner = await_inner(talk)?;
    // The last to leave takes all mounts down: the keeper does it when nobody waits for it. So with the guest's mount, which
    // nobody is left with when the guest is executed.
    let building = File::open("/proc/self/ns/mnt").during("open the mount namespace")?;
    idmap::enter_inner(inner.as_fd()).during("enter the inner namespaces")?;
    drop(inner);
    clone::die_with_parent().during("tie the sandbox to its keeper")?;
    let terminals = root::open_terminals()?;
    sealing.seal.apply(&guest)?;
    for device in &served {
        fd::send_all(talk.as_fd(), &[SERVED], &[device.as_fd()]).during("speak to the keeper")?;
    }
    drop(served);
    let mut handed: Vec<_> = layer.iter().chain([&terminals]).map(AsFd::as_fd).collect();
    handed.extend([building.as_fd(), guest.as_fd()]);
    fd::send_all(talk.as_fd(), &[SEALED], &handed).during("speak to the keeper")?;
    drop((layer, terminals, building));
    seal::execute(guest, ends.link, sealing.beside.descriptors)
}

/// The trees of the keeper, in its order.
fn receive(talk: &OwnedFd) -> Result<VecDeque<OwnedFd>, Failed> {
    let mut count = [0u8; 1];
    let mut trees = Vec::new();
    let told = fd::receive_with_fds(talk.as_fd(), &mut count, &mut trees).during("hear from the keeper")?;
    let [count] = count;
    if told == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).during("hear from the keeper");
    }
    while trees.len() < usize::from(count) {
        let mut byte = [0u8; 1];
        if fd::receive_with_fds(talk.as_fd(), &mut byte, &mut trees).during("hear from the keeper")? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).during("hear from the keeper");
        }
    }
    Ok(trees.into())
}

/// User namespace B. Until it is there the network may have no rules; with it, the keeper has its seat and the wall is
/// proven.
fn await_inner(talk: &OwnedFd) -> Result<OwnedFd, Failed> {
    let (mut word, mut descriptors) = ([0u8; 1], Vec::new());
    fd::receive_with_fds(talk.as_fd(), &mut word, &mut descriptors).during("hear from the keeper")?;
    match (word, descriptors.pop()) {
        ([INNER], Some(inner)) => Ok(inner),
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).during("hear from the keeper"),
    }
}

/// A read-only copy of the mount the guest lies on: through `/proc/1/exe` nobody can ever open it for writing.
fn guest_copy(guest: &OwnedFd) -> Result<OwnedFd, Failed> {
    let tree =
        mount::clone_tree(guest.as_fd(), Path::new(""), Depth::One).during("copy the guest's mount")?;
    mount::restrict(tree.as_fd(), mount::Access::ReadOnly, Depth::One).during("make the guest read-only")?;
    Ok(tree)
}
