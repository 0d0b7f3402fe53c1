//! Machines that go on from their memory, and memory that goes back to the host.

use airlock_tests::{World, eventually, internet};
use std::{fs, time::SystemTime};

const MACHINE: [&str; 2] = ["--backend", "microvm"];
const COUNTS: &str =
    "exec 3>/tmp/kept; n=0; while :; do n=$((n+1)); echo $n >&3; echo n $n; sleep 0.05; done";

/// The highest number that a program which counts has told.
fn counted(world: &World, id: &str) -> Option<u64> {
    let logs = world.airlock(["logs", id]).run().stdout;
    logs.lines().filter_map(|line| line.strip_prefix("n ")?.parse().ok()).max()
}

fn counts_beyond(world: &World, id: &str, number: u64) -> u64 {
    eventually("it counts", || counted(world, id).filter(|count| *count > number))
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn copies_of_a_machine_go_on_where_its_programs_were_and_it_goes_on_too() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(MACHINE.into_iter().chain(["--name", "first"]), COUNTS);
    counts_beyond(&world, &id, 3);
    world.exec(&id, "nohup sleep 7777 >/dev/null 2>&1 & touch /tmp/before").run().succeeded();

    world.airlock(["snapshot", &id, "--memory", "--name", "still"]).run().succeeded();
    let then = counted(&world, &id).expect("it counted");
    world.exec(&id, "touch /tmp/after").run().succeeded();
    counts_beyond(&world, &id, then + 3);

    let forked = world.airlock(["fork", "still", "-n", "2", "--start"]).run().succeeded();
    let copies = lines(&forked);
    assert_eq!(copies.len(), 2);
    let mut random = Vec::new();
    for copy in &copies {
        let logs = world.airlock(["logs", copy]).run().stdout;
        let first = eventually("it counts", || {
            let logs = world.airlock(["logs", copy]).run().stdout;
            logs.lines().find_map(|line| line.strip_prefix("n ")?.parse::<u64>().ok())
        });
        assert!(first > 3 && first <= then + 3, "it went on at {first}, not behind {then}: {logs}");
        counts_beyond(&world, copy, first + 3);

        // Its open file goes on, without a hole; what came later is not there; what ran runs.
        let script = "cat /tmp/kept; ls /tmp/before /tmp/after 2>/dev/null; pgrep -f '[s]leep 7777' >/dev/null && echo runs; hostname; \
                      date +%s; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '";
        let before = now();
        let told = lines(&world.exec(copy, script).run().succeeded());
        let asked = before - 5..=now() + 5;
        let numbers: Vec<u64> = told.iter().map_while(|line| line.parse().ok()).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        assert!(numbers.len() as u64 > first, "{numbers:?}");
        let rest: Vec<&str> = told[numbers.len()..].iter().map(String::as_str).collect();
        let name = world.state(copy)["name"].as_str().expect("a name").to_owned();
        assert_eq!(rest[..3], ["/tmp/before", "runs", &name], "{told:?}");
        let time: i64 = rest[3].parse().expect("a time");
        // An emulated processor may take long between telling the time and its end.
        assert!(asked.contains(&time), "{time} is not in {asked:?}");
        random.push(rest[4].to_owned());
    }
    assert_ne!(random[0], random[1]);

    // Each ends by itself, and boots anew after that.
    world.airlock(["stop", "-t", "1", &copies[0]]).run().succeeded();
    counts_beyond(&world, &copies[1], 3);
    world.airlock(["start", &copies[0]]).run().succeeded();
    eventually("it began again", || {
        world.airlock(["logs", &copies[0]]).run().stdout.lines().any(|line| line == "n 1").then_some(())
    });
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    i64::try_from(now.as_secs()).expect("a time")
}

#[test]
fn a_machine_that_runs_is_forked_with_its_memory_and_can_be_forked_again() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(MACHINE, COUNTS);
    let before = counts_beyond(&world, &id, 3);
    let first = world.airlock(["fork", &id, "--memory", "--start"]).run().succeeded().trim().to_owned();
    counts_beyond(&world, &first, before);
    let second = world.airlock(["fork", &first, "--memory", "--start"]).run().succeeded().trim().to_owned();
    counts_beyond(&world, &second, before);

    // The end of its program is told with its code.
    world.exec(&second, "kill -9 $(pgrep -f 'echo [n] ')").run();
    let ended = world.airlock(["wait", &second]).run();
    assert_eq!(ended.stdout.trim(), "137", "{ended}");
    let left = fs::read_dir(world.home().join("snapshots")).map_or(0, |entries| entries.flatten().count());
    assert_eq!(left, 0, "nothing is left of memory that was only forked from");
}

#[test]
fn a_connection_of_a_copy_ends_and_a_new_one_is_made_by_its_own_rules() {
    let Some(world) = World::with_machines() else { return };
    let Some(internet) = internet() else { return };
    let name = internet.name("web");
    let script = format!(
        "import socket, sys, time\n\
         s = socket.create_connection(('{name}', 80))\n\
         print('connected', flush=True)\n\
         try:\n    got = s.recv(1)\n    print('end', len(got), flush=True)\n\
         except OSError as err:\n    print('end', err.errno, flush=True)\n\
         socket.create_connection(('{name}', 80))\n\
         print('again', flush=True)\n\
         time.sleep(1000)\n"
    );
    let run =
        ["run", "-d", MACHINE[0], MACHINE[1], "--allow", &name, "--workspace", "none", "--workdir", "/tmp"];
    let id =
        world.airlock(run).args(["--", "python3", "-c", &script]).run().succeeded().trim_end().to_owned();
    let said = |id: &str, what: &str| world.airlock(["logs", id]).run().stdout.contains(what);
    eventually("a connection", || said(&id, "connected").then_some(()));

    let copy = world.airlock(["fork", &id, "--memory", "--start"]).run().succeeded().trim().to_owned();

    eventually("its end", || said(&copy, "again").then_some(()));
    assert!(!said(&id, "end"), "the first one's connection is as it was");
}

#[test]
fn a_machine_goes_on_when_whoever_saves_its_memory_is_killed() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(MACHINE, COUNTS);
    let before = counts_beyond(&world, &id, 3);
    let mut command = world.airlock(["snapshot", &id, "--memory"]).into_command();
    let mut saving = command.spawn().expect("it starts");
    eventually("it stands still", || {
        let has_ended = saving.try_wait().expect("a child").is_some();
        (has_ended || world.state(&id)["status"] == "paused").then_some(())
    });
    let _ = saving.kill();
    saving.wait().expect("it ends");

    counts_beyond(&world, &id, before + 5);
    world.airlock(["snapshot", &id, "--memory"]).run().succeeded();
    counts_beyond(&world, &id, before + 10);
}

#[test]
fn memory_is_saved_of_machines_that_run_and_of_nothing_else() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(["--backend", "namespaces"], "sleep 1000");
    let refused = world.airlock(["snapshot", &id, "--memory"]).run();
    assert_ne!(refused.code, 0);
    assert!(
        refused.stderr.contains("only a machine (--backend microvm) has a memory of its own"),
        "{refused}"
    );
    assert_eq!(world.state(&id)["status"], "running");
    world.airlock(["stop", "-t", "0", &id]).run().succeeded();
    let refused = world.airlock(["fork", &id, "--memory"]).run();
    assert!(refused.code != 0 && refused.stderr.contains("it does not run"), "{refused}");
}

#[test]
fn memory_that_programs_gave_back_goes_back_to_the_host() {
    let Some(world) = World::with_machines() else { return };
    let id = world.detached(MACHINE, "sleep 1000");
    let init = world.state(&id)["init_pid"].as_u64().expect("a pid");
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).expect("children");
    let monitor = children.split_whitespace().next().expect("a monitor").to_owned();
    let resident = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{monitor}/status")).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
    };

    world.exec(&id, "head -c 200M /dev/zero | tr '\\0' x > /dev/shm/much").run().succeeded();
    let most = resident();
    world.exec(&id, "rm /dev/shm/much").run().succeeded();

    eventually("the memory", || (resident() + 150 < most).then_some(()));
}
