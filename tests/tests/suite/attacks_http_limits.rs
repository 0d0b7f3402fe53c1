//! Floods inside opened connections: what a program can make the keeper keep or do is bounded, and others are served
//! meanwhile.

use crate::net::{Net, net};
use std::fs;

/// `flood(host, frames)`: sends frames of HTTP/2 until they are sent or the other side has had enough.
const FLOOD: &str = r#"
def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
def text(value):
    return bytes([len(value)]) + value
def request(host, path=b"/public/x"):
    fields = [(b":method", b"GET"), (b":path", path), (b":authority", host.encode()), (b":scheme", b"https")]
    return b"".join(b"\0" + text(name) + text(value) for name, value in fields)
def connected(host, protocols):
    context = ssl.create_default_context()
    context.set_alpn_protocols(protocols)
    s = context.wrap_socket(socket.create_connection((host, 443), 30), server_hostname=host)
    if protocols == ["h2"]:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    return s
def flood(host, pieces, protocols=["h2"]):
    s = connected(host, protocols)
    def drain():
        outcome(lambda: [None for _ in iter(lambda: s.recv(65536), b"")])
    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    sent = 0
    def send():
        nonlocal sent
        for piece in pieces:
            s.sendall(piece)
            sent += len(piece)
        return "all"
    s.settimeout(30)
    said = outcome(send)
    s.close()
    return said
def works(host):
    import urllib.request
    return outcome(lambda: urllib.request.urlopen("https://%s/public/works" % host, timeout=30).status)
"#;

/// The most memory that the keeper of a sandbox had, in kilobytes.
fn peak(net: &Net, sandbox: &str) -> u64 {
    let keeper = net.world.state(sandbox)["keeper_pid"].as_u64().expect("a pid");
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).expect("the keeper lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a figure");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Runs a flood, then a request that must work; the keeper stays small.
fn survived(pieces: &str, protocols: &str) {
    let Some(net) = net() else { return };
    let name = net.internet.name("nginx");
    net.world.airlock(["ls"]).run().succeeded();
    let config = format!("[network]\nextra_ca = \"{}\"\n", net.internet.ca().display());
    fs::write(net.world.home().join("config.toml"), config).expect("a file");
    let policy = net.policy(&format!("[[rule]]\nallow = \"{name}\"\npaths = [\"/public/**\"]\n"));
    let sandbox = net.waiting(&[&policy[0], &policy[1]]);
    net.inside_running(&sandbox, &format!("{FLOOD}\nassert works(\"{name}\") == 200"));
    let before = peak(&net, &sandbox);

    let probe = format!(
        "{FLOOD}\nhost = \"{name}\"\ndef pieces():\n    {}\nsay(flood(host, pieces(), {protocols}), works(host))",
        pieces.trim().replace('\n', "\n    ")
    );
    let said = net.inside_running(&sandbox, &probe);

    assert!(said.ends_with(" 200\n"), "{said}");
    let grown = peak(&net, &sandbox).saturating_sub(before);
    println!("{said} grown by {grown} kB");
    assert!(grown < 32 * 1024, "the keeper grew by {grown} kB");
}

#[test]
fn streams_that_are_reset_at_once_cost_little() {
    survived(
        "for number in range(1, 100000, 2):\n    yield frame(1, 5, number, request(host)) + frame(3, 0, number, b'\\0\\0\\0\\x08')",
        "[\"h2\"]",
    );
}

#[test]
fn a_head_that_never_ends_is_given_up_in_http2() {
    survived(
        "yield frame(1, 0, 1, request(host))\nfor number in range(20000):\n    yield frame(9, 0, 1, (b'\\0' + text(b'x%d' % number) + text(b'y' * 100)) * 10)",
        "[\"h2\"]",
    );
}

#[test]
fn empty_frames_cost_little() {
    survived(
        "yield frame(1, 4, 1, request(host).replace(b'GET', b'PUT'))\nfor _ in range(200):\n    yield frame(0, 0, 1) * 1000",
        "[\"h2\"]",
    );
}

#[test]
fn pings_and_settings_cost_little() {
    survived(
        "for _ in range(200):\n    yield (frame(6, 0, 0, b'12345678') + frame(4, 0, 0)) * 500",
        "[\"h2\"]",
    );
}

#[test]
fn a_head_that_never_ends_is_given_up_in_http1() {
    survived(
        "yield b'GET /public/x HTTP/1.1\\r\\nHost: ' + host.encode() + b'\\r\\n'\nfor number in range(100000):\n    yield b'x%d: %s\\r\\n' % (number, b'y' * 100)",
        "[\"http/1.1\"]",
    );
}

#[test]
fn chunks_of_one_byte_and_trailers_without_end_cost_little() {
    survived(
        "yield b'PUT /public/x HTTP/1.1\\r\\nHost: ' + host.encode() + b'\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'\n\
         for _ in range(200):\n    yield b'1\\r\\nx\\r\\n' * 1000\nyield b'0\\r\\n'\nfor _ in range(2000):\n    yield b'x: y\\r\\n' * 100",
        "[\"http/1.1\"]",
    );
}
