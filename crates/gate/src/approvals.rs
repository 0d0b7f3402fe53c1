//! Crossings that wait for a person.
//!
//! A request stands for one exact crossing (kind, host, port; of a request inside also method, path and query). Crossings that are the same share it while it waits. It is
//! answered once: by a person, by time, or by the program, which gave up.

use crate::{allowance::Allowance, events::Events, ledger::shown};
use airlock_protocol::{
    approval::{Given, Pending, Scope},
    event::Event,
    policy,
};
use jiff::Timestamp;
use std::{cell::RefCell, rc::Rc, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// Requests that may wait at a time.
pub(crate) const MOST_REQUESTS: usize = 64;
/// Crossings that may wait for one request.
pub(crate) const MOST_WAITERS: usize = 256;
/// Requests a person meets at once, and then each second, from a program that asks and gives up in turns.
const BURST: u32 = 128;
const PER_SECOND: u32 = 1;
/// Characters of a path or a query that are shown.
const MOST_TOLD: usize = 400;

/// The requests of one sandbox.
#[derive(Debug)]
pub(crate) struct Approvals {
    timeout: Duration,
    events: Rc<Events>,
    waiting: RefCell<Vec<Request>>,
    allowance: RefCell<Allowance>,
}

#[derive(Debug)]
struct Request {
    question: Question,
    pending: Pending,
    deadline: Instant,
    waiters: Vec<oneshot::Sender<Answered>>,
}

/// How a request was answered by a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Which request.
    pub(crate) request: String,
    /// How.
    pub(crate) verdict: Given,
    /// By whom.
    pub(crate) by: String,
}

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Question {
    /// `connect`, `request`, …
    pub(crate) kind: &'static str,
    /// The name or address.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// Of a request.
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) query: Option<String>,
    /// What a rule that answers it asks of requests.
    pub(crate) grant: policy::Request,
}

/// Too many wait already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

/// One crossing that waits. When dropped it waits no longer.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    approvals: &'a Approvals,
    id: String,
    deadline: Instant,
    answer: oneshot::Receiver<Answered>,
}

impl Approvals {
    pub(crate) fn new(timeout: Duration, events: Rc<Events>) -> Approvals {
        let allowance = RefCell::new(Allowance::new(BURST, PER_SECOND));
        Approvals { timeout, events, waiting: RefCell::default(), allowance }
    }

    /// Joins the request for the same crossing; `None` if there is none.
    pub(crate) fn join(&self, question: &Question) -> Option<Result<Waiting<'_>, Crowded>> {
        let mut waiting = self.waiting.borrow_mut();
        let request = waiting.iter_mut().find(|request| request.is_about(question) && request.is_live())?;
        if request.waiters.len() >= MOST_WAITERS {
            return Some(Err(Crowded));
        }
        Some(Ok(request.add_waiter(self)))
    }

    /// Whether one more request may wait, and people may be asked again.
    pub(crate) fn take_room(&self) -> bool {
        self.waiting.borrow().len() < MOST_REQUESTS && self.allowance.borrow_mut().take()
    }

    /// Begins a request. `id` was never used before.
    pub(crate) fn ask(&self, id: String, sandbox: &str, question: &Question, rule: &str) -> Waiting<'_> {
        let now = Timestamp::now();
        let until = now.checked_add(self.timeout).unwrap_or(Timestamp::MAX);
        let pending = Pending {
            id,
            sandbox: sandbox.to_owned(),
            since: format!("{now:.6}"),
            until: format!("{until:.6}"),
            kind: question.kind.to_owned(),
            host: question.host.clone(),
            port: question.port,
            method: question.method.as_deref().map(told),
            path: question.path.as_deref().map(told),
            query: question.query.as_deref().map(told),
            grant: question.grant.clone(),
            rule: rule.to_owned(),
        };
        self.events.tell(|| Event::Asked(Box::new(pending.clone())));
        let (question, deadline) = (question.clone(), Instant::now() + self.timeout);
        let mut request = Request { question, pending, deadline, waiters: Vec::new() };
        let waiting = request.add_waiter(self);
        self.waiting.borrow_mut().push(request);
        waiting
    }

    /// What waits, the oldest first.
    pub(crate) fn pending(&self) -> Vec<Pending> {
        let waiting = self.waiting.borrow();
        waiting.iter().filter(|request| request.is_live()).map(|request| request.pending.clone()).collect()
    }

    /// The request of this id, if it waits.
    pub(crate) fn find(&self, id: &str) -> Option<Pending> {
        let waiting = self.waiting.borrow();
        let found = waiting.iter().find(|request| request.pending.id == id && request.is_live());
        found.map(|request| request.pending.clone())
    }

    /// Answers the request of this id, for all that wait for it. Only the first answer counts: `false` for any other.
    pub(crate) fn answer(&self, answered: &Answered, scope: Scope) -> bool {
        let request = {
            let mut waiting = self.waiting.borrow_mut();
            let at = waiting.iter().position(|one| one.pending.id == answered.request && one.is_live());
            at.map(|at| waiting.remove(at))
        };
        let Some(request) = request else { return false };
        for waiter in request.waiters {
            // One that is gone meanwhile needs no answer.
            let _ = waiter.send(answered.clone());
        }
        let Answered { request: id, verdict, by } = answered.clone();
        self.events.tell(|| Event::Answered { id, verdict, scope, by });
        true
    }

    /// Forgets waiters that are gone, and their request with the last of them.
    fn leave(&self, id: &str, by: &str) {
        let mut waiting = self.waiting.borrow_mut();
        let Some(at) = waiting.iter().position(|request| request.pending.id == id) else { return };
        let is_over = waiting.get_mut(at).is_some_and(|request| {
            request.waiters.retain(|waiter| !waiter.is_closed());
            request.waiters.is_empty()
        });
        if is_over {
            waiting.remove(at);
            let (id, by) = (id.to_owned(), by.to_owned());
            self.events.tell(|| Event::Answered { id, verdict: Given::Refused, scope: Scope::Once, by });
        }
    }
}

/// For a person; what is cut off is told.
fn told(text: &str) -> String {
    match text.chars().count() {
        0..=MOST_TOLD => shown(text),
        many => format!("{}… ({many} characters)", shown(&text.chars().take(MOST_TOLD).collect::<String>())),
    }
}

impl Request {
    fn is_about(&self, question: &Question) -> bool {
        self.question == *question
    }

    /// Time decides, not whether somebody has noticed yet that it is over.
    fn is_live(&self) -> bool {
        Instant::now() < self.deadline
    }

    fn add_waiter<'a>(&mut self, approvals: &'a Approvals) -> Waiting<'a> {
        let (sender, answer) = oneshot::channel();
        self.waiters.push(sender);
        Waiting { approvals, id: self.pending.id.clone(), deadline: self.deadline, answer }
    }
}

impl Waiting<'_> {
    /// The request it waits for.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The answer; `None` if none came in time. May be dropped and called again.
    pub(crate) async fn answered(&mut self) -> Option<Answered> {
        tokio::time::timeout_at(self.deadline, &mut self.answer).await.ok()?.ok()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.answer.close();
        let is_late = Instant::now() >= self.deadline;
        self.approvals.leave(&self.id, if is_late { "time" } else { "program" });
    }
}
