//! Whether something may cross the wall: rules, people, permits, and the ledger of what was decided.

pub mod ledger;
