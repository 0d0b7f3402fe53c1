//! The files of a build's context, as far as its ignore file lets them in.

use super::{
    ignore::Ignore,
    path,
    tree::{Kind, Node, Place, Tree, index::Entry},
};
use crate::digest::Hasher;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
        },
    },
    path::{Path, PathBuf},
};

/// Most files of a context.
const FILES: usize = 4_000_000;

/// A context.
#[derive(Debug)]
pub struct Context {
    /// The directory, if it is one.
    top: Option<OwnedFd>,
    /// What it holds. Everything belongs to root.
    pub tree: Tree,
}

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something in it cannot be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// Too many files.
    #[error("{0} holds more than {FILES} files")]
    Many(PathBuf),
}

impl Context {
    /// Looks at the names of a directory. Contents are not read yet.
    pub fn open(top: &Path, ignore: &Ignore) -> Result<Self, Error> {
        let fail = |err: rustix::io::Errno| Error::Read(top.to_owned(), err.into());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(top, flags, Mode::empty()).map_err(fail)?;
        let mut tree = Tree::default();
        let mut count = 0;
        let mut left = vec![Vec::new()];
        while let Some(directory) = left.pop() {
            let place = top.join(std::ffi::OsStr::from_bytes(&directory));
            let fail = |err| Error::Read(place.clone(), err);
            for entry in fs::read_dir(&place).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let relative = path::below(&directory, entry.file_name().as_bytes());
                let is_ignored = ignore.ignores(&String::from_utf8_lossy(&relative));
                if is_ignored && ignore.is_final() {
                    continue;
                }
                let metadata = entry.metadata().map_err(|err| Error::Read(entry.path(), err))?;
                if metadata.is_dir() {
                    left.push(relative.clone());
                }
                if is_ignored {
                    continue;
                }
                count += 1;
                if count > FILES {
                    return Err(Error::Many(top.to_owned()));
                }
                let node = node(&entry.path(), &metadata).map_err(|err| Error::Read(entry.path(), err))?;
                let place = Place { archive: 0, path: relative.clone() };
                tree.insert(relative, Node { place, ..node });
            }
        }
        Ok(Self { top: Some(opened), tree })
    }

    /// Of what an archive holds. Contents are taken out of it by whoever has it.
    pub fn of_archive(entries: &[Entry], ignore: &Ignore) -> Self {
        let mut all = Tree::default();
        all.stack(entries);
        let mut tree = Tree::default();
        for (path, node) in all.below(b"") {
            if !ignore.ignores(&String::from_utf8_lossy(path)) {
                tree.insert(path.to_vec(), Node { uid: 0, gid: 0, attributes: Vec::new(), ..node.clone() });
            }
        }
        Self { top: None, tree }
    }

    /// Reads what is not known yet of the files at a path and below it.
    pub fn digest(&mut self, below: &[u8]) -> Result<(), Error> {
        for path in self.tree.unread(below) {
            let fail = |err| Error::Read(PathBuf::from(std::ffi::OsString::from_vec(path.clone())), err);
            let mut file = self.file(&path).map_err(fail)?;
            let mut hasher = Hasher::new();
            let mut buffer = vec![0; 128 << 10];
            loop {
                let count = file.read(&mut buffer).map_err(fail)?;
                if count == 0 {
                    break;
                }
                hasher.update(buffer.get(..count).unwrap_or_default());
            }
            let size = hasher.bytes();
            self.tree.learn(&path, hasher.finish(), size);
        }
        Ok(())
    }

    /// Opens a file, through no link.
    pub fn file(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let top = self.top.as_ref().ok_or_else(|| io::Error::other("it is in an archive"))?;
        let opened = rustix::fs::openat2(top, path, flags, Mode::empty(), resolve)?;
        let file = File::from(opened);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file any more"));
        }
        Ok(file)
    }
}

fn node(path: &Path, metadata: &fs::Metadata) -> io::Result<Node> {
    let kind = if metadata.is_dir() {
        Kind::Directory
    } else if metadata.is_file() {
        Kind::File { size: metadata.len(), sum: None }
    } else if metadata.is_symlink() {
        Kind::Link(fs::read_link(path)?.into_os_string().into_vec())
    } else {
        Kind::Other
    };
    Ok(Node::of(kind, metadata.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    #[test]
    fn an_ignored_directory_is_looked_into_for_exceptions() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("d")).unwrap();
        for name in ["a", "d/keep", "d/drop"] {
            fs::write(top.path().join(name), name).unwrap();
        }
        let mut context = Context::open(top.path(), &Ignore::parse("d\n!d/keep").unwrap()).unwrap();
        let names: Vec<&[u8]> = context.tree.below(b"").map(|(path, _)| path).collect();
        assert_eq!(names, [b"a".as_slice(), b"d", b"d/keep"]);
        context.digest(b"").unwrap();
        let kind = Kind::File { size: 1, sum: Some(Digest::of(b"a")) };
        assert_eq!(context.tree.get(b"a").unwrap().kind, kind);
    }

    #[test]
    fn a_file_is_opened_through_no_link() {
        let top = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", top.path().join("out")).unwrap();
        let context = Context::open(top.path(), &Ignore::default()).unwrap();
        assert!(context.file(b"out").is_err());
        assert!(context.file(b"../etc/passwd").is_err());
    }
}
