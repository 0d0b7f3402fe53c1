//! Trees on disk: a project, and the layer that overlayfs would have made above it.

use super::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};
use std::{
    fs::{self, File},
    os::{
        fd::AsFd as _,
        unix::fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::Command,
};

/// A project with a layer above it.
pub(super) struct Fixture {
    pub(super) folder: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        Fixture::within(tempfile::tempdir().unwrap())
    }

    pub(super) fn within(folder: tempfile::TempDir) -> Fixture {
        for name in ["host", "upper"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Fixture { folder }
    }

    pub(super) fn host(&self, path: &str) -> PathBuf {
        self.folder.path().join("host").join(path)
    }

    pub(super) fn upper(&self, path: &str) -> PathBuf {
        self.folder.path().join("upper").join(path)
    }

    pub(super) fn whiteout(&self, path: &str) {
        parents(&self.upper(path));
        mknodat(CWD, self.upper(path), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    pub(super) fn opaque(&self, path: &str) {
        fs::create_dir_all(self.upper(path)).unwrap();
        rustix::fs::setxattr(self.upper(path), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    }

    pub(super) fn changes(&self) -> Changes {
        let (host, upper) = (File::open(self.host("")).unwrap(), File::open(self.upper("")).unwrap());
        changes(host.as_fd(), upper.as_fd()).unwrap()
    }

    /// `verb path` of each change.
    pub(super) fn told(&self) -> Vec<String> {
        let changes = self.changes();
        let tell = |change: &Change| format!("{} {}", change.verb().word(), change.path.display());
        changes.list().iter().map(tell).collect()
    }

    pub(super) fn patch(&self) -> Vec<u8> {
        let changes = self.changes();
        let mut patch = Vec::new();
        for change in changes.list() {
            changes.write_patch(change, Style::Bytes, &mut patch).unwrap();
        }
        patch
    }
}

pub(super) fn parents(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
}

pub(super) fn write(path: &Path, text: &str) {
    parents(path);
    fs::write(path, text).unwrap();
}

#[test]
fn an_empty_layer_changes_nothing() {
    let fixture = Fixture::new();
    write(&fixture.host("a/b"), "x");

    let changes = fixture.changes();

    assert!(changes.is_empty());
    assert_eq!((changes.files(), changes.lines()), (0, (0, 0)));
}

#[test]
fn every_kind_of_change_is_found() {
    let fixture = Fixture::new();
    for path in ["changed", "mode", "gone", "d/x", "d/y", "swap", "o/old", "o/kept", "same"] {
        write(&fixture.host(path), &format!("{path}\n"));
    }
    symlink("changed", fixture.host("link")).unwrap();
    write(&fixture.upper("changed"), "CHANGED\n");
    write(&fixture.upper("same"), "same\n");
    write(&fixture.upper("mode"), "mode\n");
    fs::set_permissions(fixture.upper("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    fixture.whiteout("gone");
    fixture.whiteout("d");
    write(&fixture.upper("swap/inner"), "1\n");
    fixture.opaque("o");
    write(&fixture.upper("o/kept"), "o/kept\n");
    write(&fixture.upper("o/new"), "2\n");
    symlink("elsewhere", fixture.upper("link")).unwrap();
    fs::create_dir(fixture.upper("empty")).unwrap();

    assert_eq!(
        fixture.told(),
        [
            "modified changed",
            "deleted d",
            "deleted d/x",
            "deleted d/y",
            "added empty",
            "deleted gone",
            "modified link",
            "mode mode",
            "added o/new",
            "deleted o/old",
            "kind swap",
            "added swap/inner",
        ]
    );
    assert_eq!(fixture.changes().files(), 11);
}

#[test]
fn a_file_that_moved_is_a_rename() {
    let fixture = Fixture::new();
    write(&fixture.host("old/name"), "content\n");
    write(&fixture.host("other"), "content2\n");
    fixture.whiteout("old/name");
    write(&fixture.upper("new/name"), "content\n");

    assert_eq!(fixture.told(), ["added new", "renamed new/name", "moved_away old/name"]);
    assert_eq!(fixture.changes().files(), 1);
}

#[test]
fn layers_are_seen_as_one() {
    let fixture = Fixture::new();
    write(&fixture.host("a"), "host\n");
    write(&fixture.host("d/host"), "host\n");
    let lower = fixture.folder.path().join("lower");
    write(&lower.join("a"), "lower\n");
    write(&lower.join("b"), "lower\n");
    write(&lower.join("d/lower"), "lower\n");
    fixture.whiteout("b");
    write(&fixture.upper("d/upper"), "upper\n");

    let open = |path: &Path| std::os::fd::OwnedFd::from(File::open(path).unwrap());
    let layers = vec![open(&fixture.upper("")), open(&lower)];
    let changes = Tree::new(open(&fixture.host("")), layers, Reader::plain()).changes().unwrap();

    let told: Vec<String> =
        changes.list().iter().map(|c| format!("{} {}", c.verb().word(), c.path.display())).collect();
    assert_eq!(told, ["modified a", "added d/lower", "added d/upper"]);
    assert_eq!(changes.lines(), (3, 1));
}

#[test]
fn devices_sockets_and_pipes_are_left_out() {
    let fixture = Fixture::new();
    write(&fixture.host("file"), "x");
    mknodat(CWD, fixture.upper("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    mknodat(CWD, fixture.upper("file"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(fixture.upper("socket")).unwrap();

    let changes = fixture.changes();

    assert!(changes.is_empty());
    assert_eq!(changes.left_out().len(), 3);
}

#[test]
fn a_tree_that_is_too_deep_is_left_out_and_the_rest_is_told() {
    let fixture = Fixture::new();
    write(&fixture.upper("z"), "1");
    let mut here = File::open(fixture.upper("")).unwrap();
    for _ in 0..5000 {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        here =
            File::from(rustix::fs::openat(&here, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap());
    }

    let changes = fixture.changes();

    assert_eq!(changes.left_out().iter().map(|left| left.why).collect::<Vec<_>>(), [Why::Deep]);
    assert!(changes.list().iter().any(|change| change.path == Path::new("z")));
    let removed = Command::new("rm").arg("-rf").arg(fixture.upper("d")).status().unwrap();
    assert!(removed.success());
}

#[test]
fn git_and_patch_take_what_is_written() {
    for program in ["git", "patch"] {
        let fixture = Fixture::new();
        let long: String = (0..60).map(|n| format!("line {n}\n")).collect();
        write(&fixture.host("long"), &long);
        write(&fixture.upper("long"), &long.replace("line 7\n", "").replace("line 50\n", "new\nnewer\n"));
        write(&fixture.host("no end"), "a\nb");
        write(&fixture.upper("no end"), "a\nc");
        write(&fixture.host("gone"), "x\ny\n");
        fixture.whiteout("gone");
        write(&fixture.upper("new/deep file"), "hello\n");
        write(&fixture.upper("tab\there"), "odd\n");
        write(&fixture.upper("ünï"), "\u{fc}\n");
        fs::write(fixture.host("latin"), b"caf\xe9\n").unwrap();
        fs::write(fixture.upper("latin"), b"caf\xe9s\r\n").unwrap();
        write(&fixture.host("old"), "moved content\n");
        fixture.whiteout("old");
        write(&fixture.upper("moved"), "moved content\n");
        write(&fixture.host("run"), "#!/bin/sh\n");
        write(&fixture.upper("run"), "#!/bin/sh\n");
        fs::set_permissions(fixture.upper("run"), fs::Permissions::from_mode(0o755)).unwrap();
        if program == "git" {
            write(&fixture.upper("empty"), "");
            symlink("long", fixture.upper("link")).unwrap();
            write(&fixture.host("becomes"), "file\n");
            write(&fixture.upper("becomes/inner"), "directory\n");
        }
        let patch = fixture.folder.path().join("patch");
        fs::write(&patch, fixture.patch()).unwrap();
        let copy = fixture.folder.path().join("copy");
        assert!(Command::new("cp").args(["-a"]).arg(fixture.host("")).arg(&copy).status().unwrap().success());

        let applied = match program {
            "git" => Command::new("git")
                .args(["apply", "--whitespace=nowarn"])
                .arg(&patch)
                .current_dir(&copy)
                .output(),
            _ => {
                Command::new("patch").args(["-p1", "--binary", "-i"]).arg(&patch).current_dir(&copy).output()
            }
        };
        let applied = applied.unwrap();
        assert!(
            applied.status.success(),
            "{program}: {}{}\n{}",
            String::from_utf8_lossy(&applied.stderr),
            String::from_utf8_lossy(&applied.stdout),
            String::from_utf8_lossy(&fixture.patch())
        );

        fs::remove_dir_all(fixture.host("")).unwrap();
        fs::rename(&copy, fixture.host("")).unwrap();
        assert_eq!(fixture.told(), [""; 0], "{program}");
    }
}
