//! Snapshots, forks, archives, and sandboxes that stand still.

use airlock_tests::{Who, World, eventually, not_applicable, who};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path, process::Command};

/// Flags of a sandbox that sees nothing of the host's projects.
const ALONE: [&str; 3] = ["--workspace", "none", "--keep"];

/// A stopped sandbox that ran this.
fn stopped(world: &World, name: &str, script: &str) {
    world.sh(ALONE.into_iter().chain(["--name", name]), script).run().succeeded();
}

/// A stopped sandbox goes on with another command, whose output is given.
fn goes_on(world: &World, source: &str, script: &str) -> String {
    let id = world.airlock(["fork", source, "--start", "--", "sh", "-c", script]).run().succeeded();
    let id = id.trim_end().to_owned();
    world.airlock(["wait", &id]).run().succeeded();
    world.airlock(["logs", &id]).run().stdout
}

fn layers(world: &World) -> Vec<String> {
    let entries = fs::read_dir(world.home().join("layers")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name != "lock");
    names
}

#[test]
fn a_fork_has_the_files_of_a_stopped_sandbox_and_each_goes_its_own_way() {
    let world = World::new();
    stopped(
        &world,
        "web",
        "echo one >/root/file; mkdir /root/old; echo x >/root/old/x; echo t >/var/tmp/t; chmod 701 /tmp",
    );

    let made = world.airlock(["fork", "web", "-n", "2"]).run().succeeded();

    assert_eq!(made.lines().count(), 2, "{made}");
    let look = "cat /root/file /var/tmp/t; ls /root/old; stat -c %a /tmp /var/tmp; hostname; echo two >>/root/file; rm /root/old/x";
    assert_eq!(goes_on(&world, "web-1", look), "one\nt\nx\n701\n1777\nweb-1-1\n");
    let other = "cat /root/file; ls /root/old";
    assert_eq!(goes_on(&world, "web-2", other), "one\nx\n");
    assert_eq!(goes_on(&world, "web", other), "one\nx\n");
    assert_eq!(goes_on(&world, "web-1-1", "cat /root/file; ls /root/old"), "one\ntwo\n");
}

#[test]
fn the_source_itself_goes_on_with_its_files_after_a_fork() {
    let world = World::new();
    stopped(&world, "web", "echo run >>/root/runs; cat /root/runs");
    world.airlock(["fork", "web"]).run().succeeded();

    for runs in 2..4 {
        world.airlock(["start", "web"]).run().succeeded();
        world.airlock(["wait", "web"]).run().succeeded();
        let text = world.airlock(["logs", "web"]).run().stdout;
        assert!(text.ends_with(&"run\n".repeat(runs)), "{text}");
        world.airlock(["fork", "web"]).run().succeeded();
    }
}

#[test]
fn owners_modes_and_attributes_are_those_inside_whatever_the_ids_outside() {
    let world = World::new();
    let many = who() != Who::Single;
    let owner = if many { "33:44" } else { "0:0" };
    stopped(
        &world,
        "web",
        &format!(
            "touch /root/f; chown {owner} /root/f; chmod 640 /root/f; ln -s f /root/l; ln /root/f /root/g"
        ),
    );

    let look = "stat -c '%u:%g %a %h' /root/f; readlink /root/l; touch /root/f && stat -c %u:%g /root/f";
    let forked = goes_on(&world, "web", look);

    assert_eq!(forked, format!("{owner} 640 2\nf\n{owner}\n"));
    if who() == Who::Root {
        let ids = |name: &str| world.state(name)["id_map"][0]["outside"].as_u64().unwrap();
        assert_ne!(ids("web"), ids("web-1"), "two sandboxes of host root share no ids");
    }
}

#[test]
fn deleted_files_of_the_host_and_of_layers_stay_deleted() {
    if who() != Who::Root {
        return not_applicable("the system is read-only for an ordinary user");
    }
    let world = World::new();
    stopped(
        &world,
        "web",
        "rm -rf /usr/share/doc; mkdir /usr/share/doc; echo a >/usr/share/doc/a; rm /etc/issue; useradd -m joe",
    );
    let look = "ls /usr/share/doc; ls /etc/issue 2>&1 | wc -l; grep -c ^joe: /etc/passwd; cat /etc/hostname; rm /usr/share/doc/a";

    assert_eq!(goes_on(&world, "web", look), "a\n1\n1\nweb-1\n");
    assert_eq!(goes_on(&world, "web-1", "ls /usr/share/doc; test -e /etc/issue || echo gone"), "gone\n");
}

#[test]
fn layers_go_with_the_last_who_names_them() {
    let world = World::new();
    stopped(&world, "web", "echo one >/root/file");
    world.airlock(["fork", "web"]).run().succeeded();
    let kept = world.airlock(["snapshot", "web", "--name", "kept"]).run().succeeded();
    assert_eq!((kept.as_str(), layers(&world).len()), ("kept\n", 1));

    world.airlock(["rm", "web", "web-1"]).run().succeeded();
    assert_eq!(layers(&world).len(), 1, "the snapshot has it");
    assert_eq!(goes_on(&world, "kept", "cat /root/file"), "one\n");
    world.airlock(["rm", "web-1"]).run().succeeded();
    world.airlock(["snapshot", "rm", "kept"]).run().succeeded();

    assert_eq!(layers(&world), Vec::<String>::new());
    assert_eq!(world.airlock(["snapshot", "ls", "-q"]).run().succeeded(), "");
}

#[test]
fn snapshots_are_listed_told_and_their_names_are_used_once() {
    let world = World::new();
    stopped(&world, "web", "true");
    world.airlock(["snapshot", "web", "--name", "s"]).run().succeeded();

    let again = world.airlock(["snapshot", "web", "--name", "s"]).run().failed(125);
    let listed = world.airlock(["snapshot", "ls", "--json"]).run().succeeded();
    let facts: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let table = world.airlock(["snapshot", "ls"]).run().succeeded();
    let told = world.airlock(["snapshot", "inspect", "s"]).run().succeeded();

    assert!(again.contains("the name s is taken") && again.contains("\n  fix:  "), "{again}");
    assert_eq!((&facts["name"], &facts["sandbox_name"]), (&"s".into(), &"web".into()));
    assert!(table.starts_with("NAME") && table.contains("web ("), "{table}");
    assert!(told.contains("\"spec\""), "{told}");
    for verb in [&["fork", "nothing"][..], &["snapshot", "rm", "nothing"], &["export", "nothing", "-o", "x"]]
    {
        assert!(world.airlock(verb).run().failed(3).contains("\n  fix:  "));
    }
}

#[test]
fn a_running_sandbox_is_copied_as_it_stands_and_goes_on() {
    let world = World::new();
    let script = "echo a >/root/a; ln /root/a /root/b; truncate -s 1G /root/hole; mkfifo /root/p; while :; do date +%N >/root/now; done";
    world.detached(["--name", "live", "--workspace", "none"], script);
    eventually("its files", || {
        world.exec("live", "test -p /root/p && test -s /root/now").run().code.eq(&0).then_some(())
    });

    let seen = goes_on(
        &world,
        "live",
        "stat -c %h /root/a; du -m /root/hole | cut -f1; test -p /root/p && echo pipe",
    );

    assert_eq!(seen, "2\n0\npipe\n");
    assert_eq!(world.state("live")["status"], "running");
    let now = || world.exec("live", "cat /root/now").run().stdout;
    let then = now();
    eventually("it goes on", || (now() != then).then_some(()));
}

#[test]
fn a_paused_sandbox_can_be_forked_stopped_and_killed_but_runs_nothing() {
    let world = World::new();
    let forever = "echo x >/root/x; exec sleep 100000";
    for (name, end) in [("one", "stop"), ("two", "kill")] {
        world.detached(["--name", name, "--workspace", "none"], forever);
        world.airlock(["pause", name]).run().succeeded();

        let refused = world.exec(name, "true").run().failed(125);
        assert!(refused.contains("is frozen") && refused.contains("airlock resume"), "{refused}");
        world.airlock(["fork", name]).run().succeeded();
        assert_eq!(world.state(name)["status"], "paused", "a copy leaves it as it was");
        world.airlock([end, name]).run().succeeded();

        world.airlock(["wait", name]).run().succeeded();
        assert_eq!(world.state(name)["status"], "stopped");
        assert_eq!(goes_on(&world, &format!("{name}-1"), "cat /root/x"), "x\n");
    }
    let not = world.airlock(["resume", "one"]).run().failed(1);
    assert!(not.contains("is not running"), "{not}");
}

#[test]
fn an_archive_makes_the_same_files_again() {
    let world = World::new();
    let long = "d".repeat(120);
    let script = format!(
        "mkdir -p /root/{long}/{long}; echo deep >/root/{long}/{long}/f; echo t >/var/tmp/t; ln -s /etc/passwd /root/l; \
         cp /bin/true /root/su; chmod 4755 /root/su 2>/dev/null; truncate -s 8M /root/hole; rm -f /root/.bashrc"
    );
    stopped(&world, "web", &script);
    world
        .airlock([
            "fork",
            "web",
            "--name",
            "two",
            "--start",
            "--",
            "sh",
            "-c",
            "rm /root/l; echo new >/root/new",
        ])
        .run()
        .succeeded();
    world.airlock(["wait", "two"]).run().succeeded();
    let file = world.aside("archives").join("two.tar");

    world.airlock(["export", "two", "-o"]).args([&file]).run().succeeded();
    let size = fs::metadata(&file).unwrap().size();
    let id = world.airlock(["import"]).args([&file]).args(["--name", "three"]).run().succeeded();

    assert!(size < 5 << 20, "{size}");
    assert_eq!(world.state("three")["status"], "stopped");
    assert_eq!(world.state("three")["id"], id.trim_end());
    let look = format!(
        "cat /root/{long}/{long}/f /root/new /var/tmp/t; test -L /root/l || echo gone; stat -c '%a %s' /root/su | cut -c1-3; stat -c %s /root/hole"
    );
    assert_eq!(goes_on(&world, "three", &look), "deep\nnew\nt\ngone\n755\n8388608\n");
    assert_eq!(world.airlock(["snapshot", "ls", "-q"]).run().succeeded(), "", "the export has let go");
}

#[test]
fn an_archive_goes_through_pipes() {
    let world = World::new();
    stopped(&world, "web", "echo piped >/root/file");
    let bytes = {
        let mut command = world.airlock(["export", "web"]).into_command();
        command.output().unwrap().stdout
    };

    let file = world.aside("archives").join("piped.tar");
    fs::write(&file, &bytes).unwrap();
    let made = Command::new("sh")
        .args(["-c", &format!("cat {} | \"$0\" import - --name again", file.display())])
        .arg(airlock_tests::binary())
        .env("AIRLOCK_HOME", world.home())
        .output()
        .unwrap();

    assert!(made.status.success(), "{made:?}");
    assert_eq!(goes_on(&world, "again", "cat /root/file"), "piped\n");
    let listed = Command::new("tar").arg("tf").arg(&file).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.starts_with("oci-layout\nindex.json\nblobs/sha256/"), "{listed}");
}

#[test]
fn a_changed_archive_is_refused_and_leaves_nothing() {
    let world = World::new();
    stopped(&world, "web", "head -c 300000 /dev/urandom >/root/noise");
    let file = world.aside("archives").join("web.tar");
    world.airlock(["export", "web", "-o"]).args([&file]).run().succeeded();
    world.airlock(["rm", "web"]).run().succeeded();
    let good = fs::read(&file).unwrap();
    let sandboxes = world.sandboxes().len();

    for at in [1600, good.len() / 3, good.len() / 2] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&file, &bad).unwrap();
        let refused = world.airlock(["import"]).args([&file]).run().failed(125);
        assert!(refused.contains("cannot be imported") && refused.contains("why:"), "{at}: {refused}");
    }
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    world.airlock(["import"]).args([&file]).run().failed(125);
    fs::write(&file, "no archive").unwrap();
    world.airlock(["import"]).args([&file]).run().failed(125);
    fs::write(&file, &good).unwrap();
    let bounded = world.airlock(["import", "--most", "100K"]).args([&file]).run().failed(125);
    assert!(bounded.contains("more than it may"), "{bounded}");

    assert_eq!(world.sandboxes().len(), sandboxes);
    world.airlock(["prune"]).run().succeeded();
    assert_eq!(layers(&world), Vec::<String>::new());
    world.airlock(["import"]).args([&file]).run().succeeded();
}

#[test]
fn no_certificate_secret_rule_or_variable_is_in_an_archive() {
    let world = World::new();
    let mount = format!("{}:/mnt/doc:ro", world.aside("shown").display());
    let flags = [
        "--allow",
        "GET https://api.example.com/**",
        "--env",
        "COLOUR=hidden-word",
        "--mount",
        &mount,
        "--secret",
        "TOKEN@api.example.com",
    ];
    let run = world.sh(
        ALONE.into_iter().chain(["--name", "web"]).chain(flags),
        "echo x >/root/x; cat /etc/ssl/certs/ca-certificates.crt | head -1",
    );
    run.env("TOKEN", "ghp_0123456789abcdefghijklmnopqrstuvwxyz").run().succeeded();
    let file = world.aside("archives").join("web.tar");
    world.airlock(["export", "web", "-o"]).args([&file]).run().succeeded();

    let place = world.aside("unpacked");
    let unpacked = Command::new("tar").arg("xf").arg(&file).arg("-C").arg(&place).status().unwrap();
    assert!(unpacked.success());
    let mut all = fs::read_to_string(place.join("index.json")).unwrap();
    for blob in fs::read_dir(place.join("blobs/sha256")).unwrap() {
        let bytes = fs::read(blob.unwrap().path()).unwrap();
        let plain = zstd::decode_all(bytes.as_slice()).unwrap_or(bytes);
        all.push_str(&String::from_utf8_lossy(&plain));
    }

    assert!(all.contains("root/x"), "the file itself is there");
    for absent in [
        "BEGIN CERTIFICATE",
        "ghp_",
        "TOKEN",
        "api.example.com",
        "hidden-word",
        "COLOUR",
        "resolv.conf",
        "etc/passwd",
        "/mnt/doc",
    ] {
        assert!(!all.contains(absent), "{absent} is in the archive");
    }
}

#[test]
fn an_imported_sandbox_may_reach_see_and_have_nothing() {
    let world = World::new();
    let mount = format!("{}:/mnt/doc:ro", world.aside("shown").display());
    let flags = ["--allow", "api.example.com", "--mount", &mount, "--publish", "0:80"];
    world.sh(ALONE.into_iter().chain(["--name", "web"]).chain(flags), "true").run().succeeded();
    let file = world.aside("archives").join("web.tar");
    world.airlock(["export", "web", "-o"]).args([&file]).run().succeeded();

    world.airlock(["import"]).args([&file]).args(["--name", "in"]).run().succeeded();

    let spec = world.state("in")["spec"].clone();
    assert_eq!(spec["workspace"]["mode"], "none");
    for empty in ["mounts", "publish", "cap_add"] {
        assert_eq!(spec[empty].as_array().map(Vec::len), Some(0), "{empty}: {spec}");
    }
    assert_eq!(spec["policy"]["rules"].as_array().map_or(0, Vec::len), 0, "{spec}");
}

#[test]
fn a_fork_killed_at_any_moment_loses_nothing() {
    let world = World::new();
    stopped(&world, "web", "echo precious >/root/file");

    for round in 0..60u64 {
        let mut fork = world.airlock(["fork", "web", "-n", "3"]).into_command();
        let mut fork = fork.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 150));
        fork.kill().unwrap();
        fork.wait().unwrap();
        if round % 10 == 9 {
            assert_eq!(goes_on(&world, "web", "cat /root/file"), "precious\n", "round {round}");
            world.airlock(["prune"]).run();
            stopped(&world, "web", "echo precious >/root/file");
        }
    }
}

#[test]
fn what_a_reboot_leaves_is_stopped_and_starts_again_with_its_files() {
    let world = World::new();
    world.detached(["--name", "web", "--workspace", "none"], "echo run >>/root/runs; exec sleep 100000");
    world.airlock(["fork", "web"]).run().succeeded();
    let state = world.state("web");
    let keeper = state["keeper_pid"].as_u64().unwrap();
    Command::new("kill").args(["-9", &keeper.to_string()]).status().unwrap();
    eventually("its keeper is dead", || (world.state("web")["status"] == "crashed").then_some(()));
    // A pid that means another process now, and control groups that are gone.
    let path = world.home().join("sandboxes").join(state["id"].as_str().unwrap()).join("state.json");
    let mut told: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    told["status"] = "running".into();
    told["keeper_pid"] = std::process::id().into();
    told["init_pid"] = 1.into();
    told["cgroups"] = serde_json::json!(["/sys/fs/cgroup/no-such-group/airlock-x"]);
    fs::write(&path, told.to_string()).unwrap();
    let before = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();

    let state = world.state("web");
    assert_eq!(
        (&state["status"], &state["exit"]["cause"]["cause"]),
        (&"stopped".into(), &"host_rebooted".into())
    );
    assert!(world.airlock(["ls", "--all"]).run().succeeded().contains("host rebooted"));
    world.airlock(["start", "web"]).run().succeeded();

    eventually("it ran again", || {
        (world.exec("web", "cat /root/runs").run().stdout == "run\nrun\n").then_some(())
    });
}

#[test]
fn a_bounded_disk_is_forked_by_a_copy() {
    if who() != Who::Root {
        return not_applicable("only host root has a disk of its own");
    }
    let world = World::new();
    world
        .sh(ALONE.into_iter().chain(["--name", "web", "--disk", "64M"]), "echo x >/root/x")
        .run()
        .succeeded();

    assert_eq!(goes_on(&world, "web", "cat /root/x; df -m / | tail -1 | awk '{print ($2 < 70)}'"), "x\n1\n");
}

#[test]
fn a_bounded_disk_is_forked_while_its_sandbox_runs() {
    if who() != Who::Root {
        return not_applicable("only host root has a disk of its own");
    }
    let world = World::new();
    let program = "echo x >/root/x; echo y >y; exec sleep 100000";
    world.detached(["--name", "live", "--disk", "64M"], program);
    eventually("it wrote", || world.exec("live", "cat /root/x y").run().stdout.contains('y').then_some(()));

    assert_eq!(
        goes_on(&world, "live", "cat /root/x y; df -m / | tail -1 | awk '{print ($2 < 70)}'"),
        "x\ny\n1\n"
    );
    // What is written afterwards is its own, and its disk is free again when it has stopped.
    world.exec("live", "echo z >/root/x").run().succeeded();
    world.airlock(["stop", "live"]).run().succeeded();
    assert_eq!(goes_on(&world, "live", "cat /root/x"), "z\n");
}

#[test]
fn a_disk_in_memory_is_not_kept_and_whoever_asks_is_told_why() {
    let world = World::new();
    let program = "echo x >/tmp/x; echo ready; sleep 600";
    let id = world.detached(ALONE.into_iter().chain(["--disk", "16M,tmpfs"]), program);
    eventually("the program", || (world.airlock(["logs", &id]).run().succeeded() == "ready\n").then_some(()));

    for asked in [["snapshot", &id], ["fork", &id]] {
        let refused = world.airlock(asked).run().failed(125);
        assert!(refused.contains("it is in memory (--disk SIZE,tmpfs)"), "{refused}");
    }
    assert_eq!(world.exec(&id, "cat /tmp/x").run().succeeded(), "x\n");
}

#[test]
fn a_disk_with_as_many_layers_as_it_may_have_is_told_so() {
    let world = World::new();
    stopped(&world, "web", "echo run >>/root/runs");
    for _ in 0..20 {
        world.airlock(["snapshot", "web"]).run().succeeded();
        world.airlock(["start", "web"]).run().succeeded();
        world.airlock(["wait", "web"]).run().succeeded();
    }

    assert_eq!(goes_on(&world, "web", "wc -l </root/runs"), "21\n");
    assert!(Path::new(&world.home().join("layers")).exists());
    world.airlock(["rm", "web", "web-1"]).run().succeeded();
    let snapshots = world.airlock(["snapshot", "ls", "-q"]).run().succeeded();
    world.airlock(["snapshot", "rm"]).args(snapshots.lines()).run().succeeded();
    assert_eq!(layers(&world), Vec::<String>::new());
}

#[test]
fn a_fork_sees_the_project_with_the_changes_so_far_and_each_has_its_own_from_then_on() {
    let world = World::new();
    world.write("kept", "host\n");
    world.write("changed", "host\n");
    world.write("gone", "host\n");
    let script = "echo inside >changed; rm gone; echo new >new; mkdir dir; echo x >dir/x";
    world.sh(["--keep", "--name", "web", "--workspace", "cow"], script).run().succeeded();

    let look = "cat kept changed new dir/x; ls gone 2>/dev/null; echo more >>new; rm -r dir";
    assert_eq!(goes_on(&world, "web", look), "host\ninside\nnew\nx\n");
    assert_eq!(goes_on(&world, "web-1", "cat new; ls dir 2>/dev/null"), "new\nmore\n");
    assert_eq!(goes_on(&world, "web", "cat new; ls dir"), "new\nx\n");
    assert_eq!(world.read("changed"), "host\n");
    assert!(world.work().join("gone").exists() && !world.work().join("new").exists());
    // Whoever has the changes last loses them.
    world.airlock(["rm", "--force", "web-1", "web-1-1", "web-2"]).run().succeeded();
    let refused = world.airlock(["rm", "web"]).run().failed(1);
    assert!(refused.contains("not applied"), "{refused}");
}

#[test]
fn changes_that_lie_in_layers_are_reviewed_and_discarded_for_each_sandbox_by_itself() {
    let world = World::new();
    world.write("changed", "host\n");
    world.write("gone", "host\n");
    world
        .sh(["--keep", "--name", "web", "--workspace", "cow"], "echo inside >changed; rm gone; echo new >new")
        .run()
        .succeeded();
    world.airlock(["fork", "web", "--name", "idle"]).run().succeeded();
    let diff = |name: &str| world.airlock(["diff", "--name-only", name]).run().stdout;

    assert_eq!((diff("idle"), diff("web")), ("changed\ngone\nnew\n".to_owned(), diff("idle")));
    let one = world.airlock(["discard", "--yes", "idle", "new"]).run().failed(1);
    assert!(one.contains("shared"), "{one}");
    world.airlock(["discard", "--yes", "idle"]).run().succeeded();

    assert_eq!((diff("idle").as_str(), diff("web").as_str()), ("", "changed\ngone\nnew\n"));
    assert_eq!(goes_on(&world, "idle", "cat changed gone; ls new 2>/dev/null"), "host\nhost\n");
    world.airlock(["apply", "web"]).run().succeeded();
    assert_eq!((world.read("changed").as_str(), world.work().join("gone").exists()), ("inside\n", false));
    assert_eq!(diff("web"), "");
}

#[test]
fn a_running_copy_of_the_project_is_forked_too_and_carried() {
    let world = World::new();
    world.write("file", "host\n");
    world.detached(
        ["--name", "live", "--workspace", "cow"],
        "echo inside >file; echo new >new; exec sleep 100000",
    );
    eventually("its files", || world.exec("live", "test -s new").run().code.eq(&0).then_some(()));

    assert_eq!(goes_on(&world, "live", "cat file new"), "inside\nnew\n");
    let file = world.aside("archives").join("live.tar");
    world.airlock(["export", "live-1", "-o"]).args([&file]).run().succeeded();
    let other = world.aside("other");
    fs::write(other.join("file"), "other\n").unwrap();
    fs::write(other.join("own"), "own\n").unwrap();
    world
        .airlock(["import"])
        .args([&file])
        .args([Path::new("--workspace"), &other])
        .args(["--name", "in"])
        .run()
        .succeeded();

    assert_eq!(goes_on(&world, "in", "cat file new own"), "inside\nnew\nown\n");
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "other\n");
}
