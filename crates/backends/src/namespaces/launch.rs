//! The keeper's side: fork, ids, control groups, id-mapped trees; then wait for the child to be sealed.

use super::{During, Failed, child, porter, root};
use airlock_engine::{
    Backend, Confine, Launched, Plan, Porter,
    doctor::explain_launch_failure,
    plan::{chain, refusal},
};
use airlock_images::host::Hide;
use airlock_linux::{
    clone::{self, Child, Namespaces as Fork, Side},
    fd, idmap,
    idmap::Extent,
    mount::{self, Depth},
    net::seat::{self, Seat},
};
use airlock_protocol::control::Refusal;
use rustix::{
    fs::CWD,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// Runs sandboxes in namespaces of this kernel.
#[derive(Debug, Default)]
pub struct Namespaces;

/// What the child says when it cannot go on: this byte, then the text.
pub(super) const FAILED: u8 = b'!';
/// What the helper says with the seat attached.
const SEAT: u8 = b'n';
/// Why there is no word at all.
const KILLED: &str = "the process that builds the sandbox was killed";
/// What the child says with its devpts attached when it is sealed.
pub(super) const SEALED: u8 = b'.';

/// What PID 1 says when it has made B, and what it hears when B has its ids.
pub(super) const UNSHARED: u8 = b'u';
/// See [`UNSHARED`].
pub(super) const WRITTEN: u8 = b'w';

impl Backend for Namespaces {
    fn launch(&self, plan: &Plan, confine: Confine<'_>) -> Result<Launched, Refusal> {
        let refused = |failed: Failed| unsealed(plan, &chain(&failed));
        let sealing = child::Sealing::prepare(plan, &confine).map_err(refused)?;
        let (talk, child_talk) = fd::pair().during("make a socket pair").map_err(refused)?;
        let (link, child_link) = fd::pair().during("make a socket pair").map_err(refused)?;
        let (ids, child_ids) = fd::pair().during("make a socket pair").map_err(refused)?;
        let forked = clone::fork(Fork::SANDBOX, confine.cgroup).during("make user and other namespaces");
        let init = match forked.map_err(refused)? {
            Side::Child => {
                // Whoever waits for the keeper or its helper must hear of their end.
                drop((talk, link, ids));
                let ends = child::Ends { talk: child_talk, link: child_link, ids: child_ids };
                child::run(plan, sealing, ends)
            }
            Side::Parent(init) => init,
        };
        drop((child_talk, child_link, child_ids));
        let built = finish(plan, &init, &talk, ids);
        match built {
            Ok((terminals, seat, porter)) => {
                Ok(Launched { init, link, terminals: Some(terminals), seat: Some(seat), porter })
            }
            Err(refusal) => {
                let _ = init.kill();
                let _ = init.wait();
                Err(refusal)
            }
        }
    }

    fn furnish(&self, plan: &Plan, disk: BorrowedFd<'_>) -> io::Result<()> {
        root::furnish(plan, disk).map_err(io::Error::other)
    }
}

/// Why no wall could be built: what this host is known to forbid, else what the kernel said.
fn unsealed(plan: &Plan, why: &str) -> Refusal {
    match explain_launch_failure(&plan.caller) {
        Some(known) => refusal(125, &known.what, Some(&known.why), Some(&known.fix)),
        None => refusal(125, "this sandbox cannot be sealed", Some(why), Some("airlock doctor")),
    }
}

/// Gives the child what only the keeper can give, and waits until it is sealed.
fn finish(
    plan: &Plan,
    init: &Child,
    talk: &OwnedFd,
    ids: OwnedFd,
) -> Result<(OwnedFd, Seat, Option<Porter>), Refusal> {
    let unsealed = |why: String| unsealed(plan, &why);
    let failed = |failed: Failed| unsealed(chain(&failed));
    plan.ids.write(init.pid).map_err(|err| unsealed(chain(&err)))?;
    // Opened while PID 1 waits for its trees: later it is in B.
    let spaces = Spaces::open(init).map_err(failed)?;
    let trees = trees(plan, init).map_err(failed)?;
    let trees: Vec<BorrowedFd<'_>> = trees.iter().map(AsFd::as_fd).collect();
    send(talk, &trees).map_err(failed)?;
    let (news, helper_news) = fd::pair().during("make a socket pair").map_err(failed)?;
    let helper = helper(plan, (init, &spaces), &ids, &helper_news).map_err(failed)?;
    let porter = match plan.publish.is_empty() {
        true => None,
        false => Some(porter::start(&spaces).map_err(failed)?),
    };
    // Whoever waits for the helper hears of its end.
    drop((ids, helper_news));
    let sealed = listen(talk);
    // It has done its work, or never will.
    let _ = helper.kill();
    let _ = helper.wait();
    // If there is no seat, that is why there is nothing else.
    let seat = match (hear_seat(&news), &sealed) {
        (Ok(seat), _) => seat,
        (Err(None), Err(why)) => return Err(unsealed(why.clone())),
        (Err(why), _) => return Err(unsealed(why.unwrap_or_else(|| KILLED.to_owned()))),
    };
    let terminals = sealed.map_err(unsealed)?;
    seat::witness(&seat).map_err(|err| unsealed(chain(&err)))?;
    Ok((terminals, seat, porter))
}

/// User namespace A and the network namespace that belongs to it.
pub(super) struct Spaces {
    user: OwnedFd,
    network: OwnedFd,
}

impl Spaces {
    fn open(init: &Child) -> Result<Spaces, Failed> {
        let user = idmap::open_user_namespace(init.pid).during("open the sandbox's user namespace")?;
        let network = fs::File::open(format!("/proc/{}/ns/net", init.pid.as_raw_nonzero()))
            .during("open the sandbox's network namespace")?;
        Ok(Spaces { user, network: network.into() })
    }

    /// Moves this process there.
    pub(super) fn enter(&self) -> Result<(), Failed> {
        move_into_link_name_space(self.user.as_fd(), Some(LinkNameSpaceType::User))
            .and_then(|()| move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network)))
            .during("enter the sandbox's network namespace")
    }
}

/// A process in user namespace A and network namespace N that builds the seat, then writes the ids of B once PID 1 has
/// made it. All this while PID 1 is busy building the root, so that nobody waits for it.
fn helper(
    plan: &Plan,
    (init, spaces): (&Child, &Spaces),
    ids: &OwnedFd,
    news: &OwnedFd,
) -> Result<Child, Failed> {
    match clone::fork(Fork::NONE, None).during("fork the helper")? {
        Side::Parent(helper) => Ok(helper),
        Side::Child => {
            let _ = clone::die_with_parent();
            let said = match build_seat(plan, spaces) {
                Ok(seat) => fd::send_all(news.as_fd(), &[SEAT], &seat.descriptors()).is_ok(),
                Err(failed) => {
                    let text = [&[FAILED], chain(&failed).as_bytes()].concat();
                    let _ = fd::send_all(news.as_fd(), &text, &[]);
                    false
                }
            };
            let mut byte = [0u8; 1];
            let told = fd::receive_with_fds(ids.as_fd(), &mut byte, &mut Vec::new());
            let ready = said && told.is_ok_and(|count| count == 1) && byte == [UNSHARED];
            if ready && plan.ids.repeated().write(init.pid).is_ok() {
                let _ = fd::send_all(ids.as_fd(), &[WRITTEN], &[]);
            }
            clone::exit_now(0)
        }
    }
}

fn build_seat(plan: &Plan, spaces: &Spaces) -> Result<Seat, Failed> {
    spaces.enter()?;
    seat::build(&plan.ids.group_range())
        .map_err(io::Error::other)
        .during("take a seat in the sandbox's network")
}

/// What the helper said: the seat, why there is none, or nothing.
fn hear_seat(news: &OwnedFd) -> Result<Seat, Option<String>> {
    let (mut bytes, mut descriptors) = ([0u8; 1024], Vec::new());
    let count = fd::receive_with_fds(news.as_fd(), &mut bytes, &mut descriptors).unwrap_or(0);
    match bytes.get(..count).and_then(<[u8]>::split_first) {
        Some((&FAILED, why)) => Err(Some(String::from_utf8_lossy(why).into_owned())),
        Some((&SEAT, _)) => Seat::from_descriptors(descriptors).ok_or(None),
        _ => Err(None),
    }
}

/// As host root, the trees whose ids are shifted: two for each part of the image (hidden entries, the host's own),
/// one for each bind. The child attaches them in this order.
fn trees(plan: &Plan, init: &Child) -> Result<Vec<OwnedFd>, Failed> {
    if !plan.caller.is_root() {
        return Ok(Vec::new());
    }
    let shifted = idmap::open_user_namespace(init.pid).during("open the sandbox's user namespace")?;
    let mut trees = Vec::new();
    for tree in &plan.image.trees {
        if let Hide::Layer(layer) = &tree.hide {
            trees.push(mapped_tree(CWD, layer, shifted.as_fd())?);
        }
        trees.push(mapped_tree(CWD, &tree.source, shifted.as_fd())?);
    }
    for bind in &plan.binds {
        let (user, group) = (plan.user.uid, plan.user.gid);
        if bind.owner == (0, 0) && (user, group) == (0, 0) {
            trees.push(mapped_tree(bind.source.as_fd(), Path::new(""), shifted.as_fd())?);
            continue;
        }
        let extent =
            |inside: u32, outside: Option<u32>| Extent { inside, outside: outside.unwrap_or(0), count: 1 };
        let users = extent(bind.owner.0, plan.ids.user_outside(user));
        let groups = extent(bind.owner.1, plan.ids.group_outside(group));
        let owner = idmap::namespace_with(users, groups)
            .map_err(io::Error::other)
            .during("map the workspace's owner to the user inside")?;
        trees.push(mapped_tree(bind.source.as_fd(), Path::new(""), owner.as_fd())?);
    }
    Ok(trees)
}

fn mapped_tree(dir: BorrowedFd<'_>, path: &Path, ids: BorrowedFd<'_>) -> Result<OwnedFd, Failed> {
    let step = || format!("show {} with shifted ids", path.display());
    let tree = mount::clone_tree(dir, path, Depth::One).during(&step())?;
    mount::map_ids(tree.as_fd(), ids, Depth::One).during(&step())?;
    Ok(tree)
}

/// The number of trees, then the trees, a few with each message.
fn send(talk: &OwnedFd, trees: &[BorrowedFd<'_>]) -> Result<(), Failed> {
    let count = u8::try_from(trees.len()).map_err(io::Error::other).during("count the trees")?;
    fd::send_all(talk.as_fd(), &[count], &[]).during("speak to the child")?;
    for some in trees.chunks(fd::MOST) {
        fd::send_all(talk.as_fd(), b"t", some).during("speak to the child")?;
    }
    Ok(())
}

/// Waits for the child's last word. It is still our own code that speaks; the guest comes after it.
fn listen(talk: &OwnedFd) -> Result<OwnedFd, String> {
    let mut bytes = [0u8; 1024];
    let mut said = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        let count = fd::receive_with_fds(talk.as_fd(), &mut bytes, &mut descriptors)
            .map_err(|err| err.to_string())?;
        if count == 0 {
            break;
        }
        said.extend_from_slice(bytes.get(..count).unwrap_or_default());
    }
    let failed = said.iter().position(|byte| *byte == FAILED);
    match (failed, said.first(), descriptors.pop()) {
        (Some(at), _, _) => Err(String::from_utf8_lossy(said.get(at + 1..).unwrap_or_default()).into_owned()),
        (None, Some(&SEALED), Some(terminals)) => Ok(terminals),
        _ => Err(KILLED.to_owned()),
    }
}
