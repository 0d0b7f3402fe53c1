//! Answers: every value in them becomes its placeholder again.

use super::{
    Shared,
    decode::Decoder,
    grpc::Messages,
    swap::{self, Swap},
    tables::{Fit, Inward},
};
use crate::http::filter::{Change, Changed, Passing, Stop};
use http::{HeaderMap, HeaderValue, StatusCode, header, response};
use hyper::body::Bytes;
use std::{convert::Infallible, rc::Rc};

/// Takes values out of a body.
struct Scrub {
    shared: Rc<Shared>,
    decoder: Option<Decoder>,
    messages: Option<Messages>,
    swap: Swap,
    fit: Fit,
    keeps_length: bool,
}

/// Takes values out of an answer's head, and sees to its body.
pub(super) fn answer(shared: &Rc<Shared>, passing: &Passing, head: &mut response::Parts) -> Changed {
    let tables = shared.tables()?;
    headers(&tables.inward, &mut head.headers)?;
    if !has_body(passing, head.status) {
        return Ok(None);
    }
    let decoder = decoder(head)?;
    let is_grpc = kind(&head.headers).starts_with("application/grpc");
    let is_bound_to_length = is_grpc || !is_text(&head.headers);
    let fit = if is_bound_to_length { Fit::Same } else { Fit::Exact };
    let keeps_length = decoder.is_none() && (is_bound_to_length || tables.inward.keeps_length());
    if !keeps_length {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    // Values may change while the body comes; its length may not.
    let fit = if keeps_length { Fit::Same } else { fit };
    let messages = (is_grpc && decoder.is_none()).then(Messages::default);
    Ok(Some(Box::new(Scrub {
        shared: shared.clone(),
        decoder,
        messages,
        swap: Swap::default(),
        fit,
        keeps_length,
    })))
}

/// Takes values out of fields.
pub(super) fn headers(inward: &Inward, headers: &mut HeaderMap) -> Result<(), Stop> {
    for value in headers.values_mut() {
        let made = swap::whole(inward.needles(), value.as_bytes(), |found| {
            Ok::<_, Infallible>(inward.instead(found, Fit::Exact))
        });
        let Ok(Some(made)) = made else { continue };
        *value = HeaderValue::from_bytes(&made)
            .map_err(|_| Stop::Failed("a header cannot be written anew".to_owned()))?;
    }
    Ok(())
}

fn has_body(passing: &Passing, status: StatusCode) -> bool {
    let never =
        status.is_informational() || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    passing.method != "HEAD" && !never
}

/// Takes the encoding off the head, and gives what takes it off the body.
fn decoder(head: &mut response::Parts) -> Result<Option<Decoder>, Stop> {
    let encodings: Vec<&str> = head
        .headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .map(|value| value.to_str().unwrap_or("?"))
        .collect();
    let cannot = |why: &str| Stop::Failed(format!("the answer may hold a secret and cannot be read: {why}"));
    let decoder = Decoder::new(&encodings.join(",")).map_err(|err| cannot(&err.to_string()))?;
    if decoder.is_none() {
        return Ok(None);
    }
    if head.status == StatusCode::PARTIAL_CONTENT {
        return Err(cannot("it is a part of something encoded"));
    }
    head.headers.remove(header::CONTENT_ENCODING);
    // These speak of the bytes that came, which are not those that go on.
    for name in ["content-md5", "digest", "content-digest", "accept-ranges"] {
        head.headers.remove(name);
    }
    Ok(decoder)
}

fn kind(headers: &HeaderMap) -> String {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether something in it can become longer or shorter without harm.
fn is_text(headers: &HeaderMap) -> bool {
    let kind = kind(headers);
    let ends = ["json", "xml", "javascript", "x-www-form-urlencoded", "yaml", "toml", "ndjson"];
    kind.is_empty() || kind.starts_with("text/") || ends.iter().any(|end| kind.ends_with(end))
}

impl Scrub {
    fn swap(&mut self, text: Bytes) -> Result<Bytes, Stop> {
        let tables = self.shared.tables()?;
        let fit = self.fit;
        let instead = |found| Ok::<_, Stop>(tables.inward.instead(found, fit));
        let needles = tables.inward.needles();
        let Some(messages) = &mut self.messages else { return self.swap.push(needles, text, instead) };
        let mut out = Vec::with_capacity(text.len());
        for (start, end, is_end) in messages.parts(&text) {
            out.extend_from_slice(&self.swap.push(needles, text.slice(start..end), instead)?);
            if is_end {
                out.extend_from_slice(&self.swap.flush(needles, instead)?);
            }
        }
        Ok(out.into())
    }
}

impl Change for Scrub {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        let text = match &mut self.decoder {
            None => piece,
            Some(decoder) => decoder.piece(&piece).map_err(|err| undecoded(&err))?.into(),
        };
        self.swap(text)
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        let last = match &mut self.decoder {
            None => Bytes::new(),
            Some(decoder) => decoder.end().map_err(|err| undecoded(&err))?.into(),
        };
        let mut out = self.swap(last)?.to_vec();
        let (tables, fit) = (self.shared.tables()?, self.fit);
        let instead = |found| Ok::<_, Stop>(tables.inward.instead(found, fit));
        out.extend_from_slice(&self.swap.flush(tables.inward.needles(), instead)?);
        Ok(out.into())
    }

    fn trailers(&mut self, trailers: &mut HeaderMap) -> Result<(), Stop> {
        headers(&self.shared.tables()?.inward, trailers)
    }

    fn keeps_length(&self) -> bool {
        self.keeps_length
    }
}

fn undecoded(err: &super::decode::Undecoded) -> Stop {
    Stop::Failed(format!("the answer may hold a secret and cannot be read: {err}"))
}
