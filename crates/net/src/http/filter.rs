//! What looks at and changes requests and answers on their way: secrets, packages, scripts.
//!
//! A request that the gate permitted passes every filter in order before its first byte leaves; its answer passes them in
//! the opposite order before its first byte enters.

#![expect(dead_code, reason = "what carries requests comes next")]

use airlock_gate::{Denial, host::Target};
use http::{request, response};
use hyper::body::Bytes;
use std::{future::Future, pin::Pin};

/// A future that stays on the keeper's thread.
pub(crate) type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// One request on its way, the same for request and answer.
#[derive(Debug, Clone)]
pub(crate) struct Passing {
    /// The name or address.
    pub(crate) target: Target,
    /// The port.
    pub(crate) port: u16,
    /// Whether it goes to a server whose certificate was verified.
    pub(crate) is_verified: bool,
    /// `GET`, `POST`, …
    pub(crate) method: String,
    /// The checked and decoded path.
    pub(crate) path: String,
    /// The rule that permitted it, in words.
    pub(crate) rule: Option<String>,
}

/// Why something does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It is denied, and the ledger has it: answered with 403 where that is still possible, else the stream is reset.
    Denied(Denial),
    /// It cannot be done (a body that cannot be decoded, a helper that failed): answered with 502 or a reset.
    Failed(String),
}

/// What a filter makes of a body; `None`: nothing.
pub(crate) type Changed = Result<Option<Box<dyn Change>>, Stop>;

/// Looks at and may change what passes. One for each sandbox.
pub(crate) trait Filter {
    /// Whether flows to this place have to be opened so that it can look at them.
    fn wants(&self, target: &Target, port: u16) -> bool;

    /// A permitted request whose body has not begun.
    fn request<'a>(&'a self, passing: &'a Passing, head: &'a mut request::Parts) -> Local<'a, Changed>;

    /// Its answer.
    fn response<'a>(&'a self, passing: &'a Passing, head: &'a mut response::Parts) -> Local<'a, Changed>;

    /// The bytes after an upgrade (WebSocket), in each direction.
    fn upgraded(&self, passing: &Passing, way: Way) -> Option<Box<dyn Change>>;
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the server.
    Out,
    /// To the sandbox.
    In,
}

/// Changes a body, piece by piece. It keeps back as little as it can, and a bounded amount.
pub(crate) trait Change {
    /// The next piece; what may go on, which can be nothing yet.
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop>;

    /// There are no more; what was kept back.
    fn end(&mut self) -> Result<Bytes, Stop>;

    /// The fields behind the last piece, after [`Change::end`].
    fn trailers(&mut self, _trailers: &mut http::HeaderMap) -> Result<(), Stop> {
        Ok(())
    }

    /// Whether as many bytes come out as go in, so that `content-length` stays right.
    fn keeps_length(&self) -> bool {
        false
    }
}
