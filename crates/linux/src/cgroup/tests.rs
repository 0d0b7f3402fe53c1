//! Limits on the running kernel. A child is this test binary once more, doing what [`stage`] is told by the environment.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::layout::{Kernel, Probe};
use super::*;

const STAGE: &str = "AIRLOCK_TEST_STAGE";
const NOBODY: u32 = 54_321;

fn skip(why: &str) {
    assert!(
        std::env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|value| value != "1"),
        "cannot run here: {why}"
    );
    eprintln!("skipped: {why}");
}

/// A host has a controller in one version only, so one of two tests is always for another host: no failure even when strict.
fn of_other_host(why: &str) {
    eprintln!("skipped: {why}");
}

/// The layout of this host if root may use all of `controllers` here.
fn usable(controllers: &[Controller]) -> Option<Layout> {
    let layout = layout().unwrap();
    let cannot = controllers.iter().find_map(|one| layout.can(*one).err());
    match cannot {
        Some(why) => {
            skip(&format!("{why} ({})", why.fix()));
            None
        }
        None => Some(layout),
    }
}

fn fresh_id(what: &str) -> String {
    format!("test-{what}-{}", std::process::id())
}

fn stage_command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cgroup::tests::stage", "--nocapture", "--test-threads=1"]);
    command.env(STAGE, name).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A child that waits for a line on stdin before it plays its part.
fn start(name: &str) -> Child {
    stage_command(name).spawn().unwrap()
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn go(child: &mut Child) {
    writeln!(child.stdin.as_mut().unwrap(), "go").unwrap();
}

/// The first line of the child's output that starts with `word`, without it.
fn hear(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let found = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once(word).map(|(_, rest)| rest.trim().to_owned()));
    found.unwrap_or_else(|| panic!("the child ended before it said {word}"))
}

/// What a child does. Without the variable this is an empty test.
#[test]
fn stage() {
    let Ok(part) = std::env::var(STAGE) else { return };
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match part.as_str() {
        "hog" => {
            let mut blocks = Vec::new();
            loop {
                blocks.push(vec![1_u8; 1 << 20]);
            }
        }
        "bomb" => bomb(),
        "spin" => spin(),
        "count" => count(),
        "wait" => {
            let _ = std::io::stdin().read_line(&mut line);
        }
        "ordinary" => ordinary(),
        other => panic!("no part {other}"),
    }
}

fn bomb() {
    let mut children = Vec::new();
    let refused = loop {
        match Command::new("sleep").arg("60").spawn() {
            Ok(child) => children.push(child),
            Err(refused) => break refused,
        }
        assert!(children.len() < 200, "nothing bounds us");
    };
    println!("forked {} {:?}", children.len(), refused.raw_os_error());
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn spin() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1200) {
        std::hint::black_box(0);
    }
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    println!("used {}", used.tv_sec * 1000 + used.tv_nsec / 1_000_000);
}

/// Writes one byte after the other to stdout, as a sign of life.
fn count() {
    println!("begun");
    loop {
        print!(".");
        std::io::stdout().flush().unwrap();
    }
}

/// An ordinary user: says what can be limited, and tries it.
fn ordinary() {
    let layout = layout().unwrap();
    let fixes: Vec<String> = [Controller::Memory, Controller::Pids]
        .into_iter()
        .filter_map(|one| layout.can(one).err().map(|cannot| format!("{cannot}; {}", cannot.fix())))
        .collect();
    println!("fixes {}", fixes.join(" | "));
    let id = std::env::var("AIRLOCK_TEST_ID").unwrap();
    match Group::create(&layout, &id, &Limits { pids: Some(5), ..Limits::default() }, &[]) {
        Err(refused) => println!("outcome {refused}"),
        Ok(group) => {
            let mut child = start("bomb");
            group.admit(pid_of(&child)).unwrap();
            go(&mut child);
            println!("outcome forked {}", hear(&mut child, "forked "));
            child.wait().unwrap();
            group.remove().unwrap();
        }
    }
}

#[test]
fn a_process_over_its_memory_is_killed_and_counted() {
    let Some(layout) = usable(&[Controller::Memory]) else { return };
    let limits = Limits { memory: Some(48 << 20), ..Limits::default() };
    let group = Group::create(&layout, &fresh_id("hog"), &limits, &[]).unwrap();
    let mut hog = start("hog");
    group.admit(pid_of(&hog)).unwrap();

    go(&mut hog);
    let status = hog.wait().unwrap();

    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert!(group.oom_kills() >= 1);
    assert!(group.memory_peak().is_none_or(|peak| peak > 40 << 20 && peak <= 48 << 20));
    let paths = group.paths().to_vec();
    group.remove().unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
}

#[test]
fn a_fork_bomb_stops_at_its_bound() {
    let Some(layout) = usable(&[Controller::Pids]) else { return };
    let group =
        Group::create(&layout, &fresh_id("bomb"), &Limits { pids: Some(12), ..Limits::default() }, &[])
            .unwrap();
    let mut bomb = start("bomb");
    group.admit(pid_of(&bomb)).unwrap();

    go(&mut bomb);
    let forked = hear(&mut bomb, "forked ");

    let (count, errno) = forked.split_once(' ').unwrap();
    assert!(count.parse::<usize>().unwrap() <= 11, "{forked}");
    assert_eq!(errno, "Some(11)");
    bomb.wait().unwrap();
    group.remove().unwrap();
}

#[test]
fn a_spinning_process_gets_its_share_only() {
    let Some(layout) = usable(&[Controller::Cpu]) else { return };
    let limits = Limits { cpu_millis: Some(200), ..Limits::default() };
    let group = Group::create(&layout, &fresh_id("spin"), &limits, &[]).unwrap();
    let mut spinner = start("spin");
    group.admit(pid_of(&spinner)).unwrap();

    go(&mut spinner);
    let used: u64 = hear(&mut spinner, "used ").parse().unwrap();

    assert!(used < 600, "{used} ms of 1200");
    spinner.wait().unwrap();
    group.remove().unwrap();
}

#[test]
fn a_child_that_enters_by_itself_is_bound() {
    let Some(layout) = usable(&[Controller::Pids]) else { return };
    if layout.version_of(Controller::Pids) != Some(Version::V1) {
        return of_other_host("pids is not on version 1");
    }
    let group =
        Group::create(&layout, &fresh_id("entry"), &Limits { pids: Some(6), ..Limits::default() }, &[])
            .unwrap();
    let entries = group.entries().unwrap();
    let raw: Vec<i32> = entries.iter().map(AsRawFd::as_raw_fd).collect();
    let mut command = stage_command("bomb");
    let enter = move || {
        for fd in &raw {
            // SAFETY: the descriptor is open in the parent and thus in the child; the buffer is one static byte.
            if unsafe { libc::write(*fd, c"0".as_ptr().cast(), 1) } != 1 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes write calls only, which are async-signal-safe; an error is returned as a number.
    let command = unsafe { command.pre_exec(enter) };

    let mut child = command.spawn().unwrap();
    go(&mut child);
    let forked = hear(&mut child, "forked ");

    assert!(forked.split_once(' ').unwrap().0.parse::<usize>().unwrap() <= 5, "{forked}");
    child.wait().unwrap();
    group.remove().unwrap();
}

/// Whether the child writes to its stdout: `true` as soon as something is there, `false` if nothing comes for a while.
fn is_running(child: &Child) -> bool {
    let out = child.stdout.as_ref().unwrap();
    let mut watch = [rustix::event::PollFd::new(out, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 150_000_000 };
    rustix::event::poll(&mut watch, Some(&patience)).unwrap() > 0
}

fn drain(child: &Child) {
    let out = child.stdout.as_ref().unwrap();
    rustix::io::ioctl_fionbio(out, true).unwrap();
    let mut buffer = [0_u8; 1 << 16];
    while rustix::io::read(out, &mut buffer).is_ok_and(|length| length > 0) {}
    rustix::io::ioctl_fionbio(out, false).unwrap();
}

fn freezes_and_thaws(group: &Group) {
    let mut counter = start("count");
    group.admit(pid_of(&counter)).unwrap();
    go(&mut counter);
    hear(&mut counter, "begun");

    group.freeze().unwrap();
    drain(&counter);
    assert!(!is_running(&counter), "still running when frozen");
    group.thaw().unwrap();
    assert!(is_running(&counter), "not running when thawed");

    group.freeze().unwrap();
    group.kill_all().unwrap();
    counter.wait().unwrap();
}

#[test]
fn frozen_processes_stand_still_go_on_and_can_be_killed() {
    let Some(layout) = usable(&[Controller::Pids, Controller::Freezer]) else { return };
    let group =
        Group::create(&layout, &fresh_id("ice"), &Limits { pids: Some(50), ..Limits::default() }, &[])
            .unwrap();

    freezes_and_thaws(&group);

    let paths = group.paths().to_vec();
    group.remove().unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
}

#[test]
fn leftovers_are_killed_and_removed_by_path() {
    let Some(layout) = usable(&[Controller::Pids, Controller::Memory]) else { return };
    let wanted = [Controller::Pids, Controller::Memory];
    let group = Group::create(&layout, &fresh_id("left"), &Limits::default(), &wanted).unwrap();
    let mut waiter = start("wait");
    group.admit(pid_of(&waiter)).unwrap();
    let _ = group.freeze();
    let paths = group.paths().to_vec();
    fs::create_dir(paths.last().unwrap().join("made-inside")).unwrap();
    drop(group);

    remove_leftovers(&paths).unwrap();

    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&waiter.wait().unwrap()), Some(9));
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    remove_leftovers(&paths).unwrap();
}

#[test]
fn a_second_group_of_the_same_name_is_refused_and_the_first_lives() {
    let Some(layout) = usable(&[Controller::Pids]) else { return };
    let id = fresh_id("twin");
    let group = Group::create(&layout, &id, &Limits::default(), &[Controller::Pids]).unwrap();
    let mut waiter = start("wait");
    group.admit(pid_of(&waiter)).unwrap();

    let second = Group::create(&layout, &id, &Limits::default(), &[Controller::Pids]);

    assert!(matches!(second, Err(Error::Make { .. })), "{second:?}");
    assert!(waiter.try_wait().unwrap().is_none());
    group.remove().unwrap();
    waiter.wait().unwrap();
}

/// An ordinary user, in the group of version 1 hierarchy `pids` at `own`, who runs the `ordinary` part.
fn as_ordinary(id: &str) -> String {
    let mut command = stage_command("ordinary");
    let mut child = command.env("AIRLOCK_TEST_ID", id).uid(NOBODY).gid(NOBODY).spawn().unwrap();
    go(&mut child);
    let outcome = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

/// The mount of the version 1 `pids` hierarchy, if we are root on such a host.
fn v1_pids() -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        skip("not root");
        return None;
    }
    let texts = (
        fs::read_to_string("/proc/self/mountinfo").unwrap(),
        fs::read_to_string("/proc/self/cgroup").unwrap(),
    );
    let mount = parse(&texts.0, &texts.1)
        .into_iter()
        .find(|one| one.controllers.contains(&Controller::Pids))
        .map(|one| one.mount);
    if mount.is_none() {
        of_other_host("pids is not on version 1");
    }
    mount
}

#[test]
fn an_ordinary_user_needs_a_group_of_their_own_and_is_told_how() {
    let Some(mount) = v1_pids() else { return };
    let given = mount.join(format!("airlock.{NOBODY}"));
    let id = fresh_id("user");

    let before = as_ordinary(&id);
    fs::create_dir(&given).unwrap();
    std::os::unix::fs::chown(&given, Some(NOBODY), Some(NOBODY)).unwrap();
    let after = as_ordinary(&id);
    fs::remove_dir(&given).unwrap();

    let fix = format!("sudo install -d -o {NOBODY} {}", given.display());
    assert!(before.contains(&fix), "{before}");
    assert!(before.contains("outcome cannot limit pids here: "), "{before}");
    assert!(after.contains("outcome forked "), "{after}");
}

/// This host's version 2 hierarchy alone, as on a host that has nothing else.
fn v2_alone() -> Option<(Layout, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        skip("not root");
        return None;
    }
    let texts = (
        fs::read_to_string("/proc/self/mountinfo").unwrap(),
        fs::read_to_string("/proc/self/cgroup").unwrap(),
    );
    let v2: Vec<Hierarchy> =
        parse(&texts.0, &texts.1).into_iter().filter(|one| one.version == Version::V2).collect();
    let Some(mount) = v2.first().map(|one| one.mount.clone()) else {
        skip("no version 2 hierarchy");
        return None;
    };
    Some((Layout::decide(v2, 0, &Kernel), mount))
}

#[test]
fn version_2_freezes_kills_and_removes() {
    let Some((layout, _)) = v2_alone() else { return };
    let group = Group::create(&layout, &fresh_id("two"), &Limits::default(), &[Controller::Freezer]).unwrap();
    assert!(group.clone_into_fd().is_some());

    freezes_and_thaws(&group);

    assert!(group.cpu_time().is_some_and(|used| used > Duration::ZERO));
    let paths = group.paths().to_vec();
    group.remove().unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
}

#[test]
fn a_delegated_version_2_group_is_emptied_into_a_leaf_before_controllers_are_handed_down() {
    let Some((_, mount)) = v2_alone() else { return };
    let base = mount.join(fresh_id("delegated"));
    fs::create_dir(&base).unwrap();
    let mut waiter = start("wait");
    fs::write(base.join("cgroup.procs"), waiter.id().to_string()).unwrap();
    let own =
        vec![Hierarchy { version: Version::V2, controllers: Vec::new(), mount, own: Some(base.clone()) }];
    let layout = Layout::decide(own, 0, &InScope);
    let id = fresh_id("inner");

    let group = Group::create(&layout, &id, &Limits::default(), &[Controller::Freezer]).unwrap();

    assert_eq!(group.paths(), [base.join(format!("airlock-{id}"))]);
    assert_eq!(
        fs::read_to_string(base.join("airlock-keeper/cgroup.procs")).unwrap().trim(),
        waiter.id().to_string()
    );
    waiter.kill().unwrap();
    waiter.wait().unwrap();
    group.remove().unwrap();
    let _ = fs::remove_dir(base.join("airlock-keeper"));
    fs::remove_dir(&base).unwrap();
}

#[test]
fn groups_come_and_go_at_once_without_treading_on_each_other() {
    let Some((layout, _)) = v2_alone() else { return };
    let wanted: Vec<Controller> =
        [Controller::Pids, Controller::Freezer].into_iter().filter(|one| layout.can(*one).is_ok()).collect();
    let come_and_go = |thread: usize| {
        for round in 0..20 {
            let id = fresh_id(&format!("crowd-{thread}-{round}"));
            let group = Group::create(&layout, &id, &Limits::default(), &wanted).unwrap();
            let path = group.paths()[0].clone();
            group.remove().unwrap();
            assert!(!path.exists());
        }
    };

    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || come_and_go(thread));
        }
    });
}

/// `struct clone_args`, linux/sched.h.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pointers: [u64; 3],
    exit_signal: u64,
    stack: [u64; 5],
    cgroup: u64,
}

#[test]
fn a_child_can_be_born_in_a_version_2_group() {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let Some((layout, _)) = v2_alone() else { return };
    let group =
        Group::create(&layout, &fresh_id("born"), &Limits::default(), &[Controller::Freezer]).unwrap();
    let cgroup = u64::try_from(group.clone_into_fd().unwrap().as_raw_fd()).unwrap();
    let args = CloneArgs { flags: CLONE_INTO_CGROUP, exit_signal: 17, cgroup, ..CloneArgs::default() };

    // SAFETY: like fork; the child below makes only the pause call until it is killed.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    if pid == 0 {
        loop {
            // SAFETY: waits for a signal, nothing else.
            unsafe { libc::pause() };
        }
    }

    let listed = fs::read_to_string(group.paths()[0].join("cgroup.procs")).unwrap();
    assert_eq!(listed.trim(), pid.to_string());
    group.kill_all().unwrap();
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
    group.remove().unwrap();
}

#[test]
fn an_ordinary_user_in_a_delegated_version_2_group_is_bound() {
    let Some((layout, mount)) = v2_alone() else { return };
    if layout.can(Controller::Pids).is_err() {
        return of_other_host("pids is not on version 2");
    }
    let base = mount.join(fresh_id("given"));
    fs::write(mount.join("cgroup.subtree_control"), "+pids").unwrap();
    fs::create_dir(&base).unwrap();
    for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        std::os::unix::fs::chown(base.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = stage_command("ordinary");
    let mut child = command
        .stderr(Stdio::inherit())
        .env("AIRLOCK_TEST_ID", fresh_id("in"))
        .uid(NOBODY)
        .gid(NOBODY)
        .spawn()
        .unwrap();
    fs::write(base.join("cgroup.procs"), child.id().to_string()).unwrap();

    go(&mut child);
    let outcome = child.wait_with_output().unwrap();

    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(said.contains("outcome forked "), "{said}");
    let count = said.split_once("outcome forked ").and_then(|(_, rest)| rest.split_once(' ')).unwrap().0;
    assert!(count.parse::<usize>().unwrap() < 5, "{said}");
    let _ = fs::remove_dir(base.join("airlock-keeper"));
    fs::remove_dir(&base).unwrap();
}

/// Answers as inside a delegated scope.
struct InScope;

impl Probe for InScope {
    fn may_write(&self, _path: &Path) -> rustix::io::Result<()> {
        Ok(())
    }
    fn is_hierarchy_root(&self, _mount: &Path) -> bool {
        false
    }
    fn is_marked_delegated(&self, _dir: &Path) -> bool {
        true
    }
    fn controllers(&self, _dir: &Path) -> Vec<Controller> {
        vec![Controller::Memory, Controller::Pids]
    }
}

#[test]
#[ignore = "a measurement: prints what a group costs on this host"]
fn what_a_group_costs() {
    let Some(layout) = usable(&[Controller::Pids, Controller::Memory]) else { return };
    let limits = Limits { memory: Some(1 << 30), pids: Some(100), cpu_millis: None };
    for round in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        let asked = Instant::now();
        let _ = super::layout().unwrap();
        let laid_out = asked.elapsed();
        let begun = Instant::now();
        let group = Group::create(&layout, &fresh_id(&format!("cost{round}")), &limits, &[]).unwrap();
        let created = begun.elapsed();
        let mut waiter = start("wait");
        let begun = Instant::now();
        group.admit(pid_of(&waiter)).unwrap();
        let admitted = begun.elapsed();
        go(&mut waiter);
        drop(waiter.stdin.take());
        waiter.wait().unwrap();
        let begun = Instant::now();
        group.remove().unwrap();
        println!("layout {laid_out:?}, create {created:?}, admit {admitted:?}, remove {:?}", begun.elapsed());
    }
}
