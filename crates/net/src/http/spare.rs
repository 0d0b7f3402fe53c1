//! Connections to servers that wait for the next near connection to the same place, so that it need not shake hands.
//!
//! One is kept when its near connection has ended as it should, and only for a near connection that the gate permits, by
//! the same rules, to the same host and port with the same protocols. It serves one at a time. There are few, not for long;
//! when the rules change all of them are closed.

use super::{
    link::{Link, Sender},
    tasks::Tasks,
};
use airlock_gate::{Permit, host::Target};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::{Rc, Weak},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// So many wait for one place.
const MOST_ALIKE: usize = 8;
/// So many wait altogether.
const MOST: usize = 64;
/// Places whose protocol is remembered.
const MOST_PLACES: usize = 512;
/// How long one waits.
const LONGEST: Duration = Duration::from_secs(30);
/// How long it is believed that a server speaks what it spoke last.
const BELIEVED: Duration = Duration::from_secs(10 * 60);

/// Where a connection leads, and what was offered there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    /// The name or address.
    pub(super) target: Target,
    /// The port.
    pub(super) port: u16,
    /// Whether it is inside TLS.
    pub(super) is_tls: bool,
    /// The protocols.
    pub(super) offers: Vec<&'static [u8]>,
}

/// What a server spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spoken {
    /// Whether it was HTTP/2.
    pub(super) is_http2: bool,
    /// Whether it was inside TLS 1.2.
    pub(super) is_tls12: bool,
}

/// One that waits.
pub(super) struct Spare {
    pub(super) sender: Sender,
    pub(super) link: Rc<Link>,
    pub(super) since: Instant,
}

/// Those of one sandbox.
#[derive(Default)]
pub(crate) struct Spares {
    waiting: RefCell<Vec<(Destination, Spare)>>,
    /// What servers spoke last, and when.
    spoken: RefCell<HashMap<Destination, (Spoken, Instant)>>,
    is_swept: Cell<bool>,
    /// The generation of the rules.
    rules: Cell<u64>,
    /// Every connection to a server moves its bytes here.
    pub(super) tasks: Tasks,
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.tasks.end();
    }
}

impl Spares {
    /// One for a connection that was permitted by the rules of this generation.
    pub(super) fn take(&self, to: &Destination, permit: &Permit, generation: u64) -> Option<Spare> {
        self.obey(generation);
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain_mut(|(_, spare)| !spare.sender.is_closed());
        let fits = |(other, spare): &(Destination, Spare)| other == to && spare.link.meets(permit.pins());
        let found = waiting.iter().rposition(fits)?;
        Some(waiting.remove(found).1)
    }

    /// Keeps one whose near connection has ended.
    pub(super) fn keep(self: &Rc<Spares>, to: Destination, mut sender: Sender, link: Rc<Link>) {
        link.release();
        if link.is_bound() || sender.is_closed() {
            return link.end();
        }
        let mut waiting = self.waiting.borrow_mut();
        let alike = waiting.iter().filter(|(other, _)| *other == to).count();
        let oldest = match (alike >= MOST_ALIKE, waiting.len() >= MOST) {
            (true, _) => waiting.iter().position(|(other, _)| *other == to),
            (false, true) => Some(0),
            (false, false) => None,
        };
        if let Some(oldest) = oldest.filter(|oldest| *oldest < waiting.len()) {
            waiting.remove(oldest).1.link.end();
        }
        waiting.push((to, Spare { sender, link, since: Instant::now() }));
        if !self.is_swept.replace(true) {
            self.tasks.start(sweep(Rc::downgrade(self)));
        }
    }

    /// When the one goes that waits longest.
    fn next_end(&self) -> Option<Instant> {
        let next = self.waiting.borrow().first().map(|(_, spare)| spare.since + LONGEST);
        self.is_swept.set(next.is_some());
        next
    }

    /// Where the rules have changed, what they allowed is closed.
    pub(crate) fn obey(&self, generation: u64) {
        if self.rules.replace(generation) != generation {
            self.end(|_| true);
        }
    }

    fn end(&self, is_over: impl Fn(&mut Spare) -> bool) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.extract_if(.., |(_, spare)| is_over(spare)).for_each(|(_, spare)| spare.link.end());
    }

    /// Notes what a server speaks.
    pub(super) fn spoke(&self, to: &Destination, what: Spoken) {
        let mut spoken = self.spoken.borrow_mut();
        if spoken.len() >= MOST_PLACES && !spoken.contains_key(to) {
            spoken.clear();
        }
        spoken.insert(to.clone(), (what, Instant::now()));
    }

    /// What a server spoke lately; none if that is not known.
    pub(super) fn spoken(&self, to: &Destination) -> Option<Spoken> {
        let spoken = self.spoken.borrow();
        spoken.get(to).filter(|(_, at)| at.elapsed() < BELIEVED).map(|(what, _)| *what)
    }

    /// How many wait.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.waiting.borrow().len()
    }
}

/// Ends each when its time has come, until there are none.
async fn sweep(spares: Weak<Spares>) {
    while let Some(next) = spares.upgrade().and_then(|spares| spares.next_end()) {
        sleep_until(next).await;
        let Some(spares) = spares.upgrade() else { return };
        spares.end(|spare| spare.since.elapsed() >= LONGEST || spare.sender.is_closed());
    }
}
