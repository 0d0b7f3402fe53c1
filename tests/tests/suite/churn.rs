//! Many sandboxes at once, and ends at every moment: nothing may be left behind.

use airlock_tests::{World, eventually, many, who};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How many sandboxes are started at once.
const MANY: usize = 200;
/// At how many points of a start it is cut short.
const POINTS: usize = 100;

/// A command line with its output thrown away.
fn quiet(world: &World, args: &[&str]) -> Command {
    let mut command = world.airlock(args).into_command();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts the same command many times and waits for all; gives how many failed.
fn at_once(world: &World, lines: &[Vec<&str>]) -> usize {
    let started: Vec<Child> =
        lines.iter().map(|args| quiet(world, args).spawn().expect("airlock runs")).collect();
    started
        .into_iter()
        .map(|mut child| child.wait().expect("our own child"))
        .filter(|status| !status.success())
        .count()
}

/// Namespaces of a process, as far as this user may see them.
fn namespaces(pid: u64) -> BTreeSet<String> {
    let names = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
    let links = names.iter().filter_map(|name| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok());
    links.map(|link| link.display().to_string()).collect()
}

/// Namespaces of all processes.
fn all_namespaces() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).flat_map(namespaces).collect()
}

/// Processes of this world's keepers and command lines.
fn processes(world: &World) -> Vec<Pid> {
    let mark = format!("AIRLOCK_HOME={}", world.home().display()).into_bytes();
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark)
    });
    ours.filter_map(Pid::from_raw).collect()
}

fn kill_all(world: &World) {
    for pid in processes(world) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Where control groups of sandboxes lie: every directory below the hierarchies whose name has this id.
fn control_groups(ids: &[String]) -> Vec<String> {
    let found = Command::new("find").args(["/sys/fs/cgroup", "-type", "d"]).output().expect("find runs");
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    text.lines().filter(|line| ids.iter().any(|id| line.contains(id))).map(str::to_owned).collect()
}

fn names_left(world: &World) -> Vec<String> {
    let folders = ["sandboxes", "names"].map(|folder| world.home().join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    entries.map(|entry| entry.path().display().to_string()).collect()
}

#[test]
fn two_hundred_programs_at_once_leave_nothing_behind() {
    let world = World::new();
    world.sh([], "true").run().succeeded();

    let failed = at_once(&world, &vec![vec!["run", "--", "true"]; many(MANY)]);

    assert_eq!(failed, 0);
    eventually("nobody is left", || processes(&world).is_empty().then_some(()));
    assert_eq!(names_left(&world), Vec::<String>::new());
    world.clear();
}

#[test]
fn two_hundred_sandboxes_started_and_removed_at_once_leave_nothing_behind() {
    let world = World::new();
    world.sh([], "true").run().succeeded();

    let failed = at_once(&world, &vec![vec!["run", "-d", "--", "sleep", "1000"]; many(MANY)]);
    assert_eq!(failed, 0);
    let states = world.sandboxes();
    assert_eq!(states.len(), many(MANY));
    let inits: Vec<u64> = states.iter().filter_map(|state| state["init_pid"].as_u64()).collect();
    let own = namespaces(u64::from(std::process::id()));
    let made: BTreeSet<String> =
        inits.iter().flat_map(|pid| namespaces(*pid)).filter(|name| !own.contains(name)).collect();
    let ids: Vec<String> =
        states.iter().filter_map(|state| state["id"].as_str().map(str::to_owned)).collect();

    let removed = at_once(&world, &ids.iter().map(|id| vec!["rm", "--force", id]).collect::<Vec<_>>());

    assert_eq!(removed, 0);
    eventually("nobody is left", || processes(&world).is_empty().then_some(()));
    assert_eq!(names_left(&world), Vec::<String>::new());
    eventually("no namespace is left", || all_namespaces().is_disjoint(&made).then_some(()));
    assert_eq!(control_groups(&ids), Vec::<String>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!mounts.contains(&world.home().display().to_string()), "{mounts}");
}

/// How long a start takes here and now, so that the points of attack lie within it.
fn typical_start(world: &World) -> Duration {
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let began = Instant::now();
            world.sh([], "true").run().succeeded();
            began.elapsed()
        })
        .collect();
    times.sort();
    times.get(2).copied().expect("five of them")
}

/// Passes time without sleeping: the points of attack are moments, not events.
fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Everything is gone after `prune`, which must succeed.
#[track_caller]
fn assert_prune_clears(world: &World, ids: &[String]) {
    eventually("nobody is left", || processes(world).is_empty().then_some(()));
    let pruned = world.airlock(["prune"]).run();
    let states = world.sandboxes();
    assert_eq!((pruned.code, names_left(world)), (0, Vec::<String>::new()), "{pruned}\n{states:?}");
    assert_eq!(control_groups(ids), Vec::<String>::new());
    world.clear();
}

/// Starts a sandbox, lets it come to a point and calls `cut`.
fn cut_at_every_point(world: &World, line: &[&str], cut: impl Fn(&mut Child)) -> Vec<String> {
    let longest = typical_start(world).mul_f64(1.3);
    let mut ids = BTreeSet::new();
    let points = u32::try_from(many(POINTS)).expect("few");
    for point in 0..points {
        let mut child = quiet(world, line).spawn().expect("airlock runs");
        spin(longest.mul_f64(f64::from(point) / f64::from(points)));
        ids.extend(world.ids());
        cut(&mut child);
        let _ = child.kill();
        child.wait().expect("our own child");
    }
    ids.into_iter().collect()
}

#[test]
fn a_start_cut_short_anywhere_leaves_nothing_that_prune_does_not_clear() {
    let world = World::new();

    let ids = cut_at_every_point(&world, &["run", "-d", "--", "sleep", "1000"], |child| {
        let _ = child.kill();
        kill_all(&world);
    });
    // A keeper that was being born while the others died.
    eventually("nobody is left", || {
        kill_all(&world);
        processes(&world).is_empty().then_some(())
    });

    assert!(!ids.is_empty(), "no start was ever far enough: {:?}", who());
    assert_prune_clears(&world, &ids);
}

#[test]
fn a_command_line_killed_at_any_moment_takes_its_program_along() {
    let world = World::new();

    let ids = cut_at_every_point(&world, &["run", "--", "sleep", "1000"], |child| {
        let _ = child.kill();
    });

    eventually("nobody is left", || processes(&world).is_empty().then_some(()));
    assert_prune_clears(&world, &ids);
}

#[test]
fn keepers_killed_while_fifty_sandboxes_run_take_them_along() {
    let world = World::new();
    world.sh([], "true").run().succeeded();
    let some = many(50);
    assert_eq!(at_once(&world, &vec![vec!["run", "-d", "--", "sleep", "1000"]; some]), 0);
    let states = world.sandboxes();
    let pids = |key: &str| -> Vec<i32> {
        let found = states.iter().filter_map(|state| state[key].as_i64());
        found.filter_map(|pid| i32::try_from(pid).ok()).collect()
    };
    let (keepers, inits) = (pids("keeper_pid"), pids("init_pid"));
    assert_eq!((keepers.len(), inits.len()), (some, some));

    for keeper in keepers.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        kill_process(keeper, Signal::KILL).expect("a keeper");
    }

    eventually("every PID 1 is gone", || inits.iter().all(|pid| !is_alive(*pid)).then_some(()));
    let after = world.sandboxes();
    let is_crashed =
        |state: &Value| state["status"] == "crashed" && state["exit"]["cause"]["cause"] == "keeper_died";
    assert!(after.len() == some && after.iter().all(is_crashed), "{after:?}");
    let ids: Vec<String> =
        states.iter().filter_map(|state| state["id"].as_str().map(str::to_owned)).collect();
    assert_prune_clears(&world, &ids);
}

/// Whether a process runs; one that only waits to be reaped does not.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}
