//! The gate as a whole: what it permits, denies, asks, records and tells.

use super::{AnswerError, Crossing, Finished, Gate, Setup, busy::Busy};
use crate::{
    host::Target,
    ledger::{self, Item, Ledger, Reader, verify},
    permit::{Denial, Kind, Permit, Reason, Trace},
    policy,
};
use airlock_protocol::{
    approval::{Answer, Given, Pending, Scope},
    event::Event,
    ledger::{Crossing as Recorded, Entry},
    policy::{Policy, Tls, Verdict},
};
use std::{
    cell::Cell,
    fs,
    future::Future,
    path::Path,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::advance;

const POLICY: &str = "
[[rule]]
deny = 'bad.example.com'

[[rule]]
allow = '*.example.com'

[[rule]]
ask = ['db.test', '192.0.2.7']
ports = [5432]
";

struct World {
    folder: TempDir,
    gate: Gate,
}

impl World {
    fn new() -> World {
        World::with(rules(POLICY))
    }

    fn with(policy: Policy) -> World {
        let folder = tempfile::tempdir().unwrap();
        let gate = gate(folder.path(), policy);
        World { folder, gate }
    }

    /// What was recorded, and what was gathered to be, without times and hashes.
    fn entries(&self) -> Vec<Entry> {
        let _ = self.gate.pay();
        self.written()
    }

    /// What was recorded, without times and hashes.
    fn written(&self) -> Vec<Entry> {
        let mut reader = Reader::open(self.folder.path()).unwrap();
        let mut entries = Vec::new();
        while let Some(Item::Record(record)) = reader.next().unwrap() {
            entries.push(record.entry);
        }
        assert!(verify::folder(self.folder.path()).unwrap().is_intact());
        entries
    }

    fn last(&self) -> Entry {
        self.entries().pop().unwrap()
    }

    fn only_pending(&self) -> Pending {
        let mut pending = self.gate.pending();
        assert_eq!(pending.len(), 1);
        pending.remove(0)
    }
}

fn rules(text: &str) -> Policy {
    policy::parse_toml("airlock.toml", text).unwrap().policy
}

fn gate(folder: &Path, policy: Policy) -> Gate {
    let sandbox = "3f9a0c2e7b14".parse().unwrap();
    let ledger = Ledger::open(folder, "3f9a0c2e7b14".parse().unwrap(), false).unwrap();
    let ask_timeout = Duration::from_secs(60);
    Gate::new(Setup {
        sandbox,
        name: "web".into(),
        policy,
        ledger,
        ask_timeout,
        published: vec![8080],
        can_open: true,
        secrets: Default::default(),
    })
    .unwrap()
}

fn connect(host: &str, port: u16) -> Crossing {
    Crossing::Connect { target: host.parse().unwrap(), port }
}

fn resolve(name: &str) -> Crossing {
    Crossing::Resolve { name: name.parse().unwrap(), question: "A".into() }
}

fn answer(pending: &Pending, verdict: Given, scope: Scope) -> Answer {
    Answer { id: pending.id.clone(), verdict, scope }
}

fn recorded(host: &str, port: u16) -> Recorded {
    Recorded::Connect { host: host.into(), port, protocol: "tcp".into() }
}

fn decided(crossing: Recorded, verdict: Verdict, rule: Option<&str>, reason: Option<&str>) -> Entry {
    Entry::Decision {
        crossing,
        verdict,
        audit_only: false,
        rule: rule.map(Into::into),
        reason: reason.map(Into::into),
        detail: None,
        flow: None,
        times: None,
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The decision, which comes without waiting.
fn now(asked: impl Future<Output = Result<Permit, Denial>>) -> Result<Permit, Denial> {
    match poll(pin!(asked)) {
        Poll::Ready(decision) => decision,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn what_a_rule_allows_is_permitted_and_recorded_with_its_rule() {
    let world = World::new();

    let permit = now(world.gate.ask(connect("api.example.com", 443))).unwrap();

    assert_eq!((permit.kind(), permit.port(), permit.flow()), (Kind::Connect, 443, 1));
    assert_eq!(permit.target().to_string(), "api.example.com");
    let rule = "allow *.example.com (airlock.toml:5)";
    assert_eq!(permit.rule(), Some(rule));
    let mut expected = decided(recorded("api.example.com", 443), Verdict::Allow, Some(rule), None);
    if let Entry::Decision { flow, .. } = &mut expected {
        *flow = Some(1);
    }
    assert_eq!(world.entries(), [expected]);
}

#[test]
fn a_denial_says_what_was_denied_by_which_rule_and_what_to_do() {
    let world = World::new();
    let denial = |crossing| now(world.gate.ask(crossing)).unwrap_err().to_string();
    let expected = [
        "connecting to evil.test:443 is not allowed: no rule allows it; hint: airlock allow web evil.test:443",
        "connecting to bad.example.com:443 is not allowed: a rule denies it, deny bad.example.com (airlock.toml:2); hint: airlock allow web bad.example.com:443",
        "connecting to [2001:db8::1]:22 is not allowed: no rule allows it; hint: airlock allow web [2001:db8::1]:22",
        "looking up evil.test is not allowed: no rule allows it; hint: airlock allow web evil.test",
        "a connection from 192.0.2.1:9 to port 22 is not allowed: no rule allows it",
    ];
    let told = [
        denial(connect("evil.test", 443)),
        denial(connect("bad.example.com", 443)),
        denial(connect("2001:db8::1", 22)),
        denial(resolve("evil.test")),
        denial(Crossing::Publish { from: "192.0.2.1:9".parse().unwrap(), port: 22 }),
    ];
    assert_eq!(told, expected);
    assert_eq!(world.entries().len(), 5);
    let rule = "deny bad.example.com (airlock.toml:2)";
    let expected = decided(recorded("bad.example.com", 443), Verdict::Deny, Some(rule), Some("rule"));
    assert_eq!(world.entries()[1], expected);
}

#[test]
fn a_name_is_known_inside_if_a_rule_allows_or_asks_at_any_port() {
    let world = World::new();
    assert!(now(world.gate.ask(resolve("api.example.com"))).is_ok());
    assert!(now(world.gate.ask(resolve("db.test"))).is_ok());
    assert_eq!(now(world.gate.ask(resolve("bad.example.com"))).unwrap_err().reason, Reason::Rule);
    assert_eq!(now(world.gate.ask(resolve("example.com"))).unwrap_err().reason, Reason::NoRule);
}

#[test]
fn a_published_port_is_reached_and_no_other() {
    let world = World::new();
    let from = "127.0.0.1:5000".parse().unwrap();
    let permit = now(world.gate.ask(Crossing::Publish { from, port: 8080 })).unwrap();
    assert_eq!((permit.kind(), permit.port()), (Kind::Publish, 8080));
    assert!(now(world.gate.ask(Crossing::Publish { from, port: 8081 })).is_err());
}

#[test]
fn audit_only_permits_what_it_records_as_denied_and_asks_nobody() {
    let mut policy = rules(POLICY);
    policy.audit_only = true;
    let world = World::with(policy);

    for crossing in [connect("evil.test", 443), connect("db.test", 5432), resolve("evil.test")] {
        assert!(now(world.gate.ask(crossing)).is_ok());
    }

    let excused = |entry: &Entry| match entry {
        Entry::Decision { verdict: Verdict::Allow, audit_only: true, reason, .. } => reason.clone().unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(world.entries().iter().map(excused).collect::<Vec<_>>(), ["no_rule", "ask", "no_rule"]);
    assert!(world.entries().iter().all(crate::ledger::is_denial));
}

#[tokio::test(start_paused = true)]
async fn a_crossing_that_is_approved_once_crosses_once() {
    let world = World::new();
    let mut asked = pin!(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    let pending = world.only_pending();
    assert_eq!(
        (pending.id.as_str(), pending.host.as_str(), pending.port),
        ("3f9a0c2e7b14-1", "db.test", 5432)
    );
    assert_eq!(pending.rule, "ask db.test and 1 more (airlock.toml:8)");

    world.gate.answer(&answer(&pending, Given::Approved, Scope::Once), "terminal").unwrap();

    let permit = asked.await.unwrap();
    assert_eq!(permit.target().to_string(), "db.test");
    let again = world.gate.answer(&answer(&pending, Given::Approved, Scope::Once), "terminal");
    assert!(matches!(again, Err(AnswerError::NoSuch { .. })));
    let kinds: Vec<&str> = world.entries().iter().map(kind).collect();
    assert_eq!(kinds, ["asked", "approval", "decision"]);
    assert!(poll(pin!(world.gate.ask(connect("db.test", 5432))).as_mut()).is_pending());
}

fn kind(entry: &Entry) -> &'static str {
    match entry {
        Entry::Decision { .. } => "decision",
        Entry::Flow { .. } => "flow",
        Entry::Policy { .. } => "policy",
        Entry::Asked { .. } => "asked",
        Entry::Approval { .. } => "approval",
        Entry::Rotated { .. } | Entry::Torn { .. } => "other",
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_the_sandbox_is_a_rule_about_that_host_and_port_alone() {
    let world = World::new();
    for (host, given) in [("db.test", Given::Approved), ("192.0.2.7", Given::Refused)] {
        let mut asked = pin!(world.gate.ask(connect(host, 5432)));
        assert!(poll(asked.as_mut()).is_pending());
        world.gate.answer(&answer(&world.only_pending(), given, Scope::Sandbox), "command line").unwrap();
        assert_eq!(asked.await.is_ok(), given == Given::Approved);
    }

    let permit = now(world.gate.ask(connect("db.test", 5432))).unwrap();
    assert_eq!(permit.rule(), Some("allow db.test (approved)"));
    let denial = now(world.gate.ask(connect("192.0.2.7", 5432))).unwrap_err();
    assert_eq!((denial.reason, denial.rule.as_deref()), (Reason::Rule, Some("deny 192.0.2.7 (approved)")));
    assert_eq!(world.gate.policy().rules.len(), rules(POLICY).rules.len() + 2);
    assert!(now(world.gate.ask(connect("db.test", 5433))).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_silence_are_denials() {
    let world = World::new();
    let mut asked = pin!(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    world.gate.answer(&answer(&world.only_pending(), Given::Refused, Scope::Once), "terminal").unwrap();
    assert_eq!(asked.await.unwrap_err().reason, Reason::Refused);

    let denial = world.gate.ask(connect("db.test", 5432)).await.unwrap_err();

    assert_eq!(denial.reason, Reason::Unanswered);
    let sentence = "connecting to db.test:5432 is not allowed: nobody answered in time, ask db.test and 1 more (airlock.toml:8); hint: airlock allow web db.test:5432";
    assert_eq!(denial.to_string(), sentence);
    assert!(world.gate.pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_does_not_count_even_if_nobody_has_noticed_yet() {
    let world = World::new();
    let mut asked = pin!(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    let pending = world.only_pending();
    advance(Duration::from_secs(60)).await;

    let late = world.gate.answer(&answer(&pending, Given::Approved, Scope::Once), "terminal");

    assert!(matches!(late, Err(AnswerError::NoSuch { .. })));
    assert_eq!(asked.await.unwrap_err().reason, Reason::Unanswered);
}

#[tokio::test(start_paused = true)]
async fn same_crossings_share_a_request_and_others_do_not() {
    let world = World::new();
    let mut same = [(); 3].map(|()| Box::pin(world.gate.ask(connect("db.test", 5432))));
    let mut other = Box::pin(world.gate.ask(connect("192.0.2.7", 5432)));
    for asked in &mut same {
        assert!(poll(asked.as_mut()).is_pending());
    }
    assert!(poll(other.as_mut()).is_pending());
    let pending = world.gate.pending();
    assert_eq!(pending.len(), 2);

    world.gate.answer(&answer(&pending[0], Given::Approved, Scope::Once), "terminal").unwrap();

    for asked in same {
        assert!(asked.await.is_ok());
    }
    assert!(poll(other.as_mut()).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_program_that_gives_up_waits_no_longer_and_that_is_recorded() {
    let world = World::new();
    let mut events = world.gate.events();
    let mut asked = Box::pin(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    let pending = world.only_pending();

    drop(asked);

    assert!(world.gate.pending().is_empty());
    assert!(
        matches!(world.last(), Entry::Decision { verdict: Verdict::Deny, reason: Some(reason), .. } if reason == "abandoned")
    );
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(event);
    }
    assert!(told.contains(&Event::Asked(Box::new(pending.clone()))));
    let gone =
        Event::Answered { id: pending.id, verdict: Given::Refused, scope: Scope::Once, by: "program".into() };
    assert!(told.contains(&gone));
}

#[tokio::test(start_paused = true)]
async fn more_than_sixty_four_requests_do_not_wait() {
    let policy = rules("[[rule]]\nask = '*.a.test'\nports = [5432]");
    let world = World::with(policy);
    let mut waiting = Vec::new();
    for number in 0..64 {
        let mut asked = Box::pin(world.gate.ask(connect(&format!("n{number}.a.test"), 5432)));
        assert!(poll(asked.as_mut()).is_pending());
        waiting.push(asked);
    }
    assert_eq!(now(world.gate.ask(connect("one-more.a.test", 5432))).unwrap_err().reason, Reason::Crowded);
    waiting.pop();
    assert!(poll(Box::pin(world.gate.ask(connect("one-more.a.test", 5432))).as_mut()).is_pending());
}

#[tokio::test(start_paused = true)]
async fn other_rules_decide_what_waits() {
    let world = World::new();
    let mut asked = Box::pin(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    let pending = world.only_pending();
    let mut generation = world.gate.generation();

    world.gate.set_policy(rules(""), "set").unwrap();

    assert_eq!(*generation.borrow_and_update(), 1);
    assert_eq!(asked.await.unwrap_err().reason, Reason::NoRule);
    assert!(world.gate.answer(&answer(&pending, Given::Approved, Scope::Once), "terminal").is_err());

    world.gate.set_policy(rules(POLICY), "set").unwrap();
    let mut asked = Box::pin(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    let allow = policy::rule_from_flag(Verdict::Allow, "db.test:5432", "airlock allow").unwrap();
    world.gate.add_rules(allow, "allow").unwrap();
    assert!(asked.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_denies_meanwhile_goes_before_an_approval() {
    let world = World::new();
    let mut asked = Box::pin(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(asked.as_mut()).is_pending());
    let pending = world.only_pending();
    world.gate.answer(&answer(&pending, Given::Approved, Scope::Once), "terminal").unwrap();
    world.gate.set_policy(rules("[[rule]]\ndeny = 'db.test'\nports = [5432]"), "set").unwrap();
    assert_eq!(asked.await.unwrap_err().reason, Reason::Rule);
}

#[test]
fn a_bad_policy_changes_nothing() {
    let world = World::new();
    let mut bad = rules(POLICY);
    bad.rules[0].hosts = vec!["not a host".into()];
    assert!(world.gate.set_policy(bad, "set").is_err());
    assert_eq!(world.gate.policy(), rules(POLICY));
    assert_eq!(*world.gate.generation().borrow(), 0);
    assert!(world.entries().is_empty());
}

#[test]
fn a_flow_is_recorded_with_its_bytes_under_the_number_of_its_decision() {
    let world = World::new();
    let permit = now(world.gate.ask(connect("api.example.com", 443))).unwrap();
    let trace = permit.trace();
    world.gate.finish(&Finished {
        trace: &trace,
        address: Some("192.0.2.9:443".parse().unwrap()),
        sent: 10,
        received: 20,
        lasted: Duration::from_millis(30),
        status: "closed",
        code: None,
    });
    let expected = Entry::Flow {
        flow: permit.flow(),
        host: "api.example.com".into(),
        port: 443,
        address: Some("192.0.2.9:443".into()),
        sent: 10,
        received: 20,
        millis: 30,
        status: "closed".into(),
        code: None,
        times: None,
    };
    assert_eq!(world.last(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_ended_flow_is_written_with_the_next_decision_or_by_itself_soon() {
    let world = World::new();
    let first = world.gate.ask(connect("api.example.com", 443)).await.unwrap();
    world.gate.finish(&finished(&first.trace()));
    assert_eq!(world.written().len(), 1, "it waits to be written with something else");

    let second = world.gate.ask(connect("api.example.com", 443)).await.unwrap();
    assert_eq!((world.written().len(), second.flow()), (3, 3), "its record stands before the decision's");

    world.gate.finish(&finished(&second.trace()));
    let a_while = tokio::time::sleep(Duration::from_millis(50));
    tokio::select! { () = world.gate.tend() => unreachable!(), () = a_while => {} }
    assert_eq!(world.written().len(), 4);
}

#[test]
fn ended_flows_do_not_pile_up() {
    let world = World::new();
    let permit = now(world.gate.ask(connect("api.example.com", 443))).unwrap();

    for _ in 0..1000 {
        world.gate.finish(&finished(&permit.trace()));
    }

    let written = world.written().len();
    assert!((930..1001).contains(&written), "{written}");
    assert_eq!(world.entries().len(), 1001);
}

fn finished(trace: &Trace) -> Finished<'_> {
    let address = Some("192.0.2.9:443".parse().unwrap());
    Finished {
        trace,
        address,
        sent: 10,
        received: 20,
        lasted: Duration::from_millis(30),
        status: "closed",
        code: None,
    }
}

/// How many decisions and ends of flows the ledger tells of, and the bytes sent.
fn sums(entries: &[Entry]) -> (u64, u64, u64) {
    entries.iter().fold((0, 0, 0), |(decided, ended, bytes), entry| match entry {
        Entry::Decision { times, .. } => (decided + times.unwrap_or(1), ended, bytes),
        Entry::Flow { times, sent, .. } => (decided, ended + times.unwrap_or(1), bytes + sent),
        _ => (decided, ended, bytes),
    })
}

#[tokio::test(start_paused = true)]
async fn very_many_connections_are_few_records_whose_sums_are_right() {
    let world = World::new();
    world.gate.busy.replace(Busy::with(10, 0));
    for number in 0..1000 {
        let host = ["a.example.com", "b.example.com"][number % 2];
        let permit = world.gate.ask(connect(host, 443)).await.unwrap();
        let told = world
            .entries()
            .into_iter()
            .any(|entry| matches!(entry, Entry::Decision { flow, .. } if flow == Some(permit.flow())));
        assert!(told, "nothing is permitted whose record is not written");
        world.gate.finish(&finished(&permit.trace()));
    }
    assert_eq!(world.entries().len(), 24, "ten, and the first of each host, with their ends");

    let tending = async { advance(Duration::from_secs(2)).await };
    tokio::select! { () = world.gate.tend() => unreachable!(), () = tending => {} }
    world.gate.close().unwrap();

    let entries = world.entries();
    assert_eq!(entries.len(), 28);
    assert_eq!(sums(&entries), (1000, 1000, 10_000));
    // In the next window the first is told again.
    let permit = world.gate.ask(connect("a.example.com", 443)).await.unwrap();
    assert_eq!(world.entries().len(), 29);
    world.gate.finish(&finished(&permit.trace()));
    assert_eq!(world.entries().len(), 30);
}

#[tokio::test(start_paused = true)]
async fn many_hosts_at_once_make_no_more_than_some_records_a_second() {
    let world = World::new();
    world.gate.busy.replace(Busy::with(0, 0));
    for second in 0..30 {
        for host in 0..100 {
            let permit = world.gate.ask(connect(&format!("h{host}.example.com"), 443)).await.unwrap();
            world.gate.finish(&finished(&permit.trace()));
        }
        let tending = async { advance(Duration::from_secs(1)).await };
        tokio::select! { () = world.gate.tend() => unreachable!(), () = tending => {} }
        assert!(world.entries().len() < 300 + 80 * second, "{} after {second} s", world.entries().len());
    }
    world.gate.close().unwrap();
    assert_eq!(sums(&world.entries()), (3000, 3000, 30_000));
}

#[test]
fn a_later_denial_is_recorded_and_audit_only_excuses_all_but_addresses() {
    let world = World::new();
    let trace = now(world.gate.ask(connect("api.example.com", 443))).unwrap().trace();
    let denial = world.gate.note_denial(&trace, Reason::Sni, "evil\u{1b}[2J.test").unwrap_err();
    let sentence = "connecting to api.example.com:443 is not allowed: TLS inside does not name this host, allow *.example.com (airlock.toml:5) (evil\u{fffd}[2J.test)";
    assert_eq!(denial.to_string(), sentence);

    world.gate.set_policy(Policy { audit_only: true, ..rules(POLICY) }, "set").unwrap();

    assert!(world.gate.note_denial(&trace, Reason::Sni, "x").is_ok());
    assert!(world.gate.note_denial(&trace, Reason::Address, "127.0.0.1").is_err());
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_refuses_is_told_at_once_and_repeats_are_counted_by_the_second() {
    let world = World::new();
    let tending = async {
        for _ in 0..5 {
            world.gate.refused_by_kernel("192.0.2.1:443".parse().unwrap(), "tcp");
        }
        world.gate.refused_by_kernel("192.0.2.1:443".parse().unwrap(), "udp");
        assert_eq!(world.entries().len(), 2);
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    tokio::select! { () = world.gate.tend() => unreachable!(), () = tending => {} }
    let told: Vec<(Option<String>, Option<u64>)> = world
        .entries()
        .into_iter()
        .map(|entry| match entry {
            Entry::Decision { verdict: Verdict::Deny, reason, times, .. } => (reason, times),
            other => panic!("{other:?}"),
        })
        .collect();
    let word = |word: &str| Some(word.to_owned());
    assert_eq!(told, [(word("no_rule"), None), (word("protocol"), None), (word("no_rule"), Some(4))]);
}

#[tokio::test(start_paused = true)]
async fn a_scan_of_all_ports_is_bounded_and_none_is_lost() {
    let world = World::new();
    for port in 0..=u16::MAX {
        world.gate.refused_by_kernel(("192.0.2.1".parse::<std::net::IpAddr>().unwrap(), port).into(), "tcp");
    }
    world.gate.close().unwrap();
    let entries = world.entries();
    let times = |entry: &Entry| match entry {
        Entry::Decision { verdict: Verdict::Deny, times, .. } => times.unwrap_or(1),
        other => panic!("{other:?}"),
    };
    assert_eq!(entries.len(), 1001);
    assert_eq!(entries.iter().map(times).sum::<u64>(), 65_536);
}

#[test]
fn the_end_of_the_gate_tells_what_was_counted() {
    let world = World::new();
    for _ in 0..3 {
        world.gate.refused(&"db.test".parse::<Target>().unwrap(), 80, "tcp");
    }
    world.gate.close().unwrap();
    assert!(
        matches!(world.last(), Entry::Decision { times: Some(2), crossing, .. } if crossing == recorded("db.test", 80))
    );
}

#[test]
fn what_cannot_be_recorded_does_not_cross_and_is_told_when_it_can_be() {
    let world = World::new();
    let file = world.folder.path().join("ledger.jsonl");
    fs::create_dir(&file).unwrap();

    for _ in 0..3 {
        let denial = now(world.gate.ask(connect("api.example.com", 443))).unwrap_err();
        assert_eq!(denial.reason, Reason::Ledger);
        assert!(denial.to_string().contains("nothing crosses unrecorded"), "{denial}");
    }
    assert_eq!(now(world.gate.ask(connect("evil.test", 443))).unwrap_err().reason, Reason::NoRule);
    world.gate.set_policy(rules(POLICY), "set").unwrap();
    fs::remove_dir(&file).unwrap();
    assert!(now(world.gate.ask(connect("api.example.com", 443))).is_ok());

    let entries = world.entries();
    let kinds: Vec<&str> = entries.iter().map(kind).collect();
    assert_eq!(kinds, ["decision", "decision", "policy", "decision"]);
    assert!(
        matches!(&entries[0], Entry::Decision { reason: Some(reason), times: Some(3), .. } if reason == "ledger")
    );
}

#[tokio::test(start_paused = true)]
async fn that_the_ledger_fails_is_told_once_for_each_spell() {
    let world = World::new();
    let (mut trouble, mut events) = (world.gate.trouble(), world.gate.events());
    let failed = ledger::Error::Sync { why: "No space left on device (os error 28)".into() };
    let mut spell = || {
        for _ in 0..3 {
            world.gate.ledger_fails(&failed);
        }
        let _ = now(world.gate.ask(connect("api.example.com", 443))).unwrap();
        let told = trouble.has_changed().unwrap();
        let why = trouble.borrow_and_update().clone().unwrap();
        assert!(why.contains("nothing crosses the wall") && !why.contains("os error"), "{why}");
        told
    };

    assert!(spell());
    assert!(!spell(), "by turns");
    advance(Duration::from_secs(61)).await;
    assert!(spell());

    let mut told = 0;
    while let Ok(event) = events.try_recv() {
        told += u32::from(matches!(event, Event::LedgerFails { .. }));
    }
    assert_eq!(told, 2);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_denials_and_lookups_is_counted_and_drives_nothing_out() {
    let world = World::new();
    let _ = now(world.gate.ask(connect("api.example.com", 443))).unwrap();
    for number in 0..5000 {
        assert!(now(world.gate.ask(resolve(&format!("n{number}.evil.test")))).is_err());
        assert!(now(world.gate.ask(resolve("api.example.com"))).is_ok());
    }
    let permit = now(world.gate.ask(connect("api.example.com", 443))).unwrap();
    world.gate.close().unwrap();

    let entries = world.entries();
    assert_eq!((entries.len(), permit.flow()), (1 + 1000 + 1 + 2, 1002));
    let counted = |wanted: Verdict| -> u64 {
        let times = |entry: &Entry| match entry {
            Entry::Decision { verdict, times, .. } if *verdict == wanted => times.unwrap_or(1),
            _ => 0,
        };
        entries.iter().map(times).sum()
    };
    assert_eq!((counted(Verdict::Deny), counted(Verdict::Allow)), (5000, 5002));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_asks_and_gives_up_in_turns_does_not_ask_people_for_ever() {
    let world = World::new();
    let asks = || poll(Box::pin(world.gate.ask(connect("db.test", 5432))).as_mut()).is_pending();
    let asked = (0..500).filter(|_| asks()).count();
    assert_eq!(asked, 128);
    // Nor does one that joins a question again and again fill the ledger.
    advance(Duration::from_secs(1)).await;
    let mut first = Box::pin(world.gate.ask(connect("db.test", 5432)));
    assert!(poll(first.as_mut()).is_pending());
    let before = world.entries().len();
    assert_eq!((0..5000).filter(|_| asks()).count(), 5000);
    assert!(world.entries().len() < before + 1000);
    drop(first);
    advance(Duration::from_secs(1)).await;
    assert!(asks());
}

#[tokio::test]
async fn a_durable_gate_answers_when_the_disk_has_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox: airlock_protocol::SandboxId = "3f9a0c2e7b14".parse().unwrap();
    let ledger = Ledger::open(folder.path(), sandbox.clone(), true).unwrap();
    let (policy, ask_timeout) = (rules(POLICY), Duration::from_secs(60));
    let setup = Setup {
        sandbox,
        name: "web".into(),
        policy,
        ledger,
        ask_timeout,
        published: Vec::new(),
        can_open: false,
        secrets: Default::default(),
    };
    let gate = Gate::new(setup).unwrap();
    let mut asked = pin!(gate.ask(connect("api.example.com", 443)));
    assert!(poll(asked.as_mut()).is_pending());
    assert!(asked.await.is_ok());
    assert!(now(gate.ask(connect("evil.test", 443))).is_err());
}

#[test]
fn a_watcher_that_does_not_read_loses_events_and_the_gate_goes_on() {
    let world = World::new();
    let mut events = world.gate.events();
    for _ in 0..1000 {
        let _ = now(world.gate.ask(connect("api.example.com", 443))).unwrap();
    }
    assert!(matches!(events.try_recv(), Err(tokio::sync::broadcast::error::TryRecvError::Lagged(_))));
    assert_eq!(world.entries().len(), 1000);
}

#[test]
#[ignore = "a measurement: cargo test --release -p airlock-gate measured -- --ignored --nocapture"]
fn asking_with_a_thousand_rules_is_measured() {
    let names: String = (0..1000).map(|n| format!("[[rule]]\nallow = 'h{n}.example.com'\n")).collect();
    let world = World::with(rules(&names));
    // Each with a record of its own.
    world.gate.busy.replace(Busy::with(u32::MAX, 0));
    let crossings: Vec<Crossing> = (0..1000).map(|n| connect(&format!("h{n}.example.com"), 443)).collect();
    // Time of this thread only: others may use the machine too.
    let clock = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = |at: rustix::time::Timespec| at.tv_sec * 1_000_000_000 + at.tv_nsec;
    let mut rounds = Vec::new();
    for _ in 0..40 {
        let started = clock();
        for crossing in &crossings {
            let _ = std::hint::black_box(now(world.gate.ask(crossing.clone())).unwrap());
        }
        rounds.push((nanos(clock()) - nanos(started)) / 1000);
    }
    rounds.sort_unstable();
    println!(
        "Gate::ask, 1,000 rules: best {} ns, median {} ns, worst {} ns",
        rounds[0], rounds[20], rounds[39]
    );
}

const REQUESTS: &str = "
[[rule]]
deny = 'api.test'
query = { debug = '*' }

[[rule]]
allow = 'api.test'
methods = ['GET']
paths = ['/v1/**']

[[rule]]
ask = 'api.test'
methods = ['POST']
private = ['10.0.0.0/8']

[[rule]]
ask = 'whole.test'
tls = 'opened'

[[rule]]
allow = 'few.test'
methods = ['GET']
rate = '3/m'
bytes = '100'
";

fn request(asked: &str) -> Crossing {
    let asked: crate::url::Asked = asked.parse().unwrap();
    Crossing::Request(Rc::new(asked.request.unwrap()))
}

fn requested(host: &str, method: &str, path: &str) -> Recorded {
    Recorded::Request { host: host.into(), port: 443, method: method.into(), path: path.into() }
}

#[test]
fn a_connection_with_rules_about_requests_is_opened_and_each_request_judged() {
    let world = World::with(rules(REQUESTS));

    let permit = now(world.gate.ask(connect("api.test", 443))).unwrap();
    assert_eq!((permit.tls(), permit.private().len()), (Tls::Opened, 0));
    let permit = now(world.gate.ask(request("GET https://api.test/v1/x?a=1"))).unwrap();
    assert_eq!((permit.kind(), permit.flow()), (Kind::Request, 2));
    assert_eq!(
        world.last(),
        Entry::Decision {
            crossing: requested("api.test", "GET", "/v1/x"),
            verdict: Verdict::Allow,
            audit_only: false,
            rule: Some("allow GET api.test/v1/** (airlock.toml:6)".into()),
            reason: None,
            detail: None,
            flow: Some(2),
            times: None,
        }
    );

    let denial = now(world.gate.ask(request("PUT https://api.test/v1/x"))).unwrap_err();
    assert_eq!(
        denial.to_string(),
        "PUT /v1/x at api.test:443 is not allowed: no rule allows it; hint: airlock allow web 'PUT https://api.test/v1/x'"
    );
    for plain in ["PUT http://api.test:443/v1/x", "PUT http://api.test/v1/x"] {
        let denial = now(world.gate.ask(request(plain))).unwrap_err();
        assert_eq!(denial.hint, format!("airlock allow web '{plain}'"));
    }
    let denial = now(world.gate.ask(request("GET https://api.test/v1/x?debug=1"))).unwrap_err();
    assert_eq!(
        (denial.reason, denial.rule.as_deref()),
        (Reason::Rule, Some("deny api.test (airlock.toml:2)"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_is_asked_about_by_itself_and_its_answer_is_a_rule_about_it_alone() {
    let world = World::with(rules(REQUESTS));
    let mut one = pin!(world.gate.ask(request("POST https://api.test/v1/a*b")));
    let mut same = pin!(world.gate.ask(request("POST https://api.test/v1/a*b")));
    let mut other = pin!(world.gate.ask(request("POST https://api.test/v1/a*b?x=1")));
    assert!(poll(one.as_mut()).is_pending() && poll(same.as_mut()).is_pending());
    let pending = world.only_pending();
    assert_eq!(pending.words(), "POST api.test:443/v1/a*b");
    assert!(poll(other.as_mut()).is_pending());
    assert_eq!(world.gate.pending()[1].words(), "POST api.test:443/v1/a*b?x=1");

    world.gate.answer(&answer(&pending, Given::Approved, Scope::Sandbox), "terminal").unwrap();

    let permit = one.await.unwrap();
    assert_eq!(permit.private().len(), 1);
    assert!(same.await.is_ok() && other.await.is_ok());
    assert!(now(world.gate.ask(request("POST https://api.test/v1/a*b?x=2"))).is_ok());
    assert!(now(world.gate.ask(request("POST https://api.test/v1/a*b?debug=1"))).is_err());
    assert!(poll(pin!(world.gate.ask(request("POST https://api.test/v1/aXb")))).is_pending());
    let rule = &world.gate.policy().rules[2];
    assert_eq!(
        (&*rule.request.methods, &*rule.request.paths),
        (&["POST".to_owned()][..], &["/v1/a\\*b".to_owned()][..])
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_a_person_approved_needs_no_answer_for_each_request() {
    let world = World::with(rules(REQUESTS));
    let mut asked = pin!(world.gate.ask(connect("whole.test", 443)));
    assert!(poll(asked.as_mut()).is_pending());
    world.gate.answer(&answer(&world.only_pending(), Given::Approved, Scope::Once), "terminal").unwrap();
    assert_eq!(asked.await.unwrap().tls(), Tls::Opened);
    assert!(now(world.gate.ask(request("PUT https://whole.test/x"))).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_rate_and_a_budget_deny_what_is_beyond_them() {
    let world = World::with(rules(REQUESTS));
    let ask = || now(world.gate.ask(request("GET https://few.test/")));
    // Of the connection itself nothing is counted.
    (0..10).for_each(|_| drop(now(world.gate.ask(connect("few.test", 443))).unwrap()));
    let permits: Vec<Permit> = (0..3).map(|_| ask().unwrap()).collect();
    let denial = ask().unwrap_err();
    assert_eq!(
        (denial.reason, denial.detail.as_deref(), &*denial.hint),
        (Reason::Rate, Some("3 in 60 s"), "")
    );
    advance(Duration::from_secs(20)).await;
    assert_eq!(ask().unwrap_err().reason, Reason::Rate);
    advance(Duration::from_secs(40)).await;
    assert!(ask().is_ok());

    assert_eq!(permits[0].meter().take(100), Ok(Duration::ZERO));
    assert!(permits[1].meter().take(1).is_err());
    advance(Duration::from_secs(60)).await;
    assert_eq!(ask().unwrap_err().reason, Reason::Bytes);
    // The same rule in other company is still the same.
    world.gate.add_rules(rules("[[rule]]\nallow = 'x.test'").rules, "allow").unwrap();
    assert_eq!(ask().unwrap_err().reason, Reason::Bytes);
}

#[test]
fn a_sandbox_that_opens_nothing_takes_no_rule_about_requests() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = || Ledger::open(folder.path(), "3f9a0c2e7b14".parse().unwrap(), false).unwrap();
    let setup = |policy| Setup {
        sandbox: "3f9a0c2e7b14".parse().unwrap(),
        name: "web".into(),
        policy,
        ledger: ledger(),
        ask_timeout: Duration::from_secs(60),
        published: Vec::new(),
        can_open: false,
        secrets: Default::default(),
    };
    assert!(Gate::new(setup(rules(REQUESTS))).is_err());
    let gate = Gate::new(setup(rules(POLICY))).unwrap();
    assert!(!gate.needs_opening());
    let bad = gate.set_policy(rules(REQUESTS), "set").unwrap_err();
    assert!(bad.fix.contains("airlock restart"), "{bad}");
    assert!(now(gate.ask(connect("api.example.com", 443))).is_ok());
}

#[test]
fn what_else_looks_inside_opens_what_is_checked_and_nothing_opaque() {
    let world = World::with(rules("[[rule]]\nallow = 'a.test'\n[[rule]]\nallow = 'b.test'\ntls = 'opaque'"));
    let tls = |host| now(world.gate.ask(connect(host, 443))).unwrap().tls();
    assert_eq!((tls("a.test"), tls("b.test")), (Tls::Checked, Tls::Opaque));
    world.gate.also_open(Rc::new(|_, port| port == 443));
    assert!(world.gate.needs_opening());
    assert_eq!((tls("a.test"), tls("b.test")), (Tls::Opened, Tls::Opaque));
}

#[tokio::test(start_paused = true)]
async fn very_many_requests_are_few_records_whatever_their_paths() {
    let world = World::with(rules("[[rule]]\nallow = 'a.test'\npaths = ['/**']"));
    world.gate.busy_inside.replace(Busy::with(10, 0));
    for n in 0..5000_u64 {
        let method = ["GET", "POST", "X1", "X2"][usize::try_from(n % 4).unwrap()];
        let permit = now(world.gate.ask(request(&format!("{method} https://a.test/{n}")))).unwrap();
        world.gate.finish(&Finished { code: Some(200), ..finished(&permit.trace()) });
    }
    world.gate.close().unwrap();
    let entries = world.entries();
    assert!(entries.len() < 40, "{}", entries.len());
    let (decisions, flows, _) = sums(&entries);
    assert_eq!((decisions, flows), (5000, 5000));
    assert!(entries.iter().any(|entry| {
        matches!(entry, Entry::Decision { crossing, times: Some(_), .. } if *crossing == requested("a.test", "*", "*"))
    }));
}

#[test]
fn a_later_denial_of_a_request_names_it() {
    let world = World::with(rules(REQUESTS));
    let permit = now(world.gate.ask(request("GET https://api.test/v1/x"))).unwrap();
    let denial = world.gate.note_denial(&permit.trace(), Reason::Package, "too young").unwrap_err();
    assert_eq!(denial.what, "GET /v1/x at api.test:443");
    assert!(
        matches!(world.last(), Entry::Decision { crossing, .. } if crossing == requested("api.test", "GET", "/v1/x"))
    );
}

#[test]
#[ignore = "a measurement: cargo test --release -p airlock-gate measured -- --ignored --nocapture"]
fn asking_about_requests_with_a_thousand_rules_is_measured() {
    let names: String = (0..1000)
        .map(|n| {
            format!("[[rule]]\nallow = 'h{n}.example.com'\nmethods = ['GET']\npaths = ['/v1/*/items/**']\n")
        })
        .collect();
    for (what, burst) in [("each recorded", u32::MAX), ("summed", 0)] {
        let world = World::with(rules(&names));
        world.gate.busy_inside.replace(Busy::with(burst, 0));
        let crossings: Vec<Crossing> = (0..1000)
            .map(|n| request(&format!("GET https://h{n}.example.com/v1/acme/items/{n}?x=1")))
            .collect();
        let clock = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let nanos = |at: rustix::time::Timespec| at.tv_sec * 1_000_000_000 + at.tv_nsec;
        let mut rounds = Vec::new();
        for _ in 0..40 {
            let made = crossings.clone();
            let started = clock();
            for crossing in made {
                let _ = std::hint::black_box(now(world.gate.ask(crossing)).unwrap());
            }
            rounds.push((nanos(clock()) - nanos(started)) / 1000);
        }
        rounds.sort_unstable();
        println!("Gate::ask(Request), 1,000 rules, {what}: best {} ns, median {} ns", rounds[0], rounds[20]);
    }
}

/// Ten thousand answers race with crossings, other answers, time and programs that give up.
#[tokio::test(start_paused = true)]
async fn no_crossing_is_permitted_without_exactly_one_matching_live_approval() {
    let policy = rules("[[rule]]\nask = '*.a.test'\nports = [1, 2, 3]");
    let world = World::with(policy);
    let mut chance = Chance(7);
    let mut waiting: Vec<Asked<'_>> = Vec::new();
    let mut ids: Vec<(String, String, u16)> = Vec::new();
    let mut approved: Vec<(String, u16)> = Vec::new();
    let (mut permits, mut answers) = (0, 0);
    while answers < 10_000 {
        match chance.below(10) {
            0..=3 => {
                let (host, port) =
                    (format!("h{}.a.test", chance.below(8)), 1 + u16::try_from(chance.below(3)).unwrap());
                let mut future: Pinned<'_> = Box::pin(world.gate.ask(connect(&host, port)));
                if poll(future.as_mut()).is_pending() {
                    waiting.push(Asked { host, port, future, expected: Rc::new(Cell::new(None)) });
                }
            }
            4 if !waiting.is_empty() => drop(waiting.swap_remove(chance.below(waiting.len()))),
            5 => advance(Duration::from_secs(chance.below(25) as u64)).await,
            _ => {
                for pending in world.gate.pending() {
                    if !ids.iter().any(|(id, ..)| *id == pending.id) {
                        ids.push((pending.id, pending.host, pending.port));
                    }
                }
                let Some((id, host, port)) = ids.get(chance.below(ids.len().max(1))).cloned() else {
                    continue;
                };
                answers += 1;
                let verdict = if chance.below(2) == 0 { Given::Approved } else { Given::Refused };
                let counted = world.gate.answer(&Answer { id, verdict, scope: Scope::Once }, "racer").is_ok();
                if counted {
                    for asked in waiting.iter().filter(|asked| asked.host == host && asked.port == port) {
                        assert_eq!(asked.expected.replace(Some(verdict)), None, "answered twice");
                    }
                    if verdict == Given::Approved {
                        approved.push((host, port));
                    }
                }
            }
        }
        let (ready, still): (Vec<_>, Vec<_>) =
            waiting.into_iter().map(Asked::step).partition(|(_, done)| done.is_some());
        waiting = still.into_iter().map(|(asked, _)| asked).collect();
        for (asked, decision) in ready {
            let is_permitted = decision.unwrap().is_ok();
            assert_eq!(is_permitted, asked.expected.get() == Some(Given::Approved));
            assert!(!is_permitted || approved.contains(&(asked.host, asked.port)));
            permits += u64::from(is_permitted);
        }
        ids.drain(..ids.len().saturating_sub(40));
    }
    let allowed = |entry: &&Entry| matches!(entry, Entry::Decision { verdict: Verdict::Allow, .. });
    assert!(permits > 100);
    assert_eq!(world.entries().iter().filter(allowed).count() as u64, permits);
}

type Pinned<'a> = Pin<Box<dyn Future<Output = Result<Permit, Denial>> + 'a>>;

struct Asked<'a> {
    host: String,
    port: u16,
    future: Pinned<'a>,
    expected: Rc<Cell<Option<Given>>>,
}

impl<'a> Asked<'a> {
    fn step(mut self) -> (Asked<'a>, Option<Result<Permit, Denial>>) {
        match poll(self.future.as_mut()) {
            Poll::Ready(decision) => (self, Some(decision)),
            Poll::Pending => (self, None),
        }
    }
}

/// Numbers that look random and are the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % most
    }
}
