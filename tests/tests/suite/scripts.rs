//! Scripts that look at connections, requests and answers, inside real sandboxes.

use crate::net::{Net, net};
use std::fs;

/// Flags for a rule about `name` and a script.
fn scripted(net: &Net, rule: &str, script: &str) -> Vec<String> {
    net.trusting("");
    let path = net.world.work().join("hooks.star");
    fs::write(&path, script).expect("a script");
    let flags = net.policy(rule);
    [flags.to_vec(), vec!["--script".to_owned(), path.display().to_string()]].concat()
}

#[track_caller]
fn sh(net: &Net, flags: &[String], script: &str) -> String {
    net.world.sh(flags.iter().map(String::as_str), script).run().succeeded()
}

#[test]
fn a_script_denies_hosts_and_requests_and_says_so() {
    let Some(net) = net() else { return };
    let (name, other) = (net.internet.name("web"), net.internet.name("v4"));
    let hooks = format!(
        "def is_host_allowed(host, port):\n    return host == '{name}'\n\n\
         def on_request(req):\n    if req['path'] == '/secret':\n        fail('not this one')\n    return True\n"
    );
    let rule = format!("[[rule]]\nallow = [\"{name}\", \"{other}\"]\nports = [80, 443]\n");
    let flags = scripted(&net, &rule, &hooks);

    let said = sh(
        &net,
        &flags,
        &format!(
            "curl -sS -m 30 -o /dev/null -w '%{{http_code}}\\n' https://{name}/who; curl -sS -m 30 https://{name}/secret; echo; \
             curl -sS -m 30 https://{other}/who 2>/dev/null; echo"
        ),
    );

    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "200");
    assert!(lines[1].contains("\"script\"") && lines[1].contains("not this one"), "{said}");
    assert!(!lines[2].contains("peer"), "{said}");
}

#[test]
fn a_script_changes_heads_and_bodies_both_ways() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let hooks = "def on_request(req):\n    req['headers']['x-marked'] = 'by script'\n    req['body'] = req['body'] + '!'\n    return req\n\n\
                 def on_response(req, resp):\n    resp['headers']['x-seen'] = req['path']\n    resp['body'] = resp['body'].upper()\n    return resp\n";
    let rule = format!("[[rule]]\nallow = \"{name}\"\nports = [443]\nbody = \"1M\"\n");
    let flags = scripted(&net, &rule, hooks);

    let said = sh(
        &net,
        &flags,
        &format!(
            "curl -sS -m 30 -D - -d abc https://{name}/sink; echo; curl -sS -m 30 -d x https://{name}/headers"
        ),
    );

    assert!(said.contains("x-seen: /sink") && said.contains("\n4\n"), "{said}");
    assert!(said.contains("\"X-MARKED\": \"BY SCRIPT\""), "{said}");
}

#[test]
fn a_script_that_runs_for_ever_or_takes_all_memory_denies_and_the_next_request_is_asked_anew() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let hooks = "def on_request(req):\n    if req['path'] == '/long':\n        x = [i * i for i in range(2000000000)]\n\
                 \x20   if req['path'] == '/steps':\n        for i in range(100000000):\n            x = i\n\
                 \x20   if req['path'] == '/memory':\n        x = 'a' * 1000000\n        y = [x + str(i) for i in range(1000000)]\n\
                 \x20   return True\n";
    let rule = format!("[[rule]]\nallow = \"{name}\"\nports = [443]\n");
    let flags = scripted(&net, &rule, hooks);
    let one = |path: &str| format!("curl -sS -m 60 -o /dev/null -w '%{{http_code}} ' https://{name}{path}; ");

    let said = sh(&net, &flags, &["/long", "/who", "/steps", "/who", "/memory", "/who"].map(one).concat());

    assert_eq!(said, "403 200 403 200 403 200 ");
}

#[test]
fn a_script_that_cannot_be_read_starts_nothing() {
    let Some(net) = net() else { return };
    let flags = scripted(&net, "", "def on_request(req:\n");
    let said = net.world.sh(flags.iter().map(String::as_str), "true").run();
    let text = format!("{said:?}");
    assert!(text.contains("hooks.star"), "{text}");
}
