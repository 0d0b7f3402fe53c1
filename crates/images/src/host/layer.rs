//! The whiteout layer on disk: for each tree with hidden entries a directory that holds, at the same places, a whiteout
//! (character device 0:0) for each of them.
//!
//! An overlay takes the attributes of a directory from the topmost layer that has it, so the directories on the way copy
//! mode, times and, where this process may, owner of the host's.
//!
//! ```ignore
//! layer::build(&root, &index, &reader, &generation)?; // generation/layer/0/ssl/private is a whiteout
//! ```

use super::{Error, Reader, index::Index};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, StatxFlags, Timespec, Timestamps},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    ffi::CString,
    path::{Path, PathBuf},
};

/// The one node that the whiteouts of a generation are links of: names are cheaper to make than nodes.
const WHITEOUT: &str = "whiteout";

/// Where the layer of the tree with this number lies in a generation.
pub(super) fn place(tree: usize) -> PathBuf {
    Path::new("layer").join(tree.to_string())
}

/// Makes the layers of every tree of `index` that hides something, below the directory `into`.
pub(super) fn build(root: &OwnedFd, index: &Index, reader: &Reader, into: &OwnedFd) -> Result<(), Error> {
    let mut made = BTreeMap::new();
    make_directory(into, Path::new("layer"))?;
    make_whiteout(into, Path::new(WHITEOUT))
        .map_err(|source| Error::Make { path: WHITEOUT.into(), source: source.into() })?;
    for (number, tree) in index.trees.iter().enumerate() {
        if !index.plain.contains(tree) {
            make_directory(into, &place(number))?;
            made.insert(place(number), tree.clone());
        }
    }
    let mut open: Option<(PathBuf, OwnedFd)> = None;
    for hidden in &index.hidden {
        let Some((number, tree)) = index.tree_of(&hidden.path) else { continue };
        let (Ok(inside), Some(name)) = (hidden.path.strip_prefix(tree), hidden.path.file_name()) else {
            continue;
        };
        let parent = place(number).join(inside.parent().unwrap_or(Path::new("")));
        if open.as_ref().is_none_or(|(at, _)| *at != parent) {
            make_way(into, &parent, &hidden.path, &mut made)?;
            open = Some((parent.clone(), open_directory(into, &parent)?));
        }
        if let Some((_, dir)) = &open {
            white_out(into, dir, Path::new(name))
                .map_err(|source| Error::Make { path: parent.join(name), source: source.into() })?;
        }
    }
    // Deepest first: making something in a directory changes its times, and a mode may forbid it.
    for (layer, host) in made.iter().rev() {
        copy_attributes(root, host, into, layer, reader)?;
    }
    Ok(())
}

/// Removes `name` and everything below it, whatever the modes of its directories.
pub(super) fn remove(parent: &OwnedFd, name: &Path) -> Result<(), Error> {
    remove_tree(parent, name).map_err(|source| Error::Make { path: name.to_owned(), source: source.into() })
}

/// Makes the directories down to `parent`, and notes for each which directory of the host it stands for.
fn make_way(
    into: &OwnedFd,
    parent: &Path,
    hidden: &Path,
    made: &mut BTreeMap<PathBuf, PathBuf>,
) -> Result<(), Error> {
    let hosts: Vec<&Path> = hidden.ancestors().skip(1).collect();
    let missing: Vec<(&Path, &Path)> =
        parent.ancestors().zip(hosts).take_while(|(layer, _)| !made.contains_key(*layer)).collect();
    for (layer, host) in missing.into_iter().rev() {
        make_directory(into, layer)?;
        made.insert(layer.to_owned(), host.to_owned());
    }
    Ok(())
}

fn white_out(into: &OwnedFd, dir: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match rustix::fs::linkat(into, WHITEOUT, dir, name, AtFlags::empty()) {
        Ok(()) => Ok(()),
        // A file system has a largest number of links to one node, and some have no links.
        Err(_) => make_whiteout(dir, name),
    }
}

fn make_whiteout(dir: &OwnedFd, name: &Path) -> Result<(), Errno> {
    rustix::fs::mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0)
}

fn make_directory(into: &OwnedFd, path: &Path) -> Result<(), Error> {
    match rustix::fs::mkdirat(into, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(source) => Err(Error::Make { path: path.to_owned(), source: source.into() }),
    }
}

fn open_directory(into: &OwnedFd, path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(into, path, flags, Mode::empty())
        .map_err(|source| Error::Make { path: path.to_owned(), source: source.into() })
}

fn copy_attributes(
    root: &OwnedFd,
    host: &Path,
    into: &OwnedFd,
    layer: &Path,
    reader: &Reader,
) -> Result<(), Error> {
    let stat = match rustix::fs::statx(root, host, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
        Ok(stat) => stat,
        // Gone since the scan: what is left of it is an empty directory of ours.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
        Err(source) => return Err(Error::Read { path: Path::new("/").join(host), source: source.into() }),
    };
    let failed = |source: Errno| Error::Make { path: layer.to_owned(), source: source.into() };
    let dir = open_directory(into, layer)?;
    if matches!(reader, Reader::Root) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(stat.stx_uid), rustix::fs::Gid::from_raw(stat.stx_gid));
        rustix::fs::fchown(&dir, Some(uid), Some(gid)).map_err(failed)?;
    }
    rustix::fs::fchmod(&dir, Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777)).map_err(failed)?;
    let time = |at: rustix::fs::StatxTimestamp| Timespec { tv_sec: at.tv_sec, tv_nsec: at.tv_nsec.into() };
    let times = Timestamps { last_access: time(stat.stx_atime), last_modification: time(stat.stx_mtime) };
    rustix::fs::futimens(&dir, &times).map_err(failed)
}

fn remove_tree(parent: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(source) => return Err(source),
    }
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    for child in names(&dir)? {
        remove_tree(
            &dir,
            Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(child.to_bytes())),
        )?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// The names in a directory.
pub(super) fn names(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    let mut listing: Vec<u8> = Vec::with_capacity(1 << 14);
    let mut entries = RawDir::new(dir, listing.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}
