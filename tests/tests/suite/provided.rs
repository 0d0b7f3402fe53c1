//! Programmable mounts: files that the keeper serves, as a person asks for them and a program sees them.

use airlock_tests::{Events, Who, World, eventually, skip, who};
use std::fs;

/// Whether this user may open the kernel's device.
fn can_serve() -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(err) = &opened {
        skip(&format!("/dev/fuse cannot be opened: {err}"));
    }
    opened.is_ok()
}

#[test]
fn memory_is_bounded_whatever_fills_it() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let script = "cd /m; df -k . | tail -1 | awk '{print $2}'
        head -c 2000000 /dev/zero > big 2>/dev/null || echo full; rm big
        i=0; while mkdir d$i 2>/dev/null; do i=$((i+1)); done; test $i -gt 500 && test $i -lt 5000 && echo bounded; rm -rf d*
        truncate -s 1T sparse && echo sparse; rm sparse; echo fits > f; cat f";
    let output = world.sh(["--workspace", "none", "--mount", "type=memory,dst=/m,size=1M"], script).run();
    assert_eq!(output.succeeded(), "1024\nfull\nbounded\nsparse\nfits\n");
}

#[test]
fn files_of_a_served_directory_are_its_owners_on_the_host() {
    if !can_serve() {
        return;
    }
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("in"), "from the host\n").unwrap();
    if who() == Who::Root {
        std::os::unix::fs::chown(&data, Some(4321), Some(4321)).unwrap();
        std::os::unix::fs::chown(data.join("in"), Some(4321), Some(4321)).unwrap();
        fs::write(data.join("roots"), "secret").unwrap();
        fs::set_permissions(data.join("roots"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let owner = data.metadata().unwrap().uid();
    let mount = format!("type=real,src={},dst=/m", data.display());

    let script = "cd /m; stat -c %u . in | sort -u; cat in; echo out > out; mkdir d; chmod 4755 out 2>/dev/null || echo refused
        test -e roots && { cat roots 2>/dev/null || echo closed; }; true";
    let output = world.sh(["--workspace", "none", "--mount", &mount], script).run().succeeded();

    let closed = if who() == Who::Root { "closed\n" } else { "" };
    assert_eq!(output, format!("0\nfrom the host\nrefused\n{closed}"));
    for name in ["out", "d"] {
        let made = data.join(name).metadata().unwrap();
        assert_eq!((made.uid(), made.mode() & 0o6000), (owner, 0), "{name}");
    }
}

#[test]
fn a_read_only_mount_cannot_be_written() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("a"), "text\n").unwrap();
    let mount = format!("type=readonly,src={},dst=/m", data.display());

    let script = "cat /m/a; for c in 'touch /m/b' 'rm /m/a' 'chmod 777 /m/a' 'mv /m/a /m/c' 'mkdir /m/d' 'truncate -s 0 /m/a'; do
        $c 2>/dev/null && echo \"$c worked\"; done; true";
    let output = world.sh(["--workspace", "none", "--mount", &mount], script).run().succeeded();

    assert_eq!(output, "text\n");
    assert_eq!(fs::read_to_string(data.join("a")).unwrap(), "text\n");
}

#[test]
fn an_overlay_leaves_its_lower_as_it_is_and_its_upper_keeps_what_changed() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let (lower, upper) = (world.aside("lower"), world.aside("upper"));
    fs::create_dir(lower.join("dir")).unwrap();
    for name in ["keep", "change", "remove", "dir/a"] {
        fs::write(lower.join(name), "old\n").unwrap();
    }
    let mount = format!("type=overlay,lower={},upper={},dst=/m", lower.display(), upper.display());
    let flags = ["--workspace", "none", "--mount", &mount];

    let script =
        "cd /m; echo new >> change; rm remove; rm -r dir; mkdir dir; echo b > dir/b; mv keep kept; ls -R";
    let first = world.sh(flags, script).run().succeeded();
    let second = world.sh(flags, "cd /m; ls -R; cat change kept").run().succeeded();

    assert_eq!(first, ".:\nchange\ndir\nkept\n\n./dir:\nb\n");
    assert_eq!(second, format!("{first}old\nnew\nold\n"));
    for name in ["keep", "change", "remove", "dir/a"] {
        assert_eq!(fs::read_to_string(lower.join(name)).unwrap(), "old\n", "{name}");
    }
}

#[test]
fn a_router_and_hooks_stand_in_the_projects_file() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("open"), "fine\n").unwrap();
    fs::write(data.join("id.key"), "secret\n").unwrap();
    let config = format!(
        "workspace = \"none\"\n[[provided]]\ntarget = \"/m\"\n\
         provider = {{ type = \"router\", routes = [\n\
         {{ path = \"deep/data\", provider = {{ type = \"real\", source = \"{}\" }} }},\n\
         {{ path = \"scratch\", provider = {{ type = \"memory\", size = \"1M\" }} }} ] }}\n\
         hooks = [{{ paths = \"**/*.key\", on = [\"open\", \"rename\"], do = \"deny\" }}]\n",
        data.display()
    );
    let file = world.write("mounts.toml", config);
    let config = file.to_str().unwrap();

    let script = "cd /m; ls; ls deep; cat deep/data/open; cat deep/data/id.key 2>&1 | sed 's/.*: //'
        ln deep/data/id.key deep/data/x 2>/dev/null || echo no link; mv deep/data/id.key deep/data/x 2>/dev/null || echo no rename
        echo s > scratch/s; mv scratch/s deep/data/s && cat deep/data/s; touch new 2>/dev/null || echo fixed";
    let id = world.airlock(["run", "-d", "--config", config, "--", "sh", "-c", script]).run().succeeded();
    world.airlock(["wait", id.trim()]).run().succeeded();

    let output = world.airlock(["logs", id.trim()]).run().succeeded();
    let expected = "deep\nscratch\ndata\nfine\nPermission denied\nno link\nno rename\ns\nfixed\n";
    assert_eq!(output, expected);
    let ledger = world.airlock(["ledger", id.trim()]).run().succeeded();
    assert!(ledger.contains("open /m/deep/data/id.key"), "{ledger}");
}

#[test]
fn a_mount_of_the_persons_own_settings_is_in_every_sandbox() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    world.airlock(["ls"]).run().succeeded();
    let settings = "[[provided]]\ntarget = \"/scratch\"\nprovider = { type = \"memory\", size = \"1M\" }\n";
    fs::write(world.home().join("config.toml"), settings).unwrap();

    let seen = world.sh(["--workspace", "none"], "df -k /scratch | tail -1 | awk '{print $2}'").run();
    assert_eq!(seen.succeeded(), "1024\n");
}

#[test]
fn mounts_come_and_go_while_it_runs_and_the_ledger_says_so() {
    let world = World::new();
    let data = world.aside("data");
    fs::write(data.join("a"), "text\n").unwrap();
    let id = world.detached(["--workspace", "none"], "sleep 600");
    let source = format!("{}:/data:ro", data.display());

    world.airlock(["mount", &id, &source]).run().succeeded();
    let seen = world.exec(&id, "cat /data/a; touch /data/b 2>/dev/null || echo read-only").run().succeeded();
    world.airlock(["unmount", &id, "/data"]).run().succeeded();
    let after = world.exec(&id, "ls /data | wc -l").run().succeeded();

    assert_eq!((seen.as_str(), after.as_str()), ("text\nread-only\n", "0\n"));
    let ledger = world.airlock(["ledger", &id]).run().succeeded();
    assert!(ledger.contains("mount ") && ledger.contains("unmount /data"), "{ledger}");
    world.airlock(["unmount", &id, "/data"]).run().failed(1);
    world.airlock(["mount", &id, "/etc:/data"]).run().failed(125);
    world.airlock(["mount", &id, &format!("{}:/proc/x", data.display())]).run().failed(125);
}

#[test]
fn served_mounts_come_and_go_while_it_runs() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let id = world.detached(["--workspace", "none"], "sleep 600");

    world.airlock(["mount", &id, "type=memory,dst=/m,size=1M"]).run().succeeded();
    let seen = world.exec(&id, "echo x > /m/a; cat /m/a; stat -f -c %T /m").run().succeeded();
    world.airlock(["unmount", &id, "/m"]).run().succeeded();
    let after = world.exec(&id, "ls /m | wc -l").run().succeeded();

    assert_eq!((seen.as_str(), after.as_str()), ("x\nfuseblk\n", "0\n"));
}

#[test]
fn a_served_mount_ends_with_its_sandbox_and_starts_anew() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let script = "test -e /m/a && echo there; echo x > /m/a; cat /m/a; sleep 600";
    let id = world.detached(["--workspace", "none", "--mount", "type=memory,dst=/m"], script);
    let logged = |text: &str| {
        eventually("the program's output", || {
            let logs = world.airlock(["logs", &id]).run().succeeded();
            (logs == text).then_some(())
        });
    };
    logged("x\n");
    world.airlock(["stop", "-t", "0s", &id]).run().succeeded();
    world.airlock(["start", &id]).run().succeeded();
    logged("x\nx\n");
}

#[test]
fn what_would_lie_in_a_served_mount_is_refused() {
    let world = World::new();
    if !can_serve() {
        return;
    }
    let flags = ["--workspace", "none", "--mount", "type=memory,dst=/m", "--tmpfs", "/m/t"];
    let refused = world.sh(flags, "true").run().failed(125);
    assert!(refused.contains("router"), "{refused}");
}

#[test]
fn a_served_mount_goes_with_its_keeper_and_nobody_waits_for_it() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let mount = format!("type=real,src={},dst=/m", world.aside("data").display());
    let script = "while :; do echo x >/m/a; cat /m/a >/dev/null; done";
    let id = world.detached(["--workspace", "none", "--mount", &mount, "--keep"], script);
    let written = world.aside("data").join("a");
    eventually("it writes", || written.exists().then_some(()));
    let state = world.state(&id);
    let keeper = state["keeper_pid"].as_u64().expect("a keeper").to_string();
    let init = state["init_pid"].as_u64().expect("a first process");

    assert!(std::process::Command::new("kill").args(["-9", &keeper]).status().unwrap().success());

    eventually("every process of it is gone", || {
        let told = fs::read_to_string(format!("/proc/{init}/stat")).unwrap_or_default();
        (told.is_empty() || told.contains(") Z ")).then_some(())
    });
    assert_eq!(world.state(&id)["status"], "crashed");
    world.airlock(["start", &id]).run().succeeded();
    fs::remove_file(&written).unwrap();
    eventually("it writes again", || written.exists().then_some(()));
}

#[test]
fn many_refusals_are_fewer_lines_of_the_ledger() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let settings = "workspace = \"none\"\n[[provided]]\ntarget = \"/m\"\nprovider = { type = \"memory\" }\n\
        hooks = [{ paths = \"**/*.key\", on = [\"create\"], do = \"deny\" }]\n";
    let file = world.write("mounts.toml", settings);
    let script = "import os
def refused(name):
    try: os.open(name, os.O_CREAT | os.O_WRONLY)
    except PermissionError: return 1
    return 0
print(sum(refused('/m/same.key') for _ in range(3000)) + sum(refused(f'/m/{n}.key') for n in range(3000)))";
    let config = file.to_str().expect("a plain path");
    let run = ["run", "-d", "--keep", "--config", config, "--", "python3", "-c", script];
    let id = world.airlock(run).run().succeeded();
    world.airlock(["wait", id.trim()]).run().succeeded();

    assert_eq!(world.airlock(["logs", id.trim()]).run().succeeded(), "6000\n");
    let ledger = world.airlock(["ledger", id.trim()]).run().succeeded();
    let lines = ledger.lines().filter(|line| line.contains(" /m/")).count();
    assert!(ledger.contains("create /m/same.key"), "{ledger}");
    assert!((2..3001).contains(&lines), "{lines} lines for 6000 refusals");
}

#[test]
fn what_is_done_to_files_is_told_to_whoever_watches_and_alike_as_one() {
    if !can_serve() {
        return;
    }
    let world = World::new();
    let settings = "workspace = \"none\"\n[[provided]]\ntarget = \"/m\"\nprovider = { type = \"memory\" }\n\
        hooks = [{ paths = \"told/**\", on = [\"create\", \"write\", \"remove\"], do = \"tell\" }]\n";
    let file = world.write("mounts.toml", settings);
    let config = file.to_str().expect("a plain path");
    let id = world.airlock(["run", "-d", "--config", config, "--", "sleep", "600"]).run().succeeded();
    let mut events = Events::of(&world, id.trim());

    let script = "mkdir /m/told /m/other; echo x >/m/other/a
        i=0; while test $i -lt 300; do echo x >>/m/told/a; i=$((i+1)); done; rm /m/told/a";
    world.exec(id.trim(), script).run().succeeded();

    let (mut count, mut written, mut others) = (0, 0, Vec::new());
    while written < 300 || !others.iter().any(|touch| touch == "remove") {
        let event = events.until(|event| event["event"] == "file");
        assert_eq!(
            (event["mount"].as_str(), event["path"].as_str()),
            (Some("/m"), Some("told/a")),
            "{event}"
        );
        count += 1;
        match event["touch"].as_str() {
            Some("write") => written += event["times"].as_u64().expect("a count"),
            touch => others.push(touch.unwrap_or_default().to_owned()),
        }
    }
    assert_eq!((written, others.as_slice()), (300, &["create".to_owned(), "remove".to_owned()][..]));
    assert!(count < 150, "{count} events for 302 touches");
}
