//! A person's script (Starlark) that looks at connections, requests and answers.
//!
//! It runs in a program of its own with nothing around it; this end asks it and waits a bounded time. Whatever goes wrong (an error,
//! too many steps, too long, too much memory) is a denial, and the program is started anew for the next question. A script can only
//! make less of what the rules allow: it is asked after them.
//!
//! | module | what |
//! |---|---|
//! | `link` | the program, and questions to it |
//! | `heads` | heads as a script sees and changes them |

mod heads;
mod link;
#[cfg(test)]
mod tests;

pub use link::{Helper, Start};

use crate::http::filter::{Change, Changed, Filter, Local, Passing, Remade, Stop, Way, Whole};
use airlock_gate::{
    Gate, Reason,
    gate::{Cause, Part, Stopped},
    host::Target,
};
use airlock_protocol::{
    policy::{Body, Over},
    script::{Ask, Hooks, Request, Said},
    spec::Script,
};
use heads::Seen;
use http::{HeaderMap, HeaderValue, header, request, response};
use hyper::body::Bytes;
use link::Link;
use std::{collections::BTreeMap, rc::Rc};

/// What a script printed, and what went wrong in it, line by line.
pub type Told = Rc<dyn Fn(&str)>;

/// The script of one sandbox.
pub struct Scripts {
    gate: Rc<Gate>,
    link: Link,
    hooks: Hooks,
    rule: String,
}

/// What is needed to run a script.
pub struct Setup {
    /// Who decides, and records.
    pub gate: Rc<Gate>,
    /// Starts the program that runs it.
    pub start: Start,
    /// The script.
    pub script: Script,
    /// What stands for secrets inside, by the names of those.
    pub secrets: BTreeMap<String, String>,
    /// Where its lines go.
    pub told: Told,
}

impl Scripts {
    /// Starts the program and has it read the script; why not, in words. Blocks for a few milliseconds.
    pub fn load(setup: Setup) -> Result<Scripts, String> {
        let rule = format!("script {}", setup.script.name);
        let (link, hooks) = Link::begin(setup.start, setup.script, setup.secrets, setup.told)?;
        Ok(Scripts { gate: setup.gate, link, hooks, rule })
    }

    /// What the script says; a failure is a denial.
    async fn ask(&self, ask: Ask, stopped: Stopped<'_>) -> Result<Said, Stop> {
        let why = match self.link.ask(ask).await {
            Said::Deny(why) => why,
            Said::Failed(why) => format!("the script failed: {why}"),
            Said::Ready(_) => "the script failed: it answers something else".to_owned(),
            said => return Ok(said),
        };
        self.stop(stopped, &why).map(|()| Said::Pass)
    }

    /// Denies; with `audit_only` it is only recorded.
    fn stop(&self, stopped: Stopped<'_>, why: &str) -> Result<(), Stop> {
        let cause = Cause { reason: Reason::Script, rule: Some(&self.rule), detail: why, hint: "" };
        self.gate.stop(stopped, &cause).map_err(Stop::Denied)
    }

    /// What becomes of a body that cannot be shown.
    fn unseen(&self, passing: &Passing, body: Body, why: &str) -> Result<(), Stop> {
        match body.over {
            Over::Pass => Ok(()),
            Over::Deny => self.stop(stopped(passing), why),
        }
    }

    /// Asks about a request, with its body where it is shown; the new body where it was changed.
    async fn on_request(
        &self,
        passing: &Passing,
        head: &mut request::Parts,
        body: Option<String>,
    ) -> Result<Option<String>, Stop> {
        if !self.hooks.request {
            return Ok(None);
        }
        let seen = Seen::of(&head.headers);
        let query = head.uri.query().unwrap_or_default().to_owned();
        let asked = Request { query, headers: seen.shown(), body, ..request_of(passing) };
        let Said::Request(headers, body) = self.ask(Ask::Request(asked), stopped(passing)).await? else {
            return Ok(None);
        };
        match seen.change(&mut head.headers, &headers) {
            Ok(()) => Ok(body),
            Err(why) => self.stop(stopped(passing), &why).map(|()| None),
        }
    }

    /// As [`Scripts::on_request`], about an answer.
    async fn on_response(
        &self,
        passing: &Passing,
        head: &mut response::Parts,
        body: Option<String>,
    ) -> Result<Option<String>, Stop> {
        if !self.hooks.response {
            return Ok(None);
        }
        let seen = Seen::of(&head.headers);
        let status = head.status.as_u16();
        let asked = airlock_protocol::script::Response { status, headers: seen.shown(), body };
        let ask = Ask::Response(request_of(passing), asked);
        let Said::Response(changed) = self.ask(ask, stopped(passing)).await? else { return Ok(None) };
        let status = http::StatusCode::from_u16(changed.status).map_err(|err| err.to_string());
        let done = seen.change(&mut head.headers, &changed.headers).and(status);
        match done {
            Ok(status) => {
                head.status = status;
                Ok(changed.body)
            }
            Err(why) => self.stop(stopped(passing), &why).map(|()| None),
        }
    }

    fn is_asked(&self, way: Way) -> bool {
        match way {
            Way::Out => self.hooks.request,
            Way::In => self.hooks.response,
        }
    }
}

impl Filter for Scripts {
    fn wants(&self, _target: &Target, _port: u16) -> bool {
        self.hooks.request || self.hooks.response
    }

    fn is_needed(&self) -> bool {
        self.hooks.request || self.hooks.response
    }

    fn connect<'a>(&'a self, target: &'a Target, port: u16) -> Local<'a, Result<(), Stop>> {
        Box::pin(async move {
            if !self.hooks.host {
                return Ok(());
            }
            let ask = Ask::Host { host: target.to_string(), port };
            let stopped = Stopped { target, port, part: Part::Connection };
            self.ask(ask, stopped).await.map(|_| ())
        })
    }

    fn gathers(&self, passing: &Passing, way: Way, headers: &HeaderMap) -> Option<usize> {
        let body = passing.body.filter(|_| self.is_asked(way) && !is_stream(headers))?;
        let is_headless = way == Way::In && passing.method == "HEAD";
        usize::try_from(body.most).ok().filter(|_| !is_headless)
    }

    fn whole_request<'a>(
        &'a self,
        passing: &'a Passing,
        head: &'a mut request::Parts,
        body: Whole,
    ) -> Local<'a, Remade> {
        Box::pin(async move {
            let (shown, kept) = self.shown(passing, &head.headers, body)?;
            let changed = self.on_request(passing, head, shown).await?;
            self.ask_for_text(passing, head);
            Ok(changed.map(Bytes::from).or(kept))
        })
    }

    fn whole_response<'a>(
        &'a self,
        passing: &'a Passing,
        head: &'a mut response::Parts,
        body: Whole,
    ) -> Local<'a, Remade> {
        Box::pin(async move {
            let (shown, kept) = self.shown(passing, &head.headers, body)?;
            let changed = self.on_response(passing, head, shown).await?;
            Ok(changed.map(Bytes::from).or(kept))
        })
    }

    fn request<'a>(&'a self, passing: &'a Passing, head: &'a mut request::Parts) -> Local<'a, Changed> {
        Box::pin(async move {
            self.note_stream(passing, Way::Out, &head.headers)?;
            self.on_request(passing, head, None).await?;
            self.ask_for_text(passing, head);
            Ok(None)
        })
    }

    fn response<'a>(&'a self, passing: &'a Passing, head: &'a mut response::Parts) -> Local<'a, Changed> {
        Box::pin(async move {
            self.note_stream(passing, Way::In, &head.headers)?;
            self.on_response(passing, head, None).await.map(|_| None)
        })
    }

    fn upgraded(&self, _passing: &Passing, _way: Way) -> Option<Box<dyn Change>> {
        None
    }
}

impl Scripts {
    /// A body as the script sees it, and as it goes on if the script leaves it.
    fn shown(
        &self,
        passing: &Passing,
        headers: &HeaderMap,
        body: Whole,
    ) -> Result<(Option<String>, Option<Bytes>), Stop> {
        // Nothing is gathered where the rule shows nothing.
        let Some(rule) = passing.body else { return Ok((None, None)) };
        let Whole::Body(body) = body else {
            let why = format!("the body is longer than {} bytes, which the script sees", rule.most);
            return self.unseen(passing, rule, &why).map(|()| (None, None));
        };
        let is_plain = headers.get(header::CONTENT_ENCODING).is_none_or(|coding| coding == "identity");
        match std::str::from_utf8(&body) {
            Ok(text) if is_plain => Ok((Some(text.to_owned()), Some(body))),
            _ => {
                let why = "the body is not plain text, so that the script cannot see it";
                self.unseen(passing, rule, why).map(|()| (None, Some(body)))
            }
        }
    }

    /// A stream is never whole.
    fn note_stream(&self, passing: &Passing, way: Way, headers: &HeaderMap) -> Result<(), Stop> {
        match passing.body.filter(|_| self.is_asked(way) && is_stream(headers)) {
            Some(rule) => self.unseen(passing, rule, "a stream cannot be shown to the script whole"),
            None => Ok(()),
        }
    }

    /// Answers that are to be shown have to come as plain text.
    fn ask_for_text(&self, passing: &Passing, head: &mut request::Parts) {
        if passing.body.is_some() && self.hooks.response {
            head.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
    }
}

fn stopped(passing: &Passing) -> Stopped<'_> {
    let Passing { target, port, method, path, .. } = passing;
    Stopped { target, port: *port, part: Part::Request { method, path } }
}

fn request_of(passing: &Passing) -> Request {
    Request {
        method: passing.method.clone(),
        host: passing.target.to_string(),
        port: passing.port,
        path: passing.path.clone(),
        ..Request::default()
    }
}

/// Whether a message has no end that could be waited for: WebSocket, SSE, gRPC.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    headers.contains_key(header::UPGRADE)
        || kind.starts_with("text/event-stream")
        || kind.starts_with("application/grpc")
}
