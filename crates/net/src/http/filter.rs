//! What looks at and changes requests and answers on their way: secrets, packages, scripts.
//!
//! A request that the gate permitted passes every filter in order before its first byte leaves; its answer passes them in
//! the opposite order before its first byte enters.
//!
//! A filter that has to see a body whole says so by [`Filter::gathers`]; then [`Filter::whole_request`] or
//! [`Filter::whole_response`] is called in place of [`Filter::request`] or [`Filter::response`], with the body, before anything
//! of head or body goes on.

use airlock_gate::{Denial, host::Target};
use airlock_protocol::policy::Body;
use http::{HeaderMap, request, response};
use hyper::body::Bytes;
use std::{future::Future, pin::Pin};
use tokio::time::Instant;

/// A future that stays on the keeper's thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// One request on its way, the same for request and answer.
#[derive(Debug, Clone)]
pub struct Passing {
    /// The name or address.
    pub target: Target,
    /// The port.
    pub port: u16,
    /// Whether it goes to a server whose certificate was verified.
    pub is_verified: bool,
    /// `GET`, `POST`, …
    pub method: String,
    /// The checked and decoded path.
    pub path: String,
    /// The rule that permitted it, in words.
    pub rule: Option<String>,
    /// How much of bodies that rule shows to scripts.
    pub body: Option<Body>,
}

/// Why something does not go on.
#[derive(Debug, Clone)]
pub enum Stop {
    /// It is denied, and the ledger has it: answered with 403 where that is still possible, else the stream is reset.
    Denied(Denial),
    /// It cannot be done (a body that cannot be decoded, a helper that failed): answered with 502 or a reset.
    Failed(String),
    /// It is answered here, with this document of JSON, and goes nowhere. Only for requests whose answer has not begun.
    Answered(Bytes),
}

/// What a filter makes of a body; `None`: nothing.
pub type Changed = Result<Option<Box<dyn Change>>, Stop>;

/// A body that a filter asked to see whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whole {
    /// All of it; trailers are dropped.
    Body(Bytes),
    /// It is longer than was asked for.
    Over,
}

/// What becomes of a body that was gathered; `None`, for one that is longer only: it goes on as it is.
pub type Remade = Result<Option<Bytes>, Stop>;

/// Looks at and may change what passes. One for each sandbox.
pub trait Filter {
    /// Whether flows to this place have to be opened so that it can look at them.
    fn wants(&self, target: &Target, port: u16) -> bool;

    /// Whether it looks at requests for this path. Where none does, none is asked.
    fn looks_at(&self, target: &Target, port: u16, path: &str) -> bool {
        let _ = (target, port, path);
        true
    }

    /// Whether nothing may cross that it cannot look at, such as git inside SSH.
    fn is_needed(&self) -> bool {
        false
    }

    /// A connection that the gate permitted and nobody has dialled yet.
    fn connect<'a>(&'a self, target: &'a Target, port: u16) -> Local<'a, Result<(), Stop>> {
        let _ = (target, port);
        Box::pin(std::future::ready(Ok(())))
    }

    /// The most bytes of the body, where it has to see it whole before the head goes on.
    fn gathers(&self, passing: &Passing, way: Way, headers: &HeaderMap) -> Option<usize> {
        let _ = (passing, way, headers);
        None
    }

    /// As [`Filter::request`], with the body.
    fn whole_request<'a>(
        &'a self,
        passing: &'a Passing,
        head: &'a mut request::Parts,
        body: Whole,
    ) -> Local<'a, Remade> {
        let _ = (passing, head);
        Box::pin(std::future::ready(Ok(kept(body))))
    }

    /// As [`Filter::response`], with the body. Whoever changes it sees to the headers about its encoding; its length is seen to.
    fn whole_response<'a>(
        &'a self,
        passing: &'a Passing,
        head: &'a mut response::Parts,
        body: Whole,
    ) -> Local<'a, Remade> {
        let _ = (passing, head);
        Box::pin(std::future::ready(Ok(kept(body))))
    }

    /// The names of what this request would carry in another form if it came again after the server refused it (401).
    fn renewable(&self, passing: &Passing, head: &request::Parts) -> Vec<String> {
        let _ = (passing, head);
        Vec::new()
    }

    /// The server answered 401 to a request that passed here at `since`. Whether these are others now, or will be when they
    /// are next needed: then the request passes here once more, and is sent again.
    fn renew(&self, names: &[String], since: Instant) -> bool {
        let _ = (names, since);
        false
    }

    /// A permitted request whose body has not begun.
    fn request<'a>(&'a self, passing: &'a Passing, head: &'a mut request::Parts) -> Local<'a, Changed>;

    /// A head that comes before the answer (`103`): whether it goes on, and with which headers. Whoever does not care lets none.
    fn hint(&self, passing: &Passing, headers: &mut HeaderMap) -> bool {
        let _ = (passing, headers);
        false
    }

    /// Its answer.
    fn response<'a>(&'a self, passing: &'a Passing, head: &'a mut response::Parts) -> Local<'a, Changed>;

    /// The bytes after an upgrade (WebSocket), in each direction.
    fn upgraded(&self, passing: &Passing, way: Way) -> Option<Box<dyn Change>>;
}

fn kept(body: Whole) -> Option<Bytes> {
    match body {
        Whole::Body(body) => Some(body),
        Whole::Over => None,
    }
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the server.
    Out,
    /// To the sandbox.
    In,
}

/// Changes a body, piece by piece. It keeps back as little as it can, and a bounded amount.
pub trait Change {
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
