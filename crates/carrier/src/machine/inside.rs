//! The process that becomes the guest: namespaces of its own in the machine, the served root, the seal that programs have in
//! namespaces. The wall does not depend on it; it is there so that flags mean the same.

use super::{During as _, Failed, disk};
use airlock_linux::{
    caps::{self, CapSet},
    clone::{self, Namespaces},
    fd,
    interfaces::{DEVICE_LINKS, DEVICES, MASKED, READ_ONLY},
    mount::{self, Depth},
    seccomp::{Filter, Nested, Relax, SetId},
    spawn,
};
use airlock_protocol::carry::Machine;
use rustix::{
    fs::{CWD, FileType, MemfdFlags, Mode},
    process::{Resource, Rlimit},
};
use std::{
    convert::Infallible,
    ffi::CString,
    fs::File,
    io::{self, Seek as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

/// Where the root is put together.
const PLACE: &str = "/inside";
/// Where its `/proc`, `/sys` and `/dev` are until there is a root.
const STAGE: &str = "/stage";
/// What the process says when it waits for its root.
pub(super) const PREPARED: u8 = b'p';

/// What the process starts with.
pub(super) struct Inside {
    /// The guest program.
    pub(super) guest: OwnedFd,
    /// Its link.
    pub(super) link: OwnedFd,
    /// To who waits for it: gives the root, hears why nothing came of it.
    pub(super) talk: OwnedFd,
}

/// What it is given when the machine knows what it is for.
struct Given {
    machine: Machine,
    terminals: OwnedFd,
    files: OwnedFd,
    /// The root where it is on disks.
    disk: Option<OwnedFd>,
}

/// What the process has to know, as a file to give to it.
pub(super) fn told(machine: &Machine) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(c"machine", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(machine)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Terminals of the machine.
pub(super) fn terminals(machine: &Machine) -> Result<OwnedFd, Failed> {
    let step = "make /dev/pts";
    let user = CString::new(machine.user.to_string()).during(step)?;
    let options = [(c"ptmxmode", c"666"), (c"mode", c"620"), (c"gid", c"5"), (c"uid", user.as_c_str())];
    mount::devpts(&options).during(step)
}

/// Builds, seals and becomes the guest. What it says before it ends is why it could not.
pub(super) fn run(inside: Inside) -> ! {
    let talk = inside.talk.try_clone();
    let Err(failed) = become_guest(inside);
    let _ = talk.and_then(|talk| fd::send_all(talk.as_fd(), failed.to_string().as_bytes(), &[]));
    clone::exit_now(125)
}

fn become_guest(inside: Inside) -> Result<Infallible, Failed> {
    clone::die_with_parent().during("tie the guest to the machine")?;
    std::fs::write("/proc/self/oom_score_adj", "0")
        .during("leave programs as they are for a want of memory")?;
    mount::make_private().during("make the mounts private")?;
    let stage = stage()?;
    fd::send_all(inside.talk.as_fd(), &[PREPARED], &[]).during("say that it waits for its root")?;
    let Given { machine, terminals, files, disk } = receive(&inside.talk)?;
    let machine = &machine;
    rustix::system::sethostname(machine.hostname.as_bytes()).during("set the host name")?;
    let root = attach_root(disk.as_ref().unwrap_or(&files))?;
    if let (Some(disks), Some(_)) = (&machine.disks, &disk) {
        disk::furnish(disks, root.as_fd(), &files)?;
    }
    move_system(stage.as_fd(), root.as_fd())?;
    own_devices(machine, root.as_fd(), &terminals)?;
    if machine.disks.as_ref().is_some_and(|disks| disks.read_only) {
        mount::make_read_only(root.as_fd(), Depth::One).during("make the root read-only")?;
    }
    rustix::process::fchdir(&root).during("enter the root")?;
    rustix::mount::mount_move(".", "/").during("move the root")?;
    rustix::process::chroot(".").during("enter the root")?;
    rustix::process::chdir("/").during("enter the root")?;
    clone::unshare(Namespaces::CGROUP_AND_TIME).during("make control group and time namespaces")?;
    // As in namespaces: no memory image of a program that crashes.
    let limit = Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(Resource::Core, limit).during("forbid memory images of crashes")?;
    seal(machine)?;
    Err(spawn::execute_guest(inside.guest, inside.link)).during("execute the guest")
}

/// What it waits for: the files as soon as they are served.
fn receive(talk: &OwnedFd) -> Result<Given, Failed> {
    let step = "hear of the root";
    let (mut byte, mut descriptors) = ([0; 1], Vec::new());
    fd::receive_with_fds(talk.as_fd(), &mut byte, &mut descriptors).during(step)?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(io::Error::from(io::ErrorKind::UnexpectedEof)).during(step);
    let (told, terminals, files) = (next()?, next()?, next()?);
    let machine = serde_json::from_reader(File::from(told)).during(step)?;
    Ok(Given { machine, terminals, files, disk: descriptors.next() })
}

/// A place with `/proc`, `/sys` and `/dev`: all of them that is the same in every sandbox.
fn stage() -> Result<OwnedFd, Failed> {
    let step = "make a place for the system's files";
    let tree = mount::tmpfs(&[(c"mode", c"755"), (c"size", c"65536")]).during(step)?;
    let here = mount::open_place(CWD, Path::new("/")).during(step)?;
    let place = mount::make_dir(here.as_fd(), Path::new(STAGE)).during(step)?;
    mount::attach(tree.as_fd(), place.as_fd()).during(step)?;
    let stage = mount::open_place(CWD, Path::new(STAGE)).during(step)?;
    system(stage.as_fd())?;
    Ok(stage)
}

/// Moves them to where they belong.
fn move_system(stage: BorrowedFd<'_>, root: BorrowedFd<'_>) -> Result<(), Failed> {
    for name in ["proc", "sys", "dev"] {
        let tree = mount::open_place(stage, Path::new(name)).during(&format!("mount /{name}"))?;
        attach_at(root, name, &tree)?;
    }
    Ok(())
}

fn attach_root(tree: &OwnedFd) -> Result<OwnedFd, Failed> {
    let step = "mount the root";
    let here = mount::open_place(CWD, Path::new("/")).during(step)?;
    let place = mount::make_dir(here.as_fd(), Path::new(PLACE)).during(step)?;
    mount::attach(tree.as_fd(), place.as_fd()).during(step)?;
    mount::open_place(CWD, Path::new(PLACE)).during(step)
}

/// `/proc`, `/sys`, `/dev`.
fn system(root: BorrowedFd<'_>) -> Result<(), Failed> {
    attach_at(root, "proc", &mount::proc().during("mount /proc")?)?;
    attach_at(root, "sys", &mount::sysfs().during("mount /sys")?)?;
    let dev = mount::tmpfs(&[(c"mode", c"755"), (c"size", c"65536")]).during("make /dev")?;
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755)).during("make /dev")?;
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &dev, name).during("make /dev")?;
    }
    attach_at(root, "dev", &dev)?;
    for (name, major, minor) in DEVICES {
        show_device(dev.as_fd(), name, (major, minor)).during(&format!("show /dev/{name}"))?;
    }
    attach_at(dev.as_fd(), "mqueue", &mount::mqueue().during("make /dev/mqueue")?)?;
    for path in MASKED {
        cover(root, path).during(&format!("cover {path}"))?;
    }
    for path in READ_ONLY {
        fix(root, path).during(&format!("make {path} read-only"))?;
    }
    Ok(())
}

/// What of `/dev` depends on the sandbox.
fn own_devices(machine: &Machine, root: BorrowedFd<'_>, terminals: &OwnedFd) -> Result<(), Failed> {
    let dev = mount::open_place(root, Path::new("dev")).during("make /dev")?;
    let size = CString::new(machine.shared_memory.to_string()).during("make /dev/shm")?;
    let shm = mount::tmpfs(&[(c"mode", c"1777"), (c"size", size.as_c_str())]).during("make /dev/shm")?;
    attach_at(dev.as_fd(), "shm", &shm)?;
    attach_at(dev.as_fd(), "pts", terminals)
}

fn attach_at(root: BorrowedFd<'_>, name: &str, tree: &OwnedFd) -> Result<(), Failed> {
    let step = format!("mount /{name}");
    let target = mount::make_dir(root, Path::new(name)).during(&step)?;
    mount::attach(tree.as_fd(), target.as_fd()).during(&step)
}

fn show_device(dev: BorrowedFd<'_>, name: &str, (major, minor): (u32, u32)) -> io::Result<()> {
    let device = mount::open_device(&Path::new("/dev").join(name), major, minor)?;
    let tree = mount::clone_tree(device.as_fd(), Path::new(""), Depth::One)?;
    let target = mount::make_file(dev, Path::new(name))?;
    mount::attach(tree.as_fd(), target.as_fd())
}

/// An empty file or directory over something, where it is there.
fn cover(root: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    let Some(place) = open_if_there(root, path)? else { return Ok(()) };
    let tree = match FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) {
        FileType::Directory => mount::tmpfs(&[(c"mode", c"555"), (c"size", c"4096"), (c"nr_inodes", c"2")])?,
        _ => {
            let null = mount::open_device(Path::new("/dev/null"), 1, 3)?;
            mount::clone_tree(null.as_fd(), Path::new(""), Depth::One)?
        }
    };
    mount::make_read_only(tree.as_fd(), Depth::One)?;
    mount::attach(tree.as_fd(), place.as_fd())
}

fn fix(root: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    let Some(place) = open_if_there(root, path)? else { return Ok(()) };
    let tree = mount::clone_tree(place.as_fd(), Path::new(""), Depth::One)?;
    mount::make_read_only(tree.as_fd(), Depth::One)?;
    mount::attach(tree.as_fd(), place.as_fd())
}

fn open_if_there(root: BorrowedFd<'_>, path: &str) -> io::Result<Option<OwnedFd>> {
    match mount::open_beneath(root, Path::new(path)) {
        Ok(place) => Ok(Some(place)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// From here on this process can do only what programs inside can.
fn seal(machine: &Machine) -> Result<(), Failed> {
    let mut set = CapSet::EMPTY;
    for name in &machine.capabilities {
        set = set.with(CapSet::parse(name).during("know the capabilities")?);
    }
    let nested = if machine.nested { Nested::Yes } else { Nested::No };
    let set_id = if machine.set_id { SetId::Allowed } else { SetId::Refused };
    let filter = Filter::compile(&Relax { caps: set, nested, set_id });
    caps::limit_to(set).during("drop capabilities")?;
    rustix::thread::set_no_new_privs(true).during("give up new privileges")?;
    filter.install().during("install the system call filter")
}
