//! Requests hidden in requests. A rule allows `GET /public/**`; whatever the framing, no server sees a request that the
//! gate did not judge. Every framing is also sent past the wall, to a server that reads badly, where it works.

use crate::net::{Net, net};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

/// The client, and the cases.
const FRAMINGS: &str = include_str!("framings.py");

/// A rule for `GET /public/**` of a host, and a keeper that trusts the servers.
fn guarded(net: &Net, host: &str) -> [String; 2] {
    net.world.airlock(["ls"]).run().succeeded();
    let config = format!("[network]\nextra_ca = \"{}\"\n", net.internet.ca().display());
    fs::write(net.world.home().join("config.toml"), config).expect("a file");
    net.policy(&format!("[[rule]]\nallow = \"{host}\"\nmethods = [\"GET\"]\npaths = [\"/public/**\"]\n"))
}

/// What a probe with all framings says.
fn script(host: &str, mark: &str, options: &str) -> String {
    format!("{FRAMINGS}\nattack(\"{host}\", \"{mark}\"{options})\n")
}

/// The names of cases whose hidden request a server saw.
fn arrived(net: &Net, mark: &str) -> BTreeSet<String> {
    let word = format!("evil-{mark}-");
    let text: String = net.internet.hits(&word).iter().map(Value::to_string).collect();
    let rest = text.split(&word).skip(1);
    rest.map(|rest| rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next().unwrap().to_owned())
        .collect()
}

/// Every attack that was tried. What hides nothing worked.
fn tried(said: &str) -> BTreeSet<String> {
    let good: Vec<&str> = said.lines().filter(|line| line.starts_with("good ")).collect();
    assert!(
        !good.is_empty() && good.iter().all(|line| line.ends_with(" 200") || line.contains(" head")),
        "{said}"
    );
    let names = said.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned);
    names.filter(|name| name != "good").collect()
}

/// Nothing hidden reached the servers behind `zone`, and what reached them had been judged.
fn nothing_hidden_arrives(zone: &str, options: &str) {
    let Some(net) = net() else { return };
    let (host, mark) = (net.internet.name(zone), net.internet.mark().to_owned());
    let policy = guarded(&net, &host);
    let sandbox = net.waiting(&[&policy[0], &policy[1]]);

    let said = net.inside_running(&sandbox, &script(&host, &mark, options));

    println!("{said}");
    let least = if options.contains("second") { 33 } else { 120 };
    assert!(tried(&said).len() >= least, "{said}");
    assert_eq!(arrived(&net, &mark), BTreeSet::new(), "reached {zone}");
    let ledger = net.ledger(&sandbox);
    let judged: BTreeSet<&str> = ledger
        .iter()
        .filter(|record| record["verdict"] == "allow")
        .filter_map(|record| record["crossing"]["path"].as_str())
        .collect();
    let reached: Vec<String> = net
        .internet
        .hits(&host)
        .iter()
        .filter_map(path)
        .filter(|path| !judged.contains(path.as_str()))
        .collect();
    assert_eq!(reached, Vec::<String>::new(), "never judged");
    assert!(!judged.is_empty(), "nothing was allowed: {said}");
}

/// The path of a request that a server wrote down.
fn path(hit: &Value) -> Option<String> {
    let line = hit["line"].as_str().and_then(|line| line.split(' ').nth(1));
    line.or(hit["path"].as_str()).map(str::to_owned)
}

#[test]
fn no_framing_hides_a_request_from_the_gate_before_a_server_that_reads_badly() {
    nothing_hidden_arrives("naive", "");
}

#[test]
fn no_framing_hides_a_request_from_the_gate_before_nginx() {
    nothing_hidden_arrives("nginx", "");
}

#[test]
fn no_framing_hides_a_request_from_the_gate_before_haproxy() {
    nothing_hidden_arrives("haproxy", "");
}

#[test]
fn no_framing_hides_a_request_from_the_gate_before_apache() {
    nothing_hidden_arrives("apache", "");
}

#[test]
fn no_framing_hides_a_request_from_the_gate_before_node() {
    nothing_hidden_arrives("node", "");
}

#[test]
fn no_framing_hides_a_request_from_the_gate_inside_a_tunnel() {
    nothing_hidden_arrives("naive", ", way=\"tunnel\"");
}

#[test]
fn no_framing_hides_a_request_from_the_gate_behind_the_proxy_of_the_sandbox() {
    nothing_hidden_arrives("naive", ", way=\"absolute\"");
}

#[test]
fn no_stream_of_http2_hides_a_request_from_the_gate() {
    for zone in ["naive", "nginx"] {
        nothing_hidden_arrives(zone, ", second=True");
    }
}

#[test]
fn every_framing_works_where_nothing_is_in_its_way() {
    let Some(net) = net() else { return };
    let (host, mark) = (net.internet.name("naive"), net.internet.mark().to_owned());

    for options in ["", ", second=True"] {
        let said = net.outside(&script(&host, &mark, options));
        let (tried, arrived) = (tried(&said), arrived(&net, &mark));
        let idle: Vec<&String> = tried.difference(&arrived).collect();
        assert!(idle.is_empty(), "these attacks do nothing: {idle:?}\n{said}");
    }
}
