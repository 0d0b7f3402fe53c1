//! HTTP inside opened connections: read into types, judged, written anew.
//!
//! | module | what |
//! |---|---|
//! | `open` | one connection: both handshakes, then its requests |
//! | `proxy` | the sandbox's own proxy |
//! | `near`, `far` | the program's side, the server's side |
//! | `turns`, `line` | both sides where they speak HTTP/1.1 |
//! | `sends`, `pieces` | messages of HTTP/1.1 as they are written, and their bodies as they are read |
//! | `streams`, `calls` | both sides where they speak HTTP/2 |
//! | `exchange` | one request: checked, judged, filtered, sent, answered |
//! | `renew` | one that was refused for what can be had anew, sent again |
//! | `early` | what a server says before its answer |
//! | `strict`, `raw` | HTTP/1 as bytes: what can be read in two ways does not reach the parser |
//! | `target`, `framing` | what a request's head must look like |
//! | `heads` | heads as they are written anew |
//! | `came`, `body`, `upgrade` | bodies as they come, on their way, and bytes after an upgrade |
//! | `filter` | what looks at and changes requests and answers |
//! | `answer` | what a program is told where its request does not go on |
//! | `link`, `spare` | a connection to a server, and those that wait for the next near connection |
//! | `flow`, `flight` | the use of a connection to a server and a request, as the ledger has them |
//! | `carrier`, `tasks` | what they share |

pub(crate) mod answer;
mod body;
mod calls;
mod came;
mod carrier;
mod early;
mod exchange;
mod far;
pub mod filter;
mod flight;
mod flow;
pub(crate) mod framing;
mod heads;
mod line;
mod link;
mod near;
mod open;
mod pieces;
pub(crate) mod proxy;
pub(crate) mod raw;
mod renew;
mod sends;
mod spare;
mod ssh;
mod streams;
pub(crate) mod strict;
pub(crate) mod target;
mod tasks;
mod turns;
mod upgrade;

pub(crate) use carrier::Carrier;
use carrier::{Living, Session};
pub(crate) use flight::Requests;
pub(crate) use open::carry;

use airlock_gate::Reason;
use std::rc::Rc;

/// What looks at the requests of one sandbox.
#[derive(Default)]
pub struct Filters(pub(crate) Vec<Rc<dyn filter::Filter>>);

impl Filters {
    /// Adds one behind those that are there.
    pub fn add(&mut self, filter: Rc<dyn filter::Filter>) {
        self.0.push(filter);
    }
}

/// A request that is not judged, because of what it looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bad {
    /// 400, 405, 421, 431, …
    pub(crate) status: u16,
    /// The word for the ledger.
    pub(crate) reason: Reason,
    /// What is wrong.
    pub(crate) why: String,
}

#[cfg(test)]
mod tests;
