//! Paths of this host. Programs in sandboxes may write to some directories of it: a link there is followed only while it
//! stays there, and what was resolved is opened without following any.

use crate::{failure::Failure, mounts::real_path};
use airlock_copy::{
    Error,
    pack::Source,
    place::{self, Place},
};
use airlock_engine::{plan::chain, store::Store};
use airlock_protocol::spec::Workspace;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// What is copied into a sandbox.
pub(super) fn source(store: &Store, typed: &Path, follow: bool) -> Result<Source, Failure> {
    let text = typed.as_os_str().as_encoded_bytes();
    let through = follow || text.ends_with(b"/") || text.ends_with(b"/.");
    let path = match (through, typed.file_name(), typed.parent()) {
        // The last part may be a link, which is itself meant.
        (false, Some(name), Some(parent)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            real_path(parent, writable(store)?)?.join(name)
        }
        _ => real_path(typed, writable(store)?)?,
    };
    Source::find(&path, &open).map_err(|err| refused(&err, typed))
}

/// Where what comes out of a sandbox goes.
pub(super) fn place(store: &Store, typed: &Path, name: Option<&Path>) -> Result<Place, Failure> {
    let mut path = real_path(typed, writable(store)?)?;
    if typed.as_os_str().as_encoded_bytes().ends_with(b"/") {
        path.push("");
    }
    place::find(&path, name, &open).map_err(|err| refused(&err, typed))
}

/// Where programs in sandboxes may have made links: here, and wherever one that is still known may write.
fn writable(store: &Store) -> Result<Vec<PathBuf>, Failure> {
    let mut places: Vec<PathBuf> = std::env::current_dir().into_iter().collect();
    for entry in store.list()? {
        let Ok(spec) = entry.sandbox.spec() else { continue };
        if let Workspace::Rw { path } | Workspace::Cow { path } = spec.workspace {
            places.push(path);
        }
        places.extend(spec.mounts.into_iter().filter(|mount| !mount.read_only).map(|mount| mount.source));
    }
    Ok(places)
}

/// Opens a directory by a path without links.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
}

fn refused(err: &Error, typed: &Path) -> Failure {
    let failure = Failure::new(format!("{} cannot be taken: {err}", typed.display())).code(1);
    match std::error::Error::source(err) {
        Some(cause) => failure.why(chain(cause)),
        None => failure,
    }
}
