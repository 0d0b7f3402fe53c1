//! One layer becomes one tree.

use super::{
    Ids,
    decoded::{self, Decoded},
};
use crate::digest::Digest;
use airlock_files::{
    layers::unpack::{Bounds, Owners, Told, Unpacking, Way},
    remove::{self, Blocked},
    within::{self, Working},
};
use airlock_linux::idmap::{IdMap, Writer};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{atomic::AtomicU64, mpsc::sync_channel},
    thread,
};

/// Where in its folder the tree of a layer is.
pub const TREE: &str = "tree";
/// What is needed beside it meanwhile.
pub(crate) const TRASH: &str = "trash";

/// Any layer may become as large as this, and a large one so many times larger than it is: what is beyond is a bomb.
const ALWAYS: u64 = 4 << 30;
const TIMES: u64 = 1024;
const MOST: u64 = 1 << 40;

/// Why a layer was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its place could not be made.
    #[error("could not make the place of a layer, {path}")]
    Place {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What was needed meanwhile could not be deleted.
    #[error("could not clean up behind a layer")]
    Clean(#[from] Blocked),
    /// The layer is not what it should be, or the process could not be had.
    #[error("could not unpack a layer")]
    Unpack(#[source] within::Error),
}

/// A layer that is being unpacked. Its descriptor can be read when there is something to hear.
#[derive(Debug)]
pub struct Work {
    working: Working<Told>,
    folder: PathBuf,
    ids: IdMap,
}

/// Begins to unpack `blob`, a layer whose content has the digest `diff`, into [`TREE`] below `folder`, which is there; the
/// tree may be too, if it is empty. This process must have one thread. On an error, or when it is dropped, `folder` is for
/// [`remove`].
pub fn begin(ids: &Ids, blob: &File, diff: &Digest, folder: &Path) -> Result<Work, Error> {
    let tree = make(&folder.join(TREE), &ids.map)?;
    let trash = make(&folder.join(TRASH), &ids.map)?;
    let owners = if ids.map.writer == Writer::SingleId { Owners::One } else { Owners::AsTold };
    let work = |progress: &mut dyn FnMut(u64)| {
        if owners == Owners::AsTold {
            // A layer need not tell whose its top is: root's, whoever the user inside is.
            let (user, group) = (rustix::fs::Uid::ROOT, rustix::fs::Gid::ROOT);
            rustix::fs::fchown(&tree, Some(user), Some(group)).map_err(|err| err.to_string())?;
        }
        unpack(blob, diff, (tree.as_fd(), trash.as_fd()), owners, progress).map_err(|err| chain(&err))
    };
    let working = within::begin(&ids.map, work).map_err(Error::Unpack)?;
    Ok(Work { working, folder: folder.to_owned(), ids: ids.map.clone() })
}

impl Work {
    /// Waits for the end. `progress` hears of bytes of the blob.
    pub fn finish(self, progress: &mut dyn FnMut(u64)) -> Result<Told, Error> {
        let told = self.working.finish(progress).map_err(Error::Unpack)?;
        remove_with(&self.folder.join(TRASH), &self.ids)?;
        Ok(told)
    }

    /// Takes in what was told so far; `None` while it goes on.
    pub fn listen(&mut self, progress: &mut dyn FnMut(u64)) -> Result<Option<Told>, Error> {
        let told = self.working.listen(progress).map_err(Error::Unpack)?;
        if told.is_some() {
            remove_with(&self.folder.join(TRASH), &self.ids)?;
        }
        Ok(told)
    }
}

impl AsFd for Work {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.working.as_fd()
    }
}

/// Deletes a folder of a layer, finished or not. This process must have one thread.
pub fn remove(folder: &Path, ids: &Ids) -> Result<(), Blocked> {
    for name in [TREE, TRASH] {
        remove_with(&folder.join(name), &ids.map)?;
    }
    remove::remove_tree(folder)
}

/// Unpacks `blob` into the first of two empty directories of one file system; what is in the other afterwards is of no
/// use. Its content is compared with `diff`, of which nothing is known before the end: only then is the tree of use.
pub fn unpack(
    blob: &File,
    diff: &Digest,
    (tree, trash): (BorrowedFd<'_>, BorrowedFd<'_>),
    owners: Owners,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Told> {
    let most = bound(blob.metadata()?.len());
    let read = AtomicU64::new(0);
    let (send, receive) = sync_channel(decoded::DEPTH);
    let (give_back, spent) = sync_channel(decoded::DEPTH);
    thread::scope(|scope| {
        let read = &read;
        let decoding = scope.spawn(move || decoded::decode((blob, read), most, &send, &spent));
        let from = Decoded::new(receive, give_back, read, progress);
        let mut bounds = Bounds { bytes: most };
        let told = Unpacking::new(tree, trash, Way::Alone(owners)).archive(from, &mut bounds, &mut |_| {});
        let digest = decoding.join().map_err(|_| io::Error::other("it could not be decompressed"))?;
        let told = told.map_err(io::Error::other)?;
        match digest {
            Some(digest) if digest == *diff => Ok(told),
            Some(digest) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("its content is {digest}, and the image says {diff}"),
            )),
            None => Err(io::Error::other("it could not be decompressed")),
        }
    })
}

/// The most bytes that a layer of so many may hold.
fn bound(compressed: u64) -> u64 {
    ALWAYS.saturating_add(compressed.saturating_mul(TIMES)).min(MOST)
}

/// A directory that the ids' root may write into.
fn make(path: &Path, ids: &IdMap) -> Result<OwnedFd, Error> {
    let io = |source: io::Error| Error::Place { path: path.to_owned(), source };
    match fs::DirBuilder::new().create(path) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(io(err)),
        _ => {}
    }
    if let (Writer::Direct, Some((user, group))) = (ids.writer, ids.user_outside(0).zip(ids.group_outside(0)))
    {
        std::os::unix::fs::chown(path, Some(user), Some(group)).map_err(io)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|err| io(err.into()))?;
    rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o755)).map_err(|err| io(err.into()))?;
    Ok(directory)
}

fn remove_with(path: &Path, ids: &IdMap) -> Result<(), Blocked> {
    match remove::remove_tree(path) {
        Err(Blocked::Foreign { .. }) if ids.writer == Writer::Programs => remove::remove_with(path, ids),
        other => other,
    }
}

/// An error and what caused it, in one line.
pub(super) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        let said = err.to_string();
        // Some errors say what their cause says.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = err.source();
    }
    text
}
