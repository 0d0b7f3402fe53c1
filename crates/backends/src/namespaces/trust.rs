//! The sandbox's own certificate in the trust stores of its root. Nothing is written there: what lies over a store is in memory, is
//! the sandbox's alone, cannot be written from inside, and is gone at the end.

use super::{During, Failed, root::fd_path};
use airlock_images::trust::{self, java};
use airlock_linux::mount::{self, Depth, Overlay};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// The most bytes of all files of one directory.
const LARGEST_DIRECTORY: usize = 32 << 20;
/// The most Javas of one directory that are looked at.
const MOST_JAVAS: usize = 64;

/// Stores that are being covered.
pub(super) struct Stores<'a> {
    root: BorrowedFd<'a>,
    /// Where what covers them lies, as a directory.
    memory: OwnedFd,
    certificate: &'a str,
    der: Vec<u8>,
    /// Files that hold the certificate already.
    done: Vec<u64>,
    /// Copies of whole directories, to be made read-only at the end.
    copies: Vec<OwnedFd>,
    /// File systems that show a whole directory with one more certificate.
    shown: Vec<u64>,
    made: usize,
    /// What the root itself trusts, in PEM.
    bundle: Vec<u8>,
}

/// A file system in memory for them, detached.
pub(super) fn memory() -> io::Result<OwnedFd> {
    mount::tmpfs(&[(c"mode", c"755"), (c"size", c"134217728"), (c"nr_inodes", c"20000")])
}

impl<'a> Stores<'a> {
    /// Puts the sandbox's own files in their place, still empty: from here on something of the host may be shown over `/run`.
    pub(super) fn begin(
        root: BorrowedFd<'a>,
        memory: OwnedFd,
        certificate: &'a str,
    ) -> Result<Stores<'a>, Failed> {
        let step = "put the sandbox's certificate in place";
        let der = trust::certificates(certificate.as_bytes())
            .pop()
            .ok_or(io::ErrorKind::InvalidData)
            .during(step)?;
        let own = mount::make_dir(memory.as_fd(), Path::new("own")).during(step)?;
        let tree = mount::clone_tree(own.as_fd(), Path::new(""), Depth::One).during(step)?;
        let target = mount::make_dir(root, Path::new(trust::OWN)).during(step)?;
        mount::attach(tree.as_fd(), target.as_fd()).during(step)?;
        let (done, copies) = (Vec::new(), vec![tree]);
        let shown = Vec::new();
        Ok(Stores { root, memory, certificate, der, done, copies, shown, made: 0, bundle: Vec::new() })
    }

    /// Covers every store that the root has. One that cannot be covered is an error.
    pub(super) fn cover(mut self, java_home: Option<&str>, known_hosts: Option<&str>) -> Result<(), Failed> {
        for path in trust::DIRECTORIES {
            self.directory(Path::new(path)).during(&step(path))?;
        }
        for path in trust::BUNDLES {
            self.file(Path::new(path), |stores, old| Ok(stores.with_bundle(old)))?;
        }
        for path in self.javas(java_home) {
            self.file(&path, |stores, old| {
                java::add(old, &stores.bundle, &stores.der).map_err(io::Error::other)
            })?;
        }
        if let Some(known_hosts) = known_hosts {
            self.known_hosts(known_hosts).during("write the sandbox's known hosts")?;
            self.file(Path::new(trust::SSH_CONFIG), |_, old| Ok(trust::ssh_config(old)))?;
        }
        self.own_files().during("write the sandbox's certificate")?;
        for copy in &self.copies {
            mount::make_read_only(copy.as_fd(), Depth::One).during("make a trust store read-only")?;
        }
        Ok(())
    }

    fn with_bundle(&mut self, old: &[u8]) -> Vec<u8> {
        let new = trust::bundle(old, self.certificate);
        if self.bundle.is_empty() {
            self.bundle = old.to_vec();
        }
        new
    }

    fn known_hosts(&self, text: &str) -> io::Result<()> {
        let own = mount::make_dir(self.memory.as_fd(), Path::new("own"))?;
        write(own.as_fd(), OsStr::new(trust::OWN_KNOWN_HOSTS), text.as_bytes())
    }

    fn own_files(&self) -> io::Result<()> {
        let seen = rustix::fs::fstat(mount::open_beneath(self.root, Path::new(trust::OWN))?)?;
        if !self.is_ours(&seen)? {
            return Err(io::Error::other(format!("something of the host is shown over {}", trust::OWN)));
        }
        let own = mount::make_dir(self.memory.as_fd(), Path::new("own"))?;
        write(own.as_fd(), OsStr::new(trust::OWN_CERTIFICATE), self.certificate.as_bytes())?;
        write(own.as_fd(), OsStr::new(trust::OWN_BUNDLE), &trust::bundle(&self.bundle, self.certificate))
    }

    /// A directory in which certificates are found by their hashes is shown with one more.
    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let Some(place) = self.there(path)? else { return Ok(()) };
        let seen = rustix::fs::fstat(&place)?;
        let is_done = self.is_ours(&seen)? || self.shown.contains(&seen.st_dev);
        if FileType::from_raw_mode(seen.st_mode) != FileType::Directory || is_done {
            return Ok(());
        }
        let entries = entries(&place, trust::MOST_ENTRIES)?;
        if !entries.iter().any(|(name, _)| trust::is_hashed(name.to_bytes())) {
            return Ok(());
        }
        let name = self.next_name();
        let more = mount::make_dir(self.memory.as_fd(), Path::new(&name))?;
        let is_taken = |name: &str| entries.iter().any(|(own, _)| own.to_bytes() == name.as_bytes());
        if let Some(free) = trust::subject_hash(&self.der).and_then(|hash| trust::free_name(&hash, is_taken))
        {
            write(more.as_fd(), OsStr::new(&free), self.certificate.as_bytes())?;
        }
        match overlaid(&place, &more) {
            Ok(tree) => {
                self.shown.push(rustix::fs::fstat(&tree)?.st_dev);
                mount::attach(tree.as_fd(), place.as_fd())?;
                show_directories(&place, &tree, &entries)
            }
            // The root is too many overlays already, or of a kind that none can lie over.
            Err(_) => {
                copy_entries(&place, &more, &entries)?;
                let tree = mount::clone_tree(self.memory.as_fd(), Path::new(&name), Depth::Recursive)?;
                mount::attach(tree.as_fd(), place.as_fd())?;
                self.copies.push(tree);
                Ok(())
            }
        }
    }

    /// A file is covered by what `change` makes of it.
    fn file(
        &mut self,
        path: &Path,
        change: impl Fn(&mut Self, &[u8]) -> io::Result<Vec<u8>>,
    ) -> Result<(), Failed> {
        let step = step(&path.display().to_string());
        let Some(place) = self.there(path).during(&step)? else { return Ok(()) };
        self.cover_file(&place, change).during(&step)
    }

    /// What a path of the root leads to; where it leads nowhere, no program reads a store there.
    fn there(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match mount::open_beneath(self.root, path) {
            // What the kernel tells is no store, whatever link leads to it: it might be about us.
            Ok(place) if mount::is_kernels(&place) => Ok(None),
            Ok(place) => Ok(Some(place)),
            Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(err) if err.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn cover_file(
        &mut self,
        place: &OwnedFd,
        change: impl Fn(&mut Self, &[u8]) -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        let seen = rustix::fs::fstat(place)?;
        let is_ours = self.is_ours(&seen)?;
        let is_file = FileType::from_raw_mode(seen.st_mode) == FileType::RegularFile;
        if !is_file || (is_ours && self.done.contains(&seen.st_ino)) {
            return Ok(());
        }
        let new = change(self, &read(place)?)?;
        if is_ours {
            // Part of a copy, which is not read-only yet.
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
            File::from(rustix::fs::open(fd_path(place), flags, Mode::empty())?).write_all(&new)?;
            self.done.push(seen.st_ino);
            return Ok(());
        }
        let name = self.next_name();
        write(self.memory.as_fd(), OsStr::new(&name), &new)?;
        let tree = mount::clone_tree(self.memory.as_fd(), Path::new(&name), Depth::One)?;
        self.done.push(rustix::fs::fstat(&tree)?.st_ino);
        mount::make_read_only(tree.as_fd(), Depth::One)?;
        mount::attach(tree.as_fd(), place.as_fd())
    }

    /// Where stores of Java may be.
    fn javas(&self, java_home: Option<&str>) -> Vec<PathBuf> {
        let mut homes: Vec<PathBuf> = java_home.map(PathBuf::from).into_iter().collect();
        for folder in java::HOMES {
            let Ok(place) = mount::open_beneath(self.root, Path::new(folder)) else { continue };
            // More than anybody installs: the stores that are known by name are covered in any case.
            let inside = entries(&place, MOST_JAVAS).unwrap_or_default();
            let path = |name: &CString| Path::new(folder).join(OsStr::from_bytes(name.to_bytes()));
            homes.extend(inside.iter().map(|(name, _)| path(name)));
        }
        let in_homes = homes.iter().flat_map(|home| java::IN_HOME.map(|store| home.join(store)));
        java::STORES.iter().map(PathBuf::from).chain(in_homes).collect()
    }

    fn is_ours(&self, seen: &Stat) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.memory)?.st_dev == seen.st_dev)
    }

    fn next_name(&mut self) -> String {
        self.made += 1;
        self.made.to_string()
    }
}

fn step(path: &str) -> String {
    format!("put the sandbox's certificate into {path}")
}

/// What is in a directory, by name; an error if it is too much.
fn entries(place: &OwnedFd, most: usize) -> io::Result<Vec<(CString, FileType)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(fd_path(place), flags, Mode::empty()) {
        Err(rustix::io::Errno::NOTDIR) => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut entries = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            let seen = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            kind = seen.map_or(kind, |seen| FileType::from_raw_mode(seen.st_mode));
        }
        entries.push((entry.file_name().to_owned(), kind));
        if entries.len() > most {
            return Err(io::Error::other(format!("it has more than {most} entries")));
        }
    }
    Ok(entries)
}

/// A directory with what is in another besides, detached. Nobody can write there.
fn overlaid(place: &OwnedFd, more: &OwnedFd) -> io::Result<OwnedFd> {
    let (more, place) = (fd_path(more), fd_path(place));
    mount::overlay(&Overlay { lower: &[Path::new(&more), Path::new(&place)], upper: None })
}

/// Shows the directories of a directory in an overlay of it, with what is mounted there.
fn show_directories(place: &OwnedFd, overlay: &OwnedFd, entries: &[(CString, FileType)]) -> io::Result<()> {
    for (name, _) in entries.iter().filter(|(_, kind)| *kind == FileType::Directory) {
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        let tree = mount::clone_tree(place.as_fd(), path, Depth::Recursive)?;
        mount::attach(tree.as_fd(), mount::open_place(overlay.as_fd(), path)?.as_fd())?;
    }
    Ok(())
}

/// Files and links are copied, directories are shown as they are.
fn copy_entries(from: &OwnedFd, to: &OwnedFd, entries: &[(CString, FileType)]) -> io::Result<()> {
    let mut bytes = 0usize;
    for (name, kind) in entries {
        match *kind {
            FileType::Symlink => {
                rustix::fs::symlinkat(rustix::fs::readlinkat(from, name.as_c_str(), Vec::new())?, to, name)?;
            }
            FileType::RegularFile => bytes = bytes.saturating_add(copy_file(from, to, name)?),
            FileType::Directory => {
                let path = Path::new(OsStr::from_bytes(name.to_bytes()));
                let tree = mount::clone_tree(from.as_fd(), path, Depth::Recursive)?;
                mount::attach(tree.as_fd(), mount::make_dir(to.as_fd(), path)?.as_fd())?;
            }
            _ => {}
        }
        if bytes > LARGEST_DIRECTORY {
            return Err(io::Error::other(format!("it holds more than {LARGEST_DIRECTORY} bytes")));
        }
    }
    Ok(())
}

fn copy_file(from: &OwnedFd, to: &OwnedFd, name: &CStr) -> io::Result<usize> {
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let place = mount::open_place(from.as_fd(), path)?;
    let text = match read(&place) {
        // Who may not read it here may not read it there.
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => return Ok(0),
        read => read?,
    };
    write(to.as_fd(), path.as_os_str(), &text)?;
    Ok(text.len())
}

/// The content of a regular file of bounded size.
fn read(place: &OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(rustix::fs::open(
        fd_path(place),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    let mut bytes = Vec::new();
    let most = trust::LARGEST.saturating_add(1);
    file.take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    match bytes.len() > trust::LARGEST {
        true => Err(io::Error::other(format!("it has more than {} bytes", trust::LARGEST))),
        false => Ok(bytes),
    }
}

fn write(directory: BorrowedFd<'_>, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o644);
    let file = rustix::fs::openat(directory, name, flags, mode)?;
    rustix::fs::fchmod(&file, mode)?;
    File::from(file).write_all(bytes)
}
