//! Directories that outlive sandboxes.

use airlock_tests::{Who, World, is_machine, not_applicable, who};
use serde_json::Value;
use std::{fs, os::unix::fs::MetadataExt as _};

/// `airlock volume inspect --json NAME`.
#[track_caller]
fn inspect(world: &World, name: &str) -> Value {
    let text = world.airlock(["volume", "inspect", "--json", name]).run().succeeded();
    serde_json::from_str(&text).unwrap()
}

fn names(world: &World) -> Vec<String> {
    let text = world.airlock(["volume", "ls", "-q"]).run().succeeded();
    text.lines().map(str::to_owned).collect()
}

/// Files of a user's ids are only deleted by airlock itself.
fn clear(world: &World) {
    let names = names(world);
    world.airlock(["volume", "rm"]).args(names).run().succeeded();
}

#[test]
fn what_one_sandbox_leaves_in_a_volume_the_next_finds() {
    let world = World::new();

    world.sh(["--volume", "data:/data"], "echo kept > /data/f; chmod 640 /data/f").run().succeeded();
    let script = "cat /data/f; stat -c '%u %a' /data/f; echo x > /data/g 2>/dev/null || echo read-only";
    let found = world.sh(["--volume", "data:/data:ro"], script).run().succeeded();

    assert_eq!(found, "kept\n0 640\nread-only\n");
    assert_eq!(names(&world), ["data"]);
    clear(&world);
}

#[test]
fn a_volume_is_shared_by_sandboxes_that_run_at_once() {
    let world = World::new();
    let reader =
        world.detached(["--volume", "pipe:/p"], "until [ -e /p/ready ]; do sleep 0.05; done; cat /p/ready");

    world.sh(["--volume", "pipe:/q"], "echo hello > /q/x && mv /q/x /q/ready").run().succeeded();
    world.airlock(["wait", &reader]).run();

    assert!(world.airlock(["logs", &reader]).run().succeeded().contains("hello"));
    world.airlock(["rm", &reader]).run().succeeded();
    clear(&world);
}

#[test]
fn a_volume_that_a_stopped_sandbox_uses_is_not_removed() {
    let world = World::new();
    world.airlock(["volume", "create", "data", "--label", "team=a"]).run().succeeded();
    world.sh(["--keep", "--name", "user", "--volume", "data:/data"], "true").run().succeeded();

    let refused = world.airlock(["volume", "rm", "data"]).run().failed(1);
    let known = inspect(&world, "data");
    world.airlock(["volume", "prune", "--force"]).run().succeeded();

    assert!(refused.contains("is used by user"), "{refused}");
    assert_eq!(
        (known["labels"]["team"].as_str(), known["used_by"][0]["sandbox"].as_str()),
        (Some("a"), Some("user"))
    );
    assert_eq!(names(&world), ["data"]);
    world.airlock(["rm", "user"]).run().succeeded();
    world.airlock(["volume", "prune", "--force"]).run().succeeded();
    assert!(names(&world).is_empty());
    world.airlock(["volume", "rm", "data"]).run().failed(3);
    world.airlock(["volume", "rm", "--force", "data"]).run().succeeded();
}

#[test]
fn prune_asks_and_keeps_what_a_project_keeps() {
    let world = World::new();
    world.airlock(["volume", "create", "spare"]).run().succeeded();
    world.sh(["--persist", "~/.cache"], "echo 1 > ~/.cache/n").run().succeeded();

    let refused = world.airlock(["volume", "prune"]).run().failed(4);
    world.airlock(["volume", "prune", "--force"]).run().succeeded();

    assert!(refused.contains("--force"), "{refused}");
    let left = names(&world);
    assert!(left.len() == 1 && left[0].starts_with("keep-work-cache-"), "{left:?}");
    world.airlock(["volume", "prune", "--force", "--all"]).run().succeeded();
    assert!(names(&world).is_empty());
}

#[test]
fn a_persisted_directory_is_the_projects_own() {
    let world = World::new();
    let other = world.aside("other");
    let script = "cat ~/.tool/n 2>/dev/null; echo next > ~/.tool/n";

    let first = world.sh(["--persist", "~/.tool"], script).run().succeeded();
    let second = world.sh(["--persist", "~/.tool"], script).run().succeeded();
    let elsewhere = world.sh(["--persist", "~/.tool"], script).dir(&other).run().succeeded();

    assert_eq!((first.as_str(), second.as_str(), elsewhere.as_str()), ("", "next\n", ""));
    let listed = world.airlock(["volume", "ls"]).run().succeeded();
    assert!(listed.contains(&format!("~/.tool of {}", world.work().display())), "{listed}");
    clear(&world);
}

#[test]
fn the_user_inside_owns_a_fresh_volume_whoever_that_is() {
    let world = World::new();
    for user in ["0", "1234:1234"] {
        let name = format!("v{}", &user[..1]);
        let flags = ["--user", user, "-e", "HOME=/tmp", "--volume", &format!("{name}:/v")];
        let owner = world.sh(flags, "echo x > /v/f && stat -c %u:%g /v/f").run().succeeded();
        assert_eq!(owner.trim(), if user == "0" { "0:0" } else { user });
    }
    clear(&world);
}

#[test]
fn ids_inside_are_the_same_in_every_sandbox() {
    if who() == Who::Single {
        return not_applicable("there is one id");
    }
    let world = World::new();
    world
        .sh(["--volume", "v:/v"], "echo x > /v/f; chown 33:34 /v/f; mkdir -m 700 /v/d; chown 7 /v/d")
        .run()
        .succeeded();

    for _ in 0..2 {
        let seen = world.sh(["--volume", "v:/v"], "stat -c %u:%g /v/f; stat -c %u /v/d").run().succeeded();
        assert_eq!(seen, "33:34\n7\n");
    }
    let known = inspect(&world, "v");
    assert_eq!(
        (known["entries"].as_u64(), known["size_is_complete"].as_bool()),
        (Some(2), Some(true)),
        "{known}"
    );
    if who() == Who::Ranges {
        let refused = world
            .sh(["--user", "1234:1234", "-e", "HOME=/tmp", "--volume", "v:/v"], "true")
            .run()
            .failed(125);
        assert!(refused.contains("would belong to others") && refused.contains("--user 0:0"), "{refused}");
    }
    clear(&world);
}

#[test]
fn files_of_a_volume_belong_to_nobody_that_could_use_them() {
    let world = World::new();
    let script = "echo x > /v/f; chmod 4755 /v/f; chmod 6755 /v/f; cp /bin/true /v/t; chmod u+s /v/t; \
                  mknod /v/d c 1 3 2>/dev/null; mkdir -m 2777 /v/m; stat -c %a /v/f /v/t; cat /v/d 2>/dev/null; true";
    world.sh(["--volume", "v:/v"], script).run();
    let files = world.home().join("volumes/v/data");

    for entry in fs::read_dir(&files).unwrap().flatten() {
        let found = entry.metadata().unwrap();
        assert_eq!(found.mode() & 0o6000, 0, "{:?}", entry.path());
        assert!(found.file_type().is_file() || found.file_type().is_dir(), "{:?}", entry.path());
        if who() == Who::Root {
            assert!(found.uid() > 0x7000_0000, "{:?} belongs to {}", entry.path(), found.uid());
        }
    }
    // All files of a machine are one mount to it.
    let mount = if is_machine() { "grep ' / ' /proc/mounts" } else { "grep ' /v ' /proc/mounts" };
    let options = world.sh(["--volume", "v:/v"], mount).run().succeeded();
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    clear(&world);
}

#[test]
fn the_projects_file_names_volumes_too() {
    let world = World::new();
    world.write("airlock.toml", "volume = [\"v:/v\"]\npersist = [\"~/.keep\"]\n");
    world.airlock(["trust", "--yes"]).run().succeeded();

    world.sh([], "echo a > /v/a; echo b > ~/.keep/b").run().succeeded();

    assert_eq!(world.sh([], "cat /v/a ~/.keep/b").run().succeeded(), "a\nb\n");
    clear(&world);
}

#[test]
fn what_cannot_be_a_volume_is_refused() {
    let world = World::new();
    for bad in ["/etc:/x", "../x:/x", "a b:/x", "v:/proc", "v:/", "v:x", "v:/a/../b", "v"] {
        let refused = world.sh(["--volume", bad], "true").run();
        assert!([2, 125].contains(&refused.code), "{bad}: {refused}");
    }
    assert_eq!(world.airlock(["volume", "create", "../x"]).run().code, 2);
    assert_eq!(world.airlock(["volume", "create", "v"]).run().code, 0);
    world.airlock(["volume", "create", "v"]).run().failed(1);
    clear(&world);
}
