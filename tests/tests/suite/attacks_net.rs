//! Known ways around a network policy, one test each (the numbers are those of our list of published bypasses). Each
//! probe is also run with nothing in its way: it can succeed. Names and addresses are in `attacks_net_names`.

use crate::net::{Canary, net};
use airlock_tests::{
    Who,
    internet::{HOST, HOST_V6, METADATA, WEB, WEB_V6},
    not_applicable, who,
};
use serde_json::Value;
use std::process::Command;

const NOTHING: Vec<Value> = Vec::new();

/// 40: an empty list of rules once meant that nothing was enforced.
#[test]
fn no_rules_and_an_empty_file_of_rules_deny_everything() {
    let Some(net) = net() else { return };
    let (name, nowhere) = (net.internet.name("web"), net.internet.nowhere());
    let empty = net.policy("");
    let probe = format!(r#"say(reach("{name}"), reach("{nowhere}", wait=2))"#);

    assert_eq!(net.inside(&[], &probe), "noname ECONNREFUSED\n");
    assert_eq!(net.inside(&[&empty[0], &empty[1]], &probe), "noname ECONNREFUSED\n");
    assert_eq!(net.internet.packets_to(&nowhere), NOTHING);
    assert!(net.outside(&probe).starts_with("done "));
    assert_ne!(net.internet.packets_to(&nowhere), NOTHING, "the probe cannot fail");
}

/// 42: a relay inside the sandbox was trusted with the connections it made for others.
#[test]
fn a_relay_inside_reaches_no_more_than_its_sandbox() {
    let Some(net) = net() else { return };
    let (name, nowhere) = (net.internet.name("web"), net.internet.nowhere());

    let probe = format!(
        r#"
server = socket.create_server(("127.0.0.1", 3128))
def relay():
    while True:
        peer, _ = server.accept()
        head = peer.recv(4096).split()
        host, port = head[1].decode().rsplit(":", 1)
        try:
            far = socket.create_connection((host, int(port)), 5)
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            far.sendall(peer.recv(4096))
            peer.sendall(far.recv(4096))
        except OSError as err:
            peer.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        peer.close()
threading.Thread(target=relay, daemon=True).start()
def through(host):
    with socket.create_connection(("127.0.0.1", 3128), 20) as s:
        s.sendall(b"CONNECT %s:80 HTTP/1.1\r\n\r\n" % host.encode())
        if b"200" not in s.recv(100):
            return "refused"
        return request(s, "relayed")
say(through("{name}"), through("evil.{name}"), through("{WEB}"), through("{nowhere}"))
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), "done refused refused refused\n");
    assert_eq!(net.internet.packets_to(&nowhere), NOTHING);
    assert_eq!(net.outside(&probe), "done done done refused\n");
    assert_ne!(net.internet.packets_to(&nowhere), NOTHING, "the probe cannot fail");
}

/// 43: tools that do not read proxy variables went out directly.
#[test]
fn there_is_no_direct_way_whatever_the_environment_says() {
    let Some(net) = net() else { return };
    let nowhere = net.internet.nowhere();
    let script = format!(
        "unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY no_proxy; \
         curl -s -m 3 --noproxy '*' http://{nowhere}/ && echo out; \
         busybox nc -w 2 {nowhere} 80 < /dev/null && echo out; \
         busybox wget -q -T 2 -O - http://{nowhere}/ && echo out; \
         (exec 3<>/dev/tcp/{nowhere}/80) 2>/dev/null && echo out; \
         openssl s_client -connect {nowhere}:443 < /dev/null > /dev/null 2>&1 && echo out; exit 0"
    );

    let shell = |flags: &[&str]| {
        let run = net.world.airlock(["run"]).args(flags).args(["--", "bash", "-c", &script]);
        run.env("NO_PROXY", "*").run().succeeded()
    };

    assert_eq!(shell(&[]), "");
    assert_eq!(shell(&["--env", "NO_PROXY=*"]), "");
    assert_eq!(net.internet.packets_to(&nowhere), NOTHING);
    Command::new("curl").args(["-s", "-m", "1", &format!("http://{nowhere}/")]).status().expect("curl runs");
    assert_ne!(net.internet.packets_to(&nowhere), NOTHING, "the probe cannot fail");
}

/// 46, 47, 48: services of the host were reached by loopback, by a bridge's address, or through the proxy itself.
#[test]
fn services_of_the_host_are_reached_by_none_of_its_addresses() {
    let Some(net) = net() else { return };
    let (loopback, everywhere) = (Canary::on("127.0.0.1"), Canary::on("0.0.0.0"));
    let (on_loopback, on_all) = (loopback.port(), everywhere.port());
    let names = [net.internet.name("loopback"), net.internet.name("own")];
    let flags: Vec<String> = names
        .iter()
        .flat_map(|name| [on_loopback, on_all].map(|port| format!("{name}:{port}")))
        .flat_map(|host| ["--allow".to_owned(), host])
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();

    let probe = format!(
        r#"
hosts = ["127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0", "{HOST}", "198.18.0.2", "{}", "{}"]
for host in hosts:
    for port in ({on_loopback}, {on_all}):
        reach(host, port, wait=5)
say("tried")
"#,
        names[0], names[1]
    );

    assert_eq!(net.inside(&flags, &probe), "tried\n");
    assert_eq!((loopback.visits(), everywhere.visits()), (0, 0));
    let (loopback, everywhere) = (Canary::on("127.0.0.1"), Canary::on("0.0.0.0"));
    let again = probe
        .replace(&on_loopback.to_string(), &loopback.port().to_string())
        .replace(&on_all.to_string(), &everywhere.port().to_string());
    net.outside(&again);
    assert!(loopback.visits() > 0 && everywhere.visits() > 0, "the probe cannot fail");
}

/// 47: the keeper's own control socket, by file, by abstract name, by its listeners.
#[test]
fn the_keepers_listeners_answer_nothing_that_was_not_redirected() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(
        r#"
own = socket.gethostbyname(socket.gethostname())
for host in ("127.0.0.1", "::1", own, "198.18.0.1", "198.18.0.2", "fd61:6972:6c6f:636b::1"):
    for port in (61097, 61098):
        said = reach(host, port, wait=1)
        say("closed" if said in ("ECONNREFUSED", "timeout", "ECONNRESET", "ENETUNREACH") else (host, port, said))
def take(port):
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))
    return "done"
say(outcome(lambda: take(61097)) != "done", reach("{name}"))
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), "closed\n".repeat(12) + "True done\n");
}

/// 49: IPv6 was left open beside a closed IPv4.
#[test]
fn ipv6_is_as_closed_as_ipv4() {
    let Some(net) = net() else { return };

    let probe = format!(
        r#"
for host in ("{WEB_V6}", "{HOST_V6}", "2600:1f00:7::1", "::ffff:{WEB}", "fd00:20::5", "fd00:ec2::254", "64:ff9b::5db8:d822"):
    say(quickly(lambda: reach(host, 80, wait=5)))
say(quickly(lambda: datagram("{WEB_V6}", 53, socket.AF_INET6)) in ("done", "EPERM"))
say(tls("{WEB_V6}", "web.test", wait=5))
"#
    );

    let said = net.inside(&[], &probe);
    let refused = said.lines().take(7).filter(|line| ["ECONNREFUSED", "ENETUNREACH"].contains(line)).count();
    assert_eq!(refused, 7, "{said}");
    assert!(said.ends_with("ECONNREFUSED\n"), "{said}");
    let outside = net.outside(&probe);
    assert!(outside.lines().filter(|line| *line == "done").count() >= 4, "the probe cannot fail: {outside}");
}

/// 51: isolation hung on the host's firewall, which others reload.
#[test]
fn no_rule_of_the_hosts_firewall_bears_a_load() {
    let Some(net) = net() else { return };
    if who() != Who::Root {
        return not_applicable("only root reloads the host's firewall");
    }
    let (name, nowhere) = (net.internet.name("web"), net.internet.nowhere());
    let sandbox = net.waiting(&["--allow", &name]);

    // This is the firewall of the tests' own network namespace.
    let flushed = Command::new("nft").args(["flush", "ruleset"]).status();
    assert!(flushed.expect("nft runs").success());

    let probe = format!(r#"say(reach("{nowhere}"), reach("{WEB}"), reach("{name}"))"#);
    assert_eq!(net.inside_running(&sandbox, &probe), "ECONNREFUSED ECONNREFUSED done\n");
    assert_eq!(net.internet.packets_to(&nowhere), NOTHING);
}

/// 51 from inside: the rules that do bear the load cannot be seen or changed.
#[test]
fn the_walls_own_rules_cannot_be_changed_from_inside() {
    let Some(net) = net() else { return };
    let nowhere = net.internet.nowhere();
    let script = format!(
        "nft flush ruleset; nft add table inet x; ip route add {nowhere} dev lo; ip link add d type dummy; \
         ip address add 10.1.2.3/24 dev lo; ip rule add from all lookup 7; sysctl -qw net.ipv4.ip_forward=1; \
         echo 0 > /proc/sys/net/ipv4/ip_local_port_range; curl -s -m 3 http://{nowhere}/ && echo out; exit 0"
    );

    let output = net.world.sh([], &script).run();

    assert_eq!((output.code, output.stdout.as_str()), (0, ""), "{output}");
    assert!(output.stderr.matches("not permitted").count() >= 4, "{output}");
    assert_eq!(net.internet.packets_to(&nowhere), NOTHING);
}

/// 54: a filter believed the name in the hello while the kernel dialled another address.
#[test]
fn an_allowed_name_in_the_hello_opens_no_other_address() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let other = net.internet.name("cdn");

    let probe = format!(
        r#"
say(tls("{name}", "{name}"))
say(tls("151.101.1.69", "{name}"), tls("{WEB}", "{name}"), tls("{METADATA}", "{name}"))
say(tls("{other}", "{name}"))
"#
    );

    let said = net.inside(&["--allow", &name, "--allow", &other], &probe);
    assert_eq!(said, "done\nECONNREFUSED ECONNREFUSED ECONNREFUSED\nECONNRESET\n");
    assert_eq!(net.outside(&probe), "done\ndone done done\ndone\n");
}

/// 64: bytes were forwarded before the answer.
#[test]
fn no_byte_leaves_while_a_person_thinks_about_it() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");
    let sandbox = net.waiting(&["--ask", &format!("{name}:7000")]);
    let probe = crate::net::whole(&format!(
        r#"
with socket.create_connection(("{name}", 7000), 50) as s:
    s.sendall(b"early bytes")
    say("sent")
    say(outcome(lambda: s.recv(100).decode() or "closed"))
"#
    ));
    let asking = net.world.airlock(["exec", &sandbox, "python3", "-c", &probe]).start();
    asking.wait_for("sent");
    let question = airlock_tests::eventually("a question", || {
        let text = net.world.airlock(["approvals", "--json"]).run().succeeded();
        text.lines().next().map(|line| serde_json::from_str::<Value>(line).expect("an object"))
    });

    let queries = net.internet.queries(&name);
    net.world.airlock(["refuse", question["id"].as_str().unwrap()]).run().succeeded();

    assert_eq!(asking.wait().succeeded(), "sent\nECONNRESET\n");
    assert_eq!(queries, NOTHING, "not even the name was asked for");
}

/// 70, 71: messages that made a parser loop, overflow or stop.
#[test]
fn floods_of_broken_messages_hold_up_nobody() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let sandbox = net.waiting(&["--allow", &name, "--allow", "x.hostile.test"]);

    let probe = format!(
        r#"
random.seed(11)
good = asked("{name}")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for n in range(3000):
        packet = bytearray(good)
        for _ in range(4):
            packet[random.randrange(2, len(packet))] = random.randrange(256)
        s.sendto(bytes(packet), (nameserver(), 53))
    deep = struct.pack(">HHHHHH", 1, 256, 1, 0, 0, 0) + b"".join(b"\1a" for _ in range(120)) + b"\xc0\x0c" + b"\0\1\0\1"
    for _ in range(500):
        s.sendto(deep, (nameserver(), 53))
opened = []
for n in range(150):
    s = socket.create_connection(("x.hostile.test", 443), 20)
    s.sendall(b"\x16\3\1\x40\0\1\0\x3f\xfc" + b"\3\3" + bytes(random.randrange(256) for _ in range(n)))
    opened.append(s)
say(quickly(lambda: lookup(asked("{name}"))), quickly(lambda: reach("{name}")))
"#
    );

    assert_eq!(net.inside_running(&sandbox, &probe), "NOERROR 1 done\n");
    assert_eq!(net.world.state(&sandbox)["status"], "running");
}
