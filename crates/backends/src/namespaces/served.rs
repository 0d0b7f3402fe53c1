//! Programmable mounts of a root that is being built.

use super::{During, Failed};
use airlock_engine::Plan;
use airlock_linux::{fuse, mount};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// The kernel's devices, one for each, opened while this process is still who it was on the host.
pub(super) fn open(plan: &Plan) -> Result<Vec<OwnedFd>, Failed> {
    let devices = plan.provided.iter().map(|_| fuse::open_device()).collect::<io::Result<_>>();
    devices.during("open /dev/fuse")
}

/// Mounts them. Nobody serves them yet, so that nothing may touch them from here on.
pub(super) fn mount(plan: &Plan, root: BorrowedFd<'_>, devices: &[OwnedFd]) -> Result<(), Failed> {
    for (served, device) in plan.provided.iter().zip(devices) {
        let step = format!("mount {}", served.target.display());
        let owner = (plan.user.uid, plan.user.gid);
        let tree = fuse::mount(device.as_fd(), owner).during(&step)?;
        let target = mount::make_dir(root, &served.target)
            .during(&format!("{step}: no such place in this image, and it cannot be made"))?;
        mount::attach(tree.as_fd(), target.as_fd()).during(&step)?;
    }
    Ok(())
}
