//! Placeholders in the head of a request: where they stand, and what is put in their place. Pure.

use super::{
    forms::{Form, Habit},
    query::{self, Decoded},
    swap,
    tables::Outward,
};
use airlock_protocol::secret::Place;
use data_encoding::BASE64;
use http::{
    HeaderMap, HeaderValue, Uri,
    header::{AUTHORIZATION, HeaderName, PROXY_AUTHORIZATION},
    request,
    uri::PathAndQuery,
};

/// A placeholder that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot<'a> {
    /// The name of its secret.
    pub(super) name: &'a str,
    /// Where; or in words, where no secret ever may be.
    pub(super) place: Result<Place, &'static str>,
    /// How it is written there.
    pub(super) form: Form,
    /// The parameter of the query that it stands in; empty elsewhere.
    pub(super) parameter: &'a str,
}

/// What is put in place of a placeholder, as text; it is written in the form of the placeholder. `None`: nothing changes.
pub(super) type Instead<'a, E> = &'a mut dyn FnMut(Spot<'_>) -> Result<Option<String>, E>;

/// Walks over every placeholder in a head. What `instead` gives is in its place afterwards.
pub(super) fn walk<E: From<Unwritten>>(
    outward: &Outward,
    head: &mut request::Parts,
    instead: Instead<'_, E>,
) -> Result<(), E> {
    path(outward, &head.uri, instead)?;
    query(outward, &mut head.uri, instead)?;
    headers(outward, &mut head.headers, instead)
}

/// Something cannot be written where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret cannot be written into the request")]
pub(super) struct Unwritten;

/// No secret belongs into a path.
fn path<E>(outward: &Outward, uri: &Uri, instead: Instead<'_, E>) -> Result<(), E> {
    let decoded = Decoded::new(uri.path());
    for text in [uri.path().as_bytes(), &decoded.bytes] {
        let Some(sought) = outward.needles().find(text, 0).and_then(|found| outward.sought(found)) else {
            continue;
        };
        instead(Spot { name: &sought.name, place: Err("the path"), form: sought.form, parameter: "" })?;
    }
    Ok(())
}

fn query<E: From<Unwritten>>(outward: &Outward, uri: &mut Uri, instead: Instead<'_, E>) -> Result<(), E> {
    let Some(old) = uri.query() else { return Ok(()) };
    let decoded = Decoded::new(old);
    let (mut made, mut at, mut from) = (String::new(), 0, 0);
    while let Some(found) = outward.needles().find(&decoded.bytes, from) {
        from = found.end;
        let Some(sought) = outward.sought(found) else { continue };
        let (start, end) = (decoded.place(found.start), decoded.place(found.end));
        let parameter = query::parameter(old, start);
        let place = match sought.form {
            Form::Plain => Ok(Place::Query),
            _ => Err("the query, encoded"),
        };
        let Some(value) = instead(Spot { name: &sought.name, place, form: sought.form, parameter })? else {
            continue;
        };
        made.push_str(old.get(at..start).unwrap_or_default());
        made.push_str(&Habit::STRICT.encode(value.as_bytes()));
        at = end;
    }
    if at == 0 {
        return Ok(());
    }
    made.push_str(old.get(at..).unwrap_or_default());
    *uri = with_query(uri, &made).ok_or(Unwritten)?;
    Ok(())
}

/// The same, with another query.
pub(super) fn with_query(uri: &Uri, query: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}?{query}", uri.path())).ok()?);
    Uri::from_parts(parts).ok()
}

/// As [`walk`], for fields alone.
pub(super) fn headers<E: From<Unwritten>>(
    outward: &Outward,
    headers: &mut HeaderMap,
    instead: Instead<'_, E>,
) -> Result<(), E> {
    for (name, value) in headers.iter_mut() {
        let made = match basic(name, value) {
            Some(decoded) => {
                let made = field(outward, &decoded, Place::Basic, instead)?;
                made.map(|text| format!("Basic {}", BASE64.encode(&text)).into_bytes())
            }
            None => field(outward, value.as_bytes(), Place::Header, instead)?,
        };
        let Some(made) = made else { continue };
        let mut made = HeaderValue::from_bytes(&made).map_err(|_| Unwritten)?;
        made.set_sensitive(true);
        *value = made;
    }
    Ok(())
}

/// One value of a header, or the credentials in it; `None` if nothing changes.
fn field<E>(
    outward: &Outward,
    text: &[u8],
    place: Place,
    instead: Instead<'_, E>,
) -> Result<Option<Vec<u8>>, E> {
    let mut is_changed = false;
    let made = swap::whole(outward.needles(), text, |found| {
        let same = text.get(found.start..found.end).unwrap_or_default().to_vec();
        let Some(sought) = outward.sought(found) else { return Ok(same) };
        let place = match sought.form {
            Form::Plain | Form::Percent(_) => Ok(place),
            _ => Err("a header, encoded"),
        };
        let value = instead(Spot { name: &sought.name, place, form: sought.form, parameter: "" })?;
        is_changed |= value.is_some();
        Ok(value.map_or(same, |value| sought.form.write(&value)))
    })?;
    Ok(made.filter(|_| is_changed))
}

/// The credentials of `Basic`, decoded.
fn basic(name: &HeaderName, value: &HeaderValue) -> Option<Vec<u8>> {
    if name != AUTHORIZATION && name != PROXY_AUTHORIZATION {
        return None;
    }
    let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let credentials = credentials.trim().trim_end_matches('=');
    data_encoding::BASE64_NOPAD.decode(credentials.as_bytes()).ok()
}
