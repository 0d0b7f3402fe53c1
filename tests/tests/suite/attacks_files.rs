//! Attacks on the host's files: what must be invisible, what must stay as it is.

use crate::probe::{inside, not_refused, outside};
use airlock_tests::{Who, World, binary, not_applicable, search, who};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

/// A file or directory of the host that goes away with the test.
struct Canary(PathBuf);

impl Canary {
    fn new(path: impl Into<PathBuf>, mode: u32) -> Canary {
        let path = path.into();
        fs::write(&path, "canary").unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        Canary(path)
    }

    fn directory(path: impl Into<PathBuf>) -> Canary {
        let path = path.into();
        fs::create_dir(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        Canary(path)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}

fn unique(name: &str) -> String {
    format!("airlock-canary-{name}-{}", std::process::id())
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum runs");
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn files_of_the_host_outside_the_workspace_are_not_there() {
    let world = World::new();
    let beside = Canary::new(world.aside("beside").join("canary"), 0o644);
    let temporary = Canary::new(format!("/var/tmp/{}", unique("var-tmp")), 0o666);
    let shared = Canary::new(format!("/dev/shm/{}", unique("shm")), 0o666);
    let home = PathBuf::from(std::env::var_os("HOME").expect("a home"));
    let at_home = Canary::new(home.join(unique("home")), 0o644);

    for canary in [&beside, &temporary, &shared, &at_home] {
        let probe = format!(
            "say(tried(lambda: open('{0}')), tried(lambda: open('/proc/1/root{0}')))",
            canary.0.display()
        );
        let said = inside(&world, [], &probe);
        assert!(said.starts_with("ENOENT E"), "{}: {said}", canary.0.display());
        assert!(outside(&world, &probe).starts_with("done"), "the probe cannot fail");
    }
    let found = world.sh([], &search("-name 'airlock-canary-*'")).run();
    assert_eq!(found.stdout, "");
}

#[test]
fn the_own_files_of_airlock_are_not_there() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");
    let socket = world.home().join("sandboxes").join(&sandbox).join("control.sock");
    let probe = format!(
        "say(tried(lambda: socket.socket(socket.AF_UNIX).connect('{}')), os.path.exists('{}'))",
        socket.display(),
        world.home().display()
    );

    assert_eq!(inside(&world, [], &probe), "ENOENT False\n");
    assert_eq!(outside(&world, &probe), "done True\n");
    assert_eq!(world.sh([], &search("-name control.sock -o -name 'airlock-guest*'")).run().stdout, "");
}

#[test]
fn the_state_directory_is_no_workspace_and_no_mount_also_behind_a_link() {
    let world = World::new();
    world.sh([], "true").run().succeeded();
    let link = world.aside("links").join("home");
    std::os::unix::fs::symlink(world.home(), &link).expect("a link");

    for home in [world.home(), &link] {
        for source in
            [world.home().to_owned(), world.home().join("sandboxes"), link.clone(), link.join("names")]
        {
            let mount = format!("{}:/x", source.display());
            let run =
                world.airlock(["run", "--mount", &mount, "--", "ls", "/x"]).env("AIRLOCK_HOME", home).run();
            assert_eq!((run.code, run.stdout.as_str()), (125, ""), "{}: {run}", source.display());
            let run = world.airlock(["run", "--", "ls"]).env("AIRLOCK_HOME", home).dir(&source).run();
            assert_eq!((run.code, run.stdout.as_str()), (125, ""), "{}: {run}", source.display());
        }
    }
}

#[test]
fn sockets_of_the_host_cannot_be_connected_to() {
    let world = World::new();
    let beside = world.aside("sockets").join("s");
    fs::create_dir_all(world.work().join("deep/er")).expect("directories");
    let within = world.work().join("deep/er/s");
    let _listeners = [&beside, &within].map(|path| UnixListener::bind(path).expect("a socket"));
    let probe = |path: &Path| {
        format!("say(tried(lambda: socket.socket(socket.AF_UNIX).connect('{}')))", path.display())
    };

    assert_eq!(inside(&world, [], &probe(&beside)), "ENOENT\n");
    for mode in ["rw", "ro", "cow"] {
        assert_eq!(inside(&world, ["--workspace", mode], &probe(&within)), "ECONNREFUSED\n", "{mode}");
    }
    let moved = format!(
        "os.rename('deep', 'moved')\n{}\nos.rename('moved', 'deep')",
        probe(&world.work().join("moved/er/s"))
    );
    assert_eq!(inside(&world, ["--workspace", "rw"], &moved), "ECONNREFUSED\n");
    assert_eq!(outside(&world, &probe(&beside)) + &outside(&world, &probe(&within)), "done\ndone\n");
    let shown = world
        .sh(["--workspace", "rw"], "find /tmp /run /var /etc /dev -exec test -S {} \\; -print 2>/dev/null")
        .run();
    assert_eq!(shown.stdout, "");
}

#[test]
fn a_socket_stays_hidden_when_its_directory_was_closed_or_moved_out_of_sight() {
    let connect = "say(tried(lambda: socket.socket(socket.AF_UNIX).connect('s')))";
    let down = "for _ in range(20): os.mkdir('d' * 250) if not os.path.exists('d' * 250) else None; os.chdir('d' * 250)\n";
    let close = "os.chmod('run', 0)".to_owned();
    let open = format!(
        "tried(lambda: os.chmod('run', 0o755))\nif tried(lambda: os.chdir('run')) == 'done': {connect}"
    );
    let sink = format!("here = os.open('.', os.O_RDONLY)\n{down}os.rename('run', 'run', src_dir_fd=here)");
    let dive = format!(
        "def dive():\n    for _ in range(20): os.chdir('d' * 250)\n    os.chdir('run')\nif tried(dive) == 'done': {connect}"
    );
    for (before, after) in [(close, open), (sink, dive)] {
        let world = World::new();
        fs::create_dir(world.work().join("run")).expect("a directory");
        let _listener = UnixListener::bind(world.work().join("run/s")).expect("a socket");

        inside(&world, ["--workspace", "rw"], &before);
        let said = inside(&world, ["--workspace", "rw"], &after);

        assert!(["", "ECONNREFUSED\n", "ENOENT\n"].contains(&said.as_str()), "{before}: {said}");
        assert_eq!(outside(&world, &after), "done\n", "the probe cannot fail");
    }
}

/// A process of the host that ends with the test.
struct Sleeper(std::process::Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_of_the_host_are_invisible() {
    let world = World::new();
    let mark = format!("4242.{}", std::process::id());
    let sleeper = Sleeper(Command::new("sleep").arg(&mark).spawn().expect("sleep runs"));
    let probe = format!(
        r#"
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if b"{mark}" in open("/proc/" + pid + "/cmdline", "rb").read().split(b"\0"): say("seen")
    except OSError: pass
say(tried(lambda: os.kill({}, 0)))
"#,
        sleeper.0.id()
    );

    let (within, without) = (inside(&world, [], &probe), outside(&world, &probe));

    assert_eq!((within.as_str(), without.as_str()), ("ESRCH\n", "seen\ndone\n"));
}

#[test]
fn what_others_may_not_read_is_hidden_from_root_inside() {
    if who() != Who::Root {
        return not_applicable("only root's sandboxes could read such files, and only root can make them");
    }
    let world = World::new();
    world.sh([], "true").run().succeeded();
    let folder = Canary::directory(format!("/opt/{}", unique("folder")));
    let files = [
        Canary::new(format!("/etc/{}", unique("etc")), 0o600),
        Canary::new(format!("/usr/{}", unique("usr")), 0o640),
        Canary::new(format!("/var/{}", unique("var")), 0o400),
        Canary::new(folder.0.join("private"), 0o600),
    ];
    let open = Canary::new(folder.0.join("public"), 0o644);
    let paths: Vec<String> = files.iter().map(|file| file.0.display().to_string()).collect();

    let probe = format!("for path in {paths:?} + ['{}']: say(tried(lambda: open(path)))", open.0.display());
    assert_eq!(inside(&world, [], &probe), "ENOENT\nENOENT\nENOENT\nENOENT\ndone\n");

    // A directory that is closed later counts as well.
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).expect("a mode");
    assert_eq!(inside(&world, [], &format!("say(tried(lambda: open('{}')))", open.0.display())), "ENOENT\n");
}

#[test]
fn credential_files_are_hidden_whatever_their_mode() {
    if who() != Who::Root {
        return not_applicable("only root can make such files");
    }
    let world = World::new();
    let keytab = Canary::new(format!("/etc/{}.keytab", unique("k")), 0o644);
    let key = Canary::new(format!("/etc/luks-{}", unique("l")), 0o666);
    let paths = [&keytab, &key].map(|file| file.0.display().to_string());

    let probe =
        format!("for path in {paths:?} + ['/etc/sudoers', '/etc/passwd-']: say(tried(lambda: open(path)))");
    assert_eq!(inside(&world, [], &probe), "ENOENT\n".repeat(4));
}

#[test]
fn the_passwords_inside_are_not_those_of_the_host() {
    let world = World::new();

    let shadow = world.sh([], "cat /etc/shadow 2>/dev/null | cut -d: -f2 | sort -u").run().stdout;

    assert!(shadow.lines().all(|hash| ["*", "!", "!!", "!*"].contains(&hash)), "{shadow}");
}

/// What lies in these directories of the host, without what other tests put there.
fn names_in(folders: &[&str]) -> std::collections::BTreeSet<PathBuf> {
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a directory of the host"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| !path.display().to_string().contains("airlock-")).collect()
}

#[test]
fn removing_everything_inside_harms_nothing_outside() {
    let world = World::new();
    let canary = world.write("canary", "here");
    let before = names_in(&["/usr/bin", "/etc", "/opt"]);

    // All of it takes minutes on a large host; what matters most comes first.
    let script = "rm -rf /etc /opt /home 2>/dev/null; [ -e /etc/passwd ] || echo gone; timeout 10 rm -rf --no-preserve-root / 2>/dev/null";
    let removed = world.sh(["--workspace", "none"], script).run();

    assert!(who() != Who::Root || removed.stdout == "gone\n", "the probe cannot fail: {removed}");
    assert_eq!(names_in(&["/usr/bin", "/etc", "/opt"]), before);
    assert_eq!(fs::read_to_string(canary).expect("the canary"), "here");
    assert_eq!(world.sh([], "cat canary").run().succeeded(), "here");
}

#[test]
fn neither_airlock_nor_its_guest_can_be_overwritten() {
    let world = World::new();
    let sandbox =
        world.detached([], "printf '#!/proc/self/exe\\n' > /tmp/again; chmod 755 /tmp/again; sleep 1000");
    let guests: Vec<PathBuf> = fs::read_dir(world.home().join("guest"))
        .expect("the guest")
        .map(|e| e.expect("one").path())
        .collect();
    let before: Vec<String> = guests.iter().map(PathBuf::as_path).chain([binary()]).map(sha256).collect();
    let probe = r##"
own = os.open("/proc/self/exe", os.O_RDONLY)
say(tried(lambda: os.open("/proc/1/exe", os.O_WRONLY)))
say(tried(lambda: os.open("/proc/1/exe", os.O_RDWR | os.O_TRUNC)))
say(tried(lambda: os.chmod("/proc/1/exe", 0o777)))
"##;
    // While programs start one after the other, everything that can be opened through /proc is opened for writing.
    let hunter = r#"
import time
end = time.time() + 3
while time.time() < end:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid == str(os.getpid()): continue
        try:
            fd = os.open("/proc/" + pid + "/exe", os.O_WRONLY)
            where = os.readlink("/proc/" + pid + "/exe")
            if "airlock" in where or "guest" in where: say("opened", where)
            os.close(fd)
        except OSError: pass
"#;

    let said = inside(&world, [], probe);
    let hunting = world.airlock(["exec", &sandbox, "python3", "-c", &crate::probe::script(hunter)]).start();
    for _ in 0..20 {
        world.exec(&sandbox, "true").run().succeeded();
        // This one makes the guest execute itself.
        assert_ne!(world.airlock(["exec", &sandbox, "/tmp/again"]).run().code, 0);
    }
    let hunted = hunting.wait();

    assert_eq!(not_refused(&said, &["EACCES", "EPERM", "EROFS", "ETXTBSY"]), Vec::<String>::new());
    assert_eq!(hunted.succeeded(), "");
    let after: Vec<String> = guests.iter().map(PathBuf::as_path).chain([binary()]).map(sha256).collect();
    assert_eq!(before, after);
}

#[test]
fn device_nodes_can_be_neither_made_nor_used() {
    let world = World::new();
    let probe = r#"
for kind, device in [(stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 3))]:
    for place in ["/tmp/node", "node", "/dev/node", "/dev/shm/node"]:
        say(place, tried(lambda: os.mknod(place, kind | 0o666, device)))
"#;

    assert_eq!(not_refused(&inside(&world, [], probe), &["EPERM", "EACCES"]), Vec::<String>::new());
    let refused = world.airlock(["run", "--cap-add", "MKNOD", "--", "true"]).run().failed(125);
    assert!(refused.contains("device nodes cannot be made"), "{refused}");
}

#[test]
fn a_device_node_that_lies_in_the_workspace_cannot_be_opened() {
    if who() != Who::Root {
        return not_applicable("only root can make device nodes");
    }
    let world = World::new();
    let node = world.work().join("zero");
    let made = Command::new("mknod")
        .args(["-m", "666"])
        .arg(&node)
        .args(["c", "1", "5"])
        .status()
        .expect("mknod runs");
    assert!(made.success());
    let probe = "say(tried(lambda: open('zero', 'rb').read(1)))";

    for mode in ["cow", "rw", "ro"] {
        assert_eq!(inside(&world, ["--workspace", mode], probe), "EACCES\n", "{mode}");
    }
    assert_eq!(outside(&world, probe), "done\n");
}

#[test]
fn set_id_modes_cannot_be_given_in_a_writable_workspace() {
    let world = World::new();
    world.write("file", "x");
    let probe = r#"
AT = -100
for mode in (0o4755, 0o2755, 0o6755):
    say("chmod", tried(lambda: os.chmod("file", mode)))
    fd = os.open("file", os.O_RDONLY)
    say("fchmod", call("fchmod", fd, mode))
    say("fchmodat", call("fchmodat", AT, b"file", mode))
    say("fchmodat2", call("fchmodat2", AT, b"file", mode, 0))
    say("creat", tried(lambda: os.close(os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))))
    say("tmpfile", tried(lambda: os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY, mode))))
    say("mknod", tried(lambda: os.mknod("node", stat.S_IFREG | mode)))
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, mode, 0)
    say("openat2", call("openat2", AT, b"new2", how, 24))
    say("highbits", call("fchmod", fd, mode | (1 << 40)))
"#;

    let said = inside(&world, ["--workspace", "rw"], probe);

    assert_eq!(not_refused(&said, &["EPERM", "ENOSYS"]), Vec::<String>::new());
    for entry in fs::read_dir(world.work()).expect("the workspace").flatten() {
        assert_eq!(entry.metadata().expect("a file").mode() & 0o6000, 0, "{entry:?}");
    }
    assert!(outside(&world, probe).contains("chmod done"), "the probe cannot fail");
}

#[test]
fn capabilities_given_to_files_of_the_workspace_do_not_count_on_the_host() {
    let world = World::new();
    fs::copy("/bin/true", world.work().join("program")).expect("a program");
    // Version 2 of the attribute: CAP_SETUID, permitted and effective.
    let probe = r#"
value = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)
say(tried(lambda: os.setxattr("program", "security.capability", value)))
say(tried(lambda: os.setxattr("/tmp/own", "security.capability", value)) if not open("/tmp/own", "w").close() else "")
"#;
    let on_host = "say(os.getxattr('program', 'security.capability').hex() if 'security.capability' in os.listxattr('program') else 'none')";

    for flags in [vec!["--workspace", "rw"], vec!["--workspace", "rw", "--nested"]] {
        inside(&world, flags, probe);
        // Version 3 names the root of a user namespace: it counts only where that is root.
        let left = outside(&world, on_host);
        let root = left.trim_end().get(40..48).unwrap_or("00000000").to_owned();
        assert!(left == "none\n" || root != "00000000", "a file of the host has {left}");
    }
    if who() == Who::Root {
        let refused = world.sh(["--workspace", "rw", "--cap-add", "SETFCAP"], "true").run().failed(125);
        assert!(refused.contains("belongs to root") && refused.contains("fix:"), "{refused}");
        let without =
            world.sh(["--workspace", "none"], "grep CapEff /proc/self/status | cut -f2").run().succeeded();
        assert_eq!(without, "00000000a00405fb\n");
        assert!(outside(&world, &format!("{probe}\n{on_host}")).contains("done"), "the probe cannot fail");
    }
}

#[test]
fn set_id_programs_give_nothing() {
    if who() == Who::Single {
        return not_applicable("a single id has no second user inside");
    }
    let world = World::new();

    let script = "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && ls -l /tmp/id | cut -c1-10 && setpriv --reuid 1000 --regid 1000 --clear-groups /tmp/id -u";
    let said = world.sh(["--workspace", "none"], script).run().succeeded();

    assert_eq!(said, "-rwsr-sr-x\n1000\n");
}

#[test]
fn a_set_id_program_of_the_host_gives_nothing() {
    if who() != Who::Root {
        return not_applicable("only root can make a program of root's");
    }
    let world = World::new();
    let program = world.work().join("id");
    fs::copy("/usr/bin/id", &program).expect("a copy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).expect("a mode");

    let said = world.sh(["--user", "1000"], "./id -u; /usr/bin/su -c 'id -u' </dev/null 2>/dev/null").run();

    assert_eq!(said.stdout, "1000\n");
}

#[test]
fn links_in_the_workspace_lead_nowhere_outside() {
    let world = World::new();
    let secret = Canary::new(world.aside("secret").join("canary"), 0o644);
    std::os::unix::fs::symlink(&secret.0, world.work().join("absolute")).expect("a link");
    std::os::unix::fs::symlink("../secret/canary", world.work().join("relative")).expect("a link");
    let opens = r#"
say(tried(lambda: open("absolute")), tried(lambda: open("relative")), tried(lambda: open("../secret/canary")))
"#;
    let moves = r#"
say(tried(lambda: os.link("/etc/hosts", "hard")), tried(lambda: os.rename("/etc/hosts", "moved")))
"#;

    assert_eq!(inside(&world, [], opens), "ENOENT ENOENT ENOENT\n");
    assert_eq!(inside(&world, [], moves), "EXDEV EXDEV\n");
    assert!(outside(&world, opens).starts_with("done done done"), "the probe cannot fail");
}

#[test]
fn places_that_are_the_sandboxs_own_cannot_be_covered() {
    let world = World::new();
    let source = world.aside("source");

    for target in [
        "/proc",
        "/proc/sys",
        "/dev",
        "/dev/null",
        "/sys/fs",
        "/",
        "/x/../proc",
        "relative",
        "/./proc",
        "//proc",
    ] {
        let mount = format!("{}:{target}", source.display());
        let refused = world.airlock(["run", "--mount", &mount, "--", "true"]).run();
        assert!([2, 125].contains(&refused.code), "{target}: {refused}");
        let refused = world.airlock(["run", "--tmpfs", target, "--", "true"]).run();
        assert!([2, 125].contains(&refused.code), "{target}: {refused}");
    }
}

#[test]
fn nothing_of_the_environment_enters_unasked() {
    let world = World::new();

    let seen = world
        .sh([], "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        .env("CANARY_TOKEN", "canary")
        .env("AWS_SECRET_ACCESS_KEY", "canary")
        .env("LD_PRELOAD_X", "canary")
        .env("SSH_AUTH_SOCK", "canary")
        .run()
        .succeeded();

    assert!(!seen.contains("canary") && !seen.contains("AIRLOCK"), "{seen}");
    assert!(seen.contains("PATH="), "{seen}");
}

#[test]
fn a_second_sandbox_is_invisible_from_the_first() {
    let world = World::new();
    let mark = format!("mark-{}", std::process::id());
    let first = world.detached(["--name", "first"], &format!("echo {mark} > /tmp/{mark}; exec sleep 5432.1"));
    airlock_tests::eventually("the file is there", || {
        (world.exec(&first, &format!("test -s /tmp/{mark}")).run().code == 0).then_some(())
    });

    let seen = world
        .sh([], &format!("cat /tmp/{mark} 2>&1; cat /proc/*/cmdline | tr '\\0' '\\n' | grep -x '5432[.]1'; hostname; ls -A /dev/shm; ls /proc | grep -c '^[0-9]'"))
        .run()
        .succeeded();

    assert!(!seen.contains(&format!("{mark}\n{mark}")) && seen.contains("No such file"), "{seen}");
    assert!(!seen.lines().any(|line| line == "5432.1" || line == "first"), "{seen}");
}
