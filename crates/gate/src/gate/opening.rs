//! Which connections are opened, so that what is inside is judged.

use super::Gate;
use crate::{host::Target, judge::Judge, policy::BadPolicy};
use std::{cell::RefCell, fmt, rc::Rc};

/// Whether flows to a place have to be opened.
pub type Wants = Rc<dyn Fn(&Target, u16) -> bool>;

/// Who looks inside connections.
pub(super) struct Opening {
    can_open: bool,
    wants: RefCell<Vec<Wants>>,
}

impl Opening {
    pub(super) fn new(can_open: bool) -> Opening {
        Opening { can_open, wants: RefCell::default() }
    }

    /// Refuses rules that look inside where nothing can be opened.
    pub(super) fn check(&self, judge: &Judge) -> Result<(), BadPolicy> {
        if self.can_open || !judge.needs_opening() {
            return Ok(());
        }
        let bad =
            BadPolicy::nowhere("policy", "a rule is about requests, and this sandbox opens no connections");
        Err(bad
            .why("it was started without such a rule, so that its programs trust no authority of ours")
            .fix("start it anew with the rule; `airlock restart` keeps its files"))
    }
}

impl Gate {
    /// Whether some connection has to be opened: for a rule, or for who else looks inside.
    pub fn needs_opening(&self) -> bool {
        self.judge.borrow().needs_opening()
            || !self.secrets.is_empty()
            || !self.opening.wants.borrow().is_empty()
    }

    /// Opens also the connections that `wants` names, unless their rule says `tls = "opaque"`.
    pub fn also_open(&self, wants: Wants) {
        self.opening.wants.borrow_mut().push(wants);
    }

    pub(super) fn is_wanted_open(&self, target: &Target, port: u16) -> bool {
        self.opening.can_open && self.opening.wants.borrow().iter().any(|wants| wants(target, port))
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("can_open", &self.can_open).finish_non_exhaustive()
    }
}
