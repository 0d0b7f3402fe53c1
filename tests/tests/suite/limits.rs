//! Limits: really enforced, inside only, and refused in words where this host cannot.
//!
//! Nothing here assumes one version of control groups: where an ordinary user may not use them, the refusal is the test.

use crate::probe::{inside, script};
use airlock_tests::{
    DEADLINE, Who, World, binary, eventually, is_machine, least_memory, not_applicable, who,
};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Whether a flag for control groups can be enforced here. Root always can; the refusal of others must say the fix.
pub(crate) fn can_enforce(world: &World, flag: &str, value: &str) -> bool {
    let tried = world.airlock(["run", flag, value, "--", "true"]).run();
    if tried.code == 0 {
        return true;
    }
    assert_ne!(who(), Who::Root, "root can enforce every limit: {tried}");
    assert!([5, 125].contains(&tried.code), "{tried}");
    assert!(tried.stderr.contains("fix:"), "{tried}");
    not_applicable(&format!("{flag} cannot be enforced for this user: {}", tried.stderr));
    false
}

/// One entry of `limits` in `get --json`.
pub(crate) fn limit(state: &Value, name: &str) -> Value {
    let limits = state["limits"].as_array().expect("limits are listed");
    limits
        .iter()
        .find(|entry| entry["limit"] == name)
        .unwrap_or_else(|| panic!("no {name} in {limits:?}"))
        .clone()
}

/// The host is alive: another sandbox starts, and soon.
#[track_caller]
fn assert_host_responsive(world: &World) {
    let began = Instant::now();
    world.sh([], "true").run().succeeded();
    assert!(began.elapsed() < Duration::from_secs(20), "another sandbox took {:?} to start", began.elapsed());
}

#[test]
fn limits_memory_over_the_limit_kills_inside_only_and_is_told() {
    let world = World::new();
    if !can_enforce(&world, "--memory", least_memory()) {
        return;
    }
    let other = world.detached([], "sleep 1000");

    let killed = world.python(["--memory", least_memory()], "x = bytearray(512 << 20); print(len(x))").run();

    assert_eq!((killed.code, killed.stdout.as_str()), (137, ""), "{killed}");
    assert!(killed.stderr.contains("memory"), "{killed}");
    assert_eq!(world.state(&other)["status"], "running");
    let fits = world.python(["--memory", "640M"], "x = bytearray(512 << 20); print(len(x))").run();
    assert_eq!(fits.succeeded(), "536870912\n", "the limit is the cause");
}

#[test]
fn limits_memory_counts_files_in_memory_too() {
    let world = World::new();
    if !can_enforce(&world, "--memory", least_memory()) {
        return;
    }

    for place in ["/dev/shm/big", "/run/big"] {
        let filled = world
            .sh(["--memory", least_memory()], &format!("head -c 400M /dev/zero > {place}; echo $?"))
            .run();

        assert_ne!(filled.stdout, "0\n", "{place}: {filled}");
    }
    assert_host_responsive(&world);
}

#[test]
fn limits_out_of_memory_is_remembered() {
    let world = World::new();
    if !can_enforce(&world, "--memory", least_memory()) {
        return;
    }

    let sandbox = world
        .airlock(["run", "-d", "--memory", least_memory(), "--", "python3", "-c", "bytearray(512 << 20)"])
        .run()
        .succeeded();
    let sandbox = sandbox.trim_end();
    world.airlock(["wait", sandbox]).run();

    let state = world.state(sandbox);
    assert_eq!(
        (&state["exit"]["code"], &state["exit"]["cause"]["cause"]),
        (&Value::from(137), &Value::from("out_of_memory")),
        "{state}"
    );
}

#[test]
fn limits_a_memory_bomb_leaves_the_host_responsive() {
    let world = World::new();
    if !can_enforce(&world, "--memory", "128M") {
        return;
    }
    let bomb = "import os\nfor _ in range(4): os.fork()\nx = []\nwhile True: x.append(bytearray(1 << 20))";

    let running = world.python(["--memory", "128M", "--timeout", "30"], bomb).start();
    assert_host_responsive(&world);

    assert_eq!(running.wait().code, 137);
}

#[test]
fn limits_pids_hold_a_counting_fork_bomb() {
    let world = World::new();
    let probe = r#"
count = 0
while True:
    try:
        if os.fork() == 0:
            os.read(os.pipe()[0], 1)
    except OSError as err:
        say(word(err.errno), count)
        break
    count += 1
os.kill(-1, 9)
"#;

    let said = inside(&world, ["--pids", "40"], probe);

    let (error, count) = said.trim_end().split_once(' ').expect("two words");
    assert_eq!(error, "EAGAIN");
    let count: u32 = count.parse().expect("a number");
    assert!((20..=40).contains(&count), "{count}");
}

#[test]
fn limits_a_fork_bomb_leaves_the_host_responsive() {
    let world = World::new();

    let running =
        world.sh(["--pids", "200", "--timeout", "3"], "bomb() { bomb | bomb & }; bomb; sleep 1000").start();
    world.wait_running(&running);
    assert_host_responsive(&world);

    assert_eq!(running.wait().code, 124);
}

#[test]
fn limits_cpus_hold_a_busy_loop() {
    let world = World::new();
    if !can_enforce(&world, "--cpus", "0.2") {
        return;
    }
    if is_machine() {
        return assert_machine_is_held(&world);
    }
    let busy =
        "import time\nend = time.time() + 3\nwhile time.time() < end: pass\nprint(time.process_time() / 3)";

    let used: f64 =
        world.python(["--cpus", "0.2"], busy).run().succeeded().trim_end().parse().expect("a number");

    assert!(used < 0.35, "{used} of a CPU");
}

/// Clocks inside a machine do not know when it was held: its monitor's on the host do.
fn assert_machine_is_held(world: &World) {
    let id = world.detached(["--cpus", "0.2"], "while :; do :; done");
    let init = world.state(&id)["init_pid"].to_string();
    let monitor = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).expect("its children");
    let (before, began) = (processor_time(monitor.trim()), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let used = (processor_time(monitor.trim()) - before) / began.elapsed().as_secs_f64();

    assert!(used < 0.35, "{used} of a CPU");
}

/// Seconds of all threads of a process.
fn processor_time(pid: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

#[test]
fn limits_nofile_holds_and_cannot_be_raised() {
    let world = World::new();
    let probe = r#"
import resource
say(resource.getrlimit(resource.RLIMIT_NOFILE))
try: resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000)); say("raised")
except (ValueError, OSError): say("held")
files = []
say(tried(lambda: [files.append(os.dup(0)) for _ in range(1000)]), len(files) <= 64)
"#;

    assert_eq!(inside(&world, ["--nofile", "64"], probe), "(64, 64)\nheld\nEMFILE True\n");
}

#[test]
fn limits_open_files_run_out_inside_only() {
    let world = World::new();
    let sandbox = world
        .airlock([
            "run",
            "-d",
            "--pids",
            "50",
            "--",
            "python3",
            "-c",
            &script(
                r#"
for _ in range(20):
    if os.fork() == 0: break
files = []
forever, _end = os.pipe()
tried(lambda: [files.append(os.dup(0)) for _ in range(1 << 20)])
say("full")
os.read(forever, 1)
"#,
            ),
        ])
        .run()
        .succeeded();
    let sandbox = sandbox.trim_end();

    eventually("all files are open", || {
        (world.airlock(["logs", sandbox]).run().stdout.lines().count() >= 21).then_some(())
    });

    assert_host_responsive(&world);
    world.exec(sandbox, "true").run().succeeded();
}

#[test]
fn limits_a_program_that_takes_too_long_is_asked_to_end() {
    let world = World::new();
    let began = Instant::now();

    let ended =
        world.sh(["--timeout", "1"], "trap 'echo asked; exit 3' TERM; while :; do sleep 0.05; done").run();

    assert_eq!((ended.code, ended.stdout.as_str()), (124, "asked\n"), "{ended}");
    assert!(began.elapsed() < Duration::from_secs(9), "it had until SIGKILL");
}

#[test]
fn limits_a_program_that_does_not_want_to_end_is_killed() {
    let world = World::new();

    let ended = world
        .sh(["--timeout", "1"], "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        .deadline(DEADLINE)
        .run();

    assert_eq!((ended.code, ended.stdout.as_str()), (124, "ready\n"), "{ended}");
}

#[test]
fn limits_there_are_defaults_and_they_are_shown() {
    let world = World::new();
    let sandbox = world.detached([], "sleep 1000");

    let state = world.state(&sandbox);

    for name in ["memory", "pids", "nofile", "disk_reserve", "log"] {
        let entry = limit(&state, name);
        assert_eq!(entry["requested"], false, "{entry}");
        assert!(entry["value"].as_u64().is_some_and(|value| value > 0), "{entry}");
        let is_held = entry["by"] != "nothing";
        assert!(is_held || (name == "memory" && who() != Who::Root), "{entry}");
    }
    let host = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let host: u64 = host.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("MemTotal");
    assert!(limit(&state, "memory")["value"].as_u64().expect("bytes") < host * 1024);
}

#[test]
fn limits_that_were_asked_for_are_shown_as_such() {
    let world = World::new();
    let sandbox = world.detached(["--pids", "77", "--nofile", "99", "--timeout", "1h"], "sleep 1000");

    let state = world.state(&sandbox);

    for (name, value) in [("pids", 77), ("nofile", 99), ("timeout", 3_600_000)] {
        let entry = limit(&state, name);
        assert_eq!(
            (&entry["value"], &entry["requested"]),
            (&Value::from(value), &Value::from(true)),
            "{entry}"
        );
    }
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let world = World::new();

    for [flag, value] in [
        ["--memory", "0"],
        ["--memory", "1"],
        ["--pids", "0"],
        ["--pids", "-1"],
        ["--nofile", "0"],
        ["--cpus", "0"],
        ["--cpus", "-1"],
        ["--cpus", "nan"],
        ["--disk", "0"],
        ["--disk", "1G,nonsense"],
        ["--timeout", "0"],
        ["--memory", "99999999999999999999G"],
    ] {
        let refused = world.airlock(["run", &format!("{flag}={value}"), "--", "true"]).run();

        assert!([2, 125].contains(&refused.code), "{flag} {value}: {refused}");
    }
}

#[test]
fn limits_a_flood_of_output_stays_within_its_log() {
    let world = World::new();
    let sandbox =
        world.detached([], "yes 0123456789012345678901234567890123456789012345678901234567890123456789");
    let folder = world.home().join("sandboxes").join(&sandbox);
    let bound = limit(&world.state(&sandbox), "log")["value"].as_u64().expect("bytes");

    let mut most = 0;
    eventually("the log has been full", || {
        let now = logged(&folder);
        let is_shrinking = now < most;
        most = most.max(now);
        is_shrinking.then_some(())
    });
    for _ in 0..200 {
        most = most.max(logged(&folder));
    }

    assert!(most <= bound + (2 << 20), "{most} bytes of log, {bound} promised");
    assert_host_responsive(&world);
    assert!(world.airlock(["logs", "--tail", "2", &sandbox]).run().succeeded().lines().count() <= 2);
}

/// Bytes of all files of a sandbox's log.
fn logged(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().contains("log"));
    logs.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|stat| stat.len()).sum()
}

#[test]
fn limits_of_a_user_hold_in_a_group_that_root_has_handed_over() {
    let memory = Path::new("/sys/fs/cgroup/memory");
    if who() != Who::Root || !memory.join("memory.limit_in_bytes").exists() {
        return not_applicable("root hands over a group of version 1 here");
    }
    let world = World::new();
    let user = 61_234;
    let place = world.aside("user");
    fs::copy(binary(), place.join("airlock")).expect("a copy");
    fs::create_dir(place.join("work")).expect("a workspace");
    let owned = Command::new("chown")
        .args(["-R", &format!("{user}:{user}")])
        .arg(&place)
        .status()
        .expect("chown runs");
    let opened = Command::new("chmod")
        .arg("755")
        .arg(place.parent().expect("the world's place"))
        .status()
        .expect("chmod runs");
    assert!(owned.success() && opened.success());
    let groups: Vec<_> = ["memory", "pids", "cpu"]
        .iter()
        .map(|name| Path::new("/sys/fs/cgroup").join(name))
        .filter(|path| path.exists())
        .map(|path| path.join(format!("airlock-test-{}", std::process::id())))
        .collect();

    // A shell of root's enters the groups, hands them over and becomes the user.
    let enter = "for g in $GROUPS_; do mkdir $g && chown -R 61234:61234 $g && echo $$ > $g/cgroup.procs || exit 99; done; \
                 exec setpriv --reuid 61234 --regid 61234 --clear-groups -- \"$0\" run --memory 64M -- python3 -c 'bytearray(512 << 20)'";
    let names: Vec<String> = groups.iter().map(|group| group.display().to_string()).collect();
    let output = Command::new("sh")
        .args(["-c", enter])
        .arg(place.join("airlock"))
        .env_clear()
        .env("GROUPS_", names.join(" "))
        .env("PATH", "/usr/bin:/bin:/usr/sbin")
        .env("HOME", &place)
        .env("AIRLOCK_HOME", place.join("home"))
        .current_dir(place.join("work"))
        .output()
        .expect("sh runs");
    let removed: Vec<bool> = groups.iter().map(|group| eventually_removed(group)).collect();

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{stderr}");
    assert!(stderr.contains("memory"), "{stderr}");
    assert!(removed.iter().all(|gone| *gone), "groups of the sandbox were left in {names:?}");
}

/// Removes a group that nothing may be left in.
fn eventually_removed(group: &Path) -> bool {
    let end = Instant::now() + Duration::from_secs(5);
    while fs::remove_dir(group).is_err() {
        if Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
