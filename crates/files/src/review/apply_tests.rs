//! Applies and undos of trees on disk, also interrupted at every point.

use super::{
    tests::{Fixture, write},
    *,
};
use crate::paths::Lists;
use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

thread_local! {
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Panics when its time has come.
pub(super) fn interruption() {
    LEFT.with(|left| match left.get() {
        Some(0) => {
            left.set(None);
            std::panic::resume_unwind(Box::new("interrupted"));
        }
        Some(more) => left.set(Some(more - 1)),
        None => {}
    });
}

/// Runs something that is killed at its `at`-th point; `true` if it was.
fn killed_at(at: usize, run: impl FnOnce()) -> bool {
    LEFT.with(|left| left.set(Some(at)));
    let ended = catch_unwind(AssertUnwindSafe(run));
    LEFT.with(|left| left.set(None));
    ended.is_err()
}

/// Everything about every path below a directory.
type Picture = BTreeMap<PathBuf, (u32, Vec<u8>, Option<(i64, i64)>)>;

fn picture(top: &Path) -> Picture {
    let mut picture = Picture::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = match metadata.file_type() {
            kind if kind.is_dir() => {
                waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            _ => fs::read(&path).unwrap(),
        };
        let time = (!metadata.is_dir()).then_some((metadata.mtime(), metadata.mtime_nsec()));
        picture.insert(path.strip_prefix(top).unwrap().to_owned(), (metadata.mode(), content, time));
    }
    picture
}

fn everything() -> Fixture {
    // In memory where there is some: syncing takes longest.
    let fixture = Fixture::within(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
    for path in ["changed", "mode", "gone", "d/x", "d/y/z", "swap", "turn/a", "turn/b", "old"] {
        write(&fixture.host(path), &format!("{path}\n"));
    }
    symlink("changed", fixture.host("link")).unwrap();
    symlink("changed", fixture.host("gonelink")).unwrap();
    write(&fixture.upper("changed"), "CHANGED\n");
    write(&fixture.upper("mode"), "mode\n");
    fs::set_permissions(fixture.upper("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    for path in ["gone", "d", "gonelink", "old"] {
        fixture.whiteout(path);
    }
    write(&fixture.upper("swap/inner/deep"), "1\n");
    write(&fixture.upper("turn"), "a file now\n");
    symlink("elsewhere", fixture.upper("link")).unwrap();
    write(&fixture.upper("moved/here"), "old\n");
    fs::create_dir(fixture.upper("empty")).unwrap();
    fixture
}

fn tree(fixture: &Fixture) -> Tree {
    let open = |path: &Path| std::os::fd::OwnedFd::from(fs::File::open(path).unwrap());
    Tree::new(open(&fixture.host("")), vec![open(&fixture.upper(""))], Reader::plain())
}

/// The journals in a place. A process that another test forked may hold their lock a little longer.
fn held(place: &Path) -> Journals {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        match Journals::open(place).unwrap() {
            Some(journals) => return journals,
            None => assert!(std::time::Instant::now() < end, "somebody holds the lock"),
        }
        std::thread::yield_now();
    }
}

fn apply(fixture: &Fixture, journals: &Path) -> Applied {
    let tree = tree(fixture);
    let mut journals = held(journals);
    journals.recover(&tree).unwrap();
    let changes = tree.changes().unwrap();
    journals.apply(&tree, changes.list(), None).unwrap()
}

fn undo(fixture: &Fixture, journals: &Path) -> Undone {
    held(journals).undo(&tree(fixture), Since::Refuse).unwrap().unwrap()
}

/// Journals on the same file system, and on another one where there is one.
fn places() -> Vec<tempfile::TempDir> {
    let mut places = vec![tempfile::tempdir().unwrap()];
    places.extend(tempfile::tempdir_in("/dev/shm"));
    places
}

#[test]
fn what_is_applied_is_no_change_any_more_and_is_undone_exactly() {
    for place in places() {
        let fixture = everything();
        let before = picture(&fixture.host(""));
        let journals = place.path().join("review");

        let applied = apply(&fixture, &journals);
        assert!(applied.stopped.is_none() && applied.kept.is_empty(), "{applied:?}");
        assert_eq!(fixture.told(), [""; 0]);

        let undone = undo(&fixture, &journals);
        assert!(undone.kept.is_empty());
        assert_eq!(picture(&fixture.host("")), before);
        assert!(fs::read_dir(&journals).unwrap().all(|entry| !entry.unwrap().path().is_dir()));
    }
}

#[test]
fn bits_and_attributes_of_the_hosts_own_files_come_back_from_any_journal() {
    for place in places() {
        let fixture = Fixture::within(tempfile::tempdir().unwrap());
        let (host, upper) = (fixture.host("tool"), fixture.upper("tool"));
        write(&host, "old\n");
        write(&upper, "new\n");
        let flags = rustix::fs::XattrFlags::empty();
        let has_attributes = rustix::fs::setxattr(&host, "user.note", b"kept", flags).is_ok();
        fs::set_permissions(&host, fs::Permissions::from_mode(0o4755)).unwrap();
        let journals = place.path().join("review");

        apply(&fixture, &journals);
        assert_eq!(fs::metadata(&host).unwrap().mode() & 0o7777 & 0o6000, 0);
        undo(&fixture, &journals);

        assert_eq!(fs::metadata(&host).unwrap().mode() & 0o7777, 0o4755);
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(&host, "user.note", &mut value[..]).unwrap_or(0);
        assert_eq!(&value[..length], if has_attributes { &b"kept"[..] } else { b"" });
    }
}

#[test]
fn applies_are_undone_one_after_another() {
    let fixture = Fixture::new();
    let place = tempfile::tempdir().unwrap();
    write(&fixture.host("a"), "0\n");
    let mut pictures = Vec::new();
    for round in 1..4 {
        pictures.push(picture(&fixture.host("")));
        write(&fixture.upper("a"), &format!("{round} rounds\n"));
        write(&fixture.upper(&format!("new{round}")), "x\n");
        apply(&fixture, place.path());
    }
    for before in pictures.iter().rev() {
        undo(&fixture, place.path());
        assert_eq!(&picture(&fixture.host("")), before);
    }
    assert!(held(place.path()).undo(&tree(&fixture), Since::Refuse).unwrap().is_none());
}

#[test]
fn a_kill_at_any_point_leaves_every_file_old_or_new_and_can_be_mended_both_ways() {
    for place in places() {
        for onwards in [true, false] {
            for at in 0.. {
                let fixture = everything();
                let before = picture(&fixture.host(""));
                let journals = place.path().join(format!("{onwards}-{at}"));
                let was_killed = killed_at(at, || drop(apply(&fixture, &journals)));
                check_halves(&fixture, &before);
                if onwards {
                    apply(&fixture, &journals);
                    assert_eq!(fixture.told(), [""; 0], "killed at {at}");
                }
                if held(&journals).depth().unwrap() > 0 {
                    undo(&fixture, &journals);
                }
                assert_eq!(picture(&fixture.host("")), before, "killed at {at}");
                if !was_killed {
                    assert!(at > 50, "{at} points");
                    break;
                }
            }
        }
    }
}

/// Every path is as it was or as it shall be; only our own temporary names are besides.
fn check_halves(fixture: &Fixture, before: &Picture) {
    let now = picture(&fixture.host(""));
    for (path, (mode, content, _)) in &now {
        let text = path.to_string_lossy();
        if text.contains(".airlock-") || mode & 0o170_000 == 0o040_000 {
            continue;
        }
        let is_old = before.get(path).is_some_and(|(_, old, _)| old == content);
        let inside = fixture.upper(&text);
        let new = match fs::symlink_metadata(&inside) {
            Ok(metadata) if metadata.is_symlink() => {
                fs::read_link(&inside).ok().map(|target| target.into_os_string().into_encoded_bytes())
            }
            _ => fs::read(&inside).ok(),
        };
        assert!(is_old || new.as_ref() == Some(content), "{text} is neither old nor new");
    }
}

#[test]
fn an_undo_that_is_killed_at_any_point_is_ended_by_the_next_one() {
    for place in places() {
        for at in 0.. {
            let fixture = everything();
            let before = picture(&fixture.host(""));
            let journals = place.path().join(at.to_string());
            apply(&fixture, &journals);

            let was_killed = killed_at(at, || drop(undo(&fixture, &journals)));
            if held(&journals).depth().unwrap() > 0 {
                undo(&fixture, &journals);
            }

            assert_eq!(picture(&fixture.host("")), before, "killed at {at}");
            if !was_killed {
                break;
            }
        }
    }
}

#[test]
fn what_somebody_else_changed_is_not_undone() {
    let fixture = Fixture::new();
    let place = tempfile::tempdir().unwrap();
    write(&fixture.host("a"), "0\n");
    write(&fixture.upper("a"), "one\n");
    apply(&fixture, place.path());
    write(&fixture.host("a"), "theirs\n");

    let refused = held(place.path()).undo(&tree(&fixture), Since::Refuse).unwrap_err();
    assert_eq!(refused.to_string(), "changed on the host meanwhile: a");
    assert_eq!(fs::read_to_string(fixture.host("a")).unwrap(), "theirs\n");

    held(place.path()).undo(&tree(&fixture), Since::Replace).unwrap().unwrap();
    assert_eq!(fs::read_to_string(fixture.host("a")).unwrap(), "0\n");
}

#[test]
fn only_one_applies_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let first = Journals::open(place.path()).unwrap();
    assert!(first.is_some() && Journals::open(place.path()).unwrap().is_none());
}

fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn judged(fixture: &Fixture, since: i64) -> (Vec<String>, Vec<String>) {
    let lists = Lists::new(&airlock_protocol::files::Paths::default()).unwrap();
    let known = Known::default();
    let judge = Judge { lists: &lists, since, known: &known };
    let verdict = judge.judge(&fixture.changes(), Protected::HeldBack);
    let text = |path: &PathBuf| path.display().to_string();
    let held = verdict.protected.iter().map(|change| text(&change.path)).collect();
    (held, verdict.conflicts.iter().map(text).collect())
}

#[test]
fn what_changed_on_the_host_since_is_a_conflict_and_what_did_not_is_none() {
    let fixture = everything();
    assert_eq!(judged(&fixture, now()).1, [""; 0]);
    assert_eq!(judged(&fixture, 0).1.len(), 11, "{:?}", judged(&fixture, 0).1);
}

#[test]
fn what_the_host_would_obey_is_held_back_with_all_that_hangs_on_it() {
    let fixture = Fixture::new();
    write(&fixture.host("sub/.git"), "gitdir: ../x\n");
    write(&fixture.host("all/.vscode/tasks.json"), "{}\n");
    write(&fixture.upper("sub/.git/HEAD"), "ref\n");
    write(&fixture.upper(".git/index"), "x");
    write(&fixture.upper(".git/hooks/pre-commit"), "evil");
    fixture.whiteout("all");
    for path in ["bare/HEAD", "bare/config", "bare/hooks/x", "bare/objects/a", "bare/refs/b", "plain/config"]
    {
        write(&fixture.upper(path), "x");
    }
    symlink("elsewhere", fixture.upper("linked.git")).unwrap();
    fs::create_dir(fixture.upper("n")).unwrap();
    symlink("../bare", fixture.upper("n/.git")).unwrap();

    assert_eq!(
        judged(&fixture, now()).0,
        [
            ".git/hooks",
            ".git/hooks/pre-commit",
            "all",
            "all/.vscode",
            "all/.vscode/tasks.json",
            "bare/config",
            "bare/hooks",
            "bare/hooks/x",
            "n/.git",
            "sub/.git",
            "sub/.git/HEAD",
        ]
    );
}
