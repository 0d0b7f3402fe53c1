//! One sandbox's folder: its files, its lock and the way to its keeper.

use super::{Error, Store, failed};
use airlock_protocol::{
    SandboxId,
    spec::Spec,
    state::{State, Status},
};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest path `bind` and `connect` take (`sun_path` less its closing zero).
const LONGEST_SOCKET_PATH: usize = 107;

/// Longest that a keeper clears up after its sandbox, usually; and how often somebody who waits for it looks.
const LONGEST_END: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What a sandbox's disk calls the place of its workspace's copy.
pub const WORKSPACE: &str = "workspace";
/// What differs from the host in it. The kernel's own files are beside it, in `work`.
pub const UPPER: &str = "upper";

/// The folder of one sandbox. Holds nothing open.
#[derive(Debug, Clone)]
pub struct Sandbox {
    store: Store,
    id: SandboxId,
    folder: PathBuf,
}

/// The flock on a sandbox: whoever holds it is its keeper, or is about to start or remove it.
///
/// It belongs to the open file, so a child that inherits the descriptor holds it too, without a gap.
#[derive(Debug)]
pub struct Lock(OwnedFd);

/// Where a keeper listens, short enough for the kernel whatever the length of the state directory's path.
/// Keep it until `bind` or `connect` has returned.
#[derive(Debug)]
pub struct ControlPath {
    path: PathBuf,
    _folder: Option<OwnedFd>,
}

impl Sandbox {
    pub(super) fn new(store: &Store, id: SandboxId) -> Sandbox {
        let folder = store.sandboxes().join(id.as_str());
        Sandbox { store: store.clone(), id, folder }
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the sandbox writes, where it writes to disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// What of its workspace differs from the host, where it is copied on write and the disk is no file system of its own.
    pub fn workspace_layer(&self) -> PathBuf {
        self.disk().join(WORKSPACE).join(UPPER)
    }

    /// What the keeper itself has to say. The lock is on this file: each file of a sandbox costs its start.
    pub fn keeper_log(&self) -> PathBuf {
        self.folder.join("keeper.log")
    }

    /// What the program wrote: the current file; older ones are `log.1.jsonl` and so on.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log.jsonl")
    }

    /// The state directory it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What was asked for.
    pub fn spec(&self) -> Result<Spec, Error> {
        read(&self.folder.join("spec.json"))
    }

    /// What the keeper last wrote. Not repaired: see [`Sandbox::repaired_state`].
    pub fn state(&self) -> Result<State, Error> {
        read(&self.folder.join("state.json"))
    }

    /// The state of a sandbox that is being made.
    pub fn first_state(&self, spec: &Spec) -> State {
        State {
            id: self.id.clone(),
            name: spec.name.clone(),
            created_at: super::now(),
            copied_since: None,
            started_at: None,
            status: Status::Creating,
            exit: None,
            keeper_pid: None,
            init_pid: None,
            restarts: 0,
            limits: Vec::new(),
            id_map: Vec::new(),
            group_map: Vec::new(),
            machine: None,
            health: None,
            note: None,
            published: Vec::new(),
            placeholders: Vec::new(),
            cgroups: Vec::new(),
        }
    }

    /// Writes `spec.json` of a sandbox that nobody else sees yet.
    pub(super) fn write_first_spec(&self, spec: &Spec) -> Result<(), Error> {
        let path = self.folder.join("spec.json");
        let text = serde_json::to_vec(spec).map_err(|err| failed("write", &path)(err.into()))?;
        std::fs::write(&path, text).map_err(failed("write", &path))
    }

    /// Replaces `spec.json`.
    pub fn write_spec(&self, spec: &Spec) -> Result<(), Error> {
        write(&self.folder, "spec.json", spec).map(drop)
    }

    /// Replaces `state.json`: readers see the old or the new one, whole. Only the holder of the lock may call it.
    pub fn write_state(&self, state: &State) -> Result<(), Error> {
        write(&self.folder, "state.json", state).map(drop)
    }

    /// As [`Sandbox::write_state`], and on disk when it returns.
    pub fn write_state_durably(&self, state: &State) -> Result<(), Error> {
        let file = write(&self.folder, "state.json", state)?;
        file.sync_all().map_err(failed("sync", &self.folder.join("state.json")))?;
        let folder = File::open(&self.folder).map_err(failed("open", &self.folder))?;
        folder.sync_all().map_err(failed("sync", &self.folder))
    }

    /// Takes the lock, or `None` if a keeper (or somebody else) holds it.
    pub fn try_lock(&self) -> Result<Option<Lock>, Error> {
        let path = self.keeper_log();
        let file = open_lock(&path, OFlags::CREATE)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed("lock", &path)(errno.into())),
        }
    }

    /// Waits until nobody holds the lock, and takes it.
    pub fn lock(&self) -> Result<Lock, Error> {
        let path = self.keeper_log();
        let file = open_lock(&path, OFlags::CREATE)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .map_err(|errno| failed("lock", &path)(errno.into()))?;
        Ok(Lock(file))
    }

    /// Takes the lock of a sandbox that does not run. Its keeper may hold it a moment longer, while it clears up; `None` if
    /// somebody holds it all the same.
    pub fn lock_of_ended(&self) -> Result<Option<Lock>, Error> {
        let end = Instant::now() + LONGEST_END;
        loop {
            let is_live = self.state().is_ok_and(|state| state.status.is_live());
            match self.try_lock()? {
                None if !is_live && Instant::now() < end => std::thread::sleep(LOOK_AGAIN),
                taken_or_not => return Ok(taken_or_not),
            }
        }
    }

    /// Makes the lock's file and takes it; `None` if somebody else was there before.
    pub(super) fn first_lock(&self) -> Result<Option<Lock>, Error> {
        let path = self.keeper_log();
        let file = match open_lock(&path, OFlags::CREATE | OFlags::EXCL) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                return Ok(None);
            }
            other => other?,
        };
        Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(Lock(file)))
    }

    /// Where its keeper listens.
    pub fn control_path(&self) -> Result<ControlPath, Error> {
        let path = self.folder.join("control.sock");
        if path.as_os_str().len() <= LONGEST_SOCKET_PATH {
            return Ok(ControlPath { path, _folder: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.folder, flags, Mode::empty())
            .map_err(|errno| failed("open", &self.folder)(errno.into()))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/control.sock", folder.as_raw_fd()));
        Ok(ControlPath { path, _folder: Some(folder) })
    }
}

impl Lock {
    /// The lock as a keeper inherits it from the command that made the sandbox.
    pub fn inherited(fd: OwnedFd) -> Lock {
        Lock(fd)
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ControlPath {
    /// The path to bind or connect to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open_lock(path: &Path, extra: OFlags) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | extra;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed("open", path)(errno.into()))
}

/// Whether nothing is in a directory. One that cannot be looked into may hold something.
pub fn is_empty(directory: BorrowedFd<'_>) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(opened) = rustix::fs::openat(directory, ".", flags, Mode::empty()) else { return false };
    let Ok(mut entries) = rustix::fs::Dir::read_from(&opened) else { return false };
    let is_self = |entry: &rustix::fs::DirEntry| [c".", c".."].contains(&entry.file_name());
    entries.all(|entry| entry.is_ok_and(|entry| is_self(&entry)))
}

/// Reads a file of ours.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = std::fs::read(path).map_err(failed("read", path))?;
    serde_json::from_slice(&bytes).map_err(|source| Error::Unreadable { path: path.to_owned(), source })
}

/// Replaces a file of ours: readers see the old or the new one, whole.
pub(crate) fn write<T: Serialize>(folder: &Path, name: &str, value: &T) -> Result<File, Error> {
    let path = folder.join(name);
    let bytes =
        serde_json::to_vec(value).map_err(|source| Error::Unreadable { path: path.clone(), source })?;
    let fresh = folder.join(format!(".{name}"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&fresh, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("make", &fresh)(errno.into()))?;
    let mut file = File::from(file);
    file.write_all(&bytes).map_err(failed("write", &fresh))?;
    std::fs::rename(&fresh, &path).map_err(failed("replace", &path))?;
    Ok(file)
}
