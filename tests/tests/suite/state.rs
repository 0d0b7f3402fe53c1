//! Sandboxes that outlive a command line: `ls`, `get`, `logs`, `wait`, `stop`, `start`, `kill`, `rm`, `prune`.

use airlock_tests::{World, eventually};
use serde_json::Value;

/// A program that runs until told otherwise.
const FOREVER: &str = "echo ready; exec sleep 100000";
/// The same, but it ends well when asked to.
const OBEDIENT: &str = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";

fn status(world: &World, sandbox: &str) -> String {
    world.state(sandbox)["status"].as_str().unwrap().to_owned()
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() >= 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T')
}

#[test]
fn a_detached_sandbox_prints_its_id_and_runs_on() {
    let world = World::new();

    let output = world.sh(["-d", "--name", "web"], FOREVER).run();

    let id = output.succeeded();
    assert!(
        id.trim_end().len() == 12 && id.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id:?}"
    );
    let state = world.state("web");
    assert_eq!((state["id"].as_str(), state["status"].as_str()), (Some(id.trim_end()), Some("running")));
}

#[test]
fn a_detached_program_that_cannot_start_is_told_at_once() {
    let world = World::new();

    let output = world.airlock(["run", "-d", "--", "no-such-program"]).run();

    assert_eq!((output.code, output.stdout.as_str()), (127, ""), "{output}");
    assert!(world.sandboxes().is_empty());
}

#[test]
fn get_shows_everything_as_json_and_as_a_page() {
    let world = World::new();
    let id = world.detached(["--name", "web", "--hostname", "h", "--restart", "on-failure:3"], FOREVER);

    let state = world.state(&id);
    let page = world.airlock(["get", "web"]).run().succeeded();

    assert!(is_time(&state["created_at"]) && is_time(&state["started_at"]), "{state}");
    assert!(state["keeper_pid"].as_u64().is_some() && state["init_pid"].as_u64().is_some(), "{state}");
    assert!(state["exit"].is_null() && state["restarts"] == 0, "{state}");
    let limits = state["limits"].as_array().unwrap();
    for name in ["memory", "pids", "nofile", "disk_reserve", "log"] {
        assert!(
            limits.iter().any(|limit| limit["limit"] == name && limit["requested"] == false),
            "{name}: {state}"
        );
    }
    assert_eq!(state["id_map"][0]["inside"], 0);
    assert_eq!((&state["spec"]["hostname"], &state["spec"]["command"][0]), (&"h".into(), &"sh".into()));
    for line in [
        "name        web",
        "hostname    h",
        "user        0",
        "restarts    0 (on failure, at most 3 in a row)",
    ] {
        assert!(page.lines().any(|found| found == line), "{line:?} is not in {page}");
    }
}

#[test]
fn ls_shows_what_runs_and_with_all_what_does_not() {
    let world = World::new();
    let running = world.detached(["--name", "one"], FOREVER);
    let stopped = world.detached(["--name", "two"], "exit 5");
    world.airlock(["wait", "two"]).run().succeeded();

    let ids = |args: &[&str]| {
        let text = world.airlock(["ls", "-q"]).args(args).run().succeeded();
        let mut ids: Vec<String> = text.lines().map(str::to_owned).collect();
        ids.sort_unstable();
        ids
    };
    let mut both = vec![running.clone(), stopped];
    both.sort_unstable();

    assert_eq!(ids(&[]), std::slice::from_ref(&running));
    assert_eq!(ids(&["--running"]), [running]);
    assert_eq!(ids(&["--all"]), both);
    let table = world.airlock(["ls", "--all"]).run().succeeded();
    let mut lines = table.lines();
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["NAME", "ID", "STATUS", "CREATED", "COMMAND"]
    );
    assert!(table.contains("exited 5") && table.contains("running"), "{table}");
}

#[test]
fn ls_json_is_one_object_a_line() {
    let world = World::new();
    world.detached(["--name", "one"], FOREVER);
    world.detached(["--name", "two"], "exit 5");
    world.airlock(["wait", "two"]).run().succeeded();

    let mut all = world.sandboxes();

    all.sort_by_key(|sandbox| sandbox["name"].as_str().map(str::to_owned));
    let facts: Vec<_> =
        all.iter().map(|s| (s["name"].as_str(), s["status"].as_str(), s["exit"]["code"].as_u64())).collect();
    assert_eq!(facts, [(Some("one"), Some("running"), None), (Some("two"), Some("stopped"), Some(5))]);
    assert_eq!(all[1]["exit"]["cause"]["cause"], "exited");
    assert!(is_time(&all[1]["exit"]["at"]) && all[0]["command"][0] == "sh", "{all:?}");
}

#[test]
fn an_empty_list_has_no_rows_and_no_objects() {
    let world = World::new();

    assert_eq!(world.airlock(["ls", "--json"]).run().succeeded(), "");
    assert!(world.airlock(["ls"]).run().succeeded().lines().count() <= 1);
}

#[test]
fn a_sandbox_is_found_by_name_id_beginning_or_as_the_newest() {
    let world = World::new();
    let old = world.detached(["--name", "old-one"], FOREVER);
    let new = world.detached(["--name", "new-one"], FOREVER);

    for (word, expected) in
        [("old-one", &old), (old.as_str(), &old), (&old[..8], &old), ("new-", &new), ("-", &new)]
    {
        assert_eq!(world.state(word)["id"], **expected, "{word}");
    }
    let newest = world.airlock(["get", "--json"]).run().succeeded();
    assert!(newest.contains(&new), "{newest}");
}

#[test]
fn a_sandbox_that_is_not_there_is_3() {
    let world = World::new();

    for verb in ["get", "logs", "stop", "start", "restart", "kill", "wait", "rm", "pause", "resume"] {
        let stderr = world.airlock([verb, "nobody"]).run().failed(3);
        assert!(
            stderr.starts_with("error: ") && stderr.contains("nobody") && stderr.contains("\n  fix:  "),
            "{verb}: {stderr}"
        );
    }
    world.airlock(["exec", "nobody", "true"]).run().failed(3);
    world.airlock(["get"]).run().failed(3);
}

#[test]
fn a_beginning_that_fits_two_is_refused() {
    let world = World::new();
    world.detached(["--name", "web-a"], FOREVER);
    world.detached(["--name", "web-b"], FOREVER);

    let output = world.airlock(["get", "web-"]).run();

    assert!(
        output.code != 0 && output.stderr.contains("web-a") && output.stderr.contains("web-b"),
        "{output}"
    );
}

#[test]
fn logs_keep_streams_apart() {
    let world = World::new();
    world.detached(["--name", "web"], "echo out; echo err >&2; printf unfinished");
    world.airlock(["wait", "web"]).run().succeeded();

    let output = world.airlock(["logs", "web"]).run();

    assert_eq!(
        (output.code, output.stdout.as_str(), output.stderr.as_str()),
        (0, "out\nunfinished", "err\n")
    );
}

#[test]
fn logs_carry_times() {
    let world = World::new();
    world.detached(["--name", "web"], "echo one; echo two >&2");
    world.airlock(["wait", "web"]).run().succeeded();

    let stamped = world.airlock(["logs", "--timestamps", "web"]).run().succeeded();
    let json = world.airlock(["logs", "--json", "web"]).run().succeeded();

    let (time, text) = stamped.trim_end().split_once(' ').unwrap();
    assert!(is_time(&time.into()) && text == "one", "{stamped}");
    let records: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut facts: Vec<_> =
        records.iter().map(|r| (r["stream"].as_str().unwrap(), r["text"].as_str().unwrap())).collect();
    facts.sort_unstable();
    assert_eq!(facts, [("stderr", "two\n"), ("stdout", "one\n")]);
    assert!(records.iter().all(|record| is_time(&record["time"])));
}

#[test]
fn logs_can_be_cut_by_lines_and_by_time() {
    let world = World::new();
    world.detached(["--name", "web"], "seq 1 100");
    world.airlock(["wait", "web"]).run().succeeded();
    let logs = |args: &[&str]| world.airlock(["logs"]).args(args).args(["web"]).run().succeeded();

    assert_eq!(logs(&["--tail", "2"]), "99\n100\n");
    assert_eq!(logs(&["-n", "0"]), "");
    assert_eq!(logs(&["--since", "1h"]).lines().count(), 100);
    assert_eq!(logs(&["--since", "2100-01-01T00:00:00Z"]), "");
    assert_eq!(logs(&["--since", "2020-01-01T00:00:00Z", "--tail", "1"]), "100\n");
    world.airlock(["logs", "--since", "yesterday", "web"]).run().failed(2);
}

#[test]
fn logs_can_be_followed_to_the_end() {
    let world = World::new();
    world.detached(
        ["--workspace", "rw", "--name", "web"],
        "echo first; while ! test -e go; do sleep 0.02; done; echo second; exit 1",
    );
    let following = world.airlock(["logs", "-f", "web"]).start();
    following.wait_for("first\n");

    world.write("go", "");

    let output = following.wait();
    assert_eq!((output.code, output.stdout.as_str()), (0, "first\nsecond\n"));
}

#[test]
fn wait_prints_the_code() {
    let world = World::new();
    world.detached(["--workspace", "rw", "--name", "one"], "while ! test -e go; do sleep 0.02; done; exit 5");
    world.detached(["--name", "two"], "kill -TERM $$");
    let waiting = world.airlock(["wait", "one", "two"]).start();

    world.write("go", "");

    assert_eq!(waiting.wait().succeeded(), "5\n143\n");
    let json: Value =
        serde_json::from_str(&world.airlock(["wait", "--json", "two"]).run().succeeded()).unwrap();
    assert_eq!((&json["exit"]["code"], &json["exit"]["cause"]["signal"]), (&143.into(), &15.into()));
}

#[test]
fn stop_asks_first_and_insists_later() {
    let world = World::new();
    world.detached(["--name", "obedient"], OBEDIENT);
    world.detached(["--name", "stubborn"], "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    for name in ["obedient", "stubborn"] {
        eventually("ready", || world.airlock(["logs", name]).run().stdout.contains("ready").then_some(()));
    }

    world.airlock(["stop", "obedient"]).run().succeeded();
    world.airlock(["stop", "--time", "200ms", "stubborn"]).run().succeeded();

    assert_eq!(world.state("obedient")["exit"]["code"], 0);
    assert_eq!(world.state("stubborn")["exit"]["code"], 137);
    assert_eq!(
        (status(&world, "obedient"), status(&world, "stubborn")),
        ("stopped".into(), "stopped".into())
    );
    world.airlock(["stop", "obedient"]).run().succeeded();
}

#[test]
fn start_runs_the_program_anew_on_the_same_disk() {
    let world = World::new();
    world.detached(["--name", "web"], "echo run >> /root/runs; cat /root/runs | wc -l; cp /tmp/mark /tmp/mark2 2>/dev/null && echo kept; touch /tmp/mark");
    world.airlock(["wait", "web"]).run().succeeded();

    world.airlock(["start", "web"]).run().succeeded();
    world.airlock(["wait", "web"]).run().succeeded();

    let logs = world.airlock(["logs", "web"]).run().succeeded();
    assert_eq!(logs, "1\n2\nkept\n");
}

#[test]
fn a_kept_foreground_sandbox_can_be_started_too() {
    let world = World::new();
    world.sh(["--keep", "--name", "web"], "echo again; exit 2").run().failed(2);

    world.airlock(["start", "web"]).run().succeeded();

    assert_eq!(world.airlock(["wait", "web"]).run().succeeded(), "2\n");
    assert_eq!(world.airlock(["logs", "web"]).run().succeeded(), "again\n");
}

#[test]
fn what_runs_cannot_be_started_and_what_does_not_cannot_be_entered() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let running = world.airlock(["start", "web"]).run().failed(1);
    world.airlock(["kill", "web"]).run().succeeded();
    world.airlock(["wait", "web"]).run().succeeded();
    let stopped = world.exec("web", "true").run().failed(125);

    assert!(running.contains("fix:  airlock restart"), "{running}");
    assert!(stopped.contains("fix:  airlock start"), "{stopped}");
}

#[test]
fn restart_keeps_sandbox_and_disk() {
    let world = World::new();
    let id =
        world.detached(["--name", "web"], "echo run >> /root/runs; wc -l < /root/runs; exec sleep 100000");
    eventually("the first run", || world.airlock(["logs", "web"]).run().stdout.contains('1').then_some(()));

    world.airlock(["restart", "--time", "0s", "web"]).run().succeeded();

    eventually("the second run", || (world.airlock(["logs", "web"]).run().stdout == "1\n2\n").then_some(()));
    let state = world.state("web");
    assert_eq!((state["id"].as_str(), state["status"].as_str()), (Some(id.as_str()), Some("running")));
}

#[test]
fn a_program_that_fails_is_started_again_as_often_as_asked() {
    let world = World::new();
    world.detached(["--name", "web", "--restart", "on-failure:2"], "echo run; exit 3");

    assert_eq!(world.airlock(["wait", "web"]).run().succeeded(), "3\n");

    assert_eq!(world.airlock(["logs", "web"]).run().succeeded(), "run\nrun\nrun\n");
    assert_eq!(world.state("web")["restarts"], 2);
}

#[test]
fn on_failure_leaves_success_alone() {
    let world = World::new();
    world.detached(
        ["--name", "web", "--restart", "on-failure"],
        "echo run; test -e /root/x || { touch /root/x; exit 1; }",
    );

    assert_eq!(world.airlock(["wait", "web"]).run().succeeded(), "0\n");

    assert_eq!(world.airlock(["logs", "web"]).run().succeeded(), "run\nrun\n");
}

#[test]
fn always_restarts_until_it_is_stopped_and_waits_longer_each_time() {
    let world = World::new();
    world.detached(["--name", "web", "--restart", "always"], "echo run");
    eventually("four restarts", || (world.state("web")["restarts"].as_u64() >= Some(4)).then_some(()));

    world.airlock(["stop", "web"]).run().succeeded();

    assert_eq!(status(&world, "web"), "stopped");
    let json = world.airlock(["logs", "--json", "web"]).run().succeeded();
    let times: Vec<f64> = json.lines().map(|line| seconds(&serde_json::from_str(line).unwrap())).collect();
    let first = times[1] - times[0];
    let third = times[3] - times[2];
    assert!(first >= 0.09 && third >= 0.35, "{times:?}");
}

/// Seconds within the hour of a record's time.
fn seconds(record: &Value) -> f64 {
    let time = record["time"].as_str().unwrap();
    let (minutes, seconds) = (&time[14..16], &time[17..time.len() - 1]);
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}

#[test]
fn kill_sends_the_signal_that_is_named() {
    let world = World::new();
    world.detached(
        ["--name", "web"],
        "trap 'echo hup' HUP; trap 'echo usr; exit 6' USR1; echo ready; while :; do sleep 0.05; done",
    );
    eventually("ready", || world.airlock(["logs", "web"]).run().stdout.contains("ready").then_some(()));

    world.airlock(["kill", "--signal", "HUP", "web"]).run().succeeded();
    eventually("hup", || world.airlock(["logs", "web"]).run().stdout.contains("hup").then_some(()));
    world.airlock(["kill", "-s", "10", "web"]).run().succeeded();

    assert_eq!(world.airlock(["wait", "web"]).run().succeeded(), "6\n");
    world.airlock(["kill", "-s", "NOSUCH", "web"]).run().failed(2);
}

#[test]
fn kill_without_a_word_is_sigkill_and_all_means_all() {
    let world = World::new();
    for name in ["one", "two", "three"] {
        world.detached(["--name", name], FOREVER);
    }

    world.airlock(["kill", "one"]).run().succeeded();
    world.airlock(["kill", "--all"]).run().succeeded();

    assert_eq!(world.airlock(["wait", "one", "two", "three"]).run().succeeded(), "137\n137\n137\n");
}

#[test]
fn rm_refuses_what_runs_unless_forced() {
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let stderr = world.airlock(["rm", "web"]).run();
    assert_ne!(stderr.code, 0);
    assert!(stderr.stderr.contains("--force"), "{stderr}");
    assert_eq!(status(&world, "web"), "running");
    world.airlock(["rm", "--force", "web"]).run().succeeded();

    assert!(world.sandboxes().is_empty());
}

#[test]
fn rm_stopped_and_prune_leave_what_runs() {
    let world = World::new();
    world.detached(["--name", "runs"], FOREVER);
    for name in ["a", "b"] {
        world.detached(["--name", name], "true");
        world.airlock(["wait", name]).run().succeeded();
    }

    world.airlock(["rm", "a"]).run().succeeded();
    world.airlock(["rm", "--stopped"]).run().succeeded();
    assert_eq!(world.sandboxes().len(), 1);
    world.detached(["--name", "c"], "true");
    world.airlock(["wait", "c"]).run().succeeded();
    let pruned: Value = serde_json::from_str(&world.airlock(["prune", "--json"]).run().succeeded()).unwrap();

    assert!(pruned.is_object(), "{pruned}");
    assert_eq!(world.sandboxes().iter().map(|s| s["name"].clone()).collect::<Vec<_>>(), ["runs"]);
}

#[test]
fn pause_freezes_and_resume_lets_go_on() {
    let world = World::new();
    let pausable = world
        .airlock(["run", "-d", "--name", "web", "--", "sh", "-c", "while :; do echo x; sleep 0.02; done"])
        .run();
    pausable.succeeded();
    // By control groups, or where this user has none by PID 1 inside.
    world.airlock(["pause", "web"]).run().succeeded();

    let lines = || world.airlock(["logs", "web"]).run().stdout.len();
    assert_eq!(status(&world, "web"), "paused");
    eventually("silence", || {
        let before = lines();
        std::thread::sleep(std::time::Duration::from_millis(200));
        (lines() == before).then_some(())
    });
    let frozen = lines();
    world.airlock(["resume", "web"]).run().succeeded();

    eventually("more lines", || (lines() > frozen).then_some(()));
    assert_eq!(status(&world, "web"), "running");
}

#[test]
fn completion_scripts_know_the_verbs() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = world.airlock(["completion", shell]).run().succeeded();
        assert!(script.contains("complete-sandboxes") && script.contains("restart"), "{shell}");
    }
    world.airlock(["completion", "cmd.exe"]).run().failed(2);
}

#[test]
fn names_of_sandboxes_complete_in_bash() {
    let world = World::new();
    world.detached(["--name", "completes-me"], FOREVER);
    let script = world.aside("scripts").join("airlock.bash");
    std::fs::write(&script, world.airlock(["completion", "bash"]).run().succeeded()).unwrap();
    let airlock = airlock_tests::binary();
    let line = format!(
        "airlock() {{ {} \"$@\"; }}; . {}; COMP_WORDS=(airlock get com); COMP_CWORD=2; \
         _airlock_with_names airlock com get; echo \"${{COMPREPLY[@]}}\"",
        airlock.display(),
        script.display()
    );

    let mut bash = std::process::Command::new("bash");
    let output = bash.args(["--norc", "-c", &line]).env("AIRLOCK_HOME", world.home()).output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "completes-me\n", "{output:?}");
}

#[test]
fn the_version_is_told() {
    let world = World::new();

    let text = world.airlock(["version"]).run().succeeded();
    let json: Value = serde_json::from_str(&world.airlock(["version", "--json"]).run().succeeded()).unwrap();

    assert!(text.contains(json["version"].as_str().unwrap()), "{text} {json}");
    assert_eq!(world.airlock(["--version"]).run().code, 0);
    let help = world.airlock(["help", "run"]).run().succeeded();
    assert!(help.contains("--workspace") && help.contains("Examples:"), "{help}");
}

#[test]
fn an_output_nobody_reads_is_no_error() {
    let world = World::new();
    world.detached(["--name", "web"], "seq 1 20000");
    world.airlock(["wait", "web"]).run().succeeded();
    let mut command = world.airlock(["logs", "web"]).into_command();
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();

    drop(child.stdout.take());

    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn the_state_directory_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new();
    world.detached(["--name", "web"], FOREVER);

    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;

    assert_eq!(mode(world.home()), 0o700);
    let sandbox = world.home().join("sandboxes").join(&world.ids()[0]);
    assert_eq!(mode(&sandbox.join("control.sock")), 0o600);
}
