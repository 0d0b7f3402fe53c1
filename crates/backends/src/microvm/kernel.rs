//! Kernels and their modules in the state directory, and the archives made of them.
//!
//! ```text
//! machines/current                 the version that machines boot
//! machines/kernels/<version>/      vmlinuz, *.ko, order (names of modules, one a line), digests.json
//! machines/boot/<digest>.cpio      what it boots into
//! machines/boot/<digest>.elf       the kernel as it is in memory, for a monitor that unpacks none
//! ```
//!
//! Everything is put in place as a whole. What was put there is compared with its digest when it is used and whenever its inode or change
//! time is not the one noted then.

use super::{elf, initramfs};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// A kernel that is here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// What it calls itself.
    pub version: String,
    /// The kernel.
    pub image: PathBuf,
    /// Its modules, in the order they are loaded in.
    pub modules: Vec<PathBuf>,
    /// Those that only a machine with disks loads.
    pub disk_modules: Vec<PathBuf>,
    /// Those that only a machine with a vsock loads.
    pub vsock_modules: Vec<PathBuf>,
    /// Tells it from all others.
    pub digest: String,
}

/// Modules that a machine needs, in the order they are loaded in. One that is built in is no file.
pub const MODULES: [&str; 12] = [
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_console",
    "failover",
    "net_failover",
    "virtio_net",
    "fuse",
    "virtio_balloon",
    "virtio-rng",
    "inet_diag",
    "tcp_diag",
];

/// Modules that a machine needs whose root is on disks, loaded when that is known.
pub const DISK_MODULES: [&str; 3] = ["virtio_blk", "squashfs", "overlay"];
/// Modules that a machine needs whose ports are a vsock's.
pub const VSOCK_MODULES: [&str; 3] =
    ["vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"];
/// Names the modules that every machine loads.
const ORDER: &str = "order";
/// Names those for disks.
const DISK_ORDER: &str = "disk";
/// Names those for a vsock.
const VSOCK_ORDER: &str = "vsock";

/// Why there is no kernel to boot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// None was fetched.
    #[error("there is no kernel for machines here")]
    Missing,
    /// Something of it is not what it was.
    #[error("{0} is not what was fetched")]
    Changed(PathBuf),
    /// It is packed in a way that nobody here unpacks.
    #[error("{0} is neither an ELF file nor packed by LZ4, as Debian's cloud kernel is")]
    Packed(PathBuf),
    /// A file could not be read or written.
    #[error("could not read or write {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Digests(BTreeMap<String, String>);

impl Kernel {
    /// The one that was fetched last.
    pub fn usual(home: &Path) -> Result<Kernel, Error> {
        let folder = folder(home);
        let version = match fs::read_to_string(folder.join("current")) {
            Ok(version) => version.trim().to_owned(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Err(Error::Missing),
            Err(source) => return Err(Error::File { path: folder.join("current"), source }),
        };
        let kernel = folder.join("kernels").join(&version);
        let Digests(digests) = parse(&kernel.join("digests.json"))?;
        for (name, digest) in &digests {
            verify(&kernel.join(name), digest)?;
        }
        let digest = digest_of(&[&serde_json::to_vec(&digests).unwrap_or_default()]);
        Kernel { version, image: kernel.join("vmlinuz"), digest, ..Kernel::default() }.with_modules(&kernel)
    }

    /// A person's own. Its modules are the files that `FILE.modules/order` names, in that directory; without it they are built in.
    pub fn own(image: &Path) -> Result<Kernel, Error> {
        let mut folder = image.as_os_str().to_owned();
        folder.push(".modules");
        let folder = PathBuf::from(folder);
        let version = image.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let kernel =
            Kernel { version, image: image.to_owned(), ..Kernel::default() }.with_modules(&folder)?;
        let mut parts = vec![read(image)?];
        for module in kernel.modules.iter().chain(&kernel.disk_modules).chain(&kernel.vsock_modules) {
            parts.push(read(module)?);
        }
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        Ok(Kernel { digest: digest_of(&parts), ..kernel })
    }

    /// With the modules that the files in this directory name.
    fn with_modules(self, folder: &Path) -> Result<Kernel, Error> {
        let [modules, disk_modules, vsock_modules] =
            [named(folder, ORDER)?, named(folder, DISK_ORDER)?, named(folder, VSOCK_ORDER)?];
        Ok(Kernel { modules, disk_modules, vsock_modules, ..self })
    }

    /// What it boots into, made where it is not here yet.
    pub fn archive(&self, home: &Path, carrier: &[u8], guest: &[u8]) -> Result<(PathBuf, String), Error> {
        let digest = digest_of(&[self.digest.as_bytes(), carrier, guest]);
        let path = folder(home).join("boot").join(format!("{digest}.cpio"));
        keep(&path, || self.packed(carrier, guest))?;
        Ok((path, digest))
    }

    fn packed(&self, carrier: &[u8], guest: &[u8]) -> Result<Vec<u8>, Error> {
        let contents = |modules: &[PathBuf]| -> Result<Vec<(String, Vec<u8>)>, Error> {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            modules.iter().map(|module| Ok((name(module), read(module)?))).collect()
        };
        let modules = initramfs::Modules {
            usual: &contents(&self.modules)?,
            for_disks: &contents(&self.disk_modules)?,
            for_vsock: &contents(&self.vsock_modules)?,
        };
        Ok(initramfs::of_machine(carrier, guest, modules))
    }

    /// Its image as it is in memory, made where it is not here yet.
    pub fn unpacked(&self, home: &Path) -> Result<PathBuf, Error> {
        let image = read(&self.image)?;
        if elf::is_elf(&image) {
            return Ok(self.image.clone());
        }
        let path = folder(home).join("boot").join(format!("{}.elf", digest_of(&[&image])));
        keep(&path, || elf::unpack(&image).ok_or_else(|| Error::Packed(self.image.clone())))?;
        Ok(path)
    }
}

/// Makes a file that is not here yet; one that is here has to be what was made.
fn keep(path: &Path, make: impl FnOnce() -> Result<Vec<u8>, Error>) -> Result<(), Error> {
    let noted = beside(path, "sha256");
    if let Ok(whole) = fs::read_to_string(&noted)
        && path.exists()
    {
        return verify(path, &whole);
    }
    let made = make()?;
    put(path, &made)?;
    put(&noted, digest_of(&[&made]).as_bytes())
}

/// Puts a kernel in place: its image, and the modules that `found` has of those a machine needs.
pub fn install(
    home: &Path,
    version: &str,
    image: &[u8],
    found: impl Fn(&str) -> io::Result<Option<Vec<u8>>>,
) -> Result<Kernel, Error> {
    let kernel = folder(home).join("kernels").join(version);
    let mut digests = BTreeMap::new();
    let mut place = |name: &str, content: &[u8]| {
        digests.insert(name.to_owned(), digest_of(&[content]));
        put(&kernel.join(name), content)
    };
    place("vmlinuz", image)?;
    for (file, modules) in
        [(ORDER, &MODULES[..]), (DISK_ORDER, &DISK_MODULES[..]), (VSOCK_ORDER, &VSOCK_MODULES[..])]
    {
        let mut order = String::new();
        for module in modules.iter().copied() {
            let name = format!("{module}.ko");
            let content =
                found(module).map_err(|source| Error::File { path: PathBuf::from(&name), source })?;
            if let Some(content) = content {
                place(&name, &content)?;
                order += &format!("{name}\n");
            }
        }
        place(file, order.as_bytes())?;
    }
    put(&kernel.join("digests.json"), &serde_json::to_vec(&Digests(digests)).unwrap_or_default())?;
    put(&folder(home).join("current"), version.as_bytes())?;
    Kernel::usual(home)
}

/// Where everything about machines lies.
pub(super) fn folder(home: &Path) -> PathBuf {
    home.join("machines")
}

/// The digest of several pieces, each with its length.
pub(super) fn digest_of(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    if let [whole] = parts {
        hash.update(whole);
    } else {
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// The modules that a file in their directory names; none where there is no such file.
fn named(modules: &Path, file: &str) -> Result<Vec<PathBuf>, Error> {
    let path = modules.join(file);
    match fs::read_to_string(&path) {
        Ok(order) => Ok(order.lines().map(|name| modules.join(name)).collect()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::File { path, source }),
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let broken = |err: serde_json::Error| Error::File { path: path.to_owned(), source: err.into() };
    serde_json::from_slice(&read(path)?).map_err(broken)
}

/// Writes a file that all may read and nobody writes, whole or not at all.
pub(super) fn put(path: &Path, content: &[u8]) -> Result<(), Error> {
    let failed = |source: io::Error| Error::File { path: path.to_owned(), source };
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(failed)?;
    let temporary = beside(path, &format!("new-{}", std::process::id()));
    fs::write(&temporary, content).map_err(failed)?;
    make_readable(&temporary).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

/// All may read it, nobody writes it.
pub(super) fn make_readable(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o444))
}

/// The digest of a file, which may be larger than the memory.
pub(super) fn digest_of_file(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (fs::File::open(path)?, Sha256::new());
    let mut piece = vec![0; 1 << 20];
    while let count @ 1.. = file.read(&mut piece)? {
        hash.update(piece.get(..count).unwrap_or_default());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares a file with its digest, unless it is the one that was compared last.
pub(super) fn verify(path: &Path, digest: &str) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let noted = beside(path, "checked");
    let identity = identity(path).map_err(failed)?;
    if fs::read_to_string(&noted).is_ok_and(|noted| noted == identity) {
        return Ok(());
    }
    if digest_of_file(path).map_err(failed)? != digest.trim() {
        return Err(Error::Changed(path.to_owned()));
    }
    put(&noted, identity.as_bytes())
}

pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

/// What no write to a file leaves as it was.
fn identity(path: &Path) -> io::Result<String> {
    let about = fs::symlink_metadata(path)?;
    Ok(format!("{} {} {} {}", about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(home: &Path) -> Kernel {
        let found = |name: &str| Ok((name == "fuse").then(|| b"module".to_vec()));
        install(home, "6.1.0-1-cloud-amd64", b"kernel", found).unwrap()
    }

    #[test]
    fn a_kernel_that_was_put_in_place_is_found_with_its_modules() {
        let home = tempfile::tempdir().unwrap();
        assert!(matches!(Kernel::usual(home.path()), Err(Error::Missing)));

        let kernel = installed(home.path());

        assert_eq!(kernel, Kernel::usual(home.path()).unwrap());
        assert_eq!(kernel.version, "6.1.0-1-cloud-amd64");
        let names: Vec<_> = kernel.modules.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["fuse.ko"]);
    }

    #[test]
    fn a_kernel_that_was_changed_is_never_booted() {
        let home = tempfile::tempdir().unwrap();
        let kernel = installed(home.path());

        fs::remove_file(&kernel.image).unwrap();
        fs::write(&kernel.image, b"another").unwrap();

        assert!(matches!(Kernel::usual(home.path()), Err(Error::Changed(path)) if path == kernel.image));
    }

    #[test]
    fn an_archive_is_made_once_for_the_programs_in_it() {
        let home = tempfile::tempdir().unwrap();
        let kernel = installed(home.path());
        let (first, _) = kernel.archive(home.path(), b"carrier", b"guest").unwrap();
        let (again, _) = kernel.archive(home.path(), b"carrier", b"guest").unwrap();
        let (other, _) = kernel.archive(home.path(), b"carrier 2", b"guest").unwrap();
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn modules_of_a_persons_own_kernel_lie_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("vmlinuz");
        fs::write(&image, b"kernel").unwrap();
        assert_eq!(Kernel::own(&image).unwrap().modules, Vec::<PathBuf>::new());

        let modules = folder.path().join("vmlinuz.modules");
        fs::create_dir(&modules).unwrap();
        fs::write(modules.join("fuse.ko"), b"module").unwrap();
        fs::write(modules.join("order"), "fuse.ko\n").unwrap();

        assert_eq!(Kernel::own(&image).unwrap().modules, [modules.join("fuse.ko")]);
    }
}
