//! Applies against somebody who changes both sides meanwhile: the layer as a program inside does, the project as another
//! sandbox with `--workspace rw` could. Thousands of rounds; every file is old or new, and nothing outside is touched.

use super::{
    tests::{Fixture, write},
    *,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, renameat_with};
use std::{
    fs,
    os::{fd::AsRawFd as _, unix::fs::symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Applies under the race.
const ROUNDS: usize = 2000;
/// Where a machine is slow, fewer are enough.
const MOST_TIME: Duration = Duration::from_secs(20);

/// What is in a file of the host before, and what the layer has for it. Both longer than one write of a page.
fn content(word: &str) -> String {
    format!("{word}\n").repeat(2000)
}

/// Exchanges two paths again and again.
fn exchange(pairs: &[(PathBuf, PathBuf)], over: &AtomicBool, swaps: &AtomicUsize) {
    while !over.load(Ordering::Relaxed) {
        for (one, two) in pairs {
            let _ = renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE);
        }
        swaps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the race, also where a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn apply_once(fixture: &Fixture, journals: &Path) {
    let open = |path: &Path| fs::File::open(path).map(std::os::fd::OwnedFd::from).ok();
    let (Some(host), Some(upper)) = (open(&fixture.host("")), open(&fixture.upper(""))) else { return };
    let tree = Tree::new(host, vec![upper], Reader::plain());
    let Ok(Some(mut journals)) = Journals::open(journals) else { return };
    let _ = journals.recover(&tree);
    let Ok(changes) = tree.changes() else { return };
    let _ = journals.apply(&tree, changes.list(), None);
}

/// A project and a layer, and beside each what the race puts in its place.
fn raced() -> Fixture {
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let fixture = Fixture::within(memory);
    for name in ["outside", "aside"] {
        fs::create_dir(fixture.folder.path().join(name)).unwrap();
    }
    let (outside, aside) = (fixture.folder.path().join("outside"), fixture.folder.path().join("aside"));
    write(&outside.join("f"), "secret");
    write(&outside.join("g"), "secret");
    write(&fixture.host("d/f"), &content("old"));
    write(&fixture.host("d/g"), &content("old"));
    write(&fixture.upper("d/f"), &content("new"));
    write(&fixture.upper("d/g"), &content("new"));
    symlink(outside.join("f"), aside.join("link")).unwrap();
    symlink(&outside, aside.join("directory")).unwrap();
    symlink(&outside, aside.join("hosts")).unwrap();
    mknodat(CWD, aside.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    write(&aside.join("linked"), &content("new"));
    fs::hard_link(aside.join("linked"), fixture.upper("d/h")).unwrap();
    fixture
}

/// Who looks while names are exchanged may find another sort of thing, or nothing.
fn is_old_or_new(directory: &Path, name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags | OFlags::DIRECTORY, Mode::empty())
        .and_then(|directory| rustix::fs::openat(directory, name, flags, Mode::empty()));
    let Ok(opened) = opened else { return true };
    let mut text = String::new();
    let read = std::io::Read::read_to_string(&mut fs::File::from(opened), &mut text);
    read.is_err() || text == content("old") || text == content("new")
}

#[test]
fn files_are_old_or_new_whoever_swaps_files_links_pipes_and_directories_meanwhile() {
    let fixture = raced();
    let aside = fixture.folder.path().join("aside");
    let (over, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    // By descriptor: the race itself must not lead out.
    let directory = fs::File::open(fixture.upper("d")).unwrap();
    let within = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let inside = [
        (within.join("f"), aside.join("link")),
        (within.join("g"), aside.join("pipe")),
        (within.join("h"), aside.join("linked")),
        (fixture.upper("d"), aside.join("directory")),
    ];
    let hosts = [(fixture.host("d"), aside.join("hosts"))];

    let rounds = std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| exchange(&inside, &over, &swaps));
        scope.spawn(|| exchange(&hosts, &over, &swaps));
        let began = Instant::now();
        let mut rounds = 0;
        while rounds < ROUNDS && began.elapsed() < MOST_TIME {
            let journals = aside.join("journals");
            apply_once(&fixture, &journals);
            for name in ["f", "g", "h"] {
                assert!(is_old_or_new(&fixture.host("d"), name), "{name} is neither old nor new");
            }
            let _ = fs::remove_dir_all(&journals);
            rounds += 1;
        }
        rounds
    });

    let swaps = swaps.load(Ordering::Relaxed);
    assert!(rounds >= 200 && swaps > 2000, "{rounds} rounds and {swaps} swaps are no race");
    let outside = fixture.folder.path().join("outside");
    let mut names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["f", "g"]);
    for name in names {
        assert_eq!(fs::read_to_string(outside.join(name)).unwrap(), "secret");
    }
}

#[test]
fn what_is_mounted_in_the_project_meanwhile_is_not_written_to() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fixture = raced();
    let outside = fixture.folder.path().join("outside");
    let place = fixture.host("d");
    let (over, mounts) = (AtomicBool::new(false), AtomicUsize::new(0));

    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if rustix::mount::mount_bind(&outside, &place).is_ok() {
                    mounts.fetch_add(1, Ordering::Relaxed);
                }
                while rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).is_ok() {}
            }
        });
        let began = Instant::now();
        for _ in 0..ROUNDS {
            let journals = fixture.folder.path().join("journals");
            apply_once(&fixture, &journals);
            let _ = fs::remove_dir_all(&journals);
            write_if_gone(&fixture);
            if began.elapsed() > MOST_TIME {
                break;
            }
        }
    });

    if mounts.load(Ordering::Relaxed) == 0 {
        println!("skipped: this process may not mount");
        return;
    }
    for name in ["f", "g"] {
        assert_eq!(fs::read_to_string(outside.join(name)).unwrap(), "secret");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
}

/// The layer changes again, so that there is something to apply.
fn write_if_gone(fixture: &Fixture) {
    let path = fixture.upper("d/f");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let next = if text == content("new") { "old" } else { "new" };
    fs::write(path, content(next)).unwrap();
}
