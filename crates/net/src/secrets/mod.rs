//! Secrets in requests: placeholders become values where they may, and values in answers become placeholders again.
//!
//! | module | |
//! |---|---|
//! | `forms` | how a text may be written in a message (pure) |
//! | `table`, `tables` | what is looked for (pure) |
//! | `swap` | one text in place of another, across pieces (pure) |
//! | `query` | percent-decoding with a way back (pure) |
//! | `head` | placeholders in the head of a request (pure) |
//! | `request` | one request: checked, recorded, filled |
//! | `body` | placeholders in a body |
//! | `chain` | one change of a body after another |
//! | `scrub` | values in answers |
//! | `decode` | encodings of answers |
//! | `grpc`, `frames`, `websocket` | messages inside bodies and upgraded connections |
//! | `aws` | requests that are signed with a key |
//! | `oauth` | tokens that are fetched with a secret |
//!
//! A value leaves only in a request to a host, method, path and place that its secret is bound to, over TLS whose server was
//! verified, and after the ledger has it. Everything else that holds a placeholder is denied, with an alarm in the ledger.

mod aws;
mod body;
mod chain;
mod decode;
mod forms;
mod frames;
#[cfg(test)]
mod fuzz;
mod grpc;
mod head;
mod oauth;
mod query;
mod request;
mod scrub;
mod swap;
mod table;
mod tables;
#[cfg(test)]
mod tests;
mod websocket;

use crate::{
    egress::Egress,
    http::filter::{Change, Changed, Filter, Local, Passing, Remade, Stop, Way, Whole},
};
use airlock_gate::{
    Gate,
    host::Target,
    secrets::{self, Bound},
};
use airlock_protocol::secret::{Place, Use};
use http::{request as asking, response as answering};
use std::{cell::RefCell, rc::Rc};
use tables::Tables;
use tokio::time::Instant;

/// Looks after the secrets of one sandbox.
pub(crate) struct Guard {
    shared: Rc<Shared>,
}

/// Tables, and the generations of values and tokens they were built of.
struct Built {
    of: (u64, u64),
    tables: Rc<Tables>,
}

/// What everything that passes shares.
struct Shared {
    gate: Rc<Gate>,
    tables: RefCell<Option<Built>>,
    tokens: oauth::Tokens,
}

impl Guard {
    /// For the secrets of this gate. What has to be fetched for them, this egress fetches.
    pub(crate) fn new(gate: Rc<Gate>, egress: Rc<Egress>) -> Guard {
        Guard::with(gate, oauth::Tokens::new(oauth::Fetcher::new(egress)))
    }

    fn with(gate: Rc<Gate>, tokens: oauth::Tokens) -> Guard {
        Guard { shared: Rc::new(Shared { gate, tables: RefCell::default(), tokens }) }
    }
}

impl Filter for Guard {
    fn wants(&self, target: &Target, port: u16) -> bool {
        self.shared.gate.secrets().wants(target, port)
    }

    fn gathers(&self, passing: &Passing, way: Way, headers: &http::HeaderMap) -> Option<usize> {
        match way {
            Way::Out => {
                let secrets = self.shared.gate.secrets();
                oauth::asked::gathers(secrets, passing).or_else(|| aws::gathers(secrets, passing, headers))
            }
            Way::In => None,
        }
    }

    fn whole_request<'a>(
        &'a self,
        passing: &'a Passing,
        head: &'a mut asking::Parts,
        body: Whole,
    ) -> Local<'a, Remade> {
        match oauth::asked::answer(&self.shared, passing, &body) {
            Some(answered) => Box::pin(std::future::ready(answered)),
            None => Box::pin(request::whole(&self.shared, passing, head, body)),
        }
    }

    fn renewable(&self, passing: &Passing, head: &asking::Parts) -> Vec<String> {
        self.shared.tokens_in(passing, head)
    }

    fn renew(&self, names: &[String], since: Instant) -> bool {
        names.iter().any(|name| self.shared.tokens.renew(name, since))
    }

    fn request<'a>(&'a self, passing: &'a Passing, head: &'a mut asking::Parts) -> Local<'a, Changed> {
        Box::pin(request::request(&self.shared, passing, head, None))
    }

    fn hint(&self, passing: &Passing, headers: &mut http::HeaderMap) -> bool {
        let is_bound = self.shared.gate.secrets().is_bound(&passing.target);
        !is_bound || self.shared.tables().is_ok_and(|tables| scrub::headers(&tables.inward, headers).is_ok())
    }

    fn response<'a>(&'a self, passing: &'a Passing, head: &'a mut answering::Parts) -> Local<'a, Changed> {
        if head.status == http::StatusCode::UNAUTHORIZED {
            self.shared.token_was_refused(&passing.target);
        }
        let answer = match self.shared.gate.secrets().is_bound(&passing.target) {
            true => scrub::answer(&self.shared, passing, head),
            false => Ok(None),
        };
        Box::pin(std::future::ready(answer))
    }

    fn upgraded(&self, passing: &Passing, way: Way) -> Option<Box<dyn Change>> {
        let shared = &self.shared;
        if shared.gate.secrets().is_empty() {
            return None;
        }
        let swaps = match way {
            Way::Out => websocket::Swaps::Out(Box::new(body::Filling::of_messages(shared, passing).ok()?)),
            Way::In if !shared.gate.secrets().is_bound(&passing.target) => return None,
            Way::In => websocket::Swaps::In(shared.clone()),
        };
        Some(Box::new(websocket::Socket::new(swaps)))
    }
}

impl Shared {
    /// What is looked for now.
    fn tables(&self) -> Result<Rc<Tables>, Stop> {
        let generation = (self.gate.secrets().generation(), self.tokens.generation());
        if let Some(Built { of, tables }) = &*self.tables.borrow()
            && *of == generation
        {
            return Ok(tables.clone());
        }
        let tables = Tables::new(self.gate.secrets(), |name| self.tokens.known(name));
        let tables = Rc::new(tables.map_err(|err| Stop::Failed(err.to_string()))?);
        self.tables.replace(Some(Built { of: generation, tables: tables.clone() }));
        Ok(tables)
    }

    /// Those of a host for which tokens are fetched.
    fn fetched(&self, target: &Target) -> impl Iterator<Item = &Bound> {
        let secrets = self.gate.secrets().iter();
        secrets
            .filter(move |secret| matches!(secret.use_as(), Use::OAuth { .. }) && secret.is_bound_to(target))
    }

    /// Tokens for this host may be old.
    fn token_was_refused(&self, target: &Target) {
        self.fetched(target).for_each(|secret| self.tokens.was_refused(secret.name()));
    }

    /// Those of which the placeholder of the token stands in the head of a request.
    fn tokens_in(&self, passing: &Passing, head: &asking::Parts) -> Vec<String> {
        let mut names = Vec::new();
        if self.fetched(&passing.target).next().is_none() {
            return names;
        }
        let Ok(tables) = self.tables() else { return names };
        let walked = head::walk::<Stop>(&tables.outward, &mut head.clone(), &mut |spot| {
            if self.fetched(&passing.target).any(|secret| secret.name() == spot.name) {
                names.push(spot.name.to_owned());
            }
            Ok(None)
        });
        if walked.is_ok() { names } else { Vec::new() }
    }

    /// A placeholder where its secret may not be: the alarm, and the denial.
    fn misplaced(&self, passing: &Passing, name: &str, place: Result<Place, &'static str>) -> Stop {
        let why = self.why_misplaced(passing, name, place);
        let why = why.unwrap_or_else(|| "the secret cannot be put there".to_owned());
        self.alarm(passing, name, &why)
    }

    /// The alarm, and the denial.
    fn alarm(&self, passing: &Passing, name: &str, why: &str) -> Stop {
        let detail = format!("{why}; in {} {}", passing.method, passing.path);
        Stop::Denied(self.gate.alarm(name, &passing.target, passing.port, &detail))
    }

    /// Why a secret may not stand there; `None` if it may.
    fn why_misplaced(
        &self,
        passing: &Passing,
        name: &str,
        place: Result<Place, &'static str>,
    ) -> Option<String> {
        let Some(secret) = self.gate.secrets().find(name) else {
            return Some("there is no such secret".to_owned());
        };
        let request = asked(passing);
        let place = match place {
            Ok(place) => place,
            Err(words) => {
                let elsewhere = secret.may_go(&request).err().map(|why| why.to_string());
                return elsewhere.or_else(|| Some(format!("no secret may stand in {words}")));
            }
        };
        if let Err(why) = secret.may_stand(&request, place) {
            return Some(why.to_string());
        }
        match (secret.use_as(), place) {
            (Use::AwsKey { .. }, _) => Some("this key signs requests and is never sent".to_owned()),
            (Use::OAuth { .. }, Place::Body) => {
                Some("a token that is fetched is not put into a body".to_owned())
            }
            _ => None,
        }
    }
}

/// A request as secrets look at it.
fn asked(passing: &Passing) -> secrets::Request<'_> {
    secrets::Request {
        target: &passing.target,
        method: &passing.method,
        path: &passing.path,
        is_verified: passing.is_verified,
    }
}
