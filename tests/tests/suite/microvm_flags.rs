//! Flags of `run` that mean the same for a machine: its kernel, its size, its files.

use crate::limits::can_enforce;
use airlock_tests::{World, images::Image};
use std::{fs, path::PathBuf};

const MACHINE: [&str; 2] = ["--backend", "microvm"];

fn machine<'a>(flags: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    MACHINE.into_iter().chain(flags).collect()
}

/// The kernel that machines boot here, and its modules.
fn fetched(world: &World) -> PathBuf {
    let machines = world.home().join("machines");
    let version = fs::read_to_string(machines.join("current")).expect("a kernel");
    machines.join("kernels").join(version.trim())
}

#[test]
fn a_kernel_of_a_persons_own_is_booted_with_the_modules_beside_it() {
    let Some(world) = World::with_machines() else { return };
    let (kernel, own) = (fetched(&world), world.aside("kernel"));
    fs::copy(kernel.join("vmlinuz"), own.join("mine")).expect("a kernel");
    let modules = own.join("mine.modules");
    fs::create_dir(&modules).expect("a directory");
    for entry in fs::read_dir(&kernel).expect("modules").flatten() {
        fs::copy(entry.path(), modules.join(entry.file_name())).expect("a module");
    }
    let mine = own.join("mine").display().to_string();

    let id = world.detached(machine(["--kernel", &mine]), "uname -r > booted; sleep 1000");
    world.exec(&id, "until [ -s booted ]; do :; done").run().succeeded();

    assert!(world.state(&id)["machine"]["kernel"].as_str().unwrap().contains("mine"));
    let missing = world.sh(machine(["--kernel", "/nowhere/vmlinuz"]), "true").run();
    assert!(missing.code != 0 && missing.stderr.contains("/nowhere/vmlinuz"), "{missing}");
}

#[test]
fn a_machine_has_the_memory_and_the_processors_that_were_asked_for() {
    let Some(world) = World::with_machines() else { return };
    if !can_enforce(&world, "--memory", "256M") || !can_enforce(&world, "--cpus", "2") {
        return;
    }
    let script = "nproc; grep MemTotal /proc/meminfo; python3 -c 'bytearray(400 << 20)' 2>/dev/null; echo $?";

    let ran = world.sh(machine(["--cpus", "2", "--memory", "256M"]), script).run();

    let lines: Vec<&str> = ran.stdout.lines().collect();
    let total: u64 = lines[1].split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(lines[0], "2", "{ran}");
    assert!((150_000..256 * 1024).contains(&total), "{ran}");
    assert_ne!(lines[2], "0", "{ran}");
}

#[test]
fn an_image_volumes_and_mounts_are_those_of_namespaces() {
    let Some(world) = World::with_machines() else { return };
    let Some(image) = Image::busybox() else { return };
    let archive = image.named("bb:1").docker_archive(&world.aside("images").join("image.tar"));
    world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
    let shown = world.aside("shown");
    fs::write(shown.join("file"), "of the host\n").expect("a file");
    let direct = format!("{}:/direct:ro", shown.display());
    let served = format!("type=readonly,src={},dst=/served", shown.display());
    let flags = [
        "--image",
        "bb:1",
        "--volume",
        "v:/v",
        "--mount",
        &direct,
        "--mount",
        &served,
        "--mount",
        "type=memory,dst=/m",
    ];

    let script = "cat /direct/file /served/file; (echo x > /direct/file) 2>/dev/null || echo read-only; \
                  (echo x > /served/file) 2>/dev/null || echo read-only; echo m > /m/x && cat /m/x; echo kept > /v/x";
    let ran = world.sh(machine(flags), script).run();
    assert_eq!(ran.stdout, "of the host\nof the host\nread-only\nread-only\nm\n", "{ran}");
    let ran = world.sh(machine(["--image", "bb:1", "--volume", "v:/v"]), "cat /v/x").run();
    assert_eq!(ran.stdout, "kept\n", "{ran}");
    world.airlock(["volume", "rm", "v"]).run().succeeded();
}

#[test]
fn hidden_and_protected_paths_hold_and_changes_are_applied() {
    let Some(world) = World::with_machines() else { return };
    world.write(".env", "TOKEN=secret\n");
    world.write("a.txt", "before\n");
    fs::create_dir_all(world.work().join(".git/hooks")).expect("a directory");

    let id = world.detached(
        machine([]),
        "cat .env > seen 2>&1; echo after > a.txt; echo evil > .git/hooks/pre-commit; touch done; sleep 1000",
    );
    let seen = world.exec(&id, "until [ -e done ]; do :; done; cat seen").run().succeeded();
    assert!(!seen.contains("secret"), "{seen}");
    world.airlock(["stop", &id]).run();
    world.airlock(["apply", &id]).run();

    assert_eq!(world.read("a.txt"), "after\n");
    assert!(!world.work().join(".git/hooks/pre-commit").exists());
    let told =
        world.sh(machine(["--workspace", "rw"]), "(echo evil > .git/hooks/x) 2>&1; cat .env 2>&1").run();
    assert!(!told.stdout.contains("secret") && !world.work().join(".git/hooks/x").exists(), "{told}");
}
