//! Connections carried through the wall: ends, resets, slowness and size arrive on the other side as they were.

use crate::net::net;
use airlock_tests::World;
use std::fs;

#[test]
fn the_end_of_data_is_carried_in_each_direction_by_itself() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");
    let count = 70_000 + std::process::id() % 10_000;

    // 7009 answers only after our end; 7002 ends its own data first and counts ours.
    let probe = format!(
        r#"
with socket.create_connection(("{name}", 7009), 20) as s:
    s.sendall(b"z" * 100000)
    s.shutdown(socket.SHUT_WR)
    say(s.makefile().read().strip())
with socket.create_connection(("{name}", 7002), 20) as s:
    say(s.makefile().read().strip())
    s.sendall(b"z" * {count})
    s.shutdown(socket.SHUT_WR)
    say(len(s.recv(10)))
"#
    );

    assert_eq!(net.inside(&["--allow", &format!("{name}:7000-7010")], &probe), "100000\nfirst\n0\n");
    let totals = net.internet.hits("half_closed_total");
    assert!(totals.iter().any(|hit| hit["total"] == count), "{totals:?}");
}

#[test]
fn a_reset_is_a_reset() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    let probe = format!(
        r#"
def at_once():
    with socket.create_connection(("{name}", 7001), 20) as s:
        return "%d bytes" % len(s.recv(10))
def later():
    with socket.create_connection(("{name}", 7008), 20) as s:
        got = 0
        while got < 1000:
            got += len(s.recv(1000))
        s.sendall(b"now\n")
        return "%d bytes" % len(s.recv(10))
say(outcome(at_once), outcome(later))
"#
    );

    assert_eq!(net.inside(&["--allow", &format!("{name}:7000-7010")], &probe), "ECONNRESET ECONNRESET\n");
}

#[test]
fn a_reset_by_the_sandbox_reaches_the_server() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    // The server's endless writing ends with an error only if it hears of the reset; its next connection works.
    let probe = format!(
        r#"
s = socket.create_connection(("{name}", 7004), 20)
s.recv(1000)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
s.close()
with socket.create_connection(("{name}", 7000), 20) as s:
    s.sendall(b"still here\n")
    say(s.recv(100).decode().strip())
"#
    );
    let sandbox = net.waiting(&["--allow", &format!("{name}:7000-7010")]);

    assert_eq!(net.inside_running(&sandbox, &probe), "still here\n");
    airlock_tests::eventually("the end of the endless flow", || {
        net.ledger(&sandbox).into_iter().find(|record| record["kind"] == "flow" && record["port"] == 7004)
    });
}

#[test]
fn a_port_where_nobody_listens_is_a_reset_and_the_ledger_says_unreachable() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");
    let sandbox = net.waiting(&["--allow", &format!("{name}:7999")]);

    assert_eq!(net.inside_running(&sandbox, &format!(r#"say(reach("{name}", 7999))"#)), "ECONNRESET\n");

    let flows = airlock_tests::eventually("the end of the flow", || {
        let flows: Vec<_> = net.ledger(&sandbox).into_iter().filter(|r| r["kind"] == "flow").collect();
        (!flows.is_empty()).then_some(flows)
    });
    assert_eq!((flows.len(), flows[0]["status"].as_str()), (1, Some("unreachable")), "{flows:?}");
}

#[test]
fn a_slow_server_is_heard_to_its_end() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    let script = format!("busybox nc {name} 7005 < /dev/null");

    assert_eq!(
        net.world.sh(["--allow", &format!("{name}:7005")], &script).run().succeeded(),
        "slow but sure\n"
    );
}

#[test]
fn large_transfers_are_whole_in_both_directions() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let script = format!(
        "curl -sS -m 50 http://{name}/bytes/104857600 | sha256sum | cut -c1-16; \
         head -c 104857600 /dev/zero | curl -sS -m 50 -T - -H 'Transfer-Encoding:' -H 'Content-Length: 104857600' \
         http://{name}/sink"
    );
    let whole = r#"
import hashlib
say(hashlib.sha256(bytes(range(256)) * 409600).hexdigest()[:16])
"#;

    let said = net.world.sh(["--allow", &name], &script).run().succeeded();
    assert_eq!(said, net.outside(whole) + "104857600");
}

#[test]
fn two_hundred_connections_at_once_are_all_served() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");

    let probe = format!(
        r#"
opened = [socket.create_connection(("{name}", 7000), 30) for _ in range(200)]
for n, s in enumerate(opened):
    s.sendall(b"%d\n" % n)
say(sum(s.makefile().readline() == "%d\n" % n for n, s in enumerate(opened)))
"#
    );

    assert_eq!(net.inside(&["--allow", &format!("{name}:7000")], &probe), "200\n");
}

#[test]
fn a_reader_that_stops_holds_the_sender_and_not_the_keepers_memory() {
    let Some(net) = net() else { return };
    let name = net.internet.name("hostile");
    let sandbox = net.waiting(&["--allow", &format!("{name}:7000-7010")]);
    let before = memory(&net.world, &sandbox);

    // 20 endless servers that nobody reads, 20 deaf servers that we write to until it blocks.
    let probe = format!(
        r#"
kept = [socket.create_connection(("{name}", 7004), 20) for _ in range(20)]
stuck = 0
for _ in range(20):
    s = socket.create_connection(("{name}", 7007), 20)
    kept.append(s)
    s.setblocking(False)
    idle = 0
    sent = 0
    while idle < 20 and sent < 64 << 20:
        try:
            sent += s.send(b"w" * 65536)
            idle = 0
        except BlockingIOError:
            idle += 1
            select.select([], [s], [], 0.01)
    stuck += sent < 64 << 20
say(stuck)
say(reach("{name}", 7006))
sys.stdin.read()
"#
    );
    let mut probing = net
        .world
        .airlock(["exec", "-i", &sandbox, "python3", "-c", &crate::net::whole(&probe)])
        .stdin(std::process::Stdio::piped())
        .start();

    assert_eq!(probing.wait_for("done"), "20\ndone\n");
    let after = memory(&net.world, &sandbox);
    assert!(after < before + 24_000, "the keeper grew from {before} kB to {after} kB");
    drop(probing.stdin());
    probing.wait().succeeded();
}

/// Resident kilobytes of a sandbox's keeper.
fn memory(world: &World, sandbox: &str) -> u64 {
    let keeper = world.state(sandbox)["keeper_pid"].as_u64().expect("a keeper");
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).expect("the keeper runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
