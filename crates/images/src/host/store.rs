//! Generations of the layer on disk: many keepers read, one at a time writes, and a kill at any moment leaves either the
//! old generation or the new one.
//!
//! ```text
//! $AIRLOCK_HOME/host/root/
//!   writer                 flock: who may build
//!   current -> generation-3   replaced by rename
//!   generation-3/{lock,index,layer/0,layer/1,…}   `lock` is held shared by every sandbox that uses it
//!   making/                a build under way, or what a killed one left
//! ```

use super::{Error, Reader, index::Index, layer};
use airlock_protocol::fingerprint::fingerprint;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

/// The directory that holds the generations for one reader.
#[derive(Debug)]
pub(super) struct Store {
    dir: OwnedFd,
    path: PathBuf,
}

/// A generation that cannot be removed while this value lives.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) path: PathBuf,
    pub(super) lock: OwnedFd,
    pub(super) index: Index,
}

/// The right to build and publish, until dropped.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    store: &'a Store,
    _lock: OwnedFd,
}

const MAKING: &str = "making";
const GENERATION: &str = "generation-";

impl Store {
    /// The store for `reader` below `cache`, made if it is not there.
    pub(super) fn at(cache: &Path, reader: &Reader) -> Result<Self, Error> {
        let path = cache.join(reader_name(reader));
        let open =
            || rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let dir = match open() {
            Err(Errno::NOENT) => {
                let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
                made.map_err(|source| Error::Make { path: path.clone(), source })?;
                open()
            }
            outcome => outcome,
        };
        let dir = dir.map_err(|source| Error::Make { path: path.clone(), source: source.into() })?;
        Ok(Self { dir, path })
    }

    /// The current generation, if there is one and it can be read.
    pub(super) fn current(&self) -> Result<Option<Generation>, Error> {
        // A generation can be replaced and removed between finding and locking it; the next one is then current.
        for _ in 0..100 {
            let name = match rustix::fs::readlinkat(&self.dir, "current", Vec::new()) {
                Ok(name) => PathBuf::from(std::ffi::OsStr::from_bytes(name.as_bytes())),
                Err(Errno::NOENT) => return Ok(None),
                Err(source) => return Err(self.failed("current", source)),
            };
            match self.lock_generation(&name) {
                Ok(Some(lock)) => return Ok(self.load(&name, lock)),
                Ok(None) => {}
                Err(Errno::NOENT) if !self.is_current(&name) => {}
                // Damaged: to be made again.
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(source) => return Err(self.failed("lock", source)),
            }
        }
        Ok(None)
    }

    /// Waits for the right to write.
    pub(super) fn write(&self) -> Result<Writer<'_>, Error> {
        self.lock_writer(FlockOperation::LockExclusive).map_err(|source| self.failed("writer", source))
    }

    /// The right to write, unless somebody has it.
    pub(super) fn try_write(&self) -> Result<Option<Writer<'_>>, Error> {
        match self.lock_writer(FlockOperation::NonBlockingLockExclusive) {
            Ok(writer) => Ok(Some(writer)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(source) => Err(self.failed("writer", source)),
        }
    }

    fn lock_writer(&self, how: FlockOperation) -> Result<Writer<'_>, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&self.dir, "writer", flags, Mode::RUSR | Mode::WUSR)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, how))?;
        Ok(Writer { store: self, _lock: lock })
    }

    /// Takes the shared lock of a generation; None if it is being removed.
    fn lock_generation(&self, name: &Path) -> Result<Option<OwnedFd>, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&self.dir, name.join("lock"), flags, Mode::empty())?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            outcome => outcome?,
        }
        Ok((rustix::fs::fstat(&lock)?.st_nlink > 0).then_some(lock))
    }

    fn load(&self, name: &Path, lock: OwnedFd) -> Option<Generation> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.dir, name.join("index"), flags, Mode::empty()).ok()?;
        let mut text = Vec::with_capacity(1 << 16);
        std::fs::File::from(file).read_to_end(&mut text).ok()?;
        Some(Generation { path: self.path.join(name), lock, index: Index::read(&text)? })
    }

    fn is_current(&self, name: &Path) -> bool {
        rustix::fs::readlinkat(&self.dir, "current", Vec::new())
            .is_ok_and(|now| now.as_bytes() == name.as_os_str().as_bytes())
    }

    fn failed(&self, what: &str, source: Errno) -> Error {
        Error::Make { path: self.path.join(what), source: source.into() }
    }
}

impl Writer<'_> {
    /// Builds the layer of `index`, makes it current, and removes generations that nobody uses any more.
    pub(super) fn publish(
        &self,
        root: &OwnedFd,
        index: &Index,
        reader: &Reader,
    ) -> Result<Generation, Error> {
        let store = self.store;
        layer::remove(&store.dir, Path::new(MAKING))?;
        let failed = |source| store.failed(MAKING, source);
        rustix::fs::mkdirat(&store.dir, MAKING, Mode::RWXU).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let making = rustix::fs::openat(&store.dir, MAKING, flags, Mode::empty()).map_err(failed)?;
        layer::build(root, index, reader, &making)?;
        write_file(&making, "index", &index.write())
            .map_err(|source| Error::Make { path: store.path.join(MAKING), source })?;
        write_file(&making, "lock", b"")
            .map_err(|source| Error::Make { path: store.path.join(MAKING), source })?;

        let name = PathBuf::from(format!("{GENERATION}{}", self.newest()?.saturating_add(1)));
        rustix::fs::renameat(&store.dir, MAKING, &store.dir, &name).map_err(failed)?;
        layer::remove(&store.dir, Path::new("next"))?;
        rustix::fs::symlinkat(&name, &store.dir, "next").map_err(failed)?;
        rustix::fs::renameat(&store.dir, "next", &store.dir, "current").map_err(failed)?;
        self.sweep(&name)?;
        store.current()?.ok_or_else(|| store.failed("current", Errno::NOENT))
    }

    /// Replaces the index of a generation whose layer stays as it is.
    pub(super) fn refresh(&self, generation: &Generation, index: &Index) -> Result<(), Error> {
        let failed = |source| Error::Make { path: generation.path.join("index"), source };
        let name = generation.path.file_name().map(Path::new).unwrap_or(Path::new(""));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = rustix::fs::openat(&self.store.dir, name, flags, Mode::empty())
            .map_err(|source| failed(source.into()))?;
        write_file(&dir, "index.next", &index.write()).map_err(failed)?;
        rustix::fs::renameat(&dir, "index.next", &dir, "index").map_err(|source| failed(source.into()))
    }

    /// The highest generation number on disk.
    fn newest(&self) -> Result<u64, Error> {
        Ok(self
            .generations()?
            .iter()
            .filter_map(|name| name.to_str()?.strip_prefix(GENERATION)?.parse().ok())
            .max()
            .unwrap_or(0))
    }

    fn generations(&self) -> Result<Vec<PathBuf>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A descriptor of its own: reading moves a position that the open directory keeps.
        let dir = rustix::fs::openat(&self.store.dir, ".", flags, Mode::empty())
            .map_err(|source| self.store.failed("", source))?;
        let names = layer::names(&dir).map_err(|source| self.store.failed("", source))?;
        let paths = names.iter().map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())));
        Ok(paths.filter(|path| path.as_os_str().as_bytes().starts_with(GENERATION.as_bytes())).collect())
    }

    fn sweep(&self, current: &Path) -> Result<(), Error> {
        let store = self.store;
        for name in self.generations()? {
            if name == current {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            match rustix::fs::openat(&store.dir, name.join("lock"), flags, Mode::empty()) {
                Ok(lock) => {
                    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                        continue;
                    }
                    // First of all, and while it is locked: a keeper that waits for it must find it gone.
                    let _ = rustix::fs::unlinkat(&store.dir, name.join("lock"), AtFlags::empty());
                    layer::remove(&store.dir, &name)?;
                }
                // A removal was cut short.
                Err(_) => layer::remove(&store.dir, &name)?,
            }
        }
        Ok(())
    }
}

fn write_file(dir: &OwnedFd, name: &str, text: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    std::fs::File::from(file).write_all(text)
}

fn reader_name(reader: &Reader) -> String {
    match reader {
        Reader::Root => "root".to_owned(),
        Reader::User { uid, groups } => {
            let mut groups = groups.clone();
            groups.sort_unstable();
            let text: Vec<u8> = groups.iter().flat_map(|gid| gid.to_le_bytes()).collect();
            format!("user-{uid}-{:016x}", fingerprint(text))
        }
    }
}
