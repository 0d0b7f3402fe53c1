//! What the tests of the network share: a world inside the virtual internet, and probes that speak TCP, UDP and DNS.

use crate::probe;
use airlock_tests::{Internet, Output, World, internet};
use serde_json::Value;
use std::{
    io::Read as _,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Functions of probes. `reach` tells what came of a connection and one request: `done`, the name of an error, `noname`,
/// `timeout` or `closed`. `tls` does the same after a hello that names somebody; `lookup` is one question of DNS.
const PRELUDE: &str = r#"
import json, random, select, ssl, threading, time
def outcome(attempt):
    try:
        return attempt()
    except socket.gaierror as err:
        return {-2: "noname", -3: "again", -5: "nodata"}.get(err.errno, "resolver %d" % err.errno)
    except (TimeoutError, socket.timeout):
        return "timeout"
    except ssl.SSLError as err:
        return "tls " + (err.reason or str(err))
    except OSError as err:
        return word(err.errno)
def request(s, mark):
    s.sendall(b"GET /%s HTTP/1.0\r\nHost: probe\r\n\r\n" % mark.encode())
    return "done" if s.recv(100) else "closed"
def reach(host, port=80, mark="probe", wait=15):
    def attempt():
        with socket.create_connection((host, port), wait) as s:
            return request(s, mark)
    return outcome(attempt)
def secure(ca="ca.pem"):
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    return context
def tls(host, shown, port=443, mark="probe", wait=15):
    def attempt():
        with socket.create_connection((host, port), wait) as s:
            with secure().wrap_socket(s, server_hostname=shown) as t:
                return request(t, mark)
    return outcome(attempt)
def quickly(attempt):
    start = time.monotonic()
    said = attempt()
    took = time.monotonic() - start
    return said if took < 2 else "%s after %.1f s" % (said, took)
def datagram(host, port, family=socket.AF_INET):
    def attempt():
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.sendto(b"datagram", (host, port))
        return "done"
    return outcome(attempt)
def encoded(name):
    labels = name if isinstance(name, list) else [label.encode() for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
def asked(name, kind=1, number=None):
    number = random.randrange(65536) if number is None else number
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + encoded(name) + struct.pack(">HH", kind, 1)
def nameserver():
    lines = [line.split() for line in open("/etc/resolv.conf")]
    return next(words[1] for words in lines if words and words[0] == "nameserver")
def lookup(packet, server=None, wait=10):
    """The code of the answer and how many records it has."""
    def attempt():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(wait)
            s.sendto(packet, (server or nameserver(), 53))
            answer = s.recv(65535)
        code, count = answer[3] & 15, struct.unpack(">H", answer[6:8])[0]
        return "%s %d" % ({0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}.get(code, code), count)
    return outcome(attempt)
"#;

/// A world inside the virtual internet.
pub(crate) struct Net {
    /// What is out there.
    pub(crate) internet: Internet,
    /// The command line and its workspace, in which `ca.pem` lies.
    pub(crate) world: World,
}

/// A world inside the virtual internet, or nothing: return then.
pub(crate) fn net() -> Option<Net> {
    let internet = internet()?;
    let world = World::new();
    world.write("ca.pem", std::fs::read(internet.ca()).expect("a certificate"));
    Some(Net { internet, world })
}

impl Net {
    /// What a probe says in a sandbox of its own.
    #[track_caller]
    pub(crate) fn inside(&self, flags: &[&str], probe: &str) -> String {
        self.run(flags, probe).succeeded()
    }

    /// How a probe ends in a sandbox of its own.
    pub(crate) fn run(&self, flags: &[&str], probe: &str) -> Output {
        self.world.python(flags.iter().copied(), &whole(probe)).run()
    }

    /// What a probe says in a sandbox that runs.
    #[track_caller]
    pub(crate) fn inside_running(&self, sandbox: &str, probe: &str) -> String {
        self.world.airlock(["exec", sandbox, "python3", "-c", &whole(probe)]).run().succeeded()
    }

    /// What a probe says on the host, with nothing in its way.
    #[track_caller]
    pub(crate) fn outside(&self, probe: &str) -> String {
        probe::outside(&self.world, &format!("{PRELUDE}\n{probe}"))
    }

    /// Writes a file of rules beside the workspace; gives `--policy` and its path.
    pub(crate) fn policy(&self, text: &str) -> [String; 2] {
        let path = self.world.aside("rules").join("policy.toml");
        std::fs::write(&path, text).expect("a file");
        ["--policy".to_owned(), path.to_str().expect("a plain path").to_owned()]
    }

    /// The person's own settings: the keeper trusts the servers of the virtual internet, and `more`.
    pub(crate) fn trusting(&self, more: &str) {
        // The state directory is made by the first command.
        self.world.airlock(["ls"]).run().succeeded();
        let text = format!("[network]\nextra_ca = \"{}\"\n{more}", self.internet.ca().display());
        std::fs::write(self.world.home().join("config.toml"), text).expect("a file");
    }

    /// A sandbox that waits to be told what to do.
    #[track_caller]
    pub(crate) fn waiting(&self, flags: &[&str]) -> String {
        self.world.detached(flags.iter().copied(), "exec sleep 100000")
    }

    /// Every record of a sandbox's ledger.
    #[track_caller]
    pub(crate) fn ledger(&self, sandbox: &str) -> Vec<Value> {
        let text = self.world.airlock(["ledger", sandbox, "--json"]).run().succeeded();
        text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
    }

    /// Records of denied crossings whose host is this.
    #[track_caller]
    pub(crate) fn denials(&self, sandbox: &str, host: &str) -> Vec<Value> {
        let is_wanted = |record: &Value| record["verdict"] == "deny" && record["crossing"]["host"] == host;
        self.ledger(sandbox).into_iter().filter(is_wanted).collect()
    }
}

/// The whole text of a probe.
pub(crate) fn whole(probe: &str) -> String {
    probe::script(&format!("{PRELUDE}\n{probe}"))
}

/// A server of the host that notes whether anybody came. Nobody should.
pub(crate) struct Canary {
    address: SocketAddr,
    visits: JoinHandle<usize>,
}

impl Canary {
    /// Listens on a free port.
    pub(crate) fn on(address: &str) -> Canary {
        let address: IpAddr = address.parse().expect("an address");
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        Canary { address, visits: thread::spawn(move || visits(&listener)) }
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many came until now; it is closed then.
    pub(crate) fn visits(self) -> usize {
        let mut at = self.address;
        if at.ip().is_unspecified() {
            at.set_ip(IpAddr::from([127, 0, 0, 1]));
        }
        let mut last = TcpStream::connect(at).expect("the canary lives");
        std::io::Write::write_all(&mut last, b"that is all").expect("the canary listens");
        drop(last);
        self.visits.join().expect("a canary ends well")
    }
}

fn visits(listener: &TcpListener) -> usize {
    let mut count = 0;
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a deadline");
        let mut first = [0; 11];
        if stream.read_exact(&mut first).is_ok() && &first == b"that is all" {
            break;
        }
        let _ = std::io::Write::write_all(&mut stream, b"canary");
        count += 1;
    }
    count
}
