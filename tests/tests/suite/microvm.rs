//! Machines with a kernel of their own. Each start costs about a second where the processor is emulated, so that sandboxes are shared.

use crate::net::whole;
use airlock_tests::{World, eventually, internet};
use std::{fs, process::Command};

const MACHINE: [&str; 2] = ["--backend", "microvm"];

#[test]
fn a_machine_has_a_kernel_of_its_own_and_the_programs_exit_code() {
    let Some(world) = World::with_machines() else { return };
    let here = Command::new("uname").arg("-r").output().expect("uname").stdout;

    let ran = world.sh(MACHINE, "uname -r; exit 7").run();

    assert_eq!(ran.code, 7);
    assert_ne!(ran.stdout.as_bytes(), here);
    assert!(ran.stdout.contains("cloud"), "{}", ran.stdout);
}

#[test]
fn what_a_machine_changes_is_a_copy_until_it_is_applied() {
    let Some(world) = World::with_machines() else { return };
    world.write("kept.txt", "before\n");
    let id = world.detached(MACHINE, "echo after > kept.txt; touch ready; sleep 1000");

    world.exec(&id, "until [ -e ready ]; do :; done; cat kept.txt").run().succeeded();
    let diff = world.airlock(["diff", &id]).run().succeeded();

    assert!(diff.contains("+after"), "{diff}");
    assert_eq!(world.read("kept.txt"), "before\n");
}

#[test]
fn the_monitor_is_nobody_with_nothing_around_it_and_ends_with_the_keeper() {
    let Some(world) = World::with_machines() else { return };
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
fn rules_and_secrets_hold_for_a_machine() {
    let Some(world) = World::with_machines() else { return };
    let Some(internet) = internet() else { return };
    let (name, path) = (internet.name("web"), format!("/headers/{}", internet.mark()));
    let (value, secret) = ("ghp_RealValueOfTheSecret0123456789abcdef", format!("TOKEN@{name}"));
    let trust = format!("[network]\nextra_ca = \"{}\"\n", internet.ca().display());
    fs::write(world.home().join("config.toml"), trust).expect("a configuration");

    let script = format!(
        "curl -sS -m 30 -o answer -w '%{{http_code}}' -H \"Authorization: Bearer $TOKEN\" https://{name}{path}; echo; \
         grep -c $TOKEN answer; curl -sS -m 30 https://other.{name}/; echo $?"
    );
    let flags = MACHINE.into_iter().chain(["--workspace", "none", "--workdir", "/tmp", "--secret", &secret]);
    let ran = world.sh(flags, &script).env("TOKEN", value).run();

    assert_eq!(ran.stdout, "200\n1\n6\n", "{ran}");
    let hits = internet.hits(&path);
    let seen = hits.iter().find(|hit| hit["what"] == "headers").expect("a request");
    assert_eq!(seen["headers"]["authorization"], format!("Bearer {value}"));
}

#[test]
fn a_published_port_leads_to_a_server_on_a_machines_loopback_address() {
    let Some(world) = World::with_machines() else { return };
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("a port").port();
    let publish = format!("{port}:8000");
    let server = whole(
        "s = socket.create_server((\"127.0.0.1\", 8000))\nsay(\"ready\")\nwhile True:\n    p, _ = s.accept()\n    p.sendall(b\"hello\\n\")\n    p.close()\n",
    );
    let run = ["run", "-d", MACHINE[0], MACHINE[1], "--publish", &publish, "--", "python3", "-c", &server];
    let id = world.airlock(run).run().succeeded().trim_end().to_owned();
    eventually("the server", || world.airlock(["logs", &id]).run().stdout.contains("ready").then_some(()));

    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it is published");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stream, &mut said).expect("an answer");

    assert_eq!(said, "hello\n");
}

#[test]
fn files_programs_and_pauses_of_a_running_machine() {
    let Some(world) = World::with_machines() else { return };
    world.write("in.txt", "from outside\n");
    let id = world.detached(MACHINE.into_iter().chain(["--pids", "64"]), "sleep 1000");

    world.airlock(["cp", "in.txt", &format!("{id}:/tmp/in.txt")]).run().succeeded();
    let read = world.exec(&id, "cat /tmp/in.txt; exit 5").run();
    assert_eq!((read.code, read.stdout.as_str()), (5, "from outside\n"));
    world
        .exec(&id, "head -c 3000000 /dev/urandom > /tmp/out; sha256sum < /tmp/out > /tmp/sum")
        .run()
        .succeeded();
    world.airlock(["cp", &format!("{id}:/tmp/out"), "out"]).run().succeeded();
    let sum =
        Command::new("sha256sum").stdin(fs::File::open(world.work().join("out")).expect("it came")).output();
    let sum = String::from_utf8_lossy(&sum.expect("sha256sum").stdout).into_owned();
    assert_eq!(world.exec(&id, "cat /tmp/sum").run().succeeded(), sum);

    world.airlock(["pause", &id]).run().succeeded();
    assert_eq!(world.state(&id)["status"], "paused");
    world.airlock(["resume", &id]).run().succeeded();
    let told: i64 = world.exec(&id, "date +%s").run().succeeded().trim().parse().expect("a time");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    assert!((told - i64::try_from(now).expect("a time")).abs() <= 5, "{told} {now}");

    let bomb = "import os, time\nmade = 0\ntry:\n    while made < 200:\n        if os.fork() == 0:\n            os.closerange(0, 3)\n            time.sleep(900)\n        made += 1\nexcept OSError:\n    pass\nprint(made)";
    let ran = world.airlock(["exec", &id, "python3", "-c", bomb]).run();
    let made: u32 = ran.stdout.trim().parse().expect("a count");
    assert!((32..64).contains(&made), "{ran}");
}

#[test]
fn a_machine_that_is_stopped_lets_its_program_finish_and_loses_nothing() {
    let Some(world) = World::with_machines() else { return };
    let script = "trap 'echo bye > end.txt; exit 3' TERM; touch ready; while :; do sleep 0.1; done";
    let id = world.detached(MACHINE, script);
    eventually("it is ready", || (world.exec(&id, "ls ready").run().code == 0).then_some(()));

    world.airlock(["stop", &id]).run().succeeded();

    assert_eq!(world.airlock(["wait", &id]).run().stdout.trim(), "3");
    let diff = world.airlock(["diff", &id]).run().succeeded();
    assert!(diff.contains("+bye"), "{diff}");
}

#[test]
fn root_of_a_machine_finds_nothing_of_the_host_and_hurts_nobody() {
    let Some(world) = World::with_machines() else { return };
    let other = world.detached(MACHINE, "echo mine > /tmp/secret-of-another; sleep 1000");
    let tried = "ls /home/*/.ssh /root/.ssh 2>/dev/null; cat /tmp/secret-of-another 2>/dev/null; ls /dev/kvm /dev/net/tun /dev/fuse /dev/vport* 2>/dev/null; \
                 mount -t tmpfs none /mnt 2>/dev/null && echo mounted; \
                 kill -9 1; head -c 2000000 /dev/urandom; echo; echo done";
    let ran = world
        .airlock(["run"])
        .args(MACHINE)
        .args(["--", "sh", "-c", &format!("({tried}) | tail -c 5")])
        .run();

    assert_eq!(ran.stdout, "done\n", "{ran}");
    let quiet = tried.replace("head -c 2000000 /dev/urandom; echo; ", "");
    assert_eq!(world.sh(MACHINE, &quiet).run().stdout, "done\n");
    world.exec(&other, "grep -q mine /tmp/secret-of-another").run().succeeded();
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
