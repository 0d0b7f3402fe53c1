//! Both ends with the kernel of this host between, and no machine.

use super::*;
use crate::host;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::{
    fs::{self, File},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

#[expect(unreachable_pub, reason = "the suite of all file systems is a crate of its own")]
#[path = "../../../../../tests/src/posix/mod.rs"]
mod posix;

fn port() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

struct Served {
    // Goes first: with it the server and the threads that carry end.
    files: Files,
    _server: airlock_files::fuse::Server,
}

impl Served {
    /// A directory behind a mount of this kernel. Nothing where this process may not have one.
    fn new(behind: &Path) -> Option<Served> {
        let (port, socket) = port();
        let root = OwnedFd::from(File::open(behind).unwrap());
        let server = host::files::serve_root(root, socket, None).unwrap().0;
        match Files::mount(port) {
            Ok(files) => Some(Served { files, _server: server }),
            Err(err) => {
                println!("skipped: this process may not serve a mount: {err}");
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.files.tree().as_raw_fd()).into()
    }
}

#[test]
fn files_behind_a_port_are_a_file_system() {
    let behind = tempfile::tempdir().unwrap();
    let Some(served) = Served::new(behind.path()) else { return };
    // As in the carrier's own process; this thread has a mask of its own.
    rustix::process::umask(Mode::empty());
    airlock_linux::fuse::own_umask().unwrap();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    assert_eq!(posix::run(&served.path()), []);
}

#[test]
fn what_is_written_through_a_memory_map_is_behind_the_port_when_it_has_settled() {
    let behind = tempfile::tempdir().unwrap();
    let Some(served) = Served::new(behind.path()) else { return };
    let script =
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:] = b'x' * len(m)";
    for round in 0..5 {
        let name = format!("mapped{round}");
        fs::write(behind.path().join(&name), vec![0; 8 << 20]).unwrap();
        let Ok(status) = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(served.path().join(&name))
            .status()
        else {
            println!("skipped: there is no python3");
            return;
        };
        assert!(status.success());

        served.files.settle().unwrap();

        assert!(fs::read(behind.path().join(&name)).unwrap().iter().all(|byte| *byte == b'x'));
    }
}

#[test]
fn many_who_ask_at_once_are_all_answered() {
    let behind = tempfile::tempdir().unwrap();
    let Some(served) = Served::new(behind.path()) else { return };
    let root = served.path();
    thread::scope(|scope| {
        for who in 0..16u8 {
            let root = &root;
            scope.spawn(move || {
                let own = root.join(who.to_string());
                fs::create_dir(&own).unwrap();
                for round in 0..20u8 {
                    let path = own.join(round.to_string());
                    fs::write(&path, vec![who ^ round; 300_000]).unwrap();
                    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == who ^ round));
                }
                assert_eq!(fs::read_dir(&own).unwrap().count(), 20);
            });
        }
    });
}

#[test]
fn mounts_below_are_crossed_and_their_files_have_numbers_of_their_own() {
    let behind = Path::new("/");
    let Some(served) = Served::new(behind) else { return };
    let inside = |path: &str| served.path().join(path.trim_start_matches('/')).metadata();
    assert_eq!(inside("/proc").unwrap().nlink(), fs::metadata("/proc").unwrap().nlink());
    assert!(inside("/proc/self").is_err());
    assert!(inside("/dev/null").is_err());
    for path in ["/etc/passwd", "/bin/sh", "/tmp"] {
        assert_eq!(inside(path).unwrap().mode(), fs::metadata(path).unwrap().mode(), "{path}");
    }
}
