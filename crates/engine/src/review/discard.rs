//! Throwing changes away: what the sandbox wrote goes, and the host's files are seen again.

use super::{Review, refuse};
use crate::{
    plan::refusal,
    snapshots::workspace,
    store::{Sandbox, as_ids, remove_tree},
};
use airlock_files::review::names;
use airlock_protocol::control::Refusal;
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, openat2, unlinkat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// What was thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discarded {
    /// Files (and links) that were changed.
    pub files: usize,
}

impl Review {
    /// Throws away what was changed at or below these paths; everything where none is named. The sandbox must not run: the
    /// kernel does not expect a layer to change under it.
    pub fn discard(&self, sandbox: &Sandbox, paths: &[PathBuf]) -> Result<Discarded, Refusal> {
        let _lock = self.hold(sandbox)?;
        let mut changes = self.changes()?;
        changes.keep_below(paths);
        if self.shared > 0 {
            self.forget_shared(sandbox, paths)?;
        }
        let layers = self.tree().layers();
        let Some(layer) = layers.first().filter(|_| layers.len() > self.shared) else {
            return Ok(Discarded { files: changes.files() });
        };
        if let Some(path) = paths.iter().find(|path| !can_go(layer.as_fd(), path)) {
            let what = format!("{} cannot be discarded by itself", names::quote(path.as_os_str().as_bytes()));
            let why = "what the sandbox has there hangs on a directory above it";
            return Err(refusal(1, &what, Some(why), Some("discard the directory above it, or everything")));
        }
        let emptied = match &self.ids {
            Some(ids) => as_ids(ids, || empty(layer.as_fd(), paths).is_ok())
                .map_err(|err| cannot(&err.to_string()))
                .and_then(|emptied| if emptied { Ok(()) } else { empty(layer.as_fd(), paths) }),
            None => empty(layer.as_fd(), paths),
        };
        emptied?;
        if self.shared > 0 {
            return Ok(Discarded { files: changes.files() });
        }
        let mut left = self.tree().changes().map_err(|err| refuse(&err))?;
        left.keep_below(paths);
        match left.list().first() {
            None => Ok(Discarded { files: changes.files() }),
            Some(change) => {
                Err(cannot(&format!("{} is still there", names::quote(change.path.as_os_str().as_bytes()))))
            }
        }
    }
}

impl Review {
    /// Layers that others have too are not touched: they are no longer looked through for this sandbox.
    fn forget_shared(&self, sandbox: &Sandbox, paths: &[PathBuf]) -> Result<(), Refusal> {
        if let Some(path) = paths.first() {
            let what = format!("{} cannot be discarded by itself", names::quote(path.as_os_str().as_bytes()));
            let why = "what the sandbox has there is shared with others that were forked";
            return Err(refusal(1, &what, Some(why), Some("discard everything")));
        }
        workspace::forget(sandbox)
    }
}

fn cannot(why: &str) -> Refusal {
    refusal(125, "the changes could not be discarded", Some(why), None)
}

/// Whether the layer itself has something at the path, or nothing above it either. A file that is gone because its
/// directory was made anew is nowhere in the layer.
fn can_go(layer: BorrowedFd<'_>, path: &Path) -> bool {
    let Some((parent, name)) = parent(layer, path) else { return true };
    match rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => true,
        Err(_) => {
            let mut value = [0u8; 4];
            rustix::fs::fgetxattr(&parent, "user.overlay.opaque", &mut value).is_err()
        }
    }
}

fn empty(layer: BorrowedFd<'_>, paths: &[PathBuf]) -> Result<(), Refusal> {
    let removed = match paths {
        [] => empty_all(layer),
        paths => paths.iter().try_for_each(|path| match parent(layer, path) {
            Some((parent, name)) => remove(&parent, &name),
            None => Ok(()),
        }),
    };
    removed.map_err(|why| cannot(&why))
}

fn empty_all(layer: BorrowedFd<'_>) -> Result<(), String> {
    let top = open(layer, OsStr::new(".")).map_err(|err| err.to_string())?;
    let listing = Dir::read_from(&top).map_err(|err| err.to_string())?;
    for entry in listing {
        let entry = entry.map_err(|err| err.to_string())?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            remove(&top, OsStr::from_bytes(name))?;
        }
    }
    Ok(())
}

fn remove(parent: &OwnedFd, name: &OsStr) -> Result<(), String> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => {
            let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
            remove_tree(&path).map_err(|err| crate::plan::chain(&err))
        }
        Err(err) => Err(std::io::Error::from(err).to_string()),
    }
}

/// The directory of the layer in which a path is, if it is there.
fn parent(layer: BorrowedFd<'_>, path: &Path) -> Option<(OwnedFd, OsString)> {
    let name = path.file_name()?.to_owned();
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((open(layer, above.as_os_str()).ok()?, name))
}

fn open(layer: BorrowedFd<'_>, path: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    openat2(layer, path, flags, Mode::empty(), resolve)
}
