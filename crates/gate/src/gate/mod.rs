//! The only place that decides whether something crosses.
//!
//! [`Gate::ask`] judges a crossing by the rules, asks a person where a rule says so, and writes the decision to the ledger
//! before it returns. What cannot be recorded does not cross.
//!
//! | module | |
//! |---|---|
//! | `crossing` | what may be asked, in words |
//! | `ask` | one crossing from question to answer |
//! | `change` | other rules, people's answers |
//! | `opening` | which connections are opened |
//! | `busy` | permitted connections and requests that are too many to be told one by one |
//! | `reveal` | secrets in requests, and placeholders on their way elsewhere |
//! | `files` | what is shown while a sandbox runs, and files that are refused |
//! | `record` | what is written and told; what is gathered, and what could not be written, is owed |
//!
//! One thread owns a gate; the keeper runs [`Gate::tend`] beside it.

mod ask;
mod busy;
mod change;
mod crossing;
mod crowd;
mod files;
mod opening;
mod record;
mod reveal;
mod stopped;
#[cfg(test)]
mod tests;
mod trouble;
mod unanswered;

pub use change::AnswerError;
pub use crossing::Crossing;
pub use files::Remount;
pub use opening::Wants;
pub use record::Finished;
pub use stopped::{Cause, Part, Stopped};

use crate::{
    approvals::Approvals, events::Events, judge::Judge, ledger::Ledger, meter::Meters, policy::BadPolicy,
    refusals::Refusals, secrets::Secrets,
};
use airlock_protocol::{SandboxId, approval::Pending, event::Event, policy::Policy};
use record::Owed;
use std::{cell::RefCell, rc::Rc, time::Duration};
use tokio::sync::{Notify, broadcast, watch};

/// What a gate is made of.
#[derive(Debug)]
pub struct Setup {
    /// Whose gate it is.
    pub sandbox: SandboxId,
    /// What a person calls the sandbox.
    pub name: String,
    /// The rules.
    pub policy: Policy,
    /// Where decisions are written.
    pub ledger: Ledger,
    /// How long a crossing waits for a person.
    pub ask_timeout: Duration,
    /// Ports inside that connections from outside may reach (`--publish`).
    pub published: Vec<u16>,
    /// Whether connections can be opened: the sandbox trusts an authority of ours.
    pub can_open: bool,
    /// What requests may carry and the sandbox never sees.
    pub secrets: Secrets,
}

/// Decides for one sandbox.
#[derive(Debug)]
pub struct Gate {
    sandbox: SandboxId,
    name: String,
    policy: RefCell<Policy>,
    judge: RefCell<Rc<Judge>>,
    generation: watch::Sender<u64>,
    published: Vec<u16>,
    secrets: Secrets,
    approvals: Approvals,
    events: Rc<Events>,
    ledger: Ledger,
    owed: RefCell<Owed>,
    gathered: Notify,
    refusals: RefCell<Refusals>,
    refused: Notify,
    /// Connections, and what is inside of them.
    busy: RefCell<busy::Busy>,
    busy_inside: RefCell<busy::Busy>,
    crowded: Notify,
    meters: RefCell<Meters>,
    opening: opening::Opening,
    trouble: trouble::Trouble,
}

impl Gate {
    /// A gate with these rules.
    pub fn new(setup: Setup) -> Result<Gate, BadPolicy> {
        let judge = Judge::compile(&setup.policy)?;
        let opening = opening::Opening::new(setup.can_open);
        opening.check(&judge)?;
        let meters = RefCell::new(Meters::for_policy(&setup.policy, &Meters::default()));
        let events = Rc::new(Events::default());
        Ok(Gate {
            sandbox: setup.sandbox,
            name: setup.name,
            policy: RefCell::new(setup.policy),
            judge: RefCell::new(Rc::new(judge)),
            generation: watch::Sender::new(0),
            published: setup.published,
            secrets: setup.secrets,
            approvals: Approvals::new(setup.ask_timeout, events.clone()),
            events,
            ledger: setup.ledger,
            owed: RefCell::default(),
            gathered: Notify::new(),
            refusals: RefCell::default(),
            refused: Notify::new(),
            busy: RefCell::default(),
            busy_inside: RefCell::default(),
            crowded: Notify::new(),
            meters,
            opening,
            trouble: trouble::Trouble::default(),
        })
    }

    /// The rules in force.
    pub fn policy(&self) -> Policy {
        self.policy.borrow().clone()
    }

    /// The rules in force, ready to decide. Kept across a wait, they may be old: see [`Gate::generation`].
    pub fn judge(&self) -> Rc<Judge> {
        self.judge.borrow().clone()
    }

    /// What requests may carry and the sandbox never sees.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Counts changes of the rules.
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// How often the rules have changed.
    pub fn generation_now(&self) -> u64 {
        *self.generation.borrow()
    }

    /// The crossings that wait for a person, the oldest first.
    pub fn pending(&self) -> Vec<Pending> {
        self.approvals.pending()
    }

    /// What happens from now on. A watcher that falls behind by 256 events loses some.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.watch()
    }

    /// Tells whoever watches of something that no rule speaks of.
    pub fn tell(&self, event: Event) {
        self.events.tell(|| event);
    }

    /// Writes what was gathered, brings records to the disk and tells what was counted, in time. Runs until dropped; sleeps while nothing happens.
    pub async fn tend(&self) {
        tokio::join!(
            self.ledger.keep_synced(),
            self.keep_writing_gathered(),
            self.keep_telling(),
            self.keep_telling_busy()
        );
    }

    /// Writes and syncs what is left. For the end of the keeper.
    pub fn close(&self) -> Result<(), crate::ledger::Error> {
        self.tell_all_refused();
        self.tell_busy();
        self.pay()?;
        self.ledger.sync_now()
    }
}
