//! Hosts that a rule allows, turned against the sandbox's owner: as a tunnel, as a place to drop things, as a sender of bombs.

use crate::net::{Net, net};
use serde_json::Value;
use std::{fs, process::Command};

/// `exchange(host, texts)`: through the sandbox's proxy to port 80, each text when the last was answered; the first lines of the answers.
const EXCHANGE: &str = r#"
def exchange(host, texts):
    s = socket.create_connection(("proxy.airlock", 3128), 30)
    s.settimeout(30)
    def answer():
        head = b""
        while b"\r\n\r\n" not in head:
            more = s.recv(1)
            if not more:
                return "closed"
            head += more
        length = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        left = length[0] if length else 0
        while left:
            left -= len(s.recv(left))
        return head.split(b" ")[1].decode()
    s.sendall(b"CONNECT %s:80 HTTP/1.1\r\nHost: %s:80\r\n\r\n" % (host.encode(), host.encode()))
    said = [answer()]
    for text in texts:
        said.append(outcome(lambda: (s.sendall(text), answer())[1]))
    return said
"#;

/// Requests for paths with this text that arrived, with their methods.
fn arrived(net: &Net, with: &str) -> Vec<String> {
    let hits = net.internet.hits(with);
    let requests = hits.iter().filter(|hit| hit["what"] == "request");
    requests.map(|hit| hit["method"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A request of one method to a path, then bytes that are no request.
fn tunnelled(net: &Net, sandbox: &str, host: &str) -> String {
    let mark = net.internet.mark();
    let probe = format!(
        r#"{EXCHANGE}
head = " HTTP/1.1\r\nHost: {host}\r\n"
texts = ["GET /ok/{mark}" + head + "\r\n", "POST /drop/{mark}" + head + "Content-Length: 4\r\n\r\ndata", "\x00\x01raw bytes {mark}\r\n\r\n"]
say(" ".join(exchange("{host}", [text.encode() for text in texts])))
"#
    );
    net.inside_running(sandbox, &probe)
}

/// Number 58: a host that was approved is no raw tunnel.
#[test]
fn what_is_approved_of_a_host_opens_no_tunnel_to_it() {
    let Some(net) = net() else { return };
    let host = net.internet.name("web");
    let policy = net.policy("[[rule]]\nallow = \"other.web.test\"\nmethods = [\"GET\"]\n");
    let sandbox = net.waiting(&[&policy[0], &policy[1]]);
    let drop = format!("/drop/{}", net.internet.mark());

    net.world.airlock(["allow", &sandbox, &format!("GET http://{host}/ok/**")]).run().succeeded();
    let narrow = tunnelled(&net, &sandbox, &host);
    assert!(narrow.starts_with("200 200 403 "), "{narrow}");
    assert_eq!(arrived(&net, &drop), Vec::<String>::new());
    assert_eq!(net.denials(&sandbox, &host).len(), 2, "the drop and the raw bytes");

    // Whoever allows the whole host gets what was asked for.
    net.world.airlock(["allow", &sandbox, &format!("{host}:80")]).run().succeeded();
    let wide = tunnelled(&net, &sandbox, &host);
    assert!(wide.starts_with("200 200 200 "), "{wide}");
    assert_eq!(arrived(&net, &drop), ["POST"]);
}

/// Number 59: a host that is allowed for reading is no place to drop things at; and what went there is counted.
#[test]
fn nothing_is_dropped_at_a_host_that_is_allowed_for_reading() {
    let Some(net) = net() else { return };
    net.trusting("");
    let (host, mark) = (net.internet.name("web"), net.internet.mark().to_owned());
    let send = |method: &str| {
        format!(
            "curl -sS -m 30 -o /dev/null -w '%{{http_code}} ' -X {method} --data-binary @/bin/true https://{host}/sink/{mark}/{method}; "
        )
    };
    let script: String = ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"].map(send).concat();
    let script =
        format!("{script} curl -sS -m 30 -o /dev/null -w '%{{http_code}}' https://{host}/public/{mark}");
    let reading =
        format!("[[rule]]\nallow = \"{host}\"\nmethods = [\"GET\", \"HEAD\"]\npaths = [\"/public/**\"]\n");

    let policy = net.policy(&reading);
    let said = net.world.sh([policy[0].as_str(), &policy[1]], &script).run().succeeded();
    assert_eq!(said, "403 403 403 403 403 200");
    assert_eq!(arrived(&net, &format!("/sink/{mark}")), Vec::<String>::new());

    let policy = net.policy(&format!("[[rule]]\nallow = \"{host}\"\ntls = \"opened\"\n"));
    let name = format!("wide{mark}");
    let flags = [policy[0].as_str(), &policy[1], "--keep", "--name", &name];
    assert_eq!(net.world.sh(flags, &script).run().succeeded(), "200 200 200 200 200 200");
    assert_eq!(arrived(&net, &format!("/sink/{mark}")).len(), 5);
    let size = fs::metadata("/bin/true").expect("a file").len();
    let sent = |record: &Value| record["sent"].as_u64().unwrap_or_default();
    let most = net.ledger(&name).iter().map(sent).max().unwrap_or_default();
    assert!(most >= size, "the ledger tells of {most} bytes, {size} were sent at once");
}

/// The most memory that the keeper of a sandbox had, in kilobytes.
fn peak(net: &Net, sandbox: &str) -> u64 {
    let keeper = net.world.state(sandbox)["keeper_pid"].as_u64().expect("a pid");
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).expect("the keeper lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a figure");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Number 69: an answer that is decoded, so that no secret comes back in it, and would grow a thousand times by that, is cut.
#[test]
fn a_bomb_in_an_answer_costs_the_keeper_little() {
    const MEGABYTES: u64 = 192;
    let Some(net) = net() else { return };
    net.trusting("");
    let host = net.internet.name("web");
    let flags = ["run", "-d", "--secret", &format!("TOKEN@{host}"), "--", "sleep", "1000"];
    let started = net.world.airlock(flags).env("TOKEN", "ghp_RealValueOfTheSecret0123456789abcdef").run();
    let sandbox = started.succeeded().trim().to_owned();
    let ask = |path: &str| {
        let script =
            format!("curl -sS -m 100 -H \"Authorization: Bearer $TOKEN\" https://{host}{path} | wc -c");
        net.world.exec(&sandbox, &script).run().succeeded().trim().parse::<u64>().expect("a count")
    };
    for kind in ["gzip", "br", "zstd"] {
        ask(&format!("/bomb/1/{kind}"));
    }
    let before = peak(&net, &sandbox);

    for kind in ["gzip", "br", "zstd"] {
        let received = ask(&format!("/bomb/{MEGABYTES}/{kind}"));
        assert!(received < MEGABYTES << 18, "{kind}: {received} bytes came in");
        let grown = peak(&net, &sandbox).saturating_sub(before);
        assert!(grown < 24 * 1024, "{kind}: the keeper grew by {grown} kB");
    }
    // Where nobody looks, all of it arrives.
    let ca = net.internet.ca();
    let address = format!("https://{host}/bomb/{MEGABYTES}");
    let control = Command::new("curl")
        .args(["-sS", "-m", "100", "--compressed", "--cacert"])
        .arg(ca)
        .arg(address)
        .output();

    let whole = u64::try_from(control.expect("curl runs").stdout.len()).expect("a count");
    assert_eq!(whole, MEGABYTES << 20);
}
