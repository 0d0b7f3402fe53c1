//! Machines run by Firecracker. It runs nothing without KVM, so a stand-in takes its place (`tests/firecracker`): it is started, told and
//! connected by the code that starts Firecracker, attaches to the TAP by name in the same cell, has a vsock, and runs the machine in QEMU.

use airlock_tests::{Who, World, eventually, images::Image, not_applicable, skip, who};
use serde_json::Value;
use std::{
    env, fs,
    io::Read as _,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
};

const STAND_IN: &str = include_str!("../../firecracker/__main__.py");

/// The stand-in as one file, where this host's users can ask for KVM at all.
fn stand_in(world: &World) -> Option<String> {
    let Some(vsock) = env::var_os("AIRLOCK_TEST_VSOCK") else {
        skip("there is no vhost-device-vsock (cargo xtask test)");
        return None;
    };
    let (folder, packed) = (world.aside("stand-in"), world.aside("monitor").join("firecracker"));
    fs::write(folder.join("__main__.py"), STAND_IN).expect("a stand-in");
    fs::copy(vsock, folder.join("vsock")).expect("a vsock");
    fs::write(folder.join("ticks"), ticks(world).to_string()).expect("a number");
    let mut pack = Command::new("python3");
    pack.args(["-m", "zipapp", "-p", "/usr/bin/python3", "-o"]).args([&packed, &folder]);
    assert!(pack.status().expect("python3").success());
    // It is executed by nobody.
    fs::set_permissions(&packed, fs::Permissions::from_mode(0o755)).expect("a mode");
    Some(packed.display().to_string())
}

/// What the processor counts, as machines of QEMU are told.
fn ticks(world: &World) -> u64 {
    world.airlock(["doctor"]).run();
    let machines = fs::read_dir(world.home().join("machines")).expect("machines").flatten();
    let noted: Vec<PathBuf> = machines.map(|entry| entry.path()).collect();
    let noted = noted.iter().find(|path| path.to_string_lossy().contains("/monitor-")).expect("a note");
    let noted: Value = serde_json::from_slice(&fs::read(noted).expect("a note")).expect("JSON");
    noted["ticks"].as_u64().expect("a number")
}

fn has_kvm() -> bool {
    fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

fn machine(monitor: &str) -> [&str; 4] {
    ["--backend", "microvm", "--monitor", monitor]
}

#[test]
fn firecracker_runs_a_machine_with_its_files_its_network_and_its_programs() {
    let Some(world) = World::with_machines() else { return };
    let Some(monitor) = stand_in(&world) else { return };
    world.write("kept.txt", "before\n");
    if !has_kvm() {
        let refused = world.sh(machine(&monitor), "true").run();
        assert!(
            refused.stderr.contains("Firecracker needs KVM") && refused.stderr.contains("--monitor qemu"),
            "{refused}"
        );
        return;
    }
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("a port").port();
    let publish = format!("{port}:8000");
    let flags: Vec<&str> = machine(&monitor).into_iter().chain(["--publish", &publish]).collect();
    let id = world.detached(
        flags,
        "echo after > kept.txt; cd /tmp; echo hello > hello; exec python3 -m http.server 8000",
    );

    let state = world.state(&id);
    assert_eq!(state["machine"]["monitor"], "Firecracker 1.10.1");
    let told = world.exec(&id, "uname -r; cat kept.txt; ls -d /sys/class/net/eth0; exit 7").run();
    assert!(
        told.code == 7
            && told.stdout.contains("cloud")
            && told.stdout.ends_with("after\n/sys/class/net/eth0\n"),
        "{told}"
    );
    assert_eq!(world.read("kept.txt"), "before\n");
    let answer = eventually("the server", || ask(port).filter(|answer| answer.contains("hello")));
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    // What may not leave is refused by the same rules, and told.
    let refused = world
        .exec(&id, "python3 -c 'import socket; socket.create_connection((\"192.0.2.9\", 443), 5)' 2>&1")
        .run();
    assert!(refused.code != 0 && refused.stdout.contains("refused"), "{refused}");

    its_cell_is_its_own(&state);
    if let Some(image) = Image::busybox() {
        let archive = image.named("bb:1").docker_archive(&world.aside("images").join("image.tar"));
        world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
        let disks = ["--image", "bb:1", "--disk", "64M"];
        let refused = world.sh(machine(&monitor).into_iter().chain(disks), "true").run();
        assert!(refused.code != 0 && refused.stderr.contains("--disk SIZE,watched"), "{refused}");
    }
    world.airlock(["pause", &id]).run().succeeded();
    world.airlock(["resume", &id]).run().succeeded();
    world.exec(&id, "true").run().succeeded();
    let unsaved = world.airlock(["snapshot", &id, "--memory", "--name", "m"]).run();
    assert!(unsaved.code != 0 && unsaved.stderr.contains("--monitor qemu"), "{unsaved}");
    world.airlock(["stop", &id]).run().succeeded();
}

fn ask(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    std::io::Write::write_all(&mut stream, b"GET /hello HTTP/1.0\r\n\r\n").ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said)
}

/// Whoever escapes into it finds these files, this network and no power.
fn its_cell_is_its_own(state: &Value) {
    if who() != Who::Root {
        return not_applicable("what another's process has can be seen by root only");
    }
    let init = state["init_pid"].as_u64().expect("a pid");
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).expect("children");
    let monitor = children.split_whitespace().next().expect("a monitor").to_owned();
    let status = fs::read_to_string(format!("/proc/{monitor}/status")).expect("a status");
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let space =
        |pid: &str, space: &str| fs::read_link(format!("/proc/{pid}/ns/{space}")).expect("a namespace");
    assert_eq!(space(&monitor, "net"), space(&init.to_string(), "net"));
    assert_ne!(space(&monitor, "net"), space("self", "net"));
    for own in ["user", "mnt", "ipc", "uts"] {
        assert_ne!(space(&monitor, own), space(&init.to_string(), own), "{own}");
    }
    let root = fs::read_dir(format!("/proc/{monitor}/root/")).expect("a root").flatten();
    let mut names: Vec<String> = root.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with("lib"));
    names.sort();
    assert_eq!(names, ["dev", "etc", "initramfs", "kernel", "monitor", "run", "starter", "usr"]);
}

#[test]
fn what_firecracker_cannot_do_or_is_not_there_is_refused_in_words() {
    let Some(world) = World::with_machines() else { return };
    let refused = |monitor: &str, flags: &[&str]| {
        let ran = world.sh(machine(monitor).into_iter().chain(flags.iter().copied()), "true").run();
        assert_ne!(ran.code, 0, "{ran}");
        ran.stderr
    };

    assert!(refused("/nowhere/firecracker", &[]).contains("there is no /nowhere/firecracker"));
    assert!(refused("/bin/true", &[]).contains("is no Firecracker"));
    assert!(refused("vmware", &[]).contains("write qemu, firecracker"));
}
