//! The same tree again: by sharing blocks where the file system can, else by copying data and leaving holes.

use super::{
    Error, failed,
    tree::{
        self, above, attributes, give, make_directory, make_file, make_whiteout, open_file, set_attribute,
    },
    walk::{Entry, Step, walk},
};
use airlock_linux::disk::copy_contents;
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, Stat, Uid},
    io::Errno,
};
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

/// Copies what is below `from`, which nobody changes meanwhile, into the empty directory `to`. `links` is another empty
/// directory of the same file system, for files with several names; what is left there is of no use. `progress` hears of
/// bytes. Sockets are left out: nobody listens at a copy.
pub fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    links: BorrowedFd<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let here = rustix::io::fcntl_dupfd_cloexec(to, 0).map_err(failed("open", b"."))?;
    let mut copying = Copying { here, links, progress };
    walk(from, &mut |step| match step {
        Step::Enter(entry) => copying.enter(&entry),
        Step::Meet(entry) => copying.meet(&entry),
        Step::Leave(stat) => copying.leave(stat).map_err(failed("finish", b"a directory")),
    })?;
    let same = || -> io::Result<()> {
        let stat = rustix::fs::fstat(from)?;
        give(to, (stat.st_uid, stat.st_gid), stat.st_mode)?;
        copy_attributes(from, to)
    };
    same().map_err(failed("finish", b"."))
}

struct Copying<'a> {
    here: OwnedFd,
    links: BorrowedFd<'a>,
    progress: &'a mut dyn FnMut(u64),
}

impl Copying<'_> {
    fn enter(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let step = failed("copy", entry.path);
        let make = || -> io::Result<OwnedFd> {
            let made = make_directory(self.here.as_fd(), entry.name)?;
            if let Some(directory) = entry.directory {
                copy_attributes(directory, made.as_fd())?;
            }
            Ok(made)
        };
        self.here = make().map_err(step)?;
        Ok(())
    }

    /// Its mode and times come last: making entries needs the one and changes the other.
    fn leave(&mut self, stat: &Stat) -> io::Result<()> {
        let parent = above(&self.here)?;
        give(self.here.as_fd(), (stat.st_uid, stat.st_gid), stat.st_mode)?;
        rustix::fs::futimens(&self.here, &tree::times(stat))?;
        self.here = parent;
        Ok(())
    }

    fn meet(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let step = failed("copy", entry.path);
        self.make(entry).map_err(step)
    }

    fn make(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let (here, name, stat) = (self.here.as_fd(), entry.name, entry.stat);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.file(entry),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(entry.parent, name, Vec::new())?;
                rustix::fs::symlinkat(&target, here, name)?;
            }
            FileType::Fifo => {
                rustix::fs::mknodat(
                    here,
                    name,
                    FileType::Fifo,
                    Mode::from_raw_mode(stat.st_mode & 0o777),
                    0,
                )?;
            }
            FileType::CharacterDevice if tree::is_whiteout(stat) => make_whiteout(here, name)?,
            _ => return Ok(()),
        }
        let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::chownat(here, name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(rustix::fs::utimensat(here, name, &tree::times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let (here, stat) = (self.here.as_fd(), entry.stat);
        let pooled = CString::new(format!("{:x}-{:x}", stat.st_dev, stat.st_ino))?;
        if stat.st_nlink > 1
            && rustix::fs::linkat(self.links, &pooled, here, entry.name, AtFlags::empty()).is_ok()
        {
            return Ok(());
        }
        let from = open_file(entry.parent, entry.name)?;
        let to = make_file(here, entry.name)?;
        copy_contents(&from, &to)?;
        give(to.as_fd(), (stat.st_uid, stat.st_gid), stat.st_mode)?;
        copy_attributes(from.as_fd(), to.as_fd())?;
        rustix::fs::futimens(&to, &tree::times(stat))?;
        if stat.st_nlink > 1 {
            match rustix::fs::linkat(here, entry.name, self.links, &pooled, AtFlags::empty()) {
                // A file with too many names becomes several.
                Ok(()) | Err(Errno::EXIST | Errno::MLINK) => {}
                Err(err) => return Err(err.into()),
            }
        }
        (self.progress)(u64::try_from(stat.st_size).unwrap_or(0));
        Ok(())
    }
}

fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    attributes(from)?.iter().try_for_each(|(name, value)| set_attribute(to, name, value).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, File, Permissions},
        os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
        path::Path,
    };

    fn copied(from: &Path) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for name in ["to", "links"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        let open = |path: &Path| File::open(path).unwrap();
        let (to, links) = (open(&place.path().join("to")), open(&place.path().join("links")));
        copy(open(from).as_fd(), to.as_fd(), links.as_fd(), &mut |_| {}).unwrap();
        place
    }

    #[test]
    fn links_holes_modes_times_and_whiteouts_are_the_same_again() {
        let from = tempfile::tempdir().unwrap();
        let path = |name: &str| from.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::write(path("a/b/one"), "same").unwrap();
        fs::hard_link(path("a/b/one"), path("two")).unwrap();
        symlink("/etc/passwd", path("a/link")).unwrap();
        fs::set_permissions(path("a/b/one"), Permissions::from_mode(0o640)).unwrap();
        let sparse = File::create(path("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"end", 1 << 29).unwrap();
        let top = File::open(from.path()).unwrap();
        make_whiteout(top.as_fd(), c"gone").unwrap();
        set_attribute(File::open(path("a")).unwrap().as_fd(), tree::OPAQUE, b"y").unwrap();
        fs::set_permissions(path("a"), Permissions::from_mode(0o1755)).unwrap();

        let to = copied(from.path());

        let made = |name: &str| to.path().join("to").join(name);
        let stat = |name: &str| fs::symlink_metadata(made(name)).unwrap();
        assert_eq!((stat("two").ino(), stat("a").mode() & 0o7777), (stat("a/b/one").ino(), 0o1755));
        assert_eq!(
            (stat("two").mode() & 0o7777, fs::read_to_string(made("two")).unwrap()),
            (0o640, "same".into())
        );
        assert_eq!(fs::read_link(made("a/link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!((stat("sparse").size(), stat("sparse").blocks() < 1000), (1 << 30, true));
        assert_eq!((stat("gone").rdev(), stat("gone").mode() & 0o170_000), (0, 0o020_000));
        let mtime = |path: &Path| fs::symlink_metadata(path).unwrap().modified().unwrap();
        assert_eq!(mtime(&made("a/b")), mtime(&path("a/b")));
        let opaque = attributes(File::open(made("a")).unwrap().as_fd()).unwrap();
        assert_eq!(opaque, [(tree::OPAQUE.to_owned(), b"y".to_vec())]);
    }
}
