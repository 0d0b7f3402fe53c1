//! The disk of the second host: a minimal Debian of this machine's own release, from this machine's own package
//! sources, with Debian's cloud kernel. Made once for a recipe and kept.
//!
//! `image::cached_or_built(home)?.disk` is an ext4 file system without partitions; the kernel has the drivers for it
//! built in, so that no initial RAM disk is needed.

use super::{
    cases::User,
    process::{self, output_of, succeed},
};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// What the machine boots from.
pub(super) struct Image {
    /// The kernel, as the boot loader would read it.
    pub(super) kernel: PathBuf,
    /// The root file system.
    pub(super) disk: PathBuf,
    /// An empty file system with project quotas, mounted at `/quota`.
    pub(super) quota: PathBuf,
}

/// The image of this recipe, built now if it was not built before. Needs root only to build.
pub(super) fn cached_or_built(home: &Path) -> Result<Image> {
    install_missing()?;
    let sources = debian_sources()?;
    let place = home.join(format!("image-{:016x}", recipe_hash(&sources)));
    let image = Image {
        kernel: place.join("vmlinuz"),
        disk: place.join("disk.ext4"),
        quota: place.join("quota.ext4"),
    };
    if place.is_dir() {
        return Ok(image);
    }
    let started = Instant::now();
    ensure!(is_root()?, "the disk of the second host can only be made by root: run this with sudo once");
    for stale in old_images(home)? {
        fs::remove_dir_all(&stale).with_context(|| format!("could not remove {}", stale.display()))?;
    }
    let workshop = home.join("image-unfinished");
    fs::create_dir_all(&workshop).with_context(|| format!("could not make {}", workshop.display()))?;
    build(&workshop, &sources, started)?;
    fs::rename(&workshop, &place).with_context(|| format!("could not rename {}", workshop.display()))?;
    super::progress(started, "the disk is made");
    Ok(image)
}

/// What this machine needs to make and boot the second one: program, package.
const TOOLS: [(&str, &str); 4] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.ext4", "e2fsprogs"),
    ("setpriv", "util-linux"),
];

/// What the second host has beyond Debian's essential packages.
const PACKAGES: &str = "systemd,systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,login,uidmap,kmod,procps,\
util-linux,e2fsprogs,python3,libcap2-bin,busybox-static,strace";

/// The package whose dependency is the kernel.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Sparse: only what is written takes room.
const DISK_SIZE: &str = "4G";

/// Units that cost boot time and serve no test, and the terminal that belongs to the kernel's messages.
const MASKED: [&str; 13] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "ldconfig.service",
    "serial-getty@ttyS0.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-tmpfiles-clean.timer",
];

/// Files of the second host: path, content.
const FILES: [(&str, &str); 9] = [
    ("etc/hostname", "second-host\n"),
    ("etc/hosts", "127.0.0.1 localhost second-host\n"),
    ("etc/fstab", "LABEL=suite /suite ext4 ro 0 0\nLABEL=quota /quota ext4 rw,prjquota 0 0\n"),
    ("etc/subuid", "airlock-test:100000:65536\n"),
    ("etc/subgid", "airlock-test:100000:65536\n"),
    ("etc/skel/.bash_profile", LOGIN_PROFILE),
    ("root/.bash_profile", LOGIN_PROFILE),
    // Software emulation on a busy machine has been seen to take 90 seconds to the login, which is the default.
    (
        "etc/systemd/system.conf.d/patience.conf",
        "[Manager]\nDefaultTimeoutStartSec=300\nDefaultDeviceTimeoutSec=300\n",
    ),
    // A machine that cannot boot must end, not wait for a person.
    ("etc/systemd/system/emergency.service", GIVE_UP),
];

const LOGIN_PROFILE: &str = "exec /bin/bash /suite/run.sh\n";

const GIVE_UP: &str = "[Unit]\nDescription=Power off: the machine could not boot\nDefaultDependencies=no\n\
[Service]\nType=oneshot\nExecStart=/bin/systemctl poweroff --force --force\n";

fn install_missing() -> Result<()> {
    let missing: Vec<_> = TOOLS.iter().filter(|(program, _)| !process::is_installed(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    ensure!(
        is_root()?,
        "missing programs; fix: sudo apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    super::progress(Instant::now(), &format!("installing {}", packages.join(" ")));
    succeed(Command::new("apt-get").args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-qq", "--no-install-recommends"]);
    succeed(install.args(packages))
}

fn is_root() -> Result<bool> {
    Ok(output_of(Command::new("id").arg("-u"))?.trim() == "0")
}

/// The lines of a `sources.list` for Debian's own archives, as apt of this machine uses them: whatever mirror it has.
fn debian_sources() -> Result<String> {
    if let Some(sources) = known_sources()? {
        return Ok(sources);
    }
    ensure!(is_root()?, "apt knows no packages yet; fix: sudo apt-get update");
    succeed(Command::new("apt-get").args(["update", "-qq"]))?;
    known_sources()?
        .context("apt of this machine has no Debian source: the second host needs a Debian machine")
}

fn known_sources() -> Result<Option<String>> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"]);
    let text = output_of(targets.args(["Created-By: Packages", "Origin: Debian"]))?;
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    Ok((!lines.is_empty()).then(|| lines.join("\n") + "\n"))
}

fn recipe_hash(sources: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (include_str!("image.rs"), sources, User::ALL.map(User::login)).hash(&mut hasher);
    hasher.finish()
}

fn old_images(home: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(home).with_context(|| format!("could not read {}", home.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("image-") {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn build(workshop: &Path, sources: &str, started: Instant) -> Result<()> {
    super::progress(started, "making the disk: packages");
    succeed(Command::new("apt-get").args(["update", "-qq"]))?;
    let root = workshop.join("root");
    bootstrap(workshop, &root, sources)?;
    super::progress(started, "making the disk: kernel");
    put_kernel(workshop, &root)?;
    super::progress(started, "making the disk: users, terminals, file system");
    put_users(&root)?;
    put_files(&root)?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-L", "second-host", "-E", "lazy_itable_init=1", "-d"]);
    succeed(mkfs.arg(&root).arg(workshop.join("disk.ext4")).arg(DISK_SIZE))?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args([
        "-q",
        "-F",
        "-L",
        "quota",
        "-O",
        "quota,project",
        "-E",
        "lazy_itable_init=1,quotatype=prjquota",
    ]);
    succeed(mkfs.arg(workshop.join("quota.ext4")).arg("1G"))?;
    fs::remove_dir_all(&root).with_context(|| format!("could not remove {}", root.display()))
}

fn bootstrap(workshop: &Path, root: &Path, sources: &str) -> Result<()> {
    let list = workshop.join("sources.list");
    write(&list, sources)?;
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--mode=root", "--variant=essential"]).arg(format!("--include={PACKAGES}"));
    for option in transport_options()? {
        mmdebstrap.arg(format!("--aptopt={option}"));
    }
    mmdebstrap.arg("--aptopt=APT::Install-Recommends \"false\"");
    for excluded in ["man", "locale", "doc", "info"] {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{excluded}/*"));
    }
    succeed(mmdebstrap.arg(release(sources)?).arg(root).arg(list))
}

/// How apt of this machine reaches its mirror: proxies, certificates, retries.
fn transport_options() -> Result<Vec<String>> {
    let dump = output_of(Command::new("apt-config").arg("dump"))?;
    let of_transport =
        |line: &&str| line.starts_with("Acquire::http") || line.starts_with("Acquire::Retries");
    Ok(dump.lines().filter(of_transport).map(|line| line.trim_end_matches(';').to_owned()).collect())
}

/// The release itself is the shortest of `bookworm`, `bookworm-updates`, `bookworm-security`.
fn release(sources: &str) -> Result<&str> {
    let releases = sources.lines().filter_map(|line| line.split(' ').nth(2));
    releases.min_by_key(|name| name.len()).context("apt named no release")
}

/// The package is unpacked, not installed: installing would make an initial RAM disk that nothing uses.
fn put_kernel(workshop: &Path, root: &Path) -> Result<()> {
    let dependencies = output_of(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let mut named = dependencies.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let version = named.next_back().with_context(|| format!("apt knows no {KERNEL}"))?.to_owned();
    let package = format!("linux-image-{version}");
    succeed(Command::new("apt-get").args(["download", "-qq", &package]).current_dir(workshop))?;
    let unpacked = workshop.join("kernel");
    let mut shell = Command::new("sh");
    shell.args(["-ec", "dpkg-deb -x \"$1\"_*.deb kernel && rm \"$1\"_*.deb", "sh", &package]);
    succeed(shell.current_dir(workshop))?;
    let modules = ["lib/modules", "usr/lib/modules"].map(|dir| unpacked.join(dir));
    let modules = modules.iter().find(|dir| dir.is_dir()).context("the kernel package has no modules")?;
    succeed(Command::new("cp").arg("-a").arg(modules).arg(root.join("usr/lib/")))?;
    succeed(Command::new("chroot").arg(root).args(["depmod", &version]))?;
    let kernel = unpacked.join(format!("boot/vmlinuz-{version}"));
    fs::copy(&kernel, workshop.join("vmlinuz"))
        .with_context(|| format!("could not copy {}", kernel.display()))?;
    fs::remove_dir_all(&unpacked).with_context(|| format!("could not remove {}", unpacked.display()))
}

fn put_users(root: &Path) -> Result<()> {
    write(&root.join("etc/skel/.bash_profile"), LOGIN_PROFILE)?;
    for user in User::ALL.into_iter().filter(|user| *user != User::Root) {
        let mut useradd = Command::new("chroot");
        succeed(useradd.arg(root).args(["useradd", "--create-home", "--shell", "/bin/bash", user.login()]))?;
    }
    Ok(())
}

fn put_files(root: &Path) -> Result<()> {
    for (path, content) in FILES {
        write(&root.join(path), content)?;
    }
    let units = root.join("etc/systemd/system");
    for unit in MASKED {
        link("/dev/null", &units.join(unit))?;
    }
    for (number, user) in (1..).zip(User::ALL) {
        let getty = format!("serial-getty@ttyS{number}.service");
        write(&units.join(format!("{getty}.d/login.conf")), &login_on(number, user))?;
        link("/lib/systemd/system/serial-getty@.service", &units.join("getty.target.wants").join(getty))?;
    }
    link("/lib/systemd/system/multi-user.target", &units.join("default.target"))?;
    for mount_point in ["suite", "quota"].map(|name| root.join(name)) {
        fs::create_dir(&mount_point).with_context(|| format!("could not make {}", mount_point.display()))?;
    }
    Ok(())
}

/// A terminal that logs its user in through `login`, hence PAM, hence systemd's session; once, and says when it is over.
fn login_on(number: u8, user: User) -> String {
    let login = user.login();
    format!(
        "[Unit]\nRequiresMountsFor=/suite /quota\n[Service]\nExecStart=\n\
ExecStart=-/sbin/agetty --autologin {login} --noclear ttyS{number} 115200 dumb\n\
ExecStopPost=/bin/sh -c 'printf \"\\\\nhost2|gone|{login}\\\\n\" >/dev/ttyS{number}'\nRestart=no\n"
    )
}

fn write(path: &Path, content: &str) -> Result<()> {
    let Some(parent) = path.parent() else { bail!("{} has no directory", path.display()) };
    fs::create_dir_all(parent).with_context(|| format!("could not make {}", parent.display()))?;
    fs::write(path, content).with_context(|| format!("could not write {}", path.display()))
}

fn link(target: &str, path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { bail!("{} has no directory", path.display()) };
    fs::create_dir_all(parent).with_context(|| format!("could not make {}", parent.display()))?;
    if path.is_symlink() {
        fs::remove_file(path).with_context(|| format!("could not replace {}", path.display()))?;
    }
    symlink(target, path).with_context(|| format!("could not link {}", path.display()))
}
