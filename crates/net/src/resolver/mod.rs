//! The sandbox's name server. It answers from the rules and from [`Names`] alone: no question of a sandbox ever leaves.
//!
//! A name that an allow or ask rule could match is given an address of its own, and the kernel lets connections to it
//! through before the answer goes out. Any other name is "no such name", with the reason for clients that can hear it.
//!
//! In the ledger stand an allowed name when it is first asked for, and a denied one once in ten seconds; how often it was
//! asked for besides is counted.

mod heard;
mod serve;

pub use serve::serve;

use crate::dns::{Answer, Query, Subject, Transport, Unanswered};
use crate::http::proxy;
use crate::names::Names;
use airlock_gate::host::HostName;
use airlock_gate::judge::Judge;
use airlock_gate::{Crossing, Gate, Reason};
use airlock_protocol::policy::Ports;
use heard::{Denied, Heard};
use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

/// Told for `intranet` where only a wildcard would match it.
const BARE: &str = "a name of one label is answered only where a rule names it in full";

/// Lets connections to an address through the kernel.
pub trait Opener {
    /// Opens `ports` of `address`, which stands for `name`. Called before every answer that tells the address, so what is
    /// open already should cost nothing.
    fn open(&self, name: &HostName, address: Ipv4Addr, ports: &[Ports]) -> io::Result<()>;
}

/// What the sandbox calls itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Itself {
    /// Its host name.
    pub hostname: String,
    /// Its own address.
    pub v4: Ipv4Addr,
    /// The same for IPv6, where the host has it.
    pub v6: Option<Ipv6Addr>,
}

/// Answers the questions of one sandbox.
pub struct Resolver {
    gate: Rc<Gate>,
    names: Rc<RefCell<Names>>,
    opener: Rc<dyn Opener>,
    itself: Itself,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The rules that the rest was made by.
    judge: Option<Rc<Judge>>,
    heard: Heard,
    /// Names that no rule allows and that are answered all the same, because nothing is denied (`--audit-only`).
    audited: HashSet<HostName>,
}

impl Resolver {
    /// Answers by the rules of `gate`, with addresses of `names`.
    pub fn new(
        gate: Rc<Gate>,
        names: Rc<RefCell<Names>>,
        opener: Rc<dyn Opener>,
        itself: Itself,
    ) -> Resolver {
        let itself = Itself { hostname: itself.hostname.to_ascii_lowercase(), ..itself };
        Resolver { gate, names, opener, itself, state: RefCell::default() }
    }

    /// Answers one message; nothing where silence is the right answer.
    pub async fn answer(&self, asked: &[u8], transport: Transport) -> Option<Vec<u8>> {
        match Query::read(asked, transport) {
            Ok(query) => Some(query.reply(&self.look(&query).await)).filter(|reply| !reply.is_empty()),
            Err(Unanswered::Reply(reply)) => Some(reply),
            Err(Unanswered::Silence) => None,
        }
    }

    async fn look(&self, query: &Query) -> Answer {
        match query.subject() {
            Subject::Address(address) => match self.pointer(address) {
                Some(name) => Answer::Pointer(name),
                None => self.refuse(query, Reason::NoRule, &format!("no name stands behind {address} here")),
            },
            Subject::Name(text) => match (self.known(&text), text.parse()) {
                (Some(answer), _) => answer,
                (None, Ok(name)) => self.name(query, &name).await,
                (None, Err(why)) => {
                    self.refuse(query, Reason::NoRule, &format!("this is not a host name: {why}"))
                }
            },
            Subject::Other(_) => self.refuse(query, Reason::NoRule, "this is not a host name"),
        }
    }

    /// Names that mean the sandbox itself (RFC 6761, section 6.3).
    fn known(&self, name: &str) -> Option<Answer> {
        if name == "localhost" || name.ends_with(".localhost") {
            return Some(Answer::Host { v4: Some(Ipv4Addr::LOCALHOST), v6: Some(Ipv6Addr::LOCALHOST) });
        }
        if name == proxy::NAME {
            return Some(Answer::Host { v4: Some(proxy::ADDRESS), v6: None });
        }
        let Itself { hostname, v4, v6 } = &self.itself;
        (name == hostname).then_some(Answer::Host { v4: Some(*v4), v6: *v6 })
    }

    fn pointer(&self, address: IpAddr) -> Option<String> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return Some("localhost".to_owned());
        }
        if address == self.itself.v4 || self.itself.v6.is_some_and(|own| address == own) {
            return Some(self.itself.hostname.clone());
        }
        self.names.borrow().name(address).map(HostName::to_string)
    }

    async fn name(&self, query: &Query, name: &HostName) -> Answer {
        let judge = self.judge();
        if judge.could_match(name).is_empty() {
            return self.unmatched(query, name).await;
        }
        let wildcard = judge.wildcard_of(name);
        if wildcard.is_some() && name.labels().nth(1).is_none() {
            return self.refuse(query, Reason::NoRule, BARE);
        }
        let is_new = self.names.borrow().address(name).is_none();
        if is_new {
            let room = self.names.borrow().room(wildcard);
            if let Err(full) = room {
                return self.refuse(query, Reason::Budget, &full.to_string());
            }
            if let Err(denial) = self.gate.ask(crossing(query, name)).await {
                return Answer::Denied(denial.to_string());
            }
        }
        // The rules may be others after the wait.
        let judge = self.judge();
        self.host(query, name, judge.wildcard_of(name), &judge.could_match(name))
    }

    /// A name that no rule could match: denied, unless nothing is.
    async fn unmatched(&self, query: &Query, name: &HostName) -> Answer {
        if self.state.borrow().audited.contains(name) {
            return self.host(query, name, None, &[Ports::ALL]);
        }
        if let Some(answer) = self.again(query, name.as_str()) {
            return answer;
        }
        match self.gate.ask(crossing(query, name)).await {
            Ok(_permit) => {
                let answer = self.host(query, name, None, &[Ports::ALL]);
                if matches!(answer, Answer::Host { .. }) {
                    self.state.borrow_mut().audited.insert(name.clone());
                }
                answer
            }
            Err(denial) => {
                self.note(name.as_str(), Denied { reason: denial.reason, why: denial.to_string() })
            }
        }
    }

    /// The address of `name`, which the kernel lets through from now on.
    fn host(&self, query: &Query, name: &HostName, wildcard: Option<usize>, ports: &[Ports]) -> Answer {
        let given = self.names.borrow_mut().give(name, wildcard);
        let address = match given {
            Ok(address) => address,
            Err(full) => return self.refuse(query, Reason::Budget, &full.to_string()),
        };
        if query.is_for_address()
            && let Err(error) = self.opener.open(name, address, ports)
        {
            return Answer::Failed(format!("connections to {name} cannot be let through: {error}"));
        }
        Answer::Host { v4: Some(address), v6: None }
    }

    /// Denies what the rules say nothing about.
    fn refuse(&self, query: &Query, reason: Reason, why: &str) -> Answer {
        let name = query.name();
        if let Some(answer) = self.again(query, &name) {
            return answer;
        }
        self.gate.refuse_name(&name, &query.kind(), reason, why);
        self.note(&name, Denied { reason, why: why.to_owned() })
    }

    /// The answer for a name whose denial was recorded a moment ago.
    fn again(&self, query: &Query, name: &str) -> Option<Answer> {
        let Denied { reason, why } = self.state.borrow().heard.again(name)?;
        self.gate.asked_again(name, &query.kind(), reason);
        Some(Answer::Denied(why))
    }

    /// A denial was recorded.
    fn note(&self, name: &str, denied: Denied) -> Answer {
        let why = denied.why.clone();
        self.state.borrow_mut().heard.note(name, denied);
        Answer::Denied(why)
    }

    /// The rules in force. Where they are others than before, what was made by those is made anew.
    fn judge(&self) -> Rc<Judge> {
        let judge = self.gate.judge();
        let mut state = self.state.borrow_mut();
        if !state.judge.as_ref().is_some_and(|known| Rc::ptr_eq(known, &judge)) {
            self.names.borrow_mut().recount(|name| judge.wildcard_of(name));
            state.audited.clear();
            state.heard.forget();
            state.judge = Some(Rc::clone(&judge));
        }
        judge
    }
}

fn crossing(query: &Query, name: &HostName) -> Crossing {
    Crossing::Resolve { name: name.clone(), question: query.kind() }
}

#[cfg(test)]
mod tests;
