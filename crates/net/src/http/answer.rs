//! What a program is told where its request does not go on.

use super::Bad;
use airlock_gate::Denial;
use http::{Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Bytes;

/// A denial, in the form that the program can read: JSON with 403 (or 429), or what gRPC has for it.
pub(crate) fn denied(denial: &Denial, _head: &request::Parts) -> Response<Full<Bytes>> {
    answer(403, &denial.to_string())
}

/// A request that cannot be judged: 400 or 421.
pub(crate) fn bad(bad: &Bad) -> Response<Full<Bytes>> {
    answer(bad.status, &bad.why)
}

/// A request that was permitted and could not be carried: 502 and its kind. `reason` is a word (`certificate`, `unreachable`).
pub(crate) fn failed(status: u16, _reason: &str, why: &str) -> Response<Full<Bytes>> {
    answer(status, why)
}

fn answer(status: u16, why: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(why.to_owned())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    response
}
