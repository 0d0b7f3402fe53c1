//! Asking name servers, good ones and bad ones.

use super::server::{addresses, parsed};
use super::*;
use hickory_proto::op::ResponseCode;
use std::rc::Rc;

async fn fault(says: Says) -> Fault {
    let server = NameServer::start(&[("bad.example", says)]).await;
    let egress = egress(&[server.address], &[]);
    match reach(&egress, "bad.example", 80).await.unwrap_err() {
        DialError::Unresolved { source, .. } => source,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_name_server_that_fails_is_told_apart_from_a_name_that_is_not_there() {
    assert!(matches!(fault(Says::Code(ResponseCode::ServFail)).await, Fault::Failed(_)));
    assert!(matches!(fault(Says::Code(ResponseCode::Refused)).await, Fault::Failed(_)));
    assert_eq!(fault(Says::Code(ResponseCode::NXDomain)).await, Fault::NoSuchName);
    assert_eq!(fault(addresses(&[])).await, Fault::NoAddress);
}

#[tokio::test(start_paused = true)]
async fn a_name_server_that_is_silent_is_not_waited_for_long() {
    let began = tokio::time::Instant::now();
    assert_eq!(fault(Says::Silence).await, Fault::Silent);
    assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_error_says_what_went_wrong() {
    let server = NameServer::start(&[]).await;
    let error = reach(&egress(&[server.address], &[]), "gone.example", 80).await.unwrap_err();
    assert_eq!(told(&error), "gone.example cannot be resolved: there is no such name");
    assert_eq!((error.word(), error.is_denial()), ("unresolved", false));
}

#[tokio::test]
async fn an_answer_too_long_for_udp_is_fetched_over_tcp() {
    let server =
        NameServer::start(&[("big.example", Says::Truncated(parsed(&["192.0.2.1", "192.0.2.2"])))]).await;
    let egress = egress(&[server.address], &[]);
    let mut found = egress.lookup.addresses(&"big.example".parse().unwrap()).await.unwrap().to_vec();
    found.sort();
    assert_eq!(found, parsed(&["192.0.2.1", "192.0.2.2"]));
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_is_dead_or_fails() {
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let broken = NameServer::start(&[("a.example", Says::Code(ResponseCode::ServFail))]).await;
    let good = NameServer::start(&[("a.example", addresses(&["192.0.2.1"]))]).await;
    let egress = egress(&[dead, broken.address, good.address], &[]);
    let found = egress.lookup.addresses(&"a.example".parse().unwrap()).await.unwrap();
    assert_eq!(found.to_vec(), parsed(&["192.0.2.1"]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_silent_costs_its_time_once() {
    let silent = NameServer::start(&[("a.example", Says::Silence), ("b.example", Says::Silence)]).await;
    let good = [("a.example", addresses(&["192.0.2.1"])), ("b.example", addresses(&["192.0.2.2"]))];
    let good = NameServer::start(&good).await;
    let egress = egress(&[silent.address, good.address], &[]);

    egress.lookup.addresses(&"a.example".parse().unwrap()).await.unwrap();
    let asked = silent.questions("");
    egress.lookup.addresses(&"b.example".parse().unwrap()).await.unwrap();

    assert!(asked > 0);
    assert_eq!(silent.questions(""), asked, "the second name does not wait for it");
}

#[tokio::test]
async fn the_next_server_is_not_asked_about_a_name_that_the_first_does_not_know() {
    let first = NameServer::start(&[]).await;
    let second = NameServer::start(&[("a.example", addresses(&["192.0.2.1"]))]).await;
    let egress = egress(&[first.address, second.address], &[]);
    assert_eq!(egress.lookup.addresses(&"a.example".parse().unwrap()).await, Err(Fault::NoSuchName));
    assert_eq!(*second.asked.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn names_are_absolute() {
    let server = NameServer::start(&[]).await;
    let egress = egress(&[server.address], &[]);
    _ = egress.lookup.addresses(&"intranet".parse().unwrap()).await;
    let mut asked = server.asked.lock().unwrap().clone();
    asked.sort();
    assert_eq!(asked, ["udp intranet. A", "udp intranet. AAAA"]);
}

#[tokio::test]
async fn many_who_ask_at_once_are_one_question_and_then_none() {
    let server = NameServer::start(&[("a.example", addresses(&["192.0.2.1", "2001:db8::1"]))]).await;
    let egress = egress(&[server.address], &[]);
    let name: HostName = "a.example".parse().unwrap();

    let (one, two, three) = tokio::join!(
        egress.lookup.addresses(&name),
        egress.lookup.addresses(&name),
        egress.lookup.addresses(&name)
    );
    let later = egress.lookup.addresses(&name).await.unwrap();

    assert_eq!(one.as_ref().unwrap().to_vec(), parsed(&["2001:db8::1", "192.0.2.1"]));
    assert!(
        [&two.unwrap(), &three.unwrap(), &later].iter().all(|other| Rc::ptr_eq(one.as_ref().unwrap(), other))
    );
    assert_eq!((server.questions(" A"), server.questions(" AAAA")), (1, 1));
    assert!(egress.lookup.is_idle());
}

#[tokio::test]
async fn a_question_nobody_waits_for_any_more_is_forgotten() {
    let server = NameServer::start(&[("slow.example", Says::Silence)]).await;
    let egress = egress(&[server.address], &[]);
    let name: HostName = "slow.example".parse().unwrap();
    let waited = timeout(Duration::from_millis(20), egress.lookup.addresses(&name)).await;
    assert!(waited.is_err() && egress.lookup.is_idle());
}

#[tokio::test]
async fn the_hosts_file_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "192.0.2.8 a.example\n").unwrap();
    let server = NameServer::start(&[("a.example", addresses(&["192.0.2.1"]))]).await;
    let lookup =
        Lookup::new(Source { servers: vec![server.address], resolv_conf: "/nonexistent".into(), hosts });
    assert_eq!(
        lookup.addresses(&"a.example".parse().unwrap()).await.unwrap().to_vec(),
        parsed(&["192.0.2.8"])
    );
    assert_eq!(server.questions(""), 0);
}

#[tokio::test]
async fn a_changed_resolv_conf_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let resolv_conf = folder.path().join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 192.0.2.1\n").unwrap();
    let lookup = Lookup::new(Source {
        servers: vec![],
        resolv_conf: resolv_conf.clone(),
        hosts: "/nonexistent".into(),
    });

    let first = lookup.servers();
    let same = lookup.servers();
    std::fs::write(&resolv_conf, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n").unwrap();
    let other = lookup.servers();

    assert!(Rc::ptr_eq(&first, &same));
    assert_eq!((first.len(), other.len()), (1, 2));
}

#[tokio::test]
async fn what_is_kept_is_bounded() {
    let lookup = egress(&[], &[]).lookup;
    for number in 0..3000 {
        lookup.remember(&format!("n{number}.example").parse().unwrap(), parsed(&["192.0.2.1"]));
    }
    assert!(lookup.len() <= 1024, "{}", lookup.len());
}
