//! Finding every change: one walk over what the sandbox wrote, never over the whole project.
//!
//! Directories are open one below the other, so depth is bounded ([`MOST_DEEP`]), and so is the number of entries.

use super::{
    Error,
    change::{Change, Changes, Kind, LeftOut, Seen, Why},
    content,
    reader::Directory,
    renames,
    tree::{DIRECTORY_FLAGS, Tree, open_below},
};
use rustix::{
    fs::{Dir, FileType, Stat},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// Directories below one another that are looked into.
const MOST_DEEP: usize = 200;
/// Longer paths are left out: no program could be given one.
const LONGEST_PATH: usize = 4000;
/// Entries of all directories that are looked at.
const MOST_ENTRIES: usize = 1_000_000;

impl Tree {
    /// Everything that differs now.
    pub fn changes(&self) -> Result<Changes, Error> {
        let mut walk = Walk { tree: self, list: Vec::new(), left_out: Vec::new(), seen: 0 };
        walk.run()?;
        let Walk { mut list, left_out, .. } = walk;
        list.sort_by(|a, b| a.path.cmp(&b.path));
        renames::find(self, &mut list);
        Ok(Changes { tree: self.clone(), list, left_out })
    }
}

struct Walk<'a> {
    tree: &'a Tree,
    list: Vec<Change>,
    left_out: Vec<LeftOut>,
    seen: usize,
}

/// A directory that is being looked at.
struct Frame {
    path: PathBuf,
    /// It, on the host.
    host: Option<OwnedFd>,
    /// It, in the layers that have it and are seen, topmost first, and which these are.
    layers: Vec<(usize, OwnedFd)>,
    /// What the host has in it is seen only where a layer has it too.
    covers: bool,
    names: Vec<OsString>,
}

/// What the layers have at one name.
enum Inside {
    /// Nothing: the host's is seen.
    Nothing,
    /// It was deleted.
    Whiteout,
    /// A file, a link, something special.
    Leaf(Seen),
    /// A directory, and whether it covers the host's.
    Directory { seen: Seen, layers: Vec<(usize, OwnedFd)>, covers: bool },
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let mut layers = Vec::new();
        let mut covers = false;
        for (number, layer) in self.tree.layers().iter().enumerate() {
            let opened = self.tree.reader().open_directory(layer.as_fd(), OsStr::new("."));
            let Directory { fd, is_opaque } = opened.map_err(Error::on("open", Path::new(".")))?;
            layers.push((number, fd));
            covers = is_opaque;
            if covers {
                break;
            }
        }
        let host = open_below(self.tree.host(), OsStr::new("."), DIRECTORY_FLAGS);
        let host = host.map_err(Error::on("open", Path::new(".")))?;
        let mut stack = vec![self.frame(PathBuf::new(), Some(host), layers, covers)?];
        while let Some(frame) = stack.last_mut() {
            let Some(name) = frame.names.pop() else {
                stack.pop();
                continue;
            };
            let depth = stack.len();
            let Some(frame) = stack.last() else { break };
            if let Some(below) = self.entry(frame, &name, depth)? {
                stack.push(below);
            }
        }
        Ok(())
    }

    /// A directory with the names that matter in it.
    fn frame(
        &mut self,
        path: PathBuf,
        host: Option<OwnedFd>,
        layers: Vec<(usize, OwnedFd)>,
        covers: bool,
    ) -> Result<Frame, Error> {
        let mut names = BTreeSet::new();
        for (_, layer) in &layers {
            self.list_names(layer.as_fd(), &path, &mut names)?;
        }
        if let (true, Some(host)) = (covers, &host) {
            self.list_names(host.as_fd(), &path, &mut names)?;
        }
        Ok(Frame { path, host, layers, covers, names: names.into_iter().collect() })
    }

    fn list_names(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &Path,
        names: &mut BTreeSet<OsString>,
    ) -> Result<(), Error> {
        // By the descriptor itself: whoever opened it had the right to, and may be another process.
        let own = directory.try_clone_to_owned();
        let own = own.map_err(|source| Error::Io { tried: "list", path: path.to_owned(), source })?;
        let listing = Dir::new(own).map_err(Error::on("list", path))?;
        for entry in listing {
            let entry = entry.map_err(Error::on("list", path))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.seen += 1;
            if self.seen > MOST_ENTRIES {
                return Err(Error::TooMany { most: MOST_ENTRIES });
            }
            names.insert(OsStr::from_bytes(name).to_owned());
        }
        Ok(())
    }

    /// Looks at one name of a directory: what differs is noted, and what is to be looked into is returned.
    fn entry(&mut self, frame: &Frame, name: &OsStr, depth: usize) -> Result<Option<Frame>, Error> {
        let path = frame.path.join(name);
        if path.as_os_str().len() > LONGEST_PATH {
            self.leave_out(path, Why::Deep);
            return Ok(None);
        }
        let was = match &frame.host {
            Some(host) => self.tree.reader().look(host.as_fd(), name).map_err(Error::on("look at", &path))?,
            None => None,
        };
        let was = was.map(|stat| Seen::new(&stat, 0));
        let inside = self.inside(frame, name, &path)?;
        let (is, layers, covers) = match inside {
            Inside::Nothing if !frame.covers => return Ok(None),
            Inside::Nothing | Inside::Whiteout => (None, Vec::new(), true),
            Inside::Leaf(seen) => (Some(seen), Vec::new(), true),
            Inside::Directory { seen, layers, covers } => (Some(seen), layers, covers || frame.covers),
        };
        if is.as_ref().is_some_and(|seen| seen.kind == Kind::Special) {
            self.leave_out(path, Why::Special);
            return Ok(None);
        }
        if was.as_ref().is_some_and(|seen| seen.kind == Kind::Special) {
            // A socket or device of the host: the sandbox could neither change it nor may it be lost.
            return Ok(None);
        }
        let host = match (&was, &frame.host) {
            (Some(seen), Some(host)) if seen.kind == Kind::Directory => {
                match self.tree.reader().open_directory(host.as_fd(), name) {
                    Ok(host) => Some(host.fd),
                    Err(Errno::XDEV) => {
                        self.leave_out(path, Why::Mount);
                        return Ok(None);
                    }
                    // Gone since, or closed to us: then nothing of it is told.
                    Err(Errno::NOENT) => None,
                    Err(errno) => return Err(Error::on("open", &path)(errno)),
                }
            }
            _ => None,
        };
        let has_below = !layers.is_empty() || host.is_some();
        if has_below && depth >= MOST_DEEP {
            self.leave_out(path, Why::Deep);
            return Ok(None);
        }
        self.note(frame, name, &path, (was, is))?;
        if !has_below {
            return Ok(None);
        }
        self.frame(path, host, layers, covers).map(Some)
    }

    fn leave_out(&mut self, path: PathBuf, why: Why) {
        self.left_out.push(LeftOut { path, why });
    }

    /// What the layers have at a name, from the top.
    fn inside(&self, frame: &Frame, name: &OsStr, path: &Path) -> Result<Inside, Error> {
        let mut found: Option<Seen> = None;
        let mut layers = Vec::new();
        for (number, layer) in &frame.layers {
            let Some(stat) =
                self.tree.reader().look(layer.as_fd(), name).map_err(Error::on("look at", path))?
            else {
                continue;
            };
            let seen = Seen::new(&stat, *number);
            if seen.kind != Kind::Directory {
                return Ok(match found {
                    // A lower layer has something else there: whatever is further below is not seen.
                    Some(seen) => Inside::Directory { seen, layers, covers: true },
                    None if is_whiteout(&stat) => Inside::Whiteout,
                    None => Inside::Leaf(seen),
                });
            }
            let opened = match self.tree.reader().open_directory(layer.as_fd(), name) {
                Ok(opened) => opened,
                // Replaced or removed since: the program inside goes on meanwhile.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(Error::on("open", path)(errno)),
            };
            layers.push((*number, opened.fd));
            let first = found.get_or_insert(seen);
            if opened.is_opaque {
                return Ok(Inside::Directory { seen: first.clone(), layers, covers: true });
            }
        }
        Ok(match found {
            Some(seen) => Inside::Directory { seen, layers, covers: false },
            None => Inside::Nothing,
        })
    }

    /// Notes a change, if it is one.
    fn note(
        &mut self,
        frame: &Frame,
        name: &OsStr,
        path: &Path,
        (was, is): (Option<Seen>, Option<Seen>),
    ) -> Result<(), Error> {
        let content = match (&was, &is) {
            (None, None) => return Ok(()),
            (Some(was), Some(is)) if was.kind == is.kind => {
                let differs = !content::is_same(self.tree, path, was, is)?;
                if !differs && (was.mode == is.mode || was.kind == Kind::Link) {
                    return Ok(());
                }
                differs
            }
            _ => true,
        };
        let has_origin = match &is {
            Some(seen) if was.is_none() && seen.kind == Kind::File => {
                let layer = frame.layers.iter().find(|(number, _)| *number == seen.layer);
                match layer.map(|(_, layer)| self.tree.reader().has_origin(layer.as_fd(), name)) {
                    Some(Ok(has_origin)) => has_origin,
                    _ => false,
                }
            }
            _ => false,
        };
        let path = path.to_owned();
        self.list.push(Change { path, was, is, content, renamed_from: None, renamed_to: None, has_origin });
        Ok(())
    }
}

/// How overlayfs marks what was deleted.
fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}
