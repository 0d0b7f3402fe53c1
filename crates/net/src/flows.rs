//! The flows that live, so that those which the rules no longer allow can be ended.

use crate::http::Requests;
use airlock_gate::{host::Target, judge::Judge};
use airlock_protocol::policy::Verdict;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::IpAddr,
    rc::Rc,
};
use tokio::sync::oneshot;

/// So many may live at a time, where there are descriptors for them; a flow that waits for a person counts.
pub const MOST: usize = 4096;

/// Descriptors that are left for everything else: attempts beside the first of a flow (64), questions for names (64), connections
/// to servers that wait (64), and 128 for the keeper's own.
const OTHERS: usize = 320;

/// The flows of one sandbox.
#[derive(Debug)]
pub struct Flows {
    most: usize,
    live: RefCell<HashMap<u64, Live>>,
    next: Cell<u64>,
}

#[derive(Debug)]
struct Live {
    what: What,
    /// The special addresses it was let to, if it leads to any.
    addresses: Vec<IpAddr>,
    /// Where it is opened: the requests inside.
    requests: Option<Rc<Requests>>,
    stop: oneshot::Sender<()>,
}

/// What a flow is, as far as rules go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Not decided yet.
    New,
    /// To the outside.
    Out {
        /// The name or address.
        target: Target,
        /// The port.
        port: u16,
        /// Whether a person was asked.
        asked: bool,
    },
    /// From the outside: a published port. Rules do not speak of it.
    In,
}

/// A flow's place among the others. Dropped when it ends.
#[derive(Debug)]
pub struct Ticket {
    flows: Rc<Flows>,
    id: u64,
    stop: oneshot::Receiver<()>,
}

/// A flow that may have ended.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    flows: Rc<Flows>,
    id: u64,
}

impl Flows {
    /// None yet. Each takes two of the `descriptors` this process may have.
    pub fn new(descriptors: Option<u64>) -> Flows {
        let all = descriptors.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        let most = (all.saturating_sub(OTHERS) / 2).clamp(1, MOST);
        Flows { most, live: RefCell::default(), next: Cell::new(0) }
    }

    /// A place for one more; none if there are too many.
    pub fn enter(self: &Rc<Flows>) -> Option<Ticket> {
        let mut live = self.live.borrow_mut();
        if live.len() >= self.most {
            return None;
        }
        let id = self.next.replace(self.next.get().wrapping_add(1));
        let (sender, stop) = oneshot::channel();
        live.insert(id, Live { what: What::New, addresses: Vec::new(), requests: None, stop: sender });
        Some(Ticket { flows: Rc::clone(self), id, stop })
    }

    /// How many live.
    pub fn count(&self) -> usize {
        self.live.borrow().len()
    }

    /// Ends those that `judge` no longer allows.
    pub fn judge_anew(&self, judge: &Judge) {
        self.live.borrow_mut().extract_if(|_, live| !still_allowed(judge, live)).for_each(|(_, live)| {
            if let Some(requests) = &live.requests {
                requests.revoke();
            }
            // One that has just ended by itself needs no telling.
            let _ = live.stop.send(());
        });
        let requests: Vec<_> = self.live.borrow().values().filter_map(|live| live.requests.clone()).collect();
        requests.iter().for_each(|requests| requests.judge_anew(judge));
    }
}

/// A flow that a person approved stays while the rule still asks. One that rules allowed must still be allowed by them, and
/// so must the special range that its name led into.
fn still_allowed(judge: &Judge, live: &Live) -> bool {
    let What::Out { target, port, asked } = &live.what else { return true };
    let judged = judge.connect(target, *port);
    let is_allowed = match judged.verdict {
        Some(Verdict::Allow) => true,
        Some(Verdict::Ask) => *asked,
        Some(Verdict::Deny) | None => false,
    };
    let private = judge.private(target, *port);
    is_allowed && live.addresses.iter().all(|address| private.iter().any(|range| range.contains(*address)))
}

impl Handle {
    /// As [`Ticket::leads_to`].
    pub(crate) fn leads_to(&self, address: IpAddr) {
        if let Some(live) = self.flows.live.borrow_mut().get_mut(&self.id)
            && !live.addresses.contains(&address)
        {
            live.addresses.push(address);
        }
    }
}

impl Ticket {
    /// Says what the flow is.
    pub fn decided(&self, what: What) {
        if let Some(live) = self.flows.live.borrow_mut().get_mut(&self.id) {
            live.what = what;
        }
    }

    /// Says that it leads to an address that only a rule's `private` allows.
    pub fn leads_to(&self, address: IpAddr) {
        self.handle().leads_to(address);
    }

    /// Says which requests are inside.
    pub(crate) fn has_requests(&self, requests: Rc<Requests>) {
        if let Some(live) = self.flows.live.borrow_mut().get_mut(&self.id) {
            live.requests = Some(requests);
        }
    }

    /// For whoever learns more about the flow later.
    pub(crate) fn handle(&self) -> Handle {
        Handle { flows: Rc::clone(&self.flows), id: self.id }
    }

    /// Whether the flow was ended.
    pub(crate) fn is_revoked(&mut self) -> bool {
        !matches!(self.stop.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    /// Does `work` unless the flow is ended before; one that has been ended does nothing more.
    pub async fn unless_revoked<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            _ = &mut self.stop => None,
            done = work => Some(done),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.flows.live.borrow_mut().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_gate::policy::parse_toml;
    use std::future::{pending, ready};

    fn judge(text: &str) -> Judge {
        Judge::compile(&parse_toml("airlock.toml", text).unwrap().policy).unwrap()
    }

    async fn is_revoked(ticket: &mut Ticket) -> bool {
        tokio::select! {
            biased;
            ended = ticket.unless_revoked(pending::<()>()) => ended.is_none(),
            () = ready(()) => false,
        }
    }

    fn out(host: &str, asked: bool) -> What {
        What::Out { target: host.parse().unwrap(), port: 443, asked }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_flow_ends_when_the_rules_no_longer_allow_it() {
        let flows = Rc::new(Flows::new(None));
        let mut tickets: Vec<Ticket> = (0..5).map(|_| flows.enter().unwrap()).collect();
        let whats =
            [out("a.test", false), out("b.test", false), out("c.test", true), out("c.test", false), What::In];
        for (ticket, what) in tickets.iter().zip(whats) {
            ticket.decided(what);
        }

        flows.judge_anew(&judge("[[rule]]\nallow = 'a.test'\n[[rule]]\nask = 'c.test'"));

        let mut revoked = Vec::new();
        for ticket in &mut tickets {
            revoked.push(is_revoked(ticket).await);
        }
        assert_eq!(revoked, [false, true, false, true, false]);
        drop(tickets);
        assert_eq!(flows.count(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_flow_into_a_private_range_ends_with_the_permission_for_the_range() {
        let flows = Rc::new(Flows::new(None));
        let mut ticket = flows.enter().unwrap();
        ticket.decided(out("a.test", false));
        ticket.leads_to("10.20.0.5".parse().unwrap());

        flows.judge_anew(&judge("[[rule]]\nallow = 'a.test'\nprivate = ['10.20.0.0/16']"));
        assert!(!is_revoked(&mut ticket).await);
        flows.judge_anew(&judge("[[rule]]\nallow = 'a.test'"));
        assert!(is_revoked(&mut ticket).await);
    }

    #[test]
    fn there_is_a_bound() {
        let flows = Rc::new(Flows::new(None));
        let tickets: Vec<Ticket> = std::iter::from_fn(|| flows.enter()).collect();
        assert_eq!(tickets.len(), MOST);
        drop(tickets);
        assert!(flows.enter().is_some());

        let few = Rc::new(Flows::new(Some(1024)));
        let tickets: Vec<Ticket> = std::iter::from_fn(|| few.enter()).collect();
        assert_eq!(tickets.len(), 352);
    }
}
