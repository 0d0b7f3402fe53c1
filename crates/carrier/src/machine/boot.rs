//! Before anybody has said what the machine is for. A warm machine is saved after it, so nothing here may depend on a
//! sandbox.

use super::{During as _, Failed};
use airlock_linux::net::machine::vsock;
use airlock_protocol::carry::{BY_VSOCK, FILES_PORT, FILES_VSOCK, LINK_PORT, LINK_VSOCK};
use rustix::{
    fs::{Mode, OFlags},
    mount::MountFlags,
    process::{Resource, Rlimit},
};
use std::{
    ffi::OsString,
    fs, io,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, Instant},
};

const MODULES: &str = "/modules";
const PORTS: &str = "/sys/class/virtio-ports";
/// How long a device may take to show itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const PAUSE: Duration = Duration::from_millis(2);
/// Most open files that a process can be allowed.
const MOST_FILES: u64 = 1 << 20;
const FILES: u64 = 1024;

/// Both ports.
pub(super) struct Ports {
    pub(super) link: OwnedFd,
    pub(super) files: OwnedFd,
}

/// Mounts, modules, limits.
pub(super) fn boot() -> Result<(), Failed> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("cgroup2", "/groups")]
    {
        mount(kind, place).during(&format!("mount {place}"))?;
    }
    // Where memory runs out, a program is ended and not what carries it.
    fs::write("/proc/self/oom_score_adj", "-1000").during("outlive a want of memory")?;
    // As on a host with much more memory than a sandbox may use: what is too much is found out when it is used, not when it is asked for.
    fs::write("/proc/sys/vm/overcommit_memory", "1").during("let memory be asked for")?;
    load_modules("order")?;
    let limit = Rlimit { current: Some(FILES), maximum: Some(MOST_FILES) };
    rustix::process::setrlimit(Resource::Nofile, limit).during("allow open files")?;
    let limit = Rlimit { current: None, maximum: None };
    rustix::process::setrlimit(Resource::Nproc, limit).during("allow processes")
}

/// Both ports, as soon as they are there.
pub(super) fn open_ports() -> Result<Ports, Failed> {
    let told = fs::read_to_string("/proc/cmdline").during("read the kernel's command line")?;
    if told.split_whitespace().any(|word| word == BY_VSOCK) {
        load_modules("vsock")?;
        return Ok(Ports { link: connect(LINK_VSOCK)?, files: connect(FILES_VSOCK)? });
    }
    Ok(Ports { link: open_port(LINK_PORT)?, files: open_port(FILES_PORT)? })
}

fn mount(kind: &str, place: &str) -> io::Result<()> {
    match fs::create_dir(place) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
        _ => {}
    }
    match rustix::mount::mount(kind, place, kind, MountFlags::NOSUID | MountFlags::NOEXEC, None) {
        // A kernel may have mounted its devices by itself.
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// Those that a file names, in the order that is written there; none where a kernel has everything.
pub(super) fn load_modules(file: &str) -> Result<(), Failed> {
    let order = match fs::read_to_string(Path::new(MODULES).join(file)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.during("read which modules are needed")?,
    };
    for name in order.lines().map(str::trim).filter(|name| !name.is_empty()) {
        load(&Path::new(MODULES).join(name)).during(&format!("load the module {name}"))?;
    }
    Ok(())
}

fn load(path: &Path) -> io::Result<()> {
    let file = fs::File::open(path)?;
    match rustix::system::finit_module(&file, c"", 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// A port of the host, as soon as there is a way to it.
fn connect(port: u32) -> Result<OwnedFd, Failed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match vsock::connect(port) {
            Ok(port) => return Ok(port),
            // The device may not have shown itself yet.
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(err) => return Err(err).during(&format!("find the port {port}")),
        }
    }
}

/// The port of this name, as soon as it is there.
fn open_port(name: &str) -> Result<OwnedFd, Failed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(device) = find_port(name) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::open(Path::new("/dev").join(device), flags, Mode::empty()) {
                Ok(port) => return Ok(port),
                // The kernel names a device before it makes its file.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO) if Instant::now() < deadline => {}
                Err(err) => return Err(err).during(&format!("open the port {name}")),
            }
        }
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::NotFound)).during(&format!("find the port {name}"));
        }
        std::thread::sleep(PAUSE);
    }
}

fn find_port(name: &str) -> Option<OsString> {
    fs::read_dir(PORTS).ok()?.flatten().find_map(|entry| {
        let told = fs::read_to_string(entry.path().join("name")).ok()?;
        (told.trim() == name).then(|| entry.file_name())
    })
}
