//! Requests that are signed with a key of AWS: signed with the placeholder inside, signed anew with the key outside.
//!
//! A request counts as signed with a placeholder if it names the access key that belongs to it and its signature comes out with
//! the placeholder as key; so what is signed anew is what the program signed. The forms: in a header, in a URL that is signed
//! in advance, with the hash of the body or without, and with a body in signed chunks, also with trailers.
//!
//! | module | |
//! |---|---|
//! | `read` | what a signature says (pure) |
//! | `canonical` | what it is made over (pure) |
//! | `sign` | how it is made (pure) |
//! | `chunks` | bodies in signed chunks |

mod canonical;
mod chunks;
mod read;
mod sign;
#[cfg(test)]
mod tests;

pub(super) use read::Signed;

use super::{Shared, head};
use crate::http::filter::{Change, Passing, Stop};
use airlock_gate::secrets::{Bound, Secrets, Value};
use airlock_protocol::secret::Use;
use canonical::{STYLES, Style};
use chunks::Chunks;
use http::{HeaderMap, HeaderValue, header, request};
use read::{CONTENT_HASH, Form};
use sign::{NOTHING, SigningKey};

/// Largest body whose hash has to be signed and is not told in the head.
const MOST_HASHED: usize = 8 * 1024 * 1024;
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Bodies in chunks that are signed, each.
const CHUNKED: [&str; 2] =
    ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"];

/// A request that is signed with a placeholder.
pub(super) struct Job {
    /// The secret's name.
    pub(super) name: String,
    signed: Signed,
    style: Style,
    payload: String,
}

/// How much of the body has to be seen first, if its hash is signed and the head does not tell it.
pub(super) fn gathers(secrets: &Secrets, passing: &Passing, headers: &HeaderMap) -> Option<usize> {
    let is_ours = keys(secrets).any(|(secret, _)| secret.is_bound_to(&passing.target));
    (is_ours && read::is_signed(headers) && !headers.contains_key(CONTENT_HASH)).then_some(MOST_HASHED)
}

/// Whether a request is signed with a placeholder. `body` is all of it, where it was gathered.
pub(super) fn find(
    shared: &Shared,
    passing: &Passing,
    head: &request::Parts,
    body: Option<&[u8]>,
) -> Result<Option<Job>, Stop> {
    let secrets = shared.gate.secrets();
    if keys(secrets).next().is_none() {
        return Ok(None);
    }
    let Some(signed) = Signed::read(head) else { return Ok(None) };
    let Some((secret, _)) = keys(secrets).find(|(_, id)| *id == signed.key_id) else { return Ok(None) };
    if let Err(why) = secret.may_go(&super::asked(passing)) {
        return Err(shared.alarm(passing, secret.name(), &why.to_string()));
    }
    let key = SigningKey::new(secret.placeholder(), &signed.scope);
    let payloads = payloads(head, body);
    let candidates = payloads.iter().flat_map(|payload| STYLES.map(|style| (style, payload)));
    for (style, payload) in candidates {
        let canonical = canonical::request(head, &signed, style, payload);
        if canonical.is_some_and(|canonical| key.request(&signed, &canonical) == signed.signature) {
            let name = secret.name().to_owned();
            return Ok(Some(Job { name, signed, style, payload: payload.clone() }));
        }
    }
    Err(Stop::Failed(format!("the request is not signed with the placeholder of {}", secret.name())))
}

/// Keys, each with the id that stands for its access key inside.
fn keys(secrets: &Secrets) -> impl Iterator<Item = (&Bound, &str)> {
    secrets.iter().filter_map(|secret| match secret.use_as() {
        Use::AwsKey { access_key } => {
            Some((secret, secrets.find(access_key).map_or(access_key.as_str(), Bound::placeholder)))
        }
        _ => None,
    })
}

/// What may stand for the body in what is signed.
fn payloads(head: &request::Parts, body: Option<&[u8]>) -> Vec<String> {
    let told = head.headers.get(CONTENT_HASH).and_then(|value| value.to_str().ok());
    match (told, body) {
        (Some(told), _) => vec![told.to_owned()],
        (None, Some(body)) => vec![sign::sha256(body)],
        (None, None) => vec![UNSIGNED.to_owned(), NOTHING.to_owned()],
    }
}

impl Job {
    /// Whether a placeholder stands in a parameter of a signed URL that is a header of a signed request.
    pub(super) fn covers(&self, secrets: &Secrets, spot: &head::Spot<'_>) -> bool {
        let names_key = |name: &str| match secrets.find(&self.name).map(Bound::use_as) {
            Some(Use::AwsKey { access_key }) => access_key == name,
            _ => false,
        };
        let is_there = match spot.parameter {
            "X-Amz-Credential" => names_key(spot.name),
            "X-Amz-Security-Token" => true,
            _ => false,
        };
        is_there && self.signed.form == Form::Query && spot.place.is_ok()
    }

    /// Signs a head that is as it will be sent; gives what signs the chunks of the body, where there are any.
    pub(super) fn sign(
        self,
        head: &mut request::Parts,
        value: &Value,
    ) -> Result<Option<Box<dyn Change>>, Stop> {
        let failed = || Stop::Failed("the request cannot be signed".to_owned());
        let key = SigningKey::new(value.reveal(), &self.signed.scope);
        let canonical =
            canonical::request(head, &self.signed, self.style, &self.payload).ok_or_else(failed)?;
        let signature = key.request(&self.signed, &canonical);
        put(head, &self.signed, &signature).ok_or_else(failed)?;
        let is_chunked = CHUNKED.contains(&self.payload.as_str());
        Ok(is_chunked.then(|| Box::new(Chunks::new(key, self.signed, signature)) as Box<dyn Change>))
    }
}

/// Puts a signature in place of another.
fn put(head: &mut request::Parts, signed: &Signed, signature: &str) -> Option<()> {
    match signed.form {
        Form::Header => {
            let old = head.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
            let (before, after) = old.split_once(&format!("Signature={}", signed.signature))?;
            let mut made = HeaderValue::try_from(format!("{before}Signature={signature}{after}")).ok()?;
            made.set_sensitive(true);
            head.headers.insert(header::AUTHORIZATION, made);
        }
        Form::Query => {
            let old = head.uri.query()?;
            let (before, after) = old.split_once(&format!("X-Amz-Signature={}", signed.signature))?;
            head.uri = head::with_query(&head.uri, &format!("{before}X-Amz-Signature={signature}{after}"))?;
        }
    }
    Some(())
}
