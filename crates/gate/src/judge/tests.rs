use super::*;
use crate::{pattern::Pattern, request::GitCall, url::Asked};
use airlock_protocol::policy::{Git, Origin, Policy, Request, Rule};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn rule(verdict: Verdict, hosts: &[&str], ports: &[Ports]) -> Rule {
    let hosts = hosts.iter().map(ToString::to_string).collect();
    let origin = Origin { from: "airlock.toml".to_string(), line: 12 };
    Rule::new(verdict, hosts, ports.to_vec(), origin)
}

fn judge(rules: Vec<Rule>) -> Judge {
    Judge::compile(&Policy { rules, ..Policy::default() }).unwrap()
}

fn verdict(judge: &Judge, host: &str, port: u16) -> Option<Verdict> {
    judge.connect(&host.parse().unwrap(), port).verdict
}

const WEB: [Ports; 2] = [Ports { first: 80, last: 80 }, Ports { first: 443, last: 443 }];

#[test]
fn nothing_is_allowed_without_a_rule() {
    let judge = judge(Vec::new());
    assert_eq!(verdict(&judge, "example.com", 443), None);
    assert_eq!(verdict(&judge, "192.0.2.1", 443), None);
    assert_eq!(judge.could_match(&"example.com".parse().unwrap()), []);
    assert_eq!(judge.literal_openings(), []);
}

#[test]
fn the_first_match_wins() {
    let judge = judge(vec![
        rule(Verdict::Deny, &["gist.example.com"], &[Ports::ALL]),
        rule(Verdict::Allow, &["*.example.com"], &WEB),
        rule(Verdict::Ask, &["*"], &WEB),
    ]);
    assert_eq!(verdict(&judge, "gist.example.com", 443), Some(Verdict::Deny));
    assert_eq!(verdict(&judge, "a.gist.example.com", 443), Some(Verdict::Allow));
    assert_eq!(verdict(&judge, "example.com", 443), Some(Verdict::Ask));
    assert_eq!(verdict(&judge, "example.com", 22), None);
    assert_eq!(verdict(&judge, "192.0.2.1", 443), None);
}

#[test]
fn a_name_is_known_inside_on_the_ports_that_are_not_denied_first() {
    let judge = judge(vec![
        rule(Verdict::Deny, &["*.example.com"], &[Ports { first: 90, last: 100 }]),
        rule(Verdict::Allow, &["api.example.com"], &[Ports { first: 80, last: 110 }]),
        rule(Verdict::Ask, &["*"], &[Ports::one(111)]),
        rule(Verdict::Allow, &["*"], &[Ports::one(95)]),
    ]);
    let open = judge.could_match(&"api.example.com".parse().unwrap());
    assert_eq!(open, [Ports { first: 80, last: 89 }, Ports { first: 101, last: 111 }]);
}

#[test]
fn a_name_hangs_on_the_wildcard_that_made_it_known() {
    let judge = judge(vec![
        rule(Verdict::Deny, &["*.bad.example.com"], &[Ports::ALL]),
        rule(Verdict::Allow, &["api.example.com"], &WEB),
        rule(Verdict::Allow, &["*.example.com"], &WEB),
    ]);
    assert_eq!(judge.wildcard_of(&"api.example.com".parse().unwrap()), None);
    assert_eq!(judge.wildcard_of(&"x.example.com".parse().unwrap()), Some(2));
    assert_eq!(judge.wildcard_of(&"x.test".parse().unwrap()), None);
}

#[test]
fn openings_for_addresses_do_not_overlap() {
    let judge = judge(vec![
        rule(Verdict::Deny, &["192.0.2.8/29"], &[Ports::one(443)]),
        rule(Verdict::Allow, &["192.0.2.0/24", "192.0.2.9", "2001:db8::/32"], &WEB),
        rule(Verdict::Ask, &["192.0.2.1"], &[Ports { first: 400, last: 500 }]),
    ]);
    let shown: Vec<String> = judge
        .literal_openings()
        .iter()
        .map(|(range, ports)| format!("{range} {}-{}", ports.first, ports.last))
        .collect();
    assert_eq!(
        shown,
        [
            "192.0.2.0/24 80-80",
            "192.0.2.0/24 443-443",
            "192.0.2.1 400-442",
            "192.0.2.1 444-500",
            "2001:db8::/32 80-80",
            "2001:db8::/32 443-443",
        ]
    );
    assert_eq!(verdict(&judge, "192.0.2.9", 443), Some(Verdict::Deny));
    assert_eq!(verdict(&judge, "::ffff:192.0.2.9", 80), Some(Verdict::Allow));
}

#[test]
fn a_star_that_allows_does_not_reach_the_hosts_loopback() {
    let open = judge(vec![rule(Verdict::Allow, &["*"], &[Ports::ALL])]);
    assert_eq!(verdict(&open, "host.airlock", 3000), None);
    assert_eq!(open.could_match(&"host.airlock".parse().unwrap()), []);
    let closed = judge(vec![
        rule(Verdict::Deny, &["*"], &[Ports::ALL]),
        rule(Verdict::Allow, &["host.airlock"], &WEB),
    ]);
    assert_eq!(verdict(&closed, "host.airlock", 80), Some(Verdict::Deny));
}

#[test]
fn a_special_range_is_opened_where_it_is_named_and_not_where_it_is_merely_held() {
    let judge = judge(vec![rule(Verdict::Allow, &["10.0.0.5", "0.0.0.0/0"], &WEB)]);
    let opened: Vec<String> = judge.rules()[0].private().iter().map(ToString::to_string).collect();
    assert_eq!(opened, ["10.0.0.5"]);
    let said = |host: &str| judge.explain(&host.parse().unwrap(), 443).to_string();
    assert_eq!(said("10.0.0.5"), "10.0.0.5:443: allow by allow 10.0.0.5 and 1 more (airlock.toml:12)\n");
    assert_eq!(
        said("10.0.0.6"),
        "10.0.0.6:443: deny, since the address is private and allow 10.0.0.5 and 1 more (airlock.toml:12) does not open it\n"
    );
    assert_eq!(
        said("169.254.169.254"),
        "169.254.169.254:443: deny, since the address is link-local, which no rule opens\n"
    );
}

#[test]
fn an_explanation_names_the_rule_and_those_that_came_close() {
    let judge = judge(vec![
        rule(Verdict::Allow, &["a.test"], &WEB),
        rule(Verdict::Allow, &["example.com"], &[Ports::one(22), Ports { first: 8000, last: 8100 }]),
        rule(Verdict::Deny, &["*.example.com", "*.example.org"], &WEB),
        rule(Verdict::Ask, &["*"], &WEB),
    ]);
    assert_eq!(
        judge.explain(&"example.com".parse().unwrap(), 443).to_string(),
        "example.com:443: ask by ask * (airlock.toml:12)\n  \
         passed over allow example.com (airlock.toml:12): only on ports 22 and 8000-8100\n  \
         passed over deny *.example.com and 1 more (airlock.toml:12): a wildcard is for the names under a name, not for the name itself\n"
    );
    assert_eq!(
        judge.explain(&"192.0.2.1".parse().unwrap(), 443).to_string(),
        "192.0.2.1:443: deny, since no rule matches\n  \
         passed over ask * (airlock.toml:12): `*` is for names; an address is named as such\n"
    );
}

#[test]
fn a_connection_is_opened_where_a_request_inside_could_be_allowed() {
    let get = Request { methods: vec!["GET".into()], ..Request::default() };
    let about = |verdict, host: &str, request: &Request| Rule {
        request: request.clone(),
        ..rule(verdict, &[host], &WEB)
    };
    let any = Request::default();
    for (first, second, expected) in [
        ((Verdict::Allow, &get), None, Some((Verdict::Allow, Tls::Opened))),
        ((Verdict::Ask, &get), Some((Verdict::Deny, &any)), Some((Verdict::Allow, Tls::Opened))),
        ((Verdict::Deny, &get), None, None),
        ((Verdict::Deny, &get), Some((Verdict::Deny, &any)), Some((Verdict::Deny, Tls::Checked))),
        ((Verdict::Deny, &get), Some((Verdict::Allow, &any)), Some((Verdict::Allow, Tls::Opened))),
        ((Verdict::Deny, &get), Some((Verdict::Ask, &any)), Some((Verdict::Allow, Tls::Opened))),
        ((Verdict::Allow, &any), Some((Verdict::Deny, &get)), Some((Verdict::Allow, Tls::Checked))),
        ((Verdict::Ask, &any), Some((Verdict::Allow, &get)), Some((Verdict::Ask, Tls::Checked))),
    ] {
        let rules = [Some(first), second].into_iter().flatten();
        let judge = judge(rules.map(|(verdict, request)| about(verdict, "*.example.com", request)).collect());
        let judged = judge.connect(&"a.example.com".parse().unwrap(), 443);
        assert_eq!(judged.verdict.map(|verdict| (verdict, judged.tls)), expected, "{first:?} {second:?}");
        assert!(judge.needs_opening());
    }
}

#[test]
fn an_opened_connection_may_lead_only_where_every_rule_lets_it() {
    let get = Request { methods: vec!["GET".into()], ..Request::default() };
    let pin = |last: &str| format!("sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA{last}=");
    let rule = |request: &Request, private: &str, pin: String| Rule {
        private: vec![private.into()],
        pins: vec![pin],
        request: request.clone(),
        ..rule(Verdict::Allow, &["a.test"], &WEB)
    };
    let judge =
        judge(vec![rule(&get, "10.1.0.0/16", pin("A")), rule(&Request::default(), "10.0.0.0/8", pin("E"))]);
    let narrowest = judge.narrowest(&"a.test".parse().unwrap(), 443);
    assert_eq!(narrowest.private.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.1.0.0/16"]);
    assert_eq!(narrowest.pins, [pin("A"), pin("E")]);
}

#[test]
fn who_may_push_may_fetch_and_who_may_not_push_still_may() {
    let about = |verdict, git| Rule {
        request: Request { git: Some(git), repositories: vec!["acme/*".into()], ..Request::default() },
        ..rule(verdict, &["git.test"], &WEB)
    };
    let verdict = |judge: &Judge, wants, repository: &str| {
        let git = Some(GitCall { wants, repository: repository.into() });
        judge.request(&crate::request::Request { git, ..get("https://git.test/x") }).verdict
    };
    let pushes = judge(vec![about(Verdict::Allow, Git::Push)]);
    assert_eq!(verdict(&pushes, Git::Push, "acme/web"), Some(Verdict::Allow));
    assert_eq!(verdict(&pushes, Git::Fetch, "acme/web"), Some(Verdict::Allow));
    assert_eq!(verdict(&pushes, Git::Fetch, "evil/web"), None);
    assert_eq!(pushes.request(&get("https://git.test/x")).verdict, None);
    let reads = judge(vec![about(Verdict::Deny, Git::Push), about(Verdict::Allow, Git::Fetch)]);
    assert_eq!(verdict(&reads, Git::Push, "acme/web"), Some(Verdict::Deny));
    assert_eq!(verdict(&reads, Git::Fetch, "acme/web"), Some(Verdict::Allow));
}

#[test]
fn a_name_that_occurs_twice_opens_nothing_that_one_of_its_values_would_not() {
    let about = |verdict| Rule {
        request: Request { query: [("role".into(), "reader".into())].into(), ..Request::default() },
        ..rule(verdict, &["a.test"], &WEB)
    };
    let (opens, denies) = (judge(vec![about(Verdict::Allow)]), judge(vec![about(Verdict::Deny)]));
    for (query, allowed, denied) in
        [("role=reader", true, true), ("role=reader&role=admin", false, true), ("x=1", false, false)]
    {
        let request = get(&format!("https://a.test/?{query}"));
        assert_eq!(opens.request(&request).verdict.is_some(), allowed, "{query}");
        assert_eq!(denies.request(&request).verdict.is_some(), denied, "{query}");
    }
}

#[test]
fn an_explained_request_names_what_each_rule_misses() {
    let about = |request: Request| Rule { request, ..rule(Verdict::Allow, &["a.test"], &WEB) };
    let pair = |name: &str, value: &str| [(name.to_string(), value.to_string())].into();
    let judge = judge(vec![
        about(Request { methods: vec!["POST".into(), "PUT".into()], ..Request::default() }),
        about(Request { paths: vec!["/v1/**".into(), "/v2".into()], ..Request::default() }),
        about(Request { query: pair("x", "1"), ..Request::default() }),
        about(Request { headers: pair("accept", "text/*"), ..Request::default() }),
        about(Request { websocket: Some(true), ..Request::default() }),
        about(Request { git: Some(Git::Push), ..Request::default() }),
    ]);
    let asked: Asked = "https://a.test/x".parse().unwrap();
    assert_eq!(
        judge.explain_asked(&asked).to_string(),
        "GET a.test:443/x: deny, since no rule matches\n  \
         passed over allow POST, PUT a.test (airlock.toml:12): only POST and PUT\n  \
         passed over allow a.test, 2 paths (airlock.toml:12): only /v1/** and /v2\n  \
         passed over allow a.test (airlock.toml:12): only with x = 1 in the query\n  \
         passed over allow a.test (airlock.toml:12): only with the header accept = text/*\n  \
         passed over allow WebSockets to a.test (airlock.toml:12): only WebSockets\n  \
         passed over allow git push at a.test (airlock.toml:12): only git push\n"
    );
    assert_eq!(
        judge.explain(&"a.test".parse().unwrap(), 443).to_string(),
        "a.test:443: opened, since allow POST, PUT a.test (airlock.toml:12) is about requests; each of them is judged\n"
    );
    let wide = "PUT https://a.test/v1/x".parse().unwrap();
    assert_eq!(
        judge.explain_asked(&wide).to_string(),
        "PUT a.test:443/v1/x: allow by allow POST, PUT a.test (airlock.toml:12)\n"
    );
}

fn get(url: &str) -> crate::request::Request {
    url.parse::<Asked>().unwrap().request.unwrap()
}

/// The judge without an index: the meaning of the rules about a request.
fn naive_request(rules: &[Rule], request: &crate::request::Request) -> Option<usize> {
    rules.iter().position(|rule| {
        let asked = &rule.request;
        let glob = |text: &str, value: &str| text.parse::<crate::glob::Glob>().unwrap().matches(value);
        let named = |asked: &BTreeMap<String, String>, pairs: &[(String, String)]| {
            asked.iter().all(|(name, pattern)| {
                let values: Vec<&String> =
                    pairs.iter().filter(|(own, _)| own == name).map(|(_, value)| value).collect();
                let fits = |value: &&String| glob(pattern, value);
                match rule.verdict {
                    Verdict::Allow => !values.is_empty() && values.iter().all(fits),
                    _ => values.iter().any(fits),
                }
            })
        };
        naive(std::slice::from_ref(rule), &request.target, request.port).is_some()
            && (asked.methods.is_empty() || asked.methods.contains(&request.method))
            && (asked.paths.is_empty() || asked.paths.iter().any(|path| glob(path, &request.path)))
            && named(&asked.query, &request.query)
            && named(&asked.headers, &request.headers)
            && asked.websocket.is_none_or(|wanted| wanted == request.websocket)
    })
}

/// The judge without an index: the meaning of the rules about whole connections.
fn naive(rules: &[Rule], target: &Target, port: u16) -> Option<usize> {
    rules.iter().position(|rule| {
        let host = rule.hosts.iter().any(|host| {
            let host: Pattern = host.parse().unwrap();
            let loopback = target.name().is_some_and(|name| name.is_host_airlock());
            host.matches(target) && !(loopback && host == Pattern::EveryName && rule.verdict != Verdict::Deny)
        });
        host && rule.ports.iter().any(|ports| ports.contains(port))
    })
}

fn hosts() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[ab](\\.[ab]){0,3}\\.test",
        3 => "\\*\\.([ab]\\.){0,2}[ab]\\.test",
        1 => Just("*".to_string()),
        1 => Just("host.airlock".to_string()),
        2 => (0_u8..8).prop_map(|last| format!("192.0.2.{last}")),
        2 => (28_u8..=32, 0_u8..8).prop_map(|(prefix, last)| {
            Cidr::holding(IpAddr::from([192, 0, 2, last]), prefix).to_string()
        }),
        1 => Just("2001:db8::/32".to_string()),
    ]
}

fn runs() -> impl Strategy<Value = Ports> {
    prop_oneof![
        5 => (1_u16..8, 0_u16..4).prop_map(|(first, more)| Ports { first, last: first + more }),
        1 => Just(Ports::ALL),
    ]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let verdicts = prop_oneof![Just(Verdict::Allow), Just(Verdict::Deny), Just(Verdict::Ask)];
    let rule = (verdicts, prop::collection::vec(hosts(), 1..4), prop::collection::vec(runs(), 1..3));
    let rule = rule.prop_map(|(verdict, hosts, ports)| {
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        self::rule(verdict, &hosts, &ports)
    });
    prop::collection::vec(rule, 0..12)
}

fn conditions() -> impl Strategy<Value = Request> {
    let few = |words: &'static [&'static str]| {
        prop::sample::subsequence(words, 0..3)
            .prop_map(|words| words.into_iter().map(str::to_string).collect::<Vec<_>>())
    };
    let pairs = prop::collection::btree_map("[xy]", prop_oneof!["[12]", Just("*".to_string())], 0..2);
    let headers = prop::collection::btree_map("[xy]", "[12]", 0..2);
    (few(&["GET", "POST"]), few(&["/**", "/a/*", "/a", "/*"]), pairs, headers, any::<Option<bool>>())
        .prop_map(|(methods, paths, query, headers, websocket)| Request {
            methods,
            paths,
            query,
            headers,
            websocket,
            ..Request::default()
        })
}

/// Rules of which some ask something of requests.
fn mixed() -> impl Strategy<Value = Vec<Rule>> {
    let asks = prop::collection::vec(prop::option::of(conditions()), 12);
    (rules(), asks).prop_map(|(rules, asks)| {
        let asked = rules.into_iter().zip(asks);
        asked.map(|(rule, request)| Rule { request: request.unwrap_or_default(), ..rule }).collect()
    })
}

fn requests() -> impl Strategy<Value = crate::request::Request> {
    let pairs = || prop::collection::vec(("[xy]", "[12]"), 0..3);
    let method = prop_oneof![Just("GET"), Just("POST"), Just("PUT")];
    let path = prop_oneof![Just("/"), Just("/a"), Just("/a/b"), Just("/a/b/c")];
    (targets(), 0_u16..12, method, path, pairs(), pairs(), any::<bool>()).prop_map(
        |(target, port, method, path, query, headers, websocket)| crate::request::Request {
            target,
            port,
            is_tls: true,
            method: method.into(),
            path: path.into(),
            read_as: None,
            query,
            headers,
            websocket,
            git: None,
            is_ssh: false,
        },
    )
}

fn targets() -> impl Strategy<Value = Target> {
    prop_oneof![
        4 => "[ab](\\.[ab]){0,4}\\.test".prop_map(|text| text.parse().unwrap()),
        1 => Just("host.airlock".parse().unwrap()),
        2 => (0_u8..9).prop_map(|last| Target::Address(IpAddr::from([192, 0, 2, last]))),
        1 => Just("[2001:db8::1]".parse().unwrap()),
    ]
}

proptest! {
    #[test]
    fn the_index_decides_as_the_rules_in_order_do(rules in rules(), target in targets(), port in 0_u16..12) {
        let judge = judge(rules.clone());
        let found = judge.connect(&target, port).rule.map(CompiledRule::index);
        prop_assert_eq!(found, naive(&rules, &target, port));
    }

    #[test]
    fn a_request_is_decided_as_the_rules_in_order_do(rules in mixed(), request in requests()) {
        let judge = judge(rules.clone());
        let judged = judge.request(&request);
        prop_assert_eq!(judged.rule.map(CompiledRule::index), naive_request(&rules, &request));
        // What a request may do its connection may do too, or a person is asked about it.
        let connected = judge.connect(&request.target, request.port);
        if judged.verdict.is_some_and(|verdict| verdict != Verdict::Deny) {
            prop_assert!(connected.verdict.is_some_and(|verdict| verdict != Verdict::Deny));
        }
        // And where requests differ, the connection is opened.
        let first = naive(&rules, &request.target, request.port);
        let looks = first.is_some_and(|first| !rules[first].request.is_any());
        let opens = rules.iter().any(|rule| {
            naive(std::slice::from_ref(rule), &request.target, request.port).is_some() && rule.verdict != Verdict::Deny
        });
        prop_assert!(!looks || !opens || connected.inside || connected.verdict != Some(Verdict::Allow));
        prop_assert_eq!(connected.inside, connected.inside && connected.tls == Tls::Opened);
        let explained = judge.explain_request(&request);
        prop_assert!(explained.passed.iter().all(|passed| passed.missed != Missed::Inside));
    }

    #[test]
    fn what_is_open_is_what_is_not_denied(rules in mixed(), target in targets()) {
        let judge = judge(rules);
        let opens = |port| judge.connect(&target, port).verdict.is_some_and(|verdict| verdict != Verdict::Deny);
        for port in (0..14).chain([u16::MAX]) {
            let said = match &target {
                Target::Name(name) => usize::from(judge.could_match(name).iter().any(|ports| ports.contains(port))),
                Target::Address(address) => {
                    let openings = judge.literal_openings();
                    openings.iter().filter(|(range, ports)| range.contains(*address) && ports.contains(port)).count()
                }
            };
            // The kernel's set may hold an address that a narrower range denies; the judge then decides. Never the other way.
            match &target {
                Target::Name(_) => prop_assert_eq!(said == 1, opens(port)),
                Target::Address(_) => prop_assert!(said <= 1 && (said == 1 || !opens(port))),
            }
        }
    }

    #[test]
    fn a_rule_that_is_called_dead_never_decides_and_its_loss_changes_nothing(rules in mixed(), request in requests()) {
        let judge = judge(rules.clone());
        let (target, found) = (&request.target, judge.request(&request));
        // That `*` denies the host's loopback where an earlier `*` allows names is no news: nothing matched is denied.
        let told = |verdict: Option<Verdict>| verdict.filter(|verdict| *verdict != Verdict::Deny);
        if let Some(rule) = found.rule
            && !target.name().is_some_and(HostName::is_host_airlock)
        {
            prop_assert!(judge.shadows()[rule.index()].is_none());
        }
        let united = crate::policy::union(vec![Policy { rules, ..Policy::default() }]);
        let again = self::judge(united.rules);
        prop_assert_eq!(told(found.verdict), told(again.request(&request).verdict));
        prop_assert!(again.shadows().iter().all(Option::is_none));
    }
}

/// `cargo test --release -p airlock-gate -- --ignored --nocapture a_decision`
#[test]
#[ignore = "measures; run it with --release"]
fn a_decision_among_a_thousand_rules_takes_well_below_a_microsecond() {
    let mut rules = Vec::new();
    for i in 0..250_u16 {
        rules.push(rule(Verdict::Allow, &[&format!("api{i}.example.com")], &WEB));
        rules.push(rule(Verdict::Ask, &[&format!("*.zone{i}.example.net")], &WEB));
        rules.push(rule(Verdict::Deny, &[&format!("*.bad{i}.example.com")], &[Ports::ALL]));
        rules.push(rule(Verdict::Allow, &[&format!("192.0.{}.0/24", i % 250)], &[Ports::one(i + 1)]));
    }
    rules.push(rule(Verdict::Deny, &["*"], &[Ports::ALL]));
    let judge = judge(rules);
    for host in [
        "api249.example.com",
        "a.b.zone249.example.net",
        "x.bad0.example.com",
        "no.rule.test",
        "192.0.249.9",
        "198.51.100.1",
    ] {
        let target: Target = host.parse().unwrap();
        let rounds = 200_000_u32;
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(judge.connect(std::hint::black_box(&target), 443));
        }
        let each = start.elapsed().as_nanos() / u128::from(rounds);
        println!("{host}: {each} ns");
        assert!(each < 1000, "{host}: {each} ns");
    }
}

/// `cargo test --release -p airlock-gate -- --ignored --nocapture a_request_among`
#[test]
#[ignore = "measures; run it with --release"]
fn a_request_among_a_thousand_rules_takes_a_few_microseconds() {
    let about = |host: &str, path: String| Rule {
        request: Request { methods: vec!["GET".into()], paths: vec![path], ..Request::default() },
        ..rule(Verdict::Allow, &[host], &WEB)
    };
    let spread =
        (0..1000).map(|i| about(&format!("h{i}.example.com"), format!("/repos/*/p{i}/**"))).collect();
    let heaped = (0..1000).map(|i| about("h999.example.com", format!("/repos/p{i}/*/x/**"))).collect();
    for (name, rules, path) in
        [("a host each", spread, "/repos/acme/p999/x"), ("all one host", heaped, "/repos/p999/acme/x/y")]
    {
        let judge = judge(rules);
        let request = get(&format!("https://h999.example.com{path}"));
        assert_eq!(judge.request(&request).verdict, Some(Verdict::Allow));
        let rounds = 20_000_u32;
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(judge.request(std::hint::black_box(&request)));
        }
        println!("{name}: {} ns", start.elapsed().as_nanos() / u128::from(rounds));
    }
}

#[test]
fn inside_ssh_only_rules_about_git_and_whole_connections_open() {
    let verdicts = |text: &str| {
        let policy = crate::policy::parse_toml("airlock.toml", text).unwrap().policy;
        let judge = Judge::compile(&policy).unwrap();
        ["fetch ssh://a.test/acme/web.git", "push ssh://a.test/acme/web.git", "fetch ssh://a.test/acme/other"]
            .map(|asked| judge.judge_asked(&asked.parse().unwrap()).verdict)
    };
    let rule = |keys: &str| format!("[[rule]]\nallow = \"a.test\"\nports = [22]\n{keys}\n");
    let allow = Some(Verdict::Allow);

    assert_eq!(verdicts(&rule("git = \"fetch\"\nrepositories = [\"acme/web\"]")), [allow, None, None]);
    assert_eq!(verdicts(&rule("git = \"push\"")), [allow, allow, allow]);
    for other in ["paths = [\"/**\"]", "methods = [\"GET\"]", "websocket = false", "headers = { x = \"**\" }"]
    {
        assert_eq!(verdicts(&rule(other)), [None, None, None], "{other}");
    }
    let denied = format!(
        "[[rule]]\ndeny = \"a.test\"\nports = [22]\npaths = [\"/acme/web.git\"]\n{}",
        rule("git = \"push\"")
    );
    assert_eq!(verdicts(&denied), [Some(Verdict::Deny), Some(Verdict::Deny), allow]);
}

#[test]
fn encoded_slashes_pass_by_a_rule_that_takes_them_and_no_other() {
    let verdicts = |text: &str| {
        let policy = crate::policy::parse_toml("airlock.toml", text).unwrap().policy;
        let judge = Judge::compile(&policy).unwrap();
        ["/projects/acme%2Fweb", "/projects/acme%2fother", "/projects/acme/web"]
            .map(|path| judge.judge_asked(&format!("GET https://a.test{path}").parse().unwrap()).verdict)
    };
    let rule = |verdict: &str, keys: &str| format!("[[rule]]\n{verdict} = \"a.test\"\n{keys}\n");
    let (allow, deny, ask) = (Some(Verdict::Allow), Some(Verdict::Deny), Some(Verdict::Ask));
    let taken = "encoded_slashes = true\npaths = [\"/projects/*\"]";

    assert_eq!(verdicts(&rule("allow", "paths = [\"/projects/**\"]")), [None, None, allow]);
    assert_eq!(verdicts(&rule("allow", "")), [None, None, allow]);
    assert_eq!(verdicts(&rule("allow", taken)), [allow, allow, None]);
    assert_eq!(
        verdicts(&rule("allow", "encoded_slashes = true\npaths = [\"/projects/acme%2Fweb\"]")),
        [allow, None, None]
    );
    for (word, verdict) in [("deny", deny), ("ask", ask)] {
        for path in ["/projects/acme/web", "/projects/acme%2Fweb"] {
            let both = rule(word, &format!("paths = [\"{path}\"]")) + &rule("allow", taken);
            let third = if path.contains('%') { None } else { verdict };
            assert_eq!(verdicts(&both), [verdict, allow, third], "{word} {path}");
        }
    }
}
