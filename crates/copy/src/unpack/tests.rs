//! Trees packed and unpacked; archives that mean harm.

use super::*;
use crate::{
    pack::{Source, pack},
    place,
    tar::{END, head, padding},
};
use proptest::prelude::*;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

const RULES: Rules = Rules {
    links: Links::Within,
    hard_links: HardLinks::Refused,
    mounts: Mounts::Refused,
    owner: None,
    most_bytes: 1 << 20,
    most_entries: 1000,
};

fn open(path: &Path) -> OwnedFd {
    place::open_directory(CWD, path).unwrap()
}

fn packed(path: &Path) -> (Vec<u8>, Tally) {
    let mut bytes = Vec::new();
    let tally = pack(&Source::Directory(open(path)), &mut bytes, &mut |_| {}).unwrap();
    (bytes, tally)
}

fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (entry, body) in entries {
        let entry = entry.clone().size(u64::try_from(body.len()).unwrap());
        bytes.extend(head(&entry));
        bytes.extend(*body);
        bytes.extend(padding(entry.size));
    }
    bytes.extend(END);
    bytes
}

fn top() -> (Entry, &'static [u8]) {
    (Entry::new(b".".to_vec(), Kind::Directory), b"")
}

fn into(path: &Path, bytes: &[u8], rules: &Rules) -> Result<Tally, Error> {
    unpack(&mut Reader::new(bytes), &Place::Into(open(path)), rules, &mut |_| {})
}

#[test]
fn a_tree_arrives_as_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(from.path().join("a/b")).unwrap();
    fs::set_permissions(from.path().join("a"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(from.path().join("a/b/large"), vec![3; 300_000]).unwrap();
    fs::write(from.path().join("run"), "x").unwrap();
    fs::set_permissions(from.path().join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("../run", from.path().join("a/link")).unwrap();
    symlink("/etc/passwd", from.path().join("a/out")).unwrap();
    fs::write(to.path().join("run"), "older").unwrap();

    let (bytes, sent) = packed(from.path());
    let taken = into(to.path(), &bytes, &RULES).unwrap();

    assert_eq!((sent.files, sent.bytes, taken.bytes), (4, 300_001, 300_001));
    assert_eq!(fs::read(to.path().join("a/b/large")).unwrap(), vec![3; 300_000]);
    assert_eq!(fs::metadata(to.path().join("run")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(to.path().join("a")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::read_link(to.path().join("a/link")).unwrap(), Path::new("../run"));
    assert!(fs::symlink_metadata(to.path().join("a/out")).is_err());
    assert_eq!((taken.left_count, taken.left[0].why), (1, Why::LeadsOut));
    assert_eq!(fs::read_to_string(to.path().join("run")).unwrap(), "x");
}

#[test]
fn extended_attributes_of_users_arrive_and_no_others() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/f"), "x").unwrap();
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(from.path().join(path), name, value, XattrFlags::empty())
    };
    let long = [b'v'; 2000];
    if set("d/f", "user.long", &long).is_err() {
        println!("skipped: this file system has no extended attributes");
        return;
    }
    set("d", "user.of a directory", b"\n=\0").unwrap();
    set("d/f", "user.overlay.whiteout", b"y").unwrap();

    let (mut bytes, _) = packed(from.path());
    into(to.path(), &bytes, &RULES).unwrap();

    let value = |path: &str, name: &str| {
        let mut value = vec![0; 4000];
        let count = rustix::fs::getxattr(to.path().join(path), name, &mut value).ok()?;
        value.truncate(count);
        Some(value)
    };
    assert_eq!(value("d/f", "user.long"), Some(long.to_vec()));
    assert_eq!(value("d", "user.of a directory"), Some(b"\n=\0".to_vec()));
    assert_eq!(value("d/f", "user.overlay.whiteout"), None);

    // Somebody else's archive has others.
    let attributes = ["user.mine", "security.capability", "trusted.x", "user.overlay.opaque", "user."];
    let attributes = attributes.map(|name| (name.as_bytes().to_vec(), b"1".to_vec())).to_vec();
    let forged = Entry { attributes, ..Entry::new(b"forged".to_vec(), Kind::File) };
    bytes = archive(&[top(), (forged, b"")]);
    into(to.path(), &bytes, &RULES).unwrap();
    let mut names = vec![0; 1000];
    let count = rustix::fs::listxattr(to.path().join("forged"), &mut names).unwrap();
    assert_eq!(&names[..count], b"user.mine\0");
}

#[test]
fn nothing_of_an_archive_gets_out_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, to.join("planted")).unwrap();
    let file = |path: &[u8]| (Entry::new(path.to_vec(), Kind::File), b"evil".as_slice());
    let kind = |path: &[u8], kind| (Entry::new(path.to_vec(), kind), b"".as_slice());

    for bad in [
        vec![top(), file(b"../outside/x")],
        vec![top(), file(b"a/../../outside/x")],
        vec![top(), file(b"/tmp/x")],
        vec![top(), file(b"planted/x")],
        vec![top(), kind(b"planted/d", Kind::Directory)],
        vec![top(), kind(b"planted", Kind::Directory), file(b"planted/x")],
        vec![top(), kind(b"h", Kind::HardLink(b"../outside/x".to_vec()))],
        vec![top(), kind(b"h", Kind::HardLink(b"planted".to_vec()))],
        vec![top(), file(b"")],
        vec![top(), file(b"a\0b/../..")],
        vec![file(b"x")],
        vec![file(b"../x")],
    ] {
        let result = into(&to, &archive(&bad), &RULES);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{bad:?} {result:?}");
        assert!(!dir.path().join("x").exists());
    }
    // A link that came in the same archive is no way out either.
    let through = [top(), kind(b"up", Kind::Link(b"..".to_vec())), file(b"up/x")];
    assert!(into(&to, &archive(&through), &Rules { links: Links::All, ..RULES }).is_err());
    assert!(!dir.path().join("x").exists());
}

#[test]
fn what_comes_out_is_no_more_open_than_files_that_one_makes() {
    let to = tempfile::tempdir().unwrap();
    let entry = Entry { mode: 0o7777, ..Entry::new(b"f".to_vec(), Kind::File) };

    into(to.path(), &archive(&[top(), (entry, b"x")]), &RULES).unwrap();

    fs::write(to.path().join("own"), "x").unwrap();
    let mode = |name| fs::metadata(to.path().join(name)).unwrap().mode() & 0o7777;
    assert_eq!(mode("f") & 0o6, mode("own") & 0o6);
    assert_eq!(mode("f") & 0o7700, 0o700);
}

#[test]
fn devices_are_left_out_and_told() {
    let to = tempfile::tempdir().unwrap();
    let other = (Entry::new(b"dev".to_vec(), Kind::Other), b"".as_slice());

    let taken = into(to.path(), &archive(&[top(), other]), &RULES).unwrap();

    assert_eq!((taken.left_count, taken.left[0].why), (1, Why::Kind));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn more_than_the_limit_is_refused_before_it_is_written() {
    let to = tempfile::tempdir().unwrap();
    let huge = head(&Entry::new(b"huge".to_vec(), Kind::File).size(1 << 40));
    let bytes = [head(&top().0), huge].concat();

    let refused = into(to.path(), &bytes, &RULES).unwrap_err();

    assert_eq!(refused.to_string(), "more than 1M would be copied");
    let many: Vec<_> =
        (0..1001).map(|n| (Entry::new(format!("f{n}").into_bytes(), Kind::File), b"".as_slice())).collect();
    assert!(matches!(
        into(to.path(), &archive(&[vec![top()], many].concat()), &RULES),
        Err(Error::TooMuch { .. })
    ));
}

#[test]
fn what_breaks_off_leaves_whole_files_only() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..3 {
        fs::write(from.path().join(format!("f{n}")), vec![n; 1000]).unwrap();
    }
    let (bytes, _) = packed(from.path());

    for cut in (0..bytes.len() - 1024).step_by(97) {
        assert!(into(to.path(), &bytes[..cut], &RULES).unwrap_err().is_broken_off());
        for entry in fs::read_dir(to.path()).unwrap().flatten() {
            assert_eq!(entry.metadata().unwrap().len(), 1000, "{:?} after {cut}", entry.file_name());
            assert!(entry.file_name().to_str().unwrap().starts_with('f'));
        }
    }
}

#[test]
fn a_destination_means_what_cp_means() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("there")).unwrap();
    fs::write(dir.path().join("file"), "old").unwrap();
    let root = open(dir.path());
    let look = |path: &Path| place::open_directory(root.as_fd(), path);
    let put = |to: &str, name: Option<&str>, entries: &[(Entry, &[u8])]| {
        let place = place::find(Path::new(to), name.map(Path::new), &look)?;
        unpack(&mut Reader::new(archive(entries).as_slice()), &place, &RULES, &mut |_| {})
    };
    let file = [(Entry::new(b".".to_vec(), Kind::File), b"new".as_slice())];
    let tree = [top(), (Entry::new(b"./x".to_vec(), Kind::File), b"x".as_slice())];

    for (to, name, entries, made) in [
        ("there", Some("f"), file.as_slice(), "there/f"),
        ("fresh", Some("f"), &file, "fresh"),
        ("file", Some("f"), &file, "file"),
        ("there", Some("t"), &tree, "there/t/x"),
        ("there", None, &tree, "there/x"),
        ("newdir", Some("t"), &tree, "newdir/x"),
        ("newdir2/", None, &tree, "newdir2/x"),
    ] {
        put(to, name, entries).unwrap();
        assert!(dir.path().join(made).is_file(), "{to} {made}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "new");
    for (to, name, entries) in [
        ("none/", Some("f"), file.as_slice()),
        ("none/below", Some("f"), &file),
        ("file", Some("t"), &tree),
        ("there", Some("t"), &file),
        ("file/", Some("f"), &file),
    ] {
        assert!(put(to, name, entries).is_err(), "{to}");
    }
}

proptest! {
    #[test]
    fn only_links_that_begin_with_ups_stay_within(parts in proptest::collection::vec("(\\.\\.|a|b|\\.)", 0..6), depth in 0usize..4) {
        let target = parts.join("/");
        let lexical = parts.iter().try_fold(depth, |at, part| match part.as_str() {
            ".." => at.checked_sub(1),
            "." => Some(at),
            _ => Some(at + 1),
        });
        if stays_within(depth, target.as_bytes()) {
            prop_assert!(lexical.is_some());
        }
    }

    #[test]
    fn no_archive_writes_outside(
        entries in proptest::collection::vec(("(\\./)?((\\.\\.|a|b)/){0,3}(a|b|\\.\\.)", 0u8..4, "(/|\\.\\./|a/){0,3}(a|b|\\.\\.)?"), 0..12)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("1/2/to");
        fs::create_dir_all(&to).unwrap();
        let made: Vec<(Entry, &[u8])> = entries.iter().map(|(path, kind, link)| {
            let (kind, body): (Kind, &[u8]) = match kind {
                0 => (Kind::File, b"x"),
                1 => (Kind::Directory, b""),
                2 => (Kind::Link(link.clone().into_bytes()), b""),
                _ => (Kind::HardLink(link.clone().into_bytes()), b""),
            };
            (Entry::new(path.clone().into_bytes(), kind), body)
        }).collect();
        let rules = Rules { links: Links::All, hard_links: HardLinks::Made, ..RULES };
        let _ = into(&to, &archive(&[vec![top()], made].concat()), &rules);
        let seen = |path: &Path| fs::read_dir(path).unwrap().count();
        prop_assert_eq!((seen(dir.path()), seen(&dir.path().join("1")), seen(&dir.path().join("1/2"))), (1, 1, 1));
    }
}

/// Exchanges names while somebody copies, until told.
fn exchange(pairs: &[(PathBuf, PathBuf)], over: &AtomicBool) -> usize {
    let mut swaps = 0;
    while !over.load(Ordering::Relaxed) {
        for (one, two) in pairs {
            let _ = rustix::fs::renameat_with(CWD, one, CWD, two, rustix::fs::RenameFlags::EXCHANGE);
        }
        swaps += 1;
    }
    swaps
}

/// Ends the race, also where a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A directory with files, one beside it that nobody may reach, and what the race puts in place of the first.
fn raced() -> (tempfile::TempDir, fs::File, [(PathBuf, PathBuf); 3]) {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = |name: &str| place.path().join(name);
    for name in ["tree/d", "outside", "aside"] {
        fs::create_dir_all(path(name)).unwrap();
    }
    for name in ["f", "g"] {
        fs::write(path("tree/d").join(name), "old ".repeat(2000)).unwrap();
        fs::write(path("outside").join(name), "secret").unwrap();
    }
    symlink(path("outside"), path("aside/directory")).unwrap();
    symlink(path("outside/f"), path("aside/link")).unwrap();
    fs::hard_link(path("tree/d/g"), path("aside/g")).unwrap();
    // By descriptor: the race itself must not lead out.
    let directory = fs::File::open(path("tree/d")).unwrap();
    let within = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let pairs = [
        (path("tree/d"), path("aside/directory")),
        (within.join("f"), path("aside/link")),
        (within.join("g"), path("aside/g")),
    ];
    (place, directory, pairs)
}

#[test]
fn nothing_outside_is_packed_whoever_swaps_names_meanwhile() {
    let (place, _held, pairs) = raced();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ended = Over(&over);
        let racer = scope.spawn(|| exchange(&pairs, &over));
        for _ in 0..3000 {
            let source = Source::Directory(open(&place.path().join("tree")));
            let mut bytes = Vec::new();
            let _ = pack(&source, &mut bytes, &mut |_| {});
            assert!(!bytes.windows(6).any(|six| six == b"secret"));
        }
        drop(ended);
        assert!(racer.join().unwrap() > 100, "that was no race");
    });
}

#[test]
fn nothing_outside_is_unpacked_and_files_are_old_or_new_whoever_swaps_names_meanwhile() {
    let (place, _held, pairs) = raced();
    let (over, new) = (AtomicBool::new(false), "new ".repeat(2000));
    let file = |path: &[u8]| (Entry::new(path.to_vec(), Kind::File), new.as_bytes());
    let directory = (Entry::new(b"d".to_vec(), Kind::Directory), b"".as_slice());
    let bytes = archive(&[top(), directory, file(b"d/f"), file(b"d/g"), file(b"d/h")]);
    std::thread::scope(|scope| {
        let ended = Over(&over);
        let racer = scope.spawn(|| exchange(&pairs, &over));
        for _ in 0..3000 {
            let _ = into(&place.path().join("tree"), &bytes, &RULES);
            for name in ["f", "g", "h"] {
                let path = place.path().join("tree/d").join(name);
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let Ok(opened) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
                let mut text = String::new();
                let _ = std::io::Read::read_to_string(&mut fs::File::from(opened), &mut text);
                let known = [new.clone(), "old ".repeat(2000), "secret".to_owned()];
                assert!(known.contains(&text), "{name} has {} bytes", text.len());
            }
        }
        drop(ended);
        assert!(racer.join().unwrap() > 100, "that was no race");
    });
    let outside = place.path().join("outside");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
    for name in ["f", "g"] {
        assert!(fs::read_to_string(outside.join(name)).unwrap() == "secret", "{name} was written to");
    }
}
