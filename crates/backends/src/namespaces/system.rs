//! `/proc`, `/sys`, `/dev`, `/run`: made fresh for every sandbox, with what should not be touched covered.

use super::{During, Failed};
use airlock_engine::{
    Plan,
    plan::{Base, INSTALL_HINTS},
};
use airlock_linux::{
    interfaces::{DEVICE_LINKS, DEVICES, MASKED, READ_ONLY},
    mount::{self, Access, Depth},
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::{
    ffi::CString,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// Enough for sockets and pid files.
const RUN_SIZE: &std::ffi::CStr = c"67108864";
/// Mounts them all below `root`.
pub(super) fn mount_all(plan: &Plan, root: BorrowedFd<'_>, covers: &mut Covers) -> Result<(), Failed> {
    let proc = mount::proc().during("mount a fresh /proc")?;
    attach_at(root, "proc", &proc)?;
    let sys = mount::sysfs().during("mount a fresh /sys")?;
    attach_at(root, "sys", &sys)?;
    if plan.base == Base::Host {
        run(plan, root)?;
    }
    if plan.root == Access::ReadOnly {
        temporary(plan, root)?;
    }
    devices(plan, root)?;
    protect(root, covers)
}

/// `/run` of the sandbox's own. An image has its own, with directories that its programs expect.
fn run(plan: &Plan, root: BorrowedFd<'_>) -> Result<(), Failed> {
    let run = mount::tmpfs(&[(c"mode", c"755"), (c"size", RUN_SIZE)]).during("make /run")?;
    rustix::fs::mkdirat(&run, "lock", Mode::from_raw_mode(0o1777)).during("make /run/lock")?;
    rustix::fs::chmodat(&run, "lock", Mode::from_raw_mode(0o1777), AtFlags::empty())
        .during("make /run/lock")?;
    if !plan.caller.is_root() {
        install_hints(run.as_fd()).during("make /run/airlock")?;
    }
    attach_at(root, "run", &run)
}

/// Where the root is read-only, temporary directories are not. An image may have links in their place, or nothing.
fn temporary(plan: &Plan, root: BorrowedFd<'_>) -> Result<(), Failed> {
    for name in ["tmp", "var/tmp"] {
        if plan.base != Base::Host && mount::open_plain(root, Path::new(name)).is_err() {
            continue;
        }
        let own = mount::tmpfs(&[(c"mode", c"1777")]).during("make a temporary directory")?;
        attach_at(root, name, &own)?;
    }
    Ok(())
}

/// An ordinary user's sandbox has a read-only system. Who tries to install a system package is told what to do; any
/// other use goes to the real program.
const INSTALL_HINT: &str = r#"#!/bin/sh
for word in "$@"; do
    case "$word" in
    install|reinstall|remove|purge|autoremove|upgrade|full-upgrade|dist-upgrade|update|add|del|-i|--install|-r|-P)
        echo "airlock: the system of this sandbox is read-only, so ${0##*/} cannot change it" >&2
        echo "airlock: take an image with --image, or install into the home directory (pip, npm, cargo)" >&2
        exit 100 ;;
    esac
done
for dir in /usr/bin /usr/sbin /bin /sbin; do
    [ -x "$dir/${0##*/}" ] && exec "$dir/${0##*/}" "$@"
done
echo "${0##*/}: not found" >&2
exit 127
"#;
const INSTALLERS: [&str; 7] = ["apt", "apt-get", "aptitude", "dpkg", "dnf", "yum", "apk"];

fn install_hints(run: BorrowedFd<'_>) -> io::Result<()> {
    let bin = mount::make_dir(run, Path::new(INSTALL_HINTS.trim_start_matches("/run/")))?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let hint = rustix::fs::openat(&bin, ".hint", flags, Mode::from_raw_mode(0o755))?;
    rustix::fs::fchmod(&hint, Mode::from_raw_mode(0o755))?;
    File::from(hint).write_all(INSTALL_HINT.as_bytes())?;
    for installer in INSTALLERS {
        rustix::fs::symlinkat(".hint", &bin, installer)?;
    }
    Ok(())
}

/// What lies over things that are not to be seen: an empty file or directory that cannot be written. The first of a kind is
/// made, the others are further mounts of it.
pub(super) struct Covers {
    empty: OwnedFd,
    file: Option<OwnedFd>,
    directory: Option<OwnedFd>,
}

impl Covers {
    /// Directories are covered by `empty`, which nobody writes to from then on.
    pub(super) fn new(empty: OwnedFd) -> Covers {
        Covers { empty, file: None, directory: None }
    }

    pub(super) fn cover(&mut self, place: &OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(place)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let first = if is_directory { &mut self.directory } else { &mut self.file };
        if let Some(first) = first {
            return mount::attach(mount::copy(first.as_fd())?.as_fd(), place.as_fd());
        }
        let tree = if is_directory {
            mount::clone_tree(self.empty.as_fd(), Path::new(""), Depth::One)?
        } else {
            let null = mount::open_device(Path::new("/dev/null"), 1, 3)?;
            mount::clone_tree(null.as_fd(), Path::new(""), Depth::One)?
        };
        mount::make_read_only(tree.as_fd(), Depth::One)?;
        mount::attach(tree.as_fd(), place.as_fd())?;
        *first = Some(tree);
        Ok(())
    }
}

fn attach_at(root: BorrowedFd<'_>, name: &str, tree: &OwnedFd) -> Result<(), Failed> {
    let step = format!("mount /{name}");
    let target = mount::make_dir(root, Path::new(name)).during(&step)?;
    mount::attach(tree.as_fd(), target.as_fd()).during(&step)
}

fn devices(plan: &Plan, root: BorrowedFd<'_>) -> Result<(), Failed> {
    let step = "make /dev";
    let dev = mount::tmpfs(&[(c"mode", c"755"), (c"size", c"65536")]).during(step)?;
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(&dev, name, rustix::fs::Mode::from_raw_mode(0o755)).during(step)?;
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &dev, name).during(step)?;
    }
    attach_at(root, "dev", &dev)?;
    for (name, major, minor) in DEVICES {
        let step = format!("show /dev/{name}");
        let device = mount::open_device(&Path::new("/dev").join(name), major, minor).during(&step)?;
        let tree = mount::clone_tree(device.as_fd(), Path::new(""), Depth::One).during(&step)?;
        let target = mount::make_file(dev.as_fd(), Path::new(name)).during(&step)?;
        mount::attach(tree.as_fd(), target.as_fd()).during(&step)?;
    }
    let half = CString::new((plan.bounds.memory.value / 2).to_string()).during("make /dev/shm")?;
    let shm = mount::tmpfs(&[(c"mode", c"1777"), (c"size", half.as_c_str())]).during("make /dev/shm")?;
    attach_at(dev.as_fd(), "shm", &shm)?;
    let mqueue = mount::mqueue().during("make /dev/mqueue")?;
    attach_at(dev.as_fd(), "mqueue", &mqueue)?;
    terminals(plan, dev.as_fd())
}

fn terminals(plan: &Plan, dev: BorrowedFd<'_>) -> Result<(), Failed> {
    let step = "make /dev/pts";
    let user = CString::new(plan.user.uid.to_string()).during(step)?;
    let mut options = vec![(c"ptmxmode", c"666"), (c"mode", c"620")];
    if plan.caller.is_root() {
        options.push((c"uid", user.as_c_str()));
    }
    if plan.ids.group_outside(5).is_some() {
        options.push((c"gid", c"5"));
    }
    let pts = mount::devpts(&options).during(step)?;
    attach_at(dev, "pts", &pts)
}

/// A place that is to be covered; not being there is the only reason for not covering it.
pub(super) fn open_if_there(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Failed> {
    match mount::open_beneath(root, path) {
        Ok(place) => Ok(Some(place)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err).during(&format!("find {} to cover it", path.display())),
    }
}

/// Covers and protects what a fresh `/proc` and `/sys` would still give away.
fn protect(root: BorrowedFd<'_>, covers: &mut Covers) -> Result<(), Failed> {
    for path in MASKED {
        let Some(place) = open_if_there(root, Path::new(path))? else { continue };
        covers.cover(&place).during(&format!("cover {path}"))?;
    }
    for path in READ_ONLY {
        let step = format!("make {path} read-only");
        let Some(place) = open_if_there(root, Path::new(path))? else { continue };
        if !mount::is_procfs(&place) {
            return Err(io::Error::from(io::ErrorKind::InvalidData)).during(&step);
        }
        let tree = mount::clone_tree(place.as_fd(), Path::new(""), Depth::One).during(&step)?;
        mount::make_read_only(tree.as_fd(), Depth::One).during(&step)?;
        mount::attach(tree.as_fd(), place.as_fd()).during(&step)?;
    }
    Ok(())
}
