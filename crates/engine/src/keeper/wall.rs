//! The wall of a sandbox: the gate that decides, and what carries what it permits.

use super::{Keeper, Tasks, life::News, plan, script, watched};
use crate::{
    backend::{Loopback, Porter},
    store::Sandbox,
};
use airlock_gate::{
    Gate, Setup,
    ledger::Ledger,
    policy::BadPolicy,
    secrets::{BadSecret, Secrets},
};
use airlock_linux::{
    fd,
    net::{
        machine::LOOPBACK_PORT,
        seat::{LISTENER_PORT, OUTSIDE_V4, OWN_V4, RESOLVER_PORT, Seat},
    },
};
use airlock_net::{
    egress::{BadProxy, Egress},
    publish::{self, Published},
    ssh::{Gateway, HostKey},
    tls::Authority,
    wall,
    webhook::{self, Webhook},
};
use airlock_protocol::{
    approval::{Answer, Pending},
    control::{Begin, Refusal, Ssh},
    event::Event,
    policy::{Policy, Rule, Tls},
    secret::Values,
    spec::{self, Spec},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest, unix::AsyncFd},
    net::{TcpSocket, TcpStream},
    sync::{broadcast::error::RecvError, mpsc},
    time::timeout,
};

/// Questions that the webhook is told at the same time.
const MOST_TOLD: usize = 64;
/// How long a socket of the sandbox's network may take; it is there at once unless somebody stopped who makes it.
const PORTER: Duration = Duration::from_secs(1);

/// The wall before anything runs behind it: what can go wrong has gone wrong by now.
pub(super) struct Prepared {
    pub(super) gate: Rc<Gate>,
    /// What opened connections are signed with, where any could be.
    pub(super) authority: Option<Rc<Authority>>,
    /// What git inside SSH meets there.
    pub(super) ssh: Option<Gateway>,
    egress: Rc<Egress>,
    script: Option<script::Loaded>,
    webhook: Option<Webhook>,
    /// Ports of the host that lead inside, taken.
    pub(super) published: Vec<Published>,
}

/// Reads what the spec says of the wall.
pub(super) fn prepare(sandbox: &Sandbox, spec: &Spec, begin: &Begin) -> Result<Prepared, Refusal> {
    let secrets = Secrets::new(&spec.secrets, &begin.values).map_err(|bad| bad_secret(&bad))?;
    let authority = authority(spec)?;
    let ssh = authority.as_ref().map(|_| gateway(&begin.ssh)).transpose()?;
    let ledger =
        Ledger::open(sandbox.folder(), sandbox.id().clone(), spec.ledger.durable).map_err(|err| {
            let fix = format!("look at what is in {}", sandbox.folder().display());
            plan::refusal(125, "the ledger cannot be opened", Some(&plan::chain(&err)), Some(&fix))
        })?;
    let gate = Gate::new(Setup {
        sandbox: sandbox.id().clone(),
        name: spec.name.to_string(),
        policy: spec.policy.clone(),
        ledger,
        ask_timeout: Duration::from_millis(spec.approvals.timeout_ms),
        published: spec.publish.iter().map(|publish| publish.inside).collect(),
        can_open: authority.is_some(),
        secrets,
    });
    let (egress, webhook) = ways_out(&spec.egress, &spec.approvals)?;
    let published = listen(&spec.publish)?;
    let gate = Rc::new(gate.map_err(|bad| bad_policy(&bad))?);
    let script = script::load(spec, &gate)?;
    Ok(Prepared { gate, authority, ssh, egress: Rc::new(egress), script, webhook, published })
}

/// Made anew at each start, and only where a rule or a secret looks inside connections.
fn authority(spec: &Spec) -> Result<Option<Rc<Authority>>, Refusal> {
    if !looks_inside(spec) {
        return Ok(None);
    }
    let made = Authority::new().map_err(|err| {
        let what = "the certificate of this sandbox cannot be made";
        plan::refusal(125, what, Some(&plan::chain(&err)), None)
    })?;
    Ok(Some(Rc::new(made)))
}

fn gateway(outside: &Ssh) -> Result<Gateway, Refusal> {
    let key = HostKey::make().map_err(|err| {
        plan::refusal(125, "the host key of this sandbox cannot be made", Some(&plan::chain(&err)), None)
    })?;
    Ok(Gateway { key, outside: outside.clone() })
}

fn looks_inside(spec: &Spec) -> bool {
    let rule_looks = |rule: &Rule| {
        rule.tls == Tls::Opened || !rule.request.is_any() || !rule.pins.is_empty() || rule.body.is_some()
    };
    let Policy { rules, packages, .. } = &spec.policy;
    spec.script.is_some()
        || !spec.secrets.is_empty()
        || !packages.registries.is_empty()
        || rules.iter().any(rule_looks)
}

/// Takes the ports of the host.
fn listen(wishes: &[spec::Publish]) -> Result<Vec<Published>, Refusal> {
    let one = |wish: &spec::Publish| {
        if [LISTENER_PORT, RESOLVER_PORT].contains(&wish.inside) {
            let what = format!("port {} inside cannot be published", wish.inside);
            let why = format!("the wall itself uses the ports {LISTENER_PORT} and {RESOLVER_PORT} inside");
            return Err(plan::refusal(
                125,
                &what,
                Some(&why),
                Some("let the program listen at another port"),
            ));
        }
        let cannot = |err: publish::CannotPublish| {
            plan::refusal(125, "a port cannot be published", Some(&plan::chain(&err)), Some(&err.fix()))
        };
        publish::listen(wish).map_err(cannot)
    };
    wishes.iter().map(one).collect()
}

/// How connections of the sandbox leave this host, and the webhook where there is one.
fn ways_out(
    settings: &spec::Egress,
    approvals: &spec::Approvals,
) -> Result<(Egress, Option<Webhook>), Refusal> {
    let refused = |why: &str, fix: &str| {
        plan::refusal(125, "the wall of this sandbox cannot be built", Some(why), Some(fix))
    };
    let bad_proxy = |err: BadProxy| refused(&plan::chain(&err), err.fix());
    let bad_webhook = |err: webhook::Error| refused(&plan::chain(&err), &err.fix());
    let egress = Egress::new(settings).map_err(bad_proxy)?;
    let extra = settings.extra_ca.as_deref();
    extra.map(webhook::certificates).transpose().map_err(bad_webhook)?;
    let Some(url) = &approvals.webhook else { return Ok((egress, None)) };
    let Some(key) = &approvals.webhook_key else {
        let fix = "in config.toml, [approvals] webhook_key = \"FILE\" names a file with the key";
        return Err(refused("a webhook needs a key that signs what it is told", fix));
    };
    let unread = |err: io::Error| {
        let why = format!("the webhook's key {} cannot be read", key.display());
        refused(
            &format!("{why}: {}", plan::chain(&err)),
            "correct webhook_key under [approvals] in config.toml",
        )
    };
    let key = std::fs::read(key).map_err(unread)?.trim_ascii().to_vec();
    let webhook = Webhook::trusting_this_host(url, key, extra).map_err(bad_webhook)?;
    Ok((egress, Some(webhook)))
}

impl Prepared {
    /// Sets everything in motion. Needs a runtime.
    pub(super) fn raise(self, keeper: &Rc<Keeper>, seat: Option<Seat>, tasks: &mut Tasks) -> io::Result<()> {
        let gate = self.gate;
        let tended = gate.clone();
        tasks.spawn_local(async move { tended.tend().await });
        tasks.spawn_local(remember(keeper.clone()));
        if let Some(hook) = self.webhook {
            let patience = Duration::from_millis(keeper.spec.approvals.timeout_ms);
            let hook = Rc::new((hook, self.egress.clone()));
            tasks.spawn_local(tell(hook, gate.clone(), patience));
        }
        let Some(seat) = seat else { return Ok(()) };
        let mut filters = wall::Filters::default();
        if let Some(script) = self.script {
            filters.add(script.with_log(&keeper.log));
        }
        let setup = wall::Setup {
            gate,
            egress: self.egress,
            hostname: &keeper.spec.hostname,
            authority: self.authority,
            ssh: self.ssh,
            filters,
        };
        let wall = wall::raise(seat, setup, tasks)?;
        // Raised once: nobody has set it before.
        let _ = keeper.wall.set(wall.clone());
        let sockets = keeper.launched.porter.as_ref().map(Sockets::of).transpose()?.map(Rc::new);
        for published in self.published {
            let sockets = sockets.clone();
            let inside = move |port| connect_inside(sockets.clone(), port);
            let listening = tasks.spawn_local(published.serve(wall.clone(), inside));
            keeper.published.borrow_mut().push(listening);
        }
        Ok(())
    }
}

impl Keeper {
    /// Who decides what crosses.
    pub fn gate(&self) -> &Rc<Gate> {
        &self.gate
    }

    /// Other rules from now on.
    pub fn set_policy(&self, policy: Policy, by: &str) -> Result<(), Refusal> {
        self.gate.set_policy(policy, by).map_err(|bad| bad_policy(&bad))
    }

    /// Rules in front of those in force.
    pub fn add_rules(&self, rules: Vec<Rule>, by: &str) -> Result<(), Refusal> {
        self.gate.add_rules(rules, by).map_err(|bad| bad_policy(&bad))
    }

    /// Other values for secrets, from the next request on.
    pub fn set_secrets(&self, values: &Values) -> Result<(), Refusal> {
        self.gate.secrets().set(values).map_err(|bad| bad_secret(&bad))
    }

    /// A person's answer.
    pub fn answer(&self, answer: &Answer, by: &str) -> Result<(), Refusal> {
        self.gate.answer(answer, by).map_err(|err| {
            plan::refusal(
                1,
                "this answer does not count",
                Some(&plan::chain(&err)),
                Some("airlock approvals"),
            )
        })
    }
}

fn bad_secret(bad: &BadSecret) -> Refusal {
    let fix = "airlock secret ls tells which there are, and where their values come from";
    plan::refusal(2, "the secrets of this sandbox cannot be used", Some(&plan::chain(bad)), Some(fix))
}

fn bad_policy(bad: &BadPolicy) -> Refusal {
    let why = (!bad.why.is_empty()).then_some(&*bad.why);
    let fix = (!bad.fix.is_empty()).then_some(&*bad.fix);
    plan::refusal(2, &bad.headline(), why, fix)
}

/// Keeps the rules that came later for the next start of the sandbox.
async fn remember(keeper: Rc<Keeper>) {
    let mut generation = keeper.gate.generation();
    while generation.changed().await.is_ok() {
        let spec = Spec { policy: keeper.gate.policy(), ..keeper.spec.clone() };
        if let Err(err) = keeper.sandbox.write_spec(&spec) {
            super::note(&plan::chain(&err));
        }
    }
}

/// Says once for each spell that the ledger cannot be written: in the keeper's log and to the first client.
pub(super) async fn tell_trouble(gate: Rc<Gate>, news: mpsc::Sender<News>) {
    let mut trouble = gate.trouble();
    while trouble.changed().await.is_ok() {
        let Some(why) = trouble.borrow_and_update().clone() else { continue };
        super::note(&why);
        // A client that does not read has the log.
        let _ = news.try_send(News::Told(Event::LedgerFails { why }));
    }
}

/// Tells the webhook of every question; what it answers while the question stands counts.
async fn tell(hook: Rc<(Webhook, Rc<Egress>)>, gate: Rc<Gate>, patience: Duration) {
    let (mut events, mut asked) = (gate.events(), Tasks::new());
    loop {
        match events.recv().await {
            Ok(Event::Asked(pending)) => {
                while asked.try_join_next().is_some() {}
                if asked.len() >= MOST_TOLD {
                    super::note(&format!(
                        "the webhook is not told of {}: {MOST_TOLD} others wait for it",
                        pending.id
                    ));
                    continue;
                }
                let told = ask(hook.clone(), gate.clone(), *pending);
                asked.spawn_local(async move {
                    if timeout(patience, told).await.is_err() {
                        super::note("the webhook did not answer in time");
                    }
                });
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

async fn ask(hook: Rc<(Webhook, Rc<Egress>)>, gate: Rc<Gate>, pending: Pending) {
    let (webhook, egress) = &*hook;
    match webhook.deliver(egress, &pending).await {
        Ok(None) => {}
        Ok(Some(settled)) => {
            let answer = Answer { id: pending.id, verdict: settled.verdict, scope: settled.scope };
            // Somebody else may have been faster.
            let _ = gate.answer(&answer, "webhook");
        }
        Err(err) => super::note(&plan::chain(&err)),
    }
}

/// A connection to a port inside, from an address that is not the sandbox's own. A server that listens on 127.0.0.1 only
/// is found there.
async fn connect_inside(sockets: Option<Rc<Sockets>>, port: u16) -> io::Result<TcpStream> {
    let sockets = &sockets.ok_or(io::ErrorKind::NotConnected)?;
    let to = |address, port| async move {
        let socket = timeout(PORTER, sockets.next()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let socket = TcpSocket::from_std_stream(socket.into());
        socket.bind(SocketAddr::from((OUTSIDE_V4, 0)))?;
        socket.connect(SocketAddr::from((address, port))).await
    };
    match (to(OWN_V4, port).await, sockets.loopback) {
        (Err(err), Loopback::Here) if err.kind() == io::ErrorKind::ConnectionRefused => {
            to(Ipv4Addr::LOCALHOST, port).await
        }
        (Err(err), Loopback::Machine) if err.kind() == io::ErrorKind::ConnectionRefused => {
            let mut machine = to(OWN_V4, LOOPBACK_PORT).await?;
            ask_loopback(&mut machine, port).await.map(|()| machine)
        }
        (connected, _) => connected,
    }
}

/// Has a machine connect to this port of its loopback address: from then on the stream is that connection.
async fn ask_loopback(machine: &mut (impl AsyncRead + AsyncWrite + Unpin), port: u16) -> io::Result<()> {
    machine.write_all(&port.to_be_bytes()).await?;
    match machine.read_u8().await? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

/// Sockets of the sandbox's network, from its porter. One that is late is for whoever asks next.
struct Sockets {
    porter: AsyncFd<OwnedFd>,
    loopback: Loopback,
}

impl Sockets {
    fn of(porter: &Porter) -> io::Result<Sockets> {
        fd::set_nonblocking(porter.socket.as_fd())?;
        let watched = watched(porter.socket.try_clone()?, Interest::READABLE)?;
        Ok(Sockets { porter: watched, loopback: porter.loopback })
    }

    /// A TCP socket that is not connected yet.
    async fn next(&self) -> io::Result<OwnedFd> {
        fd::send_all(self.porter.as_fd(), b"s", &[])?;
        let mut received = Vec::new();
        let take = |socket: &OwnedFd| fd::receive_with_fds(socket.as_fd(), &mut [0u8; 1], &mut received);
        self.porter.async_io(Interest::READABLE, take).await?;
        received.pop().ok_or_else(|| io::Error::other("the sandbox's network has no socket left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::spec::{self, Approvals};
    use std::io::Read as _;
    use tokio::task::LocalSet;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test)
    }

    fn sockets(ours: &OwnedFd) -> Rc<Sockets> {
        fd::set_nonblocking(ours.as_fd()).unwrap();
        let porter = watched(ours.try_clone().unwrap(), Interest::READABLE).unwrap();
        Rc::new(Sockets { porter, loopback: Loopback::Here })
    }

    #[test]
    fn a_porter_that_is_stopped_holds_up_nobody_else() {
        run(async {
            let (ours, _theirs) = fd::pair().unwrap();
            let inside = connect_inside(Some(sockets(&ours)), 80);
            let others = async {
                let mut turns = 0;
                let turn = Duration::from_millis(50);
                while tokio::time::timeout(turn, std::future::pending::<()>()).await.is_err() && turns < 10 {
                    turns += 1;
                }
                turns
            };
            let (connected, turns) = tokio::join!(inside, others);
            assert_eq!((connected.unwrap_err().kind(), turns), (io::ErrorKind::TimedOut, 10));
        });
    }

    #[test]
    fn a_socket_that_comes_late_is_for_the_next() {
        run(async {
            let (ours, theirs) = fd::pair().unwrap();
            let sockets = sockets(&ours);
            assert!(timeout(Duration::from_millis(20), sockets.next()).await.is_err());
            let made = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            fd::send_all(theirs.as_fd(), b"s", &[made.as_fd()]).unwrap();

            assert!(sockets.next().await.is_ok());

            drop(theirs);
            assert!(sockets.next().await.is_err(), "one that is gone is no socket");
        });
    }

    #[test]
    fn a_machine_says_whether_a_server_listens_on_its_loopback_address() {
        run(async {
            for (answer, outcome) in [(0, None), (1, Some(io::ErrorKind::ConnectionRefused))] {
                let (mut ours, mut theirs) = tokio::io::duplex(16);
                let machine = async {
                    let port = theirs.read_u16().await.unwrap();
                    theirs.write_u8(answer).await.unwrap();
                    port
                };
                let (asked, port) = tokio::join!(ask_loopback(&mut ours, 8080), machine);
                assert_eq!((asked.err().map(|err| err.kind()), port), (outcome, 8080));
            }
        });
    }

    fn pending(number: usize) -> Pending {
        Pending {
            id: format!("abc-{number}"),
            sandbox: "web".into(),
            since: String::new(),
            until: String::new(),
            kind: "connect".into(),
            host: "api.example.com".into(),
            port: 443,
            ..Pending::default()
        }
    }

    #[test]
    fn a_webhook_that_never_answers_is_left_in_time_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        run(async {
            let sandbox: airlock_protocol::SandboxId = "3f9a0c2e7b14".parse().unwrap();
            let setup = Setup {
                sandbox: sandbox.clone(),
                name: "web".to_owned(),
                policy: Policy::default(),
                ledger: Ledger::open(folder.path(), sandbox, false).unwrap(),
                ask_timeout: Duration::from_secs(60),
                published: Vec::new(),
                can_open: false,
                secrets: Default::default(),
            };
            let gate = Rc::new(Gate::new(setup).unwrap());
            let hook = Webhook::trusting_this_host(&url, b"0123456789abcdef".to_vec(), None).unwrap();
            let egress = Egress::new(&airlock_protocol::spec::Egress::default()).unwrap();
            let mut tasks = Tasks::new();
            tasks.spawn_local(tell(Rc::new((hook, Rc::new(egress))), gate.clone(), Duration::from_secs(2)));
            tokio::task::yield_now().await;
            for number in 0..MOST_TOLD + 10 {
                gate.tell(Event::Asked(Box::new(pending(number))));
            }

            let (hung_up, heard) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                let taken: Vec<_> = (0..MOST_TOLD).map(|_| listener.accept().unwrap().0).collect();
                for mut stream in taken {
                    // Until the keeper hangs up.
                    stream.read_to_end(&mut Vec::new()).unwrap();
                }
                listener.set_nonblocking(true).unwrap();
                let _ = hung_up.send(listener.accept().is_err());
            });
            assert!(timeout(Duration::from_secs(30), heard).await.unwrap().unwrap(), "no more were told");
        });
    }

    #[test]
    fn the_walls_own_ports_inside_cannot_be_published() {
        for inside in [LISTENER_PORT, RESOLVER_PORT] {
            let wish = spec::Publish { address: Ipv4Addr::LOCALHOST.into(), port: 0, inside };
            let refusal = listen(&[wish]).unwrap_err();
            assert_eq!(refusal.what, format!("port {inside} inside cannot be published"));
            assert!(refusal.fix.is_some());
        }
    }

    #[test]
    fn a_port_that_cannot_be_had_comes_with_a_fix_and_without_numbers_of_errors() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let keep = std::net::TcpListener::bind(taken).unwrap();
        let elsewhere = spec::Publish { address: Ipv4Addr::new(192, 0, 2, 7).into(), port: 8080, inside: 80 };
        let taken = spec::Publish { address: taken.ip(), port: taken.port(), inside: 80 };
        for wish in [taken, elsewhere] {
            let refusal = listen(&[wish]).unwrap_err();
            assert!(refusal.fix.is_some(), "{refusal:?}");
            assert!(!format!("{refusal:?}").contains("os error"), "{refusal:?}");
        }
        drop(keep);
    }

    #[test]
    fn settings_that_cannot_be_used_come_with_a_fix() {
        let egress = |egress: spec::Egress| ways_out(&egress, &Approvals::default()).err().unwrap();
        let hook = |webhook: &str, key: Option<&str>| {
            let webhook_key = key.map(Into::into);
            let approvals = Approvals { webhook: Some(webhook.into()), webhook_key, ..Approvals::default() };
            ways_out(&spec::Egress::default(), &approvals).err().unwrap()
        };
        let refusals = [
            egress(spec::Egress { proxy: Some("socks5://x".into()), ..Default::default() }),
            egress(spec::Egress { no_proxy: vec!["a b".into()], ..Default::default() }),
            egress(spec::Egress { extra_ca: Some("/nowhere/ca.pem".into()), ..Default::default() }),
            egress(spec::Egress { extra_ca: Some("/dev/null".into()), ..Default::default() }),
            hook("https://hooks.example/", None),
            hook("https://hooks.example/", Some("/nowhere/key")),
            hook("https://hooks.example/", Some("/dev/null")),
        ];
        for refusal in refusals {
            assert!(refusal.why.is_some() && refusal.fix.is_some(), "{refusal:?}");
            assert!(!format!("{refusal:?}").contains("os error"), "{refusal:?}");
        }
    }
}
