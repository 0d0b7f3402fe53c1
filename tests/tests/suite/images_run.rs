//! Sandboxes made of images: what the image says of how it is run, and everything else that works with the host's own system.

use airlock_tests::{
    Who, World, eventually,
    images::{Image, Layer},
    registry::Registry,
    who,
};
use serde_json::json;
use std::{fs, os::unix::fs::PermissionsExt as _};

/// Flags of a sandbox that sees nothing of the host's projects.
const ALONE: [&str; 2] = ["--workspace", "none"];

/// Loads an image.
fn load(world: &World, image: &Image, name: &str) {
    let archive = image.clone().named(name).docker_archive(&world.aside("images").join("image.tar"));
    world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
}

/// A world with a busybox that has one more layer, and is run as `configured` says.
fn with(configured: impl Fn(Image) -> Image) -> Option<World> {
    let world = World::new();
    let layer = Layer::new()
        .directory("app", 0o755)
        .directory("data", 0o755)
        .file("data/file", 0o644, b"of the image\n")
        .file("etc/second", 0o644, b"second\n");
    load(&world, &configured(Image::busybox()?.layer(layer)), "bb:1");
    Some(world)
}

fn plain() -> Option<World> {
    with(|image| image)
}

fn in_image<'a>(flags: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    ["--image", "bb:1"].into_iter().chain(flags).collect()
}

#[test]
fn an_image_is_the_root_and_the_host_is_not() {
    let Some(world) = plain() else { return };
    let script =
        "cat /etc/second; ls /etc; test -e /usr/lib || echo no host; echo x >/new; rm /etc/second; ls /new";

    let said = world.sh(in_image(ALONE), script).run().succeeded();

    assert_eq!(said, "second\ngroup\nhostname\nhosts\npasswd\nresolv.conf\nsecond\nno host\n/new\n");
    let again = world.sh(in_image(ALONE), "cat /etc/second; ls /new 2>&1").run();
    assert!(again.stdout.starts_with("second\n"), "{again}");
}

#[test]
fn the_image_says_how_it_is_run_unless_somebody_says_otherwise() {
    let Some(world) = with(|image| {
        image
            .configured("Entrypoint", json!(["sh", "-c"]))
            .configured("Cmd", json!(["id -un; pwd; echo $GREETING $HOME $HOSTNAME"]))
            .configured("User", json!("ada"))
            .configured("WorkingDir", json!("/app"))
            .configured("Env", json!(["PATH=/bin", "GREETING=hello"]))
    }) else {
        return;
    };
    let run = |flags: &[&str]| {
        let flags = in_image(["--name", "x"].into_iter().chain(ALONE).chain(flags.iter().copied()));
        world.airlock(["run"]).args(flags).run().succeeded()
    };

    assert_eq!(run(&[]), "ada\n/app\nhello /home/ada x\n");
    assert_eq!(run(&["--", "echo typed"]), "typed\n");
    assert_eq!(run(&["--entrypoint", "", "--", "echo", "alone"]), "alone\n");
    assert_eq!(run(&["--entrypoint", "echo", "--", "other"]), "other\n");
    assert_eq!(run(&["-u", "root", "-w", "/data", "-e", "GREETING=hi"]), "root\n/data\nhi /root x\n");
}

#[test]
fn a_command_that_is_typed_starts_in_the_workspace_and_the_images_own_in_its_directory() {
    let Some(world) =
        with(|image| image.configured("Cmd", json!(["pwd"])).configured("WorkingDir", json!("/app")))
    else {
        return;
    };
    let work = world.work().display().to_string();

    assert_eq!(world.airlock(["run", "--image", "bb:1"]).run().succeeded(), "/app\n");
    let typed = world.airlock(["run", "--image", "bb:1", "--", "pwd"]).run().succeeded();
    assert_eq!(typed, format!("{work}\n"));
}

#[test]
fn the_modes_of_the_workspace_are_those_of_every_sandbox() {
    let Some(world) = plain() else { return };
    world.write("file", "host\n");
    let script = "cat file; echo changed >file 2>/dev/null && cat file";

    for (mode, said, left) in [
        ("cow", "host\nchanged\n", "host\n"),
        ("ro", "host\n", "host\n"),
        ("rw", "host\nchanged\n", "changed\n"),
    ] {
        let run = world.sh(in_image(["--workspace", mode]), script).run();
        assert_eq!((run.stdout.as_str(), world.read("file").as_str()), (said, left), "{mode}: {run}");
    }
}

#[test]
fn files_come_and_go_and_stay_with_the_sandbox() {
    let Some(world) = plain() else { return };
    let id = world.detached(in_image(ALONE), "while :; do sleep 1; done");
    world.write("in", "brought\n");

    world.airlock(["cp", "in", &format!("{id}:/tmp/in")]).run().succeeded();
    assert_eq!(world.exec(&id, "cat /tmp/in; echo kept >/kept").run().succeeded(), "brought\n");
    world.airlock(["restart", &id]).run().succeeded();
    assert_eq!(world.exec(&id, "cat /kept").run().succeeded(), "kept\n");
    world.airlock(["stop", "-t", "0", &id]).run().succeeded();
    world.airlock(["cp", &format!("{id}:/etc/second"), "out"]).run().succeeded();
    assert_eq!(world.read("out"), "second\n");
    world.airlock(["start", &id]).run().succeeded();
    assert_eq!(world.exec(&id, "cat /kept /tmp/in").run().succeeded(), "kept\nbrought\n");
}

#[test]
fn users_are_those_of_the_image_also_those_that_came_later() {
    let Some(world) = plain() else { return };
    let id = world.detached(in_image(ALONE), "while :; do sleep 1; done");
    let as_user = |user: &str| world.airlock(["exec", "-u", user, &id, "id", "-u"]).run();

    as_user("nobody-knows").failed(125);
    if who() == Who::Single {
        assert_eq!(as_user("root").succeeded(), "0\n");
        return;
    }
    assert_eq!(as_user("ada").succeeded(), "1000\n");
    assert_eq!(as_user("ada:staff").succeeded(), "1000\n");
    world.exec(&id, "echo 'late:x:2000:2000::/:/bin/sh' >>/etc/passwd").run().succeeded();
    assert_eq!(as_user("late").succeeded(), "2000\n");
}

#[test]
fn only_what_the_program_did_is_in_the_sandboxs_layer() {
    let Some(world) = plain() else { return };
    world.write("file", "x");
    let flags = in_image(["--keep", "--name", "kept", "--tmpfs", "/scratch", "--volume", "v:/vol"]);
    world.sh(flags, "mkdir /made").run().succeeded();

    let id = world.state("kept")["id"].as_str().expect("an id").to_owned();
    let layer = world.home().join("sandboxes").join(id).join("disk/root");
    let names: Vec<String> = fs::read_dir(layer)
        .expect("the layer")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();

    assert_eq!(names, ["made"]);
}

#[test]
fn volumes_of_the_image_begin_with_what_it_has_and_stay_with_the_sandbox() {
    let Some(world) = with(|image| image.configured("Volumes", json!({"/data": {}, "/empty/deep": {}})))
    else {
        return;
    };
    let script = "cat /data/file; echo more >>/data/file; touch /empty/deep/x; ls /empty/deep";
    let flags = in_image(ALONE.into_iter().chain(["--keep", "--read-only", "--name", "v"]));

    assert_eq!(world.sh(flags, script).run().succeeded(), "of the image\nx\n");
    world.airlock(["start", "v"]).run().succeeded();
    world.airlock(["wait", "v"]).run().succeeded();
    assert_eq!(world.airlock(["logs", "v"]).run().stdout, "of the image\nmore\nx\n");

    let flags = in_image(ALONE.into_iter().chain(["--tmpfs", "/data"]));
    assert_eq!(world.sh(flags, "ls /data; ls -d /empty/deep").run().succeeded(), "/empty/deep\n");
}

#[test]
fn snapshots_forks_and_archives_go_on_from_the_image() {
    let Some(world) = with(|image| image.configured("Volumes", json!({"/data": {}}))) else { return };
    let flags = in_image(ALONE.into_iter().chain(["--keep", "--name", "first"]));
    world.sh(flags, "rm /etc/second; echo one >/one; echo two >/data/two").run().succeeded();
    let look = "ls /etc/second 2>/dev/null; cat /one /data/two /data/file";

    let id = world.airlock(["fork", "first", "--start", "--", "sh", "-c", look]).run().succeeded();
    world.airlock(["wait", id.trim_end()]).run().succeeded();
    assert_eq!(world.airlock(["logs", id.trim_end()]).run().stdout, "one\ntwo\nof the image\n");

    world.airlock(["export", "first", "-o", "first.tar"]).run().succeeded();
    world.airlock(["import", "first.tar", "--name", "again"]).run().succeeded();
    let id = world.airlock(["fork", "again", "--start", "--", "sh", "-c", look]).run().succeeded();
    world.airlock(["wait", id.trim_end()]).run().succeeded();
    assert_eq!(world.airlock(["logs", id.trim_end()]).run().stdout, "one\ntwo\nof the image\n");
}

#[test]
fn the_images_signal_asks_its_program_to_end() {
    let Some(world) = with(|image| image.configured("StopSignal", json!("SIGUSR1"))) else { return };
    let script = "trap 'echo asked; exit 3' USR1; echo ready; while :; do sleep 0.1; done";
    let id = world.detached(in_image(ALONE), script);
    eventually("the program is ready", || {
        world.airlock(["logs", &id]).run().stdout.contains("ready").then_some(())
    });

    world.airlock(["stop", "-t", "20", &id]).run().succeeded();

    assert_eq!(world.state(&id)["exit"]["code"], 3);
}

#[test]
fn the_health_of_a_program_is_told() {
    let check = json!({"Test": ["CMD-SHELL", "cat /tmp/ok"], "Interval": 50_000_000, "Retries": 2});
    let Some(world) = with(|image| image.clone().configured("Healthcheck", check.clone())) else { return };
    let id = world.detached(in_image(ALONE), "while :; do sleep 0.1; done");
    let wait_for = |status: &str| {
        eventually(status, || {
            let state = world.state(&id);
            (state["health"]["status"] == status).then_some(state)
        })
    };

    let state = wait_for("unhealthy");
    assert!(state["health"]["last"]["output"].as_str().expect("text").contains("No such file"), "{state}");
    world.exec(&id, "echo fine >/tmp/ok").run().succeeded();
    assert_eq!(wait_for("healthy")["health"]["last"]["output"], "fine\n");
    assert!(world.airlock(["ls"]).run().stdout.contains("(healthy)"));
    assert!(!world.airlock(["logs", &id]).run().stdout.contains("fine"));
}

#[test]
fn a_directory_is_a_root_and_stays_as_it_is() {
    let Some(world) = plain() else { return };
    let root = world.aside("root");
    fs::create_dir(root.join("bin")).expect("a directory");
    fs::copy("/bin/busybox", root.join("bin/sh")).expect("a shell");
    let flags = ["--rootfs", root.to_str().expect("a path"), "--workspace", "none"];

    let said = world.sh(flags, "echo x >/bin/new; echo inside; test -d /proc/1 && test -c /dev/null").run();

    assert_eq!(said.succeeded(), "inside\n");
    let left: Vec<_> =
        fs::read_dir(&root).expect("it").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["bin"]);
    world.sh(["--rootfs", "/"], "true").run().failed(125);
    world.sh(["--rootfs", "/etc"], "true").run().failed(125);
}

#[test]
fn an_image_that_is_not_here_is_told_and_never_asked_for_if_nobody_wants_it() {
    let Some(world) = plain() else { return };
    let missing = world.airlock(["run", "--image", "other:1", "--", "true"]).run().failed(3);
    assert!(missing.contains("the image other:1 is not here"), "{missing}");
    let named = "registry.invalid/other:1";
    let never = world.airlock(["run", "--pull", "never", "--image", named, "--", "true"]).run().failed(3);
    assert!(never.contains("no image"), "{never}");
    assert_eq!(world.sandboxes(), Vec::<serde_json::Value>::new());
}

/// A registry with a busybox whose `/word` says `word`, and a world that speaks to it without TLS.
fn registry_with(word: &str) -> Option<(World, Registry)> {
    let (world, registry) = (World::new(), Registry::start());
    fs::create_dir_all(world.home()).unwrap();
    fs::set_permissions(world.home(), fs::Permissions::from_mode(0o700)).unwrap();
    let text = format!("[images]\ninsecure = [\"{}\"]\n", registry.address());
    fs::write(world.home().join("config.toml"), text).unwrap();
    add(&registry, word)?;
    Some((world, registry))
}

fn add(registry: &Registry, word: &str) -> Option<()> {
    let layer = Layer::new().file("word", 0o644, format!("{word}\n").as_bytes());
    registry.add("team/app", "1", &Image::busybox()?.layer(layer));
    Some(())
}

#[test]
fn an_image_that_is_not_here_is_pulled_by_the_run_itself() {
    let Some((world, registry)) = registry_with("first") else { return };
    let name = registry.name("team/app:1");
    let image = ["--image", &name, "--workspace", "none"];
    let run = |flags: &[&str]| {
        world.airlock(["run", "-q"]).args(image).args(flags).args(["--", "cat", "/word"]).run().succeeded()
    };

    let pulled = run(&[]);
    let asked = registry.asked().len();
    let here = run(&[]);
    add(&registry, "second").unwrap();
    let kept = run(&[]);
    let never = run(&["--pull", "never"]);
    let again = registry.asked().len();
    let newer = run(&["--pull", "always"]);

    assert_eq!((pulled.as_str(), here.as_str(), again), ("first\n", "first\n", asked));
    assert_eq!((kept.as_str(), never.as_str(), newer.as_str()), ("first\n", "first\n", "second\n"));
}

#[test]
fn a_sandbox_whose_run_pulled_its_image_is_kept_like_any_other() {
    let Some((world, registry)) = registry_with("word") else { return };
    let name = registry.name("team/app:1");
    let flags = ["run", "-q", "-d", "--name", "far", "--image", &name, "--workspace", "none"];

    world
        .airlock(flags)
        .args(["--user", "1000", "--", "sh", "-c"])
        .args(["trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done"])
        .run()
        .succeeded();
    eventually("the program is ready", || {
        world.airlock(["logs", "far"]).run().stdout.contains("ready").then_some(())
    });

    let said = world.airlock(["exec", "far", "--", "sh", "-c", "id -u; cat /word"]).run().succeeded();
    assert_eq!(said, "1000\nword\n");
    world.airlock(["stop", "-t", "20", "far"]).run().succeeded();
    let told = world.state("far");
    assert_eq!(told["exit"]["code"], 5, "{told}");
    world.airlock(["rm", "far"]).run().succeeded();
}

#[test]
fn a_set_up_and_its_run_are_upon_the_image_that_they_pulled() {
    let Some((world, registry)) = registry_with("word") else { return };
    let name = registry.name("team/app:1");
    let toml = format!("image = \"{name}\"\nworkspace = \"none\"\nsetup = [\"cp /word /made\"]\n");
    world.write("airlock.toml", &toml);
    world.airlock(["trust", "--yes"]).run().succeeded();

    let said = world.airlock(["run", "-q", "--", "cat", "/made"]).run().succeeded();

    assert_eq!(said, "word\n");
}

#[test]
fn a_set_up_runs_once_and_later_starts_go_on_from_it() {
    let Some(world) = plain() else { return };
    let toml = "image = \"bb:1\"\nworkspace = \"none\"\nsetup = [\"echo $RANDOM$RANDOM >/made\", \"id -u >>/made\"]\n";
    world.write("airlock.toml", toml);
    world.airlock(["trust", "--yes"]).run().succeeded();
    let made = |flags: &[&str]| world.airlock(["run", "-q"]).args(flags).args(["--", "cat", "/made"]).run();

    let first = made(&[]).succeeded();
    assert!(first.ends_with("\n0\n"), "{first}");
    assert_eq!(made(&[]).succeeded(), first);
    assert_eq!(made(&["--read-only"]).succeeded(), first);
    assert_ne!(made(&["-e", "A=b"]).succeeded(), first);

    world.write("airlock.toml", "image = \"bb:1\"\nsetup = [\"exit 7\"]\n");
    world.airlock(["trust", "--yes"]).run().succeeded();
    made(&[]).failed(7);
    assert_eq!(world.sandboxes(), Vec::<serde_json::Value>::new());
}

#[test]
fn a_set_up_works_upon_the_hosts_own_system_too() {
    let world = World::new();
    let unseen = world.work().join("airlock.toml");
    // What is kept depends on no file of the workspace.
    let toml = format!("setup = [\"test ! -e {}\", \"echo made >~/made\"]\n", unseen.display());
    world.write("airlock.toml", toml);
    world.airlock(["trust", "--yes"]).run().succeeded();

    for _ in 0..2 {
        let made = world.airlock(["run", "-q", "--", "sh", "-c", "cat ~/made"]).run();
        assert_eq!(made.succeeded(), "made\n");
    }
    let kept = world.airlock(["snapshot", "ls"]).run().succeeded();
    assert_eq!(kept.matches("setup-").count(), 1, "{kept}");
}
