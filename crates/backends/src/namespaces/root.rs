//! The root file system of a sandbox: the host's own system or the layers of an image, and what of the host was asked for.

use super::{
    During, Failed, guard, layered,
    layers::Chain,
    served,
    staging::{Staging, open_dir},
    system, trust, workspace,
};
use airlock_engine::{
    Plan,
    plan::{
        Base, Bind,
        places::{Kind, Writes},
    },
};
use airlock_images::host::Hide;
use airlock_linux::mount::{self, Access, Depth};
use airlock_protocol::{files::HideAs, spec::DiskBy};
use rustix::fs::CWD;
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
    /// The trees of an image; as host root they come with the trees.
    lower: Vec<OwnedFd>,
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
        let mut lower = Vec::new();
        if !plan.caller.is_root() {
            chain = Chain::open(&plan.layers)?;
            lower = layered::open(plan)?;
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
        Ok(Opened { disk, binds, layers, served, chain, lower, guest })
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
    let (mut chain, mut lower) = (opened.chain, opened.lower);
    if plan.caller.is_root() {
        for number in 0..plan.layers.len() {
            let layer = trees.pop_front().ok_or(io::ErrorKind::NotFound).during("show a layer")?;
            chain.push(staging.attach(&format!("below{number}"), &layer)?);
        }
        lower = layered::stage(plan, &staging, &mut trees)?;
    }
    let own = match plan.base {
        Base::Host => chain.writable(disk.as_fd(), "root", 0o755)?,
        Base::Layers(_) => layered::root(plan, disk.as_fd(), &chain, &lower)?,
    };
    let root = staging.attach("new", &own)?;
    let covers = system::Covers::new(staging.empty()?);
    let mut builder = Builder { plan, staging, disk, root, trees, layers: opened.layers, chain, covers };
    builder.system()?;
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

/// The devpts of the sandbox as programs inside see it: terminals made through it have their right names there.
pub(super) fn open_terminals() -> Result<OwnedFd, Failed> {
    open_dir(CWD, Path::new("/dev/pts")).during("open /dev/pts")
}

pub(super) struct Builder<'a> {
    pub(super) plan: &'a Plan,
    pub(super) staging: Staging,
    pub(super) disk: OwnedFd,
    pub(super) root: OwnedFd,
    pub(super) trees: VecDeque<OwnedFd>,
    pub(super) layers: VecDeque<OwnedFd>,
    pub(super) chain: Chain,
    pub(super) covers: system::Covers,
}

impl Builder<'_> {
    /// Everything but what was asked for besides the root.
    fn system(&mut self) -> Result<(), Failed> {
        if let Base::Layers(_) = self.plan.base {
            self.probe_layered()?;
            system::mount_all(self.plan, self.root.as_fd(), &mut self.covers)?;
            return self.furnish_layered();
        }
        self.own_directories()?;
        self.image()?;
        system::mount_all(self.plan, self.root.as_fd(), &mut self.covers)?;
        self.own_etc()
    }

    /// The trust stores of the root, about to be covered.
    fn stores<'r>(&self, root: BorrowedFd<'r>, certificate: &'r str) -> Result<trust::Stores<'r>, Failed> {
        let memory = trust::memory().during("make room for trust stores")?;
        trust::Stores::begin(root, self.staging.attach("trust", &memory)?, certificate)
    }

    pub(super) fn give(&self, directory: &OwnedFd) -> io::Result<()> {
        let (user, group) = (self.plan.user.uid, self.plan.user.gid);
        let owner = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        let flags = rustix::fs::AtFlags::EMPTY_PATH;
        Ok(rustix::fs::chownat(directory, "", Some(owner.0), Some(owner.1), flags)?)
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

fn bounded_tmpfs(bytes: u64) -> Result<OwnedFd, Failed> {
    let step = "make a bounded disk in memory";
    let size = CString::new(bytes.to_string()).during(step)?;
    // One file for every 16 kB, as ext4 does it.
    let files = CString::new((bytes / 16_384).max(1024).to_string()).during(step)?;
    mount::tmpfs(&[(c"mode", c"755"), (c"size", size.as_c_str()), (c"nr_inodes", files.as_c_str())])
        .during(step)
}

/// A variable of the program's environment.
pub(super) fn variable<'p>(plan: &'p Plan, name: &str) -> Option<&'p str> {
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

/// A path that means exactly this descriptor, for calls that only take paths.
pub(super) fn fd_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
