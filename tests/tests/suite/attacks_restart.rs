//! Attacks on the next start: what a kept sandbox leaves in its own root must not lead the builder to the host.

use crate::probe::script;
use airlock_tests::{Output, World};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// A directory of the host that a planted link points to; it must stay as it is.
struct Victim {
    path: PathBuf,
    before: Vec<String>,
}

impl Victim {
    fn new(world: &World) -> Victim {
        let path = world.aside("victim");
        fs::create_dir(path.join("folder")).expect("a directory");
        fs::write(path.join("file"), "untouched").expect("a file");
        let before = look(&path);
        Victim { path, before }
    }

    fn assert_untouched(&self) {
        assert_eq!(look(&self.path), self.before);
        assert_eq!(fs::read_to_string(self.path.join("file")).expect("the file"), "untouched");
    }
}

/// Names, owners, modes and times of everything in a directory.
fn look(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let stat = fs::symlink_metadata(&path).expect("it is there");
        found.push(format!(
            "{} {} {:o} {} {}",
            path.display(),
            stat.uid(),
            stat.mode(),
            stat.mtime_nsec(),
            stat.ctime_nsec()
        ));
        if stat.is_dir() {
            open.extend(
                fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
            );
        }
    }
    found.sort();
    found
}

/// Runs a probe in a sandbox that stays, then starts it again. Whatever comes of that comes soon and in words.
fn planted<'a>(world: &World, flags: impl IntoIterator<Item = &'a str>, probe: &str) -> Output {
    let flags: Vec<&str> = ["--keep", "--name", "planted"].into_iter().chain(flags).collect();
    world.python(flags, &script(probe)).run().succeeded();
    let again = world.airlock(["start", "planted"]).deadline(Duration::from_secs(20)).run();
    assert!([0, 125].contains(&again.code), "{again}");
    assert!(again.code == 0 || again.stderr.contains("why:"), "{again}");
    again
}

/// Replaces places of the sandbox's own root.
const REPLACE: &str = r#"
def replace(place, make):
    try: os.rename(place, place + ".old")
    except OSError: pass
    try: make(place)
    except OSError: pass
"#;

#[test]
fn links_in_place_of_directories_lead_nowhere_at_the_next_start() {
    for target in ["", "/folder", "/file"] {
        let world = World::new();
        let victim = Victim::new(&world);
        let probe = format!(
            r#"{REPLACE}
for place in ["/tmp", "/root", "/home", "/mnt", "/srv", "/var/tmp", "/opt", "/var", "/usr", "/proc", "/sys", "/dev", "/run",
              "/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/bin", "/lib"]:
    replace(place, lambda place: os.symlink("{}{target}", place))
"#,
            victim.path.display()
        );

        planted(&world, ["--workspace", "none"], &probe);

        victim.assert_untouched();
    }
}

#[test]
fn links_that_climb_lead_nowhere_at_the_next_start() {
    let world = World::new();
    let victim = Victim::new(&world);
    let up = "../".repeat(30);
    let probe = format!(
        r#"{REPLACE}
for place in ["/tmp", "/root", "/home", "/mnt", "/srv", "/var/tmp", "/etc/hosts", "/etc/hostname"]:
    replace(place, lambda place: os.symlink("{up}{}", place))
"#,
        victim.path.display()
    );

    planted(&world, ["--workspace", "none"], &probe);

    victim.assert_untouched();
}

#[test]
fn magic_links_lead_nowhere_at_the_next_start() {
    let world = World::new();
    let victim = Victim::new(&world);
    let probe = format!(
        r#"{REPLACE}
for number, place in enumerate(["/tmp", "/root", "/home", "/mnt", "/srv"]):
    replace(place, lambda place: os.symlink(["/proc/self/cwd", "/proc/1/root", "/proc/self/fd/3", "/proc/self/root{0}", "/proc/1/cwd"][number], place))
"#,
        victim.path.display()
    );

    planted(&world, ["--workspace", "none"], &probe);

    victim.assert_untouched();
}

#[test]
fn a_workspace_below_a_planted_link_is_not_mounted_elsewhere() {
    let world = World::new();
    let victim = Victim::new(&world);
    let canary = world.write("canary", "here");
    // The workspace lies below /tmp, which is the sandbox's own: what leads to it is replaced.
    let probe = format!(
        r#"{REPLACE}
os.chdir("/")
replace("/tmp", lambda place: None)
try: os.rename("/tmp", "/tmp.old"); os.symlink("{}", "/tmp")
except OSError: pass
"#,
        victim.path.display()
    );

    planted(&world, ["--workspace", "rw"], &probe);

    victim.assert_untouched();
    assert_eq!(fs::read_to_string(canary).unwrap_or_default().replace("here", ""), "");
}

#[test]
fn a_workspace_that_another_sandbox_made_a_link_is_refused() {
    let world = World::new();
    let victim = Victim::new(&world);
    let inner = world.work().join("inner");
    fs::create_dir(&inner).expect("a directory");
    world.airlock(["run", "--keep", "--name", "inner", "--", "true"]).dir(&inner).run().succeeded();
    let plant = format!("rmdir inner && ln -s {} inner", victim.path.display());
    world.sh(["--workspace", "rw"], &plant).run().succeeded();

    let refused = world.airlock(["start", "inner"]).run().failed(125);

    assert!(refused.contains("symbolic link") && refused.contains("fix:"), "{refused}");
    assert_eq!(world.state("inner")["status"], "stopped");
    victim.assert_untouched();
}

#[test]
fn a_link_of_the_host_that_the_caller_names_is_followed_once() {
    let world = World::new();
    let target = world.aside("target");
    fs::write(target.join("file"), "shown").expect("a file");
    let link = world.aside("links").join("link");
    std::os::unix::fs::symlink(&target, &link).expect("a link");

    let mount = format!("{}:/data:ro", link.display());
    assert_eq!(world.sh(["--mount", &mount], "cat /data/file").run().succeeded(), "shown");
}

#[test]
fn files_and_pipes_in_place_of_directories_are_survived() {
    for make in
        ["open(place, 'w').write('x')", "os.mkfifo(place)", "socket.socket(socket.AF_UNIX).bind(place)"]
    {
        let world = World::new();
        let probe = format!(
            r#"{REPLACE}
for place in ["/tmp", "/root", "/home", "/mnt", "/srv", "/var/tmp", "/etc/hosts", "/etc/resolv.conf"]:
    replace(place, lambda place: {make})
"#
        );

        planted(&world, ["--workspace", "none"], &probe);
    }
}

#[test]
fn hostile_account_files_are_survived() {
    for make in [
        "os.mkfifo(place)",
        "os.symlink('/dev/zero', place)",
        "os.mkdir(place)",
        "open(place, 'wb').truncate(3 << 30)",
        "open(place, 'w').write('root:x:4294967296:-1:' + 'x' * 100000 + '\\0\\n' * 1000)",
    ] {
        let world = World::new();
        let probe = format!(
            "{REPLACE}\nfor place in ['/etc/passwd', '/etc/group']: replace(place, lambda place: {make})"
        );

        let again = planted(&world, ["--workspace", "none", "--user", "0"], &probe);

        assert_eq!(again.code, 0, "{make}: {again}");
    }
}

#[test]
fn an_account_added_inside_is_no_account_outside() {
    let world = World::new();
    let sandbox =
        world.detached([], "echo 'planted:x:0:0::/:/bin/sh' >> /etc/passwd 2>/dev/null; sleep 1000");

    let refused = world.airlock(["exec", "--user", "no-such-user-anywhere", &sandbox, "true"]).run();

    assert_eq!(refused.code, 125, "{refused}");
}

#[test]
fn a_tree_that_is_deep_closed_and_full_of_links_can_be_removed() {
    let world = World::new();
    let victim = Victim::new(&world);
    let probe = format!(
        r#"
os.chdir("/tmp")
for number in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.symlink("{0}", "link")
os.chdir("/tmp")
os.mkdir("closed"); os.mkdir("closed/within"); open("closed/within/file", "w").write("x")
os.symlink("{0}/folder", "closed/within/link")
os.chmod("closed/within", 0); os.chmod("closed", 0)
for number in range(200):
    open("-rf %d\n\t" % number, "w").close()
"#,
        victim.path.display()
    );
    world.python(["--keep", "--name", "deep", "--workspace", "none"], &script(&probe)).run().succeeded();

    world.airlock(["rm", "deep"]).run().succeeded();

    victim.assert_untouched();
    assert_eq!(fs::read_dir(world.home().join("sandboxes")).expect("the folder").count(), 0);
}
