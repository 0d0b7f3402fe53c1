//! What is dialled and what is not, whatever a name server says.

use super::server::{addresses, parsed};
use super::*;

#[tokio::test]
async fn a_name_that_resolves_to_a_place_of_our_own_is_refused() {
    let cases = [
        ("loopback", "127.0.0.1", "loopback"),
        ("loopback-far", "127.1.2.3", "loopback"),
        ("loopback-six", "::1", "loopback"),
        ("zero", "0.0.0.0", "unspecified"),
        ("private", "10.1.2.3", "private"),
        ("private-b", "192.168.1.1", "private"),
        ("carrier", "100.64.0.1", "shared"),
        ("metadata", "169.254.169.254", "metadata"),
        ("unique-local", "fd00::1", "unique-local"),
        ("link-local", "fe80::1", "link-local"),
        ("multicast", "224.0.0.1", "multicast"),
        ("sandbox", "198.18.0.1", "sandbox"),
        ("mapped", "::ffff:127.0.0.1", "loopback"),
        ("nat64", "64:ff9b::7f00:1", "loopback"),
        ("six-to-four", "2002:7f00:1::", "loopback"),
    ];
    let names: Vec<_> = cases.iter().map(|(name, address, _)| (*name, addresses(&[address]))).collect();
    let server = NameServer::start(&names).await;
    let egress = egress(&[server.address], &[]);
    for (name, address, _word) in cases {
        let error = reach(&egress, name, 80).await.unwrap_err();

        assert!(
            matches!(&error, DialError::Address { addresses, .. } if addresses.len() == 1),
            "{name}: {error}"
        );
        assert!(error.is_denial() && error.word() == "address");
        assert!(error.to_string().starts_with(&format!("{name} resolves to {address} (")), "{error}");
    }
}

#[tokio::test]
async fn an_address_of_this_host_is_refused_even_where_its_range_is_opened() {
    let Some(own) = own_address() else {
        return skipped("this host has no address but loopback");
    };
    let server = NameServer::start(&[("me.example", Says::Addresses(vec![own], 60))]).await;
    let egress = egress(&[server.address], &[]);
    let opened = ranges(&["0.0.0.0/0"]);

    let wish = Wish { target: &target("me.example"), port: 80, opened: &opened };
    let error = egress.reach(&wish).await.unwrap_err();

    assert_eq!(error.to_string(), format!("me.example resolves to {own} (this host), which no rule opens"));
}

#[tokio::test]
async fn a_rule_opens_its_private_ranges_and_nothing_that_is_never_dialled() {
    let egress = egress(&[], &[]);
    let opened = ranges(&["10.20.0.0/16", "169.254.0.0/16", "127.0.0.0/8", "fd00:1::/64"]);
    let fine = |text: &str| egress.check(text.parse().unwrap(), &opened).unwrap().is_none();

    assert!(fine("10.20.3.4") && fine("fd00:1::9"));
    assert!(!fine("10.21.3.4") && !fine("fd00:2::9"));
    assert!(!fine("169.254.169.254") && !fine("127.0.0.1"));
}

#[tokio::test]
async fn refused_addresses_are_dropped_and_the_others_are_dialled() {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server =
        NameServer::start(&[("mixed.example", addresses(&["10.0.0.1", "127.0.0.2", "127.0.0.1"]))]).await;
    let egress = egress(&[server.address], &["127.0.0.2"]);

    let dialled = reach(&egress, "mixed.example", port).await.unwrap();

    assert_eq!(dialled.address, SocketAddr::new([127, 0, 0, 2].into(), port));
    assert_eq!(dialled.stream.peer_addr().unwrap(), dialled.address);
}

#[tokio::test]
async fn a_name_that_points_elsewhere_after_the_check_is_dialled_where_it_was_checked() {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let turns = Says::Turns(vec![parsed(&["127.0.0.2"]), parsed(&["127.0.0.1"])]);
    let server = NameServer::start(&[("rebinding.example", turns)]).await;
    let egress = egress(&[server.address], &["127.0.0.2"]);

    let first = reach(&egress, "rebinding.example", port).await.unwrap();
    let asked = server.questions(" A");
    egress.lookup.forget();
    let second = reach(&egress, "rebinding.example", port).await.unwrap_err();

    assert_eq!(
        (first.address.ip(), asked),
        ([127, 0, 0, 2].into(), 1),
        "one look-up, and its answer is dialled"
    );
    assert_eq!(second.to_string(), "rebinding.example resolves to 127.0.0.1 (loopback), which no rule opens");
}

#[tokio::test]
async fn an_alias_of_a_private_name_is_refused_like_the_name() {
    let names =
        [("cdn.example", Says::Alias("internal.example.")), ("internal.example", addresses(&["10.0.0.7"]))];
    let server = NameServer::start(&names).await;
    let error = reach(&egress(&[server.address], &[]), "cdn.example", 443).await.unwrap_err();
    assert_eq!(error.to_string(), "cdn.example resolves to 10.0.0.7 (private), which no rule opens");
}

#[tokio::test]
async fn a_literal_of_a_special_range_needs_a_rule_that_opens_it() {
    let egress = egress(&[], &[]);
    for text in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "198.18.1.1"] {
        let error = reach(&egress, text, 80).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("{text} is not dialled (")), "{error}");
    }
}

#[tokio::test]
async fn the_hosts_own_loopback_is_reached_by_its_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();

    let open = reach(&egress(&[], &[]), "host.airlock", port).await.unwrap();

    assert_eq!(open.address, listener.local_addr().unwrap());
}

/// The address this host would send from; nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

fn skipped(why: &str) {
    assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}
