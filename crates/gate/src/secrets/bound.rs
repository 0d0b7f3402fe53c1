//! One secret, and where it may go.

use super::{BadSecret, Value, placeholder};
use crate::{
    glob::Glob,
    host::{Destination, Target},
    pattern::Pattern,
};
use airlock_protocol::secret::{Place, Secret, Use};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// Values from before that are still taken out of answers.
const MOST_FORMER: usize = 8;
/// Shortest placeholder: shorter ones would be found by chance.
const SHORTEST: usize = 8;

/// One secret with its value.
#[derive(Debug)]
pub struct Bound {
    name: String,
    placeholder: String,
    hosts: Vec<Pattern>,
    methods: Vec<String>,
    paths: Vec<Glob>,
    places: Vec<Place>,
    use_as: Use,
    tokens: Option<TokenPlace>,
    value: RefCell<Rc<Value>>,
    former: RefCell<VecDeque<Rc<Value>>>,
}

/// Where tokens are fetched with a secret.
#[derive(Debug)]
struct TokenPlace {
    target: Target,
    port: u16,
    path: String,
}

/// A request as far as secrets look at it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The name or address.
    pub target: &'a Target,
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// The checked and decoded path.
    pub path: &'a str,
    /// Whether it goes to a server whose certificate was verified.
    pub is_verified: bool,
}

/// Why a secret may not go into a request. As text it is what the ledger and the program are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// To a host it is not bound to.
    #[error("the secret is not bound to this host")]
    Host,
    /// To a server whose certificate was not verified.
    #[error("the connection is not protected by verified TLS")]
    Unverified,
    /// With a method it is not bound to.
    #[error("the secret is not bound to this method")]
    Method,
    /// To a path it is not bound to.
    #[error("the secret is not bound to this path")]
    Path,
    /// In a place of the request it is not bound to.
    #[error("the secret is not bound to this place in a request: {0}")]
    Place(&'static str),
}

impl Bound {
    pub(super) fn new(secret: &Secret, value: &str) -> Result<Bound, BadSecret> {
        let name = || secret.name.clone();
        let bound = Bound {
            name: name(),
            placeholder: secret.placeholder.clone(),
            hosts: hosts(secret)?,
            methods: secret.methods.iter().map(|method| method.to_ascii_uppercase()).collect(),
            paths: paths(secret)?,
            places: secret.places.clone(),
            use_as: secret.use_as.clone(),
            tokens: tokens(secret)?,
            value: RefCell::new(Rc::new(Value::new(value))),
            former: RefCell::default(),
        };
        let bad = |why| Err(BadSecret::Placeholder { name: name(), why });
        if bound.placeholder.len() < SHORTEST {
            return bad("it is too short");
        }
        if !bound.placeholder.bytes().all(|byte| byte.is_ascii_graphic()) {
            return bad("it holds a character that no placeholder has");
        }
        bound.check_value(value)?;
        Ok(bound)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What stands for it inside.
    pub fn placeholder(&self) -> &str {
        &self.placeholder
    }

    /// What is done with it.
    pub fn use_as(&self) -> &Use {
        &self.use_as
    }

    /// The value in force.
    pub fn value(&self) -> Rc<Value> {
        self.value.borrow().clone()
    }

    /// Values from before, the youngest first. Answers may still hold them.
    pub fn former(&self) -> Vec<Rc<Value>> {
        self.former.borrow().iter().cloned().collect()
    }

    /// Whether it may go to this host at all.
    pub fn is_bound_to(&self, target: &Target) -> bool {
        self.hosts.iter().any(|host| host.matches(target))
    }

    /// Whether tokens are fetched with it at this host.
    pub fn fetches_from(&self, target: &Target, port: u16) -> bool {
        self.tokens.as_ref().is_some_and(|place| place.port == port && place.target == *target)
    }

    /// Whether tokens are fetched with it right there.
    pub fn fetches_at(&self, target: &Target, port: u16, path: &str) -> bool {
        self.fetches_from(target, port) && self.tokens.as_ref().is_some_and(|place| place.path == path)
    }

    /// Whether it may go into this request, wherever in it.
    pub fn may_go(&self, request: &Request<'_>) -> Result<(), Misplaced> {
        if !self.is_bound_to(request.target) {
            return Err(Misplaced::Host);
        }
        if !request.is_verified {
            return Err(Misplaced::Unverified);
        }
        if !self.methods.is_empty() && !self.methods.iter().any(|method| method == request.method) {
            return Err(Misplaced::Method);
        }
        if !self.paths.is_empty() && !self.paths.iter().any(|path| path.matches(request.path)) {
            return Err(Misplaced::Path);
        }
        Ok(())
    }

    /// Whether it may go into this place of the request.
    pub fn may_stand(&self, request: &Request<'_>, place: Place) -> Result<(), Misplaced> {
        self.may_go(request)?;
        match self.places.contains(&place) {
            true => Ok(()),
            false => Err(Misplaced::Place(word(place))),
        }
    }

    pub(super) fn check_value(&self, value: &str) -> Result<(), BadSecret> {
        let name = || self.name.clone();
        placeholder::check(value).map_err(|why| BadSecret::Value { name: name(), why })?;
        match value.contains(&self.placeholder) || self.placeholder.contains(value) {
            true => Err(BadSecret::Placeholder { name: name(), why: "it is the value" }),
            false => Ok(()),
        }
    }

    pub(super) fn set(&self, value: &str) {
        if self.value.borrow().reveal() == value {
            return;
        }
        let old = self.value.replace(Rc::new(Value::new(value)));
        let mut former = self.former.borrow_mut();
        former.push_front(old);
        former.truncate(MOST_FORMER);
    }
}

/// A place in words.
fn word(place: Place) -> &'static str {
    match place {
        Place::Header => "a header",
        Place::Basic => "basic credentials",
        Place::Query => "the query",
        Place::Body => "the body",
    }
}

fn hosts(secret: &Secret) -> Result<Vec<Pattern>, BadSecret> {
    if secret.hosts.is_empty() {
        return Err(BadSecret::NoHost(secret.name.clone()));
    }
    let one = |host: &String| {
        let bad = |why| BadSecret::Host { name: secret.name.clone(), host: host.clone(), why };
        match host.parse::<Pattern>().map_err(bad)? {
            Pattern::EveryName => Err(BadSecret::Wide { name: secret.name.clone(), host: host.clone() }),
            pattern => Ok(pattern),
        }
    };
    secret.hosts.iter().map(one).collect()
}

/// `https://HOST[:PORT]/PATH[?QUERY]`.
fn tokens(secret: &Secret) -> Result<Option<TokenPlace>, BadSecret> {
    let Use::OAuth { token_url: url, .. } = &secret.use_as else { return Ok(None) };
    let bad = || BadSecret::TokenUrl { name: secret.name.clone(), url: url.clone() };
    let rest = url.strip_prefix("https://").ok_or_else(bad)?;
    let Destination { target, port } = url.parse().map_err(|_| bad())?;
    let path = rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/");
    let path = path.split(['?', '#']).next().unwrap_or(path).to_owned();
    Ok(Some(TokenPlace { target, port: port.ok_or_else(bad)?, path }))
}

fn paths(secret: &Secret) -> Result<Vec<Glob>, BadSecret> {
    let one = |path: &String| {
        let bad = |why| BadSecret::Path { name: secret.name.clone(), path: path.clone(), why };
        path.parse::<Glob>().map_err(bad)
    };
    secret.paths.iter().map(one).collect()
}
