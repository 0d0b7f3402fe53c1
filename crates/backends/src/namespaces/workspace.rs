//! A workspace that is copied on write: an overlay of the project, as the sandbox may see it, below a layer on its own disk.

use super::{During, Failed, probe, root::fd_path};
use airlock_engine::{
    Plan,
    plan::Bind,
    store::{UPPER, WORKSPACE},
};
use airlock_linux::mount::{self, Overlay};
use rustix::{
    fs::{AtFlags, Gid, Mode, Uid},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// What the kernel keeps beside a layer that it writes to.
const WORK: &str = "work";

/// Where the copy is, for the keeper, and the mount that shows it.
pub(super) struct Copied {
    pub(super) layer: OwnedFd,
    pub(super) mount: OwnedFd,
}

/// Lays the sandbox's layer over the project, and between them those `below` it, topmost first. Nothing of the project is read or
/// looked through.
pub(super) fn copied(
    plan: &Plan,
    bind: &Bind,
    disk: BorrowedFd<'_>,
    (below, project): (&[OwnedFd], &OwnedFd),
) -> Result<Copied, Failed> {
    let step = format!("show a copy of {}", bind.host.display());
    let layers = || -> io::Result<Copied> {
        let place = mount::make_dir(disk, Path::new(WORKSPACE))?;
        let layer = layer(plan, bind, place.as_fd())?;
        let work = mount::make_dir(place.as_fd(), Path::new(WORK))?;
        let (upper, work) = (fd_path(&layer), fd_path(&work));
        let lower: Vec<PathBuf> = below.iter().chain([project]).map(fd_path).collect();
        let lower: Vec<&Path> = lower.iter().map(PathBuf::as_path).collect();
        let mount = mount::overlay(&Overlay { lower: &lower, upper: Some((&upper, &work)) })?;
        Ok(Copied { layer, mount })
    };
    let copied = layers().during(&step).map_err(Failed::of_the_workspace)?;
    probe::write(copied.mount.as_fd(), Path::new("."))
        .during(&format!("write into the copy of {}", bind.host.display()))
        .map_err(Failed::of_the_workspace)?;
    Ok(copied)
}

/// The directory of what differs. An overlay's root has the owner and mode of its topmost layer: those of the project.
fn layer(plan: &Plan, bind: &Bind, place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let is_new = match rustix::fs::mkdirat(place, UPPER, Mode::RWXU) {
        Ok(()) => true,
        // The kernel's directory is made when this one is done: whoever made it was killed before.
        Err(Errno::EXIST) => !mount::exists(place, Path::new(WORK)),
        Err(err) => return Err(err.into()),
    };
    let layer = mount::make_dir(place, Path::new(UPPER))?;
    if is_new {
        let (user, group) = (Uid::from_raw(plan.user.uid), Gid::from_raw(plan.user.gid));
        rustix::fs::chownat(&layer, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        let mode = rustix::fs::fstat(&bind.source)?.st_mode & 0o1777;
        rustix::fs::chmod(fd_path(&layer), Mode::from_raw_mode(mode))?;
    }
    Ok(layer)
}
