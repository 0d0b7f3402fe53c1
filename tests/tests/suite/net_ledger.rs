//! The ledger: what it holds, that changes are noticed, and what happens when it cannot be written or its keeper dies.

use crate::net::{Net, net};
use airlock_tests::{Who, World, eventually, images::sha256, not_applicable, skip, who};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[test]
fn every_decision_and_every_flow_is_recorded_in_order() {
    let Some(net) = net() else { return };
    let (name, other) = (net.internet.name("web"), net.internet.name("v4"));
    let sandbox = net.waiting(&["--allow", &name]);
    let probe = format!(r#"say(reach("{name}"), reach("{other}"), reach("93.184.216.34", 81))"#);

    assert_eq!(net.inside_running(&sandbox, &probe), "done noname ECONNREFUSED\n");

    let records = eventually("all records", || {
        let records = net.ledger(&sandbox);
        let has_flow = records.iter().any(|record| record["kind"] == "flow");
        let has_refusal = records.iter().any(|record| record["crossing"]["host"] == "93.184.216.34");
        (has_flow && has_refusal).then_some(records)
    });
    let numbers: Vec<u64> = records.iter().filter_map(|record| record["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let decided = |crossing: &str, host: &str| {
        let wanted = |record: &&Value| {
            record["crossing"]["crossing"] == crossing && record["crossing"]["host"] == host
        };
        records.iter().find(wanted).unwrap_or_else(|| panic!("no {crossing} {host}: {records:?}")).clone()
    };
    assert_eq!(decided("connect", &name)["verdict"], "allow");
    assert!(decided("connect", &name)["rule"].as_str().unwrap().contains("--allow"), "{records:?}");
    assert_eq!(decided("resolve", &other)["verdict"], "deny");
    assert_eq!(decided("resolve", &other)["reason"], "no_rule");
    assert_eq!(decided("connect", "93.184.216.34")["verdict"], "deny");
    let flow = records.iter().find(|record| record["kind"] == "flow").unwrap();
    assert_eq!(flow["flow"], decided("connect", &name)["flow"]);
    assert!(flow["sent"].as_u64() > Some(20) && flow["received"].as_u64() > Some(20), "{flow}");
    assert!(
        flow["address"]
            .as_str()
            .is_some_and(|a| a.contains("93.184.216.34") || a.contains("2600:9000:5::34"))
    );
}

#[test]
fn denials_alone_and_as_a_table_are_shown() {
    let Some(net) = net() else { return };
    let (name, other) = (net.internet.name("web"), net.internet.name("v4"));
    let sandbox = net.waiting(&["--allow", &name]);
    net.inside_running(&sandbox, &format!(r#"say(reach("{name}"), reach("{other}"))"#));

    let denied = net.world.airlock(["ledger", &sandbox, "--denied"]).run().succeeded();

    assert!(denied.contains(&other) && !denied.contains(&name), "{denied}");
}

#[test]
fn a_follower_sees_records_as_they_come() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let following = net.world.airlock(["ledger", &sandbox, "-f", "--json"]).start();

    net.inside_running(&sandbox, &format!(r#"reach("{name}")"#));

    following.wait_for(&name);
}

#[test]
fn a_foreground_run_ends_with_one_line_about_what_it_was_denied() {
    let Some(net) = net() else { return };
    let (one, two) = (net.internet.name("web"), net.internet.name("v4"));
    let script = format!("curl -s http://{one}; curl -s http://{two}; exit 0");

    let mut terminal = net.world.on_terminal(["run", "--", "sh", "-c", &script]);

    let screen = terminal.wait_for("airlock ledger --denied");
    assert_eq!(terminal.wait(), 0);
    let lines: Vec<&str> = screen.lines().filter(|line| line.contains("denied")).collect();
    assert_eq!(lines.len(), 1, "{screen}");
    assert!(
        lines[0].contains("airlock: denied 2") && lines[0].contains("airlock ledger --denied"),
        "{screen}"
    );
    assert!(lines[0].contains(&one) || lines[0].contains(&two), "{screen}");
}

#[test]
fn a_changed_dropped_or_added_record_is_noticed() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = recorded(&net, &name);
    let verify = || net.world.airlock(["ledger", "verify", &sandbox]).run();
    let file = ledger_file(&net.world, &sandbox);
    let whole = fs::read_to_string(&file).unwrap();
    assert_eq!(verify().code, 0, "{}", verify());
    let lines: Vec<&str> = whole.lines().collect();
    assert!(lines.len() >= 4, "{whole}");

    let damages = [
        whole.replacen(&name, &name.replace('x', "y"), 1),
        whole.replacen("\"allow\"", "\"deny\"", 1),
        [&lines[..1], &lines[2..]].concat().join("\n") + "\n",
        [&lines[..2], &lines[1..]].concat().join("\n") + "\n",
        [&lines[1..2], &lines[..1], &lines[2..]].concat().join("\n") + "\n",
        format!("{}x\n", whole.trim_end()),
    ];
    for (number, damaged) in damages.iter().enumerate() {
        assert_ne!(damaged, &whole, "damage {number} is none");
        fs::write(&file, damaged).unwrap();
        let said = verify();
        assert!(said.code == 1, "damage {number}: {said}");
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(verify().code, 0);
}

#[test]
fn a_killed_keeper_leaves_a_ledger_that_verifies_and_holds_what_happened() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let probe = format!(r#"say([reach("{name}") for _ in range(20)].count("done"))"#);
    assert_eq!(net.inside_running(&sandbox, &probe), "20\n");
    let keeper = net.world.state(&sandbox)["keeper_pid"].as_u64().and_then(|pid| i32::try_from(pid).ok());

    kill_process(Pid::from_raw(keeper.unwrap()).unwrap(), Signal::KILL).expect("the keeper runs");

    eventually("the keeper's death to be seen", || {
        (net.world.state(&sandbox)["status"] != "running").then_some(())
    });
    net.world.airlock(["ledger", "verify", &sandbox]).run().succeeded();
    let connects = net.ledger(&sandbox);
    let connects =
        connects.iter().filter(|r| r["crossing"]["crossing"] == "connect" && r["verdict"] == "allow");
    assert_eq!(connects.count(), 20);
}

#[test]
fn a_ledger_that_cannot_be_written_closes_the_wall() {
    let Some(net) = net() else { return };
    if who() != Who::Root {
        return not_applicable("only root takes a file away from whom it belongs to");
    }
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let file = ledger_file(&net.world, &sandbox);
    let probe = format!(r#"say(reach("{name}"))"#);
    assert_eq!(net.inside_running(&sandbox, &probe), "done\n");
    // A full disk would freeze the sandbox first; this file refuses every further byte alone.
    let set = |flag: &str| Command::new("chattr").arg(flag).arg(&file).status().is_ok_and(|s| s.success());
    if !set("+i") {
        return skip("this file system has no files that cannot be changed");
    }

    let before = net.internet.hits(&name).len();
    let said = net.inside_running(&sandbox, &probe);
    let reached = net.internet.hits(&name).len();
    assert!(set("-i"));

    assert_ne!(said, "done\n");
    assert_eq!(reached, before, "something crossed unrecorded");
    eventually("the wall to open again", || (net.inside_running(&sandbox, &probe) == "done\n").then_some(()));
    net.world.airlock(["ledger", "verify", &sandbox]).run().succeeded();
}

#[test]
fn a_full_disk_closes_the_wall_and_the_keeper_says_so() {
    let Some(net) = net() else { return };
    if who() != Who::Root {
        return not_applicable("only root can have one file of a disk full");
    }
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let file = ledger_file(&net.world, &sandbox);
    assert!(!file.exists(), "nothing was recorded yet");
    fs::write(&file, "").unwrap();
    let mount = |words: &[&str]| Command::new(words[0]).args(&words[1..]).arg(&file).status().unwrap();
    assert!(mount(&["mount", "--bind", "/dev/full"]).success());

    let said = net.inside_running(&sandbox, &format!(r#"say(reach("{name}"))"#));
    let log = fs::read_to_string(file.with_file_name("keeper.log")).unwrap();
    // The keeper has it open.
    assert!(mount(&["umount", "--lazy"]).success());

    assert_ne!(said, "done\n");
    assert!(net.internet.hits(&name).is_empty(), "something crossed unrecorded");
    assert!(log.contains("No space left on device") && log.contains("nothing crosses the wall"), "{log}");
}

#[test]
fn a_durable_ledger_has_the_same_records_and_lets_the_same_pass() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    net.world.airlock(["ls"]).run().succeeded();
    fs::write(net.world.home().join("config.toml"), "[ledger]\ndurable = true\n").unwrap();

    let sandbox = recorded(&net, &name);

    net.world.airlock(["ledger", "verify", &sandbox]).run().succeeded();
    let kinds: Vec<Value> = net.ledger(&sandbox).iter().map(|record| record["kind"].clone()).collect();
    assert!(kinds.iter().filter(|kind| *kind == "decision").count() >= 4, "{kinds:?}");
}

#[test]
fn a_full_file_is_followed_by_another_and_nothing_is_lost_between() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = recorded(&net, &name);
    net.world.airlock(["stop", &sandbox]).run().succeeded();
    let file = ledger_file(&net.world, &sandbox);
    fill(&file);
    net.world.airlock(["ledger", "verify", &sandbox]).run().succeeded();
    let before = net.ledger(&sandbox).len();

    net.world.airlock(["start", &sandbox]).run().succeeded();
    assert_eq!(net.inside_running(&sandbox, &format!(r#"say(reach("{name}"))"#)), "done\n");

    assert!(file.with_file_name("ledger.1.jsonl").exists() && fs::metadata(&file).unwrap().len() < 1 << 20);
    net.world.airlock(["ledger", "verify", &sandbox]).run().succeeded();
    let records = net.ledger(&sandbox);
    let numbers: Vec<u64> = records.iter().filter_map(|record| record["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(records[before]["kind"], "rotated");
    assert!(records[before + 1..].iter().any(|r| r["crossing"]["host"] == name.as_str()), "{numbers:?}");
}

/// Adds records that are right to a ledger until its file is full.
fn fill(file: &Path) {
    let mut text = fs::read_to_string(file).unwrap();
    let mut last = text.lines().last().unwrap().to_owned();
    while text.len() < 16 << 20 {
        let mut record: Value = serde_json::from_str(&last).unwrap();
        record["seq"] = (record["seq"].as_u64().unwrap() + 1).into();
        record["prev"] = sha256(last.as_bytes()).into();
        record["kind"] = "policy".into();
        record["generation"] = 1.into();
        record["rules"] = 1.into();
        record["by"] = "x".repeat(60_000).into();
        last = record.to_string();
        text.push_str(&last);
        text.push('\n');
    }
    fs::write(file, text).unwrap();
}

#[test]
fn a_flood_of_denials_is_summed_up_and_the_chain_holds() {
    let Some(net) = net() else { return };
    let sandbox = net.waiting(&[]);

    // Answers are waited for: a question that is lost in a queue is on no record.
    let probe = r#"
tail = [b"x" * 60] * 3 + [b"evil", b"test"]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(20)
    s.connect((nameserver(), 53))
    for first in range(0, 8000, 32):
        for n in range(first, first + 32):
            s.send(asked([b"n%d" % n] + tail))
        for n in range(first, first + 32):
            s.recv(65535)
say("asked")
"#;
    assert_eq!(net.inside_running(&sandbox, probe), "asked\n");

    net.world.airlock(["ledger", "verify", &sandbox]).run().succeeded();
    let bytes = fs::metadata(ledger_file(&net.world, &sandbox)).unwrap().len();
    assert!(bytes < 4 << 20, "{bytes} bytes");
}

#[test]
fn an_export_is_one_event_a_line() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = recorded(&net, &name);

    let text = net.world.airlock(["ledger", "export", &sandbox, "--format", "ocsf"]).run().succeeded();

    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["class_uid"].is_u64() && event["time"].is_u64()), "{text}");
    assert!(text.contains(&name), "{text}");
}

/// A sandbox with some records.
fn recorded(net: &Net, name: &str) -> String {
    let sandbox = net.waiting(&["--allow", name]);
    let probe = format!(r#"say(reach("{name}"), reach("{name}"), reach("evil.{name}"))"#);
    assert_eq!(net.inside_running(&sandbox, &probe), "done done noname\n");
    eventually("the ends of the flows", || {
        (net.ledger(&sandbox).iter().filter(|record| record["kind"] == "flow").count() == 2).then_some(())
    });
    sandbox
}

fn ledger_file(world: &World, sandbox: &str) -> PathBuf {
    world.home().join("sandboxes").join(sandbox).join("ledger.jsonl")
}
