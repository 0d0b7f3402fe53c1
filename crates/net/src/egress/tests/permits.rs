//! What a permit opens, from a person's rules to the connection.

use super::*;
use crate::tests::setup;
use airlock_gate::{Crossing, Gate, Setup, policy};

fn gate(rules: &str) -> (Gate, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy::parse_toml("airlock.toml", rules).unwrap().policy;
    let setup = Setup { ask_timeout: Duration::from_secs(1), ..setup(folder.path(), policy) };
    (Gate::new(setup).unwrap(), folder)
}

/// Whether these rules let a connection to `host` lead to `address`. Nothing is dialled.
async fn leads(rules: &str, host: &str, address: &str) -> bool {
    let (gate, _folder) = gate(rules);
    let permit = gate.ask(Crossing::Connect { target: target(host), port: 443 }).await.unwrap();
    let wish = Wish { target: permit.target(), port: permit.port(), opened: permit.private() };
    egress(&[], &[]).checked(&wish, &[address.parse().unwrap()]).is_ok()
}

#[tokio::test]
async fn a_rule_that_names_private_ranges_lets_its_names_lead_there() {
    let rules = "[[rule]]\nallow = '*.corp.example'\nprivate = ['10.20.0.0/16']";
    assert!(leads(rules, "git.corp.example", "10.20.3.4").await);
    assert!(!leads(rules, "git.corp.example", "10.21.3.4").await);
}

#[tokio::test]
async fn a_literal_that_a_rule_names_may_be_private_and_one_that_a_wide_range_holds_may_not() {
    assert!(leads("[[rule]]\nallow = '10.20.3.4'", "10.20.3.4", "10.20.3.4").await);
    assert!(leads("[[rule]]\nallow = '10.20.0.0/16'", "10.20.3.4", "10.20.3.4").await);
    assert!(!leads("[[rule]]\nallow = '0.0.0.0/1'", "10.20.3.4", "10.20.3.4").await);
}

#[tokio::test]
async fn the_host_needs_a_rule_by_name_and_port_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let egress = egress(&[], &[]);
    let rules = format!("[[rule]]\nallow = 'host.airlock'\nports = [{port}]");

    let (named, _named) = gate(&rules);
    let permit = named.ask(Crossing::Connect { target: target("host.airlock"), port }).await.unwrap();
    let (gate, _folder) = gate("[[rule]]\nallow = '*'\nports = ['1-65535']");
    let wildcard = gate.ask(Crossing::Connect { target: target("host.airlock"), port }).await;

    assert_eq!(egress.dial(permit).await.unwrap().address, listener.local_addr().unwrap());
    assert!(wildcard.is_err());
    assert!(named.ask(Crossing::Connect { target: target("host.airlock"), port: port ^ 1 }).await.is_err());
}

#[tokio::test]
async fn the_host_stays_closed_also_where_nothing_else_is_denied() {
    let (gate, _folder) = gate("");
    gate.set_policy(airlock_protocol::policy::Policy { audit_only: true, ..gate.policy() }, "set").unwrap();
    let ask = |host| gate.ask(Crossing::Connect { target: target(host), port: 3000 });
    assert!(ask("host.airlock").await.is_err());
    assert!(ask("other.example").await.is_ok());
}

#[tokio::test]
async fn a_permit_to_know_a_name_is_none_to_connect() {
    let (gate, _folder) = gate("[[rule]]\nallow = 'a.example'");
    let crossing = Crossing::Resolve { name: "a.example".parse().unwrap(), question: "A".to_owned() };
    let permit = gate.ask(crossing).await.unwrap();
    assert!(matches!(egress(&[], &[]).dial(permit).await, Err(DialError::Permit)));
}
