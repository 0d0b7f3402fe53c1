//! Directories that outlive sandboxes: `volumes/<name>/{meta.json,data/}` in the state directory.
//!
//! A volume is made whole under another name and then renamed, and goes the other way round, so that nobody ever sees
//! half of one. Whoever opens one for a sandbox and whoever removes one holds the lock of all volumes meanwhile: the
//! sandbox's spec is written before its keeper opens the volume, so a removal either sees the spec and refuses, or
//! the keeper finds nothing and makes a fresh one.
//!
//! ```no_run
//! # use airlock_engine::store::{Store, volumes::Error}; use std::path::Path;
//! let store = Store::open(Path::new("/home/ada/.airlock"))?;
//! let volumes = store.volumes()?;
//! volumes.create(&"cache".parse().unwrap(), Default::default())?;
//! for volume in volumes.list()? {
//!     println!("{}", volume.name);
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! - [`owners`]: whose the files of a volume are, and whether a sandbox would see them right
//! - [`size`]: how much there is in one

mod owners;
mod size;

pub use owners::hand_over;
pub use size::Size;

use super::{Store, now, remove_tree, remove_with};
use crate::plan::{Caller, Identity, ids};
use airlock_protocol::{
    Name,
    files::{Persist, Volume, VolumeUse},
    guest::User,
    state::Status,
};
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, renameat_with},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    fs, io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

/// All volumes of a state directory.
#[derive(Debug, Clone)]
pub struct Volumes {
    store: Store,
    folder: PathBuf,
}

/// A sandbox that shows a volume.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Its id.
    pub id: String,
    /// Its name.
    pub sandbox: String,
    /// What it is doing.
    pub status: Status,
    /// Where it shows the volume.
    pub target: PathBuf,
    /// Whether it cannot write there.
    pub read_only: bool,
}

/// What went wrong with a volume. [`Error::fix`] names the next step where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none of this name.
    #[error("no volume {name:?}")]
    NoSuch {
        /// The name.
        name: String,
    },
    /// There is one already.
    #[error("there is a volume {name} already")]
    Exists {
        /// The name.
        name: String,
    },
    /// Sandboxes show it.
    #[error("volume {name} is used by {}", users.join(", "))]
    Used {
        /// The name.
        name: String,
        /// Who, as `name (id)`.
        users: Vec<String>,
    },
    /// Its files would look as if they were somebody else's.
    #[error("the files of volume {name} would belong to others in this sandbox")]
    Owners {
        /// The name.
        name: String,
        /// Why.
        why: String,
        /// The user inside that it was used with.
        user: String,
    },
    /// A part of it could not be deleted. It is out of sight.
    #[error("could not delete all of volume {name}")]
    Remove {
        /// The name.
        name: String,
        /// What stood in the way.
        #[source]
        source: super::Blocked,
    },
    /// The kernel refused something.
    #[error("could not {tried} {path}")]
    Io {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What is written down of it makes no sense.
    #[error("{path} cannot be understood")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Where it stops making sense.
        #[source]
        source: serde_json::Error,
    },
    /// The state directory did not cooperate.
    #[error(transparent)]
    Store(#[from] super::Error),
}

impl Store {
    /// The volumes of this state directory.
    pub fn volumes(&self) -> Result<Volumes, Error> {
        let folder = self.home().join("volumes");
        match rustix::fs::mkdir(&folder, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(Volumes { store: self.clone(), folder }),
            Err(errno) => Err(failed("make", &folder)(errno.into())),
        }
    }
}

impl Volumes {
    /// Makes an empty one.
    pub fn create(&self, name: &Name, labels: BTreeMap<String, String>) -> Result<Volume, Error> {
        let _lock = self.lock()?;
        let volume = Volume { name: name.to_string(), created_at: now(), labels, persist: None, ids: None };
        match self.place(&volume)? {
            true => Ok(volume),
            false => Err(Error::Exists { name: volume.name }),
        }
    }

    /// The one of this name.
    pub fn get(&self, name: &Name) -> Result<Volume, Error> {
        self.find(name)?.ok_or_else(|| Error::NoSuch { name: name.to_string() })
    }

    /// All of them, by name.
    pub fn list(&self) -> Result<Vec<Volume>, Error> {
        let mut volumes = Vec::new();
        for name in self.names()? {
            volumes.extend(self.find(&name)?);
        }
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(volumes)
    }

    /// Where its files are.
    pub fn files(&self, name: &Name) -> PathBuf {
        self.folder.join(name.as_str()).join("data")
    }

    /// Which sandboxes show which volume, by the volume's name; stopped ones too.
    pub fn users(&self) -> Result<BTreeMap<String, Vec<Usage>>, Error> {
        let mut users: BTreeMap<String, Vec<Usage>> = BTreeMap::new();
        for entry in self.store.list()? {
            let Ok(spec) = entry.sandbox.spec() else { continue };
            for shown in spec.volumes {
                users.entry(shown.volume).or_default().push(Usage {
                    id: entry.state.id.to_string(),
                    sandbox: entry.state.name.to_string(),
                    status: entry.state.status,
                    target: shown.target,
                    read_only: shown.read_only,
                });
            }
        }
        Ok(users)
    }

    /// How much is in it, as far as that can be told in a moment.
    pub fn size(&self, name: &Name) -> Size {
        size::of(&self.files(name), &Caller::current())
    }

    /// Deletes one that no sandbox shows.
    pub fn remove(&self, name: &Name) -> Result<(), Error> {
        let lock = self.lock()?;
        if self.find(name)?.is_none() {
            return Err(Error::NoSuch { name: name.to_string() });
        }
        let users = self.users()?.remove(name.as_str()).unwrap_or_default();
        if !users.is_empty() {
            let users = users.iter().map(|user| format!("{} ({})", user.sandbox, user.id)).collect();
            return Err(Error::Used { name: name.to_string(), users });
        }
        let (path, gone) = (self.folder.join(name.as_str()), self.fresh_name("gone", name));
        fs::rename(&path, &gone).map_err(failed("retire", &path))?;
        drop(lock);
        delete(&gone).map_err(|source| Error::Remove { name: name.to_string(), source })
    }

    /// Deletes what interrupted removals and creations left behind.
    pub fn sweep(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        for entry in fs::read_dir(&self.folder).map_err(failed("read", &self.folder))?.flatten() {
            let name = entry.file_name();
            if [b".gone-".as_slice(), b".new-"].iter().any(|mark| name.as_encoded_bytes().starts_with(mark)) {
                delete(&entry.path())
                    .map_err(|source| Error::Remove { name: name.display().to_string(), source })?;
            }
        }
        Ok(())
    }

    /// Makes one that belongs to somebody inside and has this mode, if there is none of this name. `user` is that of the sandboxes that
    /// will show it. An ordinary user's process must have one thread.
    pub fn ensure(
        &self,
        name: &Name,
        (owner, mode): ((u32, u32), u32),
        caller: &Caller,
        user: &User,
    ) -> Result<(), Error> {
        let _lock = self.lock()?;
        if self.find(name)?.is_some() {
            return Ok(());
        }
        let ids = Some(owners::ids(caller, user));
        let volume =
            Volume { name: name.to_string(), created_at: now(), labels: BTreeMap::new(), persist: None, ids };
        self.place(&volume)?;
        let files = self.files(name);
        let give = || {
            let directory = fs::File::open(&files)?;
            directory.set_permissions(fs::Permissions::from_mode(mode))?;
            hand_over(&directory, owner, caller, user)
        };
        give().map_err(failed("give to its user", &files))
    }

    /// Opens the files of one for a sandbox; one that is not there is made. A fresh one belongs to the user inside.
    pub fn open(
        &self,
        shown: &VolumeUse,
        name: &Name,
        caller: &Caller,
        identity: &Identity,
    ) -> Result<(OwnedFd, PathBuf), Error> {
        let _lock = self.lock()?;
        let mut volume = match self.find(name)? {
            Some(volume) => volume,
            None => self.make_for(shown, name)?,
        };
        let files = self.files(name);
        let ids = owners::ids(caller, &identity.user);
        match volume.ids {
            Some(before) if before == ids => {}
            Some(before) => owners::check(&volume.name, before, caller, &files)?,
            None => owners::give(&files, ids, &identity.user)?,
        }
        if volume.ids != Some(ids) {
            volume.ids = Some(ids);
            self.write(&self.folder.join(name.as_str()), &volume)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&files, flags, Mode::empty());
        Ok((opened.map_err(|errno| failed("open", &files)(errno.into()))?, files))
    }

    fn make_for(&self, shown: &VolumeUse, name: &Name) -> Result<Volume, Error> {
        let persist = shown.project.clone();
        let persist = persist.map(|project| Persist { project, directory: shown.target.clone() });
        let volume =
            Volume { name: name.to_string(), created_at: now(), labels: BTreeMap::new(), persist, ids: None };
        self.place(&volume)?;
        self.get(name)
    }

    /// Puts a new volume in its place, whole; `false` if there is one.
    fn place(&self, volume: &Volume) -> Result<bool, Error> {
        let name: Name = volume.name.parse().map_err(|_| Error::NoSuch { name: volume.name.clone() })?;
        let (fresh, path) = (self.fresh_name("new", &name), self.folder.join(name.as_str()));
        let data = fresh.join("data");
        let make = |path: &Path| {
            rustix::fs::mkdir(path, Mode::RWXU).map_err(|errno| failed("make", path)(errno.into()))
        };
        make(&fresh)?;
        make(&data)?;
        rustix::fs::chmod(&data, Mode::from_raw_mode(0o755))
            .map_err(|errno| failed("open up", &data)(errno.into()))?;
        self.write(&fresh, volume)?;
        match renameat_with(CWD, &fresh, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                let _ = remove_tree(&fresh);
                Ok(false)
            }
            Err(errno) => Err(failed("make", &path)(errno.into())),
        }
    }

    fn write(&self, folder: &Path, volume: &Volume) -> Result<(), Error> {
        let (path, fresh) = (folder.join("meta.json"), folder.join(".meta.json"));
        let text = serde_json::to_vec_pretty(volume)
            .map_err(|source| Error::Unreadable { path: path.clone(), source })?;
        fs::write(&fresh, text).map_err(failed("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(failed("replace", &path))
    }

    fn find(&self, name: &Name) -> Result<Option<Volume>, Error> {
        let path = self.folder.join(name.as_str()).join("meta.json");
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| Error::Unreadable { path, source })
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(failed("read", &path)(err)),
        }
    }

    fn names(&self) -> Result<Vec<Name>, Error> {
        let entries = fs::read_dir(&self.folder).map_err(failed("read", &self.folder))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    fn fresh_name(&self, what: &str, name: &Name) -> PathBuf {
        self.folder.join(format!(".{what}-{}-{name}", std::process::id()))
    }

    fn lock(&self) -> Result<OwnedFd, Error> {
        let path = self.folder.join(".lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed("open", &path)(errno.into()))?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .map_err(|errno| failed("lock", &path)(errno.into()))?;
        Ok(file)
    }
}

impl Error {
    /// The exit code a command ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NoSuch { .. } => 3,
            Error::Exists { .. } | Error::Used { .. } => 1,
            Error::Store(err) => err.exit_code(),
            _ => 125,
        }
    }

    /// Why, where the error's cause does not say it.
    pub fn why(&self) -> Option<String> {
        match self {
            Error::Owners { why, .. } => Some(why.clone()),
            _ => std::error::Error::source(self).map(crate::plan::chain),
        }
    }

    /// What to do next, for a person.
    pub fn fix(&self) -> Option<String> {
        match self {
            Error::NoSuch { .. } => Some("`airlock volume ls` lists them".to_owned()),
            Error::Exists { name } => Some(format!("use it: --volume {name}:DIR")),
            Error::Used { .. } => Some("remove these sandboxes first: airlock rm".to_owned()),
            Error::Owners { user, .. } => Some(format!("--user {user}, or another volume")),
            Error::Remove { .. } => {
                Some("airlock volume prune (tries again), or delete it as root".to_owned())
            }
            Error::Store(err) => err.fix(),
            Error::Io { .. } | Error::Unreadable { .. } => None,
        }
    }
}

/// Deletes what was a volume, with the ids its files may have.
fn delete(path: &Path) -> Result<(), super::Blocked> {
    match remove_tree(path) {
        Err(super::Blocked::Foreign { name }) => match all_ids(&Caller::current()) {
            Some(ids) => remove_with(&path.join("data"), &ids).and_then(|()| remove_tree(path)),
            None => Err(super::Blocked::Foreign { name }),
        },
        other => other,
    }
}

/// Every id that files of an ordinary user's volumes can have.
fn all_ids(caller: &Caller) -> Option<airlock_linux::idmap::IdMap> {
    if caller.is_root() || caller.user_ranges.is_empty() {
        return None;
    }
    ids::map(caller, 0, &User { uid: 0, gid: 0, groups: Vec::new() }).ok()
}

fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { tried, path, source }
}

#[cfg(test)]
mod tests;
