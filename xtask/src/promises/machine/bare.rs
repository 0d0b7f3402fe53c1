//! QEMU's machine `microvm` without us: the same kernel, a busybox as its first program, virtio-fs for files.

use super::{Took, first_byte, steps};
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Debian's QEMU brings it.
const VIRTIOFSD: &str = "/usr/lib/qemu/virtiofsd";
const QEMU: &str = "qemu-system-x86_64";
/// What virtio-fs needs besides, in this order; those of them that are no modules are built in.
const MODULES: [&str; 5] = ["virtio_ring", "virtio", "virtio_mmio", "fuse", "virtiofs"];
const COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=0 reboot=t panic=-1 random.trust_cpu=on";

/// A kernel and what it boots into.
pub(super) struct Bare {
    kernel: PathBuf,
    /// Says a word and ends.
    saying: PathBuf,
    /// Runs a program of this host's files.
    sharing: PathBuf,
    is_emulated: bool,
    command_line: String,
    scratch: Scratch,
}

impl Bare {
    /// With the kernel that is kept below `machines`.
    pub(super) fn prepare(machines: &Path, is_emulated: bool) -> Result<Bare> {
        let version = fs::read_to_string(machines.join("current")).context("there is no kernel")?;
        let version = version.trim();
        let scratch = Scratch::new("promises-bare")?;
        let work = scratch.folder("work")?;
        let unpacked = unpack(version, &scratch)?;
        let saying = archive(&scratch, "saying", "echo x", &unpacked)?;
        let sharing = format!(
            "for name in {}; do [ -e /modules/$name.ko ] && insmod /modules/$name.ko; done; \
             mount -t virtiofs host /host && exec chroot /host /bin/sh -c '/usr/bin/python3 -c \"$(cat {time})\" {work}; exec {busybox} reboot -f'",
            MODULES.join(" "),
            time = scratch.path().join("time.py").display(),
            work = work.display(),
            busybox = busybox()?.display(),
        );
        let sharing = archive(&scratch, "sharing", &sharing, &unpacked)?;
        let kernel = machines.join("kernels").join(version).join("vmlinuz");
        let command_line = match ticks(machines).filter(|_| is_emulated) {
            Some(ticks) => format!("{COMMAND_LINE} mitigations=off tsc_early_khz={ticks}"),
            None => COMMAND_LINE.to_owned(),
        };
        Ok(Bare { kernel, saying, sharing, is_emulated, command_line, scratch })
    }

    fn qemu(&self, archive: &Path) -> Command {
        let by = if self.is_emulated { ["tcg", "max"] } else { ["kvm", "host"] };
        let mut command = Command::new(QEMU);
        command
            .args([
                "-machine",
                "microvm,x-option-roms=off,isa-serial=on,rtc=on",
                "-accel",
                by[0],
                "-cpu",
                by[1],
            ])
            .args(["-m", "512M", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot"])
            .args(["-serial", "stdio", "-append", &self.command_line, "-kernel"])
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(archive);
        command
    }

    /// Until its first program has said something.
    pub(super) fn first_byte(&self) -> Result<Took> {
        first_byte(&self.qemu(&self.saying))
    }

    /// The program's work on a directory of this host.
    pub(super) fn files(&self, program: &str) -> Result<Took> {
        fs::write(self.scratch.path().join("time.py"), program).context("could not write the program")?;
        let socket = self.scratch.path().join("fs.sock");
        let _served = Served::start(&socket)?;
        let mut command = self.qemu(&self.sharing);
        command
            .args(["-object", "memory-backend-memfd,id=memory,size=512M,share=on"])
            .args(["-machine", "memory-backend=memory"])
            // A device of the old kind is not spoken of by vhost-user: virtiofsd ends as soon as the machine's driver comes up.
            .args(["-global", "virtio-mmio.force-legacy=false"])
            .arg("-chardev")
            .arg(format!("socket,id=fs,path={}", socket.display()))
            .args(["-device", "vhost-user-fs-device,chardev=fs,tag=host"]);
        steps(&command)
    }
}

/// How many thousand ticks a second the processor counts, as ours are told too: on a busy host the kernel cannot measure it, and waits for ever.
fn ticks(machines: &Path) -> Option<u64> {
    let noted = fs::read(machines.join("monitor-0")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&noted).ok()?.get("ticks")?.as_u64()
}

/// How long it may take until it can be connected with.
const PATIENCE: Duration = Duration::from_secs(10);

/// A virtiofsd that shows this host's files, ended when dropped.
struct Served(Child);

impl Served {
    fn start(socket: &Path) -> Result<Served> {
        let _ = fs::remove_file(socket);
        let child = Command::new(VIRTIOFSD)
            .arg(format!("--socket-path={}", socket.display()))
            // It cannot change roots into what is its root already.
            .args(["-o", "source=/", "-o", "cache=auto", "-o", "sandbox=chroot"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("could not run {VIRTIOFSD}"))?;
        let mut served = Served(child);
        let end = Instant::now() + PATIENCE;
        while !socket.exists() {
            if Instant::now() >= end {
                bail!("{VIRTIOFSD} made no socket");
            }
            if let Some(status) = served.0.try_wait()? {
                bail!("{VIRTIOFSD} ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn busybox() -> Result<PathBuf> {
    program("busybox").context("there is no busybox")
}

/// The files of Debian's kernel package.
fn unpack(version: &str, scratch: &Scratch) -> Result<PathBuf> {
    let place = scratch.folder("package")?;
    let package = format!("linux-image-{version}");
    let script = "apt-get download -qq \"$1\" && dpkg-deb -x \"$1\"_*.deb tree";
    let status = Command::new("sh").args(["-ec", script, "sh", &package]).current_dir(&place).status()?;
    if !status.success() {
        bail!("{package} cannot be had");
    }
    Ok(place.join("tree"))
}

/// An archive in which busybox runs this script and ends the machine.
fn archive(scratch: &Scratch, name: &str, script: &str, unpacked: &Path) -> Result<PathBuf> {
    let root = scratch.folder(&format!("{name}-root"))?;
    for place in ["bin", "dev", "proc", "sys", "host", "modules"] {
        fs::create_dir_all(root.join(place))?;
    }
    fs::copy(busybox()?, root.join("bin/busybox")).context("could not copy busybox")?;
    let applets = ["sh", "mount", "insmod", "chroot", "reboot", "echo"];
    for applet in applets {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    if name == "sharing" {
        for module in MODULES {
            let found =
                Command::new("find").arg(unpacked).args(["-name", &format!("{module}.ko")]).output()?;
            let found = String::from_utf8_lossy(&found.stdout).trim().to_owned();
            if !found.is_empty() {
                fs::copy(&found, root.join("modules").join(format!("{module}.ko")))?;
            }
        }
    }
    let init = root.join("init");
    fs::write(&init, format!("#!/bin/sh\n{script}\nexec reboot -f\n"))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let path = scratch.path().join(format!("{name}.cpio"));
    let pack = "find . | busybox cpio -o -H newc > \"$1\" 2> /dev/null";
    let status = Command::new("sh").args(["-ec", pack, "sh"]).arg(&path).current_dir(&root).status()?;
    if !status.success() {
        bail!("busybox could not pack {name}");
    }
    Ok(path)
}
