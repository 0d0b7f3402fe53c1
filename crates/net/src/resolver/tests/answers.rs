use super::*;

#[tokio::test]
async fn an_allowed_name_is_let_through_before_it_is_answered_and_recorded_once() {
    let mut world = world("[[rule]]\nallow = 'api.example.com'\nports = [443]");

    let first = world.address("API.example.com.").await.unwrap();
    let again = world.address("api.example.com.").await.unwrap();

    assert_eq!((first, again), ("198.18.1.1".parse().unwrap(), "198.18.1.1".parse().unwrap()));
    let opened = world.opened.calls.borrow().clone();
    assert_eq!(
        opened[0],
        ("api.example.com".to_owned(), "198.18.1.1".parse().unwrap(), vec![Ports::one(443)])
    );
    assert_eq!(world.recorded(), ["api.example.com A Allow "]);
}

#[tokio::test]
async fn a_name_that_a_person_is_asked_about_is_known_without_asking() {
    let mut world = world("[[rule]]\nask = '*.example.com'");
    assert!(world.address("docs.example.com.").await.is_ok());
    assert_eq!(world.recorded(), ["docs.example.com A Allow "]);
    assert!(world.gate.pending().is_empty());
}

#[tokio::test]
async fn a_question_for_another_type_opens_nothing() {
    let world = world("[[rule]]\nallow = 'api.example.com'");
    for kind in [RecordType::AAAA, RecordType::HTTPS, RecordType::TXT, RecordType::MX, RecordType::ANY] {
        let reply = world.ask("api.example.com.", kind).await;
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0), "{kind}");
    }
    assert!(world.opened.calls.borrow().is_empty());
}

#[tokio::test]
async fn a_denied_name_says_why_and_is_recorded_once_however_often_it_is_asked() {
    let mut world = world("[[rule]]\nallow = 'api.example.com'");

    let reply = world.ask("evil.example.", RecordType::TXT).await;
    for _ in 0..100 {
        assert_eq!(world.address("evil.example.").await, Err(ResponseCode::NXDomain));
    }

    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(
        text_of(&reply),
        "looking up evil.example is not allowed: no rule allows it; hint: airlock allow web evil.example"
    );
    assert_eq!(world.recorded(), ["evil.example TXT Deny no_rule"]);
    world.gate.close().unwrap();
    assert_eq!(world.recorded(), ["evil.example A Deny no_rule x100"]);
    assert!(world.opened.calls.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_denied_name_is_recorded_again_when_some_seconds_have_passed() {
    let mut world = world("");
    _ = world.address("evil.example.").await;
    tokio::time::advance(Duration::from_secs(11)).await;
    _ = world.address("evil.example.").await;
    assert_eq!(world.recorded().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_names_does_not_flood_the_ledger() {
    let mut world = world("");
    let mut lines = 0;
    for number in 0..1000 {
        let name = format!("secret{number}.evil.example.");
        let noise = format!("_x{number}.evil.example.");
        assert_eq!(world.address(&name).await, Err(ResponseCode::NXDomain));
        assert_eq!(world.address(&noise).await, Err(ResponseCode::NXDomain));
        lines += world.recorded().len();
    }
    assert_eq!(lines, 1000, "of 2000")
}

#[tokio::test]
async fn a_wildcard_answers_for_a_bounded_number_of_names() {
    let policy =
        rules("[[rule]]\nallow = '*.example.com'\n[[rule]]\nallow = 'exact.example.com'\nports = [22]");
    let mut world = world_with(policy, Bounds { names: 10, labels: 2 });
    assert!(world.address("a.example.com.").await.is_ok() && world.address("b.example.com.").await.is_ok());
    world.recorded();

    let reply = world.ask("c.example.com.", RecordType::A).await;

    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(
        text_of(&reply),
        "2 names under this wildcard have already been asked for, the most there may be"
    );
    assert_eq!(world.recorded(), ["c.example.com A Deny budget"]);
    assert!(world.address("a.example.com.").await.is_ok());
    assert!(world.address("exact.example.com.").await.is_ok());
}

#[tokio::test]
async fn a_change_of_rules_counts_at_once() {
    let world = world("[[rule]]\nallow = 'a.example.com'");
    assert!(world.address("a.example.com.").await.is_ok());
    assert_eq!(world.address("b.example.com.").await, Err(ResponseCode::NXDomain));

    world.gate.set_policy(rules("[[rule]]\nallow = 'b.example.com'"), "set").unwrap();

    assert_eq!(world.address("a.example.com.").await, Err(ResponseCode::NXDomain));
    assert_eq!(world.address("b.example.com.").await, Ok("198.18.1.2".parse().unwrap()));
}

#[tokio::test]
async fn where_nothing_is_denied_every_name_is_answered_and_recorded() {
    let mut policy = rules("");
    policy.audit_only = true;
    let mut world = world_with(policy, Bounds::default());

    let first = world.address("new.example.").await;
    let again = world.address("new.example.").await;

    assert_eq!((first, again), (Ok("198.18.1.1".parse().unwrap()), Ok("198.18.1.1".parse().unwrap())));
    assert_eq!(world.opened.calls.borrow()[0].2, [Ports::ALL]);
    assert_eq!(world.recorded(), ["new.example A Allow no_rule"]);
}

#[tokio::test]
async fn the_sandbox_knows_itself() {
    let mut world = world("");
    assert_eq!(world.address("localhost.").await, Ok("127.0.0.1".parse().unwrap()));
    assert_eq!(world.address("db.LOCALHOST.").await, Ok("127.0.0.1".parse().unwrap()));
    assert_eq!(world.address("web.").await, Ok("198.18.0.1".parse().unwrap()));
    let six = world.ask("web.", RecordType::AAAA).await;
    assert_eq!(six.answers[0].data, RData::AAAA("fd61::1".parse::<Ipv6Addr>().unwrap().into()));
    assert!(world.recorded().is_empty());
}

#[tokio::test]
async fn its_own_addresses_have_names_and_no_others_do() {
    let mut world = world("[[rule]]\nallow = '*'\nports = [443]");
    world.address("api.example.com.").await.unwrap();
    let pointer = async |arpa: &str| {
        let reply = world.ask(arpa, RecordType::PTR).await;
        reply.answers.first().map(|record| record.data.to_string()).ok_or(reply.metadata.response_code)
    };

    assert_eq!(pointer("1.1.18.198.in-addr.arpa.").await.unwrap(), "api.example.com.");
    assert_eq!(pointer("1.0.18.198.in-addr.arpa.").await.unwrap(), "web.");
    assert_eq!(pointer("1.0.0.127.in-addr.arpa.").await.unwrap(), "localhost.");
    assert_eq!(pointer("2.1.18.198.in-addr.arpa.").await, Err(ResponseCode::NXDomain));
    assert_eq!(pointer("8.8.8.8.in-addr.arpa.").await, Err(ResponseCode::NXDomain));
    assert_eq!(world.recorded().last().unwrap(), "8.8.8.8.in-addr.arpa PTR Deny no_rule");
}

#[tokio::test]
async fn a_name_of_one_label_is_known_only_where_a_rule_names_it() {
    let world = world("[[rule]]\nallow = 'buildhost.'\n[[rule]]\nallow = '*'");
    assert!(world.address("buildhost.").await.is_ok());
    assert_eq!(world.address("wpad.").await, Err(ResponseCode::NXDomain));
}

#[tokio::test]
async fn what_is_no_host_name_is_denied_even_if_everything_is_allowed() {
    let mut world = world("[[rule]]\nallow = '*'");
    let mut asked = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 13];
    asked.extend_from_slice(b"a.example.com\x04evil\x00\x00\x01\x00\x01");

    assert_eq!(world.ask_bytes(&asked).await.metadata.response_code, ResponseCode::NXDomain);
    for name in ["_ldap._tcp.example.com.", "-x.example.com.", "0x7f.1.", "2130706433.", "xn--a.example."] {
        assert_eq!(world.address(name).await, Err(ResponseCode::NXDomain), "{name}");
    }

    let recorded = world.recorded();
    assert_eq!(recorded[0], "a\\.example\\.com.evil. A Deny no_rule");
    assert_eq!(recorded.len(), 6);
}

#[tokio::test]
async fn an_address_the_kernel_does_not_let_through_is_not_told() {
    let world = world("[[rule]]\nallow = 'api.example.com'");
    world.opened.is_broken.set(true);
    assert_eq!(world.address("api.example.com.").await, Err(ResponseCode::ServFail));
    world.opened.is_broken.set(false);
    assert!(world.address("api.example.com.").await.is_ok());
}
