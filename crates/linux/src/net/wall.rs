//! The rules, as one transaction. A packet that a program sends meets three chains:
//!
//! 1. `first`, before any redirection: loopback and the sandbox's own addresses pass, port 53 passes (to the resolver),
//!    TCP to an open destination passes (to the listener). All else is reported and refused.
//! 2. `redirected`: what leaves the sandbox goes to the listener or the resolver instead.
//! 3. `last`: only what was redirected reaches the two ports, and only own addresses are left. All else is dropped.
//!
//! Nothing is ever forwarded. No rule looks at the source: a program may bind to what it likes.

use super::{
    machine,
    nft::{ACCEPT, DROP, FORWARD, Family, Hook, OUTPUT, Rule, Set, Transaction, Transport},
    seat::{LISTENER_PORT, OWN_V4, OWN_V6, RESOLVER_PORT},
};

/// Open destinations.
pub(super) const OPEN_V4: Set = Set { name: "open4", id: 1, shown_as: (7 << 6) | 13, address_length: 4 };
/// See [`OPEN_V4`].
pub(super) const OPEN_V6: Set = Set { name: "open6", id: 2, shown_as: (8 << 6) | 13, address_length: 16 };

/// Counts refusals, also those that are not told.
pub(super) const REFUSED: &str = "refused";
/// Where refusals are told.
pub(super) const LOG_GROUP: u16 = 1;
/// Enough for the headers of either family and the ports.
pub(super) const LOGGED_BYTES: u32 = 128;
/// A flood of refusals is told in part: so many in a second, after so many at once.
const TOLD_PER_SECOND: u64 = 100;
const TOLD_AT_ONCE: u32 = 200;

pub(super) const DNS: u16 = 53;
/// What stays inside: 198.18.0.0/24.
pub(super) const OWN_V4_PREFIX: [u8; 3] = {
    let [a, b, c, _] = OWN_V4.octets();
    [a, b, c]
};
/// And the same of IPv6, 64 bits.
pub(super) const OWN_V6_PREFIX: [u8; 8] = {
    let [a, b, c, d, e, f, g, h, ..] = OWN_V6.octets();
    [a, b, c, d, e, f, g, h]
};
const OWN: &str = "own";
const FIRST: &str = "first";
const REDIRECTED: &str = "redirected";
const LAST: &str = "last";

/// Whose rules they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Programs in the network namespace.
    Programs,
    /// A machine behind a TAP; programs there, if there are any, have the same rules as otherwise.
    Machine,
}

/// All of it. Nothing is open.
pub(super) fn transaction(of: Of) -> Transaction {
    let mut rules = Transaction::begin();
    rules.table();
    rules.set(OPEN_V4);
    rules.set(OPEN_V6);
    rules.counter(REFUSED);
    own(&mut rules);
    if of == Of::Machine {
        machine::wall::to_machine(&mut rules);
        machine::wall::chains(&mut rules);
    }
    first(&mut rules, of);
    redirected(&mut rules, of);
    last(&mut rules, of);
    let forward = Hook { kind: "filter", number: FORWARD, priority: 0, policy: DROP };
    rules.hooked("through", "forbid forwarding", forward);
    rules
}

/// Accepts what stays inside; port 53 of other addresses than loopback is the resolver's.
fn own(rules: &mut Transaction) {
    let purpose = "let programs reach themselves";
    rules.chain(OWN);
    rules.rule(OWN, purpose, |rule| rule.to(Family::V4, &[127]).accept());
    rules.rule(OWN, purpose, |rule| {
        rule.to(Family::V6, &std::net::Ipv6Addr::LOCALHOST.octets()).accept();
    });
    for transport in [Transport::Udp, Transport::Tcp] {
        rules.rule(OWN, purpose, |rule| rule.transport(transport).port(DNS).go_back());
    }
    rules.rule(OWN, purpose, |rule| rule.to(Family::V4, &OWN_V4_PREFIX).accept());
    rules.rule(OWN, purpose, |rule| rule.to(Family::V6, &OWN_V6_PREFIX).accept());
}

fn first(rules: &mut Transaction, of: Of) {
    let hook = Hook { kind: "filter", number: OUTPUT, priority: -150, policy: DROP };
    rules.hooked(FIRST, "make the first chain", hook);
    if of == Of::Machine {
        machine::wall::decide_for_machine(rules, FIRST);
    }
    accept_established(rules, FIRST);
    rules.rule(FIRST, "let programs reach themselves", |rule| rule.jump(OWN));
    for transport in [Transport::Udp, Transport::Tcp] {
        rules.rule(FIRST, "let questions reach the resolver", |rule| {
            rule.transport(transport).port(DNS).accept();
        });
    }
    for (family, set) in [(Family::V4, OPEN_V4), (Family::V6, OPEN_V6)] {
        rules.rule(FIRST, "let connections to open destinations pass", |rule| {
            rule.tcp_to_any_of(family, set.name).accept();
        });
    }
    report(rules, FIRST);
    refuse(rules, FIRST, |_| {}, |_| {});
}

fn redirected(rules: &mut Transaction, of: Of) {
    let hook = Hook { kind: "nat", number: OUTPUT, priority: -100, policy: ACCEPT };
    rules.hooked(REDIRECTED, "make the chain that redirects (nft_chain_nat)", hook);
    if of == Of::Machine {
        machine::wall::pass_to_machine(rules, REDIRECTED);
    }
    rules.rule(REDIRECTED, "let programs reach themselves", |rule| rule.jump(OWN));
    for transport in [Transport::Udp, Transport::Tcp] {
        rules.rule(REDIRECTED, "redirect questions to the resolver (nft_redir)", |rule| {
            rule.transport(transport).port(DNS).redirect(RESOLVER_PORT);
        });
    }
    rules.rule(REDIRECTED, "redirect connections to the listener (nft_redir)", |rule| {
        rule.transport(Transport::Tcp).redirect(LISTENER_PORT);
    });
}

fn last(rules: &mut Transaction, of: Of) {
    let hook = Hook { kind: "filter", number: OUTPUT, priority: 0, policy: DROP };
    rules.hooked(LAST, "make the last chain", hook);
    if of == Of::Machine {
        machine::wall::pass_to_machine(rules, LAST);
    }
    accept_established(rules, LAST);
    rules.rule(LAST, "let redirected connections pass", |rule| rule.redirected().accept());
    refuse(
        rules,
        LAST,
        |rule| {
            rule.ports(LISTENER_PORT, RESOLVER_PORT);
        },
        |rule| {
            rule.transport(Transport::Udp).port(RESOLVER_PORT);
        },
    );
    rules.rule(LAST, "let programs reach themselves", |rule| rule.jump(OWN));
}

/// Counts, and tells whoever listens.
pub(super) fn report(rules: &mut Transaction, chain: &str) {
    rules.rule(chain, "report refusals (nft_limit, nft_log, nfnetlink_log)", |rule| {
        rule.count(REFUSED).at_most_per_second(TOLD_PER_SECOND, TOLD_AT_ONCE).log(LOG_GROUP, LOGGED_BYTES);
    });
}

/// What belongs to a connection that was let through.
pub(super) fn accept_established(rules: &mut Transaction, chain: &str) {
    rules.rule(chain, "follow connections (nf_conntrack)", |rule| rule.established().accept());
}

/// TCP that `tcp` matches is reset, other packets that `other` matches make the sender's call fail.
pub(super) fn refuse(
    rules: &mut Transaction,
    chain: &str,
    tcp: impl FnOnce(&mut Rule<'_, '_>),
    other: impl FnOnce(&mut Rule<'_, '_>),
) {
    rules.rule(chain, "refuse connections (nft_reject_inet)", |rule| {
        rule.transport(Transport::Tcp);
        tcp(rule);
        rule.reset();
    });
    rules.rule(chain, "refuse packets (nft_reject_inet)", |rule| {
        other(rule);
        rule.reject();
    });
}
