//! A tree, entry by entry, each directory before what is in it.

use super::{Error, failed};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// What a walk comes to.
#[derive(Debug)]
pub enum Step<'a> {
    /// A directory, before its entries.
    Enter(Entry<'a>),
    /// Anything else.
    Meet(Entry<'a>),
    /// The directory that was entered last and not left yet, after its entries.
    Leave(&'a Stat),
}

/// Something in a tree.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The directory it is in.
    pub parent: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a CStr,
    /// Where it is, from the top, without a leading slash.
    pub path: &'a [u8],
    /// What it is.
    pub stat: &'a Stat,
    /// The directory itself, where it is one.
    pub directory: Option<BorrowedFd<'a>>,
}

/// Names that are held in memory at once: a directory with more is not read.
const MOST_NAME_BYTES: usize = 128 << 20;

/// A directory that has been entered.
struct Level {
    stat: Stat,
    left: Vec<CString>,
    path_length: usize,
}

/// Walks what is below `top`, names in order. `visit` may stop it by an error.
pub fn walk(top: BorrowedFd<'_>, visit: &mut dyn FnMut(Step<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let mut here = reopen(top).map_err(failed("open", b"."))?;
    let mut path = Vec::new();
    let mut held = 0;
    let stat = rustix::fs::fstat(&here).map_err(failed("look at", b"."))?;
    let mut levels = vec![Level { left: names(here.as_fd(), &mut held)?, stat, path_length: 0 }];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.left.pop() else {
            levels.pop();
            if let Some(above) = levels.last() {
                let left = rustix::fs::fstat(&here).map_err(failed("look at", &path))?;
                here = up(&here, &above.stat).map_err(failed("leave", &path))?;
                path.truncate(above.path_length);
                visit(Step::Leave(&left))?;
            }
            continue;
        };
        held -= name.as_bytes_with_nul().len();
        let above = path.len();
        if above > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let stat =
            rustix::fs::statat(&here, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("look at", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            visit(Step::Meet(Entry {
                parent: here.as_fd(),
                name: &name,
                path: &path,
                stat: &stat,
                directory: None,
            }))?;
            path.truncate(above);
            continue;
        }
        let below = open_below(here.as_fd(), &name).map_err(failed("open", &path))?;
        let directory = Some(below.as_fd());
        visit(Step::Enter(Entry { parent: here.as_fd(), name: &name, path: &path, stat: &stat, directory }))?;
        levels.push(Level { left: names(below.as_fd(), &mut held)?, stat, path_length: path.len() });
        here = below;
    }
    Ok(())
}

/// The names in a directory, the last in order first.
fn names(directory: BorrowedFd<'_>, held: &mut usize) -> Result<Vec<CString>, Error> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(failed("read", b"a directory"))? {
        let entry = entry.map_err(failed("read", b"a directory"))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *held += name.to_bytes_with_nul().len();
        if *held > MOST_NAME_BYTES {
            let source = io::Error::other("there are too many entries in its directories");
            return Err(failed("read", b"a directory")(source));
        }
        names.push(name.to_owned());
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Back to the directory above, which must be the one we came from.
fn up(here: &OwnedFd, above: &Stat) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(here, "..", flags, Mode::empty())?;
    let found = rustix::fs::fstat(&parent)?;
    if (found.st_dev, found.st_ino) == (above.st_dev, above.st_ino) {
        return Ok(parent);
    }
    Err(io::Error::other("it was moved meanwhile"))
}

fn reopen(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, ".", flags, Mode::empty())?)
}

/// Opens a directory by its name in another.
pub(super) fn open_below(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(directory, name, flags, Mode::empty(), within)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    fn seen(top: &Path) -> Vec<String> {
        let mut seen = Vec::new();
        let top = fs::File::open(top).unwrap();
        walk(top.as_fd(), &mut |step| {
            seen.push(match step {
                Step::Enter(entry) => format!("> {}", String::from_utf8_lossy(entry.path)),
                Step::Meet(entry) => String::from_utf8_lossy(entry.path).into_owned(),
                Step::Leave(_) => "<".to_owned(),
            });
            Ok(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn a_directory_comes_before_its_entries_in_order_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        fs::write(dir.path().join("b/c/file"), "").unwrap();
        fs::write(dir.path().join("a"), "").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();

        assert_eq!(seen(dir.path()), ["a", "> b", "> b/c", "b/c/file", "<", "<", "link"]);
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        let mut here: OwnedFd = fs::File::open(dir.path()).unwrap().into();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&here, "deep", Mode::RWXU).unwrap();
            here = open_below(here.as_fd(), c"deep").unwrap();
        }

        let entered = seen(dir.path()).iter().filter(|step| step.starts_with('>')).count();

        assert_eq!(entered, 3000);
        std::process::Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap();
    }
}
