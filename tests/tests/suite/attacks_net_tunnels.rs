//! Tunnelling tools from packages, inside sandboxes. Their servers stand in the virtual internet and hear nothing.

use crate::net::net;
use airlock_tests::{
    Who,
    internet::{NAMESERVER, TUNNEL},
    not_applicable, skip, who,
};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
};

/// Runs a tunnel's near end and says something through it: `answered` if it came back, else `nothing`.
fn through(near_end: &str, port: u16) -> String {
    format!(
        r#"
import subprocess
def attempt():
    with socket.create_connection(("127.0.0.1", {port}), 4) as s:
        s.settimeout(4)
        s.sendall(b"tunnelled\n")
        return "answered" if s.recv(100) == b"tunnelled\n" else "nothing"
tunnel = subprocess.Popen("{near_end}".split(), stdout=open("tunnel.log", "w"), stderr=subprocess.STDOUT)
end, said = time.monotonic() + 6, "nothing"
while said != "answered" and tunnel.poll() is None and time.monotonic() < end:
    said = outcome(attempt)
    time.sleep(0.05)  # nobody tells when it listens
tunnel.kill()
tunnel.wait()
say(said if said == "answered" else "nothing")
"#
    )
}

/// The tunnels share a far end, and each test counts what arrives there.
static ALONE: Mutex<()> = Mutex::new(());

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

#[test]
fn dns2tcp_gets_nothing_out() {
    let Some(net) = net() else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = || net.internet.queries("tunnel.test").len() + net.internet.packets_to(TUNNEL).len();
    let near_end = |server: &str, port: u16| format!("dns2tcpc -z tunnel.test -l {port} -r echo {server}");
    let before = asked();

    // Also where its own zone is allowed: a name below it is resolved when it is dialled, and never by TXT.
    for server in ["198.18.0.2", NAMESERVER, TUNNEL] {
        for flags in [&["--workspace", "rw"][..], &["--workspace", "rw", "--allow", "*.tunnel.test"]] {
            let said = net.inside(flags, &through(&near_end(server, 2222), 2222));
            assert_eq!(said, "nothing\n", "{server}: {}", net.world.read("tunnel.log"));
        }
    }

    assert_eq!(asked(), before, "something left");
    let port = free_port();
    let said = net.outside(&through(&near_end(NAMESERVER, port), port));
    assert_eq!(said, "answered\n", "the probe cannot fail: {}", net.world.read("tunnel.log"));
    assert!(asked() > before, "the probe cannot fail");
}

#[test]
fn ptunnel_gets_nothing_out() {
    let Some(net) = net() else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let icmp = || net.internet.packets_to(TUNNEL).iter().filter(|packet| packet["protocol"] == 1).count();
    let before = icmp();
    let near_end = |port| format!("ptunnel -p {TUNNEL} -lp {port} -da 93.184.216.66 -dp 7000");

    let said = net.inside(&["--workspace", "rw", "--allow", TUNNEL], &through(&near_end(2222), 2222));

    assert_eq!(said, "nothing\n", "{}", net.world.read("tunnel.log"));
    assert_eq!(icmp(), before, "something left");
    if who() != Who::Root {
        return not_applicable("outside a sandbox too, only root may send raw packets");
    }
    let port = free_port();
    net.outside(&through(&near_end(port), port));
    assert!(icmp() > before, "the probe cannot fail: {}", net.world.read("tunnel.log"));
}

#[test]
fn iodine_gets_nothing_out() {
    let Some(net) = net() else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = net.world.work().join("iodine");
    fs::copy(net.internet.file("iodine/usr/sbin/iodine"), &program).expect("iodine was unpacked");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    let zone = format!("{}.iodine.test", net.internet.mark());
    let script = |server: &str| {
        format!("timeout 5 ./iodine -f -r -P secret {server} {zone} > tunnel.log 2>&1; exit 0")
    };

    for server in ["", NAMESERVER] {
        net.world.sh(["--allow", &format!("*.{zone}")], &script(server)).run().succeeded();
    }

    assert!(net.internet.queries(&zone).is_empty(), "something left");
    if who() != Who::Root {
        return not_applicable("outside a sandbox too, only root may make the tunnel's device");
    }
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun: iodine asks nothing without it");
    }
    let outside = Command::new("sh").args(["-c", &script(NAMESERVER)]).current_dir(net.world.work()).status();
    assert!(outside.is_ok_and(|status| status.success()));
    assert!(
        !net.internet.queries(&zone).is_empty(),
        "the probe cannot fail: {}",
        net.world.read("tunnel.log")
    );
}
