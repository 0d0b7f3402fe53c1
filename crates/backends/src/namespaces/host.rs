//! The host's own system as a root: its directories seen through overlays or read-only binds, and the sandbox's own directories.

use super::{
    During, Failed, etc, home, layers, own, probe,
    root::{Builder, fd_path, variable},
    staging::open_dir,
    system,
};
use airlock_engine::Plan;
use airlock_images::host::{Hide, Mask, Tree};
use airlock_linux::mount::{self, Access, Depth, Overlay};
use rustix::fs::CWD;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Makes what [`super::root::build`] would make on the disk of a sandbox like this, for one that comes later.
pub(super) fn furnish(plan: &Plan, disk: BorrowedFd<'_>) -> Result<(), Failed> {
    let root = mount::make_dir(disk, Path::new("root")).during("make the root directory")?;
    own_directories(plan, root.as_fd())?;
    let places = plan.image.trees.iter().map(|tree| tree.host.as_path());
    for place in places.chain(["/proc", "/sys", "/dev", "/run"].map(Path::new)) {
        if place.components().count() == 2 {
            mount::make_dir(root.as_fd(), place).during("make a mount point")?;
        }
    }
    for tree in &plan.image.trees {
        let is_etc = tree.host == Path::new("/etc");
        if plan.caller.is_root() || (is_etc && !matches!(tree.hide, Hide::Masks(_))) {
            let (upper, _) = layers::make(disk, &layers::part_of(&tree.host), None)?;
            if is_etc {
                own::write_shared(upper.as_fd(), &plan.etc)?;
            }
        }
    }
    for path in &plan.image.covered {
        layers::make_own(disk, &covered_name(path), 0o1777)?;
    }
    Ok(())
}

impl Builder<'_> {
    /// Directories that are the sandbox's own, on its disk.
    pub(super) fn own_directories(&self) -> Result<(), Failed> {
        own_directories(self.plan, self.root.as_fd())?;
        let home = variable(self.plan, "HOME").unwrap_or("/root");
        if home.starts_with("/home/") {
            let home =
                mount::make_dir(self.root.as_fd(), Path::new(home)).during("make the home directory")?;
            self.give(&home).during("give the home directory to its user")?;
        } else if self.plan.user.uid != 0 && home == "/root" {
            let home = mount::make_dir(self.root.as_fd(), Path::new("/root")).during("open /root")?;
            self.give(&home).during("give the home directory to its user")?;
        }
        let owner = (self.plan.user.uid, self.plan.user.gid);
        home::write(self.root.as_fd(), Path::new(home), &self.plan.home_files, owner)
    }

    /// Where `/etc` is no overlay, our own files lie over the host's.
    pub(super) fn own_etc(&self) -> Result<(), Failed> {
        let is_bind = |tree: &Tree| tree.host == Path::new("/etc") && matches!(tree.hide, Hide::Masks(_));
        if self.plan.caller.is_root() || !self.plan.image.trees.iter().any(is_bind) {
            return Ok(());
        }
        let memory = etc::memory().during("make room for our own files of /etc")?;
        let memory = self.staging.attach("etc", &memory)?;
        etc::cover(self.root.as_fd(), &memory, &self.plan.etc, Access::ReadOnly)
    }

    /// The host's directories.
    pub(super) fn image(&mut self) -> Result<(), Failed> {
        for (number, tree) in self.plan.image.trees.iter().enumerate() {
            let step = format!("show {}", tree.host.display());
            if self.plan.caller.is_root() {
                let layer = match &tree.hide {
                    Hide::Layer(_) => self.trees.pop_front(),
                    Hide::Nothing | Hide::Masks(_) => None,
                };
                let host = self.trees.pop_front().ok_or(io::ErrorKind::NotFound).during(&step)?;
                self.writable_overlay(number, tree, layer, &host)?;
                continue;
            }
            match &tree.hide {
                Hide::Masks(masks) => {
                    self.read_only_bind(tree)?;
                    self.cover_all(masks)?;
                }
                _ if tree.host == Path::new("/etc") => self.user_overlay(tree, Access::ReadWrite)?,
                Hide::Layer(_) => self.user_overlay(tree, Access::ReadOnly)?,
                Hide::Nothing if self.is_changed(tree)? => self.user_overlay(tree, Access::ReadOnly)?,
                Hide::Nothing => self.read_only_bind(tree)?,
            }
        }
        self.own_covered()?;
        if self.plan.caller.is_root() { self.probe_write() } else { Ok(()) }
    }

    /// As host root: shifted lower layers, a plain upper one.
    fn writable_overlay(
        &self,
        number: usize,
        tree: &Tree,
        layer: Option<OwnedFd>,
        host: &OwnedFd,
    ) -> Result<(), Failed> {
        let layer = match layer {
            Some(layer) => Some(self.staging.attach(&format!("h{number}"), &layer)?),
            None => None,
        };
        let host = self.staging.attach(&format!("l{number}"), host)?;
        let lower: Vec<PathBuf> = layer.iter().chain([&host]).map(fd_path).collect();
        self.overlay(tree, &lower, Access::ReadWrite)
    }

    /// Whether a layer changes it: one that was written where it could be.
    fn is_changed(&self, tree: &Tree) -> Result<bool, Failed> {
        Ok(!self.chain.part(Path::new(&layers::part_of(&tree.host)))?.is_empty())
    }

    /// As an ordinary user: the host's directory below what hides parts of it.
    fn user_overlay(&mut self, tree: &Tree, access: Access) -> Result<(), Failed> {
        let step = format!("show {}", tree.host.display());
        let host = open_dir(CWD, &tree.source).during(&step)?;
        let layer = match &tree.hide {
            Hide::Layer(_) => Some(self.layers.pop_front().ok_or(io::ErrorKind::NotFound).during(&step)?),
            Hide::Nothing | Hide::Masks(_) => None,
        };
        let lower: Vec<PathBuf> = layer.iter().chain([&host]).map(fd_path).collect();
        self.overlay(tree, &lower, access)
    }

    fn overlay(&self, tree: &Tree, lower: &[PathBuf], access: Access) -> Result<(), Failed> {
        let step = format!("show {} through an overlay", tree.host.display());
        let below = self.chain.part(Path::new(&layers::part_of(&tree.host)))?;
        let writable = match access {
            Access::ReadOnly => None,
            Access::ReadWrite => Some(self.upper(tree, &below)?),
        };
        let below: Vec<PathBuf> = below.iter().map(fd_path).collect();
        let lower: Vec<&Path> = below.iter().chain(lower).map(PathBuf::as_path).collect();
        let paths = writable.as_ref().map(|(upper, work)| (fd_path(upper), fd_path(work)));
        let parts = Overlay {
            lower: &lower,
            upper: paths.as_ref().map(|(upper, work)| (upper.as_path(), work.as_path())),
        };
        let overlay = mount::overlay(&parts).during(&step)?;
        if self.plan.root == Access::ReadOnly || access == Access::ReadOnly {
            mount::make_read_only(overlay.as_fd(), Depth::One).during(&step)?;
        }
        let target = mount::make_dir(self.root.as_fd(), &tree.host).during(&step)?;
        mount::attach(overlay.as_fd(), target.as_fd()).during(&step)
    }

    /// The upper and work directory of one overlay, with our own files in it.
    fn upper(&self, tree: &Tree, below: &[OwnedFd]) -> Result<(OwnedFd, OwnedFd), Failed> {
        let (upper, work) = layers::make(self.disk.as_fd(), &layers::part_of(&tree.host), below.first())?;
        if tree.host == Path::new("/etc") {
            own::write(upper.as_fd(), below, &self.plan.etc)?;
        }
        Ok((upper, work))
    }

    fn read_only_bind(&self, tree: &Tree) -> Result<(), Failed> {
        let step = format!("show {}", tree.host.display());
        let below = tree.host.components().count() > 2;
        if below && mount::open_beneath(self.root.as_fd(), &tree.host).is_ok_and(|place| is_mounted(&place)) {
            // It came along with the directory above it.
            return Ok(());
        }
        let bound = mount::clone_tree(CWD, &tree.source, Depth::Recursive).during(&step)?;
        mount::restrict(bound.as_fd(), Access::ReadOnly, Depth::Recursive).during(&step)?;
        let target = mount::make_dir(self.root.as_fd(), &tree.host).during(&step)?;
        mount::attach(bound.as_fd(), target.as_fd()).during(&step)
    }

    fn cover_all(&mut self, masks: &[Mask]) -> Result<(), Failed> {
        for mask in masks {
            let Some(target) = system::open_if_there(self.root.as_fd(), &mask.path)? else { continue };
            self.covers.cover(&target).during(&format!("hide {}", mask.path.display()))?;
        }
        Ok(())
    }

    /// Directories of the host that are there as places only, such as `/var/tmp`: the sandbox has its own.
    fn own_covered(&self) -> Result<(), Failed> {
        for path in &self.plan.image.covered {
            let step = format!("make the sandbox's own {}", path.display());
            let Some(target) = system::open_if_there(self.root.as_fd(), path)? else { continue };
            let tree = self.chain.writable(self.disk.as_fd(), &covered_name(path), 0o1777)?;
            mount::attach(tree.as_fd(), target.as_fd()).during(&step)?;
        }
        Ok(())
    }

    /// Whether it can be written.
    fn probe_write(&self) -> Result<(), Failed> {
        if self.plan.root == Access::ReadOnly || self.plan.image.trees.is_empty() {
            return Ok(());
        }
        probe::write(self.root.as_fd(), Path::new("usr")).during("write into the overlay of /usr")
    }
}

fn is_mounted(place: &OwnedFd) -> bool {
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    rustix::fs::statx(place, "", flags, rustix::fs::StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

/// Directories and links of a root that are nobody's but the sandbox's.
fn own_directories(plan: &Plan, root: BorrowedFd<'_>) -> Result<(), Failed> {
    for (name, mode) in [("root", 0o700), ("home", 0o755), ("tmp", 0o1777), ("mnt", 0o755), ("srv", 0o755)] {
        layers::make_own(root, name, mode)?;
    }
    for link in &plan.image.links {
        let name = link.path.strip_prefix("/").unwrap_or(&link.path);
        match rustix::fs::symlinkat(&link.target, root, name) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(err) => return Err(err).during(&format!("make {}", link.path.display())),
        }
    }
    Ok(())
}

/// What stands on the disk for a directory of the host that is covered.
fn covered_name(path: &Path) -> String {
    format!("own{}", path.display().to_string().replace('/', "-"))
}
