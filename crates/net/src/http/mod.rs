//! HTTP inside opened connections: read into types, judged, written anew.
//!
//! | module | what |
//! |---|---|
//! | `strict`, `raw` | HTTP/1 as bytes: what can be read in two ways does not reach the parser |
//! | `target`, `framing` | what a request's head must look like |
//! | `answer` | what a program is told where its request does not go on |
//! | `filter` | what looks at and changes requests and answers |

#![expect(dead_code, reason = "what carries requests comes next")]

pub(crate) mod answer;
pub(crate) mod filter;
pub(crate) mod framing;
pub(crate) mod raw;
pub(crate) mod strict;
pub(crate) mod target;

use airlock_gate::Reason;

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
