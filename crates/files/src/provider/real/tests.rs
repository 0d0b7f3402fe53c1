//! A whole root, asked by a kernel that may be anybody's.

use super::*;
use proptest::prelude::*;
use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const BOTH: Want = Want { read: true, write: true, truncate: false, append: false, exclusive: false };
const READ: Want = Want { read: true, write: false, ..BOTH };

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn whole(root: &Path) -> Real {
    Real::whole(File::open(root).unwrap().into()).unwrap()
}

fn listed(real: &Real, node: Node) -> Vec<(String, u64)> {
    let handle = real.open_directory(node).unwrap();
    let mut all = Vec::new();
    real.list(handle, 0, &mut |listed| {
        all.push((String::from_utf8_lossy(listed.name).into_owned(), listed.inode));
        true
    })
    .unwrap();
    real.release_directory(handle);
    all
}

fn read(real: &Real, node: Node) -> Result<Vec<u8>> {
    let handle = real.open(node, READ)?;
    let mut bytes = Vec::new();
    let outcome = real.read(handle, 0, 1000, &mut bytes);
    real.release(handle);
    outcome.map(|()| bytes)
}

/// Whoever runs the tests.
fn own() -> Caller {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Caller { user, group }
}

#[test]
fn a_device_is_a_file_that_nobody_can_open() {
    let real = whole(Path::new("/dev"));
    let entry = real.lookup(Node::ROOT, name("null")).unwrap();
    assert_eq!(entry.attributes.kind, Kind::File);
    for want in [READ, BOTH] {
        assert_eq!(real.open(entry.node, want).map(|_| ()), Err(Errno::ACCESS));
    }
}

#[test]
fn what_a_machine_has_of_its_own_is_there_and_empty() {
    let real = whole(Path::new("/"));
    for own_name in ["proc", "sys", "dev"] {
        let entry = real.lookup(Node::ROOT, name(own_name)).unwrap();
        assert_eq!(entry.attributes.kind, Kind::Directory);
        assert_eq!(listed(&real, entry.node), []);
        for below in ["self", "1", "kernel", "null", "x"] {
            assert_eq!(real.lookup(entry.node, name(below)).map(|_| ()), Err(Errno::NOENT));
            let made = real.create((entry.node, name(below)), 0o644, BOTH, own());
            assert_eq!(made.map(|_| ()), Err(Errno::NOENT));
        }
        let moved =
            real.rename((Node::ROOT, name(own_name)), (Node::ROOT, name("elsewhere")), Rename::Replace);
        assert_eq!(moved, Err(Errno::BUSY));
        let change = Change { mode: Some(0o777), ..Change::default() };
        assert_eq!(real.change(entry.node, None, &change).map(|_| ()), Err(Errno::PERM));
    }
}

#[test]
fn a_door_to_the_kernel_in_another_place_is_empty_too() {
    // `/proc` is found under a name that says nothing.
    let elsewhere = whole(Path::new("/"));
    let found = elsewhere.find(elsewhere.root.as_fd(), name("proc")).unwrap();
    let entry = elsewhere.entry(Node::ROOT, name("another"), found).unwrap();
    assert_eq!(listed(&elsewhere, entry.node), []);
}

#[test]
fn files_keep_their_numbers_and_hard_links_share_one() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("a"), "text").unwrap();
    fs::hard_link(place.path().join("a"), place.path().join("b")).unwrap();
    fs::write(place.path().join("c"), "text").unwrap();
    let real = whole(place.path());

    let [a, b, c] = ["a", "b", "c"].map(|file| real.lookup(Node::ROOT, name(file)).unwrap());

    assert_eq!((a.node, a.attributes.inode), (b.node, b.attributes.inode));
    assert_ne!(a.attributes.inode, c.attributes.inode);
    let mut all = listed(&real, Node::ROOT);
    all.sort();
    let [a, c] = [a, c].map(|entry| entry.attributes.inode);
    assert_eq!(all, [("a".to_owned(), a), ("b".to_owned(), a), ("c".to_owned(), c)]);
}

#[test]
fn what_is_made_is_the_callers_where_ids_allow() {
    let place = tempfile::tempdir().unwrap();
    let real = whole(place.path());
    let caller = Caller { user: 4321, group: 4322 };
    let expected = if own().user == 0 { (4321, 4322) } else { (own().user, own().group) };

    let (_, handle) = real.create((Node::ROOT, name("file")), 0o640, BOTH, caller).unwrap();
    real.release(handle);
    let kinds = [("directory", Kind::Directory), ("pipe", Kind::Fifo), ("socket", Kind::Socket)];
    for (file, kind) in kinds {
        real.make(Node::ROOT, name(file), New::Plain { kind, mode: 0o750 }, caller).unwrap();
    }
    let link = real.make(Node::ROOT, name("link"), New::Link { target: b"/etc/passwd" }, caller).unwrap();

    assert_eq!((link.attributes.user, link.attributes.group), expected);
    for file in ["file", "directory", "pipe", "socket", "link"] {
        let stat = place.path().join(file).symlink_metadata().unwrap();
        assert_eq!((stat.uid(), stat.gid()), expected, "{file}");
    }
}

#[test]
fn a_directory_that_gives_its_group_gives_it() {
    if own().user != 0 {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(place.path(), Some(0), Some(77)).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o2777)).unwrap();
    let real = whole(place.path());
    let plain = New::Plain { kind: Kind::Directory, mode: 0o755 };
    let made = real.make(Node::ROOT, name("d"), plain, Caller { user: 5, group: 6 }).unwrap().attributes;
    assert_eq!((made.user, made.group, made.mode & 0o2000), (5, 77, 0o2000));
}

#[test]
fn set_id_bits_stay_until_something_is_written() {
    let place = tempfile::tempdir().unwrap();
    let real = whole(place.path());
    let (entry, handle) = real.create((Node::ROOT, name("a")), 0o755, BOTH, own()).unwrap();
    let mode = Change { mode: Some(0o6755), ..Change::default() };

    assert_eq!(real.change(entry.node, None, &mode).unwrap().mode, 0o6755);
    real.write(handle, 0, b"text").unwrap();
    assert_eq!(real.attributes(entry.node).unwrap().mode, 0o755);

    real.change(entry.node, None, &mode).unwrap();
    let shorter = Change { size: Some(1), ..Change::default() };
    assert_eq!(real.change(entry.node, Some(handle), &shorter).unwrap().mode, 0o755);
}

#[test]
fn content_is_known_until_somebody_changes_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a");
    fs::write(&path, "text").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    let real = whole(place.path());
    let node = real.lookup(Node::ROOT, name("a")).unwrap().node;
    let is_unchanged = || real.is_unchanged(real.open(node, READ).unwrap());

    assert!(is_unchanged());
    fs::write(&path, "TEXT").unwrap();
    assert!(!is_unchanged());
    // It was told, but is so young that it may change without a sign.
    real.attributes(node).unwrap();
    assert!(!is_unchanged());
}

#[test]
fn only_attributes_of_users_and_capabilities_pass() {
    let place = tempfile::tempdir().unwrap();
    let real = whole(place.path());
    let (entry, _) = real.create((Node::ROOT, name("a")), 0o755, BOTH, own()).unwrap();
    for refused in ["trusted.overlay.opaque", "security.selinux", "system.posix_acl_access"] {
        let set = real.set_attribute(entry.node, refused.as_bytes(), b"x", SetAttribute::Any);
        assert_eq!(set, Err(Errno::OPNOTSUPP), "{refused}");
    }
    let set = real.set_attribute(entry.node, b"user.a", b"x", SetAttribute::Any);
    if set == Ok(()) {
        assert_eq!(real.attribute(entry.node, b"user.a"), Ok(b"x".to_vec()));
        assert_eq!(real.attribute_names(entry.node), Ok(vec![b"user.a".to_vec()]));
    }
}

#[test]
fn names_that_never_end_are_bounded_and_forgetting_makes_room() {
    let place = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    names.iter().for_each(|file| fs::write(place.path().join(file), "").unwrap());
    let root = File::open(place.path()).unwrap();
    let mut real = Real::with(root.into(), Reach::Whole(Devices::default()), 64).unwrap();
    real.most_open = 16;

    let found: Vec<_> = names.iter().map(|file| real.lookup(Node::ROOT, name(file))).collect();
    let known: Vec<Node> = found.iter().flatten().map(|entry| entry.node).collect();
    assert_eq!(known.len(), 63);
    assert!(found[63..].iter().all(|entry| *entry == Err(Errno::NFILE)));

    let opened: Vec<_> = (0..40).map(|_| real.open(known[0], READ)).collect();
    assert!(opened[..16].iter().all(std::result::Result::is_ok));
    assert!(opened[16..].iter().all(|handle| *handle == Err(Errno::NFILE)));
    // What is already known still works.
    assert_eq!(real.attributes(known[5]).unwrap().size, 0);

    known.iter().for_each(|node| real.forget(*node, u64::MAX));
    opened.into_iter().flatten().for_each(|handle| real.release(handle));
    assert!(real.lookup(Node::ROOT, name("199")).is_ok());
}

#[test]
fn few_descriptors_are_enough_for_many_files() {
    let place = tempfile::tempdir().unwrap();
    let real = whole(place.path());
    let few = Bounds { nodes: 10_000, files: 16 };
    let root = File::open(place.path()).unwrap();
    let stat = rustix::fs::fstat(&root).unwrap();
    *lock(&real.nodes) = Nodes::new(root.into(), &stat, real.reach.way(), few);
    let plain = New::Plain { kind: Kind::Directory, mode: 0o755 };
    let mut deep = Node::ROOT;
    for _ in 0..50 {
        deep = real.make(deep, name("d"), plain, own()).unwrap().node;
    }
    for file in 0..100 {
        real.make(Node::ROOT, name(&file.to_string()), plain, own()).unwrap();
    }
    assert_eq!(real.attributes(deep).unwrap().kind, Kind::Directory);
    // Something else stands there now.
    fs::rename(place.path().join("d"), place.path().join("e")).unwrap();
    fs::create_dir_all(place.path().join("d/d")).unwrap();
    for file in 0..100 {
        real.lookup(Node::ROOT, name(&file.to_string())).unwrap();
    }
    assert_eq!(real.attributes(deep).map(|_| ()), Err(Errno::STALE));
}

/// What stands outside, and what stands inside under the same names.
const OUTSIDE: &[u8] = b"outside";

/// A name is now a directory, now a link to a directory outside; and a directory is moved about meanwhile.
fn swap(root: &Path, outside: &Path, until: &AtomicBool) {
    let [turn, away, link] = ["turn", "away", "link"].map(|file| root.join(file));
    symlink(outside, &link).unwrap();
    while !until.load(Ordering::Relaxed) {
        let swapped = |one: &Path, other: &Path| {
            rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, RenameFlags::EXCHANGE)
        };
        swapped(&turn, &link).unwrap();
        swapped(&turn, &link).unwrap();
        fs::rename(&turn, &away).unwrap();
        fs::rename(&away, &turn).unwrap();
    }
}

#[test]
fn nothing_outside_is_reached_while_names_become_links() {
    let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("file"), OUTSIDE).unwrap();
    fs::create_dir(place.path().join("turn")).unwrap();
    fs::write(place.path().join("turn/file"), "inside").unwrap();
    fs::write(place.path().join("own"), "inside").unwrap();
    let (real, until) = (whole(place.path()), AtomicBool::new(false));

    thread::scope(|scope| {
        scope.spawn(|| swap(place.path(), outside.path(), &until));
        for round in 0..5_000u32 {
            let Ok(turn) = real.lookup(Node::ROOT, name("turn")) else { continue };
            if let Ok(file) = real.lookup(turn.node, name("file")) {
                assert_ne!(read(&real, file.node).unwrap_or_default(), OUTSIDE);
                real.forget(file.node, 1);
            }
            let made = name(if round % 2 == 0 { "made" } else { "moved" });
            if let Ok((entry, handle)) = real.create((turn.node, made), 0o644, BOTH, own()) {
                real.release(handle);
                real.forget(entry.node, 1);
            }
            let _ = real.rename((Node::ROOT, name("own")), (turn.node, name("own")), Rename::Keep);
            let _ = real.rename((turn.node, name("own")), (Node::ROOT, name("own")), Rename::Keep);
            let _ = real.open_directory(turn.node).map(|handle| real.release_directory(handle));
            let _ = real.remove(turn.node, made, Remove::File);
            real.forget(turn.node, 1);
        }
        until.store(true, Ordering::Relaxed);
    });

    let left: Vec<_> =
        fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"]);
    assert_eq!(fs::read(outside.path().join("file")).unwrap(), OUTSIDE);
}

#[test]
fn a_copy_knows_what_the_first_one_knew_by_the_same_numbers() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for place in [first.path(), second.path()] {
        fs::create_dir_all(place.join("a/b")).unwrap();
        fs::write(place.join("a/b/file"), "text").unwrap();
        fs::write(place.join("gone"), "").unwrap();
        fs::write(place.join("replaced"), "old").unwrap();
    }
    let real = whole(first.path());
    let replaced = real.lookup(Node::ROOT, name("replaced")).unwrap().node;
    let old = real.open(replaced, BOTH).unwrap();
    fs::write(first.path().join("new"), "new").unwrap();
    fs::rename(first.path().join("new"), first.path().join("replaced")).unwrap();
    let a = real.lookup(Node::ROOT, name("a")).unwrap().node;
    let b = real.lookup(a, name("b")).unwrap().node;
    let file = real.lookup(b, name("file")).unwrap().node;
    let gone = real.lookup(Node::ROOT, name("gone")).unwrap().node;
    real.rename((b, name("file")), (a, name("moved")), Rename::Keep).unwrap();
    fs::rename(second.path().join("a/b/file"), second.path().join("a/moved")).unwrap();
    fs::remove_file(second.path().join("gone")).unwrap();
    let handle = real.open(file, BOTH).unwrap();
    let listing = real.open_directory(a).unwrap();

    let known = real.known();
    let root = OwnedFd::from(fs::File::open(second.path()).unwrap());
    let copy = Real::resumed(root, &known).unwrap();

    assert_eq!(copy.write(handle, 4, b" more"), Ok(5));
    assert_eq!(fs::read(second.path().join("a/moved")).unwrap(), b"text more");
    assert_eq!(fs::read(first.path().join("a/moved")).unwrap(), b"text");
    assert_eq!(copy.lookup(a, name("moved")).unwrap().node, file);
    assert_eq!(copy.lookup(a, name("b")).unwrap().node, b);
    let mut names = Vec::new();
    copy.list(listing, 0, &mut |listed| {
        names.push(listed.name.to_vec());
        true
    })
    .unwrap();
    names.sort();
    assert_eq!(names, [b"b".to_vec(), b"moved".to_vec()]);
    assert_eq!(copy.attributes(gone), Err(Errno::STALE));
    // Another file has its name: nothing is written into that.
    assert_eq!(copy.write(old, 0, b"x"), Err(Errno::BADF));
    assert_eq!(copy.attributes(replaced), Err(Errno::STALE));
    let new = copy.make(a, name("new"), New::Plain { kind: Kind::File, mode: 0o644 }, own()).unwrap().node;
    assert!(new > gone && new > file, "numbers are not given twice");
    assert_ne!(copy.open(new, BOTH).unwrap(), handle);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Numbers that were never given out, in any order.
    #[test]
    fn no_numbers_harm_a_whole_root(calls in prop::collection::vec((0..16u8, 0..12u64, 0..12u64, 0..4usize), 0..200)) {
        let (place, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(aside.path(), place.path().join("a")).unwrap();
        let real = whole(place.path());
        for (call, one, two, text) in calls {
            let (one, two, file) = (Node(one), Node(two), name(["a", "b", "c", "proc"][text]));
            let handle = Handle(two.0);
            match call {
                0 => drop(real.lookup(one, file)),
                1 => real.forget(one, two.0),
                2 => drop(real.make(one, file, New::Plain { kind: Kind::Directory, mode: 0o755 }, own())),
                3 => drop(real.create((one, file), 0o644, BOTH, own())),
                4 => drop(real.remove(one, file, Remove::File)),
                5 => drop(real.rename((one, file), (two, file), Rename::Replace)),
                6 => drop(real.link(one, two, file)),
                7 => drop(real.write(handle, u64::MAX - one.0, b"x")),
                8 => real.release(handle),
                9 => drop(real.open_directory(one)),
                10 => drop(real.list(handle, one.0, &mut |_| true)),
                11 => drop(real.open(one, BOTH)),
                12 => drop(real.make(one, file, New::Link { target: b"../../.." }, own())),
                13 => drop(real.copy((handle, one.0), (Handle(one.0), 0), u64::MAX)),
                14 => drop(real.readlink(one)),
                _ => drop(real.rename((one, file), (two, name("z")), Rename::Exchange)),
            }
        }
        prop_assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0);
    }
}
