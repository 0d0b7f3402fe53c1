//! The keeper's side: fork, control groups, id-mapped trees; then wait for the child to be sealed.

use super::{
    About, During, Failed,
    child::{self, Beside},
    host, outer,
    outer::{Behind, Outer},
    porter,
};
use airlock_engine::{
    Backend, Begun, Confine, Launched, Loopback, Plan, Porter,
    doctor::explain_launch_failure,
    plan::{
        Base, Bind, Caller, Identity,
        base::Owners,
        chain,
        ids::{IDS, IMAGES_FIRST, VOLUMES_FIRST},
        places::ShownAs,
        refusal,
    },
    snapshots::Layer,
};
use airlock_images::host::Hide;
use airlock_linux::{
    clone::{self, Namespaces as Fork},
    fd, idmap,
    idmap::Extent,
    mount::{self, Depth},
    net::seat::{self, Seat},
};
use airlock_protocol::control::Refusal;
use rustix::fs::CWD;
use std::{
    cell::{OnceCell, RefCell},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// Runs sandboxes in namespaces of this kernel.
#[derive(Debug, Default)]
pub struct Namespaces;

/// What the child says when it cannot go on: this byte, then the text.
pub(super) const FAILED: u8 = b'!';
/// What is said when the keeper's seat is in the sandbox's network, and the wall is proven.
pub(super) const SEAT: u8 = b'n';
/// What the child is told with user namespace B attached.
pub(super) const INNER: u8 = b'b';
/// Why there is no word at all.
const KILLED: &str = "the process that builds the sandbox was killed";
/// What the child says for each programmable mount, with the kernel's device of it attached.
pub(super) const SERVED: u8 = b'f';
/// What the child says when the workspace cannot be copied on write: this byte, then the text.
pub(super) const NOT_COPIED: u8 = b'w';
/// What the child says when an image cannot be a root: this byte, then the text.
pub(super) const NOT_A_ROOT: u8 = b'i';
/// What the child says when it is sealed. Attached are the layer of a workspace that is copied, its devpts, and what it
/// leaves behind: the mount namespace it was built in and the guest's mount.
pub(super) const SEALED: u8 = b'.';
/// How much it leaves behind.
const LEFT: usize = 2;

impl Backend for Namespaces {
    fn begin(&self, caller: &Caller, identity: &Identity) -> Result<Begun, Refusal> {
        outer::begin(identity, Behind::Programs).map_err(|failed| unsealed(caller, &chain(&failed)))
    }

    fn launch(&self, plan: &Plan, begun: Begun, confine: Confine<'_>) -> Result<Launched, Refusal> {
        launch(plan, begun, &confine, Beside::default())
    }

    fn seal(&self, plan: &Plan, launched: &Launched) -> Result<(), Refusal> {
        let Some(talk) = launched.sealing.take() else { return Ok(()) };
        let handed =
            listen(&talk, plan.provided.len()).map_err(|(about, why)| refused_by_child(plan, about, &why))?;
        let Handed { terminals, workspace, served, left } = handed;
        launched.served.replace(served);
        launched.left.replace(left);
        launched.farewell.replace(Some(talk));
        // Nobody has set them before: there is a socket to take only once.
        let _ = launched.terminals.set(terminals);
        let _ = workspace.map(|layer| launched.workspace.set(layer));
        Ok(())
    }

    fn farewell(&self, plan: &Plan, launched: &Launched) -> Option<Refusal> {
        let talk = launched.farewell.take()?;
        let why = last_words(&talk)?;
        Some(unsealed(&plan.caller, &why))
    }

    fn furnish(&self, plan: &Plan, disk: BorrowedFd<'_>) -> io::Result<()> {
        host::furnish(plan, disk).map_err(io::Error::other)
    }
}

/// Builds the namespaces and begins to put PID 1 into them; what is `beside` it is there from then on.
pub(crate) fn launch(
    plan: &Plan,
    begun: Begun,
    confine: &Confine<'_>,
    beside: Beside,
) -> Result<Launched, Refusal> {
    let refused = |failed: Failed| unsealed(&plan.caller, &chain(&failed));
    let sealing = child::Sealing::prepare(plan, confine, beside).map_err(refused)?;
    let (talk, child_talk) = fd::pair().during("make a socket pair").map_err(refused)?;
    let (link, child_link) = fd::pair().during("make a socket pair").map_err(refused)?;
    outer::ask_for_inner(&begun, plan.bounds.pids.value);
    let outer = outer::spaces(&begun).map_err(|why| unsealed(&plan.caller, &why))?;
    let network = outer.network_identity().during("look at the network").map_err(refused)?;
    if begun.ids.is_done() {
        // The child finds them when it is born.
        hand_trees(plan, &outer, &talk)?;
    }
    let ends = child::Ends { talk: child_talk, link: child_link, network };
    let mut ours = Some((talk, link));
    let child = || {
        // Whoever waits for the keeper must hear of its end.
        drop(ours.take());
        child::run(plan, sealing, ends)
    };
    let init = clone::fork_into(outer.namespaces(), Fork::WITHIN, confine.cgroup, child)
        .during("make the sandbox's namespaces")
        .map_err(refused)?;
    // What the child drops is dropped in its own memory.
    let Some((talk, link)) = ours else { return Err(unsealed(&plan.caller, KILLED)) };
    match finish(plan, begun, &outer, &talk) {
        Ok((seat, porter)) => {
            let outer = outer.user().try_clone_to_owned().ok();
            Ok(Launched {
                init,
                link,
                terminals: OnceCell::new(),
                workspace: OnceCell::new(),
                served: RefCell::default(),
                sealing: RefCell::new(Some(talk)),
                farewell: RefCell::default(),
                left: RefCell::default(),
                seat: Some(seat),
                outer,
                porter,
                monitor: None,
            })
        }
        Err(refusal) => {
            let _ = init.kill();
            let _ = init.wait();
            // A child that gave up before it had heard all of us has said why: that is the cause.
            match listen(&talk, plan.provided.len()) {
                Err((about, why)) if why != KILLED => Err(refused_by_child(plan, about, &why)),
                _ => Err(refusal),
            }
        }
    }
}

/// What the child says, in words.
fn refused_by_child(plan: &Plan, about: About, why: &str) -> Refusal {
    match about {
        About::Wall | About::Ids => unsealed(&plan.caller, why),
        About::Workspace => not_copied(why),
        About::Image => not_a_root(why),
    }
}

/// Why no wall could be built: what this host is known to forbid, else what the kernel said.
pub(crate) fn unsealed(caller: &Caller, why: &str) -> Refusal {
    match explain_launch_failure(caller) {
        Some(known) => refusal(125, &known.what, Some(&known.why), Some(&known.fix)),
        None => refusal(125, "this sandbox cannot be sealed", Some(why), Some("airlock doctor")),
    }
}

/// Why a workspace could not be copied on write.
fn not_copied(why: &str) -> Refusal {
    let fix =
        "--workspace rw (writes go to the host), ro or none; or keep sandboxes elsewhere (AIRLOCK_HOME)";
    refusal(125, "this workspace cannot be copied on write", Some(why), Some(fix))
}

/// Why an image could not be a root.
fn not_a_root(why: &str) -> Refusal {
    let fix = "take another image, or another path inside for what is mounted";
    refusal(125, "this image cannot be the root of a sandbox", Some(why), Some(fix))
}

/// Why a path of the host could not be shown.
fn not_shifted(why: &str) -> Refusal {
    let what = "the workspace or a mount is on a file system that cannot show shifted ids";
    let fix = "run airlock as the owner of the directory, not as root; or move it to a file system such as ext4 or xfs";
    refusal(125, what, Some(why), Some(fix))
}

/// What the child hands over when it is sealed.
struct Handed {
    /// Its devpts.
    terminals: OwnedFd,
    /// What holds the changes of a workspace that is copied.
    workspace: Option<OwnedFd>,
    /// The devices of its programmable mounts.
    served: Vec<OwnedFd>,
    /// The mount namespace it was built in, and the guest's mount.
    left: Vec<OwnedFd>,
}

/// Gives the child what only the keeper can give.
fn finish(
    plan: &Plan,
    mut begun: Begun,
    outer: &Outer,
    talk: &OwnedFd,
) -> Result<(Seat, Option<Porter>), Refusal> {
    let unsealed = |why: String| unsealed(&plan.caller, &why);
    let failed = |failed: Failed| unsealed(chain(&failed));
    if !begun.ids.is_done() {
        std::mem::take(&mut begun.ids).finish().map_err(|err| unsealed(chain(&err)))?;
        hand_trees(plan, outer, talk)?;
    }
    let mut porter = match plan.publish.is_empty() {
        true => None,
        false => Some(porter::start(outer).map_err(failed)?),
    };
    let seat = outer::seat(&begun).map_err(unsealed)?;
    if let (Some(porter), Some(_)) = (&mut porter, &seat.tap) {
        porter.loopback = Loopback::Machine;
    }
    seat::witness(&seat).map_err(|err| unsealed(chain(&err)))?;
    let inner = outer::inner(&begun).map_err(unsealed)?;
    fd::send_all(talk.as_fd(), &[INNER], &[inner.as_fd()]).during("speak to the child").map_err(failed)?;
    // PID 1 is in both namespaces now, and busy building.
    drop(begun);
    Ok((seat, porter))
}

/// Gives the child the trees whose ids are shifted. The ids have to be written.
fn hand_trees(plan: &Plan, outer: &Outer, talk: &OwnedFd) -> Result<(), Refusal> {
    let failed = |failed: Failed| unsealed(&plan.caller, &chain(&failed));
    let trees = trees(plan, outer.user()).map_err(|err| match err.about {
        About::Ids => not_shifted(&chain(&err)),
        _ => failed(err),
    })?;
    let trees: Vec<BorrowedFd<'_>> = trees.iter().map(AsFd::as_fd).collect();
    send(talk, &trees).map_err(failed)
}

/// As host root, the trees whose ids are shifted: one for each layer below the sandbox's disk, one for each tree of an image, two for each part of the image (hidden entries, the host's own),
/// one for each bind. The child attaches them in this order.
fn trees(plan: &Plan, shifted: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failed> {
    if !plan.caller.is_root() {
        return Ok(Vec::new());
    }
    let mut trees = Vec::new();
    for layer in &plan.layers {
        trees.push(shifted_layer(plan, layer)?);
    }
    trees.extend(image_trees(plan, shifted)?);
    for tree in &plan.image.trees {
        if let Hide::Layer(layer) = &tree.hide {
            trees.push(mapped_tree(CWD, layer, shifted)?);
        }
        trees.push(mapped_tree(CWD, &tree.source, shifted)?);
    }
    for bind in &plan.binds {
        if bind.shown_as == ShownAs::Volume {
            trees.push(volume_tree(plan, bind)?);
            continue;
        }
        let (user, group) = (plan.user.uid, plan.user.gid);
        if bind.owner == (0, 0) && (user, group) == (0, 0) {
            trees.push(mapped_bind(bind, shifted)?);
            continue;
        }
        let extent =
            |inside: u32, outside: Option<u32>| Extent { inside, outside: outside.unwrap_or(0), count: 1 };
        let users = extent(bind.owner.0, plan.ids.user_outside(user));
        let groups = extent(bind.owner.1, plan.ids.group_outside(group));
        let owner = idmap::namespace_with(users, groups)
            .map_err(io::Error::other)
            .during("map the workspace's owner to the user inside")?;
        trees.push(mapped_bind(bind, owner.as_fd())?);
    }
    Ok(trees)
}

/// A path of the host, which may lie on a file system that knows no shifted ids.
fn mapped_bind(bind: &Bind, ids: BorrowedFd<'_>) -> Result<OwnedFd, Failed> {
    let step = format!("show {} with shifted ids", bind.host.display());
    shift(bind.source.as_fd(), Path::new(""), ids).during(&step).map_err(Failed::of_ids)
}

/// A volume's files have ids of a range that is nobody's; inside they are those of the sandbox.
fn volume_tree(plan: &Plan, bind: &Bind) -> Result<OwnedFd, Failed> {
    let ids = range_ids(plan, VOLUMES_FIRST)?;
    mapped_tree(bind.source.as_fd(), Path::new(""), ids.as_fd())
}

/// Maps a range of the host that begins with `first` to the sandbox's.
fn range_ids(plan: &Plan, first: u32) -> Result<OwnedFd, Failed> {
    let extent =
        |outside: Option<u32>| Extent { inside: first, outside: outside.unwrap_or(first), count: IDS };
    idmap::namespace_with(extent(plan.ids.user_outside(0)), extent(plan.ids.group_outside(0)))
        .map_err(io::Error::other)
        .during("map the ids of a volume or an image to those inside")
}

/// The trees of an image, whose files have ids of a range that is nobody's; those of a directory have the host's.
fn image_trees(plan: &Plan, shifted: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failed> {
    let Base::Layers(lower) = &plan.base else { return Ok(Vec::new()) };
    let of_images = match lower.iter().any(|lower| lower.owners == Owners::Images) {
        true => Some(range_ids(plan, IMAGES_FIRST)?),
        false => None,
    };
    let mut trees = Vec::new();
    for lower in lower {
        let of_images = of_images.as_ref().map(AsFd::as_fd).filter(|_| lower.owners == Owners::Images);
        trees.push(mapped_tree(CWD, &lower.tree, of_images.unwrap_or(shifted))?);
    }
    Ok(trees)
}

/// A layer that was written with the ids of one sandbox, as another one sees it.
fn shifted_layer(plan: &Plan, layer: &Layer) -> Result<OwnedFd, Failed> {
    let step = "show a layer with this sandbox's ids";
    let shift = |from: &[Extent], to: &[Extent]| match (from, to) {
        ([from], [to]) if from.inside == to.inside && from.count == to.count => {
            Ok(Extent { inside: from.outside, outside: to.outside, count: to.count })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it was written with other ids")),
    };
    let users = shift(&layer.ids.users, &plan.ids.users).during(step)?;
    let groups = shift(&layer.ids.groups, &plan.ids.groups).during(step)?;
    let ids = idmap::namespace_with(users, groups).map_err(io::Error::other).during(step)?;
    mapped_tree(CWD, &layer.disk, ids.as_fd())
}

fn mapped_tree(dir: BorrowedFd<'_>, path: &Path, ids: BorrowedFd<'_>) -> Result<OwnedFd, Failed> {
    shift(dir, path, ids).during(&format!("show {} with shifted ids", path.display()))
}

fn shift(dir: BorrowedFd<'_>, path: &Path, ids: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let tree = mount::clone_tree(dir, path, Depth::One)?;
    mount::map_ids(tree.as_fd(), ids, Depth::One)?;
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

/// How much was heard. Whoever ended without having heard us out has still said why.
pub(super) fn heard(received: io::Result<usize>) -> Result<usize, String> {
    match received {
        Err(err) if err.kind() == io::ErrorKind::ConnectionReset => Ok(0),
        other => other.map_err(|err| err.to_string()),
    }
}

/// Waits until the child says that it is sealed. It is still our own code that speaks; the guest comes after it.
fn listen(talk: &OwnedFd, mounts: usize) -> Result<Handed, (About, String)> {
    let mut bytes = [0u8; 1024];
    let mut said = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        let count = heard(fd::receive_with_fds(talk.as_fd(), &mut bytes, &mut descriptors))
            .map_err(|why| (About::Wall, why))?;
        if count == 0 {
            break;
        }
        said.extend_from_slice(bytes.get(..count).unwrap_or_default());
        if said.get(mounts) == Some(&SEALED) {
            break;
        }
    }
    let why = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let told = said.iter().take(mounts).take_while(|word| **word == SERVED).count();
    if told == mounts && descriptors.len() > mounts {
        said.drain(..mounts);
        let rest = descriptors.split_off(mounts);
        return last_word(&said, descriptors, rest);
    }
    match said.iter().position(|word| *word != SERVED).and_then(|at| said.get(at..)) {
        Some([NOT_COPIED, text @ ..]) => Err((About::Workspace, why(text))),
        Some([NOT_A_ROOT, text @ ..]) => Err((About::Image, why(text))),
        Some([FAILED, text @ ..]) => Err((About::Wall, why(text))),
        _ => Err((About::Wall, KILLED.to_owned())),
    }
}

/// What it says behind the words about its mounts.
fn last_word(
    said: &[u8],
    served: Vec<OwnedFd>,
    mut descriptors: Vec<OwnedFd>,
) -> Result<Handed, (About, String)> {
    let why = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let left = descriptors.split_off(descriptors.len().saturating_sub(LEFT));
    match (said, descriptors.pop()) {
        ([SEALED], Some(terminals)) if left.len() == LEFT => {
            Ok(Handed { terminals, workspace: descriptors.pop(), served, left })
        }
        ([SEALED, FAILED, text @ ..] | [FAILED, text @ ..], _) => Err((About::Wall, why(text))),
        _ => Err((About::Wall, KILLED.to_owned())),
    }
}

/// What the child said behind its being sealed: why it could not become the guest.
fn last_words(talk: &OwnedFd) -> Option<String> {
    let (mut bytes, mut said) = ([0u8; 1024], Vec::new());
    loop {
        match heard(fd::receive_with_fds(talk.as_fd(), &mut bytes, &mut Vec::new())) {
            Ok(count) if count > 0 => said.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            _ => break,
        }
    }
    match said.as_slice() {
        [FAILED, text @ ..] => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// What the keeper has of the talk with a child that said this, handed over so many descriptors, and is gone.
    fn after(said: &[u8], count: usize) -> OwnedFd {
        let (ours, theirs) = fd::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        let handed: Vec<BorrowedFd<'_>> = (0..count).map(|_| null.as_fd()).collect();
        fd::send_all(theirs.as_fd(), said, &handed).unwrap();
        ours
    }

    #[test]
    fn who_is_sealed_and_cannot_become_the_guest_is_heard_at_its_farewell() {
        let (ours, theirs) = fd::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        fd::send_all(theirs.as_fd(), &[SEALED], &[null.as_fd(); 4]).unwrap();

        let handed = listen(&ours, 0).ok().unwrap();
        fd::send_all(theirs.as_fd(), b"!could not execute the guest", &[]).unwrap();
        drop(theirs);

        assert_eq!((handed.left.len(), handed.workspace.is_some(), handed.served.len()), (LEFT, true, 0));
        assert_eq!(last_words(&ours).as_deref(), Some("could not execute the guest"));
    }

    #[test]
    fn who_became_the_guest_has_no_last_words() {
        let ours = after(&[SEALED], 3);
        let handed = listen(&ours, 0).ok().unwrap();

        assert!(handed.workspace.is_none());
        assert_eq!(last_words(&ours), None);
    }

    #[test]
    fn what_is_said_in_one_breath_with_being_sealed_counts_more() {
        let ours = after(b".!could not execute the guest", 3);

        let told = listen(&ours, 0).map(|_| ()).map_err(|(_, why)| why);

        assert_eq!(told, Err("could not execute the guest".to_owned()));
    }

    #[test]
    fn who_hands_over_too_little_is_not_sealed() {
        for count in 0..3 {
            let told = listen(&after(&[SEALED], count), 0).map(|_| ()).map_err(|(_, why)| why);

            assert_eq!(told, Err(KILLED.to_owned()), "{count}");
        }
    }
}
