//! What people and scripts are told about rules, ports and the ledger.

use airlock_tests::{World, eventually};
use serde_json::{Value, json};
use std::{fs, io::Write as _};

fn explained(world: &World, sandbox: &str, what: &str) -> i32 {
    world.airlock(["policy", "explain", sandbox, what]).run().code
}

#[test]
fn a_file_of_rules_that_is_well_is_told_to_scripts_too() {
    let world = World::new();
    world.write("rules.toml", "[[rule]]\nallow = \"api.example.com\"\n");

    let text = world.airlock(["policy", "test", "--json", "rules.toml"]).run().succeeded();

    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({ "rules": 1, "ok": true }));
}

#[test]
fn the_free_port_that_was_taken_is_shown() {
    let world = World::new();
    let sandbox = world.detached(["--publish", "0:80"], "sleep 600");
    let port = world.state(&sandbox)["published"][0]["port"].as_u64().expect("a port");

    let page = world.airlock(["get", &sandbox]).run().succeeded();

    let line = format!("published   127.0.0.1:{port} leads to port 80 inside\n");
    assert!(port > 0 && page.contains(&line), "{page}");
}

#[test]
fn a_host_that_is_denied_by_a_flag_is_denied_on_every_port() {
    let world = World::new();
    let flags =
        ["--allow", "db.example.com:5432", "--allow", "git.example.com:22", "--deny", "db.example.com"];
    let sandbox = world.detached(flags, "sleep 600");
    assert_eq!(explained(&world, &sandbox, "db.example.com:5432"), 4);
    assert_eq!(explained(&world, &sandbox, "git.example.com:22"), 0);

    world.airlock(["deny", &sandbox, "git.example.com"]).run().succeeded();

    assert_eq!(explained(&world, &sandbox, "git.example.com:22"), 4);
}

#[test]
fn an_export_says_what_it_lacks() {
    let world = World::new();
    let dial = "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 5)\nexcept OSError: pass";
    world.python(["--keep", "--name", "web"], dial).run().succeeded();
    let export = || world.airlock(["ledger", "export", "web", "--format", "jsonl"]).run();
    let whole =
        eventually("a record", || Some(export().succeeded()).filter(|text| text.contains("192.0.2.1")));
    let shown = world.airlock(["ledger", "web"]).run().succeeded();
    assert!(shown.starts_with("TIME (UTC) ") && shown.contains("192.0.2.1:80"), "{shown}");

    let id = world.state("web")["id"].as_str().expect("an id").to_owned();
    let ledger = world.home().join("sandboxes").join(id).join("ledger.jsonl");
    fs::OpenOptions::new().append(true).open(ledger).unwrap().write_all(b"rubbish\n").unwrap();
    let damaged = export();

    assert_eq!(damaged.stdout, whole);
    assert!(damaged.failed(1).contains("airlock ledger verify"));
}

#[test]
fn a_file_that_is_not_there_and_a_value_that_is_none_say_what_to_do() {
    let world = World::new();
    let missing = world.airlock(["run", "--policy", "none.toml", "true"]).run().failed(2);
    assert!(missing.contains("could not read none.toml") && missing.contains("fix:"), "{missing}");

    fs::create_dir_all(world.home()).expect("a home");
    fs::write(world.home().join("config.toml"), "[network]\nproxy = \"socks://x\"\n").expect("written");
    let proxy = world.airlock(["run", "true"]).run().failed(2);
    assert!(proxy.contains("is not a proxy") && proxy.contains("fix:  write http://HOST:PORT"), "{proxy}");
}
