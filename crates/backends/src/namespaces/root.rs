//! The root file system of a sandbox: the host's own directories seen through overlays or read-only binds, the
//! sandbox's own directories, and what of the host was asked for.

use super::{
    During, Failed, etc, guard, home, layers,
    layers::Chain,
    own, served,
    staging::{Staging, open_dir},
    system, trust, workspace,
};
use airlock_engine::{
    Plan,
    plan::{
        Bind,
        places::{Kind, Writes},
    },
};
use airlock_images::host::{Hide, Mask, Tree};
use airlock_linux::mount::{self, Access, Depth, Overlay};
use airlock_protocol::{files::HideAs, spec::DiskBy};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    collections::VecDeque,
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Places opened while this process is still who it was on the host: as host root it soon can no longer reach them
/// by path.
pub(super) struct Opened {
    disk: Disk,
    binds: Vec<OwnedFd>,
    /// What hides parts of the host, one for each tree that has it. The staging directory may cover their paths.
    layers: VecDeque<OwnedFd>,
    /// The kernel's devices, one for each programmable mount.
    served: Vec<OwnedFd>,
    /// What lies below the sandbox's disk; as host root it comes with the trees.
    chain: Chain,
    /// The guest program, in this mount namespace.
    pub(super) guest: OwnedFd,
}

enum Disk {
    Directory(OwnedFd),
    Mount(OwnedFd),
}

impl Opened {
    pub(super) fn open(plan: &Plan, bounded: Option<OwnedFd>) -> Result<Opened, Failed> {
        let disk = match bounded {
            Some(mount) => Disk::Mount(mount),
            None => Disk::Directory(open_dir(CWD, &plan.disk).during("open the sandbox's directory")?),
        };
        let (mut binds, mut layers, mut chain) = (Vec::new(), VecDeque::new(), Chain::default());
        if !plan.caller.is_root() {
            chain = Chain::open(&plan.layers)?;
            for bind in &plan.binds {
                binds.push(reopen(bind)?);
            }
            for tree in &plan.image.trees {
                if let Hide::Layer(layer) = &tree.hide {
                    layers.push_back(open_dir(CWD, layer).during(&format!("show {}", tree.host.display()))?);
                }
            }
        }
        let guest = mount::open_place(CWD, &plan.guest).during("open the guest program")?;
        let served = served::open(plan)?;
        Ok(Opened { disk, binds, layers, served, chain, guest })
    }
}

/// What is handed over of a root that was built.
pub(super) struct Built {
    /// The layer of a workspace that is copied on write.
    pub(super) layer: Option<OwnedFd>,
    /// The devices of programmable mounts, which nobody serves yet: nothing may touch them here.
    pub(super) served: Vec<OwnedFd>,
}

/// Builds the root and enters it.
pub(super) fn build(plan: &Plan, opened: Opened, mut trees: VecDeque<OwnedFd>) -> Result<Built, Failed> {
    let staging = Staging::mount()?;
    let disk = match opened.disk {
        Disk::Directory(disk) => match plan.bounds.disk {
            Some(disk) if disk.by == DiskBy::Tmpfs => staging.attach("disk", &bounded_tmpfs(disk.bytes)?)?,
            _ => disk,
        },
        Disk::Mount(mount) => staging.attach("disk", &mount)?,
    };
    let mut chain = opened.chain;
    if plan.caller.is_root() {
        for number in 0..plan.layers.len() {
            let layer = trees.pop_front().ok_or(io::ErrorKind::NotFound).during("show a layer")?;
            chain.push(staging.attach(&format!("below{number}"), &layer)?);
        }
    }
    let own = chain.writable(disk.as_fd(), "root", 0o755)?;
    let root = staging.attach("new", &own)?;
    let covers = system::Covers::default();
    let mut builder = Builder { plan, staging, disk, root, trees, layers: opened.layers, chain, covers };
    builder.own_directories()?;
    builder.image()?;
    system::mount_all(plan, builder.root.as_fd(), &mut builder.covers)?;
    builder.own_etc()?;
    let root = mount::open_place(builder.root.as_fd(), Path::new(".")).during("open the new root")?;
    let stores = match &plan.certificate {
        Some(certificate) => Some(builder.stores(root.as_fd(), certificate)?),
        None => None,
    };
    let layer = builder.shown(opened.binds)?;
    builder.memory()?;
    if let Some(stores) = stores {
        stores.cover(variable(plan, "JAVA_HOME"), plan.known_hosts.as_deref())?;
    }
    served::mount(plan, builder.root.as_fd(), &opened.served)?;
    if plan.root == Access::ReadOnly {
        mount::make_read_only(builder.root.as_fd(), Depth::One).during("make the root read-only")?;
    }
    mount::pivot_into(builder.root.as_fd()).during("enter the new root")?;
    Ok(Built { layer, served: opened.served })
}

/// Makes what [`build`] would make on the disk of a sandbox like this, for one that comes later.
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

/// The devpts of the sandbox as programs inside see it: terminals made through it have their right names there.
pub(super) fn open_terminals() -> Result<OwnedFd, Failed> {
    open_dir(CWD, Path::new("/dev/pts")).during("open /dev/pts")
}

struct Builder<'a> {
    plan: &'a Plan,
    staging: Staging,
    disk: OwnedFd,
    root: OwnedFd,
    trees: VecDeque<OwnedFd>,
    layers: VecDeque<OwnedFd>,
    chain: Chain,
    covers: system::Covers,
}

impl Builder<'_> {
    /// Directories that are the sandbox's own, on its disk.
    fn own_directories(&self) -> Result<(), Failed> {
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
    fn own_etc(&self) -> Result<(), Failed> {
        let is_bind = |tree: &Tree| tree.host == Path::new("/etc") && matches!(tree.hide, Hide::Masks(_));
        if self.plan.caller.is_root() || !self.plan.image.trees.iter().any(is_bind) {
            return Ok(());
        }
        let memory = etc::memory().during("make room for our own files of /etc")?;
        let memory = self.staging.attach("etc", &memory)?;
        etc::cover(self.root.as_fd(), &memory, &self.plan.etc)
    }

    /// The trust stores of the root, about to be covered.
    fn stores<'r>(&self, root: BorrowedFd<'r>, certificate: &'r str) -> Result<trust::Stores<'r>, Failed> {
        let memory = trust::memory().during("make room for trust stores")?;
        trust::Stores::begin(root, self.staging.attach("trust", &memory)?, certificate)
    }

    fn give(&self, directory: &OwnedFd) -> io::Result<()> {
        let (user, group) = (self.plan.user.uid, self.plan.user.gid);
        let owner = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        let flags = rustix::fs::AtFlags::EMPTY_PATH;
        Ok(rustix::fs::chownat(directory, "", Some(owner.0), Some(owner.1), flags)?)
    }

    /// The host's directories.
    fn image(&mut self) -> Result<(), Failed> {
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

    /// An overlay can mount and then refuse every write: found out here, not by the program.
    fn probe_write(&self) -> Result<(), Failed> {
        if self.plan.root == Access::ReadOnly || self.plan.image.trees.is_empty() {
            return Ok(());
        }
        let probe = Path::new("usr/.airlock-probe");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&self.root, probe, flags, Mode::from_raw_mode(0o600))
            .during("write into the overlay of /usr")?;
        rustix::fs::unlinkat(&self.root, probe, rustix::fs::AtFlags::empty())
            .during("write into the overlay of /usr")
    }

    /// The workspace and other paths of the host. Gives the layer of a workspace that is copied on write.
    fn shown(&mut self, opened: Vec<OwnedFd>) -> Result<Option<OwnedFd>, Failed> {
        let mut opened = opened.into_iter();
        let mut layer = None;
        for bind in &self.plan.binds {
            let step = format!("show {} at {}", bind.host.display(), bind.target.display());
            let source = match self.trees.pop_front() {
                Some(tree) => Source::Tree(tree),
                None => Source::Place(opened.next().ok_or(io::ErrorKind::NotFound).during(&step)?),
            };
            let tree = match bind.writes {
                Writes::Host => self.bound(bind, source).during(&step)?,
                Writes::Copy => {
                    let project = match source {
                        Source::Tree(tree) => self.staging.attach("project", &tree)?,
                        Source::Place(place) => place,
                    };
                    let below = self.chain.workspace(&self.plan.layers)?;
                    let copied = workspace::copied(self.plan, bind, self.disk.as_fd(), (&below, &project))?;
                    layer = Some(copied.layer);
                    copied.mount
                }
            };
            let target = match bind.kind {
                Kind::Directory => mount::make_dir(self.root.as_fd(), &bind.target),
                Kind::File => mount::make_file(self.root.as_fd(), &bind.target),
            };
            let target =
                target.during(&format!("{step}: no such place in this image, and it cannot be made"))?;
            mount::attach(tree.as_fd(), target.as_fd()).during(&step)?;
            guard::pin_and_protect(self.root.as_fd(), bind)?;
            for socket in &bind.found.covered {
                let hidden = bind.target.join(socket);
                let Some(place) = system::open_if_there(self.root.as_fd(), &hidden)? else { continue };
                self.covers.cover(&place).during(&format!("hide {}", hidden.display()))?;
            }
            self.hide(bind)?;
        }
        Ok(layer)
    }

    /// Covers what holds secrets.
    fn hide(&mut self, bind: &Bind) -> Result<(), Failed> {
        if bind.found.hidden.is_empty() {
            return Ok(());
        }
        let cover = match self.plan.hide_as {
            HideAs::Denied => guard::denied().during("make what covers secrets")?,
            HideAs::Empty => {
                let memory = guard::memory().during("make what covers secrets")?;
                let memory = self.staging.attach("hidden", &memory)?;
                guard::empty(&memory).during("make what covers secrets")?
            }
        };
        guard::hide(self.root.as_fd(), bind, cover, &mut self.covers)
    }

    /// A path of the host as it is.
    fn bound(&self, bind: &Bind, source: Source) -> io::Result<OwnedFd> {
        let tree = match source {
            Source::Tree(tree) => tree,
            Source::Place(place) => mount::clone_tree(place.as_fd(), Path::new(""), Depth::Recursive)?,
        };
        mount::restrict(tree.as_fd(), bind.access, Depth::Recursive)?;
        Ok(tree)
    }

    /// Directories in memory.
    fn memory(&self) -> Result<(), Failed> {
        for tmpfs in &self.plan.tmpfs {
            let step = format!("make a directory in memory at {}", tmpfs.target.display());
            let size = tmpfs.size.map(|bytes| CString::new(bytes.to_string())).transpose().during(&step)?;
            let mut options = vec![(c"mode", c"1777")];
            if let Some(size) = &size {
                options.push((c"size", size.as_c_str()));
            }
            let tree = mount::tmpfs(&options).during(&step)?;
            let target = mount::make_dir(self.root.as_fd(), &tmpfs.target).during(&step)?;
            mount::attach(tree.as_fd(), target.as_fd()).during(&step)?;
        }
        Ok(())
    }
}

/// What a bind is made of.
enum Source {
    /// A mount with shifted ids, attached nowhere.
    Tree(OwnedFd),
    /// A place in this mount namespace.
    Place(OwnedFd),
}

fn is_mounted(place: &OwnedFd) -> bool {
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    rustix::fs::statx(place, "", flags, rustix::fs::StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

fn bounded_tmpfs(bytes: u64) -> Result<OwnedFd, Failed> {
    let step = "make a bounded disk in memory";
    let size = CString::new(bytes.to_string()).during(step)?;
    // One file for every 16 kB, as ext4 does it.
    let files = CString::new((bytes / 16_384).max(1024).to_string()).during(step)?;
    mount::tmpfs(&[(c"mode", c"755"), (c"size", size.as_c_str()), (c"nr_inodes", files.as_c_str())])
        .during(step)
}

/// A variable of the program's environment.
fn variable<'p>(plan: &'p Plan, name: &str) -> Option<&'p str> {
    plan.env
        .iter()
        .find_map(|entry| entry.split_once('=').filter(|(own, _)| *own == name))
        .map(|(_, value)| value)
}

/// The same file or directory the keeper checked, opened in this mount namespace.
fn reopen(bind: &Bind) -> Result<OwnedFd, Failed> {
    let step = format!("open {}", bind.host.display());
    let opened = mount::open_place(CWD, &bind.host).during(&step)?;
    let (now, then) =
        (rustix::fs::fstat(&opened).during(&step)?, rustix::fs::fstat(&bind.source).during(&step)?);
    if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it was replaced meanwhile")).during(&step);
    }
    Ok(opened)
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

/// A path that means exactly this descriptor, for calls that only take paths.
pub(super) fn fd_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
