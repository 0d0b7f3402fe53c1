//! The two sides: the workspace on the host, and the layers of the sandbox's copy above it.
//!
//! Both are hostile: another program may rename, link and replace while we look. So everything is opened below a directory
//! that is held open, no link is followed and no mount crossed ([`open_below`]).

use super::{
    Error,
    change::{Kind, Seen},
    reader::Reader,
};
use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat, openat2, statat},
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    rc::Rc,
};

/// The workspace and the layers above it.
#[derive(Debug, Clone)]
pub struct Tree {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    host: OwnedFd,
    layers: Vec<OwnedFd>,
    reader: Reader,
}

impl Tree {
    /// `layers` topmost first: the sandbox's own, then those it shares with others.
    pub fn new(host: OwnedFd, layers: Vec<OwnedFd>, reader: Reader) -> Tree {
        Tree { inner: Rc::new(Inner { host, layers, reader }) }
    }

    /// The workspace on the host.
    pub fn host(&self) -> BorrowedFd<'_> {
        self.inner.host.as_fd()
    }

    /// The layers, topmost first.
    pub fn layers(&self) -> &[OwnedFd] {
        &self.inner.layers
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.inner.reader
    }

    /// Opens a regular file of the sandbox. What it is was looked at before, and may have changed since.
    pub(super) fn open_inside(&self, path: &Path, seen: &Seen) -> Result<File, Error> {
        let layer = self.inner.layers.get(seen.layer).ok_or(Errno::NOENT);
        let opened = layer.and_then(|layer| self.reader().open_file(layer.as_fd(), path.as_os_str()));
        opened.and_then(regular).map_err(Error::on("read", path))
    }

    /// Opens a regular file of the host.
    pub(super) fn open_host(&self, path: &Path) -> Result<File, Error> {
        let opened = self.reader().open_file(self.host(), path.as_os_str());
        opened.and_then(regular).map_err(Error::on("read", path))
    }

    /// Where a link of the sandbox leads.
    pub(super) fn link_inside(&self, path: &Path, seen: &Seen) -> Result<Vec<u8>, Error> {
        let layer = self.inner.layers.get(seen.layer).ok_or(Errno::NOENT);
        let read = layer.and_then(|layer| self.reader().read_link(layer.as_fd(), path.as_os_str()));
        read.map_err(Error::on("read", path))
    }

    /// Where a link of the host leads.
    pub(super) fn link_on_host(&self, path: &Path) -> Result<Vec<u8>, Error> {
        self.reader().read_link(self.host(), path.as_os_str()).map_err(Error::on("read", path))
    }
}

/// Never waits for the other end of a pipe; never writes.
pub(super) const FILE_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Something to look at, not to read.
pub(super) const PLACE_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How often a path is looked up anew while others rename.
const MOST_TRIES: usize = 64;

/// Opens what is at `path` below a directory: no link is followed, no mount crossed.
pub(super) fn open_below(directory: BorrowedFd<'_>, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut tries = 0;
    loop {
        match openat2(directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries < MOST_TRIES => tries += 1,
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// What is called `name` in a directory; `None` if nothing is.
pub(super) fn look(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Where a link leads. By the link itself, opened, so that it is the one below the directory.
pub(super) fn read_link(directory: BorrowedFd<'_>, path: &OsStr) -> Result<Vec<u8>, Errno> {
    let link = open_below(directory, path, PLACE_FLAGS)?;
    Ok(rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes())
}

/// A file to read, and nothing else: a pipe or a device that stands there by now is refused.
fn regular(fd: OwnedFd) -> Result<File, Errno> {
    let stat = rustix::fs::fstat(&fd)?;
    match Seen::new(&stat, 0).kind {
        Kind::File => Ok(File::from(fd)),
        _ => Err(Errno::INVAL),
    }
}

impl Error {
    /// What was tried on a path of the workspace.
    pub(super) fn on(tried: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
        let path = path.to_owned();
        move |errno| Error::Io { tried, path, source: io::Error::from(errno) }
    }
}
