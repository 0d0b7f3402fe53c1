//! Our own files of `/etc` where they lie over those of the root: over an image's, and where the host's cannot be an overlay because
//! something is mounted below it (in a container, its `hosts` and `resolv.conf`), so that an ordinary user's sandbox has a plain bind of it.

use super::{During, Failed};
use airlock_linux::mount::{self, Access, Depth};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// A file system in memory for them, detached.
pub(super) fn memory() -> io::Result<OwnedFd> {
    mount::tmpfs(&[(c"mode", c"755"), (c"size", c"8388608")])
}

/// Covers each of `files` that the host has by ours. A name that leads into a directory of the sandbox's own is made there. What
/// can be neither covered nor made is an error: the host's would be seen.
pub(super) fn cover(
    root: BorrowedFd<'_>,
    memory: &OwnedFd,
    files: &[(&'static str, String)],
    access: Access,
) -> Result<(), Failed> {
    for (name, text) in files {
        let step = format!("put our own /etc/{name} in its place");
        let covered = cover_one(root, memory, name, text).during(&step)?;
        let Some((place, tree)) = covered else { continue };
        if access == Access::ReadOnly {
            mount::make_read_only(tree.as_fd(), Depth::One).during(&step)?;
        }
        mount::attach(tree.as_fd(), place.as_fd()).during(&step)?;
    }
    match access {
        Access::ReadWrite => Ok(()),
        Access::ReadOnly => {
            mount::make_read_only(memory.as_fd(), Depth::One).during("make our own files of /etc read-only")
        }
    }
}

/// The place and what is to lie there, where there is something to be covered.
fn cover_one(
    root: BorrowedFd<'_>,
    memory: &OwnedFd,
    name: &str,
    text: &str,
) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let path = Path::new("/etc").join(name);
    let place = match mount::open_beneath(root, &path) {
        Ok(place) => place,
        Err(err) if err.kind() == io::ErrorKind::NotFound => match target(root, name)? {
            // The host has none: there is nothing to be seen.
            None => return Ok(None),
            Some(target) => mount::make_file(root, &target)?,
        },
        Err(err) => return Err(err),
    };
    let seen = rustix::fs::fstat(&place)?;
    // It may be hidden already, by a device that gives nothing.
    if FileType::from_raw_mode(seen.st_mode) == FileType::Directory {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(memory, name, flags, Mode::from_raw_mode(0o644))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(text.as_bytes())?;
    let tree = mount::clone_tree(memory.as_fd(), Path::new(name), Depth::One)?;
    Ok(Some((place, tree)))
}

/// Where a link at this name leads, if there is one: nothing is there.
fn target(root: BorrowedFd<'_>, name: &str) -> io::Result<Option<PathBuf>> {
    let etc = mount::open_beneath(root, Path::new("/etc"))?;
    if rustix::fs::statat(&etc, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return Ok(None);
    }
    let link = rustix::fs::readlinkat(&etc, name, Vec::new())?;
    let link = Path::new(std::ffi::OsStr::new(link.to_str().map_err(io::Error::other)?)).to_owned();
    Ok(Some(plain(&Path::new("/etc").join(link))))
}

/// Without `..`, which nothing above the root takes away.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => plain.push(name),
            std::path::Component::ParentDir => drop(plain.pop()),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_followed_from_where_it_stands() {
        for (link, leads) in [
            ("../run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/stub-resolv.conf"),
            ("/run/resolv.conf", "/run/resolv.conf"),
            ("other", "/etc/other"),
            ("../../../x", "/x"),
        ] {
            assert_eq!(plain(&Path::new("/etc").join(link)), Path::new(leads));
        }
    }

    #[test]
    fn a_name_that_is_no_link_and_not_there_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("../run/x", dir.path().join("etc/resolv.conf")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(target(root.as_fd(), "hosts").unwrap(), None);
        assert_eq!(target(root.as_fd(), "resolv.conf").unwrap().as_deref(), Some(Path::new("/run/x")));
    }
}
