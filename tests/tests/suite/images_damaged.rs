//! What a power cut or a bad disk leaves of images is noticed, thrown away and fetched again.

use airlock_tests::{
    World,
    images::{Image, Layer, sha256},
    registry::Registry,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// A world that pulled an image of two layers, the second with `/word`, and where it came from.
fn pulled() -> Option<(World, Registry, Image, String)> {
    let image = Image::busybox()?.layer(Layer::new().file("word", 0o644, b"as it came\n"));
    let (world, registry) = (World::new(), Registry::start());
    registry.add("team/app", "1", &image);
    let name = registry.name("team/app:1");
    fs::create_dir_all(world.home()).unwrap();
    fs::set_permissions(world.home(), fs::Permissions::from_mode(0o700)).unwrap();
    let text = format!("[images]\ninsecure = [\"{}\"]\n", registry.address());
    fs::write(world.home().join("config.toml"), text).unwrap();
    world.airlock(["images", "pull", &name]).run().succeeded();
    Some((world, registry, image, name))
}

/// What the image has in `/word`.
fn word(world: &World, name: &str, flags: &[&str]) -> airlock_tests::Output {
    let last = ["--image", name, "--workspace", "none", "--", "cat", "/word"];
    world.airlock(["run"]).args(flags).args(last).run()
}

/// How many bytes of the topmost layer its registry gave away.
fn served(registry: &Registry, image: &Image) -> usize {
    registry.served(&format!("/v2/team/app/blobs/sha256:{}", top(image)))
}

fn length(image: &Image) -> usize {
    image.layers().last().expect("a layer").len()
}

fn top(image: &Image) -> String {
    sha256(image.layers().last().expect("a layer"))
}

fn blob(world: &World, image: &Image) -> PathBuf {
    world.home().join("images/blobs/sha256").join(top(image))
}

/// The folders of the topmost layer's trees.
fn trees(world: &World, image: &Image) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.home().join("images/layers").join(top(image))).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Makes a file what it would be had the disk never got it.
fn tear(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let length = path.metadata().unwrap().len();
    fs::write(path, vec![0; usize::try_from(length).unwrap()]).unwrap();
}

fn writable(path: &Path) -> bool {
    path.metadata().unwrap().permissions().mode() & 0o222 != 0
}

fn boot_again(world: &World) {
    fs::write(world.home().join("images/boot"), "another boot\n").unwrap();
}

#[test]
fn what_is_recorded_is_on_the_disk() {
    let Some((world, _registry, image, _)) = pulled() else { return };

    assert!(!writable(&blob(&world, &image)));
    assert!(!trees(&world, &image).is_empty());
    assert!(trees(&world, &image).iter().all(|tree| !writable(&tree.join("layer.json"))));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(fs::read_to_string(world.home().join("images/boot")).unwrap(), boot);
}

#[test]
fn what_a_power_cut_tore_is_thrown_away_and_fetched_again() {
    let Some((world, registry, image, name)) = pulled() else { return };
    tear(&blob(&world, &image));
    for tree in trees(&world, &image) {
        fs::set_permissions(tree.join("layer.json"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    boot_again(&world);

    let never = word(&world, &name, &["--pull", "never"]);
    let before = served(&registry, &image);
    let said = word(&world, &name, &[]);

    let why = never.failed(125);
    assert!(why.contains("is not in the store") && why.contains("pull or load the image again"), "{why}");
    assert_eq!((said.code, said.stdout.as_str()), (0, "as it came\n"), "{said}");
    assert!(said.stderr.contains("was damaged on the disk; it is fetched again"), "{said}");
    assert_eq!(served(&registry, &image), before + length(&image));
    assert_eq!(word(&world, &name, &["--pull", "never", "-q"]).succeeded(), "as it came\n");
}

#[test]
fn what_was_on_the_disk_before_the_power_cut_stays() {
    let Some((world, registry, image, name)) = pulled() else { return };
    let before = served(&registry, &image);
    // One that is whole and was never marked is found to be so.
    fs::set_permissions(blob(&world, &image), fs::Permissions::from_mode(0o600)).unwrap();
    let there = trees(&world, &image);
    boot_again(&world);

    let said = word(&world, &name, &["-q"]).succeeded();

    assert_eq!(said, "as it came\n");
    assert_eq!((served(&registry, &image), trees(&world, &image)), (before, there));
    assert!(!writable(&blob(&world, &image)));
}

#[test]
fn a_layer_that_rots_is_never_used() {
    let Some((world, registry, image, name)) = pulled() else { return };
    world.airlock(["images", "prune", "--all", "--force"]).run().succeeded();
    let archive = image.clone().named(&name).oci_archive(&world.aside("archives").join("app.tar"));
    let (load, save) = (["images", "load", "-q", "-i"], ["images", "save", "--format", "oci", "-o"]);
    let out = world.aside("archives").join("out.tar");
    world.airlock(load).args([&archive]).run().succeeded();

    // Not unpacked yet: a run meets it first.
    tear(&blob(&world, &image));
    let before = served(&registry, &image);
    let said = word(&world, &name, &[]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "as it came\n"), "{said}");
    assert_eq!(served(&registry, &image), before + length(&image), "{said}");

    // Unpacked: whoever takes it out of the store meets it, and a load brings it again.
    tear(&blob(&world, &image));
    let why = world.airlock(save).args([&out]).args([&name]).run().failed(125);
    assert!(why.contains("was damaged on the disk"), "{why}");
    world.airlock(load).args([&archive]).run().succeeded();
    tear(&blob(&world, &image));
    world.airlock(load).args([&archive]).run().succeeded();
    world.airlock(save).args([&out]).args([&name]).run().succeeded();
}
