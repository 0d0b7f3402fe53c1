//! Protected and hidden paths of a workspace: read-only binds whose parents cannot be moved, and covers.

use super::{During, Failed, system::Covers};
use airlock_engine::plan::Bind;
use airlock_linux::mount::{self, Access, Depth};
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Makes what is protected read-only. A mount point cannot be renamed or removed, so every directory between it and the
/// workspace becomes one too: else its parent could be moved away and another be put in its place. What is hidden could be
/// moved to where the next start does not look for it.
pub(super) fn pin_and_protect(root: BorrowedFd<'_>, bind: &Bind) -> Result<(), Failed> {
    if !bind.reaches_host() {
        return Ok(());
    }
    let protected = || bind.found.protected.iter().filter(|one| !one.is_link);
    let hidden = bind.found.hidden.iter().map(PathBuf::as_path);
    for pinned in parents(protected().map(|one| one.path.as_path()).chain(hidden)) {
        over_itself(root, &bind.target.join(&pinned), |_| Ok(()))?;
    }
    for one in protected() {
        over_itself(root, &bind.target.join(&one.path), |tree| {
            mount::make_read_only(tree.as_fd(), Depth::Recursive)
        })?;
    }
    Ok(())
}

/// All directories above these paths, from the top down.
fn parents<'p>(paths: impl Iterator<Item = &'p Path>) -> BTreeSet<PathBuf> {
    let above = paths.flat_map(|path| path.ancestors().skip(1));
    above.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned).collect()
}

/// Mounts a place over itself.
fn over_itself(
    root: BorrowedFd<'_>,
    path: &Path,
    change: impl Fn(&OwnedFd) -> io::Result<()>,
) -> Result<(), Failed> {
    let step = format!("protect {}", path.display());
    let Some(place) = open_plain(root, path).during(&step)? else { return Ok(()) };
    let tree = mount::clone_tree(place.as_fd(), Path::new(""), Depth::Recursive).during(&step)?;
    change(&tree).during(&step)?;
    mount::attach(tree.as_fd(), place.as_fd()).during(&step)
}

/// Covers what holds secrets: directories are empty, files look like `cover`.
pub(super) fn hide(
    root: BorrowedFd<'_>,
    bind: &Bind,
    cover: OwnedFd,
    covers: &mut Covers,
) -> Result<(), Failed> {
    let mut first = Some(cover);
    let mut attached: Option<OwnedFd> = None;
    for hidden in &bind.found.hidden {
        let path = bind.target.join(hidden);
        let step = format!("hide {}", path.display());
        let Some(place) = open_plain(root, &path).during(&step)? else { continue };
        let stat = rustix::fs::fstat(&place).during(&step)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            covers.cover(&place).during(&step)?;
            continue;
        }
        let tree = match (first.take(), &attached) {
            (Some(first), _) => first,
            (None, Some(attached)) => mount::copy(attached.as_fd()).during(&step)?,
            (None, None) => return Err(io::Error::from(io::ErrorKind::NotFound)).during(&step),
        };
        mount::attach(tree.as_fd(), place.as_fd()).during(&step)?;
        attached = Some(tree);
    }
    Ok(())
}

/// What cannot be opened by anybody: a device where there are none (`may_open_dev` in fs/namei.c: EACCES).
pub(super) fn denied() -> io::Result<OwnedFd> {
    let null = mount::open_device(Path::new("/dev/null"), 1, 3)?;
    let tree = mount::clone_tree(null.as_fd(), Path::new(""), Depth::One)?;
    mount::restrict(tree.as_fd(), Access::ReadOnly, Depth::One)?;
    Ok(tree)
}

/// Room for an empty file.
pub(super) fn memory() -> io::Result<OwnedFd> {
    mount::tmpfs(&[(c"mode", c"755"), (c"size", c"4096"), (c"nr_inodes", c"4")])
}

/// An empty file that cannot be written.
pub(super) fn empty(memory: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(memory, "empty", flags, Mode::from_raw_mode(0o444))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444))?;
    let tree = mount::clone_tree(memory.as_fd(), Path::new("empty"), Depth::One)?;
    mount::make_read_only(tree.as_fd(), Depth::One)?;
    Ok(tree)
}

/// A place below the root, if it is there; a link on the way is none.
fn open_plain(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<OwnedFd>> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(place) => Ok(Some(place)),
        // It was there when the workspace was looked through; whoever removes or replaces it now does so on the host.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(err) => Err(err.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_above_is_pinned_from_the_top_down() {
        let paths = ["a/b/.git/hooks", "a/.vscode", ".envrc"].map(Path::new);
        let found: Vec<_> = parents(paths.into_iter()).into_iter().collect();
        assert_eq!(found, ["a", "a/b", "a/b/.git"].map(PathBuf::from));
    }
}
