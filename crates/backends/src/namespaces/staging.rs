//! Where trees are attached while a root is being built.

use super::{During, Failed};
use airlock_linux::mount;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

/// A directory in memory over the host's `/tmp`, seen only here, that trees are attached to while they are needed.
/// It goes away with the old root.
pub(super) struct Staging {
    directory: OwnedFd,
}

impl Staging {
    pub(super) fn mount() -> Result<Staging, Failed> {
        let tmpfs = mount::tmpfs(&[(c"mode", c"700")]).during("make a staging directory")?;
        let place =
            ["/tmp", "/mnt", "/run", "/var"].iter().find_map(|path| open_dir(CWD, Path::new(path)).ok());
        let place = place.ok_or(io::ErrorKind::NotFound).during("find a place for the staging directory")?;
        mount::attach(tmpfs.as_fd(), place.as_fd()).during("attach the staging directory")?;
        Ok(Staging { directory: tmpfs })
    }

    /// Attaches a tree under a name of its own and opens it there.
    pub(super) fn attach(&self, name: &str, tree: &OwnedFd) -> Result<OwnedFd, Failed> {
        let target = mount::make_dir(self.directory.as_fd(), Path::new(name)).during("stage a tree")?;
        mount::attach(tree.as_fd(), target.as_fd()).during("stage a tree")?;
        open_dir(self.directory.as_fd(), Path::new(name)).during("stage a tree")
    }

    /// An empty directory that nobody can write to.
    pub(super) fn empty(&self) -> Result<OwnedFd, Failed> {
        let (step, mode) = ("make an empty directory", Mode::from_raw_mode(0o555));
        rustix::fs::mkdirat(&self.directory, "empty", mode).during(step)?;
        // The umask may have taken bits away.
        rustix::fs::chmodat(&self.directory, "empty", mode, AtFlags::empty()).during(step)?;
        open_dir(self.directory.as_fd(), Path::new("empty")).during(step)
    }
}

/// A directory, as a place.
pub(super) fn open_dir(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
