//! What a sandbox wrote, as a layer.

use super::{
    layers::{self, Chain, Guard, Making},
    refused,
};
use crate::{
    plan::{chain, ids, refusal},
    store::{self, Lock, Sandbox},
};
use airlock_files::{layers::copy::copy, within};
use airlock_linux::{disk, idmap::IdMap};
use airlock_protocol::{
    control::Refusal,
    spec::{DiskBy, Spec},
};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// Turns the disk of a sandbox that does not run into a layer below a fresh one: one rename, whatever its size. Gives
/// the sandbox's layers from now on. What could not be renamed is to be [`copied`] instead: `None`.
pub fn settle(sandbox: &Sandbox, _lock: &Lock, guard: &Guard) -> Result<Option<Chain>, Refusal> {
    let mut chain = sandbox.chain().map_err(|err| refused(&err))?;
    if !sandbox.disk().exists() {
        return Ok(Some(chain));
    }
    let spec = sandbox.spec().map_err(|err| refused(&err))?;
    refuse_machines_disk(&spec)?;
    if is_bounded(&spec) {
        return Ok(None);
    }
    refuse_depth(&chain)?;
    let state = sandbox.state().map_err(|err| refused(&err))?;
    let id = guard.add(&ids::of_told(&state.id_map, &state.group_map))?;
    push(&mut chain, id.clone());
    sandbox.write_chain(&chain).map_err(|err| refused(&err))?;
    let to = layers::folder(guard.store()).join(id.as_str()).join("disk");
    fs::rename(sandbox.disk(), &to).map_err(|err| refused(&store::failed("move", &sandbox.disk())(err)))?;
    Ok(Some(chain))
}

/// Copies what a sandbox wrote, which stands still meanwhile: it is stopped, or frozen. `held` is the bounded disk of one that runs, as its
/// keeper has it.
pub fn copied(
    sandbox: &Sandbox,
    held: Option<OwnedFd>,
    progress: &mut dyn FnMut(u64),
) -> Result<Making, Refusal> {
    let chain_now = sandbox.chain().map_err(|err| refused(&err))?;
    refuse_depth(&chain_now)?;
    let (spec, state) =
        (sandbox.spec().map_err(|err| refused(&err))?, sandbox.state().map_err(|err| refused(&err))?);
    refuse_machines_disk(&spec)?;
    let disk = match held {
        Some(disk) => open_held(&disk)?,
        None => open_disk(sandbox, &spec, state.status.is_live())?,
    };
    let ids = ids::of_told(&state.id_map, &state.group_map);
    let making = Making::begin(sandbox.store(), &ids)?;
    let what = "the sandbox's files could not be copied";
    let open = |path: &Path| open_dir(path).map_err(|err| refusal(125, what, Some(&err.to_string()), None));
    let (to, links) = (open(&making.disk())?, open(&making.links())?);
    let done = within::run(&ids, progress, |progress| {
        copy_parts(&disk, &to, &links, progress).map_err(|err| chain(&err))
    });
    match done {
        Ok(()) => Ok(making),
        Err(err) => {
            making.abandon();
            Err(refusal(125, what, Some(&chain(&err)), None))
        }
    }
}

/// The disks that hold what a sandbox wrote, with their ids, topmost first: its own and the layers below it. It stands still
/// meanwhile: it is stopped, or frozen. `held` is the bounded disk of one that runs, as its keeper has it.
pub fn written(sandbox: &Sandbox, held: Option<OwnedFd>) -> Result<Vec<(OwnedFd, IdMap)>, Refusal> {
    let (spec, state) =
        (sandbox.spec().map_err(|err| refused(&err))?, sandbox.state().map_err(|err| refused(&err))?);
    refuse_machines_disk(&spec)?;
    let disk = match held {
        Some(disk) => Some(open_held(&disk)?),
        None if sandbox.disk().exists() => Some(open_disk(sandbox, &spec, state.status.is_live())?),
        None => None,
    };
    let ids = ids::of_told(&state.id_map, &state.group_map);
    let mut disks: Vec<_> = disk.map(|disk| (disk, ids)).into_iter().collect();
    for layer in layers::layers_of(sandbox)? {
        let what = format!("the layer {} below this sandbox's disk cannot be read", layer.id);
        let disk = open_dir(&layer.disk).map_err(|err| refusal(125, &what, Some(&err.to_string()), None))?;
        disks.push((disk, layer.ids));
    }
    Ok(disks)
}

/// A chain with one more layer on top.
pub fn push(chain: &mut Chain, layer: layers::LayerId) {
    chain.layers.insert(0, layer);
    chain.workspace += 1;
}

fn refuse_depth(chain: &Chain) -> Result<(), Refusal> {
    if chain.layers.len() < layers::MOST {
        return Ok(());
    }
    let what =
        format!("there are {} layers below this sandbox's disk already, which is the most", layers::MOST);
    let fix = "fork an earlier snapshot, or export it and import it again: that makes one layer of all";
    Err(refusal(125, &what, None, Some(fix)))
}

/// A file system that a machine wrote is read by that machine alone: the host's kernel would trust it.
fn refuse_machines_disk(spec: &Spec) -> Result<(), Refusal> {
    if spec.limits.disk.is_none_or(|disk| disk.by != DiskBy::Machine) {
        return Ok(());
    }
    let what = "what this sandbox changed in its root cannot be taken from its disk";
    let why = "the disk (--disk) is a file system that a machine wrote, and this host reads none of those";
    let fix = "`airlock cp` copies files out of it; `airlock diff` and `airlock apply` show its workspace; without --disk, or with --disk SIZE,watched, its root lies on this host";
    Err(refusal(125, what, Some(why), Some(fix)))
}

/// Whether its disk is a file system of its own that outlives it, and that only its keeper reaches while it runs.
pub fn has_kernels_disk(spec: &Spec) -> bool {
    spec.limits.disk.is_some_and(|disk| disk.by == DiskBy::Kernel)
}

/// Whether its disk is a file system of its own.
fn is_bounded(spec: &Spec) -> bool {
    spec.limits.disk.is_some_and(|disk| !disk.by.is_watched())
}

/// The directory of what it wrote, wherever that is.
fn open_disk(sandbox: &Sandbox, spec: &Spec, is_live: bool) -> Result<OwnedFd, Refusal> {
    let what = "what this sandbox wrote cannot be reached";
    let unreachable = |why: &str, fix: Option<&str>| refusal(125, what, Some(why), fix);
    match spec.limits.disk.map(|disk| (disk.by, disk.bytes)) {
        Some((DiskBy::Tmpfs, _)) => {
            let fix = "`airlock cp` takes files out of it while it runs; --disk SIZE,watched bounds a disk that can be kept";
            Err(unreachable("it is in memory (--disk SIZE,tmpfs), and gone when it stops", Some(fix)))
        }
        Some((DiskBy::Kernel, _)) if is_live => {
            Err(unreachable("its bounded disk (--disk) is in use", Some("airlock stop, then try again")))
        }
        Some((DiskBy::Kernel, bytes)) => {
            let templates = sandbox.store().host().join("disks");
            let limited = disk::open_limited(sandbox.folder(), bytes, &templates);
            Ok(limited.map_err(|err| unreachable(&chain(&err), err.fix().as_deref()))?.mount)
        }
        _ => open_dir(&sandbox.disk()).map_err(|err| unreachable(&err.to_string(), None)),
    }
}

/// The same of one that runs, as its keeper handed it over.
fn open_held(disk: &OwnedFd) -> Result<OwnedFd, Refusal> {
    let what = "what this sandbox wrote cannot be reached";
    open_at(disk, Path::new(".")).map_err(|err| refusal(125, what, Some(&err.to_string()), None))
}

/// Copies the parts of a disk, but for the kernel's scratch directories.
fn copy_parts(
    disk: &OwnedFd,
    to: &OwnedFd,
    links: &OwnedFd,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    for part in parts(disk)? {
        let mut made = to.try_clone()?;
        for name in part.split('/') {
            match rustix::fs::mkdirat(&made, name, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(err) => return Err(err.into()),
            }
            made = open_at(&made, Path::new(name))?;
        }
        let from = open_at(disk, Path::new(&part))?;
        copy(from.as_fd(), made.as_fd(), links.as_fd(), progress).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The parts of a disk, by their paths on it.
pub(super) fn parts(disk: &OwnedFd) -> io::Result<Vec<String>> {
    let mut parts = Vec::new();
    let listing = open_at(disk, Path::new("."))?;
    for entry in rustix::fs::Dir::read_from(&listing)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        match name {
            "workspace" => parts.extend(
                rustix::fs::statat(disk, "workspace/upper", rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok()
                    .then(|| "workspace/upper".to_owned()),
            ),
            name if name == "root" || name.starts_with("upper-") || name.starts_with("own-") => {
                parts.push(name.to_owned());
            }
            _ => {}
        }
    }
    parts.sort();
    Ok(parts)
}

pub(super) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

pub(super) fn open_at(directory: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, path, flags, Mode::empty())?)
}
