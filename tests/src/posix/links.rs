//! Hard and symbolic links, owners, permissions, times, extended attributes.

use super::{Check, Outcome, fails, same, works};
use rustix::{
    fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags},
    io::Errno,
};
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

pub(super) const CHECKS: &[Check] = &[
    ("two_names_are_one_file", two_names),
    ("a_directory_has_one_name", no_directory_links),
    ("a_link_to_nothing_is_there_and_leads_nowhere", dangling),
    ("a_link_keeps_its_text", link_text),
    ("links_that_lead_in_circles_are_refused", circles),
    ("a_link_is_replaced_and_not_followed", replaced_links),
    ("modes_are_kept", modes),
    ("what_cannot_be_read_is_not_read", closed),
    ("times_are_kept_to_the_nanosecond", times),
    ("times_before_1970_are_kept", old_times),
    ("a_change_of_mode_changes_the_change_time", change_time),
    ("what_was_written_is_not_older_than_what_was_there_before", written_later),
    ("extended_attributes_are_kept", attributes),
    ("extended_attributes_are_made_and_replaced_as_asked", attribute_flags),
    ("an_inode_keeps_its_number", inode),
];

fn two_names(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "one"))?;
    works("link", fs::hard_link(dir.join("a"), dir.join("b")))?;
    let stat = |name: &str| works("stat", fs::metadata(dir.join(name)));
    same("inode", stat("a")?.ino(), stat("b")?.ino())?;
    same("links", stat("a")?.nlink(), 2)?;
    works("write", fs::write(dir.join("b"), "two"))?;
    same("content", works("read", fs::read_to_string(dir.join("a")))?, "two".to_owned())?;
    works("remove", fs::remove_file(dir.join("a")))?;
    same("links", stat("b")?.nlink(), 1)?;
    same("content", works("read", fs::read_to_string(dir.join("b")))?, "two".to_owned())?;
    works("write", fs::write(dir.join("c"), ""))?;
    fails("link onto a file", fs::hard_link(dir.join("b"), dir.join("c")), &[Errno::EXIST])
}

fn no_directory_links(dir: &Path) -> Outcome {
    works("mkdir", fs::create_dir(dir.join("d")))?;
    fails("link", fs::hard_link(dir.join("d"), dir.join("e")), &[Errno::PERM])
}

fn dangling(dir: &Path) -> Outcome {
    works("symlink", symlink("nowhere", dir.join("l")))?;
    fails("stat", fs::metadata(dir.join("l")), &[Errno::NOENT])?;
    let found = works("lstat", fs::symlink_metadata(dir.join("l")))?;
    same("it is a link", found.file_type().is_symlink(), true)?;
    same("size", found.len(), 7)?;
    works("create through it", fs::write(dir.join("l"), "x"))?;
    same("it leads there", dir.join("nowhere").exists(), true)
}

fn link_text(dir: &Path) -> Outcome {
    let text = "/".to_owned() + &"x".repeat(1000);
    works("symlink", symlink(&text, dir.join("l")))?;
    same("text", works("readlink", fs::read_link(dir.join("l")))?.as_path(), Path::new(&text))?;
    works("create", File::create(dir.join("f")))?;
    fails("readlink of a file", fs::read_link(dir.join("f")), &[Errno::INVAL])
}

fn circles(dir: &Path) -> Outcome {
    works("symlink", symlink("b", dir.join("a")))?;
    works("symlink", symlink("a", dir.join("b")))?;
    fails("open", File::open(dir.join("a")), &[Errno::LOOP])
}

fn replaced_links(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("to"), "to"))?;
    works("symlink", symlink("to", dir.join("l")))?;
    works("write", fs::write(dir.join("new"), "new"))?;
    works("rename", fs::rename(dir.join("new"), dir.join("l")))?;
    same("where it led", works("read", fs::read_to_string(dir.join("to")))?, "to".to_owned())?;
    same("content", works("read", fs::read_to_string(dir.join("l")))?, "new".to_owned())
}

fn modes(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("create", File::create(&path))?;
    for mode in [0o000, 0o400, 0o644, 0o755, 0o777] {
        works("chmod", fs::set_permissions(&path, fs::Permissions::from_mode(mode)))?;
        same("mode", works("stat", fs::metadata(&path))?.mode() & 0o7777, mode)?;
    }
    works("mkdir", fs::create_dir(dir.join("d")))?;
    works("chmod", fs::set_permissions(dir.join("d"), fs::Permissions::from_mode(0o1777)))?;
    same("sticky", works("stat", fs::metadata(dir.join("d")))?.mode() & 0o7777, 0o1777)
}

fn closed(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("write", fs::write(&path, "x"))?;
    works("chmod", fs::set_permissions(&path, fs::Permissions::from_mode(0o444)))?;
    // Root of the sandbox has power over its own files.
    if rustix::process::geteuid().is_root() {
        return works("write", OpenOptions::new().write(true).open(&path)).map(drop);
    }
    fails("write", OpenOptions::new().write(true).open(&path), &[Errno::ACCESS])
}

fn set_times(path: &Path, seconds: i64, nanos: i64) -> Outcome {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    works("utimensat", rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW))
}

fn times(dir: &Path) -> Outcome {
    works("create", File::create(dir.join("a")))?;
    works("symlink", symlink("a", dir.join("l")))?;
    for name in ["a", "l"] {
        set_times(&dir.join(name), 1_234_567_890, 123_456_789)?;
        let found = works("stat", fs::symlink_metadata(dir.join(name)))?;
        same("modified", (found.mtime(), found.mtime_nsec()), (1_234_567_890, 123_456_789))?;
        same("accessed", (found.atime(), found.atime_nsec()), (1_234_567_890, 123_456_789))?;
    }
    Ok(())
}

fn old_times(dir: &Path) -> Outcome {
    works("create", File::create(dir.join("a")))?;
    set_times(&dir.join("a"), -1000, 5)?;
    same("modified", works("stat", fs::metadata(dir.join("a")))?.mtime(), -1000)
}

fn change_time(dir: &Path) -> Outcome {
    works("create", File::create(dir.join("a")))?;
    let stat = || works("stat", fs::metadata(dir.join("a"))).map(|found| (found.ctime(), found.ctime_nsec()));
    let before = stat()?;
    let young = |now: (i64, i64)| now > before;
    for _ in 0..200 {
        works("chmod", fs::set_permissions(dir.join("a"), fs::Permissions::from_mode(0o600)))?;
        if young(stat()?) {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Err("the change time stays".to_owned())
}

/// As `make` compares them. Who makes files and who writes them must go by one clock.
fn written_later(dir: &Path) -> Outcome {
    let modified = |name: &str| {
        works("stat", fs::metadata(dir.join(name))).map(|found| (found.mtime(), found.mtime_nsec()))
    };
    let file = works("create", File::create(dir.join("target")))?;
    for round in 0..50 {
        works("create", fs::write(dir.join("source"), ""))?;
        works("write", std::os::unix::fs::FileExt::write_at(&file, b"x", round))?;
        let (source, target) = (modified("source")?, modified("target")?);
        same("the target is as young", target >= source, true)?;
        works("remove", fs::remove_file(dir.join("source")))?;
    }
    Ok(())
}

fn attributes(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("create", File::create(&path))?;
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&path, name, value, XattrFlags::empty());
    works("set", set("user.one", b"1"))?;
    works("set", set("user.two", &[0; 1000]))?;
    let mut value = vec![0; 2000];
    let count = works("get", rustix::fs::getxattr(&path, "user.two", &mut value))?;
    same("length", count, 1000)?;
    let count = works("list", rustix::fs::listxattr(&path, &mut value))?;
    let names = value.get(..count).unwrap_or_default().split(|byte| *byte == 0);
    let own = names.filter(|name| name.starts_with(b"user.")).count();
    same("names", own, 2)?;
    works("remove", rustix::fs::removexattr(&path, "user.one"))?;
    let gone = rustix::fs::getxattr(&path, "user.one", &mut value).map_err(std::io::Error::from);
    fails("get", gone, &[Errno::NODATA])
}

fn attribute_flags(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("create", File::create(&path))?;
    let set = |flags| rustix::fs::setxattr(&path, "user.x", b"1", flags).map_err(std::io::Error::from);
    fails("replace nothing", set(XattrFlags::REPLACE), &[Errno::NODATA])?;
    works("create", set(XattrFlags::CREATE))?;
    fails("create again", set(XattrFlags::CREATE), &[Errno::EXIST])?;
    works("replace", set(XattrFlags::REPLACE))
}

fn inode(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "x"))?;
    let number = |name: &str| works("stat", fs::metadata(dir.join(name))).map(|found| found.ino());
    let before = number("a")?;
    works("rename", fs::rename(dir.join("a"), dir.join("b")))?;
    works("write", fs::write(dir.join("b"), "more"))?;
    same("inode", number("b")?, before)
}
