//! Attacks through programmable mounts: out of a served directory, into the keeper, against the sandbox itself.

use airlock_tests::{Who, World, many, not_applicable, skip, who};
use std::{
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Rounds of each race.
const ROUNDS: usize = 4000;

fn can_serve() -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(err) = &opened {
        skip(&format!("/dev/fuse cannot be opened: {err}"));
    }
    opened.is_ok()
}

/// A world with a served directory and, beside it, something that must not be reached.
struct Served {
    world: World,
    data: std::path::PathBuf,
    outside: std::path::PathBuf,
    mount: String,
}

impl Served {
    fn new() -> Served {
        let world = World::new();
        let (data, outside) = (world.aside("data"), world.aside("outside"));
        fs::write(outside.join("secret"), "secret\n").unwrap();
        let mount = format!("type=real,src={},dst=/m", data.display());
        Served { world, data, outside, mount }
    }
}

#[test]
fn links_and_dots_never_lead_out_of_a_served_directory() {
    if !can_serve() {
        return;
    }
    let served = Served::new();
    symlink(&served.outside, served.data.join("abs")).unwrap();
    symlink("../outside", served.data.join("rel")).unwrap();
    symlink("/proc/self/root", served.data.join("magic")).unwrap();
    let outside = served.outside.display();

    let script = format!(
        "cd /m; for p in abs/secret rel/secret ../outside/secret magic{outside}/secret {outside}/secret; do
         cat $p 2>/dev/null && echo \"$p leads out\"; done
         ln -s {outside}/secret l; cat l 2>/dev/null; echo x > rel/planted 2>/dev/null; ln /m/rel/secret h 2>/dev/null; true"
    );
    let output =
        served.world.sh(["--workspace", "none", "--mount", &served.mount], &script).run().succeeded();

    assert_eq!(output, "");
    assert_eq!(fs::read_dir(&served.outside).unwrap().count(), 1);
}

/// A program inside goes through a name again and again, while somebody on the host makes it a directory, a link out and
/// a directory moved out in turn.
#[test]
fn a_race_of_renames_never_leads_out_of_a_served_directory() {
    if !can_serve() {
        return;
    }
    let served = Served::new();
    fs::create_dir(served.data.join("d")).unwrap();
    fs::write(served.data.join("d/secret"), "inside\n").unwrap();
    symlink(&served.outside, served.data.join("link")).unwrap();
    let rounds = many(ROUNDS);
    let script = format!(
        "import os
bad = 0
for n in range({rounds}):
    for path in ('/m/x/secret', '/m/d/secret'):
        try:
            if open(path).read() != 'inside\\n': bad += 1
        except OSError: pass
    try:
        fd = os.open('/m/x', os.O_RDONLY | os.O_DIRECTORY)
        try: os.close(os.open('planted', os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        except OSError: pass
        try: os.unlink('planted', dir_fd=fd)
        except OSError: pass
        os.close(fd)
    except OSError: pass
    try: os.rename('/m/x', '/m/y'); os.rename('/m/y', '/m/x')
    except OSError: pass
    try: os.link('/m/x/secret', '/m/h%d' % n); os.unlink('/m/h%d' % n)
    except OSError: pass
print(bad)"
    );
    let stop = AtomicBool::new(false);

    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (d, x, link) = ["d", "x", "link"].map(|name| served.data.join(name)).into();
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(&d, &x);
                let _ = fs::rename(&x, &d);
                let _ = fs::rename(&link, &x);
                let _ = fs::rename(&x, &link);
            }
        });
        let output = served.world.python(["--workspace", "none", "--mount", &served.mount], &script).run();
        stop.store(true, Ordering::Relaxed);
        output.succeeded()
    });

    assert_eq!(output, "0\n");
    assert_eq!(fs::read_dir(&served.outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(served.outside.join("secret")).unwrap(), "secret\n");
}

#[test]
fn a_race_of_mounts_never_leads_out_of_a_served_directory() {
    if !can_serve() {
        return;
    }
    if who() != Who::Root {
        return not_applicable("only host root mounts in a directory of the host");
    }
    let served = Served::new();
    let place = served.data.join("d");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("secret"), "inside\n").unwrap();
    let rounds = many(ROUNDS);
    let script = format!(
        "import os
bad = 0
for n in range({rounds}):
    try:
        if open('/m/d/secret').read() != 'inside\\n': bad += 1
    except OSError: pass
    try: open('/m/d/secret', 'r+').write('inside\\n')
    except OSError: pass
    try: open('/m/d/planted', 'x').close(); os.unlink('/m/d/planted')
    except OSError: pass
    try: os.link('/m/d/secret', '/m/h%d' % n); bad += open('/m/h%d' % n).read() != 'inside\\n'; os.unlink('/m/h%d' % n)
    except OSError: pass
print(bad)"
    );
    let (stop, mounts) = (AtomicBool::new(false), AtomicUsize::new(0));

    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if rustix::mount::mount_bind(&served.outside, &place).is_ok() {
                    mounts.fetch_add(1, Ordering::Relaxed);
                }
                while rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).is_ok() {}
            }
        });
        let output = served.world.python(["--workspace", "none", "--mount", &served.mount], &script).run();
        stop.store(true, Ordering::Relaxed);
        output.succeeded()
    });

    assert!(mounts.load(Ordering::Relaxed) > 100, "{mounts:?} mounts are no race");
    assert_eq!(output, "0\n");
    assert_eq!(fs::read_dir(&served.outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(served.outside.join("secret")).unwrap(), "secret\n");
}

#[test]
fn nothing_made_in_a_served_directory_has_power_on_the_host() {
    if !can_serve() {
        return;
    }
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let served = Served::new();
    let script = "import os, socket, stat
def tried(f, *a):
    try: f(*a); return True
    except OSError: return False
os.chdir('/m')
open('f', 'w').close()
print(any([tried(os.chmod, 'f', 0o4755), tried(os.chmod, 'f', 0o2755), tried(os.mknod, 'n', stat.S_IFCHR | 0o666, os.makedev(1, 3)),
  tried(os.mknod, 'b', stat.S_IFBLK | 0o666, os.makedev(8, 0)), tried(os.mkfifo, 'p'),
  tried(os.setxattr, 'f', 'security.capability', b'x' * 20), tried(os.setxattr, 'f', 'trusted.x', b'x'),
  tried(os.open, 's', os.O_CREAT | os.O_WRONLY, 0o6755)]))
s = socket.socket(socket.AF_UNIX)
print(tried(s.bind, 'sock'))";
    let output =
        served.world.python(["--workspace", "none", "--mount", &served.mount], script).run().succeeded();

    assert_eq!(output, "False\nFalse\n");
    for entry in fs::read_dir(&served.data).unwrap() {
        let found = entry.unwrap().metadata().unwrap();
        let kind = found.file_type();
        assert!(found.mode() & 0o6000 == 0 && !kind.is_fifo() && !kind.is_socket() && !kind.is_char_device());
    }
}

#[test]
fn sockets_of_the_host_in_a_served_directory_cannot_be_connected_to() {
    if !can_serve() {
        return;
    }
    let served = Served::new();
    let _listener = std::os::unix::net::UnixListener::bind(served.data.join("s")).unwrap();
    let script = "import socket
s = socket.socket(socket.AF_UNIX)
try:
    s.connect('/m/s'); print('connected')
except OSError as err: print(err.strerror)";
    let output =
        served.world.python(["--workspace", "none", "--mount", &served.mount], script).run().succeeded();
    assert_eq!(output, "Connection refused\n");
}

#[test]
fn a_flood_of_names_and_open_files_is_bounded() {
    if !can_serve() {
        return;
    }
    let served = Served::new();
    let (names, open) = (many(6000), many(3000));
    let script = format!(
        "import os
os.chdir('/m')
for n in range({names}): open('f%d' % n, 'w').close()
for _ in range(2):
    for n in range({names}): os.stat('f%d' % n)
held = []
try:
    for n in range({open}): held.append(os.open('f%d' % n, os.O_RDONLY))
except OSError: pass
print(len(os.listdir('.')), os.read(os.open('f1', os.O_RDONLY), 10) if len(held) == {open} else b'')"
    );
    let flags = ["--workspace", "none", "--nofile", "4096", "--mount", &served.mount];
    let output = served.world.python(flags, &script).run().succeeded();
    assert_eq!(output, format!("{names} b''\n"));
}

#[test]
fn a_mount_while_it_runs_never_goes_where_a_link_leads() {
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("a"), "text\n").unwrap();
    let id = world.detached(["--workspace", "none"], "ln -s /etc /tmp/l; sleep 600");
    airlock_tests::eventually("the link", || {
        world.exec(&id, "test -L /tmp/l && echo yes").run().stdout.contains("yes").then_some(())
    });

    world.airlock(["mount", &id, &format!("{}:/tmp/l/x:ro", data.display())]).run().failed(125);

    assert_eq!(world.exec(&id, "test -e /etc/x || echo no").run().succeeded(), "no\n");
}
