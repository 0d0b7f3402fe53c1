//! DNS messages as bytes: what a program inside asked, and the answer to it. Pure; nothing here waits or looks anything up.
//!
//! ```
//! use airlock_net::dns::{Answer, Query, Subject, Transport};
//!
//! # let mut asked = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3];
//! # asked.extend_from_slice(b"API\x07example\x00\x00\x01\x00\x01");
//! let query = Query::read(&asked, Transport::Udp).unwrap();
//! assert_eq!(query.subject(), Subject::Name("api.example".to_owned()));
//! let reply = query.reply(&Answer::Denied("no rule names api.example".to_owned()));
//! assert_eq!(reply[3] & 0x0f, 3, "no such name");
//! ```
//!
//! What clients need, and why the answers look as they do:
//!
//! - A denied name is NXDOMAIN: clients stop there. REFUSED and SERVFAIL make glibc, musl, c-ares and Go ask again.
//! - An allowed name without a record of the type asked for is an empty NOERROR. musl takes NXDOMAIN for AAAA as the
//!   end of the whole name.
//! - "Recursion available" is set: glibc and Go take an empty answer without it for a lame server.
//! - Negative answers carry a SOA whose TTL is a few seconds, so that caches forget them soon after a rule is added.
//! - The question is echoed byte for byte in its case, which resolvers use against forgery (0x20).

mod query;
mod reply;

pub use query::{Query, Subject, Unanswered};
pub use reply::{Answer, NEGATIVE_TTL, TTL};

/// What carried a message; it bounds the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// One datagram.
    Udp,
    /// A stream with length prefixes.
    Tcp,
}

/// Answers `asked`, with `look` to say what stands behind the question; nothing where silence is the right answer.
pub fn answer(asked: &[u8], transport: Transport, look: &mut dyn FnMut(&Query) -> Answer) -> Option<Vec<u8>> {
    match Query::read(asked, transport) {
        Ok(query) => Some(query.reply(&look(&query))),
        Err(Unanswered::Reply(reply)) => Some(reply),
        Err(Unanswered::Silence) => None,
    }
}

#[cfg(test)]
mod tests;
