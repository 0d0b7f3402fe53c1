//! A wall around a network namespace of its own. A process stands inside, makes the sockets that programs would make, and
//! hands them out; servers stand outside, on loopback addresses.

use super::*;
use crate::flows::What;
use crate::tests::setup;
use airlock_gate::{Setup, policy::parse_toml};
use airlock_linux::{fd, net::seat};
use std::{
    io::{Read, Write},
    net::SocketAddr,
    os::fd::AsFd,
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, Command},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    task::LocalSet,
};

const LINK: &str = "AIRLOCK_TEST_INSIDE";

/// Not a test: the process inside.
#[test]
#[ignore = "runs inside, for the tests of this file"]
fn the_process_inside() {
    let Some(path) = std::env::var_os(LINK) else { return };
    let mut link = UnixStream::connect(path).unwrap();
    let built = seat::build(&(0..=0)).unwrap();
    fd::send_all(link.as_fd(), b"s", &built.descriptors()).unwrap();
    drop(built);
    let mut line = [0; 64];
    while let Ok(length @ 1..) = link.read(&mut line) {
        let text = std::str::from_utf8(&line[..length]).unwrap();
        let (kind, place) = text.split_once(' ').unwrap();
        let place: SocketAddr = place.parse().unwrap();
        let socket = match kind {
            "tcp" => std::net::TcpStream::connect(place).map(OwnedFd::from),
            _ => std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
                socket.connect(place)?;
                Ok(OwnedFd::from(socket))
            }),
        };
        match socket {
            Ok(socket) => fd::send_all(link.as_fd(), b"o", &[socket.as_fd()]).unwrap(),
            Err(err) => link.write_all(format!("{:?}", err.kind()).as_bytes()).unwrap(),
        }
    }
}

struct Inside {
    child: Child,
    link: UnixStream,
}

impl Inside {
    /// Starts it; none where this kernel or user cannot.
    fn start(folder: &std::path::Path) -> Option<(Inside, Seat)> {
        let listener = UnixListener::bind(folder.join("link")).unwrap();
        let mut child = Command::new("unshare")
            .args(["--user", "--net", "--map-root-user"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "wall::tests::the_process_inside", "--ignored"])
            .env(LINK, folder.join("link"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .ok()?;
        listener.set_nonblocking(true).unwrap();
        let link = loop {
            match listener.accept() {
                Ok((link, _)) => break link,
                Err(_) if child.try_wait().unwrap().is_some() => return None,
                Err(_) => std::thread::yield_now(),
            }
        };
        link.set_nonblocking(false).unwrap();
        let mut received = Vec::new();
        fd::receive_with_fds(link.as_fd(), &mut [0; 1], &mut received).unwrap();
        let inside = Inside { child, link };
        Seat::from_descriptors(received).map(|seat| (inside, seat))
    }

    fn socket(&mut self, what: &str) -> Result<OwnedFd, String> {
        self.link.write_all(what.as_bytes()).unwrap();
        let (mut said, mut received) = ([0; 64], Vec::new());
        let length = fd::receive_with_fds(self.link.as_fd(), &mut said, &mut received).unwrap();
        received.pop().ok_or_else(|| String::from_utf8_lossy(&said[..length]).into_owned())
    }

    /// What a program sees when it connects.
    fn connect(&mut self, place: &str) -> Result<TcpStream, String> {
        let stream = std::net::TcpStream::from(self.socket(&format!("tcp {place}"))?);
        stream.set_nonblocking(true).unwrap();
        Ok(TcpStream::from_std(stream).unwrap())
    }

    /// The address a program is told for a name; none if there is no such name.
    async fn resolve(&mut self, name: &str) -> Option<Ipv4Addr> {
        let socket = std::net::UdpSocket::from(self.socket("udp 198.18.0.2:53").unwrap());
        socket.set_nonblocking(true).unwrap();
        let socket = UdpSocket::from_std(socket).unwrap();
        let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            question.push(u8::try_from(label.len()).unwrap());
            question.extend(label.as_bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        socket.send(&question).await.unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).await.unwrap();
        let found = answer[7] > 0;
        let at = question.len() + 12;
        found.then(|| Ipv4Addr::from(<[u8; 4]>::try_from(&answer[..length][at..at + 4]).unwrap()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It ends with the link.
        let _ = self.link.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// A sandbox's network, and what is outside of it.
struct World {
    inside: Inside,
    wall: Rc<Wall>,
    folder: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl World {
    /// Every name leads to 127.0.0.1.
    fn raise(policy: &str, names: &[&str]) -> Option<World> {
        let folder = tempfile::tempdir().unwrap();
        let Some((inside, seat)) = Inside::start(folder.path()) else {
            assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "no network namespaces");
            eprintln!("skipped: no network namespaces");
            return None;
        };
        let policy = parse_toml("airlock.toml", policy).unwrap().policy;
        let gate = Gate::new(Setup { published: vec![80], ..setup(folder.path(), policy) });
        let mut tasks = JoinSet::new();
        let egress = Rc::new(Egress::to_loopback(names));
        let setup = super::Setup {
            gate: Rc::new(gate.unwrap()),
            egress,
            hostname: "web",
            authority: None,
            ssh: None,
            filters: Filters::default(),
        };
        let wall = raise(seat, setup, &mut tasks).unwrap();
        Some(World { inside, wall, folder, _tasks: tasks })
    }

    async fn connect(&mut self, name: &str, port: u16) -> Result<TcpStream, String> {
        let address = self.inside.resolve(name).await.ok_or("no such name")?;
        self.inside.connect(&format!("{address}:{port}"))
    }

    fn other_rules(&self, policy: &str) {
        self.wall.gate.set_policy(parse_toml("airlock.toml", policy).unwrap().policy, "set").unwrap();
    }

    /// The lines of the ledger that hold all of `words`.
    fn recorded(&self, words: &[&str]) -> usize {
        self.wall.gate.pay().unwrap();
        let text: String = std::fs::read_dir(self.folder.path())
            .unwrap()
            .filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok())
            .collect();
        text.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// The denials that the ledger knows of.
    fn denied(&self) -> u64 {
        let text = std::fs::read_to_string(self.folder.path().join("ledger.jsonl")).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        records
            .filter(|record| record["verdict"] == "deny")
            .map(|record| record["times"].as_u64().unwrap_or(1))
            .sum()
    }

    /// Waits until the ledger has such a line.
    async fn until_recorded(&self, words: &[&str]) {
        let found = async {
            while self.recorded(words) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), found).await.expect("it was never recorded");
    }
}

async fn server() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn allow(host: &str, port: u16) -> String {
    format!("[[rule]]\nallow = '{host}'\nports = [{port}]\n")
}

fn run(test: impl Future<Output = Option<()>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// How the program's next read ends.
async fn read(stream: &mut TcpStream) -> Result<Vec<u8>, std::io::ErrorKind> {
    let mut bytes = vec![0; 4096];
    let length =
        tokio::time::timeout(Duration::from_secs(10), stream.read(&mut bytes)).await.expect("nothing came");
    bytes.truncate(length.map_err(|err| err.kind())?);
    Ok(bytes)
}

const RESET: Result<Vec<u8>, std::io::ErrorKind> = Err(std::io::ErrorKind::ConnectionReset);

#[test]
fn an_allowed_name_is_reached_and_both_ends_are_recorded() {
    run(async {
        let (listener, port) = server().await;
        let mut world = World::raise(&allow("a.test", port), &["a.test"])?;

        let mut stream = world.connect("a.test", port).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        served.write_all(b"server first").await.unwrap();
        assert_eq!(read(&mut stream).await.unwrap(), b"server first");
        stream.write_all(b"then client").await.unwrap();
        assert_eq!(read(&mut served).await.unwrap(), b"then client");
        drop((stream, served));

        world
            .until_recorded(&["\"kind\":\"flow\"", "a.test", "\"sent\":11", "\"received\":12", "closed"])
            .await;
        assert_eq!(world.recorded(&["\"kind\":\"decision\"", "\"connect\"", "a.test", "allow"]), 1);
        assert_eq!(world.wall.flows(), 0);
        Some(())
    });
}

#[test]
fn a_flow_is_small() {
    run(async {
        let (listener, port) = server().await;
        let world = World::raise(&allow("a.test", port), &["a.test"])?;
        let (near, accepted) = tokio::join!(TcpStream::connect(("127.0.0.1", port)), listener.accept());

        let task = size_of_val(&accept::carry(&world.wall, near.unwrap(), accepted.unwrap().1));

        assert!(task < 3200, "the task of a flow has {task} bytes");
        Some(())
    });
}

#[test]
fn other_names_ports_and_addresses_are_refused_by_the_kernel_and_recorded() {
    run(async {
        let (_listener, port) = server().await;
        let mut world = World::raise(&allow("a.test", port), &["a.test"])?;

        assert_eq!(world.inside.resolve("b.test").await, None);
        assert_eq!(world.connect("a.test", port ^ 1).await.unwrap_err(), "ConnectionRefused");
        assert_eq!(world.inside.connect("192.0.2.7:443").unwrap_err(), "ConnectionRefused");

        world.until_recorded(&["192.0.2.7", "443", "deny"]).await;
        world.until_recorded(&["a.test", &(port ^ 1).to_string(), "deny"]).await;
        Some(())
    });
}

#[test]
fn a_host_that_cannot_be_reached_is_a_reset() {
    run(async {
        let (listener, port) = server().await;
        drop(listener);
        let mut world = World::raise(&allow("a.test", port), &["a.test"])?;

        let mut stream = world.connect("a.test", port).await.unwrap();
        assert_eq!(read(&mut stream).await, RESET);

        world.until_recorded(&["\"kind\":\"flow\"", "a.test", "unreachable"]).await;
        Some(())
    });
}

#[test]
fn tls_that_names_another_host_goes_nowhere() {
    run(async {
        let (listener, port) = server().await;
        let mut world = World::raise(&allow("www.example.com", port), &["www.example.com"])?;

        let mut stream = world.connect("www.example.com", port).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        stream.write_all(include_bytes!("../sniff/hellos/curl.bin")).await.unwrap();

        assert_eq!(read(&mut stream).await, RESET);
        assert_eq!(read(&mut served).await, RESET);
        world.until_recorded(&["deny", "sni", "names api.example.com"]).await;
        world.until_recorded(&["\"kind\":\"flow\"", "\"sent\":0", "\"status\":\"sni\""]).await;
        Some(())
    });
}

#[test]
fn tls_that_names_the_host_or_is_not_looked_at_passes() {
    run(async {
        let (listener, port) = server().await;
        let opaque = format!("{}tls = 'opaque'\n", allow("www.example.com", port));
        let policy = format!("{}{opaque}", allow("api.example.com", port));
        let mut world = World::raise(&policy, &["www.example.com", "api.example.com"])?;
        let hello = include_bytes!("../sniff/hellos/curl.bin");

        for name in ["api.example.com", "www.example.com"] {
            let mut stream = world.connect(name, port).await.unwrap();
            let (mut served, _) = listener.accept().await.unwrap();
            stream.write_all(hello).await.unwrap();
            assert_eq!(read(&mut served).await.unwrap(), hello, "{name}");
        }
        Some(())
    });
}

#[test]
fn with_audit_only_everything_passes_and_is_recorded_as_denied() {
    run(async {
        let (listener, port) = server().await;
        let mut world = World::raise("", &["b.test"])?;
        let audited = airlock_protocol::policy::Policy { audit_only: true, ..world.wall.gate.policy() };
        world.wall.gate.set_policy(audited, "set").unwrap();
        tokio::task::yield_now().await;
        let hello = include_bytes!("../sniff/hellos/curl.bin");

        let mut stream = world.connect("b.test", port).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        stream.write_all(hello).await.unwrap();

        assert_eq!(read(&mut served).await.unwrap(), hello);
        world.until_recorded(&["b.test", "audit_only", "no_rule"]).await;
        world.until_recorded(&["b.test", "audit_only", "sni"]).await;
        Some(())
    });
}

#[test]
fn what_rules_no_longer_allow_is_reset_at_once_and_refused_from_then_on() {
    run(async {
        let (listener, port) = server().await;
        let both = format!("{}{}", allow("a.test", port), allow("b.test", port));
        let mut world = World::raise(&both, &["a.test", "b.test"])?;
        let mut kept = world.connect("a.test", port).await.unwrap();
        let (mut kept_served, _) = listener.accept().await.unwrap();
        let mut lost = world.connect("b.test", port).await.unwrap();
        let (mut lost_served, _) = listener.accept().await.unwrap();

        let changed = std::time::Instant::now();
        world.other_rules(&allow("a.test", port));

        assert_eq!(read(&mut lost).await, RESET);
        assert_eq!(read(&mut lost_served).await, RESET);
        assert!(changed.elapsed() < Duration::from_secs(1));
        world.until_recorded(&["\"kind\":\"flow\"", "b.test", "revoked"]).await;
        kept.write_all(b"still here").await.unwrap();
        assert_eq!(read(&mut kept_served).await.unwrap(), b"still here");
        let address = world.wall.names.borrow().address(&"b.test".parse().unwrap()).unwrap();
        assert_eq!(world.inside.connect(&format!("{address}:{port}")).unwrap_err(), "ConnectionRefused");
        Some(())
    });
}

#[test]
fn a_name_that_was_resolved_is_reached_once_a_rule_allows_its_port() {
    run(async {
        let (listener, port) = server().await;
        let mut world = World::raise(&allow("a.test", port ^ 1), &["a.test"])?;
        assert_eq!(world.connect("a.test", port).await.unwrap_err(), "ConnectionRefused");

        world.other_rules(&allow("a.test", port));
        tokio::task::yield_now().await;

        let address = world.wall.names.borrow().address(&"a.test".parse().unwrap()).unwrap();
        let _stream = world.inside.connect(&format!("{address}:{port}")).unwrap();
        listener.accept().await.unwrap();
        Some(())
    });
}

/// A server at a port where TLS is expected; none if that is taken here.
async fn tls_server(address: &str) -> Option<TcpListener> {
    match TcpListener::bind((address, 8443)).await {
        Ok(listener) => Some(listener),
        Err(err) => {
            assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "{address}:8443: {err}");
            eprintln!("skipped: {address}:8443: {err}");
            None
        }
    }
}

#[test]
fn at_a_port_of_tls_nothing_is_dialled_before_the_hello_is_right() {
    run(async {
        let listener = tls_server("127.0.0.1").await?;
        let both = format!("{}{}", allow("www.example.com", 8443), allow("api.example.com", 8443));
        let mut world = World::raise(&both, &["www.example.com", "api.example.com"])?;
        let hello = include_bytes!("../sniff/hellos/curl.bin");

        let mut wrong = world.connect("www.example.com", 8443).await.unwrap();
        wrong.write_all(hello).await.unwrap();
        assert_eq!(read(&mut wrong).await, RESET);
        world.until_recorded(&["\"kind\":\"flow\"", "www.example.com", "\"status\":\"sni\""]).await;
        let mut silent = world.connect("www.example.com", 8443).await.unwrap();
        silent.shutdown().await.unwrap();
        assert_eq!(read(&mut silent).await, RESET);

        let mut right = world.connect("api.example.com", 8443).await.unwrap();
        right.write_all(&hello[..100]).await.unwrap();
        right.flush().await.unwrap();
        tokio::task::yield_now().await;
        right.write_all(&hello[100..]).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        assert_eq!(read(&mut served).await.unwrap(), hello);
        assert_eq!(world.recorded(&["\"kind\":\"flow\"", "address"]), 0);
        Some(())
    });
}

#[test]
fn a_published_port_leads_inside_and_is_recorded() {
    run(async {
        let world = World::raise("", &[])?;
        let (inside, port) = server().await;
        let wish =
            airlock_protocol::spec::Publish { address: Ipv4Addr::LOCALHOST.into(), port: 0, inside: 80 };
        let published = crate::publish::listen(&wish).unwrap();
        let address = published.address;
        let taken = airlock_protocol::spec::Publish { port: address.port(), ..wish };
        assert!(crate::publish::listen(&taken).unwrap_err().to_string().contains("is taken"));
        let mut tasks = JoinSet::new();
        let connect = move |inside: u16| async move {
            assert_eq!(inside, 80);
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await
        };
        tasks.spawn_local(published.serve(Rc::clone(&world.wall), connect));

        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut served, _) = inside.accept().await.unwrap();
        client.write_all(b"question").await.unwrap();
        assert_eq!(read(&mut served).await.unwrap(), b"question");
        served.write_all(b"answer").await.unwrap();
        assert_eq!(read(&mut client).await.unwrap(), b"answer");
        drop((client, served));
        world.until_recorded(&["\"kind\":\"flow\"", "\"sent\":6", "\"received\":8", "closed"]).await;
        assert_eq!(world.recorded(&["publish", "127.0.0.1", "allow"]), 1);

        drop(inside);
        let mut client = TcpStream::connect(address).await.unwrap();
        assert_eq!(read(&mut client).await, RESET);
        world.until_recorded(&["\"kind\":\"flow\"", "unreachable"]).await;
        Some(())
    });
}

#[test]
fn a_program_that_gives_up_is_no_longer_asked_about() {
    run(async {
        let (listener, port) = server().await;
        let asking = format!("[[rule]]\nask = 'a.test'\nports = [{port}]\n");
        let mut world = World::raise(&asking, &["a.test"])?;

        let stream = world.connect("a.test", port).await.unwrap();
        while world.wall.gate.pending().is_empty() {
            tokio::task::yield_now().await;
        }
        stream.set_zero_linger().unwrap();
        drop(stream);
        world.until_recorded(&["a.test", "abandoned"]).await;
        assert_eq!((world.wall.gate.pending().len(), world.wall.flows()), (0, 0));

        let mut stream = world.connect("a.test", port).await.unwrap();
        while world.wall.gate.pending().is_empty() {
            tokio::task::yield_now().await;
        }
        let answer = airlock_protocol::approval::Answer {
            id: world.wall.gate.pending()[0].id.clone(),
            verdict: airlock_protocol::approval::Given::Approved,
            scope: airlock_protocol::approval::Scope::Once,
        };
        world.wall.gate.answer(&answer, "test").unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        // Other rules that still ask leave it alone; rules that do not end it.
        world.other_rules(&format!("{asking}{}", allow("b.test", port)));
        served.write_all(b"hello").await.unwrap();
        assert_eq!(read(&mut stream).await.unwrap(), b"hello");
        world.other_rules(&allow("b.test", port));
        assert_eq!(read(&mut stream).await, RESET);
        Some(())
    });
}

#[test]
fn a_flow_ends_if_its_private_range_was_closed_while_it_was_dialled() {
    run(async {
        let open = "[[rule]]\nallow = 'a.test'\nprivate = ['10.20.0.0/16']\n";
        let world = World::raise(open, &[])?;
        for (rules, lives) in [(open, true), ("[[rule]]\nallow = 'a.test'\n", false)] {
            let mut ticket = world.wall.flows.enter().unwrap();
            ticket.decided(What::Out { target: "a.test".parse().unwrap(), port: 443, asked: false });
            world.other_rules(rules);

            world.wall.leads_to(&ticket, "10.20.0.5".parse().unwrap());

            let moved = ticket.unless_revoked(std::future::ready(())).await;
            assert_eq!(moved.is_some(), lives);
        }
        Some(())
    });
}

#[test]
fn every_refusal_of_the_kernel_is_in_the_ledger_however_many_there_are() {
    run(async {
        let mut world = World::raise("", &[])?;
        for _ in 0..3000 {
            assert_eq!(world.inside.connect("192.0.2.7:443").unwrap_err(), "ConnectionRefused");
        }
        world.wall.close();
        world.wall.gate.close().unwrap();
        assert_eq!(world.denied(), 3000);
        assert!(world.recorded(&["decision"]) < 50);
        Some(())
    });
}

#[test]
fn what_the_kernel_only_counted_is_told_within_seconds() {
    run(async {
        let mut world = World::raise("", &[])?;
        for _ in 0..1000 {
            assert!(world.inside.connect("192.0.2.7:443").is_err());
        }
        world.until_recorded(&["several"]).await;
        Some(())
    });
}

#[test]
fn a_program_that_insists_on_a_proxy_is_judged_as_any_other() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut world = World::raise(&allow("a.test", port), &["a.test", "b.test"])?;
        assert_eq!(world.inside.resolve(proxy::NAME).await, Some(proxy::ADDRESS));
        let at = format!("{}:{}", proxy::ADDRESS, proxy::PORT);

        let mut tunnel = world.inside.connect(&at).unwrap();
        let ask = format!("CONNECT a.test:{port} HTTP/1.1\r\nhost: a.test:{port}\r\n\r\n");
        tunnel.write_all(ask.as_bytes()).await.unwrap();
        let mut answer = [0; 19];
        tunnel.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK\r\n\r\n");
        tunnel.write_all(b"hello").await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut heard = [0; 5];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");

        let mut request = world.inside.connect(&at).unwrap();
        let ask = format!(
            "GET http://a.test:{port}/x HTTP/1.1\r\nhost: a.test:{port}\r\nconnection: close\r\n\r\n"
        );
        request.write_all(ask.as_bytes()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut head = [0; 16];
        far.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"GET /x HTTP/1.1\r");
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
        let mut answer = String::new();
        request.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");

        for ask in [
            format!("CONNECT b.test:{port} HTTP/1.1\r\nhost: b.test:{port}\r\nconnection: close\r\n\r\n"),
            format!("GET http://b.test:{port}/ HTTP/1.1\r\nhost: b.test:{port}\r\nconnection: close\r\n\r\n"),
        ] {
            let mut denied = world.inside.connect(&at).unwrap();
            denied.write_all(ask.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let _ = denied.read_to_string(&mut answer).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        }
        Some(())
    });
}
