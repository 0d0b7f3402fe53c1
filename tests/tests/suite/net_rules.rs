//! What rules let through, and what a program sees where they do not.

use crate::net::{Canary, Net, net};
use airlock_tests::{
    internet::{METADATA, PRIVATE, WEB, WEB_V6},
    not_for_a_machine,
};
use std::fs;

#[test]
fn without_rules_nothing_is_reached_and_every_refusal_is_fast() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(
        r#"
say(quickly(lambda: reach("{name}")))
say(quickly(lambda: reach("{WEB}", 80)))
say(quickly(lambda: reach("{WEB}", 443)))
say(quickly(lambda: reach("{WEB_V6}", 80)))
say(quickly(lambda: reach("{METADATA}", 80)))
say(quickly(lambda: reach("{PRIVATE}", 80)))
say(quickly(lambda: datagram("{WEB}", 443)))
"#
    );

    let refused = "noname\n".to_owned() + &"ECONNREFUSED\n".repeat(5) + sent() + "\n";
    assert_eq!(net.inside(&[], &probe), refused);
    assert_eq!(net.outside(&probe), "done\n".repeat(2) + "closed\n" + &"done\n".repeat(4));
}

#[test]
fn a_host_rule_without_ports_means_80_and_443() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(
        r#"
say(reach("{name}", 80), tls("{name}", "{name}", 443))
say(quickly(lambda: reach("{name}", 8080)), quickly(lambda: reach("{name}", 22)))
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), "done done\nECONNREFUSED ECONNREFUSED\n");
}

#[test]
fn a_rule_with_a_port_means_that_port_alone() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(r#"say(reach("{name}", 8080), reach("{name}", 80))"#);

    assert_eq!(net.inside(&["--allow", &format!("{name}:8080")], &probe), "done ECONNREFUSED\n");
}

#[test]
fn the_first_rule_that_matches_decides() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let rules = format!(
        "[[rule]]\ndeny = \"bad.{name}\"\n[[rule]]\nallow = \"*.{name}\"\n[[rule]]\nallow = \"{name}\"\n\
         [[rule]]\ndeny = \"*.{name}\"\n"
    );
    let policy = net.policy(&rules);

    let probe =
        format!(r#"say(reach("{name}"), reach("good.{name}"), reach("a.b.{name}"), reach("bad.{name}"))"#);
    let policy: Vec<&str> = policy.iter().map(String::as_str).collect();

    let said = net.run(&policy, &probe);
    // A rule that can never match is refused, and here is one.
    assert!(said.code != 0 && said.stderr.contains("policy.toml:7"), "{said}");
    let policy = net.policy(rules.rsplit_once("[[rule]]").unwrap().0);
    let policy: Vec<&str> = policy.iter().map(String::as_str).collect();
    assert_eq!(net.inside(&policy, &probe), "done done done noname\n");
}

#[test]
fn a_wildcard_matches_what_is_below_it_and_not_itself() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe =
        format!(r#"say(reach("{name}"), reach("a.{name}"), reach("not{name}"), reach("{name}.evil.test"))"#);

    assert_eq!(net.inside(&["--allow", &format!("*.{name}")], &probe), "noname done noname noname\n");
}

#[test]
fn a_wildcard_has_a_budget_of_names_and_an_exact_rule_has_none() {
    let Some(net) = net() else { return };
    let (name, other) = (net.internet.name("web"), net.internet.name("v4"));

    let probe = format!(
        r#"
said = [lookup(asked("label%d.{name}" % n)) for n in range(400)]
say(said[0], said[-1], sum(one == "NOERROR 1" for one in said) <= 300)
say(lookup(asked("label0.{name}")), lookup(asked("{other}")))
"#
    );

    let flags = ["--allow", &format!("*.{name}"), "--allow", &other];
    assert_eq!(net.inside(&flags, &probe), "NOERROR 1 NXDOMAIN 0 True\nNOERROR 1 NOERROR 1\n");
}

#[test]
fn a_name_is_the_same_name_in_capitals_and_with_a_trailing_dot() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(
        r#"say(reach("{name}."), reach("{0}"), reach("{1}"))"#,
        name.to_uppercase(),
        name.replace("web", "wEb")
    );

    assert_eq!(net.inside(&["--allow", &name.to_uppercase()], &probe), "done done done\n");
}

#[test]
fn an_address_is_reached_where_a_rule_names_it_or_its_range() {
    let Some(net) = net() else { return };
    let policy = net.policy(&format!(
        "[[rule]]\nallow = \"{WEB}\"\n[[rule]]\nallow = \"2600:9000:5::/48\"\nports = [80]\n\
         [[rule]]\nallow = \"151.101.0.0/16\"\nports = [80]\n"
    ));
    let policy: Vec<&str> = policy.iter().map(String::as_str).collect();

    let probe = format!(
        r#"
say(reach("{WEB}", 80), reach("{WEB}", 8080), reach("{WEB_V6}", 80), reach("{WEB_V6}", 443))
say(reach("151.101.1.69", 80), reach("93.184.216.66", 80), reach("::ffff:{WEB}", 80))
"#
    );

    assert_eq!(net.inside(&policy, &probe), "done ECONNREFUSED done ECONNREFUSED\ndone ECONNREFUSED done\n");
}

#[test]
fn a_name_with_only_an_ipv6_address_is_reached() {
    let Some(net) = net() else { return };
    let (six, late) = (net.internet.name("v6"), net.internet.name("late6"));

    let probe = format!(r#"say(reach("{six}"), reach("{late}"), tls("{six}", "{six}"))"#);

    assert_eq!(net.inside(&["--allow", &six, "--allow", &late], &probe), "done done done\n");
}

#[test]
fn a_private_range_is_reached_only_where_the_rule_names_it() {
    let Some(net) = net() else { return };
    let name = net.internet.name_of(&[PRIVATE]);
    let probe = format!(r#"say(reach("{name}"))"#);

    let rule = |private: &str| {
        let policy = net.policy(&format!("[[rule]]\nallow = \"{name}\"\n{private}"));
        net.inside(&[&policy[0], &policy[1]], &probe)
    };

    assert_eq!(rule(""), "ECONNRESET\n");
    assert_eq!(rule("private = [\"10.21.0.0/16\"]"), "ECONNRESET\n");
    assert_eq!(rule("private = [\"10.20.0.0/16\"]"), "done\n");
}

#[test]
fn no_private_range_opens_metadata_loopback_or_link_local() {
    let Some(net) = net() else { return };
    for never in ["169.254.0.0/16", "127.0.0.0/8", "0.0.0.0/0", "fe80::/10", "::1/128"] {
        let policy = net.policy(&format!(
            "[[rule]]\nallow = \"{}\"\nprivate = [\"{never}\"]\n",
            net.internet.name_of(&[METADATA])
        ));
        let probe = format!(r#"say(reach("{}"))"#, net.internet.name_of(&[METADATA]));

        let said = net.run(&[&policy[0], &policy[1]], &probe);

        // Refused at load or at the dial: either way it is not reached.
        assert!(said.code != 0 || said.stdout == "ECONNRESET\n", "{never}: {said}");
    }
}

#[test]
fn programs_inside_keep_their_loopback_and_low_ports() {
    let Some(net) = net() else { return };
    let probe = r#"
def serve(family, address, port):
    server = socket.socket(family)
    server.bind((address, port))
    server.listen()
    def once():
        peer, _ = server.accept()
        peer.recv(100)
        peer.sendall(b"own")
        peer.close()
    threading.Thread(target=once, daemon=True).start()
own = socket.gethostbyname(socket.gethostname())
for family, address, port in [(socket.AF_INET, "127.0.0.1", 80), (socket.AF_INET6, "::1", 443), (socket.AF_INET, own, 22)]:
    serve(family, address, port)
    say(reach(address, port))
a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
a.bind(("127.0.0.1", 53000))
b.sendto(b"x", ("127.0.0.1", 53000))
say(a.recv(10).decode())
"#;

    assert_eq!(net.inside(&[], probe), "done\ndone\ndone\nx\n");
}

/// What a program hears when it sends a datagram that may not leave.
fn sent() -> &'static str {
    match not_for_a_machine("a datagram is refused by an answer, after the call") {
        true => "done",
        false => "EPERM",
    }
}

#[test]
fn datagrams_and_pings_fail_at_once_and_never_arrive() {
    let Some(net) = net() else { return };
    let (name, nowhere) = (net.internet.name("web"), net.internet.nowhere());

    let probe = format!(
        r#"
say(quickly(lambda: datagram("{nowhere}", 443)), quickly(lambda: datagram("{nowhere}", 123)))
say(quickly(lambda: datagram("{WEB_V6}", 443, socket.AF_INET6)))
say(quickly(lambda: datagram(socket.gethostbyname("{name}"), 443)))
"#
    );
    let ping = format!("busybox ping -c 1 -W 5 {nowhere} > /dev/null 2>&1 && echo answered || echo failed");

    let flags = ["--allow", &name, "--allow", &nowhere];
    let sent = sent();
    assert_eq!(net.inside(&flags, &probe), format!("{sent} {sent}\n{sent}\n{sent}\n"));
    assert_eq!(net.world.sh(flags, &ping).run().succeeded(), "failed\n");
    assert_eq!(net.internet.packets_to(&nowhere), Vec::<serde_json::Value>::new());
    net.outside(&format!(r#"datagram("{nowhere}", 443)"#));
    assert_ne!(net.internet.packets_to(&nowhere), Vec::<serde_json::Value>::new(), "the probe cannot fail");
}

#[test]
fn a_sandbox_without_network_resolves_and_reaches_nothing() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(r#"say(reach("{name}") != "done", reach("{WEB}") != "done")"#);

    assert_eq!(net.inside(&["--network", "none"], &probe), "True True\n");
    let both = net.run(&["--network", "none", "--allow", &name], &probe);
    assert!(both.code != 0 || both.stdout == "True True\n", "{both}");
    let host = net.world.sh(["--network", "host"], "true").run();
    assert!(host.code != 0 && host.stderr.contains("--allow"), "{host}");
}

#[test]
fn the_hosts_own_loopback_is_reached_by_name_at_the_ports_that_a_rule_names() {
    let Some(net) = net() else { return };
    let (named, other) = (Canary::on("127.0.0.1"), Canary::on("127.0.0.1"));
    let allow = format!("host.airlock:{}", named.port());

    let probe = format!(
        r#"say(reach("host.airlock", {}), reach("host.airlock", {}) != "done", reach("127.0.0.1", {}))"#,
        named.port(),
        other.port(),
        named.port()
    );

    assert_eq!(net.inside(&["--allow", &allow], &probe), "done True ECONNREFUSED\n");
    assert_eq!(net.inside(&[], &format!(r#"say(reach("host.airlock", {}))"#, named.port())), "noname\n");
    assert_eq!((named.visits(), other.visits()), (1, 0));
}

#[test]
fn connections_go_through_a_companys_proxy_where_it_is_configured() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    configure(&net, "[network]\nproxy = \"http://proxy.test:3128\"\n");

    let probe = format!(r#"say(reach("{name}"), tls("{name}", "{name}"))"#);

    assert_eq!(net.inside(&["--allow", &name], &probe), "done done\n");
    let hits = net.internet.hits(&name);
    assert_eq!(hits.iter().filter(|hit| hit["what"] == "proxy").count(), 2, "{hits:?}");
}

#[test]
fn policies_are_joined_and_a_markdown_file_is_one_too() {
    let Some(net) = net() else { return };
    let names: Vec<String> = ["web", "v4", "cdn"].iter().map(|zone| net.internet.name(zone)).collect();
    let folder = net.world.aside("rules");
    fs::write(folder.join("one.toml"), format!("[[rule]]\nallow = \"{}\"\n", names[0])).unwrap();
    let text = format!("---\ndomains:\n  - {}\n---\n# What this agent may reach\n", names[1]);
    fs::write(folder.join("two.md"), text).unwrap();

    let probe = format!(r#"say(reach("{}"), reach("{}"), reach("{}"))"#, names[0], names[1], names[2]);
    let (one, two) = (folder.join("one.toml"), folder.join("two.md"));
    let flags = ["--policy", one.to_str().unwrap(), "--policy", two.to_str().unwrap()];

    assert_eq!(net.inside(&flags, &probe), "done done noname\n");
}

#[test]
fn a_rule_about_requests_that_cannot_be_seen_is_refused_and_not_ignored() {
    let Some(net) = net() else { return };
    for keys in [
        "tls = \"opaque\"\nmethods = [\"GET\"]",
        "tls = \"opaque\"\npins = [\"sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]",
        "repositories = [\"acme/*\"]",
    ] {
        let policy = net.policy(&format!("[[rule]]\nallow = \"api.web.test\"\n{keys}\n"));

        let refused = net.world.airlock(["run", &policy[0], &policy[1], "--", "true"]).run();

        assert!([2, 125].contains(&refused.code), "{keys}: {refused}");
        assert!(
            refused.stderr.contains("policy.toml:") && refused.stderr.contains("fix:"),
            "{keys}: {refused}"
        );
    }
}

/// The person's own settings.
fn configure(net: &Net, text: &str) {
    // The state directory is made by the first command.
    net.world.airlock(["ls"]).run().succeeded();
    fs::write(net.world.home().join("config.toml"), text).expect("a file");
}
