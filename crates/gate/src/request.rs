//! A request inside a connection, as far as rules look at it.

use crate::host::Target;
use airlock_protocol::policy::Git;

/// One request. Whoever reads it off the wire has checked and normalised it: what is here can be compared as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name or address.
    pub target: Target,
    /// The port.
    pub port: u16,
    /// `GET`, `POST`, …
    pub method: String,
    /// The path, percent-decoded where that is unambiguous; it begins with `/` and holds no `.` or `..` segment, no `//`,
    /// no backslash and no encoded slash.
    pub path: String,
    /// The query, decoded, in its order.
    pub query: Vec<(String, String)>,
    /// The headers in their order, names in lower case; values that are no text are left out.
    pub headers: Vec<(String, String)>,
    /// Whether it asks for a WebSocket.
    pub websocket: bool,
    /// What it asks of git, if it does.
    pub git: Option<GitCall>,
}

/// What a request asks of git, over smart HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCall {
    /// Whether it reads or writes.
    pub wants: Git,
    /// Which (`acme/web`), without `.git`.
    pub repository: String,
}
