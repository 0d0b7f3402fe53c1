//! What rules bound besides where to: how often, how much. What differs between two policies, groups, and whoever watches:
//! for questions on the command line, for all events on the control socket.

use crate::net::{net, whole};
use airlock_tests::{Events, eventually};
use serde_json::Value;

#[test]
fn a_rule_with_a_rate_denies_what_is_beyond_it_and_says_so() {
    let Some(net) = net() else { return };
    let (name, free) = (net.internet.name("web"), net.internet.name("v4"));
    let [flag, file] = net.policy(&format!(
        "[[rule]]\nallow = \"{name}\"\ntls = \"opaque\"\nrate = \"2/h\"\n\n[[rule]]\nallow = \"{free}\"\n"
    ));
    let sandbox = net.waiting(&[&flag, &file]);

    let said = net.inside_running(
        &sandbox,
        &format!("say(*[reach('{name}') for _ in range(4)])\nsay(*[reach('{free}') for _ in range(4)])"),
    );

    assert_eq!(said, "done done ECONNRESET ECONNRESET\ndone done done done\n");
    let denied = net.denials(&sandbox, &name);
    assert_eq!(denied.len(), 2, "{denied:?}");
    assert!(denied.iter().all(|record| record["reason"] == "rate"), "{denied:?}");
}

#[test]
fn a_rule_with_a_budget_of_bytes_ends_its_flow_there_and_denies_the_next() {
    let Some(net) = net() else { return };
    let (name, free) = (net.internet.name("web"), net.internet.name("v4"));
    let [flag, file] = net.policy(&format!(
        "[[rule]]\nallow = \"{name}\"\ntls = \"opaque\"\nbytes = \"1M\"\n\n[[rule]]\nallow = \"{free}\"\n"
    ));
    let sandbox = net.waiting(&[&flag, &file]);
    let fetch = |name: &str| format!("curl -s -m 30 http://{name}/bytes/3000000 | wc -c");

    let said = net.world.exec(&sandbox, &fetch(&name)).run().succeeded();
    let got: u64 = said.trim().parse().expect("a number");
    assert!((1..=1 << 20).contains(&got), "{got}");
    assert_eq!(net.inside_running(&sandbox, &format!("say(reach('{name}'))")), "ECONNRESET\n");
    assert_eq!(net.world.exec(&sandbox, &fetch(&free)).run().succeeded().trim(), "3000000");

    let denied = net.denials(&sandbox, &name);
    assert!(denied.len() >= 2 && denied.iter().all(|record| record["reason"] == "bytes"), "{denied:?}");
    let flow = eventually("the end of the flow", || {
        net.ledger(&sandbox)
            .into_iter()
            .find(|record| record["kind"] == "flow" && record["status"] == "bytes")
    });
    let moved = flow["sent"].as_u64().unwrap() + flow["received"].as_u64().unwrap();
    assert!(moved <= 1 << 20, "{flow}");
}

#[test]
fn a_difference_between_policies_names_what_came_and_went() {
    let Some(net) = net() else { return };
    let sandbox = net.waiting(&["--allow", "old.test", "--allow", "both.test:8080"]);
    let [_, file] =
        net.policy("[[rule]]\nallow = \"both.test\"\nports = [8080]\n\n[[rule]]\ndeny = \"new.test\"\n");
    let diff = |from: &str, to: &str| net.world.airlock(["policy", "diff", from, to, "--json"]).run();
    let hosts =
        |rules: &Value| rules.as_array().unwrap().iter().map(|rule| rule["hosts"][0].clone()).collect();

    let changed: Value = serde_json::from_str(&diff(&sandbox, &file).stdout).expect("one object");
    let (added, removed): (Vec<Value>, Vec<Value>) = (hosts(&changed["added"]), hosts(&changed["removed"]));
    assert_eq!((added, removed), (vec!["new.test".into()], vec!["old.test".into()]), "{changed}");

    net.world.airlock(["policy", "set", &sandbox, &file]).run().succeeded();
    let same: Value = serde_json::from_str(&diff(&sandbox, &file).succeeded()).expect("one object");
    assert_eq!(same["same"], true, "{same}");
}

#[test]
fn groups_are_listed_and_each_shows_its_hosts() {
    let Some(net) = net() else { return };

    let all = net.world.airlock(["policy", "groups"]).run().succeeded();
    let one = net.world.airlock(["policy", "groups", "github"]).run().succeeded();
    let none = net.world.airlock(["policy", "groups", "no-such-group"]).run();

    assert!(all.contains("github") && all.contains("gitlab"), "{all}");
    assert!(one.contains("api.github.com"), "{one}");
    assert!(none.code != 0 && none.stderr.starts_with("error: "), "{none}");
}

#[test]
fn whoever_watches_is_told_of_each_question_and_of_its_answer() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let watching = net.world.airlock(["approvals", "--watch", "--json"]).start();
    let sandbox = net.waiting(&["--ask", &name]);
    let probe = whole(&format!("say(reach('{name}', wait=50))"));
    let asking = net.world.airlock(["exec", &sandbox, "python3", "-c", &probe]).start();

    watching.wait_for(&name);
    let asked = first(&watching.stdout());
    assert_eq!((asked["host"].as_str(), asked["port"].as_u64()), (Some(name.as_str()), Some(80)), "{asked}");
    let id = asked["id"].as_str().expect("an id").to_owned();
    net.world.airlock(["approve", &id]).run().succeeded();

    watching.wait_for("approved");
    assert_eq!(asking.wait().succeeded(), "done\n");
    let said = watching.stdout();
    let answered: Value =
        serde_json::from_str(said.lines().last().expect("a line")).expect("one object a line");
    assert!(answered.to_string().contains(&id), "{answered}");
}

#[test]
fn other_doors_are_told_of_programs_crossings_denials_and_questions() {
    let Some(net) = net() else { return };
    let (open, asked) = (net.internet.name("web"), net.internet.name("v4"));
    let sandbox = net.waiting(&["--allow", &open, "--ask", &asked]);
    let mut events = Events::of(&net.world, &sandbox);
    let probe = whole(&format!("say(reach('{open}'), reach('denied.test'), reach('{asked}', wait=50))"));
    let asking = net.world.airlock(["exec", &sandbox, "python3", "-c", &probe]).start();

    events.until(|event| event["event"] == "exec" && event["command"][0] == "python3");
    events.until(|event| event["crossing"]["host"] == open.as_str() && event["verdict"] == "allow");
    events.until(|event| event["crossing"]["host"] == "denied.test" && event["verdict"] == "deny");
    let question = events.until(|event| event["event"] == "asked" && event["host"] == asked.as_str());
    let id = question["id"].as_str().expect("an id").to_owned();
    net.world.airlock(["refuse", &id]).run().succeeded();

    events.until(|event| event["event"] == "answered" && event["id"] == id.as_str());
    assert_eq!(asking.wait().succeeded(), "done noname ECONNRESET\n");
}

fn first(said: &str) -> Value {
    serde_json::from_str(said.lines().next().expect("a line")).expect("one object a line")
}
