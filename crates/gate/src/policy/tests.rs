use super::*;
use crate::{host::Target, judge::Judge};
use airlock_protocol::policy::{Bounds, Git, Origin, Policy, Ports, Rate, Request, Tls};
use proptest::prelude::*;

const WEB: [Ports; 2] = [Ports { first: 80, last: 80 }, Ports { first: 443, last: 443 }];

fn read(text: &str) -> PolicyFile {
    parse_toml("airlock.toml", text).unwrap_or_else(|bad| panic!("{bad}"))
}

fn refused(text: &str) -> BadPolicy {
    parse_toml("airlock.toml", text).unwrap_err()
}

fn allow(hosts: &[&str], ports: &[Ports]) -> Rule {
    let hosts = hosts.iter().map(ToString::to_string).collect();
    Rule::new(Verdict::Allow, hosts, ports.to_vec(), Origin::default())
}

fn unplaced(policy: &Policy) -> Policy {
    let rules = policy.rules.iter().map(|rule| Rule { origin: Origin::default(), ..rule.clone() }).collect();
    Policy { rules, ..policy.clone() }
}

#[test]
fn a_file_is_read_with_its_lines_and_leaves_other_keys_alone() {
    let text = "image = \"host\"\n\n[groups.ours]\nhosts = [\"API.Corp.example.\"]\n\n[[rule]]\nallow = [\"ours\", \"*.example.org\"]\n\
                ports = [443, \"8000-8100\", 8101]\ntls = \"opaque\"\nprivate = \"10.20.0.0/16\"\n\n[[rule]]\nask = \"intranet.\"\n\
                \n[secrets.TOKEN]\nfrom = \"env:TOKEN\"\n";
    let file = read(text);
    let origin = |line| Origin { from: "airlock.toml".to_string(), line };
    let first = Rule {
        tls: Tls::Opaque,
        private: vec!["10.20.0.0/16".to_string()],
        origin: origin(6),
        ..allow(&["api.corp.example", "*.example.org"], &[Ports::one(443), Ports { first: 8000, last: 8101 }])
    };
    let second = Rule { verdict: Verdict::Ask, origin: origin(12), ..allow(&["intranet"], &WEB) };
    assert_eq!(file.policy, Policy { rules: vec![first, second], ..Policy::default() });
    let others: Vec<(&str, &str)> =
        file.others.iter().map(|key| (key.name.as_str(), text.get(key.at.clone()).unwrap())).collect();
    assert_eq!(others, [("image", "image"), ("secrets", "secrets")]);
    assert_eq!(file.groups.len(), 1);
}

#[test]
fn an_error_shows_the_place_the_line_and_what_to_do() {
    assert_eq!(
        refused("[[rule]]\nallow = [\"a.test\", \"*.com\"]\n").to_string(),
        "airlock.toml:2:20: `*.com` is not a host that a rule can name\n   \
            2 | allow = [\"a.test\", \"*.com\"]\n     \
              |                    ^^^^^^^\n  \
         why:  a wildcard needs at least two labels behind it: `*.com` would be every name of everybody under com\n  \
         fix:  write *.example.com, or name the hosts one by one\n"
    );
    assert_eq!(
        rule_from_flag(Verdict::Allow, "*.com:443", "--allow").unwrap_err().to_string(),
        "--allow: `*.com` is not a host that a rule can name\n\
         \x20 why:  a wildcard needs at least two labels behind it: `*.com` would be every name of everybody under com\n\
         \x20 fix:  write *.example.com, or name the hosts one by one\n"
    );
}

#[test]
fn every_fault_is_found_at_its_line_and_column() {
    for (text, place, what) in [
        ("[[rule]]\nallow = 1", (2, 9), "`allow` is a string or a list of strings"),
        ("[[rule]]\nallow = [\"a.test\", 1]", (2, 20), "`allow` is a string or a list of strings"),
        ("[[rule]]\nallow = []", (2, 9), "at least one host"),
        ("[[rule]]\nports = [1]", (1, 1), "a rule allows, denies or asks"),
        ("[[rule]]\nallow = \"a.test\"\ndeny = \"b.test\"", (3, 8), "a rule says one thing"),
        ("[[rule]]\nallow = \"a.test\"\nport = 1", (3, 1), "no key `port`"),
        ("[[rule]]\nallow = \"a.test\"\nports = []", (3, 9), "at least one port"),
        ("[[rule]]\nallow = \"a.test\"\nports = [0]", (3, 10), "not a port"),
        ("[[rule]]\nallow = \"a.test\"\nports = [65536]", (3, 10), "not a port"),
        ("[[rule]]\nallow = \"a.test\"\nports = [0x50]", (3, 10), "not a port"),
        ("[[rule]]\nallow = \"a.test\"\nports = \"9-1\"", (3, 9), "not a port"),
        ("[[rule]]\nallow = \"a.test\"\ntls = \"off\"", (3, 7), "`tls` is"),
        ("[[rule]]\ndeny = \"a.test\"\ntls = \"opaque\"", (3, 7), "means nothing in a rule that denies"),
        (
            "[[rule]]\ndeny = \"a.test\"\nprivate = \"10.0.0.0/8\"",
            (3, 11),
            "means nothing in a rule that denies",
        ),
        ("[[rule]]\nallow = \"a.test\"\nprivate = \"10.0.0.1/8\"", (3, 11), "cannot be opened"),
        ("[[rule]]\nallow = \"a.test\"\nprivate = \"8.8.8.0/24\"", (3, 11), "cannot be opened"),
        ("[[rule]]\nallow = \"a.test\"\nprivate = \"0.0.0.0/0\"", (3, 11), "cannot be opened"),
        ("[[rule]]\nallow = \"a.test\"\nprivate = \"127.0.0.0/8\"", (3, 11), "cannot be opened"),
        ("[[rule]]\nallow = \"a.test\"\nprivate = \"169.254.169.254\"", (3, 11), "cannot be opened"),
        ("[[rule]]\nallow = \"169.254.0.0/16\"", (2, 9), "cannot be opened"),
        ("[[rule]]\nallow = \"100.100.100.200\"", (2, 9), "cannot be opened"),
        ("[[rule]]\nask = \"::1\"", (2, 7), "cannot be opened"),
        ("[[rule]]\nallow = \"localhost\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"a.localhost\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"https://a.test/\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"a.test:22\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"0x7f.1\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"a.*.test\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"*a.test\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"::ffff:192.0.2.1\"", (2, 9), "not a host"),
        ("[[rule]]\nallow = \"*.host.airlock\"\nports = [3000]", (2, 9), "leads nowhere"),
        ("[[rule]]\nallow = \"host.airlock\"", (2, 9), "opened by port"),
        ("[[rule]]\nallow = \"host.airlock\"\nports = \"*\"", (2, 9), "opened by port"),
        ("[[rule]]\nallow = \"gihub\"", (2, 9), "no group gihub"),
        ("[[rule]]\nallow = \"npm\"", (2, 9), "the group npm"),
        ("[rule]\nallow = \"a.test\"", (1, 1), "`rule` is a list of tables"),
        ("[groups]\nours = 1", (2, 8), "`ours` is a table"),
        ("[groups.Ours]\nhosts = []", (1, 9), "cannot be called so"),
        ("[groups.ours]\nhosts = []", (2, 9), "a group has hosts"),
        ("[groups.ours]\nhost = []", (2, 1), "no key `host`"),
        ("[groups.ours]\nhosts = [\"github\"]", (2, 10), "not a host"),
        ("audit_only = 1", (1, 14), "`audit_only` is true or false"),
        ("[[rule]]\nallow = \"a.test", (2, 16), "not TOML"),
        ("a = 1\na = 2", (2, 1), "not TOML"),
    ] {
        let bad = refused(text);
        assert_eq!((bad.line, bad.column), place, "{bad}");
        assert!(bad.what.contains(what), "{bad}");
    }
}

const PIN: &str = "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

#[test]
fn keys_about_requests_are_read() {
    let text = format!(
        "bandwidth = \"5M/s\"\n[[rule]]\nallow = \"a.test\"\nmethods = [\"get\", \"HEAD\", \"GET\"]\npaths = \"/v1/**\"\n\
         query = {{ state = \"open\" }}\nheaders = {{ Accept = \"application/*\" }}\nwebsocket = false\nrate = \"60/m\"\n\
         bytes = \"100M\"\nbandwidth = \"1.5K/s\"\npins = [\"{PIN}\"]\n[[rule]]\nask = \"git.test\"\ngit = \"push\"\n\
         repositories = [\"acme/*\"]\n[[rule]]\nallow = \"b.test\"\ntls = \"opened\"\nrate = \"5/10s\"\n"
    );
    let policy = unplaced(&read(&text).policy);
    let pair = |name: &str, value: &str| [(name.to_string(), value.to_string())].into();
    let first = Rule {
        request: Request {
            methods: vec!["GET".into(), "HEAD".into()],
            paths: vec!["/v1/**".into()],
            query: pair("state", "open"),
            headers: pair("accept", "application/*"),
            websocket: Some(false),
            ..Request::default()
        },
        bounds: Bounds {
            rate: Some(Rate { count: 60, seconds: 60 }),
            bytes: Some(100 << 20),
            bandwidth: Some(1536),
        },
        pins: vec![PIN.into()],
        ..allow(&["a.test"], &WEB)
    };
    let second = Rule {
        verdict: Verdict::Ask,
        request: Request { git: Some(Git::Push), repositories: vec!["acme/*".into()], ..Request::default() },
        ..allow(&["git.test"], &WEB)
    };
    let third = Rule {
        tls: Tls::Opened,
        bounds: Bounds { rate: Some(Rate { count: 5, seconds: 10 }), ..Bounds::default() },
        ..allow(&["b.test"], &WEB)
    };
    assert_eq!(
        policy,
        Policy { rules: vec![first, second, third], bandwidth: Some(5 << 20), ..Policy::default() }
    );
    assert_eq!(unplaced(&read(&show(&policy)).policy), policy);
}

#[test]
fn faults_in_keys_about_requests_are_found_at_their_place() {
    for (keys, place, what) in [
        ("methods = []", (3, 11), "`methods` names at least one"),
        ("methods = [\"G T\"]", (3, 12), "cannot stand in `methods`"),
        ("methods = 1", (3, 11), "a string or a list"),
        ("paths = [\"/a\", \"x\"]", (3, 16), "cannot stand in `paths`"),
        ("paths = [\"/a?b\"]", (3, 10), "cannot stand in `paths`"),
        ("paths = [\"/a/../b\"]", (3, 10), "cannot stand in `paths`"),
        ("paths = [\"/***\"]", (3, 10), "cannot stand in `paths`"),
        ("query = \"x\"", (3, 9), "a table of names and patterns"),
        ("query = { a = 1 }", (3, 15), "a pattern in quotes"),
        ("query = { a = \"\" }", (3, 15), "cannot stand in `query`"),
        ("headers = { \"a b\" = \"x\" }", (3, 13), "cannot stand in `headers`"),
        ("headers = { A = \"x\", a = \"y\" }", (3, 22), "cannot stand in `headers`"),
        ("headers = {}", (3, 11), "`headers` names at least one"),
        ("websocket = \"no\"", (3, 13), "`websocket` is true or false"),
        ("git = \"clone\"", (3, 7), "`git` is"),
        ("git = \"push\"\nmethods = [\"GET\"]", (4, 1), "`git` and `methods` do not go together"),
        ("git = \"push\"\npaths = [\"/\"]", (4, 1), "`git` and `paths` do not go together"),
        ("git = \"push\"\nwebsocket = true", (4, 1), "`git` and `websocket` do not go together"),
        ("git = \"fetch\"\nrepositories = [\"/a\"]", (4, 17), "cannot stand in `repositories`"),
        ("git = \"fetch\"\nrepositories = [\"a.git\"]", (4, 17), "cannot stand in `repositories`"),
        ("repositories = [\"a\"]", (3, 1), "means nothing without `git`"),
        ("rate = \"0/s\"", (3, 8), "no `rate`"),
        ("rate = \"5/y\"", (3, 8), "no `rate`"),
        ("rate = 5", (3, 8), "`rate` is a text"),
        ("bytes = \"x\"", (3, 9), "no `bytes`"),
        ("bytes = \"0\"", (3, 9), "no `bytes`"),
        ("bandwidth = \"5M\"", (3, 13), "no `bandwidth`"),
        ("bandwidth = \"0/s\"", (3, 13), "no `bandwidth`"),
        ("pins = [\"sha1/x\"]", (3, 9), "cannot stand in `pins`"),
        ("tls = \"opaque\"\nmethods = [\"GET\"]", (3, 7), "do not go together"),
        ("tls = \"opaque\"\nwebsocket = true", (3, 7), "do not go together"),
        ("examples = [\"POST https://a.test\"]\nmethods = [\"GET\"]", (3, 13), "is not decided by this rule"),
        ("examples = [\"!https://a.test\"]\nmethods = [\"GET\"]", (3, 13), "is decided by this rule"),
        ("examples = [\"G T https://a.test\"]", (3, 13), "is not a destination"),
    ] {
        let bad = refused(&format!("[[rule]]\nallow = \"a.test\"\n{keys}"));
        assert_eq!((bad.line, bad.column), place, "{bad}");
        assert!(bad.what.contains(what), "{bad}");
    }
    for key in ["rate = \"1/s\"", "bytes = \"1\"", "bandwidth = \"1/s\"", "pins = [\"x\"]"] {
        let bad = refused(&format!("[[rule]]\ndeny = \"a.test\"\n{key}"));
        assert!(bad.what.contains("means nothing in a rule that denies"), "{bad}");
    }
    assert_eq!(refused("bandwidth = 5").column, 13);
}

#[test]
fn examples_may_be_requests() {
    read(
        "[[rule]]\nallow = \"a.test\"\nmethods = [\"GET\"]\npaths = [\"/v1/*\"]\nquery = { x = \"1\" }\n\
         examples = [\"GET https://a.test/v1/a%20b?x=1\", \"https://a.test/v1/?x=1\", \"!POST https://a.test/v1/?x=1\", \
         \"!https://a.test/v1/?x=1&x=2\", \"!https://a.test/v2\", \"a.test:443\"]",
    );
}

#[test]
fn a_rule_about_requests_hides_only_rules_that_ask_no_less() {
    let two = |first: &str, second: &str| {
        format!("[[rule]]\nallow = \"*.a.test\"\n{first}\n[[rule]]\ndeny = \"b.a.test\"\n{second}")
    };
    let get = "methods = [\"GET\"]";
    for (first, second) in [
        ("", get),
        (get, get),
        ("methods = [\"GET\", \"HEAD\"]", get),
        (get, "methods = [\"GET\"]\npaths = [\"/a\"]"),
        ("paths = [\"/a/**\"]", "paths = [\"/a/b/*\", \"/a/\"]"),
        ("paths = [\"/a/*\"]", "paths = [\"/a/b\"]"),
    ] {
        assert!(refused(&two(first, second)).what.contains("can never match"), "{first} / {second}");
    }
    for (first, second) in [
        (get, ""),
        (get, "methods = [\"GET\", \"HEAD\"]"),
        ("paths = [\"/a\"]", get),
        ("paths = [\"/a/*\"]", "paths = [\"/a/**\"]"),
        ("websocket = true", get),
        // The first looks at all values of a name, the second for any.
        ("query = { x = \"1\" }", "query = { x = \"1\" }"),
        ("git = \"push\"", "git = \"fetch\""),
    ] {
        read(&two(first, second));
    }
}

#[test]
fn a_flag_may_name_requests() {
    let flag = |text: &str| rule_from_flag(Verdict::Allow, text, "--allow").map_err(|bad| bad.to_string());
    let origin = Origin { from: "--allow".to_string(), line: 0 };
    let request = |methods: &[&str], paths: &[&str]| Request {
        methods: methods.iter().map(ToString::to_string).collect(),
        paths: paths.iter().map(ToString::to_string).collect(),
        ..Request::default()
    };
    let rule = |host: &str, port: u16, request: Request| {
        Ok(vec![Rule { request, origin: origin.clone(), ..allow(&[host], &[Ports::one(port)]) }])
    };
    assert_eq!(flag("GET https://a.test/v1/**"), rule("a.test", 443, request(&["GET"], &["/v1/**"])));
    assert_eq!(flag("get,HEAD http://*.a.test:8080"), rule("*.a.test", 8080, request(&["GET", "HEAD"], &[])));
    let socket = Request { websocket: Some(true), ..request(&["GET"], &["/s"]) };
    assert_eq!(flag("GET wss://[2001:db8::1]/s"), rule("2001:db8::1", 443, socket));
    for bad in [
        "GET a.test",
        "GET ssh://a.test",
        "G@T https://a.test",
        "GET https://a.test/?x",
        "GET https://*.com/",
        "GET ",
    ] {
        let said = flag(bad).unwrap_err();
        assert!(said.contains("why:") && said.contains("fix:"), "{said}");
    }
}

#[test]
fn an_answered_request_is_written_before_the_rule_that_asks() {
    let text =
        "[[rule]]\nallow = \"a.test\"\nmethods = [\"GET\"]\n\n[[rule]]\nask = \"a.test\"\nrate = \"5/s\"\n";
    let request = Request { methods: vec!["POST".into()], paths: vec!["/a\\*".into()], ..Request::default() };
    let new = Rule { request, ..allow(&["a.test"], &[Ports::one(443)]) };
    let written = write_rule("airlock.toml", text, &new).unwrap();
    let judge = Judge::compile(&read(&written).policy).unwrap();
    let verdict = |asked: &str| judge.judge_asked(&asked.parse().unwrap()).verdict.unwrap();
    assert_eq!(verdict("POST https://a.test/a*"), Verdict::Allow);
    assert_eq!(verdict("POST https://a.test/ab"), Verdict::Ask);
    assert_eq!(verdict("GET https://a.test/x"), Verdict::Allow);
    assert_eq!(write_rule("airlock.toml", &written, &new).unwrap(), written);
}

#[test]
fn a_rule_that_can_never_match_is_refused_and_both_lines_are_named() {
    for text in [
        "[[rule]]\nallow = \"*.a.test\"\n[[rule]]\ndeny = \"b.a.test\"",
        "[[rule]]\ndeny = \"*\"\n[[rule]]\nallow = \"*.a.test\"",
        "[[rule]]\ndeny = [\"192.0.2.0/24\", \"a.test\"]\n[[rule]]\nallow = [\"a.test\", \"192.0.2.1\"]",
        "[[rule]]\nallow = \"a.test\"\n[[rule]]\nallow = \"a.test\"\nports = 80",
    ] {
        let bad = refused(text);
        assert_eq!(bad.line, 3, "{bad}");
        assert!(bad.what.contains("line 3") && bad.why.contains("airlock.toml:1"), "{bad}");
    }
    let both = "[[rule]]\ndeny = \"a.test\"\nports = 80\n[[rule]]\nask = \"*.a.test\"\n[[rule]]\nask = \"a.test\"\nports = 443\n\
                [[rule]]\nallow = \"a.test\"";
    assert!(refused(both).why.contains("deny a.test (airlock.toml:1) and ask a.test (airlock.toml:6)"));
}

#[test]
fn examples_are_decided_by_their_own_rule() {
    let text = |example: &str| {
        format!(
            "[[rule]]\ndeny = \"gist.a.test\"\n[[rule]]\nallow = [\"*.a.test\", \"192.0.2.0/24\"]\nexamples = [\"{example}\"]"
        )
    };
    for example in [
        "api.a.test:443",
        "https://api.a.test/x",
        "api.a.test",
        "!a.test",
        "!gist.a.test",
        "!api.a.test:22",
        "192.0.2.9:80",
    ] {
        read(&text(example));
    }
    for (example, why) in [
        ("gist.a.test:80", "deny gist.a.test (airlock.toml:1) decides it"),
        ("a.test", "no rule matches it"),
        ("api.a.test:22", "no rule matches it"),
        ("!api.a.test", ""),
        (
            "api a.test",
            "a method stands before a URL of http, https, ws or wss; `fetch` or `push` before one of ssh",
        ),
    ] {
        let bad = refused(&text(example));
        assert_eq!((bad.line, bad.column, &*bad.why), (5, 13, why), "{bad}");
    }
}

#[test]
fn a_flag_that_denies_a_host_denies_all_of_it() {
    let ports = |text: &str| {
        let rules = rule_from_flag(Verdict::Deny, text, "--deny").unwrap();
        rules.into_iter().flat_map(|rule| rule.ports).collect::<Vec<_>>()
    };
    for text in ["a.test", "*.a.test", "192.0.2.1", "2001:db8::/32", "mistral"] {
        assert_eq!(ports(text), [Ports::ALL], "{text}");
    }
    assert_eq!(ports("a.test:22"), [Ports::one(22)]);
}

#[test]
fn a_flag_is_a_host_with_or_without_ports_or_a_group() {
    let flag = |text: &str| rule_from_flag(Verdict::Allow, text, "--allow").map_err(|bad| bad.to_string());
    let from = |from: &str, rule: Rule| {
        Ok(vec![Rule { origin: Origin { from: from.to_string(), line: 0 }, ..rule }])
    };
    assert_eq!(flag("A.test"), from("--allow", allow(&["a.test"], &WEB)));
    assert_eq!(flag("*.a.test:22"), from("--allow", allow(&["*.a.test"], &[Ports::one(22)])));
    assert_eq!(flag("a.test:*"), from("--allow", allow(&["a.test"], &[Ports::ALL])));
    assert_eq!(flag("a.test:80-90"), from("--allow", allow(&["a.test"], &[Ports { first: 80, last: 90 }])));
    assert_eq!(flag("10.0.0.0/8:22"), from("--allow", allow(&["10.0.0.0/8"], &[Ports::one(22)])));
    assert_eq!(flag("2001:db8::/32"), from("--allow", allow(&["2001:db8::/32"], &WEB)));
    assert_eq!(flag("[2001:db8::1]:22"), from("--allow", allow(&["2001:db8::1"], &[Ports::one(22)])));
    assert_eq!(flag("host.airlock:3000"), from("--allow", allow(&["host.airlock"], &[Ports::one(3000)])));
    assert_eq!(
        flag("mistral:443"),
        from("group mistral", allow(&["api.mistral.ai", "codestral.mistral.ai"], &[Ports::one(443)]))
    );
    for text in
        ["", ":22", "a.test:", "a.test:0", "a.test:x", "a.test:1:2", "https://a.test", "npm", "*", "a b"]
    {
        assert_eq!(flag(text).is_ok(), text == "*", "{text:?}");
    }
}

#[test]
fn the_hosts_of_a_registry_come_from_outside() {
    let mut discovered = Discovered::default();
    let group = crate::groups::Group {
        name: "npm".into(),
        about: String::new(),
        hosts: vec!["npm.corp.example".into()],
    };
    discovered.insert(group);
    let reader = Reader { discovered: &discovered };
    let rules = reader.flag(Verdict::Allow, "npm", "--allow").unwrap();
    assert_eq!(rules[0].hosts, ["npm.corp.example"]);
    let own = "[groups.npm]\nhosts = [\"mirror.example.org\"]\n[[rule]]\nallow = \"npm\"";
    assert_eq!(reader.toml("airlock.toml", own).unwrap().policy.rules[0].hosts, ["mirror.example.org"]);
}

#[test]
fn a_host_of_a_group_may_have_a_port_of_its_own() {
    let group =
        "[groups.ours]\nhosts = [\"a.test\", \"b.test:8081\", \"[2001:db8::1]:8081\", \"2001:db8::2\"]\n";
    let file = read(&format!(
        "{group}[[rule]]\nallow = \"ours\"\nexamples = [\"a.test\", \"b.test:8081\", \"!b.test\"]"
    ));
    let said: Vec<(&[String], &[Ports])> =
        file.policy.rules.iter().map(|rule| (&*rule.hosts, &*rule.ports)).collect();
    let own: [String; 2] = ["b.test".into(), "2001:db8::1".into()];
    let usual: [String; 2] = ["a.test".into(), "2001:db8::2".into()];
    assert_eq!(said, [(&usual[..], &WEB[..]), (&own[..], &[Ports::one(8081)][..])]);
    let ported = read(&format!("{group}[[rule]]\nallow = \"ours\"\nports = [443]"));
    assert_eq!(ported.policy.rules.len(), 1);
    let partly = format!(
        "[[rule]]\ndeny = \"a.test\"\n[[rule]]\ndeny = \"2001:db8::2\"\n{group}[[rule]]\nallow = \"ours\""
    );
    assert_eq!(read(&partly).policy.rules.len(), 4);
    assert_eq!(refused("[groups.ours]\nhosts = [\"a.test:x\"]").column, 10);
}

#[test]
fn the_front_matter_of_markdown_lists_domains() {
    let block = "---\ntitle: 'x: y'\ndomains:   # what it may reach\n- api.a.test\n  - \"*.b.test\"   # all\n\n  - 'db.a.test:5432'\n\
                 \x20 - x.b.test\nother: 1\n---\n# text\n- not.a.domain\n";
    let file = parse_markdown("agent.md", block).unwrap();
    let lines: Vec<(u32, &str, u16)> = file
        .policy
        .rules
        .iter()
        .map(|rule| (rule.origin.line, rule.hosts[0].as_str(), rule.ports[0].first))
        .collect();
    assert_eq!(lines, [(4, "api.a.test", 80), (5, "*.b.test", 80), (7, "db.a.test", 5432)]);
    let flow =
        parse_markdown("agent.md", "---\r\ndomains: [a.test, \"b.test\" , 'c.test:22']\r\n---\r\n").unwrap();
    let hosts: Vec<&str> = flow.policy.rules.iter().map(|rule| rule.hosts[0].as_str()).collect();
    assert_eq!(hosts, ["a.test", "b.test", "c.test"]);
    for (text, line, column) in [
        ("# no front matter", 1, 1),
        ("---\ndomains:\n  - a.test\n", 1, 1),
        ("---\ndomains: a.test\n---\n", 2, 9),
        ("---\ndomains:\n  - *.com\n---\n", 3, 5),
        ("---\ndomains: [a.test, b c]\n---\n", 2, 19),
        ("---\ndomains:\n  - \"a.test\n---\n", 3, 5),
        ("---\ndomains:\n  a.test\n---\n", 3, 3),
        ("---\ntitle: x\n---\n", 0, 0),
    ] {
        let bad = parse_markdown("agent.md", text).unwrap_err();
        assert_eq!((bad.line, bad.column), (line, column), "{bad}");
    }
}

#[test]
fn a_union_keeps_the_order_and_drops_what_never_matches() {
    let one = read("[[rule]]\ndeny = \"x.a.test\"\n[[rule]]\nallow = \"*.a.test\"").policy;
    let two = read("[[rule]]\nallow = [\"b.test\", \"y.a.test\"]\n[[rule]]\nallow = \"x.a.test\"").policy;
    let united = union(vec![one.clone(), two, one.clone()]);
    let hosts: Vec<String> = united.rules.iter().map(|rule| rule.hosts.join(" ")).collect();
    assert_eq!(hosts, ["x.a.test", "*.a.test", "b.test"]);
    assert_eq!(union(vec![one.clone()]), one);
    assert_eq!(union(Vec::new()), Policy::default());
}

#[test]
fn a_difference_names_what_came_and_went() {
    let old =
        read("[[rule]]\nallow = \"a.test\"\n[[rule]]\nallow = \"b.test\"\n[[rule]]\ndeny = \"*.c.test\"")
            .policy;
    let new = read("[[rule]]\nallow = \"a.test\"\n[[rule]]\nask = \"b.test\"\nports = [443, \"8000-8100\"]\n\n[[rule]]\ndeny = \"*.c.test\"").policy;
    assert_eq!(
        diff(&old, &new).to_string(),
        "- allow b.test on ports 80 and 443 (airlock.toml:3)\n+ ask b.test on ports 443 and 8000-8100 (airlock.toml:3)\n"
    );
    assert!(diff(&old, &unplaced(&old)).is_empty());
}

#[test]
fn a_policy_is_shown_as_a_file() {
    let policy = Policy {
        rules: vec![
            Rule {
                origin: Origin { from: "--allow".into(), line: 0 },
                ..allow(&["a.test", "intranet"], &WEB)
            },
            Rule {
                verdict: Verdict::Ask,
                origin: Origin { from: "airlock.toml".into(), line: 3 },
                ..allow(&["a.test"], &WEB)
            },
            Rule {
                tls: Tls::Opaque,
                private: vec!["10.0.0.0/8".into()],
                ..allow(&["db.test"], &[Ports::one(5432), Ports { first: 1, last: 9 }])
            },
        ],
        audit_only: true,
        ..Policy::default()
    };
    assert_eq!(
        show(&policy),
        "audit_only = true\n\n# --allow\n[[rule]]\nallow = [\"a.test\", \"intranet.\"]\n\n\
         # airlock.toml:3\n# can never match, since earlier rules match all of it:\n# [[rule]]\n# ask = \"a.test\"\n\n\
         [[rule]]\nallow = \"db.test\"\nports = [5432, \"1-9\"]\ntls = \"opaque\"\nprivate = [\"10.0.0.0/8\"]\n"
    );
}

#[test]
fn what_was_seen_makes_a_narrow_policy() {
    let seen: Vec<(Target, u16)> = [
        ("api.a.test", 443),
        ("db.a.test", 5432),
        ("b.test", 443),
        ("api.a.test", 443),
        ("www.a.test", 80),
        ("www.a.test", 443),
        ("192.0.2.7", 443),
        ("169.254.169.254", 80),
    ]
    .iter()
    .map(|(host, port)| (host.parse().unwrap(), *port))
    .collect();
    assert_eq!(
        narrow(&seen),
        "# 169.254.169.254 was tried; no rule can open it\n\n\
         [[rule]]\nallow = \"www.a.test\"\n\n\
         [[rule]]\nallow = [\"api.a.test\", \"b.test\", \"192.0.2.7\"]\nports = [443]\n\n\
         [[rule]]\nallow = \"db.a.test\"\nports = [5432]\n"
    );
    assert_eq!(narrow(&[]), "");
}

#[test]
fn what_was_seen_of_requests_makes_a_narrow_policy() {
    let seen = |host: &str, method: &str, path: &str| Seen {
        target: host.parse().unwrap(),
        port: 443,
        method: method.into(),
        path: path.into(),
    };
    let requests = [
        seen("a.test", "GET", "/v1/items/17"),
        seen("a.test", "GET", "/v1/items/18"),
        seen("a.test", "GET", "/v1/items/only/19"),
        seen("a.test", "POST", "/v1/items"),
        seen("a.test", "GET", "/glob*"),
        seen("b.test", "GET", "*"),
    ];
    let text =
        narrow_requests(&[("a.test".parse().unwrap(), 443), ("c.test".parse().unwrap(), 22)], &requests);
    assert_eq!(
        text,
        "[[rule]]\nallow = \"c.test\"\nports = [22]\n\n\
         [[rule]]\nallow = \"a.test\"\nports = [443]\nmethods = [\"GET\"]\n\
         paths = [\"/glob\\\\*\", \"/v1/items/*\", \"/v1/items/only/19\"]\n\n\
         [[rule]]\nallow = \"a.test\"\nports = [443]\nmethods = [\"POST\"]\npaths = [\"/v1/items\"]\n\n\
         [[rule]]\nallow = \"b.test\"\nports = [443]\nmethods = [\"GET\"]\npaths = [\"/**\"]\n"
    );
    let judge = Judge::compile(&read(&text).policy).unwrap();
    for one in requests.iter().filter(|one| one.path != "*") {
        let asked = format!("{} https://{}{}", one.method, one.target, one.path).parse().unwrap();
        assert_eq!(judge.judge_asked(&asked).verdict, Some(Verdict::Allow), "{one:?}");
    }
}

#[test]
fn an_answered_request_does_not_pass_what_is_denied_for_its_query() {
    let text = "[[rule]]\ndeny = \"a.test\"\nquery = { x = \"1\" }\n\n[[rule]]\nask = \"a.test\"\n";
    let request = Request { methods: vec!["GET".into()], paths: vec!["/".into()], ..Request::default() };
    let new = Rule { request, ..allow(&["a.test"], &[Ports::one(443)]) };
    let written = write_rule("airlock.toml", text, &new).unwrap();
    let judge = Judge::compile(&read(&written).policy).unwrap();
    let verdict = |asked: &str| judge.judge_asked(&asked.parse().unwrap()).verdict.unwrap();
    assert_eq!(verdict("GET https://a.test/"), Verdict::Allow);
    assert_eq!(verdict("GET https://a.test/?x=1"), Verdict::Deny);
    assert_eq!(write_rule("airlock.toml", &written, &new).unwrap(), written);
}

#[test]
fn a_rule_is_written_where_it_wins_and_the_rest_is_kept() {
    let write =
        |text: &str, rule: &Rule| write_rule("airlock.toml", text, rule).map_err(|bad| bad.to_string());
    let new = allow(&["b.a.test"], &[Ports::one(443)]);
    let rule = "[[rule]]\nallow = \"b.a.test\"\nports = [443]\n";
    assert_eq!(write("", &new), Ok(rule.to_string()));
    assert_eq!(write("image = \"host\"  # x", &new), Ok(format!("image = \"host\"  # x\n\n{rule}")));
    let other = "[[rule]]\ndeny = \"x.test\"\n\n[secrets.A]\nfrom = \"env:A\"\n";
    assert_eq!(write(other, &new), Ok(format!("{other}\n{rule}")));
    let asked = "image = 'host'\n\n[[rule]] # first\ndeny = \"x.test\"\n\n# people\n# decide\n[[rule]]\nask = \"*.a.test\" # so\n";
    assert_eq!(
        write(asked, &new),
        Ok(format!(
            "image = 'host'\n\n[[rule]] # first\ndeny = \"x.test\"\n\n{rule}\n# people\n# decide\n[[rule]]\nask = \"*.a.test\" # so\n"
        ))
    );
}

#[test]
fn a_rule_about_the_very_same_is_changed_in_its_place() {
    let text = "[[rule]]\nask   = \"b.a.test\" # hm\nports = [443]\nexamples = [\"b.a.test:443\"]\n";
    let new = allow(&["b.a.test"], &[Ports::one(443)]);
    let written = write_rule("airlock.toml", text, &new).unwrap();
    assert_eq!(written, text.replace("ask  ", "allow  "));
    assert_eq!(write_rule("airlock.toml", &written, &new).unwrap(), written);
}

#[test]
fn a_written_rule_inherits_what_the_asking_rule_says_about_tls_and_private_ranges() {
    let text =
        "[[rule]]\nask = \"*.corp.test\"\nports = [5432]\ntls = \"opaque\"\nprivate = [\"10.0.0.0/8\"]\n";
    let written = write_rule("airlock.toml", text, &allow(&["db.corp.test"], &[Ports::one(5432)])).unwrap();
    let head = "[[rule]]\nallow = \"db.corp.test\"\nports = [5432]\ntls = \"opaque\"\nprivate = [\"10.0.0.0/8\"]\n\n";
    assert_eq!(written, format!("{head}{text}"));
}

#[test]
fn rules_in_one_list_take_a_rule_too() {
    let new = allow(&["b.a.test"], &[Ports::one(443)]);
    let text = "rule = [{ ask = \"*.a.test\" }, { deny = \"*\" }] # all\n";
    let wanted =
        "rule = [{ allow = \"b.a.test\", ports = [443] }, { ask = \"*.a.test\" }, { deny = \"*\" }] # all\n";
    assert_eq!(write_rule("airlock.toml", text, &new).unwrap(), wanted);
    let wanted = "rule = [{ deny = \"x.test\" }, { allow = \"b.a.test\", ports = [443] }]\n";
    assert_eq!(write_rule("airlock.toml", "rule = [{ deny = \"x.test\" }]\n", &new).unwrap(), wanted);
}

#[test]
fn a_rule_that_an_example_forbids_is_not_written() {
    let text = "[[rule]]\nask = \"*.a.test\"\nexamples = [\"b.a.test:443\"]\n";
    let bad = write_rule("airlock.toml", text, &allow(&["b.a.test"], &[Ports::one(443)])).unwrap_err();
    assert!(bad.why.contains("the example `b.a.test:443` is not decided by this rule"), "{bad}");
}

#[test]
fn carets_stand_below_what_is_meant_also_far_to_the_right() {
    let text = format!("rule = [{{ allow = \"a.test\" }},{}{{ allow = \"*.com\" }}]", " ".repeat(300));
    let shown = refused(&text).to_string();
    let lines: Vec<&str> = shown.lines().collect();
    let caret = lines[2].find('^').unwrap();
    assert_eq!(lines[1].get(caret..caret + 7), Some("\"*.com\""));
    assert!(lines.iter().all(|line| line.len() < 200), "{shown}");
    let hidden = refused("[[rule]]\nallow = '\u{202e}\u{7}x'\n");
    assert!(!hidden.to_string().contains(['\u{7}', '\u{202e}']));
}

#[test]
fn the_examples_of_the_guide_are_policies() {
    let guide = include_str!("../../../../docs/policy.md");
    let blocks = |kind: &str| {
        let fence = format!("```{kind}\n");
        guide.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect::<Vec<_>>()
    };
    let (toml, markdown) = (blocks("toml"), blocks("markdown"));
    assert!(toml.len() >= 4 && markdown.len() == 1);
    toml.iter()
        .for_each(|text| assert!(!read(text).policy.rules.is_empty() || text.contains("[groups."), "{text}"));
    assert_eq!(parse_markdown("policy.md", markdown[0]).unwrap().policy.rules.len(), 3);
    let listed = crate::groups::list(&Discovered::default());
    listed.iter().for_each(|group| assert!(guide.contains(&format!("`{}`", group.name)), "{}", group.name));
}

fn hosts() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab](\\.[ab]){0,2}\\.test",
        "\\*\\.[ab]\\.test",
        Just("*".to_string()),
        Just("10.0.0.0/8".to_string()),
        Just("192.0.2.1".to_string()),
        Just("intranet".to_string())
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    let runs = prop_oneof![
        Just(WEB.to_vec()),
        Just(vec![Ports::ALL]),
        (1_u16..9).prop_map(|port| vec![Ports::one(port)])
    ];
    let verdict = prop_oneof![Just(Verdict::Allow), Just(Verdict::Deny), Just(Verdict::Ask)];
    let tls = prop_oneof![Just(Tls::Checked), Just(Tls::Opaque), Just(Tls::Opened)];
    let hosts = prop::collection::btree_set(hosts(), 1..4);
    (verdict, hosts, runs, tls, requests(), bounds()).prop_map(
        |(verdict, hosts, ports, tls, request, bounds)| {
            let opens = verdict != Verdict::Deny;
            let is_blind = tls == Tls::Opaque && !request.is_any();
            Rule {
                tls: if opens && !is_blind { tls } else { Tls::Checked },
                private: if opens { vec!["10.20.0.0/16".to_string()] } else { Vec::new() },
                bounds: if opens { bounds } else { Bounds::default() },
                pins: if opens && !request.is_any() { vec![PIN.to_string()] } else { Vec::new() },
                request,
                ..Rule::new(verdict, hosts.into_iter().collect(), ports, Origin::default())
            }
        },
    )
}

fn requests() -> impl Strategy<Value = Request> {
    let few = |words: &'static [&'static str]| prop::sample::subsequence(words, 0..3);
    let owned = |words: Vec<&str>| words.into_iter().map(str::to_string).collect::<Vec<_>>();
    let pairs =
        |words: Vec<&str>| words.into_iter().map(|name| (name.to_string(), "\\*\"*".to_string())).collect();
    let plain = (
        few(&["GET", "POST", "PUT"]),
        few(&["/**", "/a/*", "/a\\*b", "/ä\"/**"]),
        few(&["x", "y z"]),
        few(&["accept", "x-y"]),
        any::<Option<bool>>(),
    );
    prop_oneof![
        4 => Just(Request::default()),
        4 => plain.prop_map(move |(methods, paths, query, headers, websocket)| Request {
            methods: owned(methods),
            paths: owned(paths),
            query: pairs(query),
            headers: pairs(headers),
            websocket,
            ..Request::default()
        }),
        1 => (any::<bool>(), few(&["acme/*", "**"])).prop_map(move |(push, repositories)| Request {
            git: Some(if push { Git::Push } else { Git::Fetch }),
            repositories: owned(repositories),
            ..Request::default()
        }),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let rate = (1_u32..100, prop_oneof![Just(1_u32), Just(60), Just(7), Just(7200)]);
    let rate = rate.prop_map(|(count, seconds)| Rate { count, seconds });
    let size = prop_oneof![1_u64..5000, Just(1 << 20), Just(u64::MAX)];
    (prop::option::of(rate), prop::option::of(size.clone()), prop::option::of(size))
        .prop_map(|(rate, bytes, bandwidth)| Bounds { rate, bytes, bandwidth })
}

fn policies() -> impl Strategy<Value = Policy> {
    let rules = prop::collection::vec(rules(), 0..8);
    (rules, any::<bool>(), prop::option::of(1_u64..9000)).prop_map(|(rules, audit_only, bandwidth)| {
        union(vec![Policy { rules, audit_only, bandwidth, ..Policy::default() }])
    })
}

/// Text that is nearly a policy file.
fn nearly() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "[[rule]]",
        "[groups.a]",
        "allow",
        "deny",
        "ask",
        "ports",
        "hosts",
        "private",
        "examples",
        "tls",
        "methods",
        "paths",
        "query",
        "headers",
        "git",
        "rate",
        "\"/**\"",
        "=",
        "\"",
        "'",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "*",
        "a.test",
        "*.a.test",
        "\"a.test\"",
        "443",
        "\"1-9\"",
        "10.0.0.0/8",
        "#",
        "rule",
        "---",
        "domains:",
        "- ",
        "\\u00e9",
        "é",
        "\u{0}",
    ]);
    prop::collection::vec(words, 0..40).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![".{0,200}", "(?s).{0,200}", nearly()]) {
        for result in [parse_toml("f", &text), parse_markdown("f", &text), parse_markdown("f", &format!("---\ndomains:\n{text}\n---"))] {
            match result {
                Ok(file) => prop_assert!(Judge::compile(&file.policy).is_ok()),
                Err(bad) => prop_assert!(bad.to_string().lines().all(|line| line.chars().count() < 400)),
            }
        }
        let _ = rule_from_flag(Verdict::Allow, &text, "--allow").map_err(|bad| bad.to_string());
    }

    #[test]
    fn a_shown_policy_reads_back_as_the_same(policy in policies()) {
        prop_assert_eq!(unplaced(&read(&show(&policy)).policy), policy);
    }

    #[test]
    fn one_byte_more_or_less_never_makes_us_fail(policy in policies(), at in any::<prop::sample::Index>(), byte in any::<char>()) {
        let mut text: Vec<char> = show(&policy).chars().collect();
        if !text.is_empty() {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let text: String = text.into_iter().collect();
        let _ = parse_toml("f", &text).map_err(|bad| bad.to_string());
    }

    #[test]
    fn a_difference_turns_one_policy_into_the_other(old in policies(), new in policies()) {
        let difference = diff(&old, &new);
        let mut left = old.rules.clone();
        let mut added = Vec::new();
        for change in &difference.changes {
            match change {
                Change::Removed(rule) => {
                    let at = left.iter().position(|own| own == rule).unwrap();
                    left.remove(at);
                }
                Change::Added(rule) => added.push(rule.clone()),
            }
        }
        // What stayed is in the new policy in the same order, and the rest of it was added.
        let mut rest = new.rules.iter();
        prop_assert!(left.iter().all(|rule| rest.any(|own| own == rule)));
        prop_assert_eq!(left.len() + added.len(), new.rules.len());
        prop_assert!(added.iter().all(|rule| new.rules.contains(rule)));
        prop_assert!(diff(&old, &old).is_empty());
    }

    #[test]
    fn a_union_is_normal(one in policies(), two in policies()) {
        let united = union(vec![one.clone(), two]);
        prop_assert_eq!(union(vec![united.clone()]), united.clone());
        prop_assert_eq!(union(vec![united.clone(), one.clone()]).rules, united.rules);
    }

    #[test]
    fn a_written_rule_decides_and_nothing_else_changes(policy in policies(), rule in rules()) {
        let text = show(&policy);
        if let Ok(written) = write_rule("f", &text, &rule) {
            let file = read(&written);
            let grown = diff(&policy, &file.policy);
            prop_assert!(grown.changes.len() <= 2);
            let twice = write_rule("f", &written, &rule).unwrap();
            prop_assert_eq!(twice, written);
        }
    }

    #[test]
    fn a_narrow_policy_allows_what_was_seen_and_nothing_else(
        seen in prop::collection::vec(("[ab]\\.[ab]\\.test", 1_u16..5), 0..12),
        host in "[ab]\\.[ab]\\.test", port in 1_u16..6,
    ) {
        let seen: Vec<(Target, u16)> = seen.into_iter().map(|(host, port)| (host.parse().unwrap(), port)).collect();
        let judge = Judge::compile(&read(&narrow(&seen)).policy).unwrap();
        let target: Target = host.parse().unwrap();
        let allowed = judge.connect(&target, port).verdict == Some(Verdict::Allow);
        prop_assert_eq!(allowed, seen.contains(&(target, port)));
    }
}

/// Large files, each made to be slow in another way. Were any step quadratic, this would take minutes.
#[test]
fn large_and_nasty_files_are_read_or_refused_in_a_moment() {
    let many = |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    let rule = |hosts: String, ports: String| format!("[[rule]]\nallow = [{hosts}]\nports = [{ports}]\n");
    for text in [
        many(2_000, &|i| format!("[[rule]]\nallow = \"a{i}.test.example\"\n")),
        many(2_000, &|i| format!("[[rule]]\nallow = \"*\"\nports = [{}]\n", 2 * i + 1)),
        many(2_000, &|i| format!("[[rule]]\ndeny = \"10.{}.{}.0/24\"\n", i / 256, i % 256)),
        rule(many(10_000, &|i| format!("\"a{i}.test\",")), "443".into()),
        rule("\"a.test\"".into(), many(8_000, &|i| format!("{},", 2 * i + 1))),
        format!("a = {}", "[".repeat(200_000)),
        format!("a = {}", "{a=".repeat(60_000)),
        format!("[{}]", "a.".repeat(100_000)),
        format!("[[rule]]\nallow = \"{}\"", "a.".repeat(100_000)),
        "[[rule]]\n".repeat(100_000),
        "\n".repeat(200_000),
        "x".repeat(2_000_000),
    ] {
        let start = std::time::Instant::now();
        let _ = parse_toml("f", &text).map_or_else(|bad| bad.to_string(), |file| show(&file.policy));
        let _ = parse_markdown("f", &format!("---\ndomains:\n{text}"));
        assert!(start.elapsed().as_secs() < 10, "{}", &text[..60]);
    }
}
