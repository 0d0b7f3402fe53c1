//! Whether something may cross the wall: rules, people, permits, and the ledger of what was decided.
