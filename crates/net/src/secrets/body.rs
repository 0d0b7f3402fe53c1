//! Placeholders in the body of a request: replaced where a secret may stand there, and an alarm where not.

use super::{
    Shared,
    decode::Decoder,
    forms::{Escapes, Form, Habit},
    head,
    swap::Swap,
    table::Found,
    tables::Tables,
};
use crate::http::filter::{Change, Passing, Stop};
use airlock_gate::secrets::Value;
use airlock_protocol::secret::Place;
use http::{HeaderMap, header};
use hyper::body::Bytes;
use std::{collections::BTreeMap, rc::Rc};

/// How a value is written into a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// As it is.
    Nothing,
    /// For a string of JSON.
    Json,
    /// For a form.
    Form,
}

/// Puts values into a body.
pub(super) struct Fill {
    swap: Swap,
    filling: Filling,
}

/// Decides on each placeholder in a body.
pub(super) struct Filling {
    shared: Rc<Shared>,
    tables: Rc<Tables>,
    passing: Passing,
    escape: Escape,
    /// Those that may stand in this body, as they were when it began, and whether the ledger has it.
    values: BTreeMap<String, (Rc<Value>, bool)>,
}

/// Looks for placeholders in a body in which none may stand. Nothing is kept back: they are worthless to whoever gets them.
pub(super) struct Watch {
    shared: Rc<Shared>,
    tables: Rc<Tables>,
    passing: Passing,
    decoder: Option<Decoder>,
    tail: Vec<u8>,
}

impl Escape {
    /// By the type of the body.
    pub(super) fn of(headers: &HeaderMap) -> Escape {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/x-www-form-urlencoded" => Escape::Form,
            kind if kind.ends_with("json") || kind.ends_with("json-patch") => Escape::Json,
            _ => Escape::Nothing,
        }
    }

    fn write(self, value: &str) -> Vec<u8> {
        match self {
            Escape::Nothing => value.as_bytes().to_vec(),
            Escape::Json => Escapes::LEAST.encode(value).into_bytes(),
            Escape::Form => Habit::STRICT.encode(value.as_bytes()).into_bytes(),
        }
    }
}

impl Filling {
    /// For the body of this request.
    pub(super) fn new(
        shared: &Rc<Shared>,
        tables: &Rc<Tables>,
        passing: &Passing,
        escape: Escape,
    ) -> Filling {
        let request = super::asked(passing);
        let secrets = shared.gate.secrets().iter();
        let standing = secrets
            .filter(|secret| secret.use_as().is_plain() && secret.may_stand(&request, Place::Body).is_ok());
        let values = standing.map(|secret| (secret.name().to_owned(), (secret.value(), false))).collect();
        Filling { shared: shared.clone(), tables: tables.clone(), passing: passing.clone(), escape, values }
    }

    /// For messages after an upgrade.
    pub(super) fn of_messages(shared: &Rc<Shared>, passing: &Passing) -> Result<Filling, Stop> {
        Ok(Filling::new(shared, &shared.tables()?, passing, Escape::Nothing))
    }

    /// What it looks for.
    pub(super) fn tables(&self) -> Rc<Tables> {
        self.tables.clone()
    }

    /// Whether nothing can be replaced.
    pub(super) fn is_only_watching(&self) -> bool {
        self.values.is_empty()
    }

    /// What is put in place of what was found.
    pub(super) fn instead(&mut self, found: Found) -> Result<Vec<u8>, Stop> {
        let Some(sought) = self.tables.outward.sought(found) else {
            return Err(Stop::Failed("a placeholder cannot be told".to_owned()));
        };
        let Some((value, is_told)) = self.values.get_mut(&*sought.name) else {
            return Err(self.shared.misplaced(&self.passing, &sought.name, Ok(Place::Body)));
        };
        if !*is_told {
            let permit = self.shared.gate.reveal(&sought.name, &self.passing.target, self.passing.port);
            permit.map(drop).map_err(Stop::Denied)?;
            *is_told = true;
        }
        match sought.form {
            Form::Plain => Ok(self.escape.write(value.reveal())),
            Form::Base64(..) => same_length(sought.form.write(value.reveal()), found),
            form => Ok(form.write(value.reveal())),
        }
    }

    fn keeps_length(&self) -> bool {
        let length =
            |name: &str| self.shared.gate.secrets().find(name).map(|secret| secret.placeholder().len());
        self.values
            .iter()
            .all(|(name, (value, _))| Some(self.escape.write(value.reveal()).len()) == length(name))
    }
}

/// Inside base64 only what is as long can stand.
pub(super) fn same_length(text: Vec<u8>, found: Found) -> Result<Vec<u8>, Stop> {
    match text.len() == found.end - found.start {
        true => Ok(text),
        false => {
            Err(Stop::Failed("a secret is not as long as its placeholder, which is encoded here".to_owned()))
        }
    }
}

impl Fill {
    pub(super) fn new(filling: Filling) -> Fill {
        Fill { swap: Swap::default(), filling }
    }
}

impl Change for Fill {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        let tables = self.filling.tables.clone();
        self.swap.push(tables.outward.needles(), piece, |found| self.filling.instead(found))
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        let tables = self.filling.tables.clone();
        self.swap.flush(tables.outward.needles(), |found| self.filling.instead(found))
    }

    fn trailers(&mut self, trailers: &mut HeaderMap) -> Result<(), Stop> {
        watch_trailers(&self.filling.shared, &self.filling.tables, &self.filling.passing, trailers)
    }

    fn keeps_length(&self) -> bool {
        self.filling.keeps_length()
    }
}

impl Watch {
    /// A body with an encoding is decoded to look at it, and goes on as it is.
    pub(super) fn new(filling: Filling, encoding: Option<&str>) -> Watch {
        let decoder = encoding.and_then(|encoding| Decoder::new(encoding).ok()).flatten();
        let Filling { shared, tables, passing, .. } = filling;
        Watch { shared, tables, passing, decoder, tail: Vec::new() }
    }

    fn look(&mut self, text: &[u8]) -> Result<(), Stop> {
        let needles = self.tables.outward.needles();
        let border = text.get(..needles.longest().min(text.len())).unwrap_or_default();
        if !self.tail.is_empty() {
            self.tail.extend_from_slice(border);
        }
        let found = needles.find(&self.tail, 0).or_else(|| needles.find(text, 0));
        if let Some(sought) = found.and_then(|found| self.tables.outward.sought(found)) {
            return Err(self.shared.misplaced(&self.passing, &sought.name, Ok(Place::Body)));
        }
        let last = match self.tail.is_empty() || border.len() < text.len() {
            true => text,
            false => &self.tail,
        };
        self.tail = last.get(needles.held(last, 0)..).unwrap_or_default().to_vec();
        Ok(())
    }
}

impl Change for Watch {
    fn piece(&mut self, piece: Bytes) -> Result<Bytes, Stop> {
        match self.decoder.as_mut().map(|decoder| decoder.piece(&piece)) {
            None => self.look(&piece)?,
            Some(Ok(text)) => self.look(&text)?,
            // Who sends what nobody can decode sends nothing that anybody could use.
            Some(Err(_)) => {}
        }
        Ok(piece)
    }

    fn end(&mut self) -> Result<Bytes, Stop> {
        Ok(Bytes::new())
    }

    fn trailers(&mut self, trailers: &mut HeaderMap) -> Result<(), Stop> {
        watch_trailers(&self.shared, &self.tables, &self.passing, trailers)
    }

    fn keeps_length(&self) -> bool {
        true
    }
}

/// No secret belongs into trailers.
fn watch_trailers(
    shared: &Shared,
    tables: &Tables,
    passing: &Passing,
    trailers: &mut HeaderMap,
) -> Result<(), Stop> {
    head::headers(&tables.outward, trailers, &mut |spot| {
        Err(shared.misplaced(passing, spot.name, Err("a trailer")))
    })
}
