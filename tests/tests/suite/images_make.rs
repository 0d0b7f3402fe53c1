//! Images made of Debian's packages, from what was downloaded before the tests.

use airlock_tests::{Who, World, internet::internet, not_applicable, who};
use std::{fs, path::PathBuf, process::Command, time::Duration};

/// A place for caches with packages in it, as `images make` keeps them. Nothing where there are none; return then.
fn packages(world: &World) -> Option<PathBuf> {
    let from = internet()?.file("packages");
    let cache = world.aside("cache");
    let folder = cache.join("airlock");
    fs::create_dir_all(&folder).unwrap();
    let copied = Command::new("cp").arg("-r").arg(from).arg(folder.join("packages")).status().unwrap();
    assert!(copied.success());
    Some(cache)
}

#[test]
fn an_image_is_made_of_packages_and_its_programs_run() {
    if who() == Who::Single {
        return not_applicable("files of packages belong to several users");
    }
    let world = World::new();
    let Some(cache) = packages(&world) else { return };
    let recipe = world.work().join("tiny.toml");
    fs::write(&recipe, "about = \"tiny\"\npackages = [\"hello\"]\ncommand = [\"hello\"]\n").unwrap();

    let made = world.airlock(["images", "make", "--offline", "./tiny.toml", "-t", "tiny:1", "-q"]);
    let id = made.env("XDG_CACHE_HOME", &cache).deadline(Duration::from_secs(300)).run().succeeded();

    assert!(id.starts_with("sha256:"), "{id}");
    let run = |words: &[&str]| {
        let run = world.airlock(["run", "--workspace", "none", "--image", "tiny:1"]);
        run.args(words).run().succeeded()
    };
    assert_eq!(run(&[]), "Hello, world!\n");
    assert_eq!(run(&["--", "dpkg", "--audit"]), "");
    let user = run(&["--", "stat", "-c", "%U %G %a", "/etc/shadow", "/usr/bin/su"]);
    assert_eq!(user, "root shadow 640\nroot root 4755\n");
    let images = world.airlock(["images", "ls", "--all", "-q"]).run().succeeded();
    assert_eq!(images.lines().count(), 1, "what it was made of is gone: {images}");
    world.airlock(["images", "prune", "--all", "--force"]).run();
}

#[test]
fn a_single_id_is_too_few_for_packages() {
    if who() != Who::Single {
        return not_applicable("this user has ids enough");
    }
    let failure = World::new().airlock(["images", "make", "minimal"]).run().failed(5);
    assert!(failure.contains("/etc/subuid") && failure.contains("airlock doctor"), "{failure}");
}

#[test]
fn variants_are_listed_with_their_sizes() {
    let listed = World::new().airlock(["images", "make", "--list", "--json"]).run().succeeded();
    let variants: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = variants.iter().filter_map(|variant| variant["variant"].as_str()).collect();
    assert_eq!(names, ["minimal", "standard", "full"]);
    assert!(variants.iter().all(|variant| variant["size_bytes"].as_u64() > Some(0)));
}

#[test]
fn what_is_no_variant_is_refused_with_those_that_are() {
    let failure = World::new().airlock(["images", "make", "huge"]).run().failed(2);
    assert!(failure.contains("minimal, standard, full") && failure.contains("--list"), "{failure}");
}
