//! Machines whose root is an image on disks of their own: `--image NAME --disk SIZE`.

use airlock_tests::{
    World, eventually,
    images::{Image, Layer},
};
use std::{fs, os::unix::fs::symlink, path::PathBuf};

const DISK: [&str; 6] = ["--backend", "microvm", "--image", "bb:1", "--disk", "64M"];

/// A world with machines and an image; the image's `/etc/resolv.conf` leads out of it. Its disks are no other world's.
fn with_image() -> Option<World> {
    let world = World::with_machines()?;
    let machines = world.home().join("machines");
    let shared = fs::read_link(&machines).expect("a kernel");
    fs::remove_file(&machines).expect("the link to it");
    fs::create_dir(&machines).expect("a directory");
    for entry in fs::read_dir(&shared).expect("its files").flatten() {
        if entry.file_name() != "images" {
            symlink(entry.path(), machines.join(entry.file_name())).expect("a link");
        }
    }
    let layer = Layer::new().directory("data", 0o755).file("data/file", 0o640, b"of the image\n");
    let image = Image::busybox()?.layer(layer.link("etc/resolv.conf", "../run/elsewhere"));
    let archive = image.named("bb:1").docker_archive(&world.aside("images").join("image.tar"));
    world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
    Some(world)
}

fn disks(world: &World) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.home().join("machines/images")).into_iter().flatten().flatten();
    let mut disks: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    disks.retain(|path| path.extension().is_some_and(|ending| ending == "squashfs"));
    disks
}

#[test]
fn the_image_is_a_disk_and_what_is_written_over_it_is_bounded() {
    let Some(world) = with_image() else { return };
    let script = "cat /data/file; stat -c '%a %u' /data/file; echo x > /data/new && rm /data/file && ls /data; \
                  grep -c ' / overlay ' /proc/mounts; cat /etc/resolv.conf | head -c 10; echo; pwd; \
                  head -c 100000000 /dev/zero > /big 2>/dev/null || echo full; [ $(stat -c %s /big) -lt 67108864 ] && echo bounded";

    let ran = world.sh(DISK, script).run();

    let work = world.work().display().to_string();
    let expected = format!("of the image\n640 0\nnew\n1\nnameserver\n{work}\nfull\nbounded\n");
    assert_eq!(ran.stdout, expected, "{ran}");
    let again = world.sh(DISK, "ls /data").run();
    assert_eq!(again.stdout, "file\n", "{again}");
}

#[test]
fn the_disk_of_an_image_is_made_once_and_anew_where_somebody_changed_it() {
    let Some(world) = with_image() else { return };
    let before = disks(&world).len();
    world.sh(DISK, "true").run().succeeded();
    let made = disks(&world);
    world.sh(DISK, "true").run().succeeded();
    assert_eq!((disks(&world).len(), made.len() - before), (made.len(), 1));

    let newest = made.iter().max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap()).unwrap();
    let bytes = fs::read(newest).unwrap();
    fs::remove_file(newest).unwrap();
    fs::write(newest, "nothing that can be mounted").unwrap();

    assert_eq!(world.sh(DISK, "cat /data/file").run().succeeded(), "of the image\n");
    assert_eq!(fs::read(newest).unwrap().len(), bytes.len());
}

#[test]
fn a_disk_outlives_a_stop_and_the_workspace_stays_what_it_is() {
    let Some(world) = with_image() else { return };
    world.write(".env", "TOKEN=secret\n");
    world.write("kept.txt", "before\n");
    let script = "ls /made 2>/dev/null; touch /made; sync; echo after > kept.txt; echo ready; sleep 1000";
    let id = world.detached(DISK.into_iter().chain(["--volume", "v:/v"]), script);
    let says = |what: &str| {
        eventually(what, || world.airlock(["logs", &id]).run().stdout.contains(what).then_some(()));
    };
    says("ready");

    let disk = world.state(&id);
    let disk = disk["limits"].as_array().unwrap().iter().find(|limit| limit["limit"] == "disk").unwrap();
    assert_eq!(disk["by"], "block_device");
    let read = world.exec(&id, "cat .env; cat kept.txt; echo v > /v/x; hostname; cat /etc/hostname").run();
    assert!(read.stdout.starts_with("after\n") && !read.stdout.contains("secret"), "{read}");
    assert!(world.airlock(["diff", &id]).run().succeeded().contains("+after"));
    assert_eq!(world.read("kept.txt"), "before\n");
    world.airlock(["cp", &format!("{id}:/data/file"), "out"]).run().succeeded();
    assert_eq!(world.read("out"), "of the image\n");

    world.airlock(["stop", &id]).run().succeeded();
    world.airlock(["start", &id]).run().succeeded();
    says("/made");

    for verb in [vec!["commit", &id, "of:1"], vec!["snapshot", &id], vec!["export", &id, "-o", "x.tar"]] {
        let refused = world.airlock(&verb).run();
        assert_ne!(refused.code, 0, "{verb:?}");
        assert!(refused.stderr.contains("a file system that a machine wrote"), "{verb:?}: {refused}");
    }
    world.airlock(["rm", "--force", &id]).run().succeeded();
    world.airlock(["volume", "rm", "v"]).run().succeeded();
}

#[test]
fn a_root_on_a_disk_can_be_read_only_and_no_smaller_than_its_journal() {
    let Some(world) = with_image() else { return };
    let flags = DISK.into_iter().chain(["--read-only"]);

    let ran = world.sh(flags, "touch /x 2>/dev/null || echo read-only; touch /tmp/x && echo temporary").run();
    assert_eq!(ran.stdout, "read-only\ntemporary\n", "{ran}");

    let small = DISK.map(|word| if word == "64M" { "8M" } else { word });
    let refused = world.sh(small, "true").run();
    assert!(refused.code != 0 && refused.stderr.contains("--disk is too small"), "{refused}");
}
