//! Ports of the host that lead inside.

use crate::net::{net, whole};
use airlock_tests::{internet::HOST, skip};
use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Duration,
};

/// A server inside that answers each connection with the address it came from.
const SERVER: &str = r#"
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::", 8000))
server.listen()
say("ready")
while True:
    peer, address = server.accept()
    data = b""
    while part := peer.recv(65536):
        data += part
    peer.sendall(b"%s %d\n" % (address[0].replace("::ffff:", "").encode(), len(data)))
    peer.close()
"#;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// What the server says to a connection with these bytes.
fn visit(address: &str, port: u16, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(bytes)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_published_port_leads_inside_and_the_visitor_is_not_taken_for_loopback() {
    let Some(net) = net() else { return };
    let port = free_port();
    let publish = format!("{port}:8000");
    let run = ["run", "-d", "--publish", &publish, "--", "python3", "-c", &whole(SERVER)];
    let sandbox = net.world.airlock(run).run().succeeded();
    let sandbox = sandbox.trim_end();
    airlock_tests::eventually("the server", || {
        net.world.airlock(["logs", sandbox]).run().stdout.contains("ready").then_some(())
    });

    let said = visit("127.0.0.1", port, &vec![b'x'; 300_000]).expect("it is published");

    let (peer, count) = said.trim_end().split_once(' ').expect("two words");
    assert!(!peer.starts_with("127.") && peer != "::1", "{said}");
    assert_eq!(count, "300000");
    assert!(visit(HOST, port, b"x").is_err(), "published on the loopback of the host unless said otherwise");
    let records = net.ledger(sandbox);
    let published = |record: &&serde_json::Value| record["crossing"]["crossing"] == "publish";
    let record = records.iter().find(published).unwrap_or_else(|| panic!("{records:?}"));
    assert_eq!(
        (record["verdict"].as_str(), record["crossing"]["port"].as_u64()),
        (Some("allow"), Some(8000))
    );
}

#[test]
fn a_published_port_closes_with_its_sandbox() {
    let Some(net) = net() else { return };
    let port = free_port();
    let sandbox = net.waiting(&["--publish", &format!("{port}:8000")]);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

    net.world.airlock(["stop", "--time", "1s", &sandbox]).run().succeeded();

    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_port_that_is_taken_is_told_and_nothing_runs() {
    let Some(net) = net() else { return };
    let Ok(taken) = TcpListener::bind("127.0.0.1:0") else { return skip("no port is free") };
    let port = taken.local_addr().expect("a port").port();

    let refused = net.world.sh(["--publish", &format!("{port}:8000")], "echo ran").run();

    assert!(refused.code == 125 && refused.stdout.is_empty(), "{refused}");
    assert!(refused.stderr.contains(&port.to_string()), "{refused}");
}

#[test]
fn a_server_that_listens_on_its_own_loopback_only_is_reached_by_a_published_port() {
    let Some(net) = net() else { return };
    let port = free_port();
    let publish = format!("{port}:8000");
    let server = SERVER
        .replace("AF_INET6)", "AF_INET)")
        .replace("server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)\n", "")
        .replace("\"::\"", "\"127.0.0.1\"");
    let run = ["run", "-d", "--publish", &publish, "--", "python3", "-c", &whole(&server)];
    let sandbox = net.world.airlock(run).run().succeeded();
    airlock_tests::eventually("the server", || {
        net.world.airlock(["logs", sandbox.trim_end()]).run().stdout.contains("ready").then_some(())
    });

    assert_eq!(visit("127.0.0.1", port, b"abc").expect("it is published"), "198.18.0.2 3\n");
}

#[test]
fn the_walls_own_ports_inside_are_not_published() {
    let Some(net) = net() else { return };
    for inside in ["61097", "61098"] {
        let publish = format!("{}:{inside}", free_port());
        let run = net.world.airlock(["run", "--publish", &publish, "--", "true"]).run();
        assert!(
            run.code == 125 && run.stderr.contains("cannot be published") && run.stderr.contains("fix:"),
            "{run}"
        );
    }
}
