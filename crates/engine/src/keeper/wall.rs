//! The wall of a sandbox: the gate that decides, and what carries what it permits.

use super::{Keeper, Tasks, plan};
use crate::store::Sandbox;
use airlock_gate::{Gate, Setup, ledger::Ledger, policy::BadPolicy};
use airlock_linux::net::seat::{OUTSIDE_V4, OWN_V4, Seat};
use airlock_net::{
    egress::Egress,
    publish::{self, Published},
    wall,
    webhook::Webhook,
};
use airlock_protocol::{
    approval::{Answer, Pending},
    control::Refusal,
    event::Event,
    policy::{Policy, Rule},
    spec::Spec,
};
use std::{io, net::SocketAddr, rc::Rc, time::Duration};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::broadcast::error::RecvError,
};

/// The wall before anything runs behind it: what can go wrong has gone wrong by now.
pub(super) struct Prepared {
    pub(super) gate: Rc<Gate>,
    egress: Egress,
    webhook: Option<(Webhook, Egress)>,
    /// Ports of the host that lead inside, taken.
    pub(super) published: Vec<Published>,
}

/// Reads what the spec says of the wall.
pub(super) fn prepare(sandbox: &Sandbox, spec: &Spec) -> Result<Prepared, Refusal> {
    let what = "the wall of this sandbox cannot be built";
    let refused = |err: &dyn std::error::Error| plan::refusal(125, what, Some(&plan::chain(err)), None);
    let ledger = Ledger::open(sandbox.folder(), sandbox.id().clone(), spec.ledger.durable)
        .map_err(|err| plan::refusal(125, "the ledger cannot be opened", Some(&plan::chain(&err)), None))?;
    let gate = Gate::new(Setup {
        sandbox: sandbox.id().clone(),
        name: spec.name.to_string(),
        policy: spec.policy.clone(),
        ledger,
        ask_timeout: Duration::from_millis(spec.approvals.timeout_ms),
        published: spec.publish.iter().map(|publish| publish.inside).collect(),
    });
    let published = spec.publish.iter().map(publish::listen).collect::<Result<_, _>>();
    Ok(Prepared {
        gate: Rc::new(gate.map_err(|bad| bad_policy(&bad))?),
        egress: Egress::new(&spec.egress).map_err(|err| refused(&err))?,
        webhook: webhook(spec).map_err(|err| refused(&*err))?,
        published: published.map_err(|err| {
            plan::refusal(125, "a port cannot be published", Some(&plan::chain(&err)), None)
        })?,
    })
}

impl Prepared {
    /// Sets everything in motion. Needs a runtime.
    pub(super) fn raise(self, keeper: &Rc<Keeper>, seat: Option<Seat>, tasks: &mut Tasks) -> io::Result<()> {
        let gate = self.gate;
        let tended = gate.clone();
        tasks.spawn_local(async move { tended.tend().await });
        tasks.spawn_local(remember(keeper.clone()));
        if let Some(hook) = self.webhook {
            tasks.spawn_local(tell(Rc::new(hook), gate.clone()));
        }
        let Some(seat) = seat else { return Ok(()) };
        let wall = wall::raise(seat, gate, self.egress, &keeper.spec.hostname, tasks)?;
        for published in self.published {
            let keeper = keeper.clone();
            let inside = move |port| connect_inside(keeper.clone(), port);
            tasks.spawn_local(published.serve(wall.clone(), inside));
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

fn bad_policy(bad: &BadPolicy) -> Refusal {
    let why = (!bad.why.is_empty()).then_some(&*bad.why);
    let fix = (!bad.fix.is_empty()).then_some(&*bad.fix);
    plan::refusal(2, &bad.headline(), why, fix)
}

fn webhook(spec: &Spec) -> Result<Option<(Webhook, Egress)>, Box<dyn std::error::Error>> {
    let Some(url) = &spec.approvals.webhook else { return Ok(None) };
    let key = spec.approvals.webhook_key.as_ref().ok_or("a webhook needs a key (approvals.webhook_key)")?;
    let key = std::fs::read(key).map_err(|err| format!("{} cannot be read: {err}", key.display()))?;
    let key = key.trim_ascii().to_vec();
    let webhook = Webhook::trusting_this_host(url, key, spec.egress.extra_ca.as_deref())?;
    Ok(Some((webhook, Egress::new(&spec.egress)?)))
}

/// Keeps the rules that came later for the next start of the sandbox.
async fn remember(keeper: Rc<Keeper>) {
    let mut generation = keeper.gate.generation();
    while generation.changed().await.is_ok() {
        let spec = Spec { policy: keeper.gate.policy(), ..keeper.spec.clone() };
        if let Err(err) = keeper.sandbox.write_spec(&spec) {
            eprintln!("airlock keep: {}", plan::chain(&err));
        }
    }
}

/// Tells the webhook of every question; what it answers at once counts.
async fn tell(hook: Rc<(Webhook, Egress)>, gate: Rc<Gate>) {
    let (mut events, mut asked) = (gate.events(), Tasks::new());
    loop {
        match events.recv().await {
            Ok(Event::Asked(pending)) => {
                while asked.try_join_next().is_some() {}
                asked.spawn_local(ask(hook.clone(), gate.clone(), pending));
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

async fn ask(hook: Rc<(Webhook, Egress)>, gate: Rc<Gate>, pending: Pending) {
    let (webhook, egress) = &*hook;
    match webhook.deliver(egress, &pending).await {
        Ok(None) => {}
        Ok(Some(settled)) => {
            let answer = Answer { id: pending.id, verdict: settled.verdict, scope: settled.scope };
            // Somebody else may have been faster.
            let _ = gate.answer(&answer, "webhook");
        }
        Err(err) => eprintln!("airlock keep: {}", plan::chain(&err)),
    }
}

/// A connection to a port inside, from an address that is not the sandbox's own.
async fn connect_inside(keeper: Rc<Keeper>, port: u16) -> io::Result<TcpStream> {
    let porter = keeper.launched.porter.as_ref().ok_or(io::ErrorKind::NotConnected)?;
    let socket = TcpSocket::from_std_stream(porter.tcp_socket()?.into());
    socket.bind(SocketAddr::from((OUTSIDE_V4, 0)))?;
    socket.connect(SocketAddr::from((OWN_V4, port))).await
}
