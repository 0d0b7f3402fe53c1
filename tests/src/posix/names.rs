//! Names: making, renaming, removing, listing.

use super::{Check, Outcome, fails, same, works};
use rustix::{
    fs::{CWD, Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

pub(super) const CHECKS: &[Check] = &[
    ("exclusive_creation_fails_for_what_is_there", exclusive),
    ("a_file_is_made_with_its_mode_less_the_mask", masked),
    ("names_have_at_most_255_bytes", long_names),
    ("names_are_any_bytes", odd_names),
    ("a_path_through_a_file_is_not_a_directory", through_a_file),
    ("an_empty_directory_can_be_removed_and_a_full_one_not", removal),
    ("rename_replaces_a_file", replacing),
    ("rename_keeps_to_its_sorts", sorts),
    ("rename_replaces_only_empty_directories", replacing_directories),
    ("rename_of_a_directory_takes_everything_along", moving_directories),
    ("a_directory_does_not_go_below_itself", loops),
    ("rename_onto_itself_does_nothing", onto_itself),
    ("rename_can_refuse_to_replace", no_replace),
    ("rename_can_exchange", exchange),
    ("a_listing_is_complete_and_without_repeats", listing),
    ("a_listing_goes_on_while_entries_go", listing_while_removing),
    ("directories_count_their_subdirectories", directory_links),
    ("times_of_a_directory_change_with_its_names", directory_times),
    ("a_deep_tree_is_made_and_removed", deep),
    ("a_pipe_has_a_name", pipe),
];

fn exclusive(dir: &Path) -> Outcome {
    let path = dir.join("a");
    works("create", OpenOptions::new().write(true).create_new(true).open(&path))?;
    fails("create again", OpenOptions::new().write(true).create_new(true).open(&path), &[Errno::EXIST])?;
    works("symlink", std::os::unix::fs::symlink("nowhere", dir.join("l")))?;
    let linked = OpenOptions::new().write(true).create_new(true).open(dir.join("l"));
    fails("create through a link", linked, &[Errno::EXIST])
}

fn masked(dir: &Path) -> Outcome {
    let before = rustix::process::umask(Mode::from_raw_mode(0o027));
    let made =
        rustix::fs::openat(CWD, dir.join("a"), OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o666));
    let directory = rustix::fs::mkdir(dir.join("d"), Mode::from_raw_mode(0o777));
    rustix::process::umask(before);
    works("create", made)?;
    works("mkdir", directory)?;
    let mode = |name: &str| works("stat", fs::metadata(dir.join(name))).map(|found| found.mode() & 0o7777);
    same("mode of the file", mode("a")?, 0o640)?;
    same("mode of the directory", mode("d")?, 0o750)
}

fn long_names(dir: &Path) -> Outcome {
    let (most, more) = ("n".repeat(255), "n".repeat(256));
    works("255 bytes", File::create(dir.join(&most)))?;
    fails("256 bytes", File::create(dir.join(&more)), &[Errno::NAMETOOLONG])?;
    works("rename", fs::rename(dir.join(&most), dir.join("m".repeat(255))))?;
    works("remove", fs::remove_file(dir.join("m".repeat(255))))
}

fn odd_names(dir: &Path) -> Outcome {
    use std::os::unix::ffi::OsStrExt as _;
    for bytes in [&b"\xff\xfe"[..], b"a b\nc", b"...", b"-rf", b"\\", b"*"] {
        let path = dir.join(std::ffi::OsStr::from_bytes(bytes));
        works("create", fs::write(&path, bytes))?;
        same("content", works("read", fs::read(&path))?, bytes.to_vec())?;
    }
    same("count", works("list", fs::read_dir(dir))?.count(), 6)
}

fn through_a_file(dir: &Path) -> Outcome {
    works("create", File::create(dir.join("a")))?;
    fails("stat", fs::metadata(dir.join("a/b")), &[Errno::NOTDIR])?;
    fails("mkdir", fs::create_dir(dir.join("a/b")), &[Errno::NOTDIR])?;
    fails("list", fs::read_dir(dir.join("a")), &[Errno::NOTDIR])
}

fn removal(dir: &Path) -> Outcome {
    works("mkdir", fs::create_dir(dir.join("d")))?;
    works("create", File::create(dir.join("d/a")))?;
    fails("rmdir", fs::remove_dir(dir.join("d")), &[Errno::NOTEMPTY, Errno::EXIST])?;
    fails("unlink", fs::remove_file(dir.join("d")), &[Errno::ISDIR, Errno::PERM])?;
    fails("rmdir of a file", fs::remove_dir(dir.join("d/a")), &[Errno::NOTDIR])?;
    works("unlink", fs::remove_file(dir.join("d/a")))?;
    works("rmdir", fs::remove_dir(dir.join("d")))?;
    fails("rmdir again", fs::remove_dir(dir.join("d")), &[Errno::NOENT])
}

fn replacing(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "a"))?;
    works("write", fs::write(dir.join("b"), "b"))?;
    works("rename", fs::rename(dir.join("a"), dir.join("b")))?;
    same("content", works("read", fs::read_to_string(dir.join("b")))?, "a".to_owned())?;
    same("the old name is there", dir.join("a").exists(), false)
}

fn sorts(dir: &Path) -> Outcome {
    works("create", File::create(dir.join("a")))?;
    works("mkdir", fs::create_dir(dir.join("d")))?;
    fails("file onto directory", fs::rename(dir.join("a"), dir.join("d")), &[Errno::ISDIR])?;
    fails("directory onto file", fs::rename(dir.join("d"), dir.join("a")), &[Errno::NOTDIR])
}

fn replacing_directories(dir: &Path) -> Outcome {
    for name in ["d", "e", "f"] {
        works("mkdir", fs::create_dir(dir.join(name)))?;
    }
    works("create", File::create(dir.join("e/a")))?;
    fails("onto a full one", fs::rename(dir.join("d"), dir.join("e")), &[Errno::NOTEMPTY, Errno::EXIST])?;
    works("onto an empty one", fs::rename(dir.join("e"), dir.join("f")))?;
    same("it came along", dir.join("f/a").exists(), true)
}

fn moving_directories(dir: &Path) -> Outcome {
    works("mkdir", fs::create_dir_all(dir.join("a/b/c")))?;
    works("write", fs::write(dir.join("a/b/c/f"), "text"))?;
    works("mkdir", fs::create_dir(dir.join("to")))?;
    let mut held = works("open", File::open(dir.join("a/b/c/f")))?;
    works("rename", fs::rename(dir.join("a/b"), dir.join("to/b")))?;
    same("content", works("read", fs::read_to_string(dir.join("to/b/c/f")))?, "text".to_owned())?;
    let mut text = String::new();
    works("read what was open", std::io::Read::read_to_string(&mut held, &mut text))?;
    same("what was open", text, "text".to_owned())?;
    works("write there", fs::write(dir.join("to/b/c/g"), "more"))
}

fn loops(dir: &Path) -> Outcome {
    works("mkdir", fs::create_dir_all(dir.join("a/b")))?;
    fails("rename", fs::rename(dir.join("a"), dir.join("a/b/c")), &[Errno::INVAL])
}

fn onto_itself(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "a"))?;
    works("link", fs::hard_link(dir.join("a"), dir.join("b")))?;
    works("rename", fs::rename(dir.join("a"), dir.join("a")))?;
    works("rename to another name of it", fs::rename(dir.join("a"), dir.join("b")))?;
    same("both names are there", (dir.join("a").exists(), dir.join("b").exists()), (true, true))
}

fn no_replace(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "a"))?;
    works("write", fs::write(dir.join("b"), "b"))?;
    let rename = |to: &str| {
        rustix::fs::renameat_with(CWD, dir.join("a"), CWD, dir.join(to), RenameFlags::NOREPLACE)
            .map_err(std::io::Error::from)
    };
    fails("onto a file", rename("b"), &[Errno::EXIST])?;
    works("onto nothing", rename("c"))
}

fn exchange(dir: &Path) -> Outcome {
    works("write", fs::write(dir.join("a"), "a"))?;
    works("mkdir", fs::create_dir(dir.join("d")))?;
    works("write", fs::write(dir.join("d/x"), "x"))?;
    let exchanged = rustix::fs::renameat_with(CWD, dir.join("a"), CWD, dir.join("d"), RenameFlags::EXCHANGE);
    works("exchange", exchanged)?;
    same("file", works("read", fs::read_to_string(dir.join("d")))?, "a".to_owned())?;
    same("directory", works("read", fs::read_to_string(dir.join("a/x")))?, "x".to_owned())
}

fn listing(dir: &Path) -> Outcome {
    let names: BTreeSet<String> = (0..2000).map(|number| format!("file-{number}")).collect();
    for name in &names {
        works("create", File::create(dir.join(name)))?;
    }
    let listed: Vec<String> = works("list", fs::read_dir(dir))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    same("how many", listed.len(), names.len())?;
    same("which", listed.into_iter().collect::<BTreeSet<_>>() == names, true)
}

fn listing_while_removing(dir: &Path) -> Outcome {
    for number in 0..1500 {
        works("create", File::create(dir.join(number.to_string())))?;
    }
    let mut seen = 0;
    for entry in works("list", fs::read_dir(dir))? {
        works("remove", fs::remove_file(works("list", entry)?.path()))?;
        seen += 1;
    }
    same("seen", seen, 1500)?;
    same("left", works("list", fs::read_dir(dir))?.count(), 0)
}

fn directory_links(dir: &Path) -> Outcome {
    let links = || works("stat", fs::metadata(dir)).map(|found| found.nlink());
    let before = links()?;
    works("mkdir", fs::create_dir(dir.join("d")))?;
    // Some file systems never count: then it is always 1.
    if before > 1 {
        same("with one more", links()?, before + 1)?;
    }
    works("rmdir", fs::remove_dir(dir.join("d")))?;
    same("without it", links()?, before)
}

fn directory_times(dir: &Path) -> Outcome {
    let old = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    works("set", rustix::fs::utimensat(CWD, dir, &times, rustix::fs::AtFlags::empty()))?;
    works("create", File::create(dir.join("a")))?;
    same("it is young", works("stat", fs::metadata(dir))?.mtime() > 1_000_000, true)
}

fn deep(dir: &Path) -> Outcome {
    let path = (0..60).fold(dir.to_owned(), |path, _| path.join("d"));
    works("mkdir", fs::create_dir_all(&path))?;
    works("write", fs::write(path.join("f"), "x"))?;
    works("remove", fs::remove_dir_all(dir.join("d")))
}

fn pipe(dir: &Path) -> Outcome {
    let made = rustix::fs::mknodat(CWD, dir.join("p"), rustix::fs::FileType::Fifo, Mode::RWXU, 0);
    works("mkfifo", made)?;
    let kind = works("stat", fs::symlink_metadata(dir.join("p")))?;
    same("kind", kind.permissions().mode() & 0o170_000, 0o010_000)
}
