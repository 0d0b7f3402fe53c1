//! Files that are in the home directory before the program starts.

use super::{During, Failed};
use airlock_linux::mount;
use airlock_protocol::spec::HomeFile;
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use std::{
    collections::HashSet,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Component, Path},
};

/// Bytes of a list that are looked at.
const MOST_LISTED: u64 = 1 << 20;

/// Writes those that are not there yet: what the program made of one stays; a list of ours gets the lines that it lacks. Nothing of the host is shown below `root` yet, so that
/// none can be written to it.
pub(super) fn write(
    root: BorrowedFd<'_>,
    home: &Path,
    files: &[HomeFile],
    owner: (u32, u32),
) -> Result<(), Failed> {
    for file in files {
        let step = format!("write {} into the home directory", file.path);
        match write_one(root, home, file, owner) {
            // An earlier run of the program put something else there.
            Err(err) if matches!(err.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) => {
            }
            Err(err) if err.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
            written => written.during(&step)?,
        }
    }
    Ok(())
}

fn write_one(root: BorrowedFd<'_>, home: &Path, file: &HomeFile, owner: (u32, u32)) -> io::Result<()> {
    let path = Path::new(&file.path);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::Error::other("it is not a path below the home directory"));
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut folder = mount::make_dir(root, home)?;
    for part in path.parent().into_iter().flat_map(Path::components) {
        let is_new = !mount::exists(folder.as_fd(), Path::new(&part));
        folder = mount::make_dir(folder.as_fd(), Path::new(&part))?;
        if is_new {
            give(&folder, owner)?;
        }
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o600)) {
        Ok(made) => {
            give(&made, owner)?;
            File::from(made).write_all(file.text.as_bytes())
        }
        Err(Errno::EXIST) => add_lines(&folder, Path::new(name), &file.text),
        Err(err) => Err(err.into()),
    }
}

/// Adds lines to a file of an earlier start. One that does not begin as ours, with the same comment, is the program's own.
fn add_lines(folder: &OwnedFd, name: &Path, text: &str) -> io::Result<()> {
    let Some(first) = text.lines().next().filter(|first| first.starts_with('#')) else { return Ok(()) };
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut there = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    if !there.metadata()?.is_file() {
        return Ok(());
    }
    let mut bytes = Vec::new();
    (&there).take(MOST_LISTED).read_to_end(&mut bytes)?;
    let old = String::from_utf8_lossy(&bytes);
    let known: HashSet<&str> = old.lines().collect();
    let missing: String =
        text.lines().filter(|line| !known.contains(line)).map(|line| format!("{line}\n")).collect();
    if old.lines().next() != Some(first) || missing.is_empty() {
        return Ok(());
    }
    let end = if old.ends_with('\n') { "" } else { "\n" };
    there.write_all(format!("{end}{missing}").as_bytes())
}

fn give(fd: &OwnedFd, (user, group): (u32, u32)) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    Ok(rustix::fs::chownat(fd, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    fn owner() -> (u32, u32) {
        (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    }

    fn file(path: &str) -> HomeFile {
        HomeFile { path: path.to_owned(), text: "placeholder".to_owned() }
    }

    #[test]
    fn files_are_the_users_alone_and_what_the_program_made_of_them_stays() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::File::open(dir.path()).unwrap();
        let files = [file(".config/gh/hosts.yml"), file(".netrc")];

        write(root.as_fd(), Path::new("/root"), &files, owner()).unwrap();
        let netrc = dir.path().join("root/.netrc");
        assert_eq!(fs::metadata(&netrc).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&netrc, "changed").unwrap();
        write(root.as_fd(), Path::new("/root"), &files, owner()).unwrap();

        assert_eq!(fs::read_to_string(&netrc).unwrap(), "changed");
        assert_eq!(fs::read_to_string(dir.path().join("root/.config/gh/hosts.yml")).unwrap(), "placeholder");
    }

    #[test]
    fn a_list_of_ours_gets_the_lines_that_it_lacks_and_the_programs_own_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::File::open(dir.path()).unwrap();
        let list = |text: &str| HomeFile { path: "ignore".to_owned(), text: text.to_owned() };
        let path = dir.path().join("root/ignore");

        write(root.as_fd(), Path::new("/root"), &[list("# Ours.\n/a\n")], owner()).unwrap();
        fs::write(&path, "# Ours.\n/a\n/own").unwrap();
        write(root.as_fd(), Path::new("/root"), &[list("# Ours.\n/a\n/b\n")], owner()).unwrap();
        write(root.as_fd(), Path::new("/root"), &[list("# Ours.\n/b\n")], owner()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "# Ours.\n/a\n/own\n/b\n");

        fs::write(&path, "/own\n").unwrap();
        write(root.as_fd(), Path::new("/root"), &[list("# Ours.\n/b\n")], owner()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "/own\n");
    }

    #[test]
    fn nothing_is_written_through_a_link_or_out_of_the_home() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(dir.path().join("root")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("root/.config")).unwrap();
        let root = fs::File::open(dir.path()).unwrap();
        let home = Path::new("/root");

        write(root.as_fd(), home, &[file(".config/x")], owner()).unwrap();

        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        for bad in ["../x", "/x", "a/../../x", ""] {
            assert!(write(root.as_fd(), home, &[file(bad)], owner()).is_err(), "{bad}");
        }
    }
}
