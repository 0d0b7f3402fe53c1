//! Tokens that the keeper fetches with a secret (OAuth 2.0, RFC 6749, section 6): the sandbox has a placeholder, the keeper the
//! refresh token, and requests carry the access token.
//!
//! A token is fetched when the first request needs it, and again before it expires, when the secret's value changes, or after
//! a server answered 401: that request is sent once more with the new one. The ledger has each fetch before it happens.
//! Programs that fetch tokens themselves are answered here (`asked`).

pub(super) mod asked;
mod fetch;
#[cfg(test)]
mod tests;

pub(super) use fetch::Fetcher;

use super::Shared;
use crate::http::filter::Stop;
use airlock_gate::secrets::{Bound, Value};
use airlock_protocol::secret::Use;
use fetch::{Ask, Fetched, Form};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::Duration,
};
use tokio::{sync::Mutex, time::Instant};

/// A token is fetched again so long before it expires.
const MARGIN: Duration = Duration::from_secs(60);
/// After a failure, and after a fetch for a token that was not taken, nothing is fetched for so long.
const PAUSE: Duration = Duration::from_secs(5);
/// Tokens from before that are still taken out of answers.
const MOST_FORMER: usize = 8;

/// The tokens of one sandbox.
#[derive(Default)]
pub(super) struct Tokens {
    fetcher: Option<Fetcher>,
    held: RefCell<BTreeMap<String, Held>>,
    generation: Cell<u64>,
    /// One fetch at a time: whoever waits takes what the other fetched.
    fetching: Mutex<()>,
}

/// What is known for one secret.
#[derive(Default)]
struct Held {
    token: Option<Rc<Value>>,
    former: VecDeque<Rc<Value>>,
    until: Option<Instant>,
    fetched: Option<Instant>,
    /// Whether a server did not take it.
    is_refused: bool,
    /// The value of the secret it was fetched with.
    of: Option<Rc<Value>>,
    /// What the server gave in place of that value for the next time.
    next: Option<Rc<Value>>,
    /// Not before.
    pause: Option<Instant>,
}

impl Tokens {
    /// Fetches by this.
    pub(super) fn new(fetcher: Fetcher) -> Tokens {
        Tokens { fetcher: Some(fetcher), ..Tokens::default() }
    }

    /// Counts changes.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Every token of a secret that a server may know.
    pub(super) fn known(&self, name: &str) -> Vec<Rc<Value>> {
        let held = self.held.borrow();
        let Some(held) = held.get(name) else { return Vec::new() };
        held.token.iter().chain(&held.next).chain(&held.former).cloned().collect()
    }

    /// The token for a secret; fetched where there is none that is good.
    pub(super) async fn token(&self, shared: &Shared, secret: &Bound) -> Result<Rc<Value>, Stop> {
        if let Some(token) = self.good(secret) {
            return Ok(token);
        }
        let _one = self.fetching.lock().await;
        if let Some(token) = self.good(secret) {
            return Ok(token);
        }
        let cannot =
            |why: &str| Stop::Failed(format!("no token can be fetched for {}: {why}", secret.name()));
        if self.is_pausing(secret.name()) {
            return Err(cannot("the last attempt has just failed"));
        }
        let fetcher = self.fetcher.as_ref().ok_or_else(|| cannot("nothing can be fetched here"))?;
        let ask = self.ask(shared, secret).ok_or_else(|| cannot("its token_url cannot be used"))?;
        shared.gate.fetching(secret.name(), &ask.target, ask.port).map_err(Stop::Denied)?;
        match fetcher.fetch(&ask).await {
            Ok(fetched) => Ok(self.keep(secret, fetched)),
            Err(err) => {
                self.pause(secret.name());
                Err(cannot(&err.to_string()))
            }
        }
    }

    /// A server did not take the token: the next request fetches another, unless one was just fetched for that.
    pub(super) fn was_refused(&self, name: &str) {
        let mut held = self.held.borrow_mut();
        let Some(held) = held.get_mut(name) else { return };
        if held.pause.is_none_or(|pause| pause <= Instant::now()) {
            held.until = Some(Instant::now());
            held.is_refused = true;
        }
    }

    /// A server did not take the token that there was at `since`. Whether there is another, or will be for whoever asks next.
    pub(super) fn renew(&self, name: &str, since: Instant) -> bool {
        self.was_refused(name);
        let held = self.held.borrow();
        let Some(held) = held.get(name) else { return false };
        let is_other = held.fetched.is_some_and(|fetched| fetched > since);
        is_other || held.until.is_some_and(|until| until <= Instant::now())
    }

    fn good(&self, secret: &Bound) -> Option<Rc<Value>> {
        let held = self.held.borrow();
        let held = held.get(secret.name())?;
        let is_of_value = held.of.as_ref().is_some_and(|of| **of == *secret.value());
        let is_fresh = held.until.is_none_or(|until| until > Instant::now());
        held.token.clone().filter(|_| is_of_value && is_fresh)
    }

    fn is_pausing(&self, name: &str) -> bool {
        let held = self.held.borrow();
        held.get(name).and_then(|held| held.pause).is_some_and(|pause| pause > Instant::now())
    }

    fn pause(&self, name: &str) {
        self.held.borrow_mut().entry(name.to_owned()).or_default().pause = Some(Instant::now() + PAUSE);
    }

    fn ask(&self, shared: &Shared, secret: &Bound) -> Option<Ask> {
        let Use::OAuth { token_url, client_id, client_secret, grant, scope } = secret.use_as() else {
            return None;
        };
        let client_secret = match client_secret {
            Some(name) => Some(shared.gate.secrets().find(name)?.value()),
            None => None,
        };
        let held = self.held.borrow();
        let held =
            held.get(secret.name()).filter(|held| held.of.as_ref().is_some_and(|of| **of == *secret.value()));
        let next = held.and_then(|held| held.next.clone()).filter(|_| grant.is_refresh());
        let form = Form {
            grant: *grant,
            client_id,
            client_secret,
            value: next.unwrap_or_else(|| secret.value()),
            scope: scope.as_deref(),
        };
        Ask::new(token_url, &form)
    }

    fn keep(&self, secret: &Bound, fetched: Fetched) -> Rc<Value> {
        let token = Rc::new(fetched.token);
        let mut held = self.held.borrow_mut();
        let held = held.entry(secret.name().to_owned()).or_default();
        held.former.extend(held.token.replace(token.clone()));
        if let Some(next) = fetched.refresh {
            held.former.extend(held.next.replace(Rc::new(next)));
        }
        while held.former.len() > MOST_FORMER {
            held.former.pop_front();
        }
        held.of = Some(secret.value());
        held.fetched = Some(Instant::now());
        held.until = fetched.lasts.map(|lasts| Instant::now() + lasts.saturating_sub(MARGIN.min(lasts / 2)));
        held.pause = std::mem::take(&mut held.is_refused).then(|| Instant::now() + PAUSE);
        self.generation.set(self.generation.get() + 1);
        token
    }
}
