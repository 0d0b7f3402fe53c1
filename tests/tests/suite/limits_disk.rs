//! `--disk`: everything a sandbox writes is bounded, in bytes and in files, by the kernel or by the keeper.

use crate::{
    limits::limit,
    probe::{inside, script},
};
use airlock_tests::{Who, World, eventually, not_applicable, who};
use serde_json::Value;

#[test]
fn limits_disk_bounds_bytes_everywhere_the_sandbox_writes() {
    if who() != Who::Root {
        return not_applicable("a plain --disk is for root");
    }
    let world = World::new();
    for place in
        ["/tmp/big", "/root/big", "/usr/local/big", "/var/tmp/big", "/etc/big", "/srv/big", "/var/lib/big"]
    {
        let filled = world
            .sh(["--disk", "32M"], &format!("head -c 100M /dev/zero > {place}; echo $?; stat -c %s {place}"))
            .run();

        let (code, size) = filled.stdout.split_once('\n').expect("two lines");
        assert!(
            code != "0" && filled.stderr.contains("No space left") || filled.stderr.contains("quota"),
            "{place}: {filled}"
        );
        assert!(size.trim_end().parse::<u64>().expect("a size") <= 32 << 20, "{place}: {filled}");
    }
    let sandbox = world.detached(["--disk", "32M"], "sleep 1000");
    let disk = limit(&world.state(&sandbox), "disk");
    assert_eq!((&disk["value"], &disk["requested"]), (&Value::from(32 << 20), &Value::from(true)));
    assert!(disk["by"] == "loop_image" || disk["by"] == "quota", "{disk}");
}

#[test]
fn limits_disk_bounds_files_too() {
    let probe = r#"
count = 0
def fill():
    global count
    while count < 200000:
        open("/tmp/%d" % count, "w").close()
        count += 1
say(tried(fill), count < 50000)
"#;
    let flags: &[&str] = if who() == Who::Root { &["32M", "32M,tmpfs"] } else { &["32M,tmpfs"] };
    for flag in flags {
        let world = World::new();
        let said = inside(&world, ["--disk", flag], probe);
        assert!(["ENOSPC True\n", "EDQUOT True\n"].contains(&said.as_str()), "{flag}: {said}");
    }
}

#[test]
fn limits_disk_in_memory_bounds_everything_the_sandbox_writes() {
    let world = World::new();
    let places: &[&str] =
        if who() == Who::Root { &["/tmp", "/root", "/usr/local"] } else { &["/tmp", "/root", "/var/tmp"] };

    for place in places {
        let filled = world
            .sh(["--disk", "16M,tmpfs"], &format!("head -c 100M /dev/zero > {place}/big; echo $?"))
            .run();

        assert_eq!(filled.stdout, "1\n", "{place}: {filled}");
        assert!(filled.stderr.contains("No space left"), "{place}: {filled}");
    }
    let sandbox = world.detached(["--disk", "16M,tmpfs"], "sleep 1000");
    assert_eq!(limit(&world.state(&sandbox), "disk")["by"], "tmpfs");
}

/// Writes 400 MB in small steps, in a directory that `hide` prepares.
fn writer(hide: &str) -> String {
    script(&format!(
        r#"
import time
os.makedirs("/tmp/w"); os.chdir("/tmp/w")
{hide}
file = open("big", "wb")
for _ in range(4000):
    file.write(b"x" * 100000); file.flush(); time.sleep(0.005)
say("wrote all")
"#
    ))
}

#[test]
fn limits_a_watched_disk_freezes_who_writes_too_much() {
    let deep = "for _ in range(400): os.mkdir('d'); os.chdir('d')";
    let closed = "os.mkdir('c'); os.chdir('c'); os.chmod('/tmp/w/c', 0o000) if os.getuid() else None\nos.chmod('/tmp/w', 0o700)";
    for hide in ["", deep, closed] {
        let world = World::new();
        let sandbox = world
            .airlock(["run", "-d", "--disk", "16M,watched", "--", "python3", "-c", &writer(hide)])
            .run()
            .succeeded();
        let sandbox = sandbox.trim_end();

        let state = eventually("it is frozen", || {
            Some(world.state(sandbox)).filter(|state| state["status"] != "running")
        });

        assert_eq!(state["status"], "paused", "{hide}: {state}");
        assert!(state["note"].as_str().is_some_and(|note| note.contains("frozen")), "{state}");
        assert_eq!(limit(&state, "disk")["by"], "keeper");
        assert_eq!(world.exec(sandbox, "true").run().code, 125);
    }
}

#[test]
fn limits_a_plain_disk_limit_is_refused_for_ordinary_users_with_what_works() {
    if who() == Who::Root {
        return not_applicable("root's disk is bounded by the kernel");
    }
    let world = World::new();

    let refused = world.airlock(["run", "--disk", "1G", "--", "true"]).run().failed(125);

    assert!(refused.contains("--disk 1G,tmpfs") && refused.contains("--disk 1G,watched"), "{refused}");
}
