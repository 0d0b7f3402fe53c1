//! What a sandbox writes, part by part, and what lies read-only below it: layers that it shares with those it was forked
//! from, or that were forked from it.
//!
//! A part is a directory on the disk: `root` (everything that is nobody else's), `upper-usr` and its like (what was changed in
//! a directory of the host), `own-var-tmp` and its like, `workspace/upper`. A part without layers is what it is; with layers
//! below, it is the upper directory of an overlay.

use super::{During, Failed, root::fd_path};
use airlock_engine::{
    snapshots::Layer,
    store::{UPPER, WORKSPACE},
};
use airlock_linux::mount::{self, Access, Depth, Overlay};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The layers below a sandbox's disk, topmost first.
#[derive(Default)]
pub(super) struct Chain(Vec<OwnedFd>);

impl Chain {
    /// Opens them by path, for an ordinary user, whose sandboxes all have the same ids.
    pub(super) fn open(layers: &[Layer]) -> Result<Chain, Failed> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |layer: &Layer| {
            rustix::fs::openat(CWD, &layer.disk, flags, Mode::empty())
                .during(&format!("open the layer {}", layer.disk.display()))
        };
        layers.iter().map(open).collect::<Result<_, _>>().map(Chain)
    }

    /// Adds the next lower one.
    pub(super) fn push(&mut self, layer: OwnedFd) {
        self.0.push(layer);
    }

    /// What the layers have of one part, topmost first.
    pub(super) fn part(&self, name: &Path) -> Result<Vec<OwnedFd>, Failed> {
        self.0.iter().filter_map(|layer| part_in(layer, name).transpose()).collect()
    }

    /// What they have of the workspace, where it counts.
    pub(super) fn workspace(&self, layers: &[Layer]) -> Result<Vec<OwnedFd>, Failed> {
        let name = Path::new(WORKSPACE).join(UPPER);
        let counting = self.0.iter().zip(layers).filter(|(_, layer)| layer.counts_for_workspace);
        counting.filter_map(|(opened, _)| part_in(opened, &name).transpose()).collect()
    }

    /// A part that has nothing of the host below it, detached, `nosuid,nodev`. `mode` is that of a new one.
    pub(super) fn writable(&self, disk: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Failed> {
        let step = format!("make the sandbox's own {name}");
        let below = self.part(Path::new(name))?;
        let Some(first) = below.first() else {
            let own = make_own(disk, name, mode)?;
            let tree = mount::clone_tree(own.as_fd(), Path::new(""), Depth::One).during(&step)?;
            mount::restrict(tree.as_fd(), Access::ReadWrite, Depth::One).during(&step)?;
            return Ok(tree);
        };
        let own = make_like(disk, name, first)?;
        let work = mount::make_dir(disk, Path::new(&format!("work-{name}"))).during(&step)?;
        let (own, work) = (fd_path(&own), fd_path(&work));
        let below: Vec<PathBuf> = below.iter().map(fd_path).collect();
        let lower: Vec<&Path> = below.iter().map(PathBuf::as_path).collect();
        mount::overlay(&Overlay { lower: &lower, upper: Some((&own, &work)) }).during(&step)
    }
}

/// A part of one layer, if it has it.
fn part_in(layer: &OwnedFd, name: &Path) -> Result<Option<OwnedFd>, Failed> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(layer, name, flags, Mode::empty(), within) {
        Ok(part) => Ok(Some(part)),
        Err(Errno::NOENT) => Ok(None),
        Err(err) => Err(err).during(&format!("open {} of a layer", name.display())),
    }
}

/// What stands on the disk for changes in a directory of the host.
pub(super) fn part_of(host: &Path) -> String {
    format!("upper{}", host.display().to_string().replace('/', "-"))
}

/// The upper and work directory of one overlay. A new one looks like the layer below it, where there is one.
pub(super) fn make(
    disk: BorrowedFd<'_>,
    part: &str,
    below: Option<&OwnedFd>,
) -> Result<(OwnedFd, OwnedFd), Failed> {
    let step = "make a writable layer";
    let upper = match below {
        Some(below) => make_like(disk, part, below)?,
        None => mount::make_dir(disk, Path::new(part)).during(step)?,
    };
    let work = format!("work-{part}");
    Ok((upper, mount::make_dir(disk, Path::new(&work)).during(step)?))
}

/// A directory of the sandbox's own; a new one has this mode.
pub(super) fn make_own(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Failed> {
    let step = format!("make the sandbox's own {name}");
    let fresh = rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode));
    let directory = mount::make_dir(parent, Path::new(name)).during(&step)?;
    if fresh.is_ok() {
        // The umask may have taken bits away. O_PATH descriptors cannot be changed, their /proc names can.
        rustix::fs::chmod(fd_path(&directory), Mode::from_raw_mode(mode)).during(&step)?;
    }
    Ok(directory)
}

/// A directory with the owner and mode of the one below it: of an overlay's root, those of the upper one count.
fn make_like(disk: BorrowedFd<'_>, name: &str, below: &OwnedFd) -> Result<OwnedFd, Failed> {
    let step = format!("make the sandbox's own {name}");
    let fresh = rustix::fs::mkdirat(disk, name, Mode::from_raw_mode(0o700));
    let own = mount::make_dir(disk, Path::new(name)).during(&step)?;
    if fresh.is_ok() {
        let stat = rustix::fs::fstat(below).during(&step)?;
        let (user, group) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
        rustix::fs::chownat(&own, "", Some(user), Some(group), AtFlags::EMPTY_PATH).during(&step)?;
        rustix::fs::chmod(fd_path(&own), Mode::from_raw_mode(stat.st_mode & 0o7777)).during(&step)?;
    }
    Ok(own)
}
