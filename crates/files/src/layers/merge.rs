//! One tree of several layers, for those who look at a sandbox's changes: it holds further names of the files, not copies.

use super::{
    Error, failed,
    tree::{
        self, above, attributes, give, make_directory, make_file, make_whiteout, open_file, set_attribute,
    },
    walk::{Entry, Step, open_below, walk},
};
use airlock_linux::disk::copy_contents;
use rustix::{
    fs::{AtFlags, FileType, RenameFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// A tree that layers are laid upon each other in, the lowest first.
pub struct Merging<'a> {
    top: BorrowedFd<'a>,
    trash: BorrowedFd<'a>,
    here: OwnedFd,
    moved: u64,
}

/// What a file has that was copied from a lower layer when it was first written to.
const ORIGIN: &CStr = c"user.overlay.origin";

impl<'a> Merging<'a> {
    /// In the empty directory `top`; what an upper layer takes away goes to the empty directory `trash`.
    pub fn new(top: BorrowedFd<'a>, trash: BorrowedFd<'a>) -> io::Result<Merging<'a>> {
        Ok(Merging { top, trash, here: open_below(top, c".")?, moved: 0 })
    }

    /// Lays one more layer upon the others. Whiteouts stay: they say what is gone of the project below all layers.
    pub fn lay(&mut self, layer: BorrowedFd<'_>) -> Result<(), Error> {
        self.here = open_below(self.top, c".").map_err(failed("open", b"."))?;
        walk(layer, &mut |step| match step {
            Step::Enter(entry) => {
                let step = failed("show", entry.path);
                self.enter(&entry).map_err(step)
            }
            Step::Meet(entry) => {
                let step = failed("show", entry.path);
                self.meet(&entry).map_err(step)
            }
            Step::Leave(stat) => self.leave(stat).map_err(failed("show", b"a directory")),
        })
    }

    fn enter(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let found = entry.directory.map(attributes).transpose()?.unwrap_or_default();
        let is_opaque = found.iter().any(|(name, value)| name.as_c_str() == tree::OPAQUE && value == b"y");
        let (made, was_there) = match open_below(self.here.as_fd(), entry.name) {
            Ok(there) if !is_opaque => (there, true),
            _ => {
                let hid = self.is_whiteout(entry.name);
                self.take_away(entry.name)?;
                let made = make_directory(self.here.as_fd(), entry.name)?;
                // Made anew where a lower layer had deleted what the project has.
                if hid {
                    set_attribute(made.as_fd(), tree::OPAQUE, b"y")?;
                }
                (made, false)
            }
        };
        for (name, value) in &found {
            if !(was_there && name.as_c_str() == ORIGIN) {
                set_attribute(made.as_fd(), name, value)?;
            }
        }
        self.here = made;
        Ok(())
    }

    fn leave(&mut self, stat: &Stat) -> io::Result<()> {
        let parent = above(&self.here)?;
        give(self.here.as_fd(), (stat.st_uid, stat.st_gid), stat.st_mode)?;
        self.here = parent;
        Ok(())
    }

    fn meet(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        // What a lower layer made itself came from nowhere, though it was copied since.
        let is_new = self.is_of_a_lower_layer(entry.name)?;
        self.take_away(entry.name)?;
        let here = self.here.as_fd();
        match FileType::from_raw_mode(entry.stat.st_mode) {
            FileType::RegularFile if is_new => self.copy(entry),
            FileType::CharacterDevice if tree::is_whiteout(entry.stat) => make_whiteout(here, entry.name),
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {
                match rustix::fs::linkat(entry.parent, entry.name, here, entry.name, AtFlags::empty()) {
                    Err(Errno::XDEV | Errno::MLINK) => self.copy(entry),
                    other => Ok(other?),
                }
            }
            _ => Ok(()),
        }
    }

    /// A copy without the word where it came from.
    fn copy(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        if FileType::from_raw_mode(entry.stat.st_mode) == FileType::Symlink {
            let target = rustix::fs::readlinkat(entry.parent, entry.name, Vec::new())?;
            return Ok(rustix::fs::symlinkat(&target, &self.here, entry.name)?);
        }
        let from = open_file(entry.parent, entry.name)?;
        let to = make_file(self.here.as_fd(), entry.name)?;
        copy_contents(&from, &to)?;
        for (name, value) in attributes(from.as_fd())?.iter().filter(|(name, _)| name.as_c_str() != ORIGIN) {
            set_attribute(to.as_fd(), name, value)?;
        }
        give(to.as_fd(), (entry.stat.st_uid, entry.stat.st_gid), entry.stat.st_mode)?;
        Ok(rustix::fs::futimens(&to, &tree::times(entry.stat))?)
    }

    fn is_whiteout(&self, name: &CStr) -> bool {
        rustix::fs::statat(&self.here, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| tree::is_whiteout(&stat))
    }

    fn is_of_a_lower_layer(&self, name: &CStr) -> io::Result<bool> {
        let Ok(file) = open_file(self.here.as_fd(), name) else { return Ok(false) };
        Ok(!attributes(file.as_fd())?.iter().any(|(name, _)| name.as_c_str() == ORIGIN))
    }

    fn take_away(&mut self, name: &CStr) -> io::Result<()> {
        self.moved += 1;
        let fresh = CString::new(format!("{:x}", self.moved))?;
        match rustix::fs::renameat_with(&self.here, name, self.trash, &fresh, RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, File},
        os::unix::fs::MetadataExt as _,
        path::Path,
    };

    fn layer(fill: impl FnOnce(&Path)) -> tempfile::TempDir {
        let layer = tempfile::tempdir().unwrap();
        fill(layer.path());
        layer
    }

    fn whiteout(path: &Path, name: &CStr) {
        make_whiteout(File::open(path).unwrap().as_fd(), name).unwrap();
    }

    fn mark(path: &Path, name: &CStr) {
        set_attribute(File::open(path).unwrap().as_fd(), name, b"y").unwrap();
    }

    fn merged(layers: &[&Path]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for name in ["to", "trash"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        let open = |path: &Path| File::open(path).unwrap();
        let (top, trash) = (open(&place.path().join("to")), open(&place.path().join("trash")));
        let mut merging = Merging::new(top.as_fd(), trash.as_fd()).unwrap();
        for layer in layers {
            merging.lay(open(layer).as_fd()).unwrap();
        }
        place
    }

    #[test]
    fn the_topmost_counts_and_what_the_project_lost_stays_lost() {
        let lower = layer(|path| {
            fs::create_dir_all(path.join("d/deep")).unwrap();
            fs::write(path.join("d/deep/x"), "x").unwrap();
            fs::write(path.join("changed"), "old").unwrap();
            fs::write(path.join("same"), "same").unwrap();
            fs::create_dir(path.join("emptied")).unwrap();
            fs::write(path.join("emptied/x"), "").unwrap();
            whiteout(path, c"gone");
            whiteout(path, c"again");
        });
        let upper = layer(|path| {
            whiteout(path, c"d");
            fs::write(path.join("changed"), "new").unwrap();
            mark(&path.join("changed"), ORIGIN);
            fs::create_dir(path.join("emptied")).unwrap();
            mark(&path.join("emptied"), tree::OPAQUE);
            fs::create_dir(path.join("again")).unwrap();
        });

        let place = merged(&[lower.path(), upper.path()]);

        let made = |name: &str| place.path().join("to").join(name);
        let is_gone = |name: &str| tree::is_whiteout(&rustix::fs::lstat(made(name)).unwrap());
        assert!(is_gone("d") && is_gone("gone") && !made("emptied/x").exists());
        assert_eq!(fs::read_to_string(made("changed")).unwrap(), "new");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&made("same")), inode(&lower.path().join("same")), "no copy");
        let told = |name: &str| attributes(File::open(made(name)).unwrap().as_fd()).unwrap();
        assert_eq!(told("changed"), [], "the project never had it");
        assert_eq!(
            told("again"),
            [(tree::OPAQUE.to_owned(), b"y".to_vec())],
            "nothing of the project's is seen in it"
        );
    }
}
