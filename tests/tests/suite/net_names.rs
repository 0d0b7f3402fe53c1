//! The resolver inside: what `dig` and libc see, and what becomes of the answers of hostile name servers.

use crate::net::net;
use airlock_tests::internet::{PRIVATE, WEB};
use serde_json::Value;
use std::time::Instant;

#[test]
fn an_allowed_name_has_one_synthetic_address_that_stays() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);
    let dig = |words: &str| net.world.exec(&sandbox, &format!("dig +short {words}")).run().succeeded();

    let address = dig(&name);

    assert!(address.starts_with("198.18.") || address.starts_with("198.19."), "{address}");
    assert_eq!(dig(&format!("+tcp {}.", name.to_uppercase())), address);
    assert_eq!(dig(&format!("@{WEB} {name}")), address, "the sandbox cannot choose another name server");
    assert_eq!(dig(&format!("{name} AAAA")), "");
    assert_eq!(dig(&format!("{name} HTTPS")), "");
    assert_eq!(dig(&format!("{name} TXT")), "");
    assert_eq!(dig(&format!("-x {}", address.trim())), format!("{name}.\n"));
}

#[test]
fn a_name_of_no_rule_does_not_exist_and_dig_says_why() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let said = net.world.sh([], &format!("dig {name}; dig +tcp {name} TXT; dig -x {WEB}")).run().succeeded();

    assert_eq!(said.matches("status: NXDOMAIN").count(), 3, "{said}");
    assert!(said.matches("EDE: 15").count() >= 2, "{said}");
    assert!(said.contains("airlock"), "{said}");
}

#[test]
fn a_name_of_other_letters_is_one_name_however_it_is_written() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let ascii = format!("xn--bcher-kva.{name}");
    let sandbox = net.waiting(&["--allow", &format!("B\u{fc}cher.{name}.")]);

    let probe = format!(r#"say(reach("b\u00fccher.{name}"), reach("{ascii}"), reach("bucher.{name}"))"#);

    assert_eq!(net.inside_running(&sandbox, &probe), "done done noname\n");
    let records = net.ledger(&sandbox);
    let reached = records.iter().filter(|record| record["crossing"]["crossing"] == "connect");
    let hosts: Vec<&Value> = reached.map(|record| &record["crossing"]["host"]).collect();
    assert_eq!(hosts, [ascii.as_str(), ascii.as_str()]);
}

#[test]
fn no_question_of_a_sandbox_leaves_the_host_as_such() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark().to_owned());

    let probe = format!(
        r#"
for kind in (1, 28, 16, 10, 65, 12, 255):
    lookup(asked("data{mark}.{name}", kind))
    lookup(asked("data{mark}.evil.test", kind))
lookup(asked("data{mark}.evil.test"), "{WEB}", 1)
lookup(asked("data{mark}.{name}"), "93.184.216.53", 1)
say(reach("data{mark}.evil.test"), lookup(asked("{name}", 16)))
"#
    );

    let said = net.inside(&["--allow", &name], &probe);
    assert_eq!(said, "noname NOERROR 0\n");
    assert_eq!(net.internet.queries(&format!("data{mark}")), Vec::<Value>::new());
    assert_eq!(net.internet.queries(&name), Vec::<Value>::new(), "a name is resolved when it is dialled");
    net.outside(&format!(r#"reach("data{mark}.evil.test")"#));
    assert_ne!(net.internet.queries(&format!("data{mark}")), Vec::<Value>::new(), "the probe cannot fail");
}

#[test]
fn a_dial_asks_for_addresses_of_exactly_the_name() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    assert_eq!(net.inside(&["--allow", &name], &format!(r#"say(reach("{name}"))"#)), "done\n");

    let queries = net.internet.queries(net.internet.mark());
    assert!(!queries.is_empty());
    for query in queries {
        assert!(
            query["name"] == name.as_str() && (query["type"] == "A" || query["type"] == "AAAA"),
            "{query}"
        );
    }
}

#[test]
fn a_failing_name_server_fails_the_connection_and_nothing_else() {
    let Some(net) = net() else { return };
    let zones = ["servfail", "refused", "nx", "loop", "endless", "garbage"];
    let names: Vec<String> = zones.iter().map(|zone| format!("a.{}", net.internet.name(zone))).collect();
    let names: Vec<String> = names.into_iter().map(|name| name.replace("a.m", "x1.m")).collect();
    let good = net.internet.name("web");
    let allow: Vec<&str> = names.iter().chain([&good]).flat_map(|name| ["--allow", name]).collect();

    let probe = format!(
        "for name in {names:?}:\n    say(name.split('.')[2], reach(name, wait=30))\nsay(reach({good:?}))"
    );

    let said = net.inside(&allow, &probe);
    let expected: String = zones.iter().map(|zone| format!("{zone} ECONNRESET\n")).collect();
    assert_eq!(said, expected + "done\n");
}

#[test]
fn a_silent_or_slow_name_server_delays_nobody_else() {
    let Some(net) = net() else { return };
    let (silent, slow, good) =
        (net.internet.name("silent"), net.internet.name("slow"), net.internet.name("web"));

    let probe = format!(
        r#"
said = {{}}
def ask(name):
    said[name] = reach(name, wait=45)
waiting = [threading.Thread(target=ask, args=[name]) for name in ("{silent}", "{slow}")]
for thread in waiting:
    thread.start()
say(quickly(lambda: reach("{good}")))
for thread in waiting:
    thread.join()
say(said["{silent}"], said["{slow}"])
"#
    );

    let flags = ["--allow", &silent, "--allow", &slow, "--allow", &good];
    assert_eq!(net.inside(&flags, &probe), "done\nECONNRESET done\n");
}

#[test]
fn aliases_and_long_answers_are_followed_and_checked() {
    let Some(net) = net() else { return };
    let alias = net.internet.name("alias");
    let hidden = net.internet.name("aliasprivate");

    let probe = format!(r#"say(reach("{alias}"), reach("{hidden}"))"#);
    let sandbox = net.waiting(&["--allow", &alias, "--allow", &hidden]);

    assert_eq!(net.inside_running(&sandbox, &probe), "done ECONNRESET\n");
    let denied = net.denials(&sandbox, &hidden);
    assert_eq!(denied.iter().filter(|record| record["reason"] == "address").count(), 1, "{denied:?}");
}

#[test]
fn an_answer_that_mixes_good_and_private_addresses_never_leads_to_the_private_one() {
    let Some(net) = net() else { return };
    let private = net.internet.nowhere_private();
    let name = net.internet.name_of(&[&private, WEB]);

    let said = net.inside(&["--allow", &name], &format!(r#"say([reach("{name}") for _ in range(5)])"#));

    // Either the good address is taken or the whole answer is refused.
    let all = |word: &str| format!("{:?}\n", [word; 5]).replace('"', "'");
    assert!(said == all("done") || said == all("ECONNRESET"), "{said}");
    assert_eq!(net.internet.packets_to(&private), Vec::<Value>::new());
}

#[test]
fn hostile_questions_are_survived() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name]);

    // Pointers to themselves and forward, cut off packets, wrong counts, long labels, answers as questions, noise.
    let probe = format!(
        r#"
head = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0)
tail = struct.pack(">HH", 1, 1)
good = asked("{name}")
packets = [b"", b"\0", head, head + b"\xc0\x0c" + tail, head + b"\xc0\x0e\xc0\x0c" + tail, head + b"\x40abc\0" + tail,
           head + b"\x3f" * 40 + tail, good[:-1], good[:20], good + b"x" * 400, struct.pack(">H", 9) + b"\x81\x80" + good[4:],
           struct.pack(">HHHHHH", 7, 0x0100, 65535, 65535, 65535, 65535) + good[12:], asked([b"a" * 63] * 4),
           asked([b"\0", b"web", b"test"]), asked([b"a.b", b"web", b"test"]), asked([b"{name}\0", b"evil", b"test"])]
random.seed(7)
packets += [bytes(random.randrange(256) for _ in range(random.randrange(600))) for _ in range(200)]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for packet in packets:
        s.sendto(packet, (nameserver(), 53))
for stream in [b"\0", b"\xff\xff" + b"x" * 1000, b"\0\0", struct.pack(">H", len(good)) + good]:
    with socket.create_connection((nameserver(), 53), 10) as s:
        s.sendall(stream)
say(lookup(asked("{name}")), reach("{name}"))
"#
    );

    let start = Instant::now();
    assert_eq!(net.inside_running(&sandbox, &probe), "NOERROR 1 done\n");
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    let asked = net.internet.queries(net.internet.mark());
    assert!(asked.iter().all(|query| query["name"] == name.as_str()), "{asked:?}");
    let state = net.world.state(&sandbox);
    assert_eq!(state["status"], "running");
}

#[test]
fn a_name_that_is_given_a_private_address_is_denied_with_words() {
    let Some(net) = net() else { return };
    let name = net.internet.name_of(&[PRIVATE]);
    let sandbox = net.waiting(&["--allow", &name]);

    assert_eq!(net.inside_running(&sandbox, &format!(r#"say(reach("{name}"))"#)), "ECONNRESET\n");

    let denied = net.denials(&sandbox, &name);
    let record = denied.iter().find(|record| record["reason"] == "address").expect("a denial");
    assert!(record["detail"].as_str().is_some_and(|words| words.contains(PRIVATE)), "{record}");
}
