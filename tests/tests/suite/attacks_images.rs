//! Images that lie in wait: links where we mount and write, files that we read, volumes at odd places. Each image works first as a
//! plain one does.

use airlock_tests::{
    World,
    images::{Image, Layer},
};
use serde_json::json;
use std::{fs, path::Path};

/// A world with an image that has this layer on top, and a directory of the host that nothing may reach.
fn hostile(layer: Layer, configured: impl Fn(Image) -> Image) -> Option<World> {
    let world = World::new();
    let image = configured(Image::busybox()?.layer(layer)).named("bad:1");
    let archive = image.docker_archive(&world.aside("images").join("image.tar"));
    world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
    Some(world)
}

/// A place of the host; as a link's target it leads to the same path inside, where nothing is.
fn outside() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).expect("a directory").next().is_none()
}

fn run(world: &World, flags: &[&str], script: &str) -> airlock_tests::Output {
    let all = ["--image", "bad:1", "--workspace", "none"].into_iter().chain(flags.iter().copied());
    world.sh(all, script).run()
}

#[test]
fn a_system_directory_that_is_a_link_is_no_place_to_mount() {
    let outside = outside();
    for name in ["proc", "sys", "dev", "etc", "run"] {
        for target in [text(outside.path()), name, "/proc/1/root"] {
            // What a lower layer has in its place goes first.
            let layer = Layer::new().file(&format!(".wh.{name}"), 0o644, b"").link(name, target);
            let Some(world) = hostile(layer, |image| image) else { return };

            let told = run(&world, &[], "true").failed(125);

            assert!(told.contains("this image cannot be the root of a sandbox"), "{name} {target}: {told}");
            assert!(is_empty(outside.path()), "{name} {target}");
        }
    }
}

#[test]
fn our_own_files_take_the_place_of_links_that_lead_anywhere() {
    let outside = outside();
    let bait = outside.path().join("bait");
    fs::write(&bait, "host").expect("a file");
    for target in [text(&bait), "resolv.conf", "/proc/1/environ", "/dev/null", "../../../../etc/shadow"] {
        let mut layer = Layer::new();
        for name in ["resolv.conf", "hosts", "hostname"] {
            layer = layer.link(&format!("etc/{name}"), target);
        }
        let Some(world) = hostile(layer, |image| image) else { return };

        let script = "head -c 10 /etc/resolv.conf; echo; tail -n 1 /etc/hosts; echo changed >/etc/hosts";
        let said = run(&world, &["--hostname", "h"], script).succeeded();

        assert!(said.starts_with("nameserver\n") && said.contains("localhost"), "{target}: {said}");
        assert_eq!(fs::read_to_string(&bait).expect("it"), "host");
    }
}

#[test]
fn accounts_are_read_in_the_image_and_nowhere_else() {
    for target in ["/proc/self/environ", "passwd", "../../../../../../etc/passwd", "/dev/zero"] {
        let layer = Layer::new().link("etc/passwd", target).link("etc/group", target);
        let Some(world) = hostile(layer, |image| image) else { return };

        assert_eq!(run(&world, &[], "echo $HOME").succeeded(), "/\n", "{target}");
        let told = run(&world, &["-u", "daemon"], "true").failed(125);
        assert!(told.contains("no user \"daemon\""), "{target}: {told}");
    }
}

#[test]
fn a_huge_list_of_accounts_is_refused() {
    let layer = Layer::new().file("etc/passwd", 0o644, &vec![b'x'; 3 << 20]);
    let Some(world) = hostile(layer, |image| image) else { return };

    let told = run(&world, &[], "true").failed(125);

    assert!(told.contains("/etc/passwd has more than"), "{told}");
}

#[test]
fn volumes_of_an_image_are_never_over_what_is_ours() {
    for place in ["/", "/proc", "/proc/sys", "/dev/shm", "/sys/x", "relative", "/a/../proc"] {
        let volumes = json!({ place: {} });
        let Some(world) = hostile(Layer::new(), |image| image.configured("Volumes", volumes.clone())) else {
            return;
        };
        run(&world, &[], "true").failed(125);
    }
    let linked = Layer::new().link("data", "/proc");
    let Some(world) = hostile(linked, |image| image.configured("Volumes", json!({"/data": {}}))) else {
        return;
    };
    let told = run(&world, &[], "true").failed(125);
    assert!(told.contains("no plain directory"), "{told}");

    let etc = json!({"/etc": {}, "/run": {}, "/tmp": {}});
    let Some(world) = hostile(Layer::new(), |image| image.configured("Volumes", etc.clone())) else { return };
    let said = run(&world, &[], "head -c 10 /etc/resolv.conf; id -un").succeeded();
    assert_eq!(said, "nameserverroot\n");
}

#[test]
fn nothing_is_mounted_through_a_link_of_the_image() {
    let outside = outside();
    let layer = Layer::new().link("mnt", text(outside.path())).link("tmp2", "/proc");
    let Some(world) = hostile(layer, |image| image) else { return };
    let shown = world.aside("shown");
    let mount = format!("{}:/mnt/x", shown.display());

    run(&world, &["--mount", &mount], "true").failed(125);
    run(&world, &["--tmpfs", "/mnt/x"], "true").failed(125);
    run(&world, &["--volume", "v:/tmp2/x"], "true").failed(125);

    assert!(is_empty(outside.path()) && is_empty(&shown));
}

#[test]
fn trust_stores_that_are_links_show_nothing_of_the_keeper() {
    let mut layer = Layer::new().directory("etc/ssl", 0o755).directory("etc/ssl/certs", 0o755);
    for (name, target) in [
        ("etc/ssl/certs/ca-certificates.crt", "/proc/1/environ"),
        ("etc/ssl/cert.pem", "cert.pem"),
        ("etc/ssl/ca-bundle.pem", "/proc/self/maps"),
    ] {
        layer = layer.link(name, target);
    }
    let Some(world) = hostile(layer, |image| image) else { return };
    let rules = world.write("rules.toml", "[[rule]]\nallow = \"x.test\"\nports = [443]\ntls = \"opened\"\n");

    let script = "cat /run/airlock/tls/bundle.pem | grep -c BEGIN; grep -c AIRLOCK_HOME /run/airlock/tls/bundle.pem; \
                  tr '\\0' '\\n' </proc/1/environ 2>/dev/null | grep -c AIRLOCK_HOME; grep -c airlock /etc/ssl/ca-bundle.pem";
    let said = run(&world, &["--policy", text(&rules)], script);

    assert_eq!(said.stdout, "1\n0\n0\n0\n", "{said}");
}

#[test]
fn a_working_directory_or_home_that_is_a_link_is_followed_inside_only() {
    let outside = outside();
    let layer = Layer::new().link("work", text(outside.path())).file(
        "etc/passwd",
        0o644,
        b"root:x:0:0::/work/home:/bin/sh\n",
    );
    let Some(world) = hostile(layer, |image| image.configured("WorkingDir", json!("/work/deep"))) else {
        return;
    };

    let ran = world.airlock(["run", "--image", "bad:1", "--workspace", "none", "--", "true"]).run();

    ran.failed(125);
    assert!(is_empty(outside.path()));
}
