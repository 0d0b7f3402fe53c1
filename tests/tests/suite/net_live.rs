//! Rules that change while a sandbox runs, people who are asked, and runs that only record.

use crate::net::{net, whole};
use airlock_tests::{Running, eventually};
use serde_json::Value;
use std::{fs, time::Instant};

/// A download that never ends, to be watched.
fn ticking(net: &crate::net::Net, sandbox: &str, name: &str) -> Running {
    let script = format!("curl -sSN http://{name}/ticks; echo ended $?");
    let ticking = net.world.exec(sandbox, &script).start();
    ticking.wait_for("tick");
    ticking
}

/// The crossing that waits, once it does.
fn pending(net: &crate::net::Net) -> Value {
    eventually("a question", || {
        let text = net.world.airlock(["approvals", "--json"]).run().succeeded();
        text.lines().next().map(|line| serde_json::from_str(line).expect("one object a line"))
    })
}

#[test]
fn a_host_is_allowed_and_denied_while_the_sandbox_runs() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&[]);
    let probe = format!(r#"say(reach("{name}"))"#);

    assert_eq!(net.inside_running(&sandbox, &probe), "noname\n");
    net.world.airlock(["allow", &sandbox, &name]).run().succeeded();
    assert_eq!(net.inside_running(&sandbox, &probe), "done\n");
    net.world.airlock(["deny", &sandbox, &name]).run().succeeded();
    assert_ne!(net.inside_running(&sandbox, &probe), "done\n");
}

#[test]
fn what_is_no_longer_allowed_is_closed_within_a_second() {
    let Some(net) = net() else { return };
    let (name, other) = (net.internet.name("web"), net.internet.name("v4"));
    let sandbox = net.waiting(&["--allow", &name, "--allow", &other]);
    let (ticks, others) = (ticking(&net, &sandbox, &name), ticking(&net, &sandbox, &other));

    net.world.airlock(["deny", &sandbox, &name]).run().succeeded();
    let denied = Instant::now();
    ticks.wait_for("ended");

    assert!(denied.elapsed().as_millis() < 1500, "{:?}", denied.elapsed());
    let before = others.stdout().len();
    eventually("the other flow to go on", || (others.stdout().len() > before + 50).then_some(()));
    let flow = eventually("the end of the flow", || {
        let flows = net.ledger(&sandbox).into_iter();
        flows.filter(|record| record["kind"] == "flow").find(|record| record["host"] == name.as_str())
    });
    assert_eq!(flow["status"], "revoked", "{flow}");
}

#[test]
fn another_policy_replaces_the_old_one_at_once() {
    let Some(net) = net() else { return };
    let (old, new) = (net.internet.name("web"), net.internet.name("v4"));
    let sandbox = net.waiting(&["--allow", &old]);
    let ticks = ticking(&net, &sandbox, &old);
    let [_, file] = net.policy(&format!("[[rule]]\nallow = \"{new}\"\n"));

    net.world.airlock(["policy", "set", &sandbox, &file]).run().succeeded();

    ticks.wait_for("ended");
    let probe = format!(r#"say(reach("{old}") != "done", reach("{new}"))"#);
    assert_eq!(net.inside_running(&sandbox, &probe), "True done\n");
    let shown = net.world.airlock(["policy", "show", &sandbox]).run().succeeded();
    assert!(shown.contains(&new) && !shown.contains(&old), "{shown}");
}

#[test]
fn a_policy_that_cannot_be_read_changes_nothing() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let [_, file] = net.policy("[[rule]]\nalow = \"x.test\"\n");

    let refused = net.world.airlock(["policy", "set", &sandbox, &file]).run();

    assert!(refused.code != 0 && refused.stderr.contains("policy.toml:2:1"), "{refused}");
    assert_eq!(net.inside_running(&sandbox, &format!(r#"say(reach("{name}"))"#)), "done\n");
}

#[test]
fn an_asked_connection_waits_and_crosses_when_approved() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--ask", &name]);
    let probe = format!("say(reach('{name}', wait=50))\nsay(reach('{name}', wait=50))");
    let asking = net.world.airlock(["exec", &sandbox, "python3", "-c", &whole(&probe)]).start();

    let question = pending(&net);
    assert_eq!((question["host"].as_str(), question["port"].as_u64()), (Some(name.as_str()), Some(80)));
    assert_eq!(asking.stdout(), "");
    net.world.airlock(["approve", question["id"].as_str().unwrap()]).run().succeeded();

    // Once is once: the next is asked again.
    asking.wait_for("done");
    let second = pending(&net);
    assert_ne!(second["id"], question["id"]);
    net.world.airlock(["refuse", second["id"].as_str().unwrap()]).run().succeeded();
    assert_eq!(asking.wait().succeeded(), "done\nECONNRESET\n");
    let records = net.ledger(&sandbox);
    assert_eq!(records.iter().filter(|record| record["kind"] == "approval").count(), 2, "{records:?}");
    let denied = net.denials(&sandbox, &name);
    assert!(denied.iter().any(|record| record["reason"] == "refused"), "{denied:?}");
}

#[test]
fn an_answer_for_the_sandbox_holds_for_that_host_and_port() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--ask", &name]);
    let probe = format!("say(reach('{name}', wait=50), reach('{name}'), reach('{name}'))");
    let asking = net.world.airlock(["exec", &sandbox, "python3", "-c", &whole(&probe)]).start();

    let question = pending(&net);
    net.world.airlock(["approve", question["id"].as_str().unwrap(), "--sandbox"]).run().succeeded();

    assert_eq!(asking.wait().succeeded(), "done done done\n");
}

#[test]
fn a_question_that_nobody_answers_is_refused_after_its_time() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    net.world.airlock(["ls"]).run().succeeded();
    fs::write(net.world.home().join("config.toml"), "[approvals]\ntimeout = \"1s\"\n").unwrap();
    let sandbox = net.waiting(&["--ask", &name]);

    let said = net.inside_running(&sandbox, &format!(r#"say(reach("{name}", wait=50))"#));

    assert_eq!(said, "ECONNRESET\n");
    let denied = net.denials(&sandbox, &name);
    assert!(denied.iter().any(|record| record["reason"] == "unanswered"), "{denied:?}");
    assert_eq!(net.world.airlock(["approvals", "--json"]).run().succeeded(), "");
}

#[test]
fn an_answer_to_nothing_is_told() {
    let Some(net) = net() else { return };
    net.waiting(&[]);

    let output = net.world.airlock(["approve", "0000-1"]).run();

    assert!(output.code != 0 && output.stderr.starts_with("error: "), "{output}");
}

#[test]
fn the_person_at_the_terminal_is_asked_and_the_program_can_neither_answer_nor_fake_it() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let probe = format!(
        r#"
import fcntl, termios
print("\x1b]0;x\x07airlock: allow {name}? y", flush=True)
def push():
    for key in b"y\n":
        fcntl.ioctl(0, termios.TIOCSTI, bytes([key]))
outcome(push)
open("/dev/tty", "w").write("y\n")
say("result", reach("{name}", wait=50))
"#
    );

    let mut terminal = net.world.on_terminal(["run", "--ask", &name, "--", "python3", "-c", &whole(&probe)]);
    let question = pending(&net);
    terminal.wait_for(&name);
    assert!(!terminal.screen().contains("result"), "{}", terminal.screen());
    net.world.airlock(["refuse", question["id"].as_str().unwrap()]).run().succeeded();

    terminal.wait_for("result ECONNRESET");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn the_person_at_the_terminal_answers_with_a_key_that_the_program_never_sees() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let probe = format!(
        r#"
say("result", reach("{name}", wait=50))
import fcntl
fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK)
say("keys", outcome(lambda: os.read(0, 100)))
"#
    );

    let mut terminal = net.world.on_terminal(["run", "--ask", &name, "--", "python3", "-c", &whole(&probe)]);
    let screen = terminal.wait_for("\x1b[6n");
    assert!(screen.contains(&name) && !screen.contains("result"), "{screen}");
    // The terminal says where its cursor is, as it was asked; then a key counts after a moment of silence.
    let place = screen.rsplit("\x1b[6n").nth(1).and_then(|before| before.rsplit("\x1b[").next()).unwrap();
    terminal.type_keys(&format!("\x1b[{}R", place.trim_end_matches('H')));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    terminal.type_keys("y");

    let screen = terminal.wait_for("keys ");
    assert!(screen.contains("result done") && screen.contains("keys EAGAIN"), "{screen}");
    assert_eq!(terminal.wait(), 0);
}

#[test]
fn an_answer_for_always_is_written_down_and_holds_in_the_next_sandbox() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let probe = format!("say(reach('{name}', wait=50))");
    let file = net.world.aside("rules").join("always.toml");
    let sandbox = net.waiting(&["--ask", &name]);
    let asking = net.world.airlock(["exec", &sandbox, "python3", "-c", &whole(&probe)]).start();

    let question = pending(&net);
    let id = question["id"].as_str().unwrap();
    net.world.airlock(["approve", id, "--always", "--file", file.to_str().unwrap()]).run().succeeded();

    assert_eq!(asking.wait().succeeded(), "done\n");
    assert!(fs::read_to_string(&file).unwrap().contains(&name));
    assert_eq!(net.inside(&["--policy", file.to_str().unwrap()], &probe), "done\n");
}

#[test]
fn a_webhook_is_told_of_the_question_with_a_signature_and_may_answer() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    let key = "0123456789abcdef-of-the-webhook";
    net.world.airlock(["ls"]).run().succeeded();
    fs::write(net.world.home().join("webhook.key"), key).unwrap();
    let config = format!(
        "[approvals]\nwebhook = \"https://hooks.web.test/hook/approve/{mark}\"\nwebhook_key = \"webhook.key\"\n\
         [network]\nextra_ca = \"{}\"\n",
        net.internet.ca().display()
    );
    fs::write(net.world.home().join("config.toml"), config).unwrap();
    let probe = format!("say(reach('{name}', wait=50), reach('{name}'))");

    assert_eq!(net.inside(&["--ask", &name], &probe), "done done\n");

    let hits = net.internet.hits(&format!("approve/{mark}"));
    let hooks: Vec<&Value> = hits.iter().filter(|hit| hit["what"] == "hook").collect();
    assert_eq!(hooks.len(), 1, "{hits:?}");
    let body = hooks[0]["body"].as_str().unwrap();
    let question: Value = serde_json::from_str(body).expect("the body is JSON");
    assert!(body.contains(&name) && question.to_string().contains("\"port\":80"), "{body}");
    let signature = hooks[0]["headers"]["airlock-signature"].as_str().expect("a signature").to_owned();
    let time = signature.split([',', '=']).nth(1).unwrap();
    let check = format!(
        "import hmac\nsay(hmac.new({key:?}.encode(), b'{time}.' + {body:?}.encode(), 'sha256').hexdigest())"
    );
    assert_eq!(signature, format!("t={time},v1={}", net.outside(&check).trim()));
}

#[test]
fn rules_that_change_under_traffic_never_let_through_what_they_deny() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let reach = format!(r#"say(set(reach("{name}") for _ in range(20)) & {{"done"}})"#);

    for _ in 0..5 {
        net.world.airlock(["deny", &sandbox, &name]).run().succeeded();
        assert_eq!(net.inside_running(&sandbox, &reach), "set()\n");
        net.world.airlock(["allow", &sandbox, &name]).run().succeeded();
        assert_eq!(net.inside_running(&sandbox, &reach), "{'done'}\n");
    }
    let changes = net.ledger(&sandbox).into_iter().filter(|record| record["kind"] == "policy").count();
    assert!(changes >= 10, "{changes}");
}

#[test]
fn a_run_that_only_records_denies_nothing_and_says_what_it_would_have() {
    let Some(net) = net() else { return };
    let (allowed, other) = (net.internet.name("web"), net.internet.name("v4"));
    let flags = ["--audit-only", "--keep", "--name", "audited", "--allow", &allowed];

    let said =
        net.inside(&flags, &format!(r#"say(reach("{allowed}"), reach("{other}"), reach("{other}", 8080))"#));

    assert_eq!(said, "done done done\n");
    let records = net.ledger("audited");
    let would: Vec<&Value> = records.iter().filter(|record| record["audit_only"] == true).collect();
    assert!(would.iter().any(|record| record["crossing"]["port"] == 8080), "{records:?}");
    assert!(would.iter().all(|record| record["crossing"]["host"] != allowed.as_str()), "{would:?}");
}

#[test]
fn learning_prints_the_narrow_policy_that_suffices() {
    let Some(net) = net() else { return };
    let (one, two) = (net.internet.name("web"), net.internet.name("hostile"));
    let probe = format!(r#"say(reach("{one}"), reach("{two}", 7006))"#);
    let file = net.world.aside("rules").join("learned.toml");

    let learn = ["learn", "--output", file.to_str().unwrap(), "--", "python3", "-c", &whole(&probe)];
    let learned = net.world.airlock(learn).run().succeeded();

    assert_eq!(learned, "done done\n");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&one) && text.contains(&two) && text.contains("7006"), "{text}");
    let again = net.inside(&["--policy", file.to_str().unwrap()], &probe);
    assert_eq!(again, "done done\n", "{text}");
    let narrow = format!(r#"say(reach("{one}", 443) == "ECONNREFUSED", reach("x.{one}"))"#);
    assert_eq!(net.inside(&["--policy", file.to_str().unwrap()], &narrow), "True noname\n", "{text}");
}

#[test]
fn explain_names_the_verdict_the_rule_and_its_line() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let [flag, file] =
        net.policy(&format!("[[rule]]\nallow = \"{name}\"\n\n[[rule]]\nask = \"*.v4.test\"\n"));
    let explain = |url: &str| net.world.airlock(["policy", "explain", &flag, &file, url]).run();

    let allowed = explain(&format!("https://{name}/x"));
    assert!(allowed.code == 0 && allowed.stdout.contains("policy.toml:"), "{allowed}");
    assert_eq!(explain("https://a.v4.test/").code, 1);
    assert_eq!(explain(&format!("{name}:22")).code, 4);
    assert_eq!(explain("https://evil.test/").code, 4);
}
