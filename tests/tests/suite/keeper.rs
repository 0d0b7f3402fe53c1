//! One keeper per sandbox: what happens when it, or a command line, is killed.

use airlock_tests::{Who, World, eventually, search, who};
use rustix::process::{Pid, Signal, kill_process};

const FOREVER: &str = "echo ready; exec sleep 100000";

fn pid(state: &serde_json::Value, key: &str) -> Pid {
    Pid::from_raw(i32::try_from(state[key].as_u64().unwrap()).unwrap()).unwrap()
}

fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_killed_keeper_takes_its_sandbox_along() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);
    let state = world.state("web");
    let (keeper, init) = (pid(&state, "keeper_pid"), pid(&state, "init_pid"));

    kill_process(keeper, Signal::KILL).unwrap();

    eventually("PID 1 is gone", || (!is_alive(init)).then_some(()));
    let list = world.airlock(["ls"]).run().succeeded();
    assert!(list.contains("crashed"), "{list}");
    let state = world.state("web");
    assert_eq!(
        (&state["status"], &state["exit"]["cause"]["cause"]),
        (&"crashed".into(), &"keeper_died".into())
    );
    assert_eq!(world.airlock(["wait", "web"]).run().succeeded(), "137\n");
}

#[test]
fn a_crashed_sandbox_can_be_started_again_with_its_disk() {
    let world = World::new();
    world.detached(["--name", "web"], "echo run >> /root/runs; wc -l < /root/runs; exec sleep 100000");
    eventually("the first run", || world.airlock(["logs", "web"]).run().stdout.contains('1').then_some(()));
    kill_process(pid(&world.state("web"), "keeper_pid"), Signal::KILL).unwrap();
    eventually("crashed", || (world.state("web")["status"] == "crashed").then_some(()));

    world.airlock(["start", "web"]).run().succeeded();

    eventually("the second run", || {
        world.airlock(["logs", "web"]).run().stdout.ends_with("2\n").then_some(())
    });
    assert_eq!(world.state("web")["status"], "running");
}

#[test]
fn a_crashed_sandbox_is_pruned() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);
    kill_process(pid(&world.state("web"), "keeper_pid"), Signal::KILL).unwrap();

    eventually("it is pruned", || {
        world.airlock(["prune"]).run().succeeded();
        world.sandboxes().is_empty().then_some(())
    });

    assert!(world.ids().is_empty());
}

#[test]
fn a_foreground_command_line_tells_that_its_keeper_died() {
    let world = World::new();
    let running = world.sh([], FOREVER).start();
    running.wait_for("ready");
    let state = world.wait_running(&running);

    kill_process(pid(&state, "keeper_pid"), Signal::KILL).unwrap();

    let output = running.wait();
    assert!(output.code == 125 || output.code == 137, "{output}");
    assert!(output.stderr.starts_with("error: ") && output.stderr.contains("keeper"), "{output}");
}

#[test]
fn killing_the_command_line_of_a_detached_sandbox_changes_nothing() {
    let world = World::new();
    let running = world.sh(["-d", "--name", "web"], FOREVER).start();
    running.wait_for("\n");
    let _ = kill_process(Pid::from_raw(i32::try_from(running.pid()).unwrap()).unwrap(), Signal::KILL);
    drop(running);

    assert_eq!(world.exec("web", "echo alive").run().succeeded(), "alive\n");
    assert_eq!(world.state("web")["status"], "running");
}

#[test]
fn a_foreground_sandbox_ends_with_its_command_line() {
    let world = World::new();
    let running = world.sh([], FOREVER).start();
    running.wait_for("ready");
    let state = world.wait_running(&running);

    running.signal(Signal::KILL);

    eventually("PID 1 is gone", || (!is_alive(pid(&state, "init_pid"))).then_some(()));
    eventually("nothing is listed", || world.sandboxes().is_empty().then_some(()));
}

#[test]
fn a_signal_that_comes_while_the_sandbox_is_built_is_not_lost() {
    let world = World::new();
    for _ in 0..5 {
        let running = world.sh([], "exec sleep 100000").start();
        eventually("a sandbox", || (!world.ids().is_empty()).then_some(()));

        running.signal(Signal::TERM);

        assert_eq!(running.wait().code, 143);
        eventually("it is gone", || {
            // Where the command line was ended before it had a keeper, the next prune clears.
            world.airlock(["prune"]).run().succeeded();
            world.ids().is_empty().then_some(())
        });
    }
}

#[test]
fn the_control_socket_is_not_to_be_seen_inside() {
    let world = World::new();

    let found = world.sh([], &format!("{}; ls -A $AIRLOCK_HOME_OUTSIDE 2>&1", search("-name control.sock")));
    let found = found.env("AIRLOCK_HOME_OUTSIDE", world.home()).run();

    assert!(!found.stdout.contains("control.sock"), "{found}");
    let home = world.home().display().to_string();
    assert_eq!(world.sh([], &format!("test ! -e {home}/sandboxes")).run().code, 0);
}

#[test]
fn a_state_file_cut_short_by_a_crash_is_not_the_end() {
    let world = World::new();
    world.detached(["--name", "web"], "true");
    world.airlock(["wait", "web"]).run().succeeded();
    let id = world.ids().remove(0);
    eventually("the keeper is gone", || world.airlock(["start", "web"]).run().code.eq(&0).then_some(()));
    world.airlock(["wait", "web"]).run().succeeded();
    std::fs::write(world.home().join("sandboxes").join(&id).join("state.json"), "{\"id\":").unwrap();

    // The keeper may hold the lock for a moment after its last word.
    let list = eventually("it is repaired", || {
        let list = world.airlock(["ls", "--all"]).run();
        (list.code == 0).then_some(list.stdout)
    });
    let other = world.sh([], "echo still").run();

    assert!(list.contains("crashed"), "{list}");
    assert_eq!(other.succeeded(), "still\n");
}

#[test]
fn keep_is_not_for_people() {
    let world = World::new();

    let output = world.airlock(["keep", "0123456789ab"]).run();

    assert!(output.code != 0 && output.stderr.starts_with("error: "), "{output}");
}

/// A file system over a directory, until this is dropped.
struct Over<'a>(&'a std::path::Path);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn whoever_starts_a_sandbox_hears_why_its_first_process_could_not_become_the_guest() {
    // Nobody else may mount where others see it.
    if who() != Who::Root {
        return;
    }
    let world = World::new();
    std::fs::create_dir_all(world.home()).unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "noexec,mode=700", "tmpfs"]).arg(world.home());
    assert!(mount.status().unwrap().success());
    let _over = Over(world.home());
    world.furnish();

    let refused = world.airlock(["run", "--workspace", "none", "--", "true"]).run();

    let refused = refused.failed(125);
    assert!(refused.contains("could not execute the guest: Permission denied"), "{refused}");
    assert!(world.ids().is_empty());
}
