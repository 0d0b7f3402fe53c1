//! The first hello of a TLS connection: it names the host of the rule, or the connection does not leave.

use crate::net::net;
use serde_json::Value;

/// `hello(sni, ech)`: a ClientHello made by hand. `greet(host, bytes, cuts)`: what comes of sending it in pieces.
const HELLO: &str = r#"
def extension(kind, body):
    return struct.pack(">HH", kind, len(body)) + body
def hello(sni=None, ech=False, names=None, padding=0):
    extensions = b""
    if sni is not None:
        entries = b"".join(b"\0" + struct.pack(">H", len(name)) + name for name in (names or [sni.encode()]))
        extensions += extension(0, struct.pack(">H", len(entries)) + entries)
    if ech:
        extensions += extension(0xfe0d, b"\0\0\1\0\1\7" + struct.pack(">H", 32) + b"k" * 32 + struct.pack(">H", 32) + b"p" * 32)
    extensions += extension(43, b"\2\3\4") + extension(10, b"\0\2\0\x1d") + extension(13, b"\0\2\4\3")
    if padding:
        extensions += extension(21, b"\0" * padding)
    body = b"\3\3" + b"r" * 32 + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack(">H", len(extensions)) + extensions
    handshake = b"\1" + struct.pack(">I", len(body))[1:] + body
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(part)) + part
                    for part in (handshake[at:at + 16000] for at in range(0, len(handshake), 16000)))
def records(bytes_, size):
    """The same handshake in records of this size."""
    body = bytes_[5:]
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(body[at:at + size])) + body[at:at + size] for at in range(0, len(body), size))
def greet(host, first, cut=None, port=443):
    def attempt():
        with socket.create_connection((host, port), 20) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(first), cut or len(first)):
                s.sendall(first[at:at + (cut or len(first))])
            answer = s.recv(100)
            return answer.decode("latin-1").strip() or "closed"
    return outcome(attempt)
"#;

#[test]
fn a_hello_that_names_another_host_or_none_is_refused_before_a_byte_leaves() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");
    let sandbox = net.waiting(&["--allow", &name]);

    // The server notes how each connection began, and takes anything.
    let probe = format!(
        r#"{HELLO}
mark = "{0}"
say(greet("{name}", hello("{name}")))
say(greet("{name}", hello("other-" + mark + ".evil.test")))
say(greet("{name}", hello("{name}.evil.test")))
say(greet("{name}", hello("evil.{name}")))
say(greet("{name}", hello("{name}", names=[b"{name}\0.evil.test"])))
say(greet("{name}", hello("{name}", names=[b"{name}", b"second-" + mark.encode()])))
say(greet("{name}", hello("{name}", names=[b"93.184.216.34"])))
say(greet("{name}", hello("{name}", ech=True)))
say(greet("{name}", hello()))
"#,
        net.internet.mark()
    );

    let said = net.inside_running(&sandbox, &probe);
    assert_eq!(said, "taken\n".to_owned() + &"ECONNRESET\n".repeat(8));
    let seen = net.internet.hits("not_tls_first");
    for secret in [format!("other-{}", net.internet.mark()), format!("second-{}", net.internet.mark())] {
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(!seen.iter().any(|hit| hit["first"].as_str().unwrap().contains(&hex)), "{secret} arrived");
    }
    let denied = net.denials(&sandbox, &name);
    assert!(denied.iter().filter(|record| record["reason"] == "sni").count() >= 8, "{denied:?}");
}

#[test]
fn a_rule_that_says_opaque_lets_any_hello_through() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");
    let policy = net.policy(&format!("[[rule]]\nallow = \"{name}\"\ntls = \"opaque\"\n"));

    let probe = format!(
        r#"{HELLO}
say(greet("{name}", hello("other.evil.test")), greet("{name}", hello("{name}", ech=True)), greet("{name}", hello()))
"#
    );

    assert_eq!(net.inside(&[&policy[0], &policy[1]], &probe), "taken taken taken\n");
}

#[test]
fn a_hello_in_pieces_is_read_whole() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    let probe = format!(
        r#"{HELLO}
good, bad = hello("{name}", padding=3000), hello("other.evil.test", padding=3000)
for cut in (1, 7, 1000):
    say(greet("{name}", good, cut), greet("{name}", bad, cut))
say(greet("{name}", records(good, 20)), greet("{name}", records(bad, 20)))
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), "taken ECONNRESET\n".repeat(4));
}

#[test]
fn broken_hellos_are_refused_and_the_next_connection_works() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    let probe = format!(
        r#"{HELLO}
good = hello("{name}")
broken = [b"\x16\3\1\0\0", b"\x16\3\1\xff\xff" + b"x" * 100, b"\x16\3\1\0\5\1\xff\xff\xff\0", good[:9] + b"\xff" * 200,
          b"\x15\3\1\0\2\1\0" + good, b"\x16\3\1\0\4\0\0\0\0" + good]
random.seed(3)
for _ in range(40):
    at = random.randrange(5, len(good))
    broken.append(good[:at] + bytes([random.randrange(256)]) + good[at + 1:])
for first in broken:
    with socket.create_connection(("{name}", 443), 20) as s:
        outcome(lambda: s.sendall(first))
        outcome(lambda: s.shutdown(socket.SHUT_WR))
        outcome(lambda: s.recv(100))
say(greet("{name}", good))
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), "taken\n");
}

#[test]
fn a_connection_that_says_nothing_yet_is_not_held_back() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    // On the port of TLS too: a server that speaks first is heard, though the client is silent.
    let probe = format!(
        r#"
with socket.create_connection(("{name}", 22), 20) as s:
    say(s.recv(100).decode().strip())
"#
    );

    assert_eq!(net.inside(&["--allow", &format!("{name}:22")], &probe), "welcome\n");
}

#[test]
fn many_tenants_behind_one_address_are_told_apart() {
    let Some(net) = net() else { return };
    let good = format!("good{}", net.internet.name("cdn"));
    let evil = format!("evil{}", net.internet.name("cdn"));
    let opaque = net.policy(&format!("[[rule]]\nallow = \"{good}\"\ntls = \"opaque\"\n"));

    let probe = format!(
        r#"
say(tls("{good}", "{good}", mark="good"))
say(tls("{good}", "{evil}", mark="fronted"))
say(tls("{evil}", "{evil}", mark="direct"), tls("151.101.1.69", "{evil}", mark="literal"))
"#
    );

    assert_eq!(net.inside(&["--allow", &good], &probe), "done\nECONNRESET\nnoname ECONNREFUSED\n");
    let arrived: Vec<Value> = net.internet.hits(&evil);
    assert_eq!(arrived, Vec::<Value>::new());
    let weak = net.inside(&[&opaque[0], &opaque[1]], &probe);
    assert!(weak.contains("done\ndone\n"), "the probe cannot fail: {weak}");
    assert!(!net.internet.hits(&evil).is_empty(), "the probe cannot fail");
}
