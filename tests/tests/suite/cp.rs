//! Files copied into sandboxes and out of them.

use airlock_tests::{World, eventually, not_for_a_machine};
use rustix::process::Signal;
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
};

const IDLE: &str = "echo ready; sleep 600";

/// A sandbox that runs and does nothing.
fn idle(world: &World) -> String {
    world.detached(["--workspace", "none"], IDLE)
}

#[test]
fn files_and_trees_go_in_and_come_out_as_they_were() {
    let world = World::new();
    let sandbox = idle(&world);
    fs::create_dir_all(world.work().join("tree/sub")).unwrap();
    world.write("tree/sub/large", vec![7; 3_000_000]);
    world.write("tree/run", "#!/bin/sh\n");
    fs::set_permissions(world.work().join("tree/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("sub/large", world.work().join("tree/link")).unwrap();

    world.airlock(["cp", "tree", &format!("{sandbox}:/srv")]).run().succeeded();
    let inside = world
        .exec(&sandbox, "cd /srv/tree && stat -c '%a %U' run && readlink link && wc -c < sub/large")
        .run()
        .succeeded();
    world.airlock(["cp", &format!("{sandbox}:/srv/tree"), "back"]).run().succeeded();
    world.airlock(["cp", &format!("{sandbox}:srv/tree/."), "."]).run().succeeded();

    assert_eq!(inside, "755 root\nsub/large\n3000000\n");
    let diff =
        Command::new("diff").arg("-r").args(["tree", "back"]).current_dir(world.work()).output().unwrap();
    assert!(diff.status.success(), "{diff:?}");
    assert_eq!(fs::read_link(world.work().join("back/link")).unwrap(), Path::new("sub/large"));
    assert_eq!(world.work().join("run").metadata().unwrap().mode() & 0o7777, 0o755);
    let own = world.work().metadata().unwrap().uid();
    assert_eq!(world.work().join("back/sub/large").metadata().unwrap().uid(), own);
}

#[test]
fn a_destination_means_what_it_means_to_docker() {
    let world = World::new();
    let sandbox = idle(&world);
    let at = |path: &str| format!("{sandbox}:{path}");
    world.write("f", "one\n");
    fs::create_dir(world.work().join("d")).unwrap();
    world.write("d/x", "x\n");

    for (source, target) in
        [("f", "/srv/"), ("f", "/srv/g"), ("d", "/srv/new"), ("d", "/srv"), ("d/.", "/srv"), ("f", "/srv/g")]
    {
        world.airlock(["cp", source, &at(target)]).run().succeeded();
    }
    let found = world.exec(&sandbox, "cd /srv && find . -type f | sort").run().succeeded();
    assert_eq!(found, "./d/x\n./f\n./g\n./new/x\n./x\n");
    for (source, target, words) in [
        ("f", "/srv/none/", "no directory"),
        ("f", "/none/x", "not there"),
        ("d", "/srv/f", "what is copied is one"),
        ("nothing", "/srv", "nothing cannot be taken"),
    ] {
        let refused = world.airlock(["cp", source, &at(target)]).run().failed(1);
        assert!(refused.contains(words), "{source} {target}: {refused}");
    }
    world.airlock(["cp", &at("/none"), "."]).run().failed(1);
    world.airlock(["cp", "f", "g"]).run().failed(2);
    world.airlock(["cp", &at("/srv/f"), &at("/srv/h")]).run().failed(2);
}

#[test]
fn what_goes_in_belongs_to_the_user_inside() {
    let world = World::new();
    let sandbox = world.detached(["--workspace", "none", "--user", "1234:1234", "-e", "HOME=/tmp"], IDLE);
    world.write("f", "x");

    world.airlock(["cp", "f", &format!("{sandbox}:/tmp/f")]).run().succeeded();

    assert_eq!(world.exec(&sandbox, "stat -c %u:%g /tmp/f").run().succeeded(), "1234:1234\n");
}

#[test]
fn archives_stream_both_ways() {
    let world = World::new();
    let sandbox = idle(&world);
    fs::create_dir(world.work().join("d")).unwrap();
    world.write("d/x", "from tar\n");
    fs::hard_link(world.work().join("d/x"), world.work().join("d/y")).unwrap();
    let tar = Command::new("tar").args(["c", "d"]).current_dir(world.work()).output().unwrap().stdout;

    world.airlock(["cp", "-", &format!("{sandbox}:/srv")]).input(tar.clone()).run().succeeded();
    let inside = world.exec(&sandbox, "cat /srv/d/x; stat -c %h /srv/d/y").run().succeeded();
    let mut out = world.airlock(["cp", &format!("{sandbox}:/srv/d"), "-"]).into_command();
    let out = out.stdout(Stdio::piped()).output().unwrap();

    assert_eq!(inside, "from tar\n2\n");
    let mut list =
        Command::new("tar").args(["t"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    list.stdin.take().unwrap().write_all(&out.stdout).unwrap();
    let listed = String::from_utf8(list.wait_with_output().unwrap().stdout).unwrap();
    let mut lines: Vec<&str> = listed.lines().map(|line| line.trim_end_matches('/')).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["d", "d/x", "d/y"]);

    let mut zip = Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    zip.stdin.take().unwrap().write_all(&tar).unwrap();
    let zipped = zip.wait_with_output().unwrap().stdout;
    let refused = world.airlock(["cp", "-", &format!("{sandbox}:/srv")]).input(zipped).run().failed(1);
    assert!(refused.contains("gzip"), "{refused}");
}

#[test]
fn a_stopped_sandbox_is_visited_and_left_as_it_was() {
    let world = World::new();
    world.sh(["--keep", "--name", "s", "--workspace", "none"], "echo inside > /srv/f; exit 3").run();
    let before =
        fs::read_to_string(world.home().join("sandboxes").join(id(&world)).join("state.json")).unwrap();
    world.write("g", "from outside\n");

    world.airlock(["cp", "s:/srv/f", "."]).run().succeeded();
    world.airlock(["cp", "g", "s:/srv"]).run().succeeded();
    world.airlock(["cp", "s:/srv/g", "again"]).run().succeeded();

    assert_eq!((world.read("f").as_str(), world.read("again").as_str()), ("inside\n", "from outside\n"));
    let after =
        fs::read_to_string(world.home().join("sandboxes").join(id(&world)).join("state.json")).unwrap();
    assert_eq!(after, before);
    assert_eq!(world.state("s")["exit"]["code"].as_u64(), Some(3));
}

fn id(world: &World) -> String {
    world.sandboxes()[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn nothing_dangerous_comes_out() {
    let world = World::new();
    let sandbox = idle(&world);
    let script = "mkdir -p /srv/t/d && cd /srv/t && cp /bin/true su && chmod 6755 su; mkfifo pipe; \
                  ln -s /etc/passwd absolute; ln -s ../../up out; ln -s d/../../../up sly; ln -s d fine; \
                  python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; \
                  echo n > \"$(printf 'a\\nb\\033[2J')\"; chmod 1777 d";
    world.exec(&sandbox, script).run().succeeded();

    let out = world.airlock(["cp", &format!("{sandbox}:/srv/t"), "t"]).run();

    assert_eq!(out.code, 0, "{out}");
    let said = out.stderr;
    for name in ["pipe", "sock", "absolute", "out", "sly"] {
        assert!(fs::symlink_metadata(world.work().join("t").join(name)).is_err(), "{name}");
        assert!(
            said.contains(&format!("left out ./{name}")) || said.contains(&format!("left out {name}")),
            "{said}"
        );
    }
    assert!(!said.contains('\x1b'), "{said}");
    assert_eq!(world.work().join("t/su").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_link(world.work().join("t/fine")).unwrap(), Path::new("d"));
    world.airlock(["cp", "--keep-links", "-q", &format!("{sandbox}:/srv/t"), "u"]).run().succeeded();
    assert_eq!(fs::read_link(world.work().join("u/absolute")).unwrap(), Path::new("/etc/passwd"));
}

#[test]
fn more_than_the_limit_stays_inside() {
    let world = World::new();
    let sandbox = idle(&world);
    world
        .exec(&sandbox, "truncate -s 1T /srv/huge 2>/dev/null || truncate -s 1G /srv/huge")
        .run()
        .succeeded();

    let refused =
        world.airlock(["cp", "--limit", "10M", &format!("{sandbox}:/srv/huge"), "."]).run().failed(1);

    assert!(refused.contains("more than 10M would be copied") && refused.contains("--limit"), "{refused}");
    assert_eq!(fs::read_dir(world.work()).unwrap().count(), 0);
}

#[test]
fn ten_thousand_files_go_in_and_come_out() {
    if not_for_a_machine("an emulated processor takes minutes for ten thousand files") {
        return;
    }
    let world = World::new();
    let sandbox = idle(&world);
    for dir in 0..100 {
        fs::create_dir_all(world.work().join(format!("t/{dir}"))).unwrap();
        for file in 0..100 {
            world.write(&format!("t/{dir}/{file}"), format!("{dir} {file}"));
        }
    }

    world.airlock(["cp", "t", &format!("{sandbox}:/srv")]).run().succeeded();
    world.airlock(["cp", &format!("{sandbox}:/srv/t"), "back"]).run().succeeded();

    let diff = Command::new("diff").args(["-r", "t", "back"]).current_dir(world.work()).status().unwrap();
    assert!(diff.success());
}

/// Swaps a directory with a link to a host path, as fast as it can, until it is killed.
const SWAP: &str = r#"
import os, sys, ctypes
where, to = sys.argv[1], sys.argv[2]
os.makedirs(where + '/d/e', exist_ok=True)
for n in range(20): open(where + '/d/e/f%d' % n, 'w').write('x')
if not os.path.islink(where + '/l'): os.symlink(to, where + '/l')
libc = ctypes.CDLL(None, use_errno=True)
renameat2 = getattr(libc, 'renameat2', None)
print('ready', flush=True)
while True:
    a, b = (where + '/d/e').encode(), (where + '/l').encode()
    renameat2(-100, a, -100, b, 2)
"#;

#[test]
fn a_program_that_swaps_links_during_a_copy_moves_nothing_to_or_from_the_host() {
    let world = World::new();
    let secret = world.aside("secret");
    fs::write(secret.join("f0"), "host secret").unwrap();
    // The workspace is writable from inside, so that host paths themselves are swapped under the copy.
    let script = world.write("swap.py", SWAP);
    let work = world.work().display().to_string();
    let command = format!("python3 {} {work}/race {}", script.display(), secret.display());
    let sandbox = world.detached(["--workspace", "rw", "--name", "racer"], &command);
    eventually("the race", || world.airlock(["logs", &sandbox]).run().stdout.contains("ready").then_some(()));
    fs::create_dir(world.work().join("plain")).unwrap();
    for n in 0..20 {
        world.write(&format!("plain/f{n}"), "y");
    }
    world.exec(&sandbox, "mkdir -p /srv/in").run().succeeded();

    for round in 0..40 {
        // From the host, in: what is read must never be the secret.
        let target = format!("racer:/srv/in/{round}");
        world.airlock(["cp", "-q", "race/d", &target]).run();
        world.airlock(["cp", "-q", "race/d/e/f0", &format!("racer:/srv/in/f{round}")]).run();
        // Out, to the host: what is written must never land beside.
        world.airlock(["cp", "-q", "racer:/etc/hostname", "race/d/e/evil"]).run();
        world.airlock(["cp", "-q", &format!("racer:{work}/plain"), "race/d"]).run();
        world.airlock(["cp", "-q", &format!("racer:{work}/plain/."), "race/d/e"]).run();
    }

    let leaked = world.exec(&sandbox, "grep -rl 'host secret' /srv/in").run();
    assert_eq!(leaked.stdout, "", "{leaked}");
    let left: Vec<_> = fs::read_dir(&secret).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["f0"]);
    assert_eq!(fs::read_to_string(secret.join("f0")).unwrap(), "host secret");
}

#[test]
fn a_planted_link_is_not_followed_by_what_a_person_types() {
    let world = World::new();
    let secret = world.aside("secret");
    fs::write(secret.join("key"), "host secret").unwrap();
    let sandbox = world.detached(["--workspace", "rw"], IDLE);
    world
        .exec(&sandbox, &format!("ln -s {} planted; ln -s {}/key k", secret.display(), secret.display()))
        .run()
        .succeeded();

    world.airlock(["cp", "planted/key", &format!("{sandbox}:/srv")]).run().failed(125);
    world.airlock(["cp", "planted/", &format!("{sandbox}:/srv")]).run().failed(125);
    world.airlock(["cp", "-L", "k", &format!("{sandbox}:/srv")]).run().failed(125);
    world.airlock(["cp", &format!("{sandbox}:/etc/hostname"), "planted/x"]).run().failed(125);
    world.airlock(["cp", &format!("{sandbox}:/etc/hostname"), "planted"]).run().failed(125);
    // The link itself may be copied.
    world.airlock(["cp", "k", &format!("{sandbox}:/srv/k")]).run().succeeded();

    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1);
    assert!(!world.exec(&sandbox, "grep -r secret /srv 2>/dev/null").run().stdout.contains("host secret"));
}

#[test]
fn a_copy_that_is_killed_leaves_whole_files_only() {
    let world = World::new();
    let sandbox = idle(&world);
    let script = "mkdir /srv/t && for n in $(seq 40); do head -c 5000000 /dev/zero > /srv/t/$n; done";
    world.exec(&sandbox, script).run().succeeded();

    for round in 0..3 {
        let target = format!("out{round}");
        let running = world.airlock(["cp", "-q", &format!("{sandbox}:/srv/t"), &target]).start();
        let out = world.work().join(&target);
        eventually("a first file", || fs::read_dir(&out).ok()?.next().map(drop));
        running.signal(Signal::KILL);
        running.wait();
        for entry in fs::read_dir(&out).unwrap().flatten() {
            assert_eq!(entry.metadata().unwrap().len(), 5_000_000, "{:?}", entry.path());
        }
    }
    for round in 0..3 {
        let running = world.airlock(["cp", "-q", "out0/.", &format!("{sandbox}:/srv/in{round}")]).start();
        running.signal(Signal::KILL);
        running.wait();
    }
    let sizes = world.exec(&sandbox, "find /srv/in* -type f -size -5000000c 2>/dev/null").run();
    assert_eq!(sizes.stdout, "");
}

#[test]
fn a_frozen_sandbox_is_not_copied_from() {
    let world = World::new();
    let sandbox = idle(&world);
    world.airlock(["pause", &sandbox]).run().succeeded();

    let refused = world.airlock(["cp", &format!("{sandbox}:/etc/hostname"), "."]).run().failed(125);

    assert!(refused.contains("airlock resume"), "{refused}");
    world.airlock(["resume", &sandbox]).run().succeeded();
    world.airlock(["cp", &format!("{sandbox}:/etc/hostname"), "."]).run().succeeded();
}

#[test]
fn hostile_names_arrive_as_they_are() {
    let world = World::new();
    let sandbox = idle(&world);
    let script = r#"
import os
os.makedirs(b'/srv/t')
for name in [b'-rf', b'a b', b'\xff\xfe', b'new\nline', b'.hidden', b'x' * 255, b'\x1b[2J', b'..a', '\u202egpj.exe'.encode()]:
    open(b'/srv/t/' + name, 'w').write('1')
deep = b'/srv/t'
for _ in range(40):
    deep += b'/' + b'd' * 80
os.makedirs(deep)
open(deep + b'/f', 'w').write('1')
"#;
    world.airlock(["exec", &sandbox, "python3", "-c", script]).run().succeeded();

    let out = world.airlock(["cp", &format!("{sandbox}:/srv/t"), "t"]).run();

    assert_eq!(out.code, 0, "{out}");
    assert_eq!(fs::read_dir(world.work().join("t")).unwrap().count(), 10);
}

#[test]
fn copies_are_in_the_ledger_and_keep_attributes_of_users() {
    let world = World::new();
    let sandbox = idle(&world);
    let file = world.write("f", "x");
    let has_attributes =
        rustix::fs::setxattr(&file, "user.note", b"kept", rustix::fs::XattrFlags::empty()).is_ok();

    world.airlock(["cp", "-q", "f", &format!("{sandbox}:/srv/f")]).run().succeeded();
    world.airlock(["cp", "-q", &format!("{sandbox}:/srv/f"), "back"]).run().succeeded();

    let ledger = world.airlock(["ledger", &sandbox]).run().succeeded();
    assert!(ledger.contains("copy to /srv/f") && ledger.contains("copy from /srv/f"), "{ledger}");
    let mut value = [0; 100];
    let count = rustix::fs::getxattr(world.work().join("back"), "user.note", &mut value).unwrap_or(0);
    if has_attributes {
        assert_eq!(&value[..count], b"kept");
    }
}

#[test]
fn a_copy_of_a_sandbox_that_does_not_run_is_in_its_ledger_too() {
    let world = World::new();
    world.sh(["--keep", "--name", "done", "--workspace", "none"], "echo hi > /srv/f").run().succeeded();
    world.airlock(["cp", "-q", "done:/srv/f", "back"]).run().succeeded();
    let ledger = world.airlock(["ledger", "done"]).run().succeeded();
    assert!(ledger.contains("copy from /srv/f"), "{ledger}");
    world.airlock(["ledger", "verify", "done"]).run().succeeded();
}
