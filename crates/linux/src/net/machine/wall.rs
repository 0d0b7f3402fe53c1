//! The rules for what comes out of a machine. They stand beside those for programs of the network namespace itself, which
//! hold on. A packet of the machine's meets three chains:
//!
//! 1. `arrived`, before any redirection: it has the machine's address and an ordinary header, or it is dropped. Port 53
//!    passes (to the resolver), TCP to an open destination passes (to the listener), and the gateway answers a ping. All else
//!    is reported and refused.
//! 2. `brought`: what may leave goes to the listener or the resolver instead.
//! 3. `entered`: only what was redirected, what belongs to it, and that ping. All else is dropped.
//!
//! To the machine go answers, and connections from the outside's address: who publishes a port. Nothing is forwarded.

use super::tap::NAME;
use crate::net::{
    nft::{ACCEPT, DROP, Family, Hook, INPUT, PREROUTING, Transaction, Transport},
    seat::{LISTENER_PORT, OUTSIDE_V4, OUTSIDE_V6, OWN_V4, OWN_V6, RESOLVER_PORT},
    wall::{DNS, OPEN_V4, OPEN_V6, OWN_V4_PREFIX, OWN_V6_PREFIX, accept_established, refuse, report},
};
use std::net::Ipv6Addr;

const LO: &str = "lo";
const ARRIVED: &str = "arrived";
const MACHINE: &str = "machine";
const BROUGHT: &str = "brought";
const ENTERED: &str = "entered";
const TO_MACHINE: &str = "to_machine";

/// The three chains.
pub(in crate::net) fn chains(rules: &mut Transaction) {
    of_machine(rules);
    arrived(rules);
    brought(rules);
    entered(rules);
}

/// The chain for what goes to the machine.
pub(in crate::net) fn to_machine(rules: &mut Transaction) {
    let purpose = "let the machine be answered";
    rules.chain(TO_MACHINE);
    rules.rule(TO_MACHINE, purpose, |rule| rule.answers().accept());
    rules.rule(TO_MACHINE, "let published connections in", |rule| {
        rule.from(Family::V4, &OUTSIDE_V4.octets())
            .to(Family::V4, &OWN_V4.octets())
            .transport(Transport::Tcp)
            .accept();
    });
    rules.rule(TO_MACHINE, "let published connections in", |rule| {
        rule.from(Family::V6, &OUTSIDE_V6.octets())
            .to(Family::V6, &OWN_V6.octets())
            .transport(Transport::Tcp)
            .accept();
    });
    rules.rule(TO_MACHINE, "let nothing else reach the machine", |rule| rule.drop());
}

/// In a chain for what is sent, before its other rules: the machine has rules of its own.
pub(in crate::net) fn decide_for_machine(rules: &mut Transaction, chain: &str) {
    rules.rule(chain, "tell the machine from the rest", |rule| rule.leaves_by(NAME).jump(TO_MACHINE));
}

/// In the chains behind that one.
pub(in crate::net) fn pass_to_machine(rules: &mut Transaction, chain: &str) {
    rules.rule(chain, "tell the machine from the rest", |rule| rule.leaves_by(NAME).accept());
}

fn arrived(rules: &mut Transaction) {
    let hook = Hook { kind: "filter", number: PREROUTING, priority: -150, policy: DROP };
    rules.hooked(ARRIVED, "make the chain that a machine's packets meet first", hook);
    rules.rule(ARRIVED, "let programs reach themselves", |rule| rule.arrives_by(LO).accept());
    rules.rule(ARRIVED, "tell the machine from the rest", |rule| rule.arrives_by(NAME).jump(MACHINE));
}

fn of_machine(rules: &mut Transaction) {
    rules.chain(MACHINE);
    drop_nonsense(rules);
    accept_established(rules, MACHINE);
    let purpose = "keep a machine from the host's own addresses";
    rules.rule(MACHINE, purpose, |rule| rule.to(Family::V4, &[127]).drop());
    rules.rule(MACHINE, purpose, |rule| rule.to(Family::V6, &Ipv6Addr::LOCALHOST.octets()).drop());
    for transport in [Transport::Udp, Transport::Tcp] {
        rules.rule(MACHINE, "let questions reach the resolver", |rule| {
            rule.transport(transport).port(DNS).accept();
        });
    }
    accept_echo(rules, MACHINE);
    // Nobody is at the seat's other addresses, as for programs: refused, and no word about it.
    for (family, prefix) in [(Family::V4, &OWN_V4_PREFIX[..]), (Family::V6, &OWN_V6_PREFIX[..])] {
        refuse(
            rules,
            MACHINE,
            |rule| {
                rule.to(family, prefix);
            },
            |rule| {
                rule.to(family, prefix);
            },
        );
    }
    for (family, set) in [(Family::V4, OPEN_V4), (Family::V6, OPEN_V6)] {
        rules.rule(MACHINE, "let connections to open destinations pass", |rule| {
            rule.tcp_to_any_of(family, set.name).accept();
        });
    }
    let purpose = "leave unsaid what a kernel asks on its own";
    rules.rule(MACHINE, purpose, |rule| rule.group_membership().drop());
    rules.rule(MACHINE, purpose, |rule| rule.discovery().drop());
    report(rules, MACHINE);
    refuse(rules, MACHINE, |_| {}, |_| {});
}

fn drop_nonsense(rules: &mut Transaction) {
    let purpose = "fix the machine's address";
    rules.rule(MACHINE, purpose, |rule| rule.not_from(Family::V4, &OWN_V4.octets()).drop());
    rules.rule(MACHINE, purpose, |rule| rule.not_from(Family::V6, &OWN_V6.octets()).drop());
    let purpose = "drop headers that nobody needs";
    rules.rule(MACHINE, purpose, |rule| rule.has_options().drop());
    rules.rule(MACHINE, purpose, |rule| rule.has_extensions().drop());
}

fn brought(rules: &mut Transaction) {
    let hook = Hook { kind: "nat", number: PREROUTING, priority: -100, policy: ACCEPT };
    rules.hooked(BROUGHT, "make the chain that redirects a machine (nft_chain_nat)", hook);
    rules.rule(BROUGHT, "let programs reach themselves", |rule| rule.arrives_by(LO).accept());
    for transport in [Transport::Udp, Transport::Tcp] {
        rules.rule(BROUGHT, "redirect questions to the resolver (nft_redir)", |rule| {
            rule.transport(transport).port(DNS).redirect(RESOLVER_PORT);
        });
    }
    rules.rule(BROUGHT, "redirect connections to the listener (nft_redir)", |rule| {
        rule.transport(Transport::Tcp).redirect(LISTENER_PORT);
    });
}

fn entered(rules: &mut Transaction) {
    let hook = Hook { kind: "filter", number: INPUT, priority: 0, policy: DROP };
    rules.hooked(ENTERED, "make the chain that a machine's packets meet last", hook);
    rules.rule(ENTERED, "let programs reach themselves", |rule| rule.arrives_by(LO).accept());
    accept_established(rules, ENTERED);
    rules.rule(ENTERED, "let redirected connections pass", |rule| rule.redirected().accept());
    accept_echo(rules, ENTERED);
}

fn accept_echo(rules: &mut Transaction, chain: &str) {
    let purpose = "let the gateway answer a ping";
    rules.rule(chain, purpose, |rule| {
        rule.to(Family::V4, &OUTSIDE_V4.octets()).echo_request(Family::V4).accept();
    });
    rules.rule(chain, purpose, |rule| {
        rule.to(Family::V6, &OUTSIDE_V6.octets()).echo_request(Family::V6).accept();
    });
}
