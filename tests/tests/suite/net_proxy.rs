//! Out through a proxy of the company, spoken to plainly or in TLS.

use crate::net::{Net, net};
use airlock_tests::eventually;

/// Settings with this proxy.
fn through(net: &Net, proxy: &str, more: &str) {
    net.trusting(&format!("proxy = \"{proxy}\"\n{more}"));
}

/// What the proxy was asked for, and by which name it was called in TLS.
fn asked(net: &Net) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let hits = net.internet.hits(net.internet.mark());
    let asked = hits.iter().filter(|hit| hit["what"] == "proxy");
    asked.map(|hit| (text(&hit["target"]), text(&hit["sni"]))).collect()
}

const PLAIN: &str = "http://proxy.test:3128";
const SECURE: &str = "https://ann:p%40ss@proxy.test:3129";

#[test]
fn connections_leave_through_the_proxy_relayed_and_opened() {
    for (proxy, called) in [(PLAIN, ""), (SECURE, "proxy.test")] {
        let Some(net) = net() else { return };
        let (name, opened) = (net.internet.name("web"), format!("o{}", net.internet.name("web")));
        through(&net, proxy, "");
        let rules = format!(
            "[[rule]]\nallow = \"{name}\"\nports = [443]\n[[rule]]\nallow = \"{opened}\"\nports = [443]\ntls = \"opened\"\n"
        );
        let flags = net.policy(&rules);

        let script = format!(
            "curl -sS -m 30 --cacert ca.pem https://{name}/who && echo && curl -sS -m 30 https://{opened}/who && echo && \
             curl -sS -m 60 https://{opened}/bytes/3000000 | wc -c && \
             curl -sS -m 60 --cacert ca.pem https://{name}/bytes/3000000 | wc -c"
        );
        let said = net.world.sh(flags.iter().map(String::as_str), &script).run().succeeded();

        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains(&name) && lines[1].contains(&opened), "{said}");
        assert_eq!(lines[2..], ["3000000", "3000000"], "{said}");
        let asked = asked(&net);
        for target in [format!("{name}:443"), format!("{opened}:443")] {
            assert!(asked.contains(&(target, called.to_owned())), "{asked:?}");
        }
    }
}

#[test]
fn who_may_not_use_the_proxy_and_a_proxy_that_is_not_trusted_are_told_apart() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let ended = |why: &str| {
        let sandbox = net.waiting(&["--allow", &name]);
        let said =
            net.world.exec(&sandbox, &format!("curl -s -m 30 --cacert ca.pem https://{name}/who")).run();
        assert_ne!(said.code, 0, "{why}: {said}");
        // The end of a flow is written a moment later.
        let ledger = eventually(why, || {
            let ledger = net.ledger(&sandbox);
            ledger.iter().any(|record| record["status"] == "proxy").then_some(ledger)
        });
        assert!(!format!("{ledger:?}").contains("wrong-pass"), "{ledger:?}");
    };

    through(&net, "https://ann:wrong-pass@proxy.test:3129", "");
    ended("a wrong password");
    assert_eq!(asked(&net).len(), 1);
    let text = format!("[network]\nproxy = \"{SECURE}\"\n");
    std::fs::write(net.world.home().join("config.toml"), text).expect("a file");
    ended("nobody vouches for the proxy");

    assert_eq!(asked(&net).len(), 1, "the proxy that nobody vouches for was asked");
}

#[test]
fn what_no_proxy_names_is_dialled_and_checked_here() {
    let Some(net) = net() else { return };
    let (name, private) = (net.internet.name("web"), net.internet.name_of(&["10.20.0.5"]));
    through(&net, SECURE, "no_proxy = [\"web.test\", \"ip.test\"]\n");

    let script = format!(
        "curl -sS -m 30 --cacert ca.pem https://{name}/who; echo; curl -s -m 30 http://{private}/who || echo refused"
    );
    let said = net.world.sh(["--allow", &name, "--allow", &private], &script).run().succeeded();

    assert!(said.contains(&name) && said.ends_with("refused\n"), "{said}");
    assert_eq!(asked(&net), []);
}
