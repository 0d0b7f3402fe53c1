//! Whether something may cross the wall: rules, people, permits, and the ledger of what was decided.
//!
//! | module | what it holds |
//! |---|---|
//! | [`host`] | names and addresses, parsed once |
//! | [`address`] | ranges, and addresses that are not plain hosts of the internet |
//! | [`pattern`] | what a rule says about hosts |
//! | [`policy`] | a person's policy: read, checked, joined, compared, written |
//! | [`groups`] | hosts that belong together under one name |
//! | [`glob`] | patterns of paths |
//! | [`request`], [`url`] | a request inside a connection; as a person writes it |
//! | [`judge`] | what the rules say about a connection, and about a request |
//! | [`meter`] | what a rule still allows |
//! | [`providers`] | what is known of the secrets of well-known services |
//! | [`secrets`] | what a sandbox may use and never sees, and where it may go |
//! | [`ledger`] | what was decided: written, read, verified |
//! | `approvals` | crossings that wait for a person |
//! | [`gate`] | the only place that decides: judges, asks, records |
//! | [`permit`] | its answers |
//!
//! Everything but the last four is pure: text and facts go in, decisions come out.

pub mod address;
mod allowance;
mod approvals;
mod conditions;
mod events;
pub mod gate;
pub mod glob;
pub mod groups;
pub mod host;
pub mod judge;
pub mod ledger;
pub mod meter;
pub mod pattern;
pub mod permit;
pub mod policy;
pub mod providers;
mod refusals;
pub mod request;
pub mod secrets;
pub mod url;

pub use gate::{Crossing, Finished, Gate, Remount, Setup};
pub use permit::{Denial, Kind, Permit, Reason, Trace};
