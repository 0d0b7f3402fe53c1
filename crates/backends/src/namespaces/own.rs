//! Our own files of `/etc` on the disk of a sandbox, in the upper layer of the overlay that shows it.

use super::{During, Failed};
use airlock_engine::plan::is_shared;
use airlock_linux::mount;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

/// Files of accounts, which a sandbox may change and keep.
const ACCOUNTS: [&str; 4] = ["passwd", "group", "shadow", "gshadow"];

/// Writes all of them that are not there. What the sandbox made of the accounts may lie in one of the layers `below`.
pub(super) fn write(
    upper: BorrowedFd<'_>,
    below: &[OwnedFd],
    files: &[(&'static str, String)],
) -> Result<(), Failed> {
    let is_below = |name: &str| below.iter().any(|layer| mount::exists(layer.as_fd(), Path::new(name)));
    files
        .iter()
        .filter(|(name, _)| !(ACCOUNTS.contains(name) && is_below(name)))
        .try_for_each(|(name, text)| write_one(upper, name, text).during(&format!("write /etc/{name}")))
}

/// Writes in advance what does not depend on the sandbox.
pub(super) fn write_shared(upper: BorrowedFd<'_>, files: &[(&'static str, String)]) -> Result<(), Failed> {
    files
        .iter()
        .filter(|(name, _)| is_shared(name))
        .try_for_each(|(name, text)| write_one(upper, name, text).during(&format!("write /etc/{name}")))
}

/// Replaces whatever has the name, unless it is the same. What the sandbox made of the accounts stays.
fn write_one(directory: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let is_account = ACCOUNTS.contains(&name);
    if mount::exists(directory, Path::new(name)) {
        if is_account || says(directory, name, text) {
            return Ok(());
        }
        rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(directory, name, flags, mode(name))?;
    rustix::fs::fchmod(&file, mode(name))?;
    File::from(file).write_all(text.as_bytes())
}

fn mode(name: &str) -> Mode {
    Mode::from_raw_mode(if name.contains("shadow") { 0o640 } else { 0o644 })
}

/// Whether a plain file with our mode and exactly this text is there. The sandbox may have left anything in its place.
fn says(directory: BorrowedFd<'_>, name: &str, text: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { return false };
    let is_ours = rustix::fs::fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_mode & 0o7777 == mode(name).as_raw_mode()
            && (stat.st_uid, stat.st_nlink) == (rustix::process::geteuid().as_raw(), 1)
            && usize::try_from(stat.st_size) == Ok(text.len())
    });
    let mut there = Vec::new();
    is_ours && File::from(file).read_to_end(&mut there).is_ok() && there == text.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    const FILES: [(&str, &str); 3] = [("hosts", "a\n"), ("passwd", "root\n"), ("resolv.conf", "b\n")];

    fn files() -> Vec<(&'static str, String)> {
        FILES.map(|(name, text)| (name, text.to_owned())).into()
    }

    #[test]
    fn what_was_written_in_advance_is_taken_as_it_is_and_the_rest_comes() {
        let dir = tempfile::tempdir().unwrap();
        let upper = File::open(dir.path()).unwrap();
        write_shared(upper.as_fd(), &files()).unwrap();
        let inode = |name: &str| {
            fs::metadata(dir.path().join(name)).map(|found| std::os::unix::fs::MetadataExt::ino(&found)).ok()
        };
        let before = FILES.map(|(name, _)| inode(name));

        write(upper.as_fd(), &[], &files()).unwrap();

        assert_eq!(before.map(|there| there.is_some()), [false, true, true]);
        assert_eq!([inode("passwd"), inode("resolv.conf")], [before[1], before[2]]);
        for (name, text) in FILES {
            assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), text);
        }
    }

    #[test]
    fn accounts_of_a_layer_stay_and_what_is_ours_comes_anew() {
        let (dir, layer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (upper, below) = (File::open(dir.path()).unwrap(), File::open(layer.path()).unwrap());
        for (name, _) in FILES {
            fs::write(layer.path().join(name), "old\n").unwrap();
        }

        write(upper.as_fd(), &[below.into()], &files()).unwrap();

        let there = FILES.map(|(name, _)| dir.path().join(name).exists());
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn whatever_a_sandbox_left_is_replaced_but_for_its_accounts() {
        let dir = tempfile::tempdir().unwrap();
        let upper = File::open(dir.path()).unwrap();
        fs::write(dir.path().join("passwd"), "mine\n").unwrap();
        fs::write(dir.path().join("resolv.conf"), "b\n").unwrap();
        fs::set_permissions(dir.path().join("resolv.conf"), fs::Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::symlink("passwd", dir.path().join("hosts")).unwrap();

        write(upper.as_fd(), &[], &files()).unwrap();

        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!([read("passwd"), read("hosts"), read("resolv.conf")], ["mine\n", "a\n", "b\n"]);
        let mode = fs::symlink_metadata(dir.path().join("resolv.conf")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
    }
}
