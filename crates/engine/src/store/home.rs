//! Whether a directory may hold our state: ours, 0700, and nobody else can swap a part of its path.

use super::{Error, failed};
use rustix::{
    fs::{FileType, Mode, Stat, lstat, stat},
    io::Errno,
    process::geteuid,
};
use std::{
    io,
    path::{Component, Path, PathBuf},
};

/// Makes the directory and its folders where they are missing, and refuses what others could change.
pub(super) fn prepare(home: &Path) -> Result<(), Error> {
    if !home.is_absolute() || home.components().any(|part| part == Component::ParentDir) {
        return Err(Error::Unsafe { path: home.to_owned(), why: "it is not an absolute path".to_owned() });
    }
    let sandboxes = home.join("sandboxes");
    if lstat(&sandboxes).is_err() {
        make(home)?;
    }
    let owners = Owners::of_this_host()?;
    let mut path = PathBuf::new();
    for part in home.components() {
        path.push(part);
        let seen = lstat(&path).map_err(io::Error::from).map_err(failed("look at", &path))?;
        if let Some(why) = owners.weakness(&seen) {
            return Err(Error::Unsafe { path, why });
        }
    }
    let seen = stat(home).map_err(io::Error::from).map_err(failed("look at", home))?;
    owners.private(&seen).map_err(|why| Error::Unsafe { path: home.to_owned(), why })
}

/// `sandboxes` comes last: where it stands, everything does.
fn make(home: &Path) -> Result<(), Error> {
    if let Some(parent) = home.parent() {
        std::fs::create_dir_all(parent).map_err(failed("make", parent))?;
    }
    let folders = ["names", "host", "guest", "sandboxes"].map(|folder| home.join(folder));
    for path in std::iter::once(home.to_owned()).chain(folders) {
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make", &path)(errno.into())),
        }
    }
    Ok(())
}

/// Users who may own a part of the path: this one, root, and whoever owns `/` (in a user namespace without root
/// that is the overflow user).
struct Owners {
    me: u32,
    top: u32,
}

impl Owners {
    fn of_this_host() -> Result<Owners, Error> {
        let root = Path::new("/");
        let top = stat(root).map_err(io::Error::from).map_err(failed("look at", root))?;
        Ok(Owners { me: geteuid().as_raw(), top: top.st_uid })
    }

    /// Why somebody else could replace what comes below this part of a path.
    fn weakness(&self, part: &Stat) -> Option<String> {
        let owner = part.st_uid;
        if owner != self.me && owner != 0 && owner != self.top {
            return Some(format!("it belongs to user {owner}"));
        }
        let mode = Mode::from_raw_mode(part.st_mode);
        let is_directory = FileType::from_raw_mode(part.st_mode) == FileType::Directory;
        if is_directory && mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
            return Some("everybody may write there".to_owned());
        }
        None
    }

    fn private(&self, home: &Stat) -> Result<(), String> {
        if FileType::from_raw_mode(home.st_mode) != FileType::Directory {
            return Err("it is not a directory".to_owned());
        }
        if home.st_uid != self.me {
            return Err(format!("it belongs to user {}, and you are user {}", home.st_uid, self.me));
        }
        match Mode::from_raw_mode(home.st_mode) & (Mode::RWXG | Mode::RWXO) {
            others if others.is_empty() => Ok(()),
            _ => Err(format!("others may enter it (mode {:o})", home.st_mode & 0o7777)),
        }
    }
}
