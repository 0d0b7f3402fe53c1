//! Requests to one repository: let in, redirected, tried again.

use super::{
    Error, Login, Settings,
    challenge::{self, Bearer, Challenge},
    place::{self, Place},
    retry, token,
};
use crate::reference::Reference;
use airlock_net::errand::{Answer, Ask, Errands, Site};
use http::{Method, StatusCode, header};
use serde::Deserialize;
use std::{
    cell::RefCell,
    time::{Duration, SystemTime},
};

/// Redirects that are followed.
const MOST_REDIRECTS: usize = 5;
/// Most bytes of an error's answer, and of what is repeated of it.
const MOST_SAID: usize = 16 * 1024;
const MOST_REPEATED: usize = 200;

/// What is done in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    Pull,
    Push,
}

/// Asks one repository.
pub(super) struct Client<'s> {
    pub(super) place: Place,
    settings: &'s Settings,
    errands: Errands,
    rights: Rights,
    /// As `Authorization` has it; for the registry itself and nobody else.
    entry: RefCell<Option<String>>,
}

impl<'s> Client<'s> {
    pub(super) fn new(reference: &Reference, settings: &'s Settings, rights: Rights) -> Result<Self, Error> {
        let place = Place::of(reference, &settings.insecure)?;
        let errands = Errands::new(&settings.egress)?;
        Ok(Client { place, settings, errands, rights, entry: RefCell::default() })
    }

    pub(super) fn settings(&self) -> &'s Settings {
        self.settings
    }

    /// Asks until there is an answer that is no passing failure. `what` says what for.
    pub(super) async fn ask(&self, ask: &Ask, what: &str) -> Result<Answer<'_>, Error> {
        let mut number = 0;
        loop {
            number += 1;
            let asked = self.ask_once(&self.place.site, ask, what).await;
            let demanded = match &asked {
                Ok(answer) if retry::is_passing(answer.status.as_u16()) => {
                    answer.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok())
                }
                Err(err) if err.is_passing() => {
                    number += err.weight();
                    None
                }
                _ => return asked,
            };
            match retry::wait(number, demanded, spread()) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return asked,
            }
        }
    }

    /// Asks once, at any server; follows where it leads.
    pub(super) async fn ask_once(&self, site: &Site, ask: &Ask, what: &str) -> Result<Answer<'_>, Error> {
        let (mut site, mut ask) = (site.clone(), ask.clone());
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.enter(&site, &ask, what).await?;
            let leads = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            if !leads || !matches!(ask.method, Method::GET | Method::HEAD) {
                return Ok(answer);
            }
            let location = answer.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| place::resolve(&site, &ask.path, location));
            let Some((next, path)) = next else { return Err(self.astray("it does not say where to")) };
            place::may_lead(&site, &next).map_err(|why| self.astray(why))?;
            (site, ask.path) = (next, path);
        }
        Err(self.astray("it goes on and on"))
    }

    /// One request, and once more where it has to be let in first.
    async fn enter(&self, site: &Site, ask: &Ask, what: &str) -> Result<Answer<'_>, Error> {
        let is_ours = *site == self.place.site;
        let entry = self.entry.borrow().clone().filter(|_| is_ours);
        let answer = self.exchange(site, ask, entry.as_deref(), what).await?;
        if answer.status != StatusCode::UNAUTHORIZED || !is_ours {
            return Ok(answer);
        }
        let headers = answer.headers.get_all(header::WWW_AUTHENTICATE);
        let challenges: Vec<Challenge> = headers
            .iter()
            .filter_map(|value| value.to_str().ok())
            .take(8)
            .flat_map(challenge::parse)
            .collect();
        let Some(entry) = self.entry(&challenges).await? else { return Ok(answer) };
        drop(answer);
        *self.entry.borrow_mut() = Some(entry.clone());
        self.exchange(site, ask, Some(&entry), what).await
    }

    async fn exchange(
        &self,
        site: &Site,
        ask: &Ask,
        entry: Option<&str>,
        what: &str,
    ) -> Result<Answer<'_>, Error> {
        let unanswered = |source| Error::Unanswered { what: what.to_owned(), source };
        match entry {
            None => self.errands.ask(site, ask).await.map_err(unanswered),
            Some(entry) => {
                let ask = ask.clone().header(header::AUTHORIZATION, entry);
                self.errands.ask(site, &ask).await.map_err(unanswered)
            }
        }
    }

    /// What answers one of these challenges; none if nothing here does.
    async fn entry(&self, challenges: &[Challenge]) -> Result<Option<String>, Error> {
        let registry = &self.place.registry;
        let login = (self.settings.logins)(registry)
            .map_err(|why| Error::Login { registry: registry.clone(), why })?;
        if let Some(Login::Token(token)) = &login {
            return Ok(Some(format!("Bearer {token}")));
        }
        for challenge in challenges {
            match (challenge, &login) {
                (Challenge::Bearer(bearer), _) => return self.token(bearer, login.as_ref()).await.map(Some),
                (Challenge::Basic, Some(Login::Password { user, password })) => {
                    return Ok(Some(token::basic(user, password)));
                }
                (Challenge::Basic, _) => {}
            }
        }
        Ok(None)
    }

    async fn token(&self, bearer: &Bearer, login: Option<&Login>) -> Result<String, Error> {
        let what = "asking for a token";
        let (site, path) = Site::of_url(&bearer.realm)
            .map_err(|err| self.astray(format!("its token service is no address: {err}")))?;
        place::may_lead(&self.place.site, &site).map_err(|why| self.astray(why))?;
        let rights = match self.rights {
            Rights::Pull => "pull",
            Rights::Push => "pull,push",
        };
        let scope = format!("repository:{}:{rights}", self.place.repository);
        let ask = token::ask(&path, bearer, &scope, login);
        let mut number = 0;
        let answer = loop {
            number += 1;
            let asked = self.exchange(&site, &ask, None, what).await;
            let is_passing = match &asked {
                Ok(answer) => retry::is_passing(answer.status.as_u16()),
                Err(err) => err.is_passing(),
            };
            match retry::wait(number, None, spread()).filter(|_| is_passing) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => break asked?,
            }
        };
        if answer.status != StatusCode::OK {
            return Err(self.refusal(answer, "have a token").await);
        }
        let unanswered = |source| Error::Unanswered { what: what.to_owned(), source };
        let body = answer.all(token::MOST_ANSWER).await.map_err(unanswered)?;
        let token = token::read(&body).ok_or_else(|| Error::Lies {
            registry: site.to_string(),
            what: "a token".to_owned(),
            why: "there is none in it that can be used".to_owned(),
        })?;
        Ok(format!("Bearer {token}"))
    }

    /// What an answer means that is none of those hoped for. `what` says what was tried: `pull a/b:1`.
    pub(super) async fn refusal(&self, answer: Answer<'_>, what: &str) -> Error {
        let status = answer.status.as_u16();
        let registry = answer.site().to_string();
        let body = answer.all(MOST_SAID).await.unwrap_or_default();
        let said = said(&body);
        match status {
            401 | 403 => Error::Denied { registry, what: what.to_owned(), said },
            _ => Error::Status { registry, what: what.to_owned(), status, said },
        }
    }

    pub(super) fn lies(&self, what: &str, why: impl Into<String>) -> Error {
        Error::Lies { registry: self.place.registry.clone(), what: what.to_owned(), why: why.into() }
    }

    fn astray(&self, why: impl Into<String>) -> Error {
        Error::Astray { registry: self.place.registry.clone(), why: why.into() }
    }
}

/// Waits before try `number`, if there is one.
pub(super) async fn wait(number: u32) -> bool {
    match retry::wait(number, None, spread()) {
        Some(wait) => {
            tokio::time::sleep(wait).await;
            true
        }
        None => false,
    }
}

/// Some number, each time another.
fn spread() -> u32 {
    SystemTime::UNIX_EPOCH.elapsed().as_ref().map_or(0, Duration::subsec_nanos) / 1000
}

/// What an error of a registry says (OCI distribution, "Error Codes"), printable and cut.
fn said(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Errors { errors }) = serde_json::from_slice(body) else { return String::new() };
    let words: Vec<String> = errors
        .iter()
        .take(3)
        .map(|one| if one.message.is_empty() { one.code.clone() } else { one.message.clone() })
        .collect();
    words.join("; ").chars().filter(|c| !c.is_control()).take(MOST_REPEATED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_registry_says_is_repeated_without_tricks() {
        let body =
            br#"{"errors":[{"code":"DENIED","message":"not \u001b[31mallowed"},{"code":"X","detail":1}]}"#;
        assert_eq!(said(body), "not [31mallowed; X");
        assert_eq!(said(b"<html>"), "");
    }

    proptest! {
        #[test]
        fn no_answer_panics(body in prop::collection::vec(any::<u8>(), 0..200), words in "\\PC{0,400}") {
            said(&body);
            let text = serde_json::json!({ "errors": [{ "message": words }] }).to_string();
            prop_assert!(said(text.as_bytes()).chars().count() <= MOST_REPEATED);
        }
    }
}
