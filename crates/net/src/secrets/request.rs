//! One request on its way out: tidied, checked, recorded, filled.

use super::{
    Shared, aws,
    body::{Escape, Fill, Filling, Watch},
    chain, decode, head,
};
use crate::http::filter::{Change, Changed, Passing, Remade, Stop, Whole};
use airlock_gate::{Crossing, secrets::Value};
use airlock_protocol::secret::{Place, Use};
use http::{HeaderValue, header, request};
use std::{collections::BTreeMap, rc::Rc};

/// The fields by which gRPC agrees on compression.
const GRPC_ACCEPT_ENCODING: &str = "grpc-accept-encoding";

/// Looks at a request, and puts secrets into its head.
pub(super) async fn request(
    shared: &Rc<Shared>,
    passing: &Passing,
    head: &mut request::Parts,
    whole: Option<&[u8]>,
) -> Changed {
    let secrets = shared.gate.secrets();
    if secrets.is_empty() {
        return Ok(None);
    }
    let tables = shared.tables()?;
    let signed = aws::find(shared, passing, head, whole)?;
    tidy_upgrade(head)?;
    if secrets.is_bound(&passing.target) {
        tidy_encodings(head);
    }
    let mut names: Vec<String> = signed.iter().map(|job| job.name.clone()).collect();
    head::walk::<Stop>(&tables.outward, head, &mut |spot| {
        let is_signed = signed.as_ref().is_some_and(|job| job.covers(shared.gate.secrets(), &spot));
        let place = if is_signed { Ok(Place::Header) } else { spot.place };
        if shared.why_misplaced(passing, spot.name, place).is_some() {
            return Err(shared.misplaced(passing, spot.name, place));
        }
        if !names.iter().any(|name| name == spot.name) {
            names.push(spot.name.to_owned());
        }
        Ok(None)
    })?;
    let values = reveal(shared, passing, names).await?;
    if !values.is_empty() {
        head::walk::<Stop>(&tables.outward, head, &mut |spot| {
            Ok(values.get(spot.name).map(|value| value.reveal().to_owned()))
        })?;
    }
    let mut changes = vec![body(shared, passing, head)?];
    match signed {
        Some(job) => changes.extend(sign(job, head, &values)?),
        None if !values.is_empty() => {
            // Of something that is put together from parts, no part could be recognised.
            head.headers.remove(header::RANGE);
            head.headers.remove(header::IF_RANGE);
        }
        None => {}
    }
    Ok(Some(chain::of(changes)))
}

/// As [`request()`], with a body that was gathered.
pub(super) async fn whole(
    shared: &Rc<Shared>,
    passing: &Passing,
    head: &mut request::Parts,
    body: Whole,
) -> Remade {
    let Whole::Body(body) = body else {
        return Err(Stop::Failed(
            "the body is too large to be signed without its hash in the head".to_owned(),
        ));
    };
    let Some(mut change) = request(shared, passing, head, Some(&body)).await? else { return Ok(Some(body)) };
    let mut out = change.piece(body)?.to_vec();
    out.extend_from_slice(&change.end()?);
    Ok(Some(out.into()))
}

/// Signs anew what was signed with a placeholder.
fn sign(
    job: aws::Job,
    head: &mut request::Parts,
    values: &BTreeMap<String, Rc<Value>>,
) -> Result<Option<Box<dyn Change>>, Stop> {
    let value = values.get(&job.name).cloned();
    job.sign(head, &*value.ok_or_else(|| Stop::Failed("there is no key to sign with".to_owned()))?)
}

/// The values of these secrets, each after the ledger has it.
async fn reveal(
    shared: &Rc<Shared>,
    passing: &Passing,
    names: Vec<String>,
) -> Result<BTreeMap<String, Rc<Value>>, Stop> {
    let mut values = BTreeMap::new();
    for name in names {
        let crossing =
            Crossing::Reveal { secret: name.clone(), target: passing.target.clone(), port: passing.port };
        shared.gate.ask(crossing).await.map(drop).map_err(Stop::Denied)?;
        let secret = shared.gate.secrets().find(&name);
        let secret = secret.ok_or_else(|| Stop::Failed(format!("there is no secret {name}")))?;
        let value = match secret.use_as() {
            Use::OAuth { .. } => shared.tokens.token(shared, secret).await?,
            Use::Plain | Use::AwsKey { .. } => secret.value(),
        };
        values.insert(name, value);
    }
    Ok(values)
}

/// What looks at the body, or fills it.
fn body(shared: &Rc<Shared>, passing: &Passing, head: &mut request::Parts) -> Result<Box<dyn Change>, Stop> {
    let filling = Filling::new(shared, &shared.tables()?, passing, Escape::of(&head.headers));
    let encoding =
        head.headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").to_owned());
    let is_plain = encoding.as_deref().is_none_or(|encoding| encoding.eq_ignore_ascii_case("identity"));
    if filling.is_only_watching() || !is_plain {
        return Ok(Box::new(Watch::new(filling, encoding.as_deref())));
    }
    let fill: Box<dyn Change> = Box::new(Fill::new(filling));
    if !fill.keeps_length() {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    Ok(fill)
}

/// After an upgrade only WebSocket can be read, and only where nothing is compressed.
fn tidy_upgrade(head: &mut request::Parts) -> Result<(), Stop> {
    head.headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
    let Some(upgrade) = head.headers.get(header::UPGRADE) else { return Ok(()) };
    match upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        true => Ok(()),
        false => {
            Err(Stop::Failed("a sandbox with secrets upgrades connections to WebSocket only".to_owned()))
        }
    }
}

/// Answers shall come in an encoding that can be taken off; parts of something, in none.
fn tidy_encodings(head: &mut request::Parts) {
    let headers = &mut head.headers;
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<&str> = accepted.flat_map(|value| value.split(',')).map(str::trim).collect();
    let is_part = headers.contains_key(header::RANGE);
    let known: Vec<&str> =
        accepted.iter().copied().filter(|entry| !is_part && decode::is_known(entry)).collect();
    let known = if known.is_empty() { "identity".to_owned() } else { known.join(", ") };
    if !accepted.is_empty() || is_part {
        let known = HeaderValue::try_from(known).unwrap_or(HeaderValue::from_static("identity"));
        headers.insert(header::ACCEPT_ENCODING, known);
    }
    if headers.contains_key(GRPC_ACCEPT_ENCODING) {
        headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

impl From<head::Unwritten> for Stop {
    fn from(err: head::Unwritten) -> Stop {
        Stop::Failed(err.to_string())
    }
}
