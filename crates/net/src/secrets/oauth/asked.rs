//! Programs that fetch tokens themselves (RFC 6749, sections 4.4 and 6). They have a placeholder in place of what a token is fetched
//! with, and get it back as their token. Nothing of what is sent to the place where a secret's tokens are fetched leaves.

use crate::{
    http::filter::{Passing, Remade, Stop, Whole},
    secrets::{Shared, query::Decoded},
};
use airlock_gate::secrets::{Bound, Secrets};
use airlock_protocol::secret::{Grant, Use};
use hyper::body::Bytes;
use serde_json::json;

/// Most bytes of what a program asks with.
const MOST_ASKED: usize = 64 * 1024;
/// How long a program may keep what it got, in seconds. Whoever asks again gets the same.
const LASTS: u32 = 3600;

/// The most bytes of the body, where a program asks for a token.
pub(in crate::secrets) fn gathers(secrets: &Secrets, passing: &Passing) -> Option<usize> {
    fetched_here(secrets, passing).next().map(|_| MOST_ASKED)
}

/// Answers a program that asks with a placeholder, and denies what else is sent there; `None` where no tokens are fetched.
pub(in crate::secrets) fn answer(shared: &Shared, passing: &Passing, body: &Whole) -> Option<Remade> {
    let secrets = shared.gate.secrets();
    let first = fetched_here(secrets, passing).next()?;
    let form = match body {
        Whole::Body(body) => std::str::from_utf8(body).unwrap_or_default(),
        Whole::Over => "",
    };
    let found = fetched_here(secrets, passing).find(|secret| asks_with(secret, form));
    Some(Err(match found {
        Some(secret) => Stop::Answered(document(secret.placeholder())),
        None => shared.alarm(
            passing,
            first.name(),
            "tokens are fetched outside with this secret, and this asks for another one",
        ),
    }))
}

/// The secrets whose tokens this request may ask for.
fn fetched_here<'a>(secrets: &'a Secrets, passing: &'a Passing) -> impl Iterator<Item = &'a Bound> {
    let may_ask = passing.method == "POST" && passing.is_verified;
    let all = secrets.iter().filter(move |_| may_ask);
    all.filter(|secret| secret.fetches_at(&passing.target, passing.port, &passing.path))
}

/// Whether a form asks for a token with the placeholder of this secret.
fn asks_with(secret: &Bound, form: &str) -> bool {
    let Use::OAuth { grant, .. } = secret.use_as() else { return false };
    let key = match grant {
        Grant::RefreshToken => "refresh_token",
        Grant::ClientCredentials => "client_secret",
    };
    let has = |name: &str, value: &str| {
        let fields = form.split('&').filter_map(|field| field.split_once('='));
        let mut values = fields.filter(|(own, _)| *own == name).map(|(_, text)| Decoded::new(text).bytes);
        values.next().is_some_and(|first| first == value.as_bytes()) && values.next().is_none()
    };
    has("grant_type", grant.word()) && has(key, secret.placeholder())
}

/// RFC 6749, 5.1.
fn document(token: &str) -> Bytes {
    let document = json!({ "access_token": token, "token_type": "Bearer", "expires_in": LASTS });
    Bytes::from(format!("{document}\n"))
}
