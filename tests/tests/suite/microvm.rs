//! Machines with a kernel of their own. Each start costs about a second where the processor is emulated, so that sandboxes are shared.

use airlock_tests::World;
use std::{fs, os::unix::fs::symlink, path::PathBuf, process::Command};

/// A world with a kernel: `AIRLOCK_TEST_MACHINES` names the directory `machines` of a state directory that has one
/// (`airlock prefetch --backend microvm`). `None` where there is none, and nothing can be tried.
fn world() -> Option<World> {
    let machines = PathBuf::from(std::env::var_os("AIRLOCK_TEST_MACHINES")?);
    // It is root's.
    fs::read_dir(&machines).ok()?;
    let world = World::new();
    // The first command makes the state directory.
    world.airlock(["ls"]).run().succeeded();
    symlink(machines, world.home().join("machines")).expect("a kernel");
    Some(world)
}

const MACHINE: [&str; 2] = ["--backend", "microvm"];

#[test]
fn a_machine_has_a_kernel_of_its_own_and_the_programs_exit_code() {
    let Some(world) = world() else { return };
    let here = Command::new("uname").arg("-r").output().expect("uname").stdout;

    let ran = world.sh(MACHINE, "uname -r; exit 7").run();

    assert_eq!(ran.code, 7);
    assert_ne!(ran.stdout.as_bytes(), here);
    assert!(ran.stdout.contains("cloud"), "{}", ran.stdout);
}

#[test]
fn what_a_machine_changes_is_a_copy_until_it_is_applied() {
    let Some(world) = world() else { return };
    world.write("kept.txt", "before\n");
    let id = world.detached(MACHINE, "echo after > kept.txt; touch ready; sleep 1000");

    world.exec(&id, "until [ -e ready ]; do :; done; cat kept.txt").run().succeeded();
    let diff = world.airlock(["diff", &id]).run().succeeded();

    assert!(diff.contains("+after"), "{diff}");
    assert_eq!(world.read("kept.txt"), "before\n");
}

#[test]
fn the_monitor_is_nobody_with_nothing_around_it_and_ends_with_the_keeper() {
    let Some(world) = world() else { return };
    let id = world.detached(MACHINE, "sleep 1000");
    let state = world.state(&id);
    let init = state["init_pid"].as_u64().expect("a pid");
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).expect("children");
    let monitor = children.split_whitespace().next().expect("a monitor").to_owned();

    let status = fs::read_to_string(format!("/proc/{monitor}/status")).expect("a status");
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    assert!(network(&monitor) != network("self") && network(&monitor) != network(&init.to_string()));

    let keeper = state["keeper_pid"].as_i64().expect("a pid").to_string();
    Command::new("kill").args(["-9", &keeper]).status().expect("kill");
    while fs::read_to_string(format!("/proc/{monitor}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        std::thread::yield_now();
    }
}

#[test]
fn a_machine_without_a_kernel_says_how_to_get_one() {
    let world = World::new();
    let ran = world.sh(MACHINE, "true").run();
    assert_ne!(ran.code, 0);
    let is_built_without = ran.stderr.contains("this airlock runs no machines");
    let has_no_monitor = ran.stderr.contains("apt-get install qemu-system-x86");
    let fix = "airlock prefetch --backend microvm";
    assert!(is_built_without || has_no_monitor || ran.stderr.contains(fix), "{}", ran.stderr);
}
