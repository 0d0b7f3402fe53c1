//! Attacks on the next run through the project's files: the sandboxed program can write most of them.

use airlock_tests::World;
use std::{fs, os::unix::fs::symlink, path::PathBuf};

const PROJECT: &str = "policy = \"rules.toml\"\nenv_file = [\"ci.env\"]\nmount = [\"data:/data\"]\n";

/// A project whose trusted file names others, and what shows them.
fn project() -> World {
    let world = World::new();
    world.write("airlock.toml", PROJECT);
    world.write("rules.toml", "[[rule]]\nallow = \"api.example.com\"\n");
    world.write("ci.env", "CI=1\n");
    fs::create_dir(world.work().join("data")).expect("a directory");
    world.write("data/own", "own");
    world.airlock(["trust", "--yes"]).run().succeeded();
    world
}

/// A directory of the host that nobody meant to show.
fn precious(world: &World) -> PathBuf {
    let path = world.aside("precious");
    fs::write(path.join("key"), "precious").expect("a file");
    path
}

#[test]
fn rules_that_a_trusted_file_names_cannot_be_loosened_from_inside() {
    let world = project();
    world
        .sh(["--workspace", "rw"], "printf '[[rule]]\nallow = \"evil.example\"\n' >> rules.toml")
        .run()
        .succeeded();

    let said = world.sh([], "true").run().failed(125);
    assert!(said.contains("rules.toml has changed since you trusted it"), "{said}");

    let shown = world.airlock(["trust", "--yes"]).run().succeeded();
    assert!(shown.contains("\n+ allow = \"evil.example\"\n") && !shown.contains("ci.env"), "{shown}");
    world.sh([], "true").run().succeeded();
}

#[test]
fn an_environment_file_that_is_trusted_cannot_fetch_a_variable_of_the_host() {
    let world = project();
    let tell = "echo \"$CI $SECRET\"";
    assert_eq!(world.sh([], tell).env("SECRET", "precious").run().succeeded(), "1 \n");
    world.sh(["--workspace", "rw"], "echo SECRET >> ci.env").run().succeeded();

    let said = world.sh([], tell).env("SECRET", "precious").run().failed(125);
    assert!(said.contains("ci.env has changed since you trusted it"), "{said}");

    let listed = world.airlock(["trust", "--list"]).run().succeeded();
    assert!(listed.contains("changed"), "{listed}");
    // A person who agrees to it gets it.
    world.airlock(["trust", "--yes"]).run().succeeded();
    assert_eq!(world.sh([], tell).env("SECRET", "precious").run().succeeded(), "1 precious\n");
}

#[test]
fn a_named_file_that_becomes_a_link_or_goes_away_stops_the_next_run() {
    let world = project();
    let elsewhere = world.aside("elsewhere").join("same.env");
    fs::write(&elsewhere, "CI=1\n").expect("a file");
    let link = format!("rm ci.env; ln -s {} ci.env", elsewhere.display());
    world.sh(["--workspace", "rw"], &link).run().succeeded();
    let said = world.sh([], "true").run().failed(2);
    assert!(said.contains("it is a symbolic link"), "{said}");

    fs::remove_file(world.work().join("ci.env")).expect("the link");
    let said = world.sh([], "true").run().failed(2);
    assert!(said.contains("there is no") && said.contains("fix:"), "{said}");
    world.sh(["--no-config"], "true").run().succeeded();
}

#[test]
fn a_mount_of_a_trusted_file_cannot_be_led_elsewhere() {
    let world = project();
    let precious = precious(&world);
    assert_eq!(world.sh([], "ls /data").run().succeeded(), "own\n");
    let plant = format!("mv data mine; ln -s {} data", precious.display());
    world.sh(["--no-config", "--workspace", "rw"], &plant).run().succeeded();

    let said = world.sh([], "cat /data/key").run().failed(125);
    assert!(said.contains("data cannot be a mount source") && said.contains("is a symbolic link"), "{said}");
}

#[test]
fn a_directory_on_the_way_to_a_mount_cannot_be_led_elsewhere() {
    let world = World::new();
    let precious = precious(&world);
    fs::create_dir_all(world.work().join("a/precious")).expect("a directory");
    let absolute = format!("mount = [\"{}/a/precious:/data\"]\n", world.work().display());
    for mount in ["mount = [\"a/precious:/data\"]\n", &absolute] {
        world.write("airlock.toml", mount);
        world.airlock(["trust", "--yes"]).run().succeeded();
        assert_eq!(world.sh([], "ls /data").run().succeeded(), "");
        let above = precious.parent().expect("a directory above");
        fs::rename(world.work().join("a"), world.work().join("b")).expect("moved");
        symlink(above, world.work().join("a")).expect("a link");

        let said = world.sh([], "cat /data/key").run().failed(125);
        assert!(said.contains("cannot be a mount source"), "{said}");

        fs::remove_file(world.work().join("a")).expect("the link");
        fs::rename(world.work().join("b"), world.work().join("a")).expect("moved back");
    }
}

#[test]
fn a_typed_mount_follows_no_planted_link_out_of_the_workspace() {
    let world = World::new();
    let precious = precious(&world);
    let plant = format!("ln -s {} out; mkdir real; echo yes > real/file; ln -s real in", precious.display());
    world.sh(["--workspace", "rw"], &plant).run().succeeded();

    let said = world.sh(["--mount", "out:/data"], "cat /data/key").run().failed(125);
    assert!(said.contains("out cannot be a mount source") && said.contains("name the real path"), "{said}");
    let way = world.aside("ways").join("way");
    symlink(world.work(), &way).expect("a link");
    let around = format!("{}/out:/data", way.display());
    world.sh(["--mount", &around], "cat /data/key").run().failed(125);

    assert_eq!(world.sh(["--mount", "in:/data"], "cat /data/file").run().succeeded(), "yes\n");
    let real = format!("{}:/data:ro", precious.display());
    assert_eq!(world.sh(["--mount", &real], "cat /data/key").run().succeeded(), "precious");
}

#[test]
fn a_mount_below_another_is_not_led_elsewhere_by_what_was_written_in_that() {
    let world = World::new();
    let (precious, shared) = (precious(&world), world.aside("shared"));
    let outer = format!("{}:/shared", shared.display());
    let plant = format!("ln -s {} /shared/sub", precious.display());
    world.sh(["--mount", &outer], &plant).run().succeeded();

    let inner = format!("{}/sub:/data", shared.display());
    world.sh(["--mount", &inner, "--mount", &outer], "cat /data/key").run().failed(125);
}
