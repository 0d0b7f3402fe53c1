//! A process of the keeper's that enters a running sandbox to change its mounts, and ends.
//!
//! It takes what it needs of the host first, enters user namespace A, then the mount namespace that the programs are in. It
//! executes nothing there, and makes mount points as the sandbox's own root would.

use super::{During, Failed};
use airlock_engine::{
    inside::{Done, Ids, Order, What},
    plan::chain,
};
use airlock_linux::{
    clone::{self, Namespaces},
    fd, fuse, idmap,
    idmap::Extent,
    mount::{self, Access, Depth},
    spawn,
};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags},
    mount::UnmountFlags,
    thread::{LinkNameSpaceType, ThreadNameSpaceType},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Most bytes of an order.
const MOST_SAID: usize = 64 << 10;
/// `STATX_MNT_ID_UNIQUE`: a number that is never used again.
const UNIQUE: u32 = 0x4000;

/// Does what it hears on `socket`, and says what came of it.
pub fn perform(socket: &OwnedFd) -> io::Result<()> {
    let mut device = None;
    let done = match obey(socket, &mut device) {
        Ok(done) => done,
        Err(failed) => Done::Failed(chain(&failed)),
    };
    let text = serde_json::to_vec(&done)?;
    let device: Vec<_> = device.iter().map(AsFd::as_fd).collect();
    fd::send_all(socket.as_fd(), &text, &device)
}

fn obey(socket: &OwnedFd, device: &mut Option<OwnedFd>) -> Result<Done, Failed> {
    clone::die_with_parent().during("tie this process to its keeper")?;
    let (order, descriptors) = hear(socket)?;
    let [outer, init] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        .during("take the sandbox's namespaces")?;
    let tree = match &order.what {
        What::Bind { .. } => Some(host_tree(&order.what, &outer)?),
        What::Serve { .. } | What::Unmount { .. } => {
            enter_outer(&outer)?;
            None
        }
    };
    if matches!(order.what, What::Serve { .. }) {
        // Before the ids change: on some hosts only root may open it.
        *device = Some(fuse::open_device().during("open /dev/fuse")?);
    }
    rustix::thread::move_into_thread_name_spaces(init.as_fd(), ThreadNameSpaceType::MOUNT)
        .during("enter the sandbox's mounts")?;
    let (user, group) = order.builder;
    spawn::become_user(user, group, &[]).during("become root of the sandbox")?;
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .during("open the sandbox's root")?;
    act(&order.what, &root, tree, device.as_ref())
}

fn hear(socket: &OwnedFd) -> Result<(Order, Vec<OwnedFd>), Failed> {
    let (mut said, mut descriptors, mut bytes) = (Vec::new(), Vec::new(), [0u8; 4096]);
    loop {
        let heard = fd::receive_with_fds(socket.as_fd(), &mut bytes, &mut descriptors);
        let count = heard.during("hear from the keeper")?;
        said.extend_from_slice(bytes.get(..count).unwrap_or_default());
        if count == 0 || said.len() > MOST_SAID {
            let order =
                serde_json::from_slice(&said).map_err(io::Error::from).during("understand the keeper")?;
            return Ok((order, descriptors));
        }
    }
}

/// A copy of a path of the host, attached nowhere, with the sandbox's ids; this process is in A then.
fn host_tree(what: &What, outer: &OwnedFd) -> Result<OwnedFd, Failed> {
    let What::Bind { host, identity, is_read_only, ids, .. } = what else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput)).during("find what is to be shown");
    };
    let step = format!("show {}", host.display());
    let access = if *is_read_only { Access::ReadOnly } else { Access::ReadWrite };
    let tree = match ids {
        Some(ids) => {
            let place = open_same(host, *identity, &step)?;
            let tree = mount::clone_tree(place.as_fd(), Path::new(""), Depth::One).during(&step)?;
            map_ids(&tree, *ids, outer).during(&step)?;
            // In A there is no power over mounts of the host any more.
            mount::restrict(tree.as_fd(), access, Depth::One).during(&step)?;
            enter_outer(outer)?;
            tree
        }
        None => {
            enter_outer(outer)?;
            // Mounts can be copied only in a mount namespace of A's own.
            clone::unshare(Namespaces::MOUNT).during(&step)?;
            mount::make_private().during(&step)?;
            let place = open_same(host, *identity, &step)?;
            let tree = mount::clone_tree(place.as_fd(), Path::new(""), Depth::Recursive).during(&step)?;
            mount::restrict(tree.as_fd(), access, Depth::Recursive).during(&step)?;
            tree
        }
    };
    Ok(tree)
}

fn map_ids(tree: &OwnedFd, ids: Ids, outer: &OwnedFd) -> io::Result<()> {
    match ids {
        Ids::Shifted => mount::map_ids(tree.as_fd(), outer.as_fd(), Depth::One),
        Ids::One { user, group } => {
            let extent = |(inside, outside): (u32, u32)| Extent { inside, outside, count: 1 };
            let owner = idmap::namespace_with(extent(user), extent(group)).map_err(io::Error::other)?;
            mount::map_ids(tree.as_fd(), owner.as_fd(), Depth::One)
        }
    }
}

fn enter_outer(outer: &OwnedFd) -> Result<(), Failed> {
    rustix::thread::move_into_link_name_space(outer.as_fd(), Some(LinkNameSpaceType::User))
        .during("enter the sandbox's user namespace")
}

/// What the keeper checked, and nothing that was put in its place since.
fn open_same(host: &Path, identity: (u64, u64), step: &str) -> Result<OwnedFd, Failed> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place = rustix::fs::openat2(CWD, host, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        .during(step)?;
    let stat = rustix::fs::fstat(&place).during(step)?;
    if (stat.st_dev, stat.st_ino) != identity {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it was replaced meanwhile")).during(step);
    }
    Ok(place)
}

/// In the sandbox's mounts.
fn act(what: &What, root: &OwnedFd, tree: Option<OwnedFd>, device: Option<&OwnedFd>) -> Result<Done, Failed> {
    let (tree, target) = match (what, tree, device) {
        (What::Bind { target, is_directory, .. }, Some(tree), _) => {
            let step = format!("make a place at {}", target.display());
            let place = match is_directory {
                true => mount::make_dir(root.as_fd(), target),
                false => mount::make_file(root.as_fd(), target),
            };
            (tree, place.during(&step)?)
        }
        (What::Serve { target, owner }, _, Some(device)) => {
            let step = format!("mount {}", target.display());
            let tree = fuse::mount(device.as_fd(), *owner).during(&step)?;
            (tree, mount::make_dir(root.as_fd(), target).during(&step)?)
        }
        (What::Unmount { target, mount }, _, _) => return unmount(root, target, *mount),
        _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)).during("find what is to be shown"),
    };
    mount::attach(tree.as_fd(), target.as_fd()).during("attach it")?;
    Ok(Done::Mounted(number(&tree).during("learn its number")?))
}

/// Only the very mount that was made before.
fn unmount(root: &OwnedFd, target: &Path, mount: u64) -> Result<Done, Failed> {
    let step = format!("unmount {}", target.display());
    let inside = target.strip_prefix("/").unwrap_or(target);
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::openat2(root, inside, flags, Mode::empty(), resolve).during(&step)?;
    if number(&place).during(&step)? != mount {
        return Err(io::Error::new(io::ErrorKind::NotFound, "something else lies there now")).during(&step);
    }
    if rustix::process::fchdir(&place).is_ok() {
        rustix::mount::unmount(".", UnmountFlags::DETACH).during(&step)?;
    } else {
        // A file; its name cannot come to mean another one while it is mounted on.
        let parent = inside.parent().unwrap_or(Path::new(""));
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = rustix::fs::openat2(root, parent, flags, Mode::empty(), resolve).during(&step)?;
        rustix::process::fchdir(&parent).during(&step)?;
        let name = inside.file_name().ok_or(io::ErrorKind::InvalidInput).during(&step)?;
        rustix::mount::unmount(name, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).during(&step)?;
    }
    Ok(Done::Unmounted)
}

fn number(place: &OwnedFd) -> io::Result<u64> {
    let wanted = StatxFlags::from_bits_retain(UNIQUE);
    Ok(rustix::fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, wanted)?.stx_mnt_id)
}
